export function Data() { return null; }
