// The scenes of a step's journey, drawn with the perceptron's real numbers. p: how far the scene is, 0 … 1.

import type { Matrix, Perceptron } from "../api";
import { palette } from "../palette";
import type { Size } from "../parts/Drawing";
import { t } from "../strings";
import type { Pen, TextStyle } from "./pen";

type Scene = (stage: Stage, data: Perceptron, p: number) => void;

const ease = (p: number): number => (p < 0.5 ? 2 * p * p : 1 - (2 - 2 * p) ** 2 / 2);
/** The part of the scene between a and b, as 0 … 1. */
const between = (p: number, a: number, b: number): number => ease(Math.max(0, Math.min(1, (p - a) / (b - a))));
const mix = (a: number, b: number, p: number): number => a + (b - a) * p;
const rows = (matrix: Matrix, a: number, b: number): Matrix => matrix.slice(a, b);
const columns = (matrix: Matrix, a: number, b: number): Matrix => matrix.map((row) => row.slice(a, b));
const transposed = (matrix: Matrix): Matrix => matrix[0].map((_, k) => matrix.map((row) => row[k]));

interface Look {
  hue?: string; alpha?: number; label?: string; note?: string; lit?: [number, number];
  /** The value of full colour. */
  most?: number;
}

const WEIGHT = 0.5; // weights are small: their full colour

interface Bounds { left: number; top: number; right: number; bottom: number }

/** A pen that draws nothing and knows how far it went. */
class Surveyor implements Pen {
  readonly bounds: Bounds = { left: Infinity, top: Infinity, right: -Infinity, bottom: -Infinity };

  /** least: the size of the smallest text. */
  constructor(private least = 0) {}

  rect(x: number, y: number, w: number, h: number): void {
    const to = this.bounds;
    to.left = Math.min(to.left, x);
    to.top = Math.min(to.top, y);
    to.right = Math.max(to.right, x + w);
    to.bottom = Math.max(to.bottom, y + h);
  }
  path(points: [number, number][]): void {
    for (const [x, y] of points) this.rect(x, y, 0, 0);
  }
  text(words: string, x: number, y: number, { size = 12, align = "left", mono }: TextStyle = {}): void {
    const letter = (one: string): number => (one > "\u2e80" ? 1 : mono ? 0.6 : 0.54);
    size = Math.max(size, this.least);
    const wide = size * [...words].reduce((sum, one) => sum + letter(one), 0);
    this.rect(x - { left: 0, center: wide / 2, right: wide }[align], y - size * 0.6, wide, size * 1.2);
  }
}

const MARGIN = 24;
const CLEAR = 9; // pixels between a matrix and the middle of its label
const SMALLEST = 10; // of text
const LARGEST = 1.5; // beyond, matrices are no clearer
const TALLEST = 1.6; // of a narrow place's height over its width, so that words keep clear of each other

/** A drawing surface that fits what a scene draws from its beginning to its end into whatever there is. */
class Stage {
  /** Pixels of a scene's unit, across and down. */
  readonly across: number = 1;
  private down = 1;
  private left = 0;
  private top = 0;

  constructor(private pen: Pen, readonly link: string, size?: Size, bounds?: Bounds) {
    if (!size || !bounds) return;
    const [wide, high] = [bounds.right - bounds.left, bounds.bottom - bounds.top];
    const room = (size.height - 2 * MARGIN) / high;
    this.across = Math.max(0.2, Math.min(LARGEST, (size.width - 2 * MARGIN) / wide, room));
    this.down = Math.max(this.across, Math.min(1, TALLEST * this.across, room));
    this.left = (size.width - wide * this.across) / 2 - bounds.left * this.across;
    this.top = (size.height - high * this.down) / 2 - bounds.top * this.down;
  }

