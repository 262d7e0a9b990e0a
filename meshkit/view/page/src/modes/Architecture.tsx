// The mesh on its devices, and what one of them holds.

import { useState } from "preact/hooks";
import { AXES, type AxisName, type Exchange, type Mesh, type Overview, type Parameter, type Weights } from "../api";
import { blueprint, brightness, traffic } from "../draw/blueprint";
import { cuboid, projection } from "../draw/cuboid";
import { around, clamp, DETAILED, deviceAt, grid, levelOf, nodeOf, places, rackOf, ROOMY } from "../draw/grid";
import type { Pen } from "../draw/pen";
import { bytes, count, rate, seconds, shape } from "../format";
import { kindColour, linkLine, MEMORY, memoryColour, palette } from "../palette";
import { CodeLink, SeeAlso } from "../parts/Code";
import { Drawing, type Size } from "../parts/Drawing";
import { Matrix, slice } from "../parts/Matrix";
import { device, parameter, solid, usePart, type Place } from "../store";
import { said, t, why, word, type Key } from "../strings";

const ARROWS: Record<string, [AxisName, number]> = {
  ArrowUp: ["data", -1], ArrowDown: ["data", 1], ArrowLeft: ["tensor", -1], ArrowRight: ["tensor", 1],
};

/** One step over the blueprint; sideways from a cell into the next. */
function moved(mesh: Mesh, place: Place, key: string): Place {
  const [axis, by] = ARROWS[key];
  const next = { ...place, [axis]: place[axis] + by };
  if (axis === "tensor" && (next.tensor < 0 || next.tensor >= mesh.shape[1])) {
    const pipe = place.pipe + by;
    if (pipe < 0 || pipe >= mesh.shape[2]) return place;
    return { ...place, pipe, tensor: by > 0 ? 0 : mesh.shape[1] - 1 };
  }
  return clamp(mesh, next);
}

export function Architecture({ overview }: { overview: Overview }) {
  const { data: mesh } = usePart("mesh");
  const { data: weights } = usePart("weights");
  const [hover, setHover] = useState<Place | null>(null);
  if (!mesh) return <p class="loading">{t("frame.loading")}</p>;
  const selected = clamp(mesh, device.value);
  const lit = hover ? clamp(mesh, hover) : selected;
  const chosen = weights?.parameters.find((one) => one.path === parameter.value);
  const mine = chosen && String(slice(chosen, lit, mesh));
  const copies = chosen && ((place: Place): boolean => String(slice(chosen, place, mesh)) === mine);
  const geometry = (size: Size) => grid(mesh, size, size.width < 600 ? 40 : 92, 76, 16);
  const find = (x: number, y: number, size: Size): Place | null => {
    if (!solid.value) return geometry(size).at(x, y);
    const spot = projection(mesh, size);
    let [best, found]: [number, Place | null] = [Infinity, null];
    for (const place of places(mesh)) {
      const [a, b] = spot(place.pipe + 0.4, place.data + 0.4, place.tensor + 0.4);
      // Of those under the pointer, the one in front.
      const distance = Math.hypot(a - x, b - y) - (place.pipe + place.data + place.tensor) * 1e-3;
      if (distance < best) [best, found] = [distance, place];
    }
    return best < 40 ? found : null;
  };
  return (
    <>
      <div class="toolbar">
        <div class="segmented" role="group">
          <button aria-pressed={!solid.value} onClick={() => (solid.value = false)}>{t("arch.flat")}</button>
          <button aria-pressed={solid.value} onClick={() => (solid.value = true)}>{t("arch.solid")}</button>
        </div>
        {chosen && <p class="copies"><i />{t("arch.copies", { name: chosen.path.replace(/^blocks\./, "") })}</p>}
        <LinkLegend mesh={mesh} />
      </div>
      {mesh.warning && <p class="flag" role="status">⚠ {said(mesh.warning)}</p>}
      <Drawing
        main
        label={t("arch.drawing")}
        cursor="pointer"
        draw={(pen, size) => {
          if (solid.value) return cuboid(pen, mesh, size, lit);
          const whole = geometry(size);
          blueprint(pen, mesh, whole, lit, selected, { figures: overview.figures, copies });
          const bottom = whole.top + whole.perBlock * (whole.side + whole.row);
          if (whole.side < DETAILED && size.height - bottom > ROOMY) detail(pen, mesh, lit, size, bottom + 30, overview.figures);
        }}
        onPoint={(x, y, down, size) => {
          const place = find(x, y, size);
          setHover(place);
          if (down && place) device.value = place;
        }}
        onLeave={() => setHover(null)}
        onKey={(event) => {
          if (!(event.key in ARROWS)) return;
          event.preventDefault();
          device.value = moved(mesh, selected, event.key);
        }}
      />
    </>
  );
}

