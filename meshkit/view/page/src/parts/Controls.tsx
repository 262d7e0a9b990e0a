// The left panel: every control, then the headline.

import type { Overview } from "../api";
import { bytes, count, gib, number, percent, seconds } from "../format";
import { MEMORY, kindColour, memoryColour } from "../palette";
import { change, reachable } from "../store";
import { said, t, word, type Key } from "../strings";
import { Control } from "./Control";

export function Controls({ overview }: { overview: Overview }) {
  const { choices, setting } = overview;
  const [D, T, P] = [setting.data, setting.tensor, setting.pipe].map(Number);
  return (
    <div class="controls">
      <div class="knobs">
      <section>
        <Control name="model" choices={choices.model} wide />
        <Control name="cluster" choices={choices.cluster} wide />
      </section>
      <section aria-label={t("control.cut")}>
        <p class="product num" aria-live="polite">
          <b class="data">{D}</b> × <b class="tensor">{T}</b> × <b class="pipe">{P}</b> = {t("control.gpus", { n: number(D * T * P) })}
        </p>
        <Control name="data" choices={choices.data} axis="data" />
        <Control name="tensor" choices={choices.tensor} axis="tensor" />
        <Control name="pipe" choices={choices.pipe} axis="pipe" />
      </section>
      <section aria-label={t("control.flow")}>
        <Control name="schedule" choices={choices.schedule} wide />
        <Control name="virtual" choices={choices.virtual} />
        {choices.layers.length > 1 && <Control name="layers" choices={choices.layers} wide />}
        <Control name="microbatches" choices={choices.microbatches} />
        <p class="note">{t("control.microbatchOf", { b: overview.microbatch, s: number(Number(setting.sequence)) })}</p>
        <Control name="overlap" choices={choices.overlap} wide />
      </section>
      <section aria-label={t("control.memory")}>
        <Control name="recompute" choices={choices.recompute} wide />
        <Control name="zero" choices={choices.zero} />
        <Control name="precision" choices={choices.precision} wide />
      </section>
      <section aria-label={t("control.job")}>
        <Control name="batch" choices={choices.batch} />
        <Control name="sequence" choices={choices.sequence} />
      </section>
      </div>
      <Headline overview={overview} />
    </div>
  );
}

function Headline({ overview }: { overview: Overview }) {
  const { figures, diagnosis, cluster } = overview;
  const key = diagnosis.kind === "memory" ? (figures.fits ? "why.memoryBound" : "why.memory") : `why.${diagnosis.kind}`;
  return (
    <section class="headline">
      <div class="row">
        <span>{t("headline.memory")}</span>
        <span class={`num ${figures.fits ? "" : "bad"}`}>
          {gib(figures.peak_bytes + cluster.reserve_bytes)} {t("headline.of")} {gib(cluster.memory_bytes)} GiB {figures.fits ? "✓" : "✗"}
        </span>
      </div>
      <MemoryBar memory={figures.memory_bytes} reserve={cluster.reserve_bytes} capacity={cluster.memory_bytes} />
      <dl class="figures">
        <div title={t("headline.U")}><dt>U</dt><dd>{percent(figures.utilisation)}</dd></div>
        <div title={t("headline.eta")}><dt>η</dt><dd>{percent(figures.eta)}</dd></div>
        <div title={t("headline.mfu")}><dt>MFU</dt><dd>{percent(figures.mfu)}</dd></div>
        <div><dt>{t("headline.step")}</dt><dd>{seconds(figures.step_seconds)}</dd></div>
        <div><dt>{t("headline.tokens")}</dt><dd>{count(figures.tokens_per_second)}</dd></div>
      </dl>
      <TimeBar seconds={figures.seconds} />
      <p class="why" style={{ "--hue": diagnosis.kind === "memory" ? "var(--bad)" : kindColour(diagnosis.kind) }}>
        {t(key as Key, { share: percent(diagnosis.share) })}
      </p>
      {[["headline.would", diagnosis.change] as const, ["headline.blocked", diagnosis.blocked] as const].map(([text, one]) => one && (
        <button class="hint" key={text} disabled={!reachable(one.change)} title={reachable(one.change) ? undefined : t("frame.notHere")} onClick={() => change(one.change)}>
          {t(text, { what: said(one.what), step: seconds(one.step_seconds) })}
        </button>
      ))}
    </section>
  );
}

export function MemoryBar({ memory, reserve, capacity }: { memory: Record<string, number>; reserve: number; capacity: number }) {
  const kinds: Record<string, number> = { ...memory, reserve };
  const sum = Object.values(kinds).reduce((a, b) => a + b, 0);
  const most = Math.max(capacity, sum) / 100;
  return (
    <div class="bar" role="img" aria-label={MEMORY.map((kind) => `${word("memory", kind)} ${bytes(kinds[kind] ?? 0)}`).join(", ")}>
      {MEMORY.map((kind) => (
        <i key={kind} title={`${word("memory", kind)}: ${bytes(kinds[kind] ?? 0)}`} style={{ width: `${(kinds[kind] ?? 0) / most}%`, background: memoryColour(kind) }} />
      ))}
      <b class={sum > capacity ? "over" : ""} style={{ left: `${capacity / most}%` }} title={`${t("memory.capacity")}: ${bytes(capacity)}`} />
    </div>
  );
}

export function TimeBar({ seconds: parts }: { seconds: Record<string, number> }) {
  const sum = Object.values(parts).reduce((a, b) => a + b, 0) / 100;
  return (
    <div class="bar thin" role="img" aria-label={Object.entries(parts).map(([kind, s]) => `${word("kind", kind)} ${seconds(s)}`).join(", ")}>
      {Object.entries(parts).map(([kind, s]) => (
        <i key={kind} title={`${word("kind", kind)}: ${seconds(s)}, ${percent(s / sum / 100)}`} style={{ width: `${s / sum}%`, background: kindColour(kind) }} />
      ))}
    </div>
  );
}
