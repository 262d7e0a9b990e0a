// A control over Python's choices: the value, one step to each side, all values in a list, the reason at each that is
// not legal. A number can also be dragged.

import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import type { AxisName, Choice } from "../api";
import { plain } from "../format";
import { change, reachable, setting } from "../store";
import { said, t, type Key } from "../strings";

interface Props { name: string; choices: Choice[]; axis?: AxisName; wide?: boolean }

/** Why a choice cannot be made here; "" when it can. */
export const refused = ({ change, reason }: Choice): string =>
  reason ? said(reason) : reachable(change) ? "" : t("frame.notHere");

const PIXELS_A_STEP = 18;

export function Control({ name, choices, axis, wide }: Props) {
  const [open, setOpen] = useState(false);
  const box = useRef<HTMLDivElement>(null);
  const now = choices.findIndex((choice) => choice.value === setting.value[name]);
  const label = t(`control.${name}` as Key);
  const step = (by: 1 | -1): Choice | undefined => {
    for (let k = now + by; k >= 0 && k < choices.length; k += by) if (!refused(choices[k])) return choices[k];
  };
  const go = (choice?: Choice): void => void (choice && change(choice.change));
  useEffect(() => {
    if (!open) return;
    const away = (event: PointerEvent): void => void (!box.current!.contains(event.target as Node) && setOpen(false));
    addEventListener("pointerdown", away);
    box.current!.querySelector<HTMLElement>("[aria-selected=true]")?.focus();
    return () => removeEventListener("pointerdown", away);
  }, [open]);

  const drag = useRef<{ x: number; moved: boolean } | null>(null);
  const onMove = (event: PointerEvent): void => {
    if (!drag.current || !(event.buttons & 1)) return;
    const far = event.clientX - drag.current.x;
    if (Math.abs(far) < PIXELS_A_STEP) return;
    drag.current = { x: event.clientX, moved: true };
    go(step(far > 0 ? 1 : -1));
  };
  const onKey = (event: KeyboardEvent): void => {
    const by = { ArrowUp: 1, ArrowRight: 1, ArrowDown: -1, ArrowLeft: -1 }[event.key] as 1 | -1 | undefined;
    if (!by || open) return;
    event.preventDefault();
    go(step(by));
  };
  return (
    <div class={`control ${wide ? "wide" : ""}`} ref={box} data-control={name} style={axis ? { "--hue": `var(--${axis})` } : undefined}>
      <span class="label" id={`label-${name}`}>{axis && <b>{name[0].toUpperCase()}</b>} {label}</span>
      <span class="stepper">
        {!wide && <button class="icon" aria-label={t("control.fewer", { what: label })} disabled={!step(-1)} onClick={() => go(step(-1))}>−</button>}
        <button
          class="value" id={`value-${name}`} aria-haspopup="listbox" aria-expanded={open} aria-labelledby={`label-${name} value-${name}`} title={t("control.drag")}
          onClick={() => {
            if (!drag.current?.moved) setOpen(!open);
            drag.current = null;
          }}
          onPointerDown={(event) => {
            event.currentTarget.setPointerCapture(event.pointerId);
            drag.current = { x: event.clientX, moved: false };
          }}
          onPointerMove={onMove}
          onKeyDown={onKey}
        >{plain(setting.value[name])}</button>
        {!wide && <button class="icon" aria-label={t("control.more", { what: label })} disabled={!step(1)} onClick={() => go(step(1))}>+</button>}
      </span>
      {open && <Options name={name} choices={choices} now={now} close={() => setOpen(false)} pick={go} />}
    </div>
  );
}

const [WIDTH, MARGIN] = [248, 8];

function Options({ name, choices, now, close, pick }: { name: string; choices: Choice[]; now: number; close: () => void; pick: (choice: Choice) => void }) {
  const list = useRef<HTMLDivElement>(null);
  // Below its control, or above where there is more room; panels scroll, so it hangs from the window.
  useLayoutEffect(() => {
    const { top, bottom, right } = list.current!.parentElement!.getBoundingClientRect();
    const style = list.current!.style;
    const below = innerHeight - bottom - MARGIN;
    style.left = `${Math.max(MARGIN, right - WIDTH)}px`;
    style.maxHeight = `${Math.min(320, Math.max(below, top - MARGIN))}px`;
    if (below < Math.min(320, list.current!.scrollHeight) && top > below) style.bottom = `${innerHeight - top}px`;
    else style.top = `${bottom}px`;
  }, []);
  const move = (event: KeyboardEvent): void => {
    const list = [...(event.currentTarget as HTMLElement).children] as HTMLElement[];
    const at = list.indexOf(document.activeElement as HTMLElement);
    if (event.key === "Escape") {
      close();
      document.getElementById(`value-${name}`)?.focus();
    }
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: list.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    list[Math.max(0, Math.min(list.length - 1, to))].focus();
  };
  return (
    <div class="options" ref={list} role="listbox" aria-labelledby={`label-${name}`} onKeyDown={move}>
      {choices.map((choice, k) => {
        const why = refused(choice);
        const others = Object.entries(choice.change).filter(([other]) => other !== name);
        const take = (): void => {
          if (why) return;
          pick(choice);
          close();
        };
        return (
          <div
            role="option" key={choice.value} tabIndex={-1} aria-selected={k === now} aria-disabled={!!why} class={why ? "refused" : ""} data-value={choice.value}
            onClick={take} onKeyDown={(event) => (event.key === "Enter" || event.key === " ") && (event.preventDefault(), take())}
          >
            <span class="num" title={String(choice.value)}>{plain(choice.value)}</span>
            {why ? <small>{why}</small> : (
              <small>
                {others.length > 0 && t("control.also", { what: others.map(([key, value]) => `${key} ${plain(value)}`).join(", ") })}
                {!choice.fits && <em> {t("control.noFit")}</em>}
              </small>
            )}
          </div>
        );
      })}
    </div>
  );
}
