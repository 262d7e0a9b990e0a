// Stages over time, the cursor, and what is stored at it; two schedules one over the other.

import { useEffect, useState } from "preact/hooks";
import { boot, toQuery, type Overview, type Table } from "../api";
import { axis, CAUSES, gantt, KINDS, kindFill, pitchOf, rowsOf, scale, total, when, type Frame } from "../draw/gantt";
import { measured, measuredAt, measuredHeight, measuredOf } from "../draw/measured";
import { spotAt, trail, type Spot } from "../draw/path";
import type { Pen } from "../draw/pen";
import { percent, plain, seconds } from "../format";
import { palette } from "../palette";
import { refused } from "../parts/Control";
import { Drawing, type Size } from "../parts/Drawing";
import { Player } from "../parts/Player";
import { against, clock, CLOCKS, cursor, query, setting, unfolded, unmeasured, usePart } from "../store";
import { t, type Key } from "../strings";

export const recorded = boot.measured && measuredOf(boot.measured.traceEvents);
const LEFT = 84;
const RIGHT = 20;
const TITLE = 58; // height of a schedule's heading and axis
const NARROWEST = 15; // pixels of a tick in which its microbatch can be read
const CLOSEST = 8; // times larger than that
const MOST_SAVED = 12; // times as wide as on the screen: browsers bound a picture's size

/** The setting of the other schedule, when one is compared. */
export function useOther(overview: Overview): Table | null {
  const choice = overview.choices.schedule.find((one) => one.value === against.value && one.value !== overview.setting.schedule && !refused(one));
  const { data, stale } = usePart("schedule", choice ? toQuery({ ...setting.value, ...choice.change }) : query.value);
  return choice && !stale ? data : null;
}

/** Where the cursor's tick begins on a clock. */
export const timeOf = (table: Table, tick: number): number =>
  clock.value === "ticks" ? tick : clock.value === "ms" ? table.tick_ms[tick] : (tick / table.ticks) * table.free_ms;

/** The schedule that the cursor's ticks are of: the one that ends last. */
export const leading = (table: Table, other: Table | null): Table =>
  other && total(other, clock.value) > total(table, clock.value) ? other : table;

/** The tick that goes on at a time of a clock; after a schedule's end, its last. */
export function tickAt(table: Table, time: number): number {
  const tick = clock.value === "ticks" ? Math.floor(time) : clock.value === "ms" ? table.tick_ms.findLastIndex((start) => start <= time) : Math.floor((time / total(table, clock.value)) * table.ticks);
  return Math.max(0, Math.min(table.ticks - 1, tick));
}

