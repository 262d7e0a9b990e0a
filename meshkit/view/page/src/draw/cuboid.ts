// The mesh as the block that it is: D × T × P small cubes, pipe to the right, data to the left, tensor up.

import type { Mesh } from "../api";
import { palette } from "../palette";
import type { Size } from "../parts/Drawing";
import type { Place } from "../store";
import { peerAxis } from "./blueprint";
import { deviceAt, nodeOf } from "./grid";
import type { Pen } from "./pen";

const COS = Math.cos(Math.PI / 6);
const FILLED = 0.74;
const HOLLOW = 600; // beyond so many devices only the visible sides are drawn

type Spot = [number, number];

export function projection(mesh: Mesh, size: Size) {
  const [D, T, P] = mesh.shape;
  const unit = Math.min((size.width - 160) / ((D + P) * COS), (size.height - 110) / ((D + P) / 2 + T), 74);
  const left = size.width / 2 + ((D - P) * COS * unit) / 2;
  const top = (size.height - unit * ((D + P) / 2 + T)) / 2 + T * unit;
  return (pipe: number, data: number, tensor: number): Spot => [
    left + (pipe - data) * COS * unit,
    top + ((pipe + data) / 2 - tensor) * unit,
  ];
}

export function cuboid(pen: Pen, mesh: Mesh, size: Size, lit: Place): void {
  const [D, T, P] = mesh.shape;
  const spot = projection(mesh, size);
  const hollow = D * T * P > HOLLOW;
  axes(pen, mesh, spot);
  for (let data = 0; data < D; data++)
    for (let pipe = 0; pipe < P; pipe++)
      for (let tensor = 0; tensor < T; tensor++) {
        const hidden = hollow && data < D - 1 && pipe < P - 1 && tensor < T - 1;
        if (!hidden || peerAxis({ data, tensor, pipe }, lit)) cube(pen, mesh, spot, { data, tensor, pipe }, lit);
      }
}

function cube(pen: Pen, mesh: Mesh, spot: ReturnType<typeof projection>, place: Place, lit: Place): void {
  const colours = palette.value;
  const { pipe: p, data: d, tensor: t } = place;
  const e = FILLED;
  const at = (a: number, b: number, c: number): Spot => spot(p + a * e, d + b * e, t + c * e);
  const axis = peerAxis(place, lit);
  const even = nodeOf(mesh, deviceAt(mesh, place)) % 2 === 0;
  const base = axis === "self" ? colours.ink : axis ? colours[axis] : even ? colours.line : colours.hair;
  const alpha = axis ? 1 : 0.38; // peers show through the others
  const edge = { stroke: axis ? colours.paper : colours.node, width: 0.75, closed: true, alpha };
  pen.path([at(0, 0, 1), at(1, 0, 1), at(1, 1, 1), at(0, 1, 1)], { fill: base, ...edge });
  pen.path([at(0, 1, 0), at(1, 1, 0), at(1, 1, 1), at(0, 1, 1)], { fill: base, ...edge });
  pen.path([at(0, 1, 0), at(1, 1, 0), at(1, 1, 1), at(0, 1, 1)], { fill: colours.ink, alpha: 0.14 * alpha, closed: true });
  pen.path([at(1, 0, 0), at(1, 1, 0), at(1, 1, 1), at(1, 0, 1)], { fill: base, ...edge });
  pen.path([at(1, 0, 0), at(1, 1, 0), at(1, 1, 1), at(1, 0, 1)], { fill: colours.ink, alpha: 0.28 * alpha, closed: true });
}

function axes(pen: Pen, mesh: Mesh, spot: ReturnType<typeof projection>): void {
  const [D, T, P] = mesh.shape;
  const colours = palette.value;
  const arrow = (from: Spot, to: Spot, fill: string, label: string, align: "left" | "right" | "center"): void => {
    pen.path([from, to], { stroke: fill, width: 2 });
    const away = align === "left" ? 8 : align === "right" ? -8 : 0;
    pen.text(label, to[0] + away, to[1] + (align === "center" ? -10 : 8), { size: 14, weight: 600, fill, align });
  };
  arrow(spot(0, D + 0.15, 0), spot(P + 0.1, D + 0.15, 0), colours.pipe, `pipe ${P}`, "left");
  arrow(spot(P + 0.15, 0, 0), spot(P + 0.15, 0, T + 0.1), colours.tensor, `tensor ${T}`, "center");
  arrow(spot(0, 0.0, 0), spot(0, D + 0.15, 0), colours.data, `data ${D}`, "right");
}
