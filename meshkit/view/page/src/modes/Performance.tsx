// Where the time and the memory go, what happens when one number changes, and which layouts are best.

import type { Overview } from "../api";
import { bytes, count, number, percent, plain, seconds } from "../format";
import { kindColour, MEMORY, memoryColour } from "../palette";
import { BestTable } from "../parts/BestTable";
import { SeeAlso } from "../parts/Code";
import { Sweep } from "../parts/Sweep";
import { metric, METRICS, pinned, query, usePart } from "../store";
import { said, t, word } from "../strings";

export function Performance({ overview }: { overview: Overview }) {
  return (
    <div class="page performance">
      <div class="two">
        <section>
          <h2>{t("perf.time")}</h2>
          <Waterfall overview={overview} />
        </section>
        <section>
          <h2>{t("perf.memory")}</h2>
          <Memory overview={overview} />
        </section>
      </div>
      <Sweeps />
      <Compare overview={overview} />
      <BestTable overview={overview} />
      <Arithmetic overview={overview} />
      <SeeAlso chapter="tuning" code={["meshkit/planner/estimate.py:Estimate", "meshkit/planner/explain.py:diagnose", "meshkit/planner/search.py:search"]} />
    </div>
  );
}

function Waterfall({ overview }: { overview: Overview }) {
  const { seconds: parts, step_seconds: step, eta } = overview.figures;
  let before = 0;
  const rows = Object.entries(parts).map(([kind, s]) => {
    const row = { kind, s, before };
    before += s;
    return row;
  });
  return (
    <>
      <ol class="waterfall">
        {rows.map(({ kind, s, before: start }) => (
          <li key={kind}>
            <span>{word("kind", kind)}</span>
            <span class="track"><i style={{ left: `${(start / step) * 100}%`, width: `${(s / step) * 100}%`, background: kindColour(kind) }} /></span>
            <span class="num">{seconds(s)}</span>
            <span class="num note">{percent(s / step)}</span>
          </li>
        ))}
        <li class="sum"><span>{t("headline.step")}</span><span class="track"><i style={{ left: "0", width: "100%" }} /></span><span class="num">{seconds(step)}</span><span class="num note">η {percent(eta)}</span></li>
      </ol>
      <p class="note">{t("perf.eta", { compute: seconds(parts.compute), step: seconds(step), eta: percent(eta) })}</p>
    </>
  );
}

function Memory({ overview }: { overview: Overview }) {
  const { figures, cluster } = overview;
  const kinds: Record<string, number> = { ...figures.memory_bytes, reserve: cluster.reserve_bytes };
  const sum = Object.values(kinds).reduce((a, b) => a + b, 0);
  const most = Math.max(sum, cluster.memory_bytes) * 1.02;
  const at = (n: number): string => `${(n / most) * 100}%`;
  let before = 0;
  return (
    <>
      <ol class="waterfall">
        {MEMORY.map((kind) => {
          const start = before;
          before += kinds[kind];
          return (
            <li key={kind}>
              <span>{word("memory", kind)}</span>
              <span class="track">
                <i style={{ left: at(start), width: at(kinds[kind]), background: memoryColour(kind) }} />
                <b class={sum > cluster.memory_bytes ? "over" : ""} style={{ left: at(cluster.memory_bytes) }} />
              </span>
              <span class="num">{bytes(kinds[kind])}</span>
              <span class="num note">{percent(kinds[kind] / cluster.memory_bytes)}</span>
            </li>
          );
        })}
      </ol>
      <p class={figures.fits ? "note" : "bad"}>
        {t(figures.fits ? "perf.room" : "perf.short", { need: bytes(sum), have: bytes(cluster.memory_bytes), left: bytes(Math.abs(cluster.memory_bytes - sum)) })}
      </p>
    </>
  );
}

