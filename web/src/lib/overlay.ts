/** Attention weights over an image: bright where a word attends to, dark elsewhere. See `plots/caption_grid.py`. */
import type { Grid } from "./packet";

const DARK = 0.7; // how much darker the places are that no word attends to

/** Where each of `length` pixels lies between the centres of `count` places: the lower one, and the share of the next. */
function between(length: number, count: number): [low: number, high: number, share: number][] {
  return Array.from({ length }, (_, pixel) => {
    const at = Math.max(0, Math.min(count - 1, ((pixel + 0.5) * count) / length - 0.5));
    const low = Math.floor(at);
    return [low, Math.min(low + 1, count - 1), at - low];
  });
}

/** Weights of a grid on the pixels of an image, from 0 to 1: bilinear between the places' centres. */
export function upsample(weights: ArrayLike<number>, [down, across]: number[], rows: number, columns: number): Float64Array {
  const found = new Float64Array(rows * columns);
  const sides = between(columns, across);
  let highest = 0;
  between(rows, down).forEach(([above, below, lower], row) => {
    sides.forEach(([left, right, share], column) => {
      const top = weights[above * across + left] * (1 - lower) + weights[below * across + left] * lower;
      const next = weights[above * across + right] * (1 - lower) + weights[below * across + right] * lower;
      const value = top * (1 - share) + next * share;
      found[row * columns + column] = value;
      if (value > highest) highest = value;
    });
  });
  return highest > 0 ? found.map((value) => value / highest) : found;
}

/** The pixels of a picture, each drawn as `scale` x `scale` ones, dark where the weights are low. */
export function overlaid(picture: Grid, scale: number, weights: ArrayLike<number> | undefined, grid: number[]): ImageData {
  const [rows, columns, colours = 1] = picture.shape;
  const [high, wide] = [rows * scale, columns * scale];
  const image = new ImageData(wide, high);
  const light = weights ? upsample(weights, grid, high, wide) : undefined;
  for (let row = 0; row < high; row++) {
    for (let column = 0; column < wide; column++) {
      const place = row * wide + column;
      const from = (Math.floor(row / scale) * columns + Math.floor(column / scale)) * colours;
      const share = light ? 1 - DARK + DARK * light[place] : 1;
      for (let part = 0; part < 3; part++) image.data[place * 4 + part] = Math.floor(picture.data[from + (colours === 3 ? part : 0)] * share + 0.5);
      image.data[place * 4 + 3] = 255;
    }
  }
  return image;
}
