// Play, step, speed, scrub: one control for everything that runs.

import { useEffect, useRef, useState } from "preact/hooks";
import { still } from "../store";
import { t } from "../strings";

interface Props {
  at: number;
  last: number;
  onMove: (at: number) => void;
  label: string;
  /** Steps a second at speed 1. */
  pace?: number;
  /** Steps that "step forward" and "back" take. */
  jump?: number;
}

const SPEEDS = [0.5, 1, 2, 4];

export function Player({ at, last, onMove, label, pace = 3, jump = 1 }: Props) {
  const [playing, setPlaying] = useState(false);
  const [speed, setSpeed] = useState(1);
  const due = useRef(0); // when the present step was to be shown
  useEffect(() => {
    if (!playing) return;
    const each = 1000 / (pace * speed);
    const timer = setTimeout(() => {
      if (at >= last) return setPlaying(false);
      // A slow machine leaves steps out instead of taking longer.
      const steps = Math.max(1, Math.floor((performance.now() - due.current) / each));
      due.current += steps * each;
      onMove(Math.min(last, at + steps));
    }, Math.max(0, due.current + each - performance.now()));
    return () => clearTimeout(timer);
  }, [playing, speed, at, last]);
  const toggle = (): void => {
    if (!playing && at >= last) onMove(0);
    due.current = performance.now();
    setPlaying(!playing);
  };
  useEffect(() => {
    const press = (event: KeyboardEvent): void => {
      const typing = (event.target as HTMLElement).closest("input, select, button, a, [role=listbox], [role=option]");
      if (event.key === " " && !typing) {
        event.preventDefault();
        toggle();
      }
    };
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  });
  const move = (to: number): void => {
    setPlaying(false);
    onMove(Math.max(0, Math.min(last, to)));
  };
  return (
    <div class="player" role="group" aria-label={t("play.position")}>
      <button class="icon" title={t("play.start")} aria-label={t("play.start")} onClick={() => move(0)}><Icon d="M4 3v10M13 3 6 8l7 5z" /></button>
      <button class="icon" title={t("play.back")} aria-label={t("play.back")} onClick={() => move((Math.ceil(at / jump) - 1) * jump)}><Icon d="M11 3 4 8l7 5z" /></button>
      <button class="icon main" title={t(playing ? "play.pause" : "play.play")} aria-label={t(playing ? "play.pause" : "play.play")} onClick={toggle}>
        <Icon d={playing ? "M4 3h3v10H4zM9 3h3v10H9z" : "M4 2.5 13 8l-9 5.5z"} />
      </button>
      <button class="icon" title={t("play.forward")} aria-label={t("play.forward")} onClick={() => move((Math.floor(at / jump) + 1) * jump)}><Icon d="m5 3 7 5-7 5z" /></button>
      <output class="num">{label}</output>
      <input
        type="range" min={0} max={last} value={at} aria-label={t("play.position")} aria-valuetext={label}
        style={{ "--share": `${last ? (at / last) * 100 : 0}%` }}
        onInput={(event) => move(Number(event.currentTarget.value))}
      />
      <button class="quiet num" title={t("play.speed")} aria-label={`${t("play.speed")} ×${speed}`} disabled={still.matches}
        onClick={() => { due.current = performance.now(); setSpeed(SPEEDS[(SPEEDS.indexOf(speed) + 1) % SPEEDS.length]); }}>×{speed}</button>
    </div>
  );
}

export const Icon = ({ d }: { d: string }) => (
  <svg width="16" height="16" viewBox="0 0 16 16" aria-hidden="true"><path d={d} fill="currentColor" stroke="currentColor" stroke-width="1.2" stroke-linejoin="round" /></svg>
);
