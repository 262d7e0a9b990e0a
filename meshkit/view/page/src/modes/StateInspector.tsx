// What every stage does, and what it stores, at the cursor of State.

import type { Overview, Table } from "../api";
import { CAUSES, idleOf, joined, KINDS } from "../draw/gantt";
import { bytes, plain } from "../format";
import { MEMORY, memoryColour } from "../palette";
import { SeeAlso } from "../parts/Code";
import { clock, cursor, usePart } from "../store";
import { t, type Key } from "../strings";
import { leading, tickAt, timeOf, useOther } from "./State";

const BUILDER: Record<string, string> = {
  gpipe: "meshkit/pipeline/builders.py:gpipe", "1f1b": "meshkit/pipeline/builders.py:one_f_one_b",
  interleaved: "meshkit/pipeline/builders.py:interleaved", "zero-bubble": "meshkit/pipeline/builders.py:zero_bubble",
};
const GRID = "meshkit/pipeline/grid.py:parse";

export function StateInspector({ overview }: { overview: Overview }) {
  const { data: table } = usePart("schedule");
  const other = useOther(overview);
  if (!table) return null;
  const lead = leading(table, other);
  const time = timeOf(lead, Math.min(cursor.value, lead.ticks - 1));
  return (
    <div class="inspector" aria-live="polite">
      <h2>{t("state.now")}</h2>
      {clock.value === "free" ? <Free table={table} time={time} /> : <Now table={table} at={tickAt(table, time)} overview={overview} />}
      {other && (
        <>
          <h2>{plain(other.name)}</h2>
          {clock.value === "free" ? <Free table={other} time={time} /> : <Now table={other} at={tickAt(other, time)} overview={overview} />}
        </>
      )}
      <SeeAlso chapter="bubble" code={[BUILDER[overview.setting.schedule] ?? GRID, clock.value === "free" ? "meshkit/pipeline/timeline.py:asynchronous" : "meshkit/pipeline/timeline.py:lock_step", "meshkit/pipeline/timeline.py:Timeline.idle", "meshkit/pipeline/executor.py:_Run.tick"]} />
    </div>
  );
}

/** Of stages that wait for nothing but their inputs: what each does at a time, and how many it has in flight. */
function Free({ table, time }: { table: Table; time: number }) {
  const a = table.actions;
  const doing: string[] = Array.from({ length: table.stages }, () => "");
  const flying: number[] = Array.from({ length: table.stages }, () => 0);
  const back = table.kinds.includes("W") ? "W" : "B";
  for (let k = 0; k < a.tick.length; k++) {
    const name = KINDS[a.kind[k]];
    const chunk = table.chunks > 1 ? `, ${t("state.chunk", { n: a.chunk[k] })}` : "";
    if (a.free_start_ms[k] <= time && time < a.free_end_ms[k]) doing[a.stage[k]] = t(`state.${name}` as Key, { n: a.microbatch[k] }) + chunk;
    if (name === "F" && a.free_start_ms[k] <= time) flying[a.stage[k]]++;
    if (name === back && a.free_end_ms[k] <= time) flying[a.stage[k]]--;
  }
  const cause = new Map([...joined(table.idle_free_ms)].filter((gap) => gap.start <= time && time < gap.end).map((gap) => [gap.stage, gap.cause]));
  return (
    <ol class="now">
      {doing.map((words, s) => (
        <li key={s}>
          <h3 class="pipe">{t("state.stage", { n: s })}</h3>
          {words ? <p>{words}</p> : <p class="cause">{cause.has(s) ? t(`cause.${CAUSES[cause.get(s)!]}` as Key) : t("state.idle")}</p>}
          <p class="note num">{t("state.inFlight")} {flying[s]}</p>
        </li>
      ))}
      <li class="note">{t("state.freeMemory")}</li>
    </ol>
  );
}

function Now({ table, at, overview }: { table: Table; at: number; overview: Overview }) {
  const doing: string[][] = Array.from({ length: table.stages }, () => []);
  const { tick, stage, kind, microbatch, chunk } = table.actions;
  for (let k = 0; k < tick.length; k++)
    if (tick[k] === at) {
      const chunkWord = table.chunks > 1 ? `, ${t("state.chunk", { n: chunk[k] })}` : "";
      doing[stage[k]].push(t(`state.${KINDS[kind[k]]}` as Key, { n: microbatch[k] }) + chunkWord);
    }
  const causes = new Map<number, number>();
  for (const gap of joined(idleOf(table, "ticks"))) if (gap.start <= at && at < gap.end) causes.set(gap.stage, gap.cause);
  const resident = Object.values(table.resident_bytes).reduce((a, b) => a + b, 0);
  const reserve = overview.cluster.reserve_bytes;
  return (
    <ol class="now">
      {doing.map((actions, s) => {
        const cause = causes.get(s);
        const memory = { ...table.resident_bytes, activations: table.in_use_bytes[at][s] };
        const sum = resident + table.in_use_bytes[at][s] + reserve;
        return (
          <li key={s}>
            <h3 class="pipe">{t("state.stage", { n: s })} <span class="num">{bytes(sum)}</span></h3>
            {actions.map((one) => <p key={one}>{one}</p>)}
            {cause !== undefined && <p class="cause">{t(`cause.${CAUSES[cause]}` as Key)}</p>}
            <div class="bar" title={t("state.memoryNow")}>
              {MEMORY.map((kind) => <i key={kind} style={{ width: `${(((kind === "reserve" ? reserve : memory[kind as "activations"]) ?? 0) / Math.max(table.capacity_bytes, resident + table.reserved_bytes + reserve)) * 100}%`, background: memoryColour(kind) }} />)}
              <b class={resident + table.reserved_bytes + reserve > table.capacity_bytes ? "over" : ""} style={{ left: `${(table.capacity_bytes / Math.max(table.capacity_bytes, resident + table.reserved_bytes + reserve)) * 100}%` }} />
            </div>
            <p class="note num">{t("state.inFlight")} {table.in_flight[at][s]}, {bytes(table.in_use_bytes[at][s])} · {t("state.reserved")} {bytes(table.reserved_bytes)}</p>
          </li>
        );
      })}
    </ol>
  );
}
