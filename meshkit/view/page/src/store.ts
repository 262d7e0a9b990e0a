// What the user sees and has chosen; all of it lives in the URL's fragment.

import { batch, computed, effect, signal, type Signal } from "@preact/signals";
import { useEffect, useState } from "preact/hooks";
import { boot, fromQuery, get, held, Refusal, toQuery, type PartName, type Parts, type Setting } from "./api";

export const MODES = ["architecture", "data", "state", "performance", "learn"] as const;
export type Mode = (typeof MODES)[number];
export type Lang = "en" | "zh";
export type Theme = "light" | "dark";
/** What time is: ticks, ms of the lock-step, ms of stages that wait for nothing but their inputs. */
export const CLOCKS = ["ticks", "ms", "free"] as const;
export type Clock = (typeof CLOCKS)[number];
export const METRICS = ["tokens_per_second_device", "step_seconds", "eta", "bubble", "peak_bytes"] as const;
export type Metric = (typeof METRICS)[number];
export interface Place { data: number; tensor: number; pipe: number }

export const query = signal(boot.query);
export const setting = computed<Setting>(() => fromQuery(query.value));
export const mode = signal<Mode>("architecture");
export const lang = signal<Lang>(navigator.language.startsWith("zh") ? "zh" : "en");
export const theme = signal<Theme>(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
/** Architecture: the device and the parameter that are looked at; the mesh as a block. */
export const device = signal<Place>({ data: 0, tensor: 0, pipe: 0 });
export const parameter = signal("");
export const solid = signal(false);
/** Data: how far the story is. */
export const story = signal(0);
/** State: what time is, the other schedule, the cursor's tick, whether stages are unfolded to devices. */
export const clock = signal<Clock>("ticks");
export const against = signal("");
export const cursor = signal(0);
export const unfolded = signal(false);
/** State: without the recorded timeline that there is. */
export const unmeasured = signal(false);
/** Performance: what sweeps show, the layout A. */
export const metric = signal<Metric>("tokens_per_second_device");
export const pinned = signal("");
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

/** What the URL says by name: frames keep what they are when it is silent, all others go back to their first value. */
type Choice = [Signal<string>, readonly string[]];
const FRAME: Record<string, Choice> = { mode: [mode, MODES], lang: [lang, ["en", "zh"]], theme: [theme, ["light", "dark"]] };
const CHOSEN: Record<string, Choice> = { clock: [clock, CLOCKS], metric: [metric, METRICS] };
const SWITCHES = { solid, unfolded, unmeasured };
const NUMBERS = { story, at: cursor, chapter };
const WORDS = { against, pinned, parameter };
const PLACE = ["data", "tensor", "pipe"] as const;

let heard = "";
let writing = false;

/** Whether the page shows what its URL says, and its URL what the page shows. */
export const heeded = (): boolean => !writing && heard === location.hash;

const whole = (text: string | null | undefined): number => (/^\d+$/.test(text ?? "") ? Number(text) : 0);

export function readUrl(): void {
  heard = location.hash;
  const said = new URLSearchParams(heard.slice(1));
  batch(() => {
    for (const [name, [one, values]] of Object.entries(FRAME)) one.value = values.find((value) => value === said.get(name)) ?? one.value;
    for (const [name, [one, values]] of Object.entries(CHOSEN)) one.value = values.find((value) => value === said.get(name)) ?? values[0];
    for (const [name, signal] of Object.entries(SWITCHES)) signal.value = said.has(name);
    for (const [name, signal] of Object.entries(NUMBERS)) signal.value = whole(said.get(name));
    for (const [name, signal] of Object.entries(WORDS)) signal.value = said.get(name) ?? "";
    const [data, tensor, pipe] = PLACE.map((_, k) => whole(said.get("device")?.split(".")[k]));
    device.value = { data, tensor, pipe };
    query.value = toQuery({ ...fromQuery(boot.query), ...fromQuery(said.get("layout") ?? "") });
  });
}

export function followUrl(): void {
  let timer = 0;
  effect(() => {
    const said = new URLSearchParams();
    for (const [name, [signal]] of Object.entries(FRAME)) said.set(name, signal.value);
    for (const [name, [signal, values]] of Object.entries(CHOSEN)) if (signal.value !== values[0]) said.set(name, signal.value);
    for (const [name, signal] of Object.entries(SWITCHES)) if (signal.value) said.set(name, "1");
    for (const [name, signal] of Object.entries({ ...NUMBERS, ...WORDS })) if (signal.value) said.set(name, String(signal.value));
    if (query.value !== boot.query) said.set("layout", query.value);
    const place = PLACE.map((axis) => device.value[axis]).join(".");
    if (place !== "0.0.0") said.set("device", place);
    clearTimeout(timer);
    writing = true;
    timer = window.setTimeout(() => {
      writing = false;
      if (heard !== location.hash) return; // someone has gone on meanwhile
      history.replaceState(null, "", `#${said}`);
      heard = location.hash;
    }, 150);
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
