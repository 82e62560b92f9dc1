/** What a model that reads no text has as its input, and what it makes of it: as the view that shows it answers. */
import type { Packet } from "./packet";

type Question = [view: string, call: string, asked: object];

interface Seen {
  says: string;
  words: string[]; // of the input
  answers: { text: string; chance: number | null }[];
  shape: number[];
  input?: Uint8Array;
  output?: Uint8Array;
}

const MOST = 3; // answers
const BEAMS = 3;

/** The question about an image, or about the input that the view shows first. */
export function seenQuestion([view, call]: [string, string], model: string, image: object): Question {
  const more = view === "hops" ? {} : view === "reconstruct" ? { page: 0 } : view === "caption" ? { ...image, beams: BEAMS } : image;
  return [view, call, { model, ...more }];
}

export function seenIn({ words, arrays }: Packet, view: string): Seen {
  const blank = { says: "", words: [], answers: [], shape: [1, 1] };
  if (view === "hops") {
    const answers = Object.entries<number>(words.answers).sort((a, b) => b[1] - a[1]);
    return { ...blank, says: "the answer", words: [...words.sentences, words.question].map(String), answers: answers.slice(0, MOST).map(([text, chance]) => ({ text, chance })) };
  }
  if (view === "reconstruct") {
    const { data, shape } = arrays.pictures;
    const one = shape.slice(2).reduce((product, side) => product * side, 1);
    const at = (column: number) => (data as Uint8Array).subarray(column * shape[1] * one, column * shape[1] * one + one);
    return { ...blank, says: "the image again", shape: shape.slice(2), input: at(0), output: at(shape[0] - 1) };
  }
  const input = arrays.picture.data as Uint8Array;
  const found = { ...blank, shape: arrays.picture.shape, input };
  if (view === "caption") return { ...found, says: "the caption", answers: words.captions.slice(0, 1).map((one: { text: string }) => ({ text: one.text, chance: null })) };
  if (view === "paragraph") return { ...found, says: "the paragraph", answers: words.sentences.map((one: { text: string }) => ({ text: one.text, chance: null })) };
  const last = arrays.probabilities.data.subarray(-words.labels.length); // of glimpses, after the last one
  return { ...found, says: "the class", answers: words.labels.slice(0, MOST).map((text: string, place: number) => ({ text, chance: last[place] })) };
}
