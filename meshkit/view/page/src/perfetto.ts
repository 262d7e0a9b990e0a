// The schedule as Chrome's trace events, as meshkit/pipeline/timeline.py writes them.

import type { Table } from "./api";
import { KINDS } from "./draw/gantt";

const ROW = [0, 1, 1, 2];

export function perfetto(table: Table) {
  const a = table.actions;
  const names = Array.from({ length: table.stages }, (_, pid) => ({ ph: "M", pid, name: "process_name", args: { name: `stage ${pid}` } }));
  const spans = a.tick.map((_, k) => ({
    ph: "X", pid: a.stage[k], tid: ROW[a.kind[k]], name: `${KINDS[a.kind[k]]}${a.microbatch[k]}`,
    ts: a.start_ms[k] * 1e3, dur: (a.end_ms[k] - a.start_ms[k]) * 1e3, args: { microbatch: a.microbatch[k], chunk: a.chunk[k] },
  }));
  return { traceEvents: [...names, ...spans], displayTimeUnit: "ms" };
}
