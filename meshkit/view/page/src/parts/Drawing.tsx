// A canvas that fits its place, is sharp, can be pointed at, and can be saved as SVG or PNG.

import { signal } from "@preact/signals";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { CanvasPen, SvgPen, type Pen } from "../draw/pen";
import { palette } from "../palette";

export interface Size { width: number; height: number }

interface Props {
  label: string;
  draw: (pen: Pen, size: Size) => void;
  height?: number;
  onPoint?: (x: number, y: number, down: boolean, size: Size) => void;
  onLeave?: () => void;
  onKey?: (event: KeyboardEvent) => void;
  cursor?: string;
  main?: boolean;
}

interface Shown extends Size { draw: Props["draw"]; label: string }

/** The drawing that "export" means: the last one shown with `main`. */
export const shown = signal<Shown | null>(null);

/** Milliseconds of the last redraw, for the tests to read. */
export const redraw = { ms: 0 };

export function Drawing({ label, draw, height, onPoint, onLeave, onKey, cursor, main }: Props) {
  const box = useRef<HTMLDivElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const [size, setSize] = useState<Size>({ width: 0, height: 0 });

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
    if (main) shown.value = { ...size, draw, label };
  });
  useEffect(() => () => void (main && (shown.value = null)), []);

  const point = (event: PointerEvent, down: boolean): void => {
    const at = canvas.current!.getBoundingClientRect();
    onPoint?.(event.clientX - at.left, event.clientY - at.top, down, size);
  };
  return (
    <div class="drawing" ref={box} style={height ? { height: `${height}px` } : undefined}>
      <canvas
        ref={canvas}
        role="img"
        aria-label={label}
        tabIndex={onKey ? 0 : undefined}
        style={{ cursor }}
        onPointerMove={(event) => point(event, (event.buttons & 1) === 1)}
        onPointerDown={(event) => {
          canvas.current!.setPointerCapture(event.pointerId);
          point(event, true);
        }}
        onPointerLeave={onLeave}
        onKeyDown={onKey}
      />
    </div>
  );
}

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