export function State({ overview }: { overview: Overview }) {
  const { data: table } = usePart("schedule");
  const other = useOther(overview);
  const [width, setWidth] = useState(800);
  const [from, setFrom] = useState(0);
  const [zoom, setZoom] = useState(1);
  const [hover, setHover] = useState<{ words: string; stage: number; x: number; y: number; spot?: Spot; table?: Table } | null>(null);
  const lead = table && leading(table, other);
  const longest = lead ? total(lead, clock.value) : 1;
  const perTick = lead ? longest / lead.ticks : 1;
  const readable = ((width - LEFT - RIGHT) / NARROWEST) * perTick;
  const span = Math.min(longest, readable / zoom);
  const at = lead ? Math.min(cursor.value, lead.ticks - 1) : 0;
  const now = lead ? timeOf(lead, at) : 0;
  // The window follows the cursor when it would leave it.
  useEffect(() => {
    if (now < from) setFrom(Math.max(0, now - span * 0.1));
    else if (now + perTick > from + span) setFrom(Math.max(0, Math.min(longest - span, now - span * 0.5)));
  }, [now, width, longest]);
  useEffect(() => {
    if (from + span > longest) setFrom(Math.max(0, longest - span));
  }, [span, longest]);
  /** Larger around x: from the whole schedule to CLOSEST. */
  const enlarge = (factor: number, x: number, size: Size): void => {
    const larger = Math.max(Math.min(1, readable / longest), Math.min(CLOSEST, zoom * factor));
    const next = Math.min(longest, readable / larger);
    const share = Math.max(0, Math.min(1, (x - LEFT) / (size.width - LEFT - RIGHT)));
    setFrom(Math.max(0, Math.min(longest - next, from + share * (span - next))));
    setZoom(larger);
  };
  if (!table || !lead) return <p class="loading">{t("frame.loading")}</p>;

  const shownTables = other ? [table, other] : [table];
  const most = Math.max(1, ...shownTables.flatMap((one) => one.in_flight.map((row) => Math.max(...row))));
  const below = unmeasured.value ? null : recorded;
  type Window = Pick<Frame, "from" | "to">;
  const seen: Window = { from, to: from + span };
  const frames = (size: Size, window = seen): Frame[] => {
    const rows = shownTables.reduce((n, one) => n + one.stages, 0);
    const room = size.height - 40 - TITLE * (shownTables.length + (below ? 1 : 0));
    const peers = unfolded.value ? Number(overview.setting.tensor) : 1;
    const pitch = Math.max(14, Math.min(240, room / (rows + (below ? below.devices.length * 0.7 : 0))));
    const rowHeight = Math.max(peers > 1 ? 7 : 8, Math.min(80, (pitch * (peers > 1 ? 0.8 : 0.6)) / peers));
    const areaHeight = Math.max(0, Math.min(144, pitch - rowHeight * peers - 8));
    const frame = { x: LEFT, y: 0, width: size.width - LEFT - RIGHT, ...window, rowHeight, areaHeight, peers };
    let y = TITLE;
    return shownTables.map((one) => {
      const mine = { ...frame, y };
      y += one.stages * pitchOf(frame) + TITLE;
      return mine;
    });
  };
  const measuredFrame = (size: Size, window = seen): Frame => {
    const last = frames(size, window).at(-1)!;
    const y = last.y + shownTables.at(-1)!.stages * pitchOf(last) + TITLE;
    return { ...last, y, rowHeight: Math.min(last.rowHeight, Math.max(8, (size.height - y - 34) / below!.devices.length - 8)) };
  };
  const draw = (pen: Pen, size: Size): void => {
    if (size.width !== width) queueMicrotask(() => setWidth(size.width));
    paint(pen, size, seen);
  };
  const saved = (size: Size) => {
    const all = { from: 0, to: longest };
    const width = LEFT + RIGHT + (size.width - LEFT - RIGHT) * Math.min(MOST_SAVED, Math.max(1, longest / span));
    return { width: Math.round(width), height: size.height, draw: (pen: Pen, size: Size) => paint(pen, size, all) };
  };
  const paint = (pen: Pen, size: Size, window: Window): void => {
    const placed = frames(size, window);
    shownTables.forEach((one, k) => {
      const frame = placed[k];
      title(pen, one, frame);
      gantt(pen, one, clock.value, frame, most);
      if (hover?.table === one && hover.spot!.action >= 0) trail(pen, one, clock.value, frame, hover.spot!.action);
    });
    cursorLine(pen, placed, lead, at, most);
    const bottom = placed.at(-1)!;
    if (below) {
      const frame = measuredFrame(size, window);
      pen.text(t("state.measured"), frame.x, frame.y - 40, { size: 14, weight: 600, fill: palette.value.ink });
      const whose = t("state.ofTheRun", { mesh: below.mesh, time: seconds((below.to - below.from) / 1e3) });
      pen.text(whose, frame.x + frame.width, frame.y - 40, { size: 12, align: "right", fill: palette.value.soft });
      axis(pen, "ms", { ...frame, from: 0, to: below.to - below.from }, frame.y - 12);
      measured(pen, below, frame);
      if (frame.y + measuredHeight(below, frame) > size.height - 30) return;
    }
    overviewStrip(pen, table, size, { ...bottom, from: 0, to: longest }, window.from, window.to);
  };
  const seek = (x: number, size: Size, y: number): void => {
    const strip = y > size.height - 30;
    const frame = frames(size)[0];
    const [a, b] = strip ? [0, longest] : [frame.from, frame.to];
    const time = a + ((x - LEFT) / frame.width) * (b - a);
    cursor.value = tickAt(lead, time);
  };
  const label = `${t("state.tick")} ${at + 1}/${lead.ticks}${clock.value === "ticks" ? "" : ` · ${seconds(now / 1e3)}`}`;
  return (
    <>
      <div class="toolbar">
        <div class="segmented" role="group">
          {CLOCKS.map((one) => (
            <button key={one} data-clock={one} aria-pressed={clock.value === one} onClick={() => { clock.value = one; setFrom(0); }}>{t(`state.${one}` as Key)}</button>
          ))}
        </div>
        <label class="pick">
          {t("state.compare")}
          <select value={against.value} onChange={(event) => (against.value = event.currentTarget.value)} data-compare>
            <option value="">{t("state.nothing")}</option>
            {overview.choices.schedule.filter((one) => one.value !== overview.setting.schedule).map((one) => (
              <option key={one.value} value={one.value} disabled={!!refused(one)} title={refused(one)}>{plain(one.value)}</option>
            ))}
          </select>
        </label>
        {Number(overview.setting.tensor) > 1 && <label class="pick"><input type="checkbox" checked={unfolded.value} onChange={(event) => (unfolded.value = event.currentTarget.checked)} data-unfold />{t("state.unfold")}</label>}
        {recorded && <label class="pick"><input type="checkbox" checked={!unmeasured.value} onChange={(event) => (unmeasured.value = !event.currentTarget.checked)} data-measured />{t("state.measured")}</label>}
        <ul class="legend">
          {table.kinds.map((kind) => <li key={kind}><i style={{ background: kindFill(kind) }} />{t(`state.legend.${kind}` as Key)}</li>)}
          {table.tensor_share.F > 0 && <li><i class="strip" />{t("kind.tensor")}</li>}
          <li><i class="dotted" />{t("state.idle")}</li>
          <li><i class="area" />{t("state.inFlight")}</li>
          {below && (<><li><i class="hop" />{t("state.hop")}</li><li><i class="ends" />{t("state.ends")}</li><li><i class="rest" />{t("state.rest")}</li></>)}
        </ul>
      </div>
      <Drawing
        main
        label={t("state.drawing")}
        draw={draw}
        saved={saved}
        cursor="ew-resize"
        onPoint={(x, y, down, size) => {
          if (down) seek(x, size, y);
          const found = frames(size).map((frame, k) => ({ spot: spotAt(shownTables[k], clock.value, frame, x, y), table: shownTables[k] })).find(({ spot }) => spot);
          const real = !found && below ? measuredAt(below, measuredFrame(size), x, y) : null;
          setHover(
            found ? { ...found, spot: found.spot!, stage: found.spot!.stage, words: told(found.spot!, found.table), x, y }
              : real && { stage: real.stage, words: `${real.span.name} · ${seconds(real.span.dur / 1e6)}`, x, y },
          );
        }}
        onLeave={() => setHover(null)}
        onZoom={enlarge}
        onKey={(event) => {
          const by = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10 }[event.key];
          const larger = { "+": 1.25, "=": 1.25, "-": 0.8 }[event.key];
          if (larger) enlarge(larger, LEFT + ((now - from) / span) * (width - LEFT - RIGHT), { width, height: 0 });
          if (!by) return;
          event.preventDefault();
          cursor.value = Math.max(0, Math.min(lead.ticks - 1, at + by));
        }}
      />
      {hover && <Tip {...hover} width={width} />}
      <Player at={at} last={lead.ticks - 1} onMove={(to) => (cursor.value = to)} label={label} pace={4} />
    </>
  );
}

