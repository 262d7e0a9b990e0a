// Short chapters whose figures are the page's own drawings, with settings chosen to make a point.

import { boot, fromQuery, type Overview } from "../api";
import { blueprint } from "../draw/blueprint";
import { cuboid } from "../draw/cuboid";
import { gantt, axis, total, type Frame } from "../draw/gantt";
import { grid } from "../draw/grid";
import { scene } from "../draw/story";
import { palette } from "../palette";
import { Drawing } from "../parts/Drawing";
import { Sweep } from "../parts/Sweep";
import { against, chapter, choose, mode, usePart, type Mode } from "../store";
import { CHAPTERS, MYTHS, QUESTIONS } from "../strings.lessons";
import { t, type Key } from "../strings";
import { percent } from "../format";

interface Try { lesson: string; mode: Mode; against?: string }

const TRIES: Record<string, Try> = {
  cuts: { lesson: "cuts", mode: "architecture" }, tensor: { lesson: "cuts", mode: "data" },
  bubble: { lesson: "few", mode: "state" }, memory: { lesson: "many", mode: "state", against: "gpipe" },
  places: { lesson: "crossing", mode: "architecture" }, tuning: { lesson: "seventy", mode: "performance" },
  faster: { lesson: "seventy", mode: "performance" }, "myth.bubble": { lesson: "many", mode: "state", against: "gpipe" },
  "myth.memory": { lesson: "many", mode: "state" }, "myth.tensor": { lesson: "seventy", mode: "performance" },
  "myth.zero": { lesson: "zero3", mode: "performance" }, "myth.split": { lesson: "many", mode: "state", against: "zero-bubble" },
};
const COMMANDS: Record<string, string> = {
  "myth.batch": "meshkit verify launch/configs/quickstart.toml --mesh.pipe 4 --mesh.data 1",
  "myth.loss": "meshkit demo",
};
const CODE: Record<string, string> = {
  axes: "meshkit/README.md", order: "meshkit/mesh.py", columns: "models/layers.py", utilisation: "meshkit/pipeline/schedule.py",
  flight: "meshkit/pipeline/builders.py", sequence: "meshkit/pipeline/stage.py", vocabulary: "meshkit/pipeline/vocab.py",
  rings: "meshkit/planner/collectives.py", reduce: "meshkit/zero.py", lockstep: "meshkit/pipeline/timeline.py",
  tune: "meshkit/planner/explain.py", verify: "meshkit/verify.py",
};

const lesson = (name: string): string => boot.lessons[name];

function go({ lesson: name, mode: to, against: other }: Try): void {
  choose(lesson(name));
  against.value = other ?? "";
  mode.value = to;
}

export function Learn(_: { overview: Overview }) {
  const now = CHAPTERS[Math.min(CHAPTERS.length - 1, chapter.value)];
  const Figure = FIGURES[now];
  const Body = BODIES[now];
  return (
    <div class="learn">
      <nav aria-label={t("learn.contents")}>
        <ol>
          {CHAPTERS.map((name, k) => (
            <li key={name}><button aria-current={name === now ? "page" : undefined} onClick={() => (chapter.value = k)} data-chapter={name}><span class="num">{k + 1}</span>{t(`learn.${name}`)}</button></li>
          ))}
        </ol>
      </nav>
      <article key={now} tabIndex={0}>
        <h2>{t(`learn.${now}`)}</h2>
        {t(`learn.${now}.text`).split("\n\n").map((one) => <p key={one}>{one}</p>)}
        {Figure && <div class="figure"><Figure /></div>}
        {Body && <Body />}
        <p class="forward">
          {TRIES[now] && <button class="primary" onClick={() => go(TRIES[now])}>{t("learn.try")}</button>}
          {chapter.value < CHAPTERS.length - 1 && <button onClick={() => (chapter.value = chapter.value + 1)}>{t("learn.next")}: {t(`learn.${CHAPTERS[chapter.value + 1]}`)} →</button>}
        </p>
      </article>
    </div>
  );
}

// --- figures ----------------------------------------------------------------------------------------

function Cube() {
  const { data: mesh } = usePart("mesh", lesson("cuts"));
  return mesh && <Drawing height={300} label={t("learn.cuts")} draw={(pen, size) => cuboid(pen, mesh, size, { data: 0, tensor: 0, pipe: 0 })} />;
}

function Sum() {
  const { data } = usePart("perceptron");
  return data && <Drawing height={380} label={t("learn.tensor")} draw={(pen, size) => scene(pen, size, "partial_sums", data, 1)} />;
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

function Crossing() {
  const { data: mesh } = usePart("mesh", lesson("crossing"));
  return mesh && (
    <>
      <p class="flag">⚠ {t("arch.crosses", { n: mesh.axes.tensor.crossing_nodes, all: mesh.axes.tensor.groups, axis: "tensor" })}</p>
      <Drawing height={190} label={t("learn.places")} draw={(pen, size) => blueprint(pen, mesh, grid(mesh, size, 84, 62, 12), { data: 0, tensor: 0, pipe: 0 }, { data: 0, tensor: 0, pipe: 0 }, { figures: null })} />
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

const FIGURES: Record<string, () => preact.ComponentChild> = {
  cuts: Cube, tensor: Sum, bubble: () => <Gantts of={[["few"], ["many"]]} />,
  memory: () => <Gantts of={[["many"], ["many", "gpipe"]]} />, places: Crossing, tuning: Curves,
};

// --- lists ------------------------------------------------------------------------------------------

function Myths() {
  return (
    <dl class="myths">
      {MYTHS.map((name) => {
        const attempt = TRIES[`myth.${name}`] ?? TRIES[name];
        const command = COMMANDS[`myth.${name}`];
        return (
          <div key={name}>
            <dt>{t(`myth.${name}`)}</dt>
            <dd>
              {t(`myth.${name}.text`)}{" "}
              {attempt && <button class="link" onClick={() => go(attempt)}>{t("learn.try")}</button>}
              {command && <code aria-label={t("learn.run")}>{command}</code>}
            </dd>
          </div>
        );
      })}
    </dl>
  );
}

function Questions() {
  return (
    <div class="questions">
      {QUESTIONS.map((name) => (
        <details key={name}>
          <summary>{t(`q.${name}` as Key)}</summary>
          <p>{t(`q.${name}.text` as Key)}</p>
          <p class="note">{t("learn.code")}: <code>{CODE[name]}</code></p>
        </details>
      ))}
    </div>
  );
}

const BODIES: Record<string, () => preact.ComponentChild> = { myths: Myths, questions: Questions };
