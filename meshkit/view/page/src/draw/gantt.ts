// A schedule over time: a row a stage, what it works on, where it is idle and why, what it keeps meanwhile.

import type { Idle, Table } from "../api";
import { palette } from "../palette";
import type { Clock } from "../store";
import { t } from "../strings";
import type { Pen } from "./pen";

export const KINDS = ["F", "B", "I", "W"] as const;
export const CAUSES = ["fill", "drain", "imbalance"] as const;

export interface Frame {
  x: number; y: number; width: number; from: number; to: number; rowHeight: number; areaHeight: number;
  /** Rows of a stage: one, or one for each of its tensor peers. */
  peers: number;
}

export const pitchOf = (frame: Frame): number => frame.peers * frame.rowHeight + frame.areaHeight + 8;
/** Tops of a stage's rows. */
export const rowsOf = (frame: Frame, stage: number): number[] =>
  Array.from({ length: frame.peers }, (_, k) => frame.y + stage * pitchOf(frame) + k * frame.rowHeight);

export const scale = (frame: Frame) => (time: number): number =>
  frame.x + ((time - frame.from) / (frame.to - frame.from)) * frame.width;

export const total = (table: Table, clock: Clock): number =>
  clock === "ticks" ? table.ticks : clock === "ms" ? table.tick_ms[table.ticks] : table.free_ms;

export const idleOf = (table: Table, clock: Clock): Idle =>
  clock === "ticks" ? table.idle_ticks : clock === "ms" ? table.idle_ms : table.idle_free_ms;

/** Start and end of an action on a clock. In ticks each kind has a lane of its own. */
export function when(table: Table, clock: Clock, k: number): [number, number] {
  const a = table.actions;
  if (clock === "ticks") return [a.tick[k], a.tick[k] + 1];
  return clock === "ms" ? [a.start_ms[k], a.end_ms[k]] : [a.free_start_ms[k], a.free_end_ms[k]];
}

export const kindFill = (kind: string): string => palette.value[kind as "F"];

export function gantt(pen: Pen, table: Table, clock: Clock, frame: Frame, most: number): void {
  const colours = palette.value;
  const x = scale(frame);
  const lanes = clock === "ticks" ? table.kinds.length : 1;
  const lane = frame.rowHeight / lanes;
  for (let stage = 0; stage < table.stages; stage++) {
    const rows = rowsOf(frame, stage);
    const middle = rows[0] + (frame.peers * frame.rowHeight) / 2;
    pen.text(t("state.stage", { n: stage }), frame.x - (frame.peers > 1 ? 34 : 12), middle, { align: "right", size: 12, weight: 600, fill: colours.pipe });
    rows.forEach((y, k) => {
      if (frame.peers > 1) pen.text(`t${k}`, frame.x - 10, y + frame.rowHeight / 2, { align: "right", size: 10, mono: true, fill: colours.tensor });
      pen.rect(frame.x, y, frame.width, frame.rowHeight - (frame.peers > 1 ? 1 : 0), { fill: colours.sunken });
    });
    area(pen, table, clock, frame, stage, rows[0] + frame.peers * frame.rowHeight + 2, most);
  }
  idle(pen, table, clock, frame);
  const { tick, stage, kind, microbatch, chunk } = table.actions;
  for (let k = 0; k < tick.length; k++) {
    const [start, end] = when(table, clock, k);
    if (end < frame.from || start > frame.to) continue;
    const a = Math.max(frame.x, x(start));
    const b = Math.min(frame.x + frame.width, x(end));
    const name = KINDS[kind[k]];
    const gap = b - a > 4 ? 1 : 0.25;
    const share = table.tensor_share[name];
    const light = name === "F" ? colours.onF : colours.onB;
    for (const row of rowsOf(frame, stage[k])) {
      const y = row + (lanes > 1 ? table.kinds.indexOf(name) * lane : 0);
      pen.rect(a + gap / 2, y + 0.5, b - a - gap, lane - 1, { fill: kindFill(name), radius: b - a > 6 ? 2 : 0 });
      if (share && lane >= 9) pen.rect(a + gap / 2, y + lane - 3.5, (b - a - gap) * share, 3, { fill: colours.tensor });
      for (let c = 0; c < chunk[k] && b - a > 8; c++) // a notch for each chunk before it
        pen.path([[a + 3 + c * 5, y + 0.5], [a + 7 + c * 5, y + 0.5], [a + 5 + c * 5, y + 4.5]], { fill: light, closed: true });
      const label = String(microbatch[k]);
      if (b - a >= label.length * 6 + 2.4 && lane >= 10)
        pen.text(label, (a + b) / 2, y + lane / 2 + (chunk[k] ? 1 : 0), { align: "center", size: lane < 16 ? 9 : lane < 28 || b - a < label.length * 8 + 8 ? 10.5 : 13, mono: true, fill: light });
    }
  }
}

