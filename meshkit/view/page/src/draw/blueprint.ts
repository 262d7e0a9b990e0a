// The flat view of the mesh: devices on nodes and racks, the links between, the peers of one device lit up.

import { AXES, type AxisName, type Figures, type Mesh } from "../api";
import { linkLine, MEMORY, memoryColour, palette } from "../palette";
import type { Place } from "../store";
import { t } from "../strings";
import { DETAILED, deviceAt, levelBetween, nodeOf, places, rackOf, type Grid } from "./grid";
import type { Pen } from "./pen";

const READABLE = 26;
const ORIGIN: Place = { data: 0, tensor: 0, pipe: 0 };

export interface Marks {
  figures: Figures | null;
  /** Devices that hold the same slice of the chosen parameter as the lit one. */
  copies?: (place: Place) => boolean;
  /** Numbers at which a part of the mesh begins. */
  first?: Place;
}

export function blueprint(pen: Pen, mesh: Mesh, grid: Grid, lit: Place, selected: Place, { figures, copies, first = ORIGIN }: Marks): void {
  const detailed = grid.side >= DETAILED;
  const names = [
    ...houses(pen, mesh, grid, rackOf, detailed ? 15 : 4, "rack"),
    ...houses(pen, mesh, grid, nodeOf, detailed ? 7 : 2, "node"),
  ];
  if (detailed) links(pen, mesh, grid);
  beams(pen, mesh, grid, lit);
  for (const place of places(mesh)) {
    tile(pen, mesh, grid, place, lit, selected, figures);
    if (copies?.(place)) {
      const { x, y, w } = grid.box(place);
      const side = Math.max(2, Math.min(10, w / 4));
      pen.rect(x + w - side - w / 12, y + w / 12, side, side, { fill: palette.value.bad, radius: 2 });
    }
  }
  for (const name of names) label(pen, name);
  headings(pen, mesh, grid, first);
}

interface Name { text: string; x: number; y: number; kind: "node" | "rack" }

function label(pen: Pen, { text, x, y, kind }: Name): void {
  const colours = palette.value;
  const wide = text.length * 5.6 + 6;
  pen.rect(kind === "rack" ? x - 3 : x - wide + 3, y - 6, wide, 12, { fill: colours.rack });
  pen.text(text, x, y, { size: 10, fill: colours.faint, weight: kind === "rack" ? 600 : 400, align: kind === "rack" ? "left" : "right" });
}

// --- nodes and racks ------------------------------------------------------------------------------

/** Outlines of what holds consecutive devices: full rows together, else a box for each part of a row. */
function houses(
  pen: Pen, mesh: Mesh, grid: Grid, of: (mesh: Mesh, device: number) => number, pad: number, kind: "node" | "rack",
): Name[] {
  const names: Name[] = [];
  const [D, T, P] = mesh.shape;
  const colours = palette.value;
  const runs = new Map<number, { data: number; first: number; last: number }[]>();
  for (let data = 0; data < D; data++)
    for (let k = 0; k < T * P; k++) {
      const device = deviceAt(mesh, { data, tensor: k % T, pipe: Math.floor(k / T) });
      const mine = runs.get(of(mesh, device)) ?? [];
      const open = mine.at(-1);
      if (open && open.data === data && open.last === k - 1) open.last = k;
      else mine.push({ data, first: k, last: k });
      runs.set(of(mesh, device), mine);
    }
  const style = kind === "rack"
    ? { fill: colours.rack, radius: 10 }
    : { stroke: colours.node, radius: 7, width: 1.25, fill: colours.paper };
  for (const [number, parts] of runs) {
    let labelled = false;
    for (let k = 0; k < parts.length; ) {
      const whole = (part: typeof parts[number]): boolean => part.first === 0 && part.last === T * P - 1;
      let end = k + 1;
      while (end < parts.length && whole(parts[k]) && whole(parts[end]) && parts[end].data % grid.perBlock !== 0) end++;
      const spot = (data: number, at: number) => grid.box({ data, tensor: at % T, pipe: Math.floor(at / T) });
      const a = spot(parts[k].data, parts[k].first);
      const b = spot(parts[end - 1].data, parts[k].last);
      pen.rect(a.x - pad, a.y - pad, b.x + b.w - a.x + 2 * pad, b.y + b.h - a.y + 2 * pad, style);
      if (!labelled && grid.row >= 18 && (kind === "node" || mesh.nodes > mesh.nodes_per_rack))
        names.push({ text: t(`arch.${kind}`, { n: number }), x: kind === "rack" ? a.x - pad + 4 : b.x + b.w + pad - 3, y: a.y - 13, kind });
      labelled = true;
      k = end;
    }
  }
  return names;
}

