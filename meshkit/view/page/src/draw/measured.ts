// What a profiled step did when: a row for each stage's first device, from the run's recorded timeline.

import type { TraceEvent } from "../api";
import { palette } from "../palette";
import { t } from "../strings";
import { kindFill, type Frame } from "./gantt";
import type { Pen } from "./pen";

/** mesh: D, T, P of the run, which the controls may have left. */
export interface Measured { devices: { pid: number; name: string; stage: number }[]; spans: TraceEvent[]; from: number; to: number; mesh: string }

/** The last recorded step of the devices of replica 0, tensor 0; times in ms. */
export function measuredOf(events: TraceEvent[]): Measured | null {
  const named = events.filter((event) => event.ph === "M" && event.name === "process_name");
  const names = named.map((event) => event.args.name ?? "");
  const devices = named
    .filter((event) => / data 0 tensor 0 /.test(event.args.name ?? ""))
    .map((event) => ({ pid: event.pid, name: event.args.name!, stage: Number(/pipe (\d+)/.exec(event.args.name!)![1]) }));
  const pids = new Set(devices.map((device) => device.pid));
  const steps = events.filter((event) => event.ph === "X" && pids.has(event.pid));
  const last = Math.max(...steps.map((event) => event.args.step));
  const spans = steps.filter((event) => event.args.step === last && (event.cat === "actions" || event.cat === "step"));
  if (!devices.length || !spans.length) return null;
  const from = Math.min(...spans.map((event) => event.ts)) / 1e3;
  const to = Math.max(...spans.map((event) => event.ts + event.dur)) / 1e3;
  const sizes = ["data", "tensor", "pipe"].map((axis) => 1 + Math.max(...names.map((name) => Number(new RegExp(`${axis} (\\d+)`).exec(name)?.[1] ?? 0))));
  return { devices, spans, from, to, mesh: sizes.join(" × ") };
}

export function measured(pen: Pen, data: Measured, frame: Frame): void {
  const colours = palette.value;
  const pitch = frame.rowHeight + 8;
  const x = (ms: number): number => frame.x + ((ms - data.from) / (data.to - data.from)) * frame.width;
  for (const device of data.devices) {
    const y = frame.y + device.stage * pitch;
    pen.text(t("state.stage", { n: device.stage }), frame.x - 12, y + frame.rowHeight / 2, { align: "right", size: 12, weight: 600, fill: colours.pipe });
    pen.rect(frame.x, y, frame.width, frame.rowHeight, { fill: colours.paper, stroke: colours.idle, dash: [2, 3], radius: 2 });
    for (const span of data.spans.filter((one) => one.pid === device.pid).sort((a, b) => rank(a.name) - rank(b.name))) {
      const [a, b] = [x(span.ts / 1e3), x((span.ts + span.dur) / 1e3)];
      const kind = ACTION.exec(span.name);
      const hop = HOP.test(span.name);
      const fill = kind ? kindFill(kind[1]) : hop ? palette.value.infiniband : span.cat === "step" ? colours.dataSoft : colours.hair;
      const [top, high] = hop ? [y + frame.rowHeight - 4, 4] : [y + 0.5, frame.rowHeight - 1];
      pen.rect(a, top, Math.max(0.75, b - a - 0.5), high, kind || hop ? { fill } : { fill, stroke: colours.line });
      const label = kind ? kind[2] : span.name;
      if (!hop && b - a > label.length * 6 + 4)
        pen.text(label, (a + b) / 2, y + frame.rowHeight / 2, { align: "center", size: 10.5, mono: !!kind, fill: !kind ? colours.soft : kind[1] === "F" ? colours.onF : colours.onB });
    }
  }
}

const ACTION = /^([FBIW])(\d+)(?:\.\d+)?$/; // and its chunk
const HOP = /^hop/;

/** Spans may overlap, as a device waits for its peers: the table's actions above what is around them. */
const rank = (name: string): number => (HOP.test(name) ? 2 : ACTION.test(name) ? 1 : 0);

/** The span at a point, the one on top. */
export function measuredAt(data: Measured, frame: Frame, px: number, py: number): { span: TraceEvent; stage: number } | null {
  const pitch = frame.rowHeight + 8;
  const device = data.devices.find(({ stage }) => py >= frame.y + stage * pitch && py < frame.y + stage * pitch + frame.rowHeight);
  const us = 1e3 * (data.from + ((px - frame.x) / frame.width) * (data.to - data.from));
  const there = data.spans.filter((one) => one.pid === device?.pid && one.ts <= us && us < one.ts + one.dur);
  const span = there.sort((a, b) => rank(a.name) - rank(b.name)).at(-1);
  return device && span ? { span, stage: device.stage } : null;
}

export const measuredHeight = (data: Measured, frame: Frame): number => data.devices.length * (frame.rowHeight + 8);
