// The words of Learn, and of the storyboard.

export const learnStrings = {
} satisfies Record<string, [string, string]>;
