/** Scales from values to pixels with marks at round values, and paths through points. */
import { rounded } from "./numbers";

export interface Scale {
  (value: number): number;
  invert(pixel: number): number;
  ticks(count: number): number[];
}
type Ends = readonly number[];

/** Equal steps of the value are equal steps on the screen. */
export function linear([low, high]: Ends, [start, end]: Ends): Scale {
  const slope = (end - start) / (high - low || 1);
  return Object.assign((value: number) => start + (value - low) * slope, {
    invert: (pixel: number) => low + (pixel - start) / slope,
    ticks: (count: number) => round(low, high, count),
  });
}

/** Equal ratios of the value are equal steps on the screen. */
export function logarithmic([low, high]: Ends, range: Ends): Scale {
  const powers = linear([Math.log10(low), Math.log10(high)], range);
  return Object.assign((value: number) => powers(Math.log10(value)), {
    invert: (pixel: number) => 10 ** powers.invert(pixel),
    ticks(count: number): number[] {
      const [first, last] = [Math.log10(low), Math.log10(high)];
      if (last - first >= count) return round(first, last, count).map((power) => 10 ** power);
      const found: number[] = [];
      for (let power = Math.floor(first); power <= last; power++) for (let digit = 1; digit < 10; digit++) found.push(Number(`${digit}e${power}`));
      const within = found.filter((value) => value >= low && value <= high);
      return 2 * within.length < count ? round(low, high, count) : within;
    },
  });
}

/** A step of 1, 2 or 5 times a power of ten, which fits about `count` times in between. */
function stepOf(low: number, high: number, count: number): number {
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const share = rough / power;
  return power * (share >= Math.sqrt(50) ? 10 : share >= Math.sqrt(10) ? 5 : share >= Math.SQRT2 ? 2 : 1);
}

function round(low: number, high: number, count: number): number[] {
  if (!(high > low)) return [low];
  const step = stepOf(low, high, count);
  const first = Math.ceil(low / step - 1e-9);
  return Array.from({ length: Math.max(0, Math.floor(high / step + 1e-9) - first + 1) }, (_, number) => rounded((first + number) * step, 12));
}

/** The ends moved outwards to round values. */
export function outwards([low, high]: Ends, count: number): [number, number] {
  let before = 0;
  for (let step = 0; high > low && (step = stepOf(low, high, count)) !== before; before = step) [low, high] = [Math.floor(low / step + 1e-9) * step, Math.ceil(high / step - 1e-9) * step];
  return [low, high];
}

/** The smallest and the largest value. */
export function extent(values: Iterable<number>): [number, number] {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) {
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return [low, high];
}

/** The index of the nearest of some ascending values. */
export function nearestIndex(values: ArrayLike<number>, to: number): number {
  let [from, end] = [0, values.length];
  while (from < end) {
    const middle = (from + end) >> 1;
    if (values[middle] < to) from = middle + 1;
    else end = middle;
  }
  return from > 0 && (from === values.length || to - values[from - 1] < values[from] - to) ? from - 1 : from;
}

/** An SVG path through points. */
export function path(points: readonly (readonly [number, number])[]): string {
  return points.map(([x, y], place) => `${place ? "L" : "M"}${Number(x.toFixed(3))},${Number(y.toFixed(3))}`).join("");
}
