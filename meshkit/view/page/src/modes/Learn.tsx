// Short chapters whose figures are the page's own drawings, with settings chosen to make a point.

import type { Token, Tokens } from "marked";
import { useEffect } from "preact/hooks";
import { AXES, boot, fromQuery, type Overview } from "../api";
import { blueprint } from "../draw/blueprint";
import { cuboid } from "../draw/cuboid";
import { gantt, axis, total, type Frame } from "../draw/gantt";
import { grid } from "../draw/grid";
import { scene } from "../draw/story";
import { percent } from "../format";
import { CHAPTERS, lessons, MYTHS, type Section } from "../lessons";
import { palette } from "../palette";
import { CodeLink } from "../parts/Code";
import { Drawing } from "../parts/Drawing";
import { Sweep } from "../parts/Sweep";
import { against, chapter, choose, lang, mode, usePart, type Mode } from "../store";
import { t } from "../strings";

interface Try { lesson: string; mode: Mode; against?: string }

const TRIES: Record<string, Try> = {
  cuts: { lesson: "cuts", mode: "architecture" }, tensor: { lesson: "cuts", mode: "data" },
  bubble: { lesson: "few", mode: "state" }, memory: { lesson: "many", mode: "state", against: "gpipe" },
  places: { lesson: "crossing", mode: "architecture" }, tuning: { lesson: "seventy", mode: "performance" },
  "myth.faster": { lesson: "seventy", mode: "performance" }, "myth.bubble": { lesson: "many", mode: "state", against: "gpipe" },
  "myth.memory": { lesson: "many", mode: "state" }, "myth.tensor": { lesson: "seventy", mode: "performance" },
  "myth.zero": { lesson: "zero3", mode: "performance" }, "myth.split": { lesson: "many", mode: "state", against: "zero-bubble" },
};
const lesson = (name: string): string => boot.lessons[name];

function go({ lesson: name, mode: to, against: other }: Try): void {
  choose(lesson(name));
  against.value = other ?? "";
  mode.value = to;
}

export function Learn(_: { overview: Overview }) {
  const at = Math.min(CHAPTERS.length - 1, chapter.value);
  const now = CHAPTERS[at];
  const chapters = lessons[lang.value];
  const { title, body, entries } = chapters[at];
  const Entries = ENTRIES[now];
  useEffect(() => document.querySelector("[data-chapter][aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" }), [now]);
  return (
    <div class="learn">
      <nav aria-label={t("learn.contents")}>
        <ol>
          {CHAPTERS.map((name, k) => (
            <li key={name}><button aria-current={name === now ? "page" : undefined} onClick={() => (chapter.value = k)} data-chapter={name}><span class="num">{k + 1}</span>{chapters[k].title}</button></li>
          ))}
        </ol>
      </nav>
      <article key={now} tabIndex={0}>
        <h2>{title}</h2>
        {body.map((token, k) => <Block key={k} token={token} chapter={now} />)}
        {Entries && <Entries entries={entries} />}
        <p class="forward">
          {TRIES[now] && <button class="primary" onClick={() => go(TRIES[now])}>{t("learn.try")}</button>}
          {at < CHAPTERS.length - 1 && <button onClick={() => (chapter.value = at + 1)}>{t("learn.next")}: {chapters[at + 1].title} →</button>}
        </p>
      </article>
    </div>
  );
}

// --- Markdown ---------------------------------------------------------------------------------------

/** A paragraph; one that is a picture is the live figure instead. */
function Block({ token, chapter }: { token: Token; chapter?: string }) {
  const inline = (token as Tokens.Paragraph).tokens;
  const Figure = inline[0].type === "image" && FIGURES[chapter ?? ""];
  return Figure ? <div class="figure"><Figure label={(inline[0] as Tokens.Image).text} /></div> : <p><Inline tokens={inline} /></p>;
}

const AXIS_CLASS = (text: string): string | undefined => AXES.find((axis) => axis === text);

function Inline({ tokens }: { tokens: Token[] }): preact.JSX.Element {
  return (
    <>
      {tokens.map((token, k) => {
        if (token.type === "codespan") return <code key={k}>{(token as Tokens.Codespan).text}</code>;
        if (token.type === "strong") return <b key={k} class={AXIS_CLASS((token as Tokens.Strong).text)}>{(token as Tokens.Strong).text}</b>;
        if (token.type === "link") return <CodeLink key={k} of={reference(token as Tokens.Link)} />;
        return (token as Tokens.Text).text;
      })}
    </>
  );
}

