/** An image file of the reader's, resized in the page to what a model reads: only its pixels are sent. */

/** The last image that was dropped, as two hexadecimal digits for each value (rows, columns, channels). */
export const dropped = $state({ hex: "" });

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