  /** A matrix as shades of its values, its top left corner at x, y; [w, h] of what was drawn. */
  heat(matrix: Matrix, x: number, y: number, cell: number, look: Look = {}): void {
    const colours = palette.value;
    const most = look.most ?? 1.6;
    const h = matrix.length * cell;
    const [X, Y] = this.at(x, y);
    const [W, H] = [cell * this.across, cell * this.down];
    const [wide, high] = [matrix[0].length * W, matrix.length * H];
    this.pen.rect(X, Y, wide, high, { fill: colours.raised, alpha: look.alpha });
    matrix.forEach((row, i) => row.forEach((value, j) => {
      const strength = Math.min(1, Math.abs(value) / most) * (look.alpha ?? 1);
      if (strength < 0.02) return;
      this.pen.rect(X + j * W, Y + i * H, W + 0.3, H + 0.3, { fill: value > 0 ? colours.B : colours.compute, alpha: strength * 0.9 });
    }));
    this.pen.rect(X, Y, wide, high, { stroke: look.hue ?? colours.faint, width: look.hue ? 2 : 1, alpha: look.alpha });
    if (look.lit) {
      const [i, j] = look.lit;
      this.pen.rect(X + j * W - 1, Y + i * H - 1, W + 2, H + 2, { stroke: colours.ink, width: 2 });
    }
    if (look.label) this.say(look.label, x, y - Math.max(12, CLEAR / this.down), { fill: look.hue ?? colours.soft, weight: 600 });
    if (look.note) this.say(look.note, x, y + h + Math.max(13, CLEAR / this.down), { fill: colours.faint, size: 11 });
  }

  say(words: string, x: number, y: number, style: { size?: number; fill?: string; weight?: number; mono?: boolean; align?: "left" | "center" | "right" } = {}): void {
    const [X, Y] = this.at(x, y);
    this.pen.text(words, X, Y, { fill: palette.value.ink, ...style, size: Math.max(SMALLEST, (style.size ?? 12) * Math.min(1.2, this.across)) });
  }

  box(x: number, y: number, w: number, h: number, hue: string, label: string, fill?: string): void {
    const [X, Y] = this.at(x, y);
    this.pen.rect(X, Y, w * this.across, h * this.down, { stroke: hue, width: 1.5, radius: 8, fill: fill ?? palette.value.sunken });
    if (label) this.say(label, x + 12, y + 16, { fill: hue, weight: 600 });
  }

  arrow(x1: number, y1: number, x2: number, y2: number, hue: string, p = 1, dash?: number[]): void {
    if (p <= 0) return;
    const [X, Y] = this.at(x1, y1);
    const [U, V] = this.at(mix(x1, x2, p), mix(y1, y2, p));
    const angle = Math.atan2(V - Y, U - X);
    this.pen.path([[X, Y], [U, V]], { stroke: hue, width: 2, dash });
    const head = (turn: number): [number, number] => [U - 9 * Math.cos(angle + turn), V - 9 * Math.sin(angle + turn)];
    this.pen.path([head(0.4), [U, V], head(-0.4)], { fill: hue, closed: true });
  }

  private at(x: number, y: number): [number, number] {
    return [this.left + x * this.across, this.top + y * this.down];
  }
}

const signed = (value: number): string => (value < 0 ? `−${Math.abs(value).toFixed(3)}` : value.toFixed(3));