function Sweeps() {
  const { data: sweeps, stale } = usePart("sweeps");
  return (
    <section>
      <div class="heading">
        <h2>{t("perf.sweeps")}</h2>
        <div class="segmented" role="group">
          {METRICS.map((one) => <button key={one} aria-pressed={metric.value === one} onClick={() => (metric.value = one)}>{t(`metric.${one}`)}</button>)}
        </div>
      </div>
      <p class="note">{t("perf.sweepsNote")}</p>
      {sweeps ? (
        <div class={`multiples ${stale ? "waiting" : ""}`}>
          {Object.entries(sweeps.of).map(([name, points]) => <Sweep key={name} name={name} points={points} metric={metric.value} budget={sweeps.budget_bytes} all={Object.values(sweeps.of).flat()} />)}
        </div>
      ) : <p class="note">{t("frame.loading")}</p>}
    </section>
  );
}

function Compare({ overview }: { overview: Overview }) {
  const { data: a } = usePart("overview", pinned.value || query.value);
  const differs = pinned.value && pinned.value !== query.value && a;
  // Name, figure, how it is spelt, whether more of it is better; null: neither.
  const rows: [string, (o: Overview) => number, (n: number) => string, boolean | null][] = [
    [t("control.cluster"), (o) => o.cluster.devices, number, null],
    [t("headline.step"), (o) => o.figures.step_seconds, seconds, false],
    [t("headline.tokens"), (o) => o.figures.tokens_per_second, count, true],
    [t("metric.tokens_per_second_device"), (o) => o.figures.tokens_per_second / o.cluster.devices, count, true],
    ["MFU", (o) => o.figures.mfu, percent, true],
    ...Object.keys(overview.figures.seconds).map((kind): [string, (o: Overview) => number, (n: number) => string, boolean | null] =>
      [word("kind", kind), (o) => o.figures.seconds[kind], seconds, false]),
    [t("headline.memory"), (o) => o.figures.peak_bytes, bytes, false],
  ];
  return (
    <section>
      <div class="heading">
        <h2>{t("perf.compare")}</h2>
        <button class="primary" onClick={() => (pinned.value = query.value)} data-pin>{t("perf.pin")}</button>
        {pinned.value && <button class="quiet" onClick={() => (pinned.value = "")}>{t("perf.unpin")}</button>}
      </div>
      {!differs ? <p class="note">{t("perf.compareHow")}</p> : (
        <>
          <p>
            {Object.entries(overview.setting).filter(([key, value]) => a.setting[key] !== value).map(([key, value]) => (
              <span class="difference num" key={key}>{key} <s>{plain(a.setting[key])}</s> → <b>{plain(value)}</b></span>
            ))}
          </p>
          <table class="compare">
            <thead><tr><td /><th>A</th><th>B</th><th>{t("perf.delta")}</th></tr></thead>
            <tbody>
              {rows.map(([name, of, spell, more]) => {
                const [was, is] = [of(a), of(overview)];
                const change = was ? is / was - 1 : 0;
                const good = more === null || Math.abs(change) < 5e-4 ? "" : change > 0 === more ? "good" : "bad";
                return <tr key={name}><th scope="row">{name}</th><td>{spell(was)}</td><td>{spell(is)}</td><td class={good}>{was ? `${change > 0 ? "+" : ""}${(change * 100).toFixed(1)} %` : "–"}</td></tr>;
              })}
            </tbody>
          </table>
        </>
      )}
    </section>
  );
}

function Arithmetic({ overview }: { overview: Overview }) {
  return (
    <details>
      <summary><h2>{t("perf.arithmetic")}</h2></summary>
      <p class="note">{t("perf.arithmeticNote")}</p>
      <table class="terms">
        <tbody>
          {overview.terms.map((term) => (
            <tr key={term.name + term.arithmetic.en}>
              <th scope="row"><i style={{ background: kindColour(term.kind) }} />{word("term", term.name)}</th>
              <td class="num">{said(term.arithmetic)}</td>
              <td class="num">{seconds(term.seconds)}</td>
            </tr>
          ))}
        </tbody>
      </table>
      <p class="note">{t("perf.source", { source: said(overview.cluster.source) })}</p>
    </details>
  );
}
