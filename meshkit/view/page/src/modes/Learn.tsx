export function Learn() { return null; }
