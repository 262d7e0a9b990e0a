// The chapters of Learn: docs/learn.md and docs/learn.zh.md, taken apart. Their order is that of the names here.

import { lexer, type Token } from "marked";
import chinese from "../../../../docs/learn.zh.md?raw";
import english from "../../../../docs/learn.md?raw";

export const CHAPTERS = ["cuts", "tensor", "bubble", "memory", "places", "tuning", "uses", "myths", "questions"] as const;
export const MYTHS = ["faster", "bubble", "memory", "tensor", "zero", "batch", "loss", "split"] as const;

/** A heading and what is below it, up to the next of its depth. */
export interface Section { title: string; body: Token[]; entries: Section[] }

function chapters(markdown: string): Section[] {
  const found: Section[] = [];
  for (const token of lexer(markdown)) {
    const last = found.at(-1);
    if (token.type === "heading" && token.depth > 1) {
      const section = { title: token.text as string, body: [], entries: [] };
      (token.depth === 2 ? found : last!.entries).push(section);
    } else if (last && token.type !== "space") (last.entries.at(-1) ?? last).body.push(token);
  }
  return found;
}

export const lessons = { en: chapters(english), zh: chapters(chinese) };
