// One small chart of a sweep: a metric against one control, the present point marked; a click chooses a point.

import { bisectCenter } from "d3-array";
import { scaleLinear, scaleLog } from "d3-scale";
import { line } from "d3-shape";
import { useEffect, useRef, useState } from "preact/hooks";
import type { Point } from "../api";
import { bytes, count, percent, seconds } from "../format";
import { change, reachable, setting, type Metric } from "../store";
import { t, type Key } from "../strings";

const SPELL: Record<Metric, (n: number) => string> = {
  tokens_per_second_device: count, step_seconds: seconds, eta: percent, bubble: percent, peak_bytes: bytes,
};
const HUES: Record<string, string> = { data: "var(--data)", tensor: "var(--tensor)", pipe: "var(--pipe)", microbatches: "var(--B)" };
const [HEIGHT, LEFT, RIGHT, TOP, BOTTOM] = [170, 46, 12, 14, 28];

/** The first, the last, and of the others those that do not touch a neighbour. */
function labelled(values: number[], x: (value: number) => number): number[] {
  const half = (value: number): number => String(value).length * 3 + 3;
  const clear = (a: number, b: number): boolean => x(b) - x(a) > half(a) + half(b);
  const last = values.at(-1)!;
  return values.reduce<number[]>((kept, value) => (value === last || !kept.length || (clear(kept.at(-1)!, value) && clear(value, last)) ? [...kept, value] : kept), []);
}

export function Sweep({ name, points, metric, budget, all, still }: { name: string; points: Point[]; metric: Metric; budget: number; all: Point[]; still?: boolean }) {
  const [over, setOver] = useState<number | null>(null);
  // As wide as its place, so that words are as large as elsewhere.
  const [width, setWidth] = useState(260);
  const chart = useRef<SVGSVGElement>(null);
  useEffect(() => {
    const observer = new ResizeObserver(([{ contentRect }]) => contentRect.width && setWidth(contentRect.width));
    if (chart.current) observer.observe(chart.current);
    return () => observer.disconnect();
  }, [points.length < 2]);
  if (points.length < 2) return <figure><figcaption>{t(`control.${name}` as Key)}</figcaption><p class="note">{t("perf.onePoint")}</p></figure>;
  const values = points.map((point) => point.value);
  const x = scaleLog().base(2).domain([values[0], values.at(-1)!]).range([LEFT + 6, width - RIGHT - 6]);
  // All four share one scale, but for memory and steps, which one wild point would flatten.
  const range = (metric === "peak_bytes" || metric === "step_seconds" ? points : all).map((point) => point[metric]);
  const top = Math.max(...range, metric === "peak_bytes" ? budget * 1.05 : 0);
  const y = scaleLinear().domain([0, top]).nice(4).range([HEIGHT - BOTTOM, TOP]);
  // A figure of Learn is of its own setting: the point that changes nothing.
  const now = points.findIndex((point) => (still ? Object.keys(point.change).length === 0 : point.value === setting.value[name]));
  const shown = over ?? now;
  const path = line<Point>((point) => x(point.value), (point) => y(point[metric]))(points)!;
  const spell = SPELL[metric];
  const hue = HUES[name];
  const nearest = (event: MouseEvent): number => {
    const box = (event.currentTarget as SVGElement).getBoundingClientRect();
    return bisectCenter(values.map(x), ((event.clientX - box.left) / box.width) * width);
  };
  const pick = (k: number): void => void (!still && points[k] && reachable(points[k].change) && change(points[k].change));
  const said = points[shown];
  return (
    <figure data-sweep={name}>
      <figcaption style={{ color: hue }}>
        <b>{t(`control.${name}` as Key)}</b>
        {said && <span class="num">{said.value}: {spell(said[metric])}{said.fits ? "" : ` · ${t("control.noFit")}`}</span>}
      </figcaption>
      <svg
        ref={chart} viewBox={`0 0 ${width} ${HEIGHT}`} height={HEIGHT} role="img" tabIndex={0} aria-label={points.map((point) => `${point.value}: ${spell(point[metric])}`).join(", ")}
        onPointerMove={(event) => setOver(nearest(event))} onPointerLeave={() => setOver(null)} onClick={(event) => pick(nearest(event))}
        onKeyDown={(event) => {
          const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
          if (by) setOver(Math.max(0, Math.min(points.length - 1, shown + by)));
          if (event.key === "Enter") pick(shown);
        }}
        onBlur={() => setOver(null)}
      >
        {y.ticks(4).map((tick) => (
          <g key={tick}><path class="rule" d={`M${LEFT} ${y(tick)}H${width - RIGHT}`} /><text x={LEFT - 6} y={y(tick)} text-anchor="end" dominant-baseline="central">{spell(tick).replace(/(\.\d*?)0+(?= )/, "$1").replace(/\.(?= )/, "")}</text></g>
        ))}
        {metric === "peak_bytes" && <path class="limit" d={`M${LEFT} ${y(budget)}H${width - RIGHT}`} />}
        {labelled(values, x).map((value) => (
          <text key={value} x={x(value)} y={HEIGHT - 10} text-anchor="middle">{value}</text>
        ))}
        <path class="line" d={path} stroke={hue} />
        {points.map((point, k) => (
          <circle key={point.value} cx={x(point.value)} cy={y(point[metric])} r={k === shown ? 5 : 3} class={point.fits ? "" : "unfit"}
            fill={!point.fits ? "var(--paper)" : k === now ? "var(--ink)" : hue} stroke={point.fits ? "var(--paper)" : "var(--bad)"} />
        ))}
      </svg>
    </figure>
  );
}
