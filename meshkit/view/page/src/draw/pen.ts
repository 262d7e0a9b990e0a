// One way to draw, two places to draw to: a canvas on the screen, an SVG in a file.

export interface Style {
  fill?: string; stroke?: string; width?: number; dash?: number[]; radius?: number; alpha?: number;
}
export interface TextStyle { size?: number; fill?: string; align?: "left" | "center" | "right"; weight?: number; mono?: boolean }

export interface Pen {
  rect(x: number, y: number, w: number, h: number, style: Style): void;
  path(points: [number, number][], style: Style & { closed?: boolean }): void;
  text(words: string, x: number, y: number, style?: TextStyle): void;
}

export const SANS = '"Inter Variable", system-ui, "Noto Sans CJK SC", sans-serif';
export const MONO = '"IBM Plex Mono", ui-monospace, monospace';

export class CanvasPen implements Pen {
  constructor(private to: CanvasRenderingContext2D) {}

  rect(x: number, y: number, w: number, h: number, style: Style): void {
    const to = this.to;
    if (!style.radius && !style.stroke && style.fill) {
      to.globalAlpha = style.alpha ?? 1;
      to.fillStyle = style.fill;
      to.fillRect(x, y, w, h);
      return;
    }
    to.beginPath();
    to.roundRect(x, y, Math.max(0, w), Math.max(0, h), Math.max(0, Math.min(style.radius ?? 0, w / 2, h / 2)));
    this.finish(style);
  }

  path(points: [number, number][], style: Style & { closed?: boolean }): void {
    this.to.beginPath();
    points.forEach(([x, y], k) => (k ? this.to.lineTo(x, y) : this.to.moveTo(x, y)));
    if (style.closed) this.to.closePath();
    this.finish(style);
  }

  text(words: string, x: number, y: number, style: TextStyle = {}): void {
    const to = this.to;
    to.globalAlpha = 1;
    to.font = `${style.weight ?? 400} ${style.size ?? 12}px ${style.mono ? MONO : SANS}`;
    to.fillStyle = style.fill ?? "#000";
    to.textAlign = style.align ?? "left";
    to.textBaseline = "middle";
    to.fillText(words, x, y);
  }

  private finish(style: Style): void {
    const to = this.to;
    to.globalAlpha = style.alpha ?? 1;
    if (style.fill) {
      to.fillStyle = style.fill;
      to.fill();
    }
    if (style.stroke) {
      to.strokeStyle = style.stroke;
      to.lineWidth = style.width ?? 1;
      to.setLineDash(style.dash ?? []);
      to.lineJoin = "round";
      to.stroke();
    }
  }
}

export class SvgPen implements Pen {
  private parts: string[] = [];

  rect(x: number, y: number, w: number, h: number, style: Style): void {
    this.parts.push(`<rect x="${x}" y="${y}" width="${Math.max(0, w)}" height="${Math.max(0, h)}" rx="${style.radius ?? 0}"${paint(style)}/>`);
  }

  path(points: [number, number][], style: Style & { closed?: boolean }): void {
    const d = points.map(([x, y], k) => `${k ? "L" : "M"}${x.toFixed(2)} ${y.toFixed(2)}`).join("");
    this.parts.push(`<path d="${d}${style.closed ? "Z" : ""}"${paint(style)}/>`);
  }

  text(words: string, x: number, y: number, style: TextStyle = {}): void {
    const anchor = { left: "start", center: "middle", right: "end" }[style.align ?? "left"];
    const family = (style.mono ? MONO : SANS).replaceAll('"', "'");
    const escaped = words.replaceAll("&", "&amp;").replaceAll("<", "&lt;");
    this.parts.push(
      `<text x="${x}" y="${y}" font-family="${family}" font-size="${style.size ?? 12}" font-weight="${style.weight ?? 400}" fill="${style.fill ?? "#000"}" text-anchor="${anchor}" dominant-baseline="central">${escaped}</text>`,
    );
  }

  file(width: number, height: number, paper: string): string {
    return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}" width="${width}" height="${height}"><rect width="100%" height="100%" fill="${paper}"/>${this.parts.join("")}</svg>`;
  }
}

const paint = ({ fill, stroke, width, dash, alpha }: Style): string =>
  ` fill="${fill ?? "none"}"` +
  (stroke ? ` stroke="${stroke}" stroke-width="${width ?? 1}"` : "") +
  (dash?.length ? ` stroke-dasharray="${dash.join(" ")}"` : "") +
  (alpha !== undefined && alpha !== 1 ? ` opacity="${alpha}"` : "");
