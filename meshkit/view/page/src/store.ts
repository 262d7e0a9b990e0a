// What the user sees and has chosen; all of it lives in the URL's fragment.

import { batch, computed, effect, signal } from "@preact/signals";
import { useEffect, useState } from "preact/hooks";
import { boot, fromQuery, get, held, Refusal, toQuery, type PartName, type Parts, type Setting } from "./api";

export const MODES = ["architecture", "data", "state", "performance", "learn"] as const;
export type Mode = (typeof MODES)[number];
export type Lang = "en" | "zh";
export type Theme = "light" | "dark";
export interface Place { data: number; tensor: number; pipe: number }

export const query = signal(boot.query);
export const setting = computed<Setting>(() => fromQuery(query.value));
export const mode = signal<Mode>("architecture");
export const lang = signal<Lang>(navigator.language.startsWith("zh") ? "zh" : "en");
export const theme = signal<Theme>(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
export const device = signal<Place>({ data: 0, tensor: 0, pipe: 0 });
export const parameter = signal("");
export const against = signal("");
export const pinned = signal("");
export const cursor = signal(0);
export const chapter = signal(0);
export const sheet = signal<"" | "controls" | "inspector">("");
export const still = matchMedia("(prefers-reduced-motion: reduce)");

// --- undo ---------------------------------------------------------------------------------------

const past = signal<string[]>([]);
const future = signal<string[]>([]);
export const canUndo = computed(() => past.value.length > 0);
export const canRedo = computed(() => future.value.length > 0);

/** Choose a setting; what was before can be had back. */
export function choose(next: string): void {
  if (next === query.value) return;
  batch(() => {
    past.value = [...past.value, query.value];
    future.value = [];
    query.value = next;
  });
}

/** The setting that Python last answered for: what its choices are changes of. */
export const answered = signal<Setting>({});

export const change = (difference: Setting): void => choose(toQuery({ ...answered.value, ...difference }));

function travel(from: typeof past, to: typeof past): void {
  const next = from.value.at(-1);
  if (next === undefined) return;
  batch(() => {
    from.value = from.value.slice(0, -1);
    to.value = [...to.value, query.value];
    query.value = next;
  });
}
export const undo = (): void => travel(past, future);
export const redo = (): void => travel(future, past);

/** Whether this page can show a setting at all: an exported one holds only some. */
export const reachable = (difference: Setting): boolean =>
  held === null || held.has(toQuery({ ...answered.value, ...difference }));

// --- the URL --------------------------------------------------------------------------------------

const NUMBERS = ["data", "tensor", "pipe"] as const;

export function readUrl(): void {
  const said = new URLSearchParams(location.hash.slice(1));
  batch(() => {
    const is = <T extends string>(values: readonly T[], name: string): T | undefined =>
      values.find((value) => value === said.get(name));
    mode.value = is(MODES, "mode") ?? mode.value;
    lang.value = is(["en", "zh"] as const, "lang") ?? lang.value;
    theme.value = is(["light", "dark"] as const, "theme") ?? theme.value;
    against.value = said.get("against") ?? "";
    pinned.value = said.get("pinned") ?? "";
    parameter.value = said.get("parameter") ?? "";
    const whole = (text: string | null | undefined): number => (/^\d+$/.test(text ?? "") ? Number(text) : 0);
    cursor.value = whole(said.get("at"));
    chapter.value = whole(said.get("chapter"));
    const [data, tensor, pipe] = [0, 1, 2].map((k) => whole(said.get("device")?.split(".")[k]));
    device.value = { data, tensor, pipe };
    const asked = said.get("layout");
    if (asked) query.value = toQuery({ ...fromQuery(boot.query), ...fromQuery(asked) });
  });
}

export function followUrl(): void {
  let timer = 0;
  effect(() => {
    const said = new URLSearchParams({ mode: mode.value, lang: lang.value, theme: theme.value });
    if (query.value !== boot.query) said.set("layout", query.value);
    if (against.value) said.set("against", against.value);
    if (pinned.value) said.set("pinned", pinned.value);
    if (parameter.value) said.set("parameter", parameter.value);
    if (cursor.value) said.set("at", String(cursor.value));
    if (chapter.value) said.set("chapter", String(chapter.value));
    const place = NUMBERS.map((axis) => device.value[axis]).join(".");
    if (place !== "0.0.0") said.set("device", place);
    clearTimeout(timer);
    timer = window.setTimeout(() => history.replaceState(null, "", `#${said}`), 150);
  });
}

// --- parts ----------------------------------------------------------------------------------------

export interface Loaded<T> { data: T | null; stale: boolean; error: Refusal | null }

/** A part for the present setting (or another); the last one stays, marked stale, until the new one is there. */
export function usePart<N extends PartName>(name: N, of: string = query.value): Loaded<Parts[N]> {
  const [loaded, setLoaded] = useState<Loaded<Parts[N]> & { of: string }>({ data: null, stale: true, error: null, of: "" });
  useEffect(() => {
    let wanted = true;
    get(name, of).then(
      (data) => wanted && setLoaded({ data, stale: false, error: null, of }),
      (error: Refusal) => wanted && setLoaded({ data: null, stale: false, error, of }),
    );
    return () => void (wanted = false);
  }, [name, of]);
  return { ...loaded, stale: loaded.of !== of };
}