const ROW = 52; // pixels of a replica whose devices can be read

/** Where devices are too many to be read: those around one, large. */
function detail(pen: Pen, mesh: Mesh, lit: Place, size: Size, top: number, figures: Overview["figures"]): void {
  const part = around(mesh, lit, Math.max(1, Math.floor((size.height - top - 80) / ROW)), size.width > 700 ? 3 : 1);
  const placed = grid(part.mesh, size, 92, top + 60, 20);
  pen.path([[24, top - 8], [size.width - 24, top - 8]], { stroke: palette.value.line });
  blueprint(pen, part.mesh, placed, part.place, part.place, { figures, first: part.first });
}

function LinkLegend({ mesh }: { mesh: Mesh }) {
  const used = mesh.links.filter((link, level) =>
    level === 0 || (level === 1 ? mesh.nodes > 1 : mesh.nodes > mesh.nodes_per_rack && link.name !== mesh.links[1].name));
  return (
    <ul class="legend" aria-label={t("arch.links")}>
      {used.map((link) => {
        const { stroke, width, dash } = linkLine(link);
        return (
          <li key={link.level} title={`${rate(link.bytes_per_second)}, ${seconds(link.latency_seconds)}`}>
            <svg width="24" height="8" aria-hidden="true"><path d="M0 4H24" stroke={stroke} stroke-width={width} stroke-dasharray={dash?.join(" ")} /></svg>
            {word("link", link.level)}: <b>{link.name}</b> <span class="num">{rate(link.bytes_per_second)}</span>
          </li>
        );
      })}
      {AXES.filter((axis) => mesh.axes[axis].size > 1).map((axis) => (
        <li key={axis} title={t("arch.traffic")} data-traffic={axis}>
          <i style={{ background: `var(--ink)`, opacity: brightness(mesh, axis) }} /><span class={axis}>{axis}</span> <span class="num">{bytes(traffic(mesh, axis))}</span>
        </li>
      ))}
    </ul>
  );
}

// --- the inspector ----------------------------------------------------------------------------------

export function ArchitectureInspector({ overview }: { overview: Overview }) {
  const { data: mesh } = usePart("mesh");
  const { data: weights, error } = usePart("weights");
  if (!mesh) return null;
  const place = clamp(mesh, device.value);
  const id = deviceAt(mesh, place);
  return (
    <div class="inspector" aria-live="polite">
      <h2>{t("arch.device", { n: id })}</h2>
      <p class="coordinates num">
        {AXES.map((axis) => <span key={axis} class={axis}>{axis} <b>{place[axis]}</b></span>)}
      </p>
      <p class="note">{t("arch.where", { node: t("arch.node", { n: nodeOf(mesh, id) }), rack: t("arch.rack", { n: rackOf(mesh, id) }) })}</p>
      <p>{t("arch.layers", { range: mesh.layers[place.pipe].map(([a, b]) => `${a}–${b - 1}`).join(", ") })}</p>
      <h3>{t("arch.memory")}</h3>
      <MemoryList memory={overview.figures.memory_bytes} />
      <h3>{t("arch.weights")}</h3>
      {error && <p class="bad">{why(error)}</p>}
      {weights ? <Slices weights={weights} mesh={mesh} place={place} /> : !error && <p class="note">{t("frame.loading")}</p>}
      <h3>{t("arch.peers")}</h3>
      <dl class="peers">
        {AXES.map((axis) => <Peers key={axis} mesh={mesh} place={place} axis={axis} />)}
      </dl>
      <h3>{t("arch.talks")}</h3>
      <Talks mesh={mesh} />
      <SeeAlso chapter="places" code={["meshkit/mesh.py:place", "meshkit/planner/memory.py:_meshkit", "meshkit/planner/collectives.py:one_way"]} />
    </div>
  );
}

export function MemoryList({ memory }: { memory: Record<string, number> }) {
  const most = Math.max(...Object.values(memory));
  return (
    <ul class="memory">
      {MEMORY.filter((kind) => kind in memory).map((kind) => (
        <li key={kind}>
          <span>{word("memory", kind)}</span>
          <i style={{ width: `${((memory[kind] / most) * 100).toFixed(1)}%`, background: memoryColour(kind) }} />
          <span class="num">{bytes(memory[kind])}</span>
        </li>
      ))}
    </ul>
  );
}

