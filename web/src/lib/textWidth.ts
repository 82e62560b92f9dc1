/** How wide words are on the page, so that figures can be fitted to it. */

const context = document.createElement("canvas").getContext("2d")!;

/** The width of a text in the page's font at its boldest. */
export function widthOf(text: string, size: number): number {
  context.font = `650 ${size}px ${getComputedStyle(document.body).fontFamily}`;
  return context.measureText(text).width;
}

export function widest(texts: string[], size: number): number {
  return Math.max(0, ...texts.map((text) => widthOf(text, size)));
}