// --- links ------------------------------------------------------------------------------------------

/** Bytes that a device exchanges along an axis in a step. */
export const traffic = (mesh: Mesh, axis: AxisName): number =>
  mesh.axes[axis].exchanges.reduce((sum, { count, volume_bytes }) => sum + count * volume_bytes, 0);

const DECADES = 3; // below the busiest axis by so many, a link is as faint as can be

/** How bright the links of an axis are: by the bytes of a step, in powers of ten. */
export function brightness(mesh: Mesh, axis: AxisName): number {
  const busiest = Math.max(...AXES.map((one) => traffic(mesh, one)));
  const below = Math.log10(busiest / traffic(mesh, axis)); // infinite where nothing is exchanged
  return 1 - 0.8 * Math.min(1, below / DECADES || 0);
}

function links(pen: Pen, mesh: Mesh, grid: Grid): void {
  const [D, T, P] = mesh.shape;
  const alpha = { data: brightness(mesh, "data"), tensor: brightness(mesh, "tensor"), pipe: brightness(mesh, "pipe") };
  const join = (axis: AxisName, a: Place, b: Place, from: [number, number], to: [number, number]): void => {
    const link = mesh.links[levelBetween(mesh, deviceAt(mesh, a), deviceAt(mesh, b))];
    pen.path([from, to], { ...linkLine(link), alpha: alpha[axis] });
  };
  for (const place of places(mesh)) {
    const { x, y, w, h } = grid.box(place);
    if (place.tensor + 1 < T)
      join("tensor", place, { ...place, tensor: place.tensor + 1 }, [x + w, y + h / 2], [x + w + grid.gap, y + h / 2]);
    if (place.pipe + 1 < P && place.tensor === T - 1) {
      const next = { ...place, pipe: place.pipe + 1, tensor: 0 };
      const right = grid.box(next).x;
      join("pipe", { ...place, tensor: 0 }, next, [x + w, y + h / 2], [right - 5, y + h / 2]);
      pen.path([[right - 8, y + h / 2 - 3.5], [right - 2, y + h / 2], [right - 8, y + h / 2 + 3.5]], { fill: palette.value.faint, closed: true });
    }
    if (place.data + 1 < D && (place.data + 1) % grid.perBlock)
      join("data", place, { ...place, data: place.data + 1 }, [x + w / 2, y + h], [x + w / 2, y + h + grid.row]);
  }
}

/** Strong lines through the three groups of a device, in the axes' colours. */
function beams(pen: Pen, mesh: Mesh, grid: Grid, lit: Place): void {
  const sizes = { data: mesh.shape[0], tensor: mesh.shape[1], pipe: mesh.shape[2] };
  for (const axis of ["data", "pipe", "tensor"] as AxisName[]) {
    if (sizes[axis] === 1) continue;
    const centres = Array.from({ length: sizes[axis] }, (_, k) => grid.box({ ...lit, [axis]: k }));
    const line: [number, number][] = [];
    centres.forEach((box, k) => {
      if (axis === "data" && k && k % grid.perBlock === 0) flush();
      line.push([box.x + box.w / 2, box.y + box.h / 2]);
    });
    flush();
    function flush(): void {
      if (line.length > 1) pen.path([line[0], line.at(-1)!], { stroke: palette.value[axis], width: Math.max(1.5, grid.side / 12), alpha: 0.9 });
      line.length = 0;
    }
  }
}

// --- devices ----------------------------------------------------------------------------------------

/** The axis on which a device is a peer of another; "" for none, "self" for itself. */
export function peerAxis(place: Place, of: Place): AxisName | "" | "self" {
  const same = (axis: AxisName): boolean => place[axis] === of[axis];
  if (same("data") && same("tensor") && same("pipe")) return "self";
  if (same("data") && same("pipe")) return "tensor";
  if (same("data") && same("tensor")) return "pipe";
  return same("tensor") && same("pipe") ? "data" : "";
}

