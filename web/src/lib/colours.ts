/** Colour-blind safe colours: Okabe and Ito's for categories, one hue growing darker for amounts. */
import { theme } from "./theme.svelte";

const KINDS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6d31", "#6a51a3", "#b2182b", "#4d9221", "#35978f", "#737373"];
// The same hues, lighter: each has a contrast of at least 4.5 with a dark figure.
const DARK_KINDS = ["#3b8fd0", "#ee7d3b", "#1fb68b", "#d98bb8", "#f0b43c", "#86ccf5", "#b8954f", "#a08be0", "#e4525c", "#79b84a", "#5cc4b8", "#a6a6a6"];

/** The colour of one of several heads, classes or runs. */
export function kind(number: number): string {
  return (theme.dark ? DARK_KINDS : KINDS)[number % KINDS.length];
}

export type Colour = [number, number, number];

/** Black or white text, whichever can be read on a colour: one of them has a contrast of at least 4.5. */
export function textColour(colour: string | Colour): string {
  const [red, green, blue] = (typeof colour === "string" ? colour.match(/\w\w/g)!.map((part) => parseInt(part, 16)) : colour).map((part) =>
    part / 255 <= 0.04045 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4,
  );
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 ? "black" : "white";
}

const LIGHT: Colour[] = [[247, 250, 252], [198, 219, 239], [107, 174, 214], [33, 113, 181], [8, 48, 107]];
const DARK: Colour[] = [[22, 27, 34], [18, 58, 92], [28, 104, 156], [86, 169, 219], [214, 238, 253]];
// From minus one over zero to one: orange, paper, blue.
const LIGHT_BOTH: Colour[] = [[127, 59, 8], [230, 145, 56], [250, 250, 248], [84, 158, 205], [5, 48, 97]];
const DARK_BOTH: Colour[] = [[255, 190, 110], [176, 96, 22], [24, 28, 34], [38, 112, 168], [150, 208, 245]];

function along(stops: Colour[], share: number): Colour {
  const at = Math.min(0.999999, Math.max(0, share)) * (stops.length - 1);
  const low = Math.floor(at);
  const part = at - low;
  return stops[low].map((from, channel) => Math.round(from + part * (stops[low + 1][channel] - from))) as Colour;
}

/** 256 colours for amounts from none to all, in the light or the dark theme. */
export function amounts(dark: boolean): Colour[] {
  return Array.from({ length: 256 }, (_, step) => along(dark ? DARK : LIGHT, step / 255));
}

/** 256 colours for values on both sides of zero. */
export function bothSides(dark: boolean): Colour[] {
  return Array.from({ length: 256 }, (_, step) => along(dark ? DARK_BOTH : LIGHT_BOTH, step / 255));
}

export function css([red, green, blue]: Colour): string {
  return `rgb(${red} ${green} ${blue})`;
}
