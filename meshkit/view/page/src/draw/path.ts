// What a block of the Gantt is, and the way of its microbatch through the stages.

import type { Table } from "../api";
import { palette } from "../palette";
import type { Clock } from "../store";
import { idleOf, joined, KINDS, pitchOf, scale, when, type Frame } from "./gantt";
import type { Pen } from "./pen";

export interface Spot { action: number; stage: number; cause: number; from: number; to: number }

/** The action, or the idle span, at a point of a frame; null between rows. action, cause: −1 for the other. */
export function spotAt(table: Table, clock: Clock, frame: Frame, px: number, py: number): Spot | null {
  const stage = Math.floor((py - frame.y) / pitchOf(frame));
  const inRow = py - frame.y - stage * pitchOf(frame);
  if (stage < 0 || stage >= table.stages || inRow > frame.rowHeight * frame.peers || px < frame.x || px > frame.x + frame.width) return null;
  const time = frame.from + ((px - frame.x) / frame.width) * (frame.to - frame.from);
  const lane = clock === "ticks" ? Math.min(table.kinds.length - 1, Math.floor(((inRow % frame.rowHeight) / frame.rowHeight) * table.kinds.length)) : -1;
  const a = table.actions;
  for (let k = 0; k < a.tick.length; k++) {
    if (a.stage[k] !== stage || (lane >= 0 && table.kinds.indexOf(KINDS[a.kind[k]]) !== lane)) continue;
    const [from, to] = when(table, clock, k);
    if (from <= time && time < to) return { action: k, stage, cause: -1, from, to };
  }
  for (const gap of joined(idleOf(table, clock)))
    if (gap.stage === stage && gap.start <= time && time < gap.end) return { action: -1, stage, cause: gap.cause, from: gap.start, to: gap.end };
  return null;
}

/** The way of one microbatch: a line through its forwards, then its backwards. */
export function trail(pen: Pen, table: Table, clock: Clock, frame: Frame, action: number): void {
  const a = table.actions;
  const x = scale(frame);
  const lanes = clock === "ticks" ? table.kinds.length : 1;
  const lane = frame.rowHeight / lanes;
  const points: [number, number][] = [];
  for (let k = 0; k < a.tick.length; k++) {
    if (a.microbatch[k] !== a.microbatch[action] || KINDS[a.kind[k]] === "W") continue;
    const [from, to] = when(table, clock, k);
    const row = lanes > 1 ? table.kinds.indexOf(KINDS[a.kind[k]]) : 0;
    const [left, right] = [Math.max(frame.x, x(from)), Math.min(frame.x + frame.width, x(to))];
    if (right <= left) continue;
    const y = frame.y + a.stage[k] * pitchOf(frame) + row * lane;
    points.push([(left + right) / 2, y + lane / 2]);
    pen.rect(left, y, right - left, lane, { stroke: palette.value.pipe, width: 2.5, radius: 3 });
  }
  pen.path(points, { stroke: palette.value.pipe, width: 1.5, alpha: 0.8 });
}
