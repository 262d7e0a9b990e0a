// A parameter as the matrix that it is, with its cuts, and the slice that one device holds.

import type { Mesh, Parameter } from "../api";
import { number } from "../format";
import { type Place } from "../store";

/** [start, end) in each dim of what the device at a place works with (`weights.block` in Python). */
export function slice(parameter: Parameter, place: Place, mesh: Mesh): [number, number][] {
  const of = { data: mesh.shape[0], tensor: mesh.shape[1], pipe: mesh.shape[2] };
  return parameter.axes.map((axes, dim) => {
    const k = axes.reduce((k, axis) => k * of[axis] + place[axis], 0);
    const local = parameter.local_shape[dim];
    return [k * local, (k + 1) * local];
  });
}

const LARGEST = 150;

export function Matrix({ parameter, place, mesh }: { parameter: Parameter; place: Place; mesh: Mesh }) {
  const stacked = parameter.path.startsWith("blocks.");
  const dims = parameter.shape.slice(stacked ? 1 : 0);
  const ranges = slice(parameter, place, mesh).slice(stacked ? 1 : 0);
  const axes = parameter.axes.slice(stacked ? 1 : 0);
  const [rows, columns] = dims.length > 1 ? dims : [1, dims[0]];
  const [rowRange, columnRange] = ranges.length > 1 ? ranges : [[0, 1] as [number, number], ranges[0]];
  const [rowAxes, columnAxes] = axes.length > 1 ? axes : [[], axes[0]];
  const most = Math.max(rows, columns);
  const squeeze = (n: number): number => Math.max(10, LARGEST * Math.sqrt(n / most));
  const [w, h] = [squeeze(columns), rows === 1 ? 12 : squeeze(rows)];
  const cuts = (range: [number, number], whole: number): number => Math.round(whole / (range[1] - range[0]));
  const across = cuts(columnRange, columns);
  const down = cuts(rowRange, rows);
  const hue = (names: string[]): string => (names.length > 1 ? "var(--pipe)" : names[0] ? `var(--${names[0]})` : "var(--ink)");
  const at = { x: (columnRange[0] / columns) * w, y: (rowRange[0] / rows) * h };
  return (
    <svg class="matrix" viewBox={`-44 -20 ${w + 60} ${h + 26}`} width={w + 60} height={h + 26} role="img" aria-label={parameter.spec}>
      <rect width={w} height={h} class="whole" />
      <rect x={at.x} y={at.y} width={Math.max(1.5, w / across)} height={Math.max(1.5, h / down)} fill={hue(columnAxes.length ? columnAxes : rowAxes)} opacity="0.85" />
      {Array.from({ length: Math.min(across, 64) - 1 }, (_, k) => <path key={`c${k}`} d={`M${((k + 1) * w) / across} 0V${h}`} stroke={hue(columnAxes)} />)}
      {Array.from({ length: Math.min(down, 64) - 1 }, (_, k) => <path key={`r${k}`} d={`M0 ${((k + 1) * h) / down}H${w}`} stroke={hue(rowAxes)} />)}
      <text x={w / 2} y="-7" text-anchor="middle">{number(columns)}</text>
      {rows > 1 && <text x="-6" y={h / 2} text-anchor="end" dominant-baseline="central">{number(rows)}</text>}
    </svg>
  );
}