/** What an action, or an idle span, is. */
function told(spot: Spot, table: Table): string {
  const a = table.actions;
  const lasts = clock.value === "ticks" ? "" : ` · ${seconds((spot.to - spot.from) / 1e3)}`;
  if (spot.action < 0) return t(`cause.${CAUSES[spot.cause]}` as Key) + lasts;
  const chunk = table.chunks > 1 ? `, ${t("state.chunk", { n: a.chunk[spot.action] })}` : "";
  return t(`state.${KINDS[a.kind[spot.action]]}` as Key, { n: a.microbatch[spot.action] }) + chunk + lasts;
}

function Tip({ stage, words, x, y, width }: { stage: number; words: string; x: number; y: number; width: number }) {
  return (
    <div class="tip" role="tooltip" style={{ left: `${Math.max(8, Math.min(x + 14, width - 260))}px`, top: `${y + 64}px` }}>
      <b class="pipe">{t("state.stage", { n: stage })}</b> {words}
    </div>
  );
}

function title(pen: Pen, table: Table, frame: Frame): void {
  const colours = palette.value;
  const free = clock.value === "free";
  const time = free ? table.free_ms : table.tick_ms[table.ticks];
  pen.text(plain(table.name), frame.x, frame.y - 40, { size: 14, weight: 600, fill: colours.ink });
  pen.text(
    `${t("state.total", { ticks: table.ticks, time: seconds(time / 1e3) })} · ${t("state.bubble", { share: percent(free ? table.free_bubble : table.bubble) })}`,
    frame.x + frame.width, frame.y - 40, { size: 12, align: "right", fill: colours.soft },
  );
  axis(pen, clock.value, frame, frame.y - 12);
}

function cursorLine(pen: Pen, frames: Frame[], table: Table, at: number, most: number): void {
  const colours = palette.value;
  const frame = frames[0];
  const x = scale(frame);
  const [a, b] = [x(timeOf(table, at)), x(timeOf(table, at + 1))];
  if (b < frame.x || a > frame.x + frame.width) return;
  const last = frames.at(-1)!;
  const kept = Math.max(...table.in_flight.map((row) => row.at(-1)!)); // of the last stage: its area ends there
  const bottom = rowsOf(last, table.stages - 1).at(-1)! + last.rowHeight + 8 + (clock.value === "free" ? 0 : (last.areaHeight * kept) / most);
  pen.rect(a, frame.y - 6, Math.max(1, b - a), bottom - frame.y, { fill: colours.ink, alpha: 0.09 });
  pen.path([[a, frame.y - 6], [a, bottom - 6]], { stroke: colours.ink, width: 1.5 });
  pen.path([[a - 5, frame.y - 12], [a + 5, frame.y - 12], [a, frame.y - 5]], { fill: colours.ink, closed: true });
}

/** The whole schedule in a line, the part above framed. */
function overviewStrip(pen: Pen, table: Table, size: Size, frame: Frame, from: number, to: number): void {
  if (to - from >= frame.to * 0.999) return;
  const colours = palette.value;
  const x = scale(frame);
  const y = size.height - 22;
  const each = 12 / table.stages;
  pen.rect(frame.x, y, frame.width, 12, { fill: colours.sunken });
  for (let k = 0; k < table.actions.tick.length; k++) {
    const [a, b] = when(table, clock.value, k);
    pen.rect(x(a), y + table.actions.stage[k] * each, Math.max(0.5, x(b) - x(a)), each, { fill: kindFill(KINDS[table.actions.kind[k]]), alpha: 0.7 });
  }
  pen.rect(x(from), y - 3, x(to) - x(from), 18, { stroke: colours.ink, width: 1.5, radius: 3 });
}
