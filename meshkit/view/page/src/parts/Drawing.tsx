// A canvas that fits its place, is sharp, can be pointed at, and can be saved as SVG or PNG.

import { signal } from "@preact/signals";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { CanvasPen, SvgPen, type Pen } from "../draw/pen";
import { palette } from "../palette";
import { lang } from "../store";

export interface Size { width: number; height: number }

interface Props {
  label: string;
  draw: (pen: Pen, size: Size) => void;
  height?: number;
  onPoint?: (x: number, y: number, down: boolean, size: Size) => void;
  onLeave?: () => void;
  onKey?: (event: KeyboardEvent) => void;
  /** Two fingers, or a wheel with Ctrl, around x: how much larger. */
  onZoom?: (factor: number, x: number, size: Size) => void;
  cursor?: string;
  main?: boolean;
  /** Of a drawing that shows a part of the whole: what to save of it. */
  saved?: (size: Size) => Size & { draw: Props["draw"] };
}

interface Shown extends Size { draw: Props["draw"]; label: string }

/** The drawing that "export" means: the last one shown with `main`. */
export const shown = signal<Shown | null>(null);

/** Milliseconds of the last redraw, for the tests to read. */
export const redraw = { ms: 0 };

export function Drawing({ label, draw, height, onPoint, onLeave, onKey, onZoom, cursor, main, saved }: Props) {
  const box = useRef<HTMLDivElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  void [lang.value, palette.value]; // drawings are made of them, after this is rendered
  const [size, setSize] = useState<Size>({ width: 0, height: 0 });
  const fingers = useRef(new Map<number, number>()); // that are down, and where across

  useLayoutEffect(() => {
    const measure = (): void => setSize({ width: box.current!.clientWidth, height: box.current!.clientHeight });
    const watch = new ResizeObserver(measure);
    watch.observe(box.current!);
    measure();
    return () => watch.disconnect();
  }, []);

  useEffect(() => {
    const begun = performance.now();
    const sharp = Math.min(3, devicePixelRatio || 1);
    const surface = canvas.current!;
    surface.width = Math.round(size.width * sharp);
    surface.height = Math.round(size.height * sharp);
    const context = surface.getContext("2d")!;
    context.scale(sharp, sharp);
    if (size.width < 40 || size.height < 40) return;
    draw(new CanvasPen(context), size);
    redraw.ms = performance.now() - begun;
    surface.dataset.redrawMs = redraw.ms.toFixed(1);
    if (main) shown.value = { ...size, draw, ...saved?.(size), label };
  });
  useEffect(() => () => void (main && (shown.value = null)), []);

  const point = (event: PointerEvent, down: boolean): void => {
    const at = canvas.current!.getBoundingClientRect();
    const apart = fingers.current.size === 2 && distance(fingers.current);
    if (fingers.current.has(event.pointerId)) fingers.current.set(event.pointerId, event.clientX - at.left);
    if (!apart) return onPoint?.(event.clientX - at.left, event.clientY - at.top, down, size);
    const [a, b] = fingers.current.values();
    onZoom?.(distance(fingers.current) / apart, (a + b) / 2, size);
  };
  const lift = (event: PointerEvent): void => void fingers.current.delete(event.pointerId);
  // A wheel's event can be kept from the page only by a listener that says so.
  useEffect(() => {
    if (!onZoom) return;
    const surface = canvas.current!;
    const turn = (event: WheelEvent): void => {
      if (!event.ctrlKey) return;
      event.preventDefault();
      onZoom(Math.exp(-event.deltaY / 200), event.clientX - surface.getBoundingClientRect().left, size);
    };
    surface.addEventListener("wheel", turn, { passive: false });
    return () => surface.removeEventListener("wheel", turn);
  });
  return (
    <div class="drawing" ref={box} style={height ? { height: `${height}px` } : undefined}>
      <canvas
        ref={canvas}
        role="img"
        aria-label={label}
        tabIndex={onKey ? 0 : undefined}
        style={{ cursor, touchAction: onZoom && "pan-y" }}
        onPointerMove={(event) => point(event, (event.buttons & 1) === 1)}
        onPointerDown={(event) => {
          canvas.current!.setPointerCapture(event.pointerId);
          if (onZoom) fingers.current.set(event.pointerId, event.clientX - canvas.current!.getBoundingClientRect().left);
          point(event, true);
        }}
        onPointerUp={lift}
        onPointerCancel={lift}
        onPointerLeave={onLeave}
        onKeyDown={onKey}
      />
    </div>
  );
}

const distance = (fingers: Map<number, number>): number => {
  const [a, b] = fingers.values();
  return Math.max(8, Math.abs(a - b));
};

function save(name: string, content: Blob): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(content);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

export function saveSvg(): void {
  const what = shown.value;
  if (!what) return;
  const pen = new SvgPen();
  what.draw(pen, what);
  save("meshkit.svg", new Blob([pen.file(what.width, what.height, palette.value.paper)], { type: "image/svg+xml" }));
}

export function savePng(): void {
  const what = shown.value;
  if (!what) return;
  const surface = document.createElement("canvas");
  surface.width = what.width * 2;
  surface.height = what.height * 2;
  const context = surface.getContext("2d")!;
  context.scale(2, 2);
  context.fillStyle = palette.value.paper;
  context.fillRect(0, 0, what.width, what.height);
  what.draw(new CanvasPen(context), what);
  surface.toBlob((content) => content && save("meshkit.png", content));
}

export const saveJson = (name: string, value: unknown): void =>
  save(name, new Blob([JSON.stringify(value)], { type: "application/json" }));
