// A batch on its way through a step, told in scenes; each says what moves, how much, over which link, how long.

import { signal } from "@preact/signals";
import type { Overview, Perceptron, Step } from "../api";
import { useEffect } from "preact/hooks";
import { scene } from "../draw/story";
import { bytes, count, percent, rate, seconds } from "../format";
import { linkColour } from "../palette";
import { Drawing } from "../parts/Drawing";
import { Player } from "../parts/Player";
import { still, usePart } from "../store";
import { t, word, type Key } from "../strings";

const FRAMES = 60; // of a scene
const at = signal(0);

const stepOf = (story: Step[]): Step => story[Math.min(story.length - 1, Math.floor(at.value / FRAMES))];

export function Data(_: { overview: Overview }) {
  const { data: story } = usePart("story");
  const { data: numbers, error } = usePart("perceptron");
  if (error) return <p class="bad">{error}</p>;
  if (!story || !numbers) return <p class="loading">{t("frame.loading")}</p>;
  return <Story story={story} numbers={numbers} />;
}

function Story({ story, numbers }: { story: Step[]; numbers: Perceptron }) {
  const now = stepOf(story);
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
          <Drawing main label={t(`story.${now.key}.text` as Key)} draw={(pen, size) => scene(pen, size, now.key, numbers, p)} />
        </div>
      </div>
      <Player
        at={at.value} last={story.length * FRAMES - 1} pace={25} jump={FRAMES} onMove={(to) => (at.value = to)}
        label={`${story.indexOf(now) + 1}/${story.length}`}
      />
    </>
  );
}

export function DataInspector({ overview }: { overview: Overview }) {
  const { data: story } = usePart("story");
  if (!story) return null;
  const now = stepOf(story);
  const moves = now.link !== "" && now.count > 0;
  const step = overview.figures.step_seconds;
  return (
    <div class="inspector" aria-live="polite">
      <h2 class={now.axis}>{t(`story.${now.key}` as Key)}</h2>
      <p class="note">{t("story.here", { model: overview.model.name, mesh: `${overview.setting.data} × ${overview.setting.tensor} × ${overview.setting.pipe}` })}</p>
      <h3>{t(moves ? "story.moves" : "story.works")}</h3>
      <p class="num shape">{now.shape}</p>
      {moves ? (
        <>
          <h3>{t("story.over")}</h3>
          <p><i class="dot" style={{ background: linkColour(now.link) }} /> <b>{now.link}</b> <span class="num">{rate(now.bytes_per_second)}</span> {word("collective", now.collective)}</p>
          <h3>{t("story.takes")}</h3>
          <dl class="sum num">
            <div><dt>V</dt><dd>{bytes(now.volume_bytes)}</dd></div>
            <div><dt>V ÷ B + {t("story.latency")}</dt><dd>{seconds(now.seconds)}</dd></div>
            <div><dt>× {t("story.times")}</dt><dd>{count(now.count)}</dd></div>
            <div class="total"><dt>{t("story.inStep")}</dt><dd>{seconds(now.total_seconds)}</dd></div>
          </dl>
          <p class="note">{t("story.share", { share: percent(now.total_seconds / step) })}</p>
        </>
      ) : now.total_seconds > 0 ? (
        <>
          <h3>{t("story.takes")}</h3>
          <p class="num">{seconds(now.total_seconds)}</p>
          {now.key === "column" && <p class="note">{t("story.products")}</p>}
          <p class="note">{t("story.share", { share: percent(now.total_seconds / step) })}</p>
        </>
      ) : <p class="note">{t(now.axis ? "story.nothingAlone" : "story.nothing")}</p>}
      <h3>{t("story.small")}</h3>
      <p class="note">{t("story.smallText")}</p>
    </div>
  );
}