function tile(pen: Pen, mesh: Mesh, grid: Grid, place: Place, lit: Place, selected: Place, figures: Figures | null): void {
  const colours = palette.value;
  const { x, y, w, h } = grid.box(place);
  const axis = peerAxis(place, lit);
  const isSelected = peerAxis(place, selected) === "self";
  if (grid.side < 8) {
    const fill = isSelected || axis === "self" ? colours.ink : axis ? colours[axis] : colours.line;
    pen.rect(x, y, w, h, { fill });
    return;
  }
  const soft = { data: colours.dataSoft, tensor: colours.tensorSoft, pipe: colours.pipeSoft, self: colours.ink, "": colours.raised }[axis];
  const edge = axis === "self" ? colours.ink : axis ? colours[axis] : colours.line;
  pen.rect(x, y, w, h, { fill: soft, stroke: edge, width: axis ? 2 : 1, radius: Math.min(6, w / 6) });
  if (isSelected && axis !== "self") pen.rect(x - 3, y - 3, w + 6, h + 6, { stroke: colours.ink, width: 1.5, radius: 8 });
  if (w < READABLE) return;
  const number = deviceAt(mesh, place);
  pen.text(String(number), x + w / 2, y + h / 2 + (w > 44 ? -4 : 3), {
    size: w > 84 ? 18 : w > 44 ? 14 : 10, mono: true, align: "center", weight: axis ? 600 : 400, fill: axis === "self" ? colours.paper : colours.ink,
  });
  const letter = w > 84 ? 14 : w > 44 ? 10 : 8;
  if (axis && axis !== "self") pen.text(axis[0].toUpperCase(), x + 2 + letter / 2.5, y + 2 + letter * 0.75, { size: letter, weight: 600, fill: colours[axis] });
  if (w > 44 && figures) gauge(pen, x + w * 0.11, y + h * 0.8, w * 0.78, Math.max(5, w / 14), figures);
}

/** A device's memory as a thin bar by kind, of what it offers; red where it would run over. */
function gauge(pen: Pen, x: number, y: number, w: number, h: number, figures: Figures): void {
  pen.rect(x, y, w, h, { fill: palette.value.hair });
  let at = 0;
  const most = Math.max(figures.budget_bytes, figures.peak_bytes);
  for (const kind of MEMORY) {
    const share = ((figures.memory_bytes[kind] ?? 0) / most) * w;
    pen.rect(x + at, y, share, h, { fill: memoryColour(kind) });
    at += share;
  }
  if (!figures.fits) pen.rect(x + (figures.budget_bytes / most) * w - 1, y - 2, 2, h + 4, { fill: palette.value.bad });
}

/** Stages and replicas by number; `first`: the numbers at which the drawing begins. */
function headings(pen: Pen, mesh: Mesh, grid: Grid, first: Place): void {
  const [D, T, P] = mesh.shape;
  const colours = palette.value;
  const blocks = Math.ceil(D / grid.perBlock);
  const wide = T * (grid.side + grid.gap);
  const told = wide > 64;
  if (wide >= 22 && !told && grid.left > 84) pen.text(t("arch.stages"), grid.left - 20, grid.top - 46, { size: 12, weight: 600, align: "right", fill: colours.pipe });
  for (let block = 0; block < blocks; block++)
    for (let pipe = 0; pipe < P; pipe++) {
      const { x } = grid.box({ data: block * grid.perBlock, tensor: 0, pipe });
      if (wide < 22) continue;
      const middle = x + (wide - grid.gap) / 2;
      const ranges = mesh.layers[pipe].map(([a, b]) => `${a}–${b - 1}`);
      pen.text(told ? t("arch.stage", { n: pipe + first.pipe }) : String(pipe + first.pipe), middle, grid.top - 46, { size: 12, weight: 600, align: "center", fill: colours.pipe });
      if (wide > 80)
        pen.text(t("arch.layers", { range: ranges.length > 2 ? `${ranges[0]} …` : ranges.join(", ") }), middle, grid.top - 31, { size: 11, align: "center", fill: colours.faint });
    }
  if (grid.side + grid.row < 13) {
    const middle = grid.top + (grid.perBlock * (grid.side + grid.row)) / 2;
    if (blocks === 1 && grid.left > 84) pen.text(t("arch.replicas"), grid.left - 20, middle, { size: 12, weight: 600, align: "right", fill: colours.data });
    return;
  }
  for (let data = 0; data < D; data++) {
    const { x, y, h } = grid.box({ data, tensor: 0, pipe: 0 });
    pen.text(blocks === 1 && x > 84 ? t("arch.replica", { n: data + first.data }) : String(data + first.data), x - 20, y + h / 2, { size: grid.side < 20 ? 9 : 12, weight: 600, align: "right", fill: colours.data });
  }
}
