/** The lines of the head view: which attention weights are drawn, the largest first, and how they are put on a canvas. */
import { kind } from "./colours";

export interface Lines {
  places: Uint32Array; // in the grid of weights, (H, T, S), the largest first
  least: number; // the smallest weight among them
  of: number; // the number of weights that could be drawn
}

export interface Paper {
  pen: CanvasRenderingContext2D;
  width: number;
  row: number; // the height of a token
  T: number;
  S: number;
  rank: Int32Array; // of each head among those that are shown
  heads: number; // that are shown
  top: number; // the first token on the paper, and the one after the last
  bottom: number;
  wide: boolean; // for few lines
}

const STEPS = 256;
const SEEN = 11; // the step of 0.002
const SHADES = 24;
const FAN = 13; // how far the heads' lines stand apart at a token

/**
 * The largest weights of some heads, at least `from` and about `most` of them; equal ones are drawn together or not at
 * all, and the largest are there even if they are small.
 */
export function largestWeights(data: ArrayLike<number>, heads: number[], queries: number[], keys: number[], T: number, S: number, most: number, from: number): Lines {
  const counts = new Uint32Array(STEPS);
  const steps = new Uint8Array(heads.length * queries.length * keys.length);
  let of = 0;
  let at = 0;
  for (let h = 0; h < heads.length; h++)
    for (let q = 0; q < queries.length; q++) {
      const row = (heads[h] * T + queries[q]) * S;
      for (let k = 0; k < keys.length; k++) {
        const weight = data[row + keys[k]];
        if (weight > 0) of++;
        // There are many small weights, so their bins are finer. The smallest would be invisible.
        const step = weight < 1 ? Math.floor(Math.sqrt(weight) * STEPS) : STEPS - 1;
        steps[at++] = step;
        counts[step]++;
      }
    }
  let lowest = STEPS;
  let total = 0;
  const bound = Math.max(SEEN, Math.floor(Math.sqrt(from) * STEPS));
  while (lowest > (total === 0 ? SEEN : bound) && (total === 0 || total + counts[lowest - 1] <= most)) total += counts[--lowest];
  const starts = new Uint32Array(STEPS);
  for (let step = STEPS - 1, sum = 0; step >= lowest; step--) {
    starts[step] = sum;
    sum += counts[step];
  }
  const places = new Uint32Array(total);
  let least = 1;
  at = 0;
  for (let h = 0; h < heads.length; h++)
    for (let q = 0; q < queries.length; q++) {
      const row = (heads[h] * T + queries[q]) * S;
      for (let k = 0; k < keys.length; k++) {
        const step = steps[at++];
        if (step < lowest) continue;
        const place = row + keys[k];
        places[starts[step]++] = place;
        if (data[place] < least) least = data[place];
      }
    }
  return { places, least, of };
}

/** Draw the next `count` lines beneath the others; returns the index of the first that is not drawn yet. */
export function paint(paper: Paper, data: ArrayLike<number>, lines: Lines, from: number, count: number): number {
  const { pen, T, S, row, width, rank, heads, top, bottom, wide } = paper;
  const paths = new Map<number, Path2D>();
  const gap = heads > 1 ? Math.min(FAN / (heads - 1), 4) : 0;
  let at = from;
  for (let left = count; left > 0 && at < lines.places.length; at++) {
    const place = lines.places[at];
    const key = place % S;
    const query = ((place - key) / S) % T;
    if (Math.max(query, key) < top || Math.min(query, key) > bottom) continue;
    left--;
    const head = (place - key - query * S) / (S * T);
    const shade = Math.min(SHADES - 1, Math.floor(Math.sqrt(data[place]) * SHADES));
    let path = paths.get(shade * 1024 + head);
    if (!path) paths.set(shade * 1024 + head, (path = new Path2D()));
    const beside = (rank[head] - (heads - 1) / 2) * gap;
    path.moveTo(0, (query - top + 0.5) * row + beside);
    path.lineTo(width, (key - top + 0.5) * row + beside);
  }
  pen.globalCompositeOperation = "destination-over";
  for (const [name, path] of [...paths].sort(([a], [b]) => b - a)) {
    const share = ((Math.floor(name / 1024) + 0.5) / SHADES) ** 2;
    pen.strokeStyle = kind(name % 1024);
    pen.globalAlpha = Math.min(1, (wide ? 0.25 : 0.05) + share ** 0.8);
    pen.lineWidth = wide ? 1.2 + 2.2 * share : 0.9 + 0.9 * share;
    pen.stroke(path);
  }
  pen.globalAlpha = 1;
  return at;
}

/** A cleared canvas of a size in CSS pixels. */
export function clearCanvas(canvas: HTMLCanvasElement, width: number, height: number): CanvasRenderingContext2D {
  const dots = Math.min(devicePixelRatio || 1, Math.max(1, 16000 / height));
  const size = [Math.round(width * dots), Math.round(height * dots)];
  const pen = canvas.getContext("2d")!;
  if (canvas.width !== size[0] || canvas.height !== size[1]) [canvas.width, canvas.height] = size;
  pen.setTransform(1, 0, 0, 1, 0, 0);
  pen.clearRect(0, 0, size[0], size[1]);
  pen.setTransform(dots, 0, 0, dots, 0, 0);
  return pen;
}