function Slices({ weights, mesh, place }: { weights: Weights; mesh: Mesh; place: Place }) {
  const chosen = weights.parameters.find((one) => one.path === parameter.value);
  return (
    <ul class="slices">
      {weights.parameters.map((one) => (
        <li key={one.path}>
          <button aria-expanded={one === chosen} onClick={() => (parameter.value = one === chosen ? "" : one.path)} data-parameter={one.path}>
            <span>{one.path.replace(/^blocks\./, "").replace(/\.(kernel|table|scale)$/, "")}</span>
            <span class="num">{shape(one.local_shape.slice(one.path.startsWith("blocks.") ? 1 : 0))}</span>
          </button>
          {one === chosen && <Chosen one={one} mesh={mesh} place={place} rows={weights.rows_per_stage} />}
        </li>
      ))}
    </ul>
  );
}

const CUT_BY: Record<string, string> = {
  columns: "models/layers.py:ColumnLinear", rows: "models/layers.py:RowLinear",
  vocabulary: "meshkit/pipeline/vocab.py:VocabTable", whole: "models/layers.py:RMSNorm",
};

function Chosen({ one, mesh, place, rows }: { one: Parameter; mesh: Mesh; place: Place; rows: number }) {
  const stacked = one.path.startsWith("blocks.");
  const ranges = slice(one, place, mesh).slice(stacked ? 1 : 0);
  const layers = mesh.layers[place.pipe].reduce((n, [first, end]) => n + end - first, 0); // a stage has rows for the longest
  return (
    <div class="chosen">
      <Matrix parameter={one} place={place} mesh={mesh} />
      <p>{t(`arch.cut.${one.cut}` as Key)} <CodeLink of={CUT_BY[one.cut]} /></p>
      <dl class="facts">
        <dt>{t("arch.shape")}</dt><dd class="num">{shape(one.shape)}</dd>
        <dt>{t("arch.slice")}</dt>
        <dd class="num" data-slice>{stacked && `${layers === rows ? t("arch.layersEach", { n: rows }) : t("arch.rowsEach", { n: layers, rows })} `}[{ranges.map(([a, b]) => `${a}:${b}`).join(", ")}]</dd>
        <dt>PartitionSpec</dt><dd class="num">{one.spec}</dd>
        <dt>{t("arch.bytes")}</dt><dd class="num">{bytes(one.local_bytes)}</dd>
        <dt>{t("arch.master")}</dt><dd class="num">{one.master_spec}<br />{bytes(one.master_local_bytes)} × 3</dd>
      </dl>
    </div>
  );
}

const FEW = 8;

function Peers({ mesh, place, axis }: { mesh: Mesh; place: Place; axis: AxisName }) {
  const size = mesh.axes[axis].size;
  const peers = Array.from({ length: size }, (_, k) => k).filter((k) => k !== place[axis]);
  const link = mesh.links[levelOf(mesh, axis, place)];
  return (
    <div>
      <dt class={axis}>{axis}</dt>
      <dd class="num">
        {peers.length === 0 && t("arch.alone")}
        {peers.slice(0, FEW).map((k) => {
          const peer = { ...place, [axis]: k };
          return <button key={k} class="peer" onClick={() => (device.value = peer)}>{deviceAt(mesh, peer)}</button>;
        })}
        {peers.length > FEW && <span class="note"> {t("arch.every", { n: peers.length - FEW })}</span>}
        {link && <span class="over"> {t("arch.over", { link: link.name, where: word("link", link.level) })}</span>}
      </dd>
    </div>
  );
}

export function Talks({ mesh }: { mesh: Mesh }) {
  const rows = AXES.flatMap((axis) => mesh.axes[axis].exchanges.map((one) => [axis, one] as [AxisName, Exchange]));
  return (
    <table class="talks">
      <tbody>
        {rows.map(([axis, one]) => (
          <tr key={`${axis}${one.name}${one.volume_bytes}`}>
            <th scope="row"><i style={{ background: kindColour(axis) }} />{word("term", one.name)}</th>
            <td class="num">{count(one.count)} × {bytes(one.volume_bytes)}</td>
            <td class="num">{seconds(one.seconds)}</td>
          </tr>
        ))}
        {rows.length === 0 && <tr><td>{t("arch.alone")}</td></tr>}
      </tbody>
    </table>
  );
}
