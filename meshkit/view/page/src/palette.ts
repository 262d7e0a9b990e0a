// Every colour of the page, once; CSS gets them as variables, drawings as values.

import { computed, effect } from "@preact/signals";
import type { LinkFacts } from "./api";
import { theme, type Theme } from "./store";

interface Palette {
  paper: string; raised: string; sunken: string; ink: string; soft: string; faint: string; line: string; hair: string;
  data: string; tensor: string; pipe: string; dataSoft: string; tensorSoft: string; pipeSoft: string;
  F: string; B: string; I: string; W: string; onF: string; onB: string; idle: string;
  nvlink: string; infiniband: string; ethernet: string;
  bad: string; good: string; focus: string; node: string; rack: string;
  memory: string[]; compute: string; bubble: string;
}

// Axes: amber, blue, teal — apart for every common colour blindness, and by their letters. Work: violets.
const PALETTES: Record<Theme, Palette> = {
  light: {
    paper: "#fbfaf8", raised: "#ffffff", sunken: "#f3f1ed", ink: "#1c1d21", soft: "#565a64", faint: "#666a75",
    line: "#d9d6cf", hair: "#ebe8e2",
    data: "#b45309", tensor: "#1d4ed8", pipe: "#0b7a66", dataSoft: "#fde9cd", tensorSoft: "#dbe6ff", pipeSoft: "#d0f0e6",
    F: "#cfc8f7", B: "#5b49c6", I: "#8374dd", W: "#38297f", onF: "#2c2166", onB: "#ffffff", idle: "#b9b5ac",
    nvlink: "#5f8a12", infiniband: "#b83280", ethernet: "#8a8f99",
    bad: "#c02626", good: "#177245", focus: "#1d4ed8", node: "#a8a498", rack: "#f0ede6",
    memory: ["#3f4a5f", "#66748f", "#97a3b8", "#c9876b", "#7c6ae0", "#d8c7a8", "#e4e1da"],
    compute: "#4a5160", bubble: "#c9c5bb",
  },
  dark: {
    paper: "#101216", raised: "#171a20", sunken: "#0b0d10", ink: "#eceae6", soft: "#a9adb8", faint: "#8b909c",
    line: "#2c313b", hair: "#222630",
    data: "#f2a541", tensor: "#7aa5ff", pipe: "#43cdb0", dataSoft: "#3d2a10", tensorSoft: "#1b2b52", pipeSoft: "#10382f",
    F: "#4a4187", B: "#9d8cff", I: "#7664dd", W: "#d3cbff", onF: "#ece8ff", onB: "#15102f", idle: "#4b505c",
    nvlink: "#a3cf4f", infiniband: "#f07bb8", ethernet: "#8f95a1",
    bad: "#ff7b72", good: "#5fd097", focus: "#7aa5ff", node: "#4d5361", rack: "#15181e",
    memory: ["#c3ccdb", "#8f9cb5", "#5f6b83", "#d08f73", "#9d8cff", "#8a7a5c", "#343944"],
    compute: "#a4abba", bubble: "#474c57",
  },
};

export const palette = computed(() => PALETTES[theme.value]);

export function paintPage(): void {
  effect(() => {
    const root = document.documentElement;
    root.dataset.theme = theme.value;
    root.style.colorScheme = theme.value;
    for (const [name, colour] of Object.entries(palette.value))
      if (typeof colour === "string") root.style.setProperty(`--${name}`, colour);
    palette.value.memory.forEach((colour, k) => root.style.setProperty(`--memory${k}`, colour));
  });
}

/** A link's line: its hue by kind, or by where it lies when the kind has none; thick by bandwidth, dashed when slow. */
export function linkLine({ name, level, bytes_per_second }: LinkFacts): { stroke: string; width: number; dash?: number[] } {
  const { nvlink, infiniband, ethernet } = palette.value;
  const stroke = /ethernet|dcn|efa|omni/i.test(name) ? ethernet : /infiniband/i.test(name) ? infiniband
    : { node: nvlink, network: infiniband }[level] ?? ethernet;
  return bytes_per_second >= 100e9 ? { stroke, width: 3 } : bytes_per_second >= 20e9 ? { stroke, width: 1.75 } : { stroke, width: 1.25, dash: [4, 3] };
}

export const kindColour = (kind: string): string => {
  const colours = palette.value;
  return { data: colours.data, tensor: colours.tensor, pipe: colours.pipe, bubble: colours.bubble }[kind] ?? colours.compute;
};

export const MEMORY = ["weights", "working copy", "moments", "gradients", "activations", "working set", "reserve"];
export const memoryColour = (kind: string): string => palette.value.memory[MEMORY.indexOf(kind)] ?? palette.value.line;
