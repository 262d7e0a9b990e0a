// The planner's best layouts, to sort, to narrow, and to load.

import { useState } from "preact/hooks";
import type { Overview, Row } from "../api";
import { bytes, count, percent, seconds } from "../format";
import { change, reachable, setting, usePart } from "../store";
import { t, why, type Key } from "../strings";

const COLUMNS: [Key, (row: Row) => number | string, (row: Row) => string][] = [
  ["table.rank", (row) => row.rank, (row) => String(row.rank)],
  ["table.D", (row) => row.mesh[0], (row) => String(row.mesh[0])],
  ["table.T", (row) => row.mesh[1], (row) => String(row.mesh[1])],
  ["table.P", (row) => row.mesh[2], (row) => String(row.mesh[2])],
  ["table.m", (row) => row.microbatches, (row) => `${row.microbatches} × ${row.microbatch}`],
  ["table.schedule", (row) => row.schedule, (row) => row.schedule + (row.virtual > 1 ? ` v=${row.virtual}` : "")],
  ["table.recompute", (row) => row.recompute, (row) => row.recompute],
  ["table.zero", (row) => row.zero, (row) => String(row.zero)],
  ["table.step", (row) => row.step_seconds, (row) => seconds(row.step_seconds)],
  ["table.tokens", (row) => -row.tokens_per_second, (row) => count(row.tokens_per_second)],
  ["table.mfu", (row) => -row.mfu, (row) => percent(row.mfu)],
  ["table.eta", (row) => -row.eta, (row) => percent(row.eta)],
  ["table.bubble", (row) => row.bubble, (row) => percent(row.bubble)],
  ["table.memory", (row) => row.peak_bytes, (row) => bytes(row.peak_bytes)],
];
const HUES = ["", "data", "tensor", "pipe"];

export const asChange = (row: Row) => ({
  data: row.mesh[0], tensor: row.mesh[1], pipe: row.mesh[2], schedule: row.schedule, virtual: row.virtual,
  microbatches: row.microbatches, recompute: row.recompute, zero: row.zero, overlap: "false", layers: "balanced",
});

export function BestTable({ overview }: { overview: Overview }) {
  const { data: best, error, stale } = usePart("best");
  const [by, setBy] = useState(0);
  const [down, setDown] = useState(false);
  const [only, setOnly] = useState("");
  const words = only.toLowerCase().split(/\s+/).filter(Boolean);
  const told = (row: Row): string =>
    `${COLUMNS.slice(4, 8).map(([, , spell]) => spell(row)).join(" ")} d=${row.mesh[0]} t=${row.mesh[1]} p=${row.mesh[2]} m=${row.microbatches} zero=${row.zero}`.toLowerCase();
  const key = COLUMNS[by][1];
  const rows = (best?.rows ?? [])
    .filter((row) => words.every((one) => told(row).split(" ").some((part) => part.startsWith(one))))
    .sort((a, b) => (key(a) < key(b) ? -1 : key(a) > key(b) ? 1 : 0) * (down ? -1 : 1));
  const isNow = (row: Row): boolean => Object.entries(asChange(row)).every(([name, value]) => setting.value[name] === value);
  return (
    <section>
      <div class="heading">
        <h2>{t("perf.best", { n: overview.cluster.devices })}</h2>
        <input type="search" placeholder={t("perf.filter")} aria-label={t("perf.filter")} value={only} onInput={(event) => setOnly(event.currentTarget.value)} />
      </div>
      {error ? <p class="note">{why(error)}</p> : !best || stale ? <p class="note">{t("frame.loading")}</p> : (
        <>
          <p class="note">{t("perf.bestNote", { fitting: best.fitting, legal: best.legal, n: best.rows.length })}</p>
          <div class="scroll" tabIndex={0} role="region" aria-label={t("perf.best", { n: overview.cluster.devices })}>
            <table class="best">
              <thead>
                <tr>{COLUMNS.map(([name], k) => (
                  <th key={name} aria-sort={k === by ? (down ? "descending" : "ascending") : "none"}>
                    <button class={HUES[k] ?? ""} onClick={() => (k === by ? setDown(!down) : (setBy(k), setDown(false)))}>{t(name)}{k === by ? (down ? " ↓" : " ↑") : ""}</button>
                  </th>
                ))}</tr>
              </thead>
              <tbody>
                {rows.map((row) => {
                  const there = reachable(asChange(row));
                  return (
                    <tr key={row.rank} class={`${isNow(row) ? "present" : ""} ${there ? "" : "away"}`} title={there ? t("perf.load") : t("frame.notHere")} onClick={() => there && change(asChange(row))}>
                      {COLUMNS.map(([name, , spell], k) => <td key={name} class={HUES[k] ?? ""}>{k === 0 && there ? <button aria-label={`${t("perf.load")} ${row.rank}`}>{row.rank}</button> : spell(row)}</td>)}
                    </tr>
                  );
                })}
              </tbody>
            </table>
            {rows.length === 0 && <p class="none">{t("perf.none")}</p>}
          </div>
        </>
      )}
    </section>
  );
}
