/** An image file of the reader's, resized in the page to what a model reads: only its pixels are sent. */

import { address } from "./address.svelte";

/** The last image that was dropped, as two hexadecimal digits for each value (rows, columns, channels). */
export const dropped = $state({ hex: "" });

/** The image in the address, as a view asks for it: the default one, a test image, or one that was drawn or dropped. */
export function chosenImage(): { image?: number; drawn?: string } {
  // A large image is kept outside of the address, which only says that there is one.
  const drawn = address.text("drawn") === "file" ? dropped.hex : address.text("drawn");
  if (drawn) return { image: -1, drawn };
  return address.has("image") ? { image: Math.max(0, address.number("image")) } : {};
}

/** Resize an image; with a share, only that part of the centre of its shorter side is kept. */
export async function toImage(file: File, [channels, rows, columns]: [number, number, number], crop: number): Promise<string> {
  const bitmap = await createImageBitmap(file);
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [columns, rows];
  const context = canvas.getContext("2d", { willReadFrequently: true })!;
  context.imageSmoothingQuality = "high";
  // Without a share the whole image is resized; otherwise a part of the model's proportions is cut from its centre.
  const scale = (Math.min(bitmap.width, bitmap.height) * crop) / Math.min(rows, columns);
  const [width, height] = crop ? [Math.min(bitmap.width, columns * scale), Math.min(bitmap.height, rows * scale)] : [bitmap.width, bitmap.height];
  context.fillRect(0, 0, columns, rows);
  context.drawImage(bitmap, (bitmap.width - width) / 2, (bitmap.height - height) / 2, width, height, 0, 0, columns, rows);
  bitmap.close();
  const { data } = context.getImageData(0, 0, columns, rows);
  const values: number[] = [];
  for (let place = 0; place < data.length; place += 4) {
    const [red, green, blue] = data.subarray(place, place + 3);
    values.push(...(channels === 3 ? [red, green, blue] : [Math.round(0.299 * red + 0.587 * green + 0.114 * blue)]));
  }
  return values.map((value) => value.toString(16).padStart(2, "0")).join("");
}
