// The Python side's parts, as meshkit/view documents them, and where they come from: the server, or this file.

export type Value = number | string;
export type Setting = Record<string, Value>;

/** Python's own sentence in both languages. */
export interface Text { en: string; zh: string }
export interface Choice { value: Value; change: Setting; reason: Text | null; fits: boolean }
export interface LinkFacts {
  level: string; name: string; bytes_per_second: number; reached_bytes_per_second: number; latency_seconds: number;
}
export interface Figures {
  step_seconds: number; seconds: Record<string, number>; tokens_per_second: number; mfu: number; eta: number;
  utilisation: number; bubble: number; memory_bytes: Record<string, number>; peak_bytes: number;
  budget_bytes: number; fits: boolean;
}
export interface Change { what: Text; change: Setting; step_seconds: number; peak_bytes: number }
export interface Overview {
  setting: Setting; query: string; microbatch: number; choices: Record<string, Choice[]>;
  model: {
    name: string; family: string; parameters: number; layers: number; width: number; heads: number;
    kv_heads: number; mlp_width: number; vocabulary: number; context: number;
  };
  cluster: {
    name: string; devices: number; nodes: number; per_node: number; nodes_per_rack: number; flops: number;
    memory_bytes: number; reserve_bytes: number; links: LinkFacts[]; source: Text;
  };
  figures: Figures;
  diagnosis: { kind: string; share: number; change: Change | null; blocked: Change | null };
  terms: { name: string; kind: string; arithmetic: Text; seconds: number }[];
}
export interface Exchange {
  name: string; count: number; volume_bytes: number; bytes_per_second: number; latency_seconds: number; hidden: number; seconds: number;
}
export interface Axis {
  size: number; groups: number; levels: number[]; crossing_nodes: number; exchanges: Exchange[];
}
export interface Mesh {
  shape: [number, number, number]; device_at: number[]; per_node: number; nodes: number; nodes_per_rack: number;
  axes: Record<AxisName, Axis>; links: LinkFacts[]; layers: [number, number][][]; warning: Text | null;
}
export interface Parameter {
  path: string; shape: number[]; spec: string; axes: AxisName[][]; local_shape: number[]; local_bytes: number;
  master_spec: string; master_axes: AxisName[][]; master_local_shape: number[]; master_local_bytes: number; cut: string;
}
export interface Weights { parameters: Parameter[]; rows_per_stage: number }
export interface Idle { stage: number[]; cause: number[]; start: number[]; end: number[] }
export interface Table {
  name: string; stages: number; microbatches: number; chunks: number; ticks: number; kinds: string[];
  actions: {
    tick: number[]; stage: number[]; kind: number[]; microbatch: number[]; chunk: number[];
    start_ms: number[]; end_ms: number[]; free_start_ms: number[]; free_end_ms: number[];
  };
  tick_ms: number[]; free_ms: number; hop_ms: number; tensor_share: Record<string, number>; bubble: number; free_bubble: number;
  idle_ticks: Idle; idle_ms: Idle; idle_free_ms: Idle; idle_ms_by_cause: Record<string, number[]>;
  in_flight: number[][]; in_use_bytes: number[][]; reserved_bytes: number;
  resident_bytes: Record<string, number>; budget_bytes: number; capacity_bytes: number;
}
export interface Step {
  key: string; axis: AxisName | ""; collective: string; shape: Text; link: number; exchanges: Exchange[];
  compute_seconds: number;
}
export interface Point {
  value: number; change: Setting; devices: number; step_seconds: number; tokens_per_second_device: number;
  mfu: number; eta: number; bubble: number; peak_bytes: number; fits: boolean;
}
export interface Sweeps { of: Record<string, Point[]>; budget_bytes: number }
export interface Row {
  rank: number; mesh: [number, number, number]; microbatches: number; microbatch: number; schedule: string;
  virtual: number; recompute: string; zero: number; step_seconds: number; tokens_per_second: number; mfu: number;
  eta: number; bubble: number; peak_bytes: number;
}
export interface Best { rows: Row[]; legal: number; fitting: number }
export type Matrix = number[][];
export interface Perceptron {
  x_BI: Matrix; w1_HI: Matrix; w2_OH: Matrix; hidden_BH: Matrix; partial_BO: Matrix[]; y_BO: Matrix; error: number;
  loss_B: number[]; loss: number; dy_BO: Matrix; dhidden_BH: Matrix;
  gradient_OH: Matrix[]; mean_OH: Matrix; gradient_error: number;
}
export interface Parts {
  overview: Overview; mesh: Mesh; weights: Weights; schedule: Table; story: Step[]; sweeps: Sweeps; best: Best;
  perceptron: Perceptron;
}
export type PartName = keyof Parts;
export type AxisName = "data" | "tensor" | "pipe";
export const AXES: AxisName[] = ["data", "tensor", "pipe"];