/** [`name` · path](../path) as "path:name". */
const reference = ({ href, tokens }: Tokens.Link): string => `${href.replace("../", "")}:${(tokens[0] as Tokens.Codespan).text}`;

// --- figures ----------------------------------------------------------------------------------------

interface Labelled { label: string }

function Cube({ label }: Labelled) {
  const { data: mesh } = usePart("mesh", lesson("cuts"));
  return mesh && <Drawing height={300} label={label} draw={(pen, size) => cuboid(pen, mesh, size, { data: 0, tensor: 0, pipe: 0 })} />;
}

function Sum({ label }: Labelled) {
  const { data } = usePart("perceptron");
  return data && <Drawing height={380} label={label} draw={(pen, size) => scene(pen, size, "partial_sums", data, 1, palette.value.nvlink)} />;
}

function Gantts({ of }: { of: [string, string?][] }) {
  return <>{of.map(([name, schedule]) => <Gantt key={name + schedule} query={schedule ? withSchedule(name, schedule) : lesson(name)} />)}</>;
}

const withSchedule = (name: string, schedule: string): string => lesson(`${name}-${schedule}`);

function Gantt({ query }: { query: string }) {
  const { data: table } = usePart("schedule", query);
  if (!table) return null;
  const most = Math.max(4, ...table.in_flight.flat());
  const height = 48 + table.stages * 58;
  return (
    <Drawing height={height} label={`${table.name}: ${percent(table.bubble)}`} draw={(pen, size) => {
      const frame: Frame = { x: 76, y: 46, width: size.width - 92, from: 0, to: total(table, "ms"), rowHeight: 30, areaHeight: 20, peers: 1 };
      pen.text(`${table.name}, m = ${String(fromQuery(query).microbatches)}`, frame.x, 12, { size: 14, weight: 600, fill: palette.value.ink });
      pen.text(t("state.bubble", { share: percent(table.bubble) }), frame.x + frame.width, 12, { size: 12, align: "right", fill: palette.value.soft });
      gantt(pen, table, "ms", frame, most);
      axis(pen, "ms", frame, 34);
    }} />
  );
}

function Crossing({ label }: Labelled) {
  const { data: mesh } = usePart("mesh", lesson("crossing"));
  return mesh && (
    <>
      <p class="flag">⚠ {t("arch.crosses", { n: mesh.axes.tensor.crossing_nodes, all: mesh.axes.tensor.groups, axis: "tensor" })}</p>
      <Drawing height={190} label={label} draw={(pen, size) => blueprint(pen, mesh, grid(mesh, size, 84, 62, 12), { data: 0, tensor: 0, pipe: 0 }, { data: 0, tensor: 0, pipe: 0 }, { figures: null })} />
    </>
  );
}

function Curves() {
  const { data: sweeps } = usePart("sweeps", lesson("seventy"));
  return sweeps && (
    <div class="multiples">
      {Object.entries(sweeps.of).map(([name, points]) => <Sweep key={name} name={name} points={points} metric="eta" budget={sweeps.budget_bytes} all={Object.values(sweeps.of).flat()} still />)}
    </div>
  );
}

const FIGURES: Record<string, (props: Labelled) => preact.ComponentChild> = {
  cuts: Cube, tensor: Sum, bubble: () => <Gantts of={[["few"], ["many"]]} />,
  memory: () => <Gantts of={[["many"], ["many", "gpipe"]]} />, places: Crossing, tuning: Curves,
};

// --- lists ------------------------------------------------------------------------------------------

function Myths({ entries }: { entries: Section[] }) {
  return (
    <dl class="myths">
      {entries.map(({ title, body }, k) => {
        const attempt = TRIES[`myth.${MYTHS[k]}`];
        return (
          <div key={title}>
            <dt>{title}</dt>
            <dd>
              {body.map((token, n) => <Block key={n} token={token} />)}
              {attempt && <button class="link" onClick={() => go(attempt)}>{t("learn.try")}</button>}
            </dd>
          </div>
        );
      })}
    </dl>
  );
}

function Questions({ entries }: { entries: Section[] }) {
  return (
    <div class="questions">
      {entries.map(({ title, body }) => (
        <details key={title}>
          <summary>{title}</summary>
          {body.map((token, k) => <Block key={k} token={token} />)}
        </details>
      ))}
    </div>
  );
}

const ENTRIES: Partial<Record<(typeof CHAPTERS)[number], (props: { entries: Section[] }) => preact.JSX.Element>> = { myths: Myths, questions: Questions };
