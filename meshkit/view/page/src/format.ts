// Numbers as people read them.

import { format } from "d3-format";

const three = format(".3~r");

export function bytes(n: number): string {
  for (const unit of ["B", "KiB", "MiB", "GiB", "TiB"]) {
    if (Math.abs(n) < 1024 || unit === "TiB") return `${n < 10 && unit === "B" ? Math.round(n) : three(n)} ${unit}`;
    n /= 1024;
  }
  return "";
}

export const gib = (n: number): string => format(n < 100 * 2 ** 30 ? ".1f" : ".0f")(n / 2 ** 30);

export function seconds(s: number): string {
  if (s === 0) return "0";
  if (s < 1e-3) return `${three(s * 1e6)} µs`;
  if (s < 1) return `${three(s * 1e3)} ms`;
  return `${three(s)} s`;
}

export const percent = (share: number): string => share > 0 && share < 5e-4 ? "< 0.1 %" : `${format(Math.abs(share) < 0.0995 ? ".1f" : ".0f")(share * 100)} %`;

export const rate = (bytesPerSecond: number): string => `${three(bytesPerSecond / 1e9)} GB/s`;

export function count(n: number): string {
  for (const [factor, unit] of [[1e12, " T"], [1e9, " B"], [1e6, " M"]] as const)
    if (n >= factor) return three(n / factor) + unit;
  return n >= 1e4 ? `${three(n / 1e3)} k` : String(Math.round(n));
}

export const number = (n: number): string => format(",")(n);

/** A control's value; of a file's path, its name. */
export const plain = (value: number | string): string => String(value).split(/[\\/]/).at(-1)!;

export const shape = (dims: number[]): string => `[${dims.map(number).join(", ")}]`;