export interface TraceEvent {
  ph: string; pid: number; tid: number; name: string; cat?: string; ts: number; dur: number;
  args: Record<string, number> & { name?: string };
}
export interface Boot {
  query: string; presets: { name: string; query: string }[]; lessons: Record<string, string>; measured: { traceEvents: TraceEvent[] } | null;
  version: string; code: Record<string, { line: number; text: string }>;
}

const NOWHERE: Boot = { query: "", presets: [], lessons: {}, measured: null, version: "dev", code: {} };

/** What Python wrote into the page; under Vite's own server, nothing. */
export const boot: Boot = JSON.parse(document.getElementById("meshkit-boot")?.textContent ?? JSON.stringify(NOWHERE));

interface Pack { settings: Record<string, Record<PartName, number>>; parts: unknown[] }

const packed = document.getElementById("meshkit-pack")?.textContent ?? "";
let pack: Promise<Pack> | null = null;

async function unpack(): Promise<Pack> {
  const bytes = Uint8Array.from(atob(packed), (c) => c.charCodeAt(0));
  const text = await new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  return JSON.parse(text);
}

/** The settings that an exported page holds; null when a server answers any. */
export let held: Set<string> | null = null;

export async function ready(): Promise<void> {
  if (!packed) return;
  pack = unpack();
  held = new Set(Object.keys((await pack).settings));
}

const asked = new Map<string, Promise<unknown>>();

/** Why there is no answer: Python's sentence; "absent" from an exported file; "silent", the server. */
export class Refusal extends Error {
  constructor(readonly why: Text | "absent" | "silent") {
    super(typeof why === "string" ? why : why.en);
  }
}

/** A part for a setting's query. Rejects with a Refusal. */
export function get<N extends PartName>(name: N, query: string): Promise<Parts[N]> {
  const key = `${name}?${query}`;
  if (!asked.has(key)) {
    const answer = pack ? fromPack(name, query) : fromServer(key);
    answer.catch(() => asked.delete(key));
    asked.set(key, answer);
  }
  return asked.get(key) as Promise<Parts[N]>;
}

async function fromPack(name: PartName, query: string): Promise<unknown> {
  const { settings, parts } = await pack!;
  if (settings[query]?.[name] === undefined) throw new Refusal("absent");
  return whole(parts[settings[query][name]]);
}

const PER_ONE = 10_000;

/** A packed part with its long lists of numbers put together again: see `in_steps` in meshkit/view/export.py. */
function whole(packed: unknown): unknown {
  if (Array.isArray(packed)) return packed.map(whole);
  if (packed === null || typeof packed !== "object") return packed;
  if ("steps" in packed) {
    let sum = 0;
    return (packed.steps as number[]).map((step) => (sum += step) / PER_ONE);
  }
  return Object.fromEntries(Object.entries(packed).map(([name, value]) => [name, whole(value)]));
}

async function fromServer(key: string): Promise<unknown> {
  const response = await fetch(`/api/${key}`).catch(() => {
    throw new Refusal("silent");
  });
  const answer = await response.json();
  if (!response.ok) throw new Refusal(answer);
  return answer;
}

export const toQuery = (setting: Setting): string =>
  new URLSearchParams(Object.entries(setting).map(([k, v]) => [k, String(v)])).toString();

export const fromQuery = (query: string): Setting => {
  const setting: Setting = {};
  for (const [name, text] of new URLSearchParams(query)) setting[name] = /^\d+$/.test(text) ? Number(text) : text;
  return setting;
};
