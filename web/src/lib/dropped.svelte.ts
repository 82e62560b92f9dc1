/** An image file of the reader's: the server resizes it to what a model reads, as it does for `heedful classify`. */

import type { Address } from "./address.svelte";
import { RequestError, upload } from "./ask";

const LONGEST = 9_000_000; // bytes of a file

/** The last image that was dropped in each pane, as two hexadecimal digits for each value (rows, columns, channels). */
export const dropped = $state<Record<string, string>>({});

/** The image in the address, as a view asks for it: the default one, a test image, or one that was drawn or dropped. */
export function chosenImage(address: Address): { image?: number; drawn?: string } {
  // A large image is kept outside of the address, which only says that there is one.
  const drawn = address.text("drawn") === "file" ? (dropped[address.pane] ?? "") : address.text("drawn");
  if (drawn) return { image: -1, drawn };
  return address.has("image") ? { image: Math.max(0, address.number("image")) } : {};
}

/** The pixels of a file in the size of the model's images. */
export async function toImage(file: File, view: string, model: string): Promise<string> {
  if (file.size > LONGEST) throw new RequestError(`this file has more than ${LONGEST / 1e6} MB`);
  const url = await new Promise<string>((done, failed) => {
    const reader = new FileReader();
    reader.onload = () => done(reader.result as string);
    reader.onerror = () => failed(new RequestError("this file cannot be read"));
    reader.readAsDataURL(file);
  });
  return (await upload(view, { model, file: url.slice(url.indexOf(",") + 1) })).words.drawn;
}
