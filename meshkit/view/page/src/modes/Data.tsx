// A batch on its way through a step, told in scenes; each says what moves, how much, over which link, how long.

import type { LinkFacts, Overview, Perceptron, Step } from "../api";
import { useEffect } from "preact/hooks";
import { scene } from "../draw/story";
import { bytes, count, percent, rate, seconds } from "../format";
import { linkLine, palette } from "../palette";
import { SeeAlso } from "../parts/Code";
import { Drawing } from "../parts/Drawing";
import { Player } from "../parts/Player";
import { still, story as at, usePart } from "../store";
import { said, t, why, word, type Key } from "../strings";

const FRAMES = 60; // of a scene

const stepOf = (story: Step[]): Step => story[Math.min(story.length - 1, Math.floor(at.value / FRAMES))];

export function Data(_: { overview: Overview }) {
  const { data: story } = usePart("story");
  const { data: numbers, error } = usePart("perceptron");
  const { data: mesh } = usePart("mesh");
  if (error) return <p class="bad">{why(error)}</p>;
  if (!story || !numbers || !mesh) return <p class="loading">{t("frame.loading")}</p>;
  return <Story story={story} numbers={numbers} links={mesh.links} />;
}

function Story({ story, numbers, links }: { story: Step[]; numbers: Perceptron; links: LinkFacts[] }) {
  const now = stepOf(story);
  const link: LinkFacts | undefined = links[now.link];
  useEffect(() => document.querySelector("[data-step][aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" }), [now.key]);
  const p = still.matches ? 1 : ((at.value % FRAMES) + 1) / FRAMES;
  return (
    <>
      <div class="story">
        <ol>
          {story.map((step, k) => (
            <li key={step.key}>
              <button aria-current={step === now ? "step" : undefined} class={step.axis} onClick={() => (at.value = k * FRAMES)} data-step={step.key}>
                <span class="num">{k + 1}</span>{t(`story.${step.key}` as Key)}
              </button>
            </li>
          ))}
        </ol>
        <div class="scene">
          <p class="caption">{t(`story.${now.key}.text` as Key)}</p>
          <Drawing main label={t(`story.${now.key}.text` as Key)} draw={(pen, size) => scene(pen, size, now.key, numbers, p, link ? linkLine(link).stroke : palette.value.pipe)} />
        </div>
      </div>
      <Player
        at={at.value} last={story.length * FRAMES - 1} pace={25} jump={FRAMES} onMove={(to) => (at.value = to)}
        label={`${story.indexOf(now) + 1}/${story.length}`}
      />
    </>
  );
}

const CODE: Record<string, string> = {
  cut_batch: "meshkit/data/loader.py:Loader.at", cut_microbatches: "meshkit/train_step.py:TrainStep._shared",
  embed: "meshkit/pipeline/vocab.py:lookup", column: "models/layers.py:ColumnLinear", row: "models/layers.py:RowLinear",
  partial_sums: "meshkit/pipeline/stage.py:cut_sequence", hop: "meshkit/pipeline/executor.py:_Run._sent",
  loss: "meshkit/pipeline/vocab.py:head", backward: "meshkit/pipeline/executor.py:_Run._backward", reduce: "meshkit/zero.py:Zero.reduced",
  update: "meshkit/train_step.py:TrainStep._step", gather: "meshkit/zero.py:Zero.working",
};
const CHAPTER: Record<string, "cuts" | "tensor" | "bubble" | "memory"> = {
  cut_microbatches: "bubble", hop: "bubble", column: "tensor", row: "tensor", partial_sums: "tensor", reduce: "memory", update: "memory", gather: "memory",
};

export function DataInspector({ overview }: { overview: Overview }) {
  const { data: story } = usePart("story");
  const { data: mesh } = usePart("mesh");
  if (!story || !mesh) return null;
  const now = stepOf(story);
  const link = mesh.links[now.link];
  const step = overview.figures.step_seconds;
  const sum = now.exchanges.reduce((all, one) => all + one.seconds, now.compute_seconds);
  return (
    <div class="inspector" aria-live="polite">
      <h2 class={now.axis}>{t(`story.${now.key}` as Key)}</h2>
      <p class="note">{t("story.here", { model: overview.model.name, mesh: `${overview.setting.data} × ${overview.setting.tensor} × ${overview.setting.pipe}` })}</p>
      <h3>{t(link ? "story.moves" : "story.works")}</h3>
      <p class="num shape">{said(now.shape)}</p>
      {link ? (
        <>
          <h3>{t("story.over")}</h3>
          <p><i class="dot" style={{ background: linkLine(link).stroke }} /> <b>{link.name}</b> <span class="num">{rate(link.reached_bytes_per_second)}</span> {word("collective", now.collective)}</p>
        </>
      ) : <p class="note">{t(now.axis ? "story.nothingAlone" : "story.nothing")}</p>}
      {(sum > 0 || now.exchanges.length > 0) && (
        <>
          <h3>{t("story.takes")}</h3>
          {now.exchanges.map((one) => (
            <dl class="sum num" key={one.name + one.volume_bytes}>
              {now.exchanges.length > 1 && <div><dt><b>{word("term", one.name)}</b></dt></div>}
              <div><dt>V</dt><dd>{bytes(one.volume_bytes)}</dd></div>
              <div><dt title={t("story.rateWhy")}>÷ B {rate(one.bytes_per_second)}</dt><dd>{seconds(one.volume_bytes / one.bytes_per_second)}</dd></div>
              <div><dt>+ {t("story.latency")}</dt><dd>{seconds(one.latency_seconds)}</dd></div>
              {one.hidden > 0 && <div><dt>{t("story.hidden")}</dt><dd>{percent(one.hidden)}</dd></div>}
              <div class="total"><dt>× {count(one.count)} {t("story.times")}</dt><dd>{seconds(one.seconds)}</dd></div>
            </dl>
          ))}
          {now.compute_seconds > 0 && <dl class="sum num"><div class="total"><dt>{t("story.computing")}</dt><dd>{seconds(now.compute_seconds)}</dd></div></dl>}
          {now.key === "column" && <p class="note">{t("story.products")}</p>}
          {now.exchanges.length > 0 && <p class="note">{t("story.rateWhy")}</p>}
          <p class="note">{t("story.share", { share: percent(sum / step) })}</p>
        </>
      )}
      <h3>{t("story.small")}</h3>
      <p class="note">{t("story.smallText")}</p>
      <SeeAlso chapter={CHAPTER[now.key] ?? "cuts"} code={[CODE[now.key]]} />
    </div>
  );
}
