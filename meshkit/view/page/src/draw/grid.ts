// Where each device of the mesh stands on the blueprint: replicas are rows, stages columns, tensor peers side by side.

import type { AxisName, Mesh } from "../api";
import type { Size } from "../parts/Drawing";
import type { Place } from "../store";

export interface Box { x: number; y: number; w: number; h: number }

export interface Grid {
  side: number;
  /** Gap between tensor peers, between cells, between rows. */
  gap: number;
  cell: number;
  row: number;
  /** Rows of replicas stand in blocks side by side, `perBlock` in each. */
  perBlock: number;
  blockWidth: number;
  left: number;
  top: number;
  box: (place: Place) => Box;
  at: (x: number, y: number) => Place | null;
}

const LARGEST = 108;
const ABOVE = 0.4; // of the room that is left, what stays above: a little more below looks centred
export const DETAILED = 14; // pixels of a device from which on its links and labels are drawn
export const ROOMY = 200; // pixels below smaller devices in which some of them are drawn large

export function grid(mesh: Mesh, size: Size, left: number, top: number, bottom: number): Grid {
  const [D, T, P] = mesh.shape;
  const width = size.width - left - 16;
  const height = size.height - top - bottom;
  let best = { side: 1, blocks: 1 };
  for (let blocks = 1; blocks <= Math.min(D, 24); blocks++) {
    const rows = Math.ceil(D / blocks);
    for (let side = LARGEST; side > best.side; side--) {
      const [gap, cell, row] = gaps(side);
      const wide = blocks * (P * (T * (side + gap) + cell) + 2 * cell);
      if (wide - 2 * cell <= width && rows * (side + row) <= height) {
        best = { side, blocks };
        break;
      }
    }
  }
  const side = best.side;
  const [gap, cell, row] = gaps(side);
  const perBlock = Math.ceil(D / best.blocks);
  const blockWidth = P * (T * (side + gap) + cell) + 2 * cell;
  const slack = Math.max(0, (width - best.blocks * blockWidth + 2 * cell) / 2);
  const shift = left + slack;
  const room = height - perBlock * (side + row);
  const start = side < DETAILED && room > ROOMY ? top : top + ABOVE * Math.max(0, room);
  const box = ({ data, tensor, pipe }: Place): Box => ({
    x: shift + Math.floor(data / perBlock) * blockWidth + pipe * (T * (side + gap) + cell) + tensor * (side + gap),
    y: start + (data % perBlock) * (side + row),
    w: side,
    h: side,
  });
  const at = (x: number, y: number): Place | null => {
    const block = Math.floor((x - shift) / blockWidth);
    const inBlock = x - shift - block * blockWidth;
    const pipe = Math.floor(inBlock / (T * (side + gap) + cell));
    const tensor = Math.floor((inBlock - pipe * (T * (side + gap) + cell)) / (side + gap));
    const down = Math.floor((y - start) / (side + row));
    const data = block * perBlock + down;
    const inside = down >= 0 && down < perBlock && block >= 0 && pipe >= 0 && pipe < P && tensor >= 0 && tensor < T;
    return inside && data < D ? { data, tensor, pipe } : null;
  };
  return { side, gap, cell, row, perBlock, blockWidth, left: shift, top: start, box, at };
}

const gaps = (side: number): [number, number, number] =>
  side >= 20 ? [6, Math.max(22, side * 0.6), Math.max(20, side * 0.42)] : side >= 8 ? [2, 8, 6] : [1, 4, 2];

export const deviceAt = (mesh: Mesh, { data, tensor, pipe }: Place): number =>
  mesh.device_at[(data * mesh.shape[1] + tensor) * mesh.shape[2] + pipe];

export const nodeOf = (mesh: Mesh, device: number): number => Math.floor(device / mesh.per_node);
export const rackOf = (mesh: Mesh, device: number): number => Math.floor(nodeOf(mesh, device) / mesh.nodes_per_rack);

/** Index into mesh.links of the link between two devices. */
export const levelBetween = (mesh: Mesh, a: number, b: number): number =>
  nodeOf(mesh, a) === nodeOf(mesh, b) ? 0 : rackOf(mesh, a) === rackOf(mesh, b) ? 1 : 2;

/** Index into mesh.links of the widest link that a device's group on an axis crosses; −1 when it is alone. */
export function levelOf(mesh: Mesh, axis: AxisName, place: Place): number {
  const [, T, P] = mesh.shape;
  const group = { data: place.tensor * P + place.pipe, tensor: place.data * P + place.pipe, pipe: place.data * T + place.tensor };
  return mesh.axes[axis].levels[group[axis]];
}

export function* places(mesh: Mesh): Generator<Place> {
  const [D, T, P] = mesh.shape;
  for (let data = 0; data < D; data++)
    for (let pipe = 0; pipe < P; pipe++) for (let tensor = 0; tensor < T; tensor++) yield { data, tensor, pipe };
}

export function clamp(mesh: Mesh, place: Place): Place {
  const [D, T, P] = mesh.shape;
  const within = (k: number, n: number): number => Math.max(0, Math.min(n - 1, k));
  return { data: within(place.data, D), tensor: within(place.tensor, T), pipe: within(place.pipe, P) };
}

/** The part of a mesh around a place: at most `rows` replicas and `stages` stages, all tensor peers. */
export function around(mesh: Mesh, place: Place, rows: number, stages: number): { mesh: Mesh; first: Place; place: Place } {
  const [D, T, P] = mesh.shape;
  const start = (at: number, width: number, all: number): number => Math.max(0, Math.min(all - width, at - Math.floor(width / 2)));
  const [high, wide] = [Math.min(rows, D), Math.min(stages, P)];
  const first = { data: start(place.data, high, D), tensor: 0, pipe: start(place.pipe, wide, P) };
  const device_at: number[] = [];
  for (let data = 0; data < high; data++)
    for (let tensor = 0; tensor < T; tensor++)
      for (let pipe = 0; pipe < wide; pipe++) device_at.push(deviceAt(mesh, { data: data + first.data, tensor, pipe: pipe + first.pipe }));
  const layers = mesh.layers.slice(first.pipe, first.pipe + wide);
  return {
    mesh: { ...mesh, shape: [high, T, wide], device_at, layers },
    first,
    place: { data: place.data - first.data, tensor: place.tensor, pipe: place.pipe - first.pipe },
  };
}