const SCENES: Record<string, Scene> = {
  cut_batch(stage, { x_BI }, p) {
    const { data } = palette.value;
    const apart = between(p, 0.25, 0.8) * 70;
    const cell = 13;
    [0, 1].forEach((d) => stage.heat(rows(x_BI, 8 * d, 8 * d + 8), 242, 140 + d * 8 * cell + (d - 0.5) * apart * 1.6, cell, {
      hue: p > 0.25 ? data : undefined, label: p > 0.6 ? `${t("arch.replica", { n: d })} · ${t("story.samples", { n: 8 })}` : d ? undefined : "X [16, 32]",
    }));
  },
  cut_microbatches(stage, { x_BI }, p) {
    const { data, B } = palette.value;
    const apart = between(p, 0.2, 0.8);
    const cell = 13;
    stage.say(`${t("arch.replica", { n: 0 })} · X [8, 32]`, 242, 96, { fill: data, weight: 600 });
    [0, 1, 2, 3].forEach((m) => {
      const x = 242 + apart * m * 22 - apart * 33;
      const y = 130 + m * (2 * cell + apart * 44);
      stage.heat(rows(x_BI, 2 * m, 2 * m + 2), x, y, cell, { hue: p > 0.2 ? B : data });
      if (apart > 0.6) stage.say(`m${m}`, x - 14, y + cell, { fill: B, weight: 600, align: "right", mono: true });
    });
  },
  embed(stage, { w1_HI }, p) {
    const { pipe, tensor, ink, faint } = palette.value;
    stage.say(t("story.table"), 470 + 32 * 9, 66, { weight: 600, align: "right" });
    const bands = 4;
    for (let k = 0; k < bands; k++) {
      stage.heat(rows(w1_HI, 8 * k, 8 * k + 8), 470, 90 + k * 92, 9, { most: WEIGHT, hue: k % 2 ? tensor : pipe });
      stage.say(`stage ${Math.floor(k / 2)}, t${k % 2}`, 775, 126 + k * 92, { fill: k % 2 ? tensor : pipe, size: 11 });
    }
    [21, 3, 12].forEach((row, k) => {
      const y = 150 + k * 90;
      const source = 90 + Math.floor(row / 8) * 92 + (row % 8) * 9 + 4;
      const come = between(p, 0.15 + 0.2 * k, 0.55 + 0.2 * k);
      stage.say(t("story.token", { n: row }), 60, y - 14, { mono: true, fill: faint });
      stage.arrow(140, y + 4, 462, source, ink, between(p, 0.2 * k, 0.25 + 0.2 * k), [2, 4]);
      if (come > 0) stage.heat(rows(w1_HI, row, row + 1), mix(470, 60, come), mix(source - 4, y, come), 9, { most: WEIGHT, hue: ink });
    });
  },
  column(stage, { x_BI, w1_HI, hidden_BH }, p) {
    const { tensor, soft } = palette.value;
    const w = transposed(w1_HI);
    const apart = between(p, 0.1, 0.35) * 26;
    stage.heat(rows(x_BI, 0, 4), 40, 230, 7, { label: "X [4, 32]", note: t("story.onBoth") });
    stage.say("×", 287, 245, { size: 20, fill: soft, align: "center" });
    [0, 1].forEach((k) => {
      stage.heat(columns(w, 32 * k, 32 * k + 32), 320 + k * (32 * 5 + apart), 165, 5, { most: WEIGHT, hue: tensor, label: `W1 · t${k}`, note: "[32, 32]" });
      const done = between(p, 0.4 + 0.15 * k, 0.75 + 0.15 * k);
      const shown = Math.max(1, Math.round(done * 32));
      if (done > 0) stage.heat(columns(rows(hidden_BH, 0, 4), 32 * k, 32 * k + shown), 320 + k * (32 * 5 + apart), 400, 5, { hue: tensor, label: `relu(X W1) · t${k}` });
    });
    if (p > 0.9) stage.say(t("story.sideBySide"), 320, 450, { fill: soft });
    stage.say("=", 287, 410, { size: 20, fill: soft, align: "center" });
  },
  row(stage, { hidden_BH, w2_OH, partial_BO }, p) {
    const { tensor, soft } = palette.value;
    const w = transposed(w2_OH);
    [0, 1].forEach((k) => {
      const y = 60 + k * 225;
      stage.heat(columns(rows(hidden_BH, 0, 4), 32 * k, 32 * k + 32), 40, y + 70, 7, { hue: tensor, label: `H · t${k} [4, 32]` });
      stage.say("×", 290, y + 84, { size: 20, fill: soft, align: "center" });
      stage.heat(rows(w, 32 * k, 32 * k + 32), 330, y, 5.6, { most: WEIGHT, hue: tensor, label: `W2 · t${k} [32, 16]` });
      stage.say("=", 455, y + 84, { size: 20, fill: soft, align: "center" });
      const done = between(p, 0.2 + 0.2 * k, 0.6 + 0.2 * k);
      if (done > 0) stage.heat(columns(rows(partial_BO[k], 0, 4), 0, Math.max(1, Math.round(16 * done))), 490, y + 62, 14, { hue: tensor, label: `Y${"₁₂"[k]} = X${"₁₂"[k]} W${"₁₂"[k]}`, note: done === 1 ? t("story.partial") : "" });
    });
  },
  partial_sums(stage, { partial_BO, y_BO, error }, p) {
    const { tensor, ink, soft, good } = palette.value;
    const k = Math.min(63, Math.floor(p * 64));
    const lit: [number, number] = [Math.floor(k / 16), k % 16];
    const cell = 22;
    [0, 1].forEach((n) => stage.heat(rows(partial_BO[n], 0, 4), 60, 50 + n * 135, cell, { hue: tensor, label: `Y${"₁₂"[n]} · t${n}`, lit }));
    stage.say("+", 34, 160, { size: 20, fill: soft });
    const done = rows(y_BO, 0, 4).map((row, i) => row.map((value, j) => (i * 16 + j <= k ? value : 0)));
    stage.heat(done, 60, 340, cell, { hue: ink, label: "Y = X₁W₁ + X₂W₂", lit });
    stage.say("=", 34, 384, { size: 20, fill: soft });
    const [a, b, c] = [partial_BO[0], partial_BO[1], y_BO].map((matrix) => matrix[lit[0]][lit[1]]);
    stage.say(`Y₁[${lit}]`, 440, 94, { fill: soft }); stage.say(signed(a), 660, 94, { size: 24, mono: true, align: "right", fill: tensor });
    stage.say(`Y₂[${lit}]`, 440, 229, { fill: soft }); stage.say(signed(b), 660, 229, { size: 24, mono: true, align: "right", fill: tensor });
    stage.say(`Y[${lit}]`, 440, 384, { fill: soft }); stage.say(signed(c), 660, 384, { size: 24, mono: true, align: "right", weight: 600 });
    stage.say("+", 690, 229, { size: 20, fill: soft }); stage.say("=", 690, 384, { size: 20, fill: soft });
    if (p > 0.95) stage.say(t("story.error", { error: error.toExponential(0) }), 60, 455, { fill: good });
  },
  hop(stage, { hidden_BH }, p) {
    const { pipe, B } = palette.value;
    stage.box(40, 120, 300, 280, pipe, t("arch.stage", { n: 0 }) + " · W1");
    stage.box(560, 120, 300, 280, pipe, t("arch.stage", { n: 1 }) + " · W2");
    stage.arrow(345, 260, 553, 260, stage.link, 1);
    [3, 2, 1, 0].forEach((m) => {
      const go = between(p, m * 0.2, m * 0.2 + 0.35);
      stage.heat(columns(rows(hidden_BH, 2 * m, 2 * m + 2), 0, 32), mix(72, 592, go), 170 + m * 54, 7.2, { hue: B });
      stage.say(`m${m}`, mix(72, 592, go) + 115, 170 + m * 54 + 26, { size: 11, mono: true, fill: B, align: "center" });
    });
  },
  loss(stage, { y_BO, loss_B, loss }, p) {
    const { soft, pipe } = palette.value;
    stage.heat(y_BO, 80, 90, 20, { label: "Y [16, 16]", hue: pipe });
    const shown = Math.max(1, Math.round(between(p, 0.1, 0.9) * 16));
    loss_B.slice(0, shown).forEach((value, k) => stage.say(`½ Σ y² = ${value.toFixed(2)}`, 430, 100 + k * 20, { mono: true, size: 11, fill: soft }));
    if (shown === 16) stage.say(`L = ${loss.toFixed(3)}`, 650, 250, { size: 24, mono: true, weight: 600 });
  },
  backward(stage, { dy_BO, dhidden_BH, gradient_OH }, p) {
    const { pipe, B, tensor } = palette.value;
    stage.box(40, 100, 340, 320, pipe, t("arch.stage", { n: 0 }) + " · W1");
    stage.box(520, 100, 340, 320, pipe, t("arch.stage", { n: 1 }) + " · W2");
    stage.heat(rows(dy_BO, 0, 2), 600, 160, 13, { most: 0.1, hue: B, label: "dY [2, 16]" });
    stage.arrow(700, 195, 700, 235, B, between(p, 0.1, 0.3));
    if (p > 0.3) stage.heat(columns(gradient_OH[0], 0, 40), 580, 260, 6, { most: 0.3, hue: tensor, label: "dW2 += dYᵀ H" });
    stage.arrow(515, 260, 387, 260, stage.link, between(p, 0.4, 0.6));
    const go = between(p, 0.4, 0.7);
    if (go > 0) stage.heat(columns(rows(dhidden_BH, 0, 2), 0, 24), mix(560, 80, go), 200, 10, { most: 0.06, hue: B, label: "dH [2, 64] = dY W2" });
    if (p > 0.75) stage.say("dW1 += (dH · relu′)ᵀ X", 80, 300, { fill: tensor, weight: 600 });
  },
  reduce(stage, { gradient_OH, mean_OH, gradient_error }, p) {
    const { data, ink, soft, good } = palette.value;
    const k = Math.min(127, Math.floor(p * 128));
    const lit: [number, number] = [Math.floor(k / 32), k % 32];
    const cell = 16;
    const part = (matrix: Matrix): Matrix => columns(rows(matrix, 0, 4), 0, 32);
    [0, 1].forEach((n) => stage.heat(part(gradient_OH[n]), 60, 60 + n * 130, cell, { most: WEIGHT, hue: data, label: `g${"₀₁"[n]} · ${t("arch.replica", { n })}`, lit }));
    const done = part(mean_OH).map((row, i) => row.map((value, j) => (i * 32 + j <= k ? value : 0)));
    stage.heat(done, 60, 340, cell, { most: WEIGHT, hue: ink, label: "g = (g₀ + g₁) ÷ 2", lit });
    const [a, b, c] = [gradient_OH[0], gradient_OH[1], mean_OH].map((matrix) => matrix[lit[0]][lit[1]]);
    const say = (value: number, y: number, fill: string): void => stage.say(signed(value), 720, y, { size: 22, mono: true, align: "right", fill });
    say(a, 92, data); say(b, 222, data); say(c, 372, ink);
    stage.say("+", 750, 222, { size: 20, fill: soft }); stage.say("÷ 2 =", 740, 300, { size: 14, fill: soft });
    if (p > 0.95) stage.say(t("story.error", { error: gradient_error.toExponential(0) }), 60, 440, { fill: good });
  },
  update(stage, { w2_OH, mean_OH }, p) {
    const { data, ink, soft } = palette.value;
    const rate = 0.5 * between(p, 0.2, 0.9);
    const cell = 9;
    const part = (matrix: Matrix): Matrix => columns(matrix, 0, 36);
    stage.heat(part(w2_OH), 60, 60, cell, { most: WEIGHT, label: "W2" });
    stage.say("−", 420, 130, { size: 24, fill: soft });
    stage.heat(part(mean_OH), 470, 60, cell, { most: WEIGHT, hue: data, label: `${rate.toFixed(2)} × g` });
    stage.heat(part(w2_OH.map((row, i) => row.map((value, j) => value - rate * mean_OH[i][j]))), 265, 300, cell, { most: WEIGHT, hue: ink, label: "W2 ← W2 − α g", note: t("story.ownSlice") });
    stage.say("=", 235, 370, { size: 24, fill: soft });
  },
  gather(stage, { w2_OH }, p) {
    const { data } = palette.value;
    const cell = 8;
    [0, 1].forEach((d) => {
      const x = 60 + d * 430;
      stage.box(x, 90, 370, 330, data, t("arch.replica", { n: d }));
      [0, 1].forEach((half) => {
        const own = half === d;
        const go = own ? 1 : between(p, 0.2, 0.85);
        if (!own && go <= 0) return;
        const from = 60 + half * 430;
        stage.heat(columns(rows(w2_OH, half * 8, half * 8 + 8), 0, 42), mix(from, x, go) + 18, 150 + half * 110, cell, { most: WEIGHT, hue: data, alpha: own ? 1 : 0.35 + 0.65 * go, label: own ? t("story.ownSlice") : undefined });
      });
    });
  },
};

export const SCENE_KEYS = Object.keys(SCENES);

/** link: the colour of the link between stages. */
export function scene(pen: Pen, size: Size, key: string, data: Perceptron, p: number, link: string): void {
  // Text has a smallest size: where the scene is small it needs more of it, which a second survey sees.
  let bounds: Bounds | undefined;
  for (let least = 0, survey = 0; survey < 2; survey++) {
    const surveyor = new Surveyor(least);
    for (const moment of [0.001, 0.5, 1]) SCENES[key](new Stage(surveyor, link), data, moment);
    bounds = surveyor.bounds;
    least = SMALLEST / new Stage(surveyor, link, size, bounds).across;
  }
  SCENES[key](new Stage(pen, link, size, bounds), data, p);
}