/** Idle time: an empty place with a dotted edge; its cause in a word where there is room. */
function idle(pen: Pen, table: Table, clock: Clock, frame: Frame): void {
  const colours = palette.value;
  const x = scale(frame);
  for (const { stage, cause, start, end } of joined(idleOf(table, clock))) {
    const a = Math.max(frame.x, x(start));
    const b = Math.min(frame.x + frame.width, x(end));
    if (b - a < 2) continue;
    const word = t(`cause.short.${CAUSES[cause]}`);
    for (const y of rowsOf(frame, stage)) {
      pen.rect(a + 1, y + 1, b - a - 2, frame.rowHeight - 2, { fill: colours.paper, stroke: colours.idle, dash: [2, 3], radius: 2 });
      if (b - a > word.length * 7 + 10 && frame.rowHeight > 11)
        pen.text(word, (a + b) / 2, y + frame.rowHeight / 2, { size: 10, align: "center", fill: colours.faint });
    }
  }
}

export function* joined(gaps: Idle): Generator<{ stage: number; cause: number; start: number; end: number }> {
  for (let k = 0; k < gaps.stage.length; ) {
    let last = k;
    while (gaps.stage[last + 1] === gaps.stage[k] && gaps.cause[last + 1] === gaps.cause[k] && gaps.start[last + 1] === gaps.end[last]) last++;
    yield { stage: gaps.stage[k], cause: gaps.cause[k], start: gaps.start[k], end: gaps.end[last] };
    k = last + 1;
  }
}

/** Microbatches whose activations a stage stores, as an area under its row. */
function area(pen: Pen, table: Table, clock: Clock, frame: Frame, stage: number, y: number, most: number): void {
  if (clock === "free" || frame.areaHeight < 6) return;
  const x = scale(frame);
  const time = (tick: number): number => (clock === "ticks" ? tick : table.tick_ms[tick]);
  const colours = palette.value;
  const points: [number, number][] = [];
  const inside = (value: number): number => Math.max(frame.x, Math.min(frame.x + frame.width, value));
  let peak = 0;
  for (let tick = 0; tick < table.ticks; tick++) {
    peak = Math.max(peak, table.in_flight[tick][stage]);
    if (time(tick + 1) < frame.from || time(tick) > frame.to) continue;
    const down = y + frame.areaHeight * (table.in_flight[tick][stage] / most);
    points.push([inside(x(time(tick))), down], [inside(x(time(tick + 1))), down]);
  }
  if (!points.length) return;
  pen.path([[points[0][0], y], ...points, [points.at(-1)![0], y]], { fill: colours.B, alpha: 0.22, closed: true });
  pen.path(points, { stroke: colours.B, width: 1, alpha: 0.7 });
  pen.text(`≤ ${peak}`, frame.x - 12, y + Math.min(frame.areaHeight / 2, 8), { align: "right", size: 10, mono: true, fill: colours.faint });
}

export function axis(pen: Pen, clock: Clock, frame: Frame, y: number): void {
  const colours = palette.value;
  const x = scale(frame);
  const span = frame.to - frame.from;
  const raw = span / Math.max(2, frame.width / 70);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = Math.max(clock === "ticks" ? 1 : 0, [1, 2, 5, 10].find((k) => k * power >= raw)! * power);
  for (let time = Math.ceil(frame.from / step) * step; time <= frame.to + 1e-9; time += step) {
    pen.path([[x(time), y + 5], [x(time), y + 9]], { stroke: colours.line });
    const label = time.toFixed(Math.max(0, -Math.floor(Math.log10(step) + 1e-9)));
    pen.text(label, x(time), y - 3, { size: 10, mono: true, align: "center", fill: colours.faint });
  }
}
