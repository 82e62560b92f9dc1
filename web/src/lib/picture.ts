/**
 * A figure of the page as an image: its boxes, texts, drawings and canvases at their positions, written as SVG that any
 * program reads. Text stays text. The PNG is rendered from the SVG.
 */

import { tick } from "svelte";
import { capturing } from "./capturing.svelte";

const NAMES = "http://www.w3.org/2000/svg";
const COPIED = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-opacity", "stroke-dasharray", "stroke-linecap", "stroke-linejoin", "opacity", "font-family", "font-size", "font-weight", "font-style", "letter-spacing", "text-decoration", "text-anchor", "dominant-baseline", "mix-blend-mode", "visibility", "paint-order", "stop-color", "stop-opacity"];
const NO_LETTERS = /[\0-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;
const PAD = 12;
const LONGEST = 16000; // pixels of a side of a PNG
const SIDES = ["Top", "Right", "Bottom", "Left"] as const;
let clips = 0;

function svgElement(name: string, values: Record<string, string | number>): SVGElement {
  const element = document.createElementNS(NAMES, name);
  for (const [key, value] of Object.entries(values)) element.setAttribute(key, String(value));
  return element;
}

function isVisible(colour: string): boolean {
  return colour !== "transparent" && !/^rgba\(.*, 0\)$/.test(colour);
}

/** The figure as the text of an SVG file. */
export async function toSvg(root: HTMLElement): Promise<string> {
  capturing.on = true;
  let svg: SVGElement;
  try {
    await tick();
    svg = drawing(root);
  } finally {
    capturing.on = false;
  }
  // Characters that XML does not allow, which a model may well generate.
  return new XMLSerializer().serializeToString(svg).replace(NO_LETTERS, "\ufffd");
}

function drawing(root: HTMLElement): SVGElement {
  const scrolled = [root.scrollLeft, root.scrollTop];
  root.scrollTo(0, 0);
  const origin = root.getBoundingClientRect();
  const width = Math.ceil(Math.max(root.scrollWidth, origin.width)) + 2 * PAD;
  const height = Math.ceil(Math.max(root.scrollHeight, origin.height)) + 2 * PAD;
  const svg = svgElement("svg", { xmlns: NAMES, width, height, viewBox: `0 0 ${width} ${height}` });
  svg.append(svgElement("rect", { width, height, fill: getComputedStyle(document.documentElement).getPropertyValue("--card").trim() || "white" }));
  const all = svgElement("g", { transform: `translate(${PAD - origin.left} ${PAD - origin.top})` });
  svg.append(all);
  for (const child of root.childNodes) draw(child, all);
  root.scrollTo(scrolled[0], scrolled[1]);
  return svg;
}

/** The same as a PNG file, two pixels per CSS pixel, fewer where it is very long. */
export async function toPng(root: HTMLElement): Promise<Blob> {
  const text = await toSvg(root);
  const image = new Image();
  image.src = "data:image/svg+xml;charset=utf-8," + encodeURIComponent(text);
  await image.decode();
  const scale = Math.min(2, LONGEST / Math.max(image.width, image.height));
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [image.width * scale, image.height * scale];
  canvas.getContext("2d")!.drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((done, failed) => canvas.toBlob((blob) => (blob ? done(blob) : failed(new Error("it is too large"))), "image/png"));
}

/** Download a file. */
export function saved(blob: Blob, name: string): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

function draw(node: Node, into: SVGElement): void {
  if (node instanceof Text) letters(node, into);
  else if (node instanceof SVGSVGElement) copied(node, into);
  else if (node instanceof HTMLElement) boxed(node, into);
}

function boxed(element: HTMLElement, into: SVGElement): void {
  const style = getComputedStyle(element);
  if (style.display === "none" || style.visibility === "hidden" || element.dataset.picture === "none") return;
  const turn = style.transform; // which changes once it is removed
  let target = into;
  if (turn !== "none") {
    // Its position without the transform, and the transform around its own origin.
    const before = element.style.transform;
    element.style.transform = "none";
    const box = element.getBoundingClientRect();
    const [x, y] = style.transformOrigin.split(" ").map(parseFloat);
    target = svgElement("g", {
      transform: `translate(${box.left + x} ${box.top + y}) ${turn} translate(${-box.left - x} ${-box.top - y})`,
      ...(style.opacity === "1" ? {} : { opacity: style.opacity }),
    });
    into.append(target);
    inside(element, style, target);
    element.style.transform = before;
    return;
  }
  if (style.opacity !== "1") {
    target = svgElement("g", { opacity: style.opacity });
    into.append(target);
  }
  inside(element, style, target);
}

function inside(element: HTMLElement, style: CSSStyleDeclaration, into: SVGElement): void {
  const box = element.getBoundingClientRect();
  const widths = SIDES.map((side) => (isVisible(style[`border${side}Color`]) ? parseFloat(style[`border${side}Width`]) : 0));
  const line = widths.every((width) => width === widths[0]) ? widths[0] : 0;
  if (box.width && box.height && (isVisible(style.backgroundColor) || line)) {
    into.append(
      svgElement("rect", {
        x: box.left + line / 2,
        y: box.top + line / 2,
        width: Math.max(0, box.width - line),
        height: Math.max(0, box.height - line),
        rx: Math.min(parseFloat(style.borderTopLeftRadius) || 0, box.height / 2),
        fill: isVisible(style.backgroundColor) ? style.backgroundColor : "none",
        ...(line ? { stroke: style.borderTopColor, "stroke-width": line } : {}),
        ...(line && style.borderTopStyle === "dashed" ? { "stroke-dasharray": "4 3" } : {}),
      }),
    );
  }
  if (!line) edges(box, style, widths, into);
  if (/hidden|clip|auto|scroll/.test(style.overflow) && (element.scrollWidth > element.clientWidth || element.scrollHeight > element.clientHeight)) into = clipped(box, into);
  if (element instanceof HTMLCanvasElement || element instanceof HTMLImageElement) {
    if (element.width && element.height) into.append(painted(element, box, style));
  } else if (element instanceof HTMLInputElement || element instanceof HTMLSelectElement || element instanceof HTMLTextAreaElement) {
    return; // controls are not part of the figure
  } else {
    for (const child of element.childNodes) draw(child, into);
  }
}

/** The borders of a box that has them on some sides only. */
function edges(box: DOMRect, style: CSSStyleDeclaration, widths: number[], into: SVGElement): void {
  const [top, right, bottom, left] = [box.top + widths[0] / 2, box.right - widths[1] / 2, box.bottom - widths[2] / 2, box.left + widths[3] / 2];
  const ends = [
    { x1: box.left, x2: box.right, y1: top, y2: top },
    { x1: right, x2: right, y1: box.top, y2: box.bottom },
    { x1: box.left, x2: box.right, y1: bottom, y2: bottom },
    { x1: left, x2: left, y1: box.top, y2: box.bottom },
  ];
  ends.forEach((line, side) => {
    if (widths[side]) into.append(svgElement("line", { ...line, stroke: style[`border${SIDES[side]}Color`], "stroke-width": widths[side] }));
  });
}

/** A group that is clipped to a box. */
function clipped(box: DOMRect, into: SVGElement): SVGElement {
  const name = `clip-${++clips}`;
  const clip = svgElement("clipPath", { id: name });
  clip.append(svgElement("rect", { x: box.left, y: box.top, width: box.width, height: box.height }));
  const group = svgElement("g", { "clip-path": `url(#${name})` });
  into.append(clip, group);
  return group;
}

function painted(element: HTMLCanvasElement | HTMLImageElement, box: DOMRect, style: CSSStyleDeclaration): SVGElement {
  let source = element instanceof HTMLCanvasElement ? element.toDataURL() : element.src;
  if (element instanceof HTMLImageElement && !source.startsWith("data:")) {
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [element.naturalWidth, element.naturalHeight];
    canvas.getContext("2d")!.drawImage(element, 0, 0);
    source = canvas.toDataURL();
  }
  const image = svgElement("image", { x: box.left, y: box.top, width: box.width, height: box.height, href: source, preserveAspectRatio: "none" });
  if (style.imageRendering === "pixelated") image.setAttribute("image-rendering", "pixelated");
  return image;
}

/** An inline SVG of the page, with its computed style written out. */
function copied(element: SVGSVGElement, into: SVGElement): void {
  const box = element.getBoundingClientRect();
  const copy = element.cloneNode(true) as SVGSVGElement;
  const originals = [element, ...element.querySelectorAll<SVGElement>("*")];
  [copy, ...copy.querySelectorAll<SVGElement>("*")].forEach((one, place) => {
    const style = getComputedStyle(originals[place]);
    for (const name of COPIED) {
      const value = style.getPropertyValue(name);
      if (value) one.setAttribute(name, value);
    }
    if (style.display === "none") one.setAttribute("display", "none");
    if (place && style.transform !== "none" && !one.hasAttribute("transform")) {
      const [x, y] = style.transformOrigin.split(" ").map(parseFloat);
      one.setAttribute("transform", `translate(${x} ${y}) ${style.transform} translate(${-x} ${-y})`);
    }
    one.removeAttribute("class");
    one.removeAttribute("style");
  });
  for (const [name, value] of Object.entries({ x: box.left, y: box.top, width: box.width, height: box.height })) copy.setAttribute(name, String(value));
  copy.setAttribute("overflow", getComputedStyle(element).overflow === "visible" ? "visible" : "hidden");
  into.append(copy);
}

const context = document.createElement("canvas").getContext("2d")!;

/** A text at its position, line by line. */
function letters(node: Text, into: SVGElement): void {
  const parent = node.parentElement!;
  if (!node.data.trim()) return;
  const style = getComputedStyle(parent);
  if (style.visibility === "hidden" || style.fontSize === "0px") return;
  context.font = `${style.fontStyle} ${style.fontWeight} ${style.fontSize} ${style.fontFamily}`;
  const above = context.measureText("x").fontBoundingBoxAscent;
  const struck = strike(parent);
  for (const { words, left, top } of lines(node, style.whiteSpace.startsWith("pre"))) {
    const element = svgElement("text", {
      x: left,
      y: top + above,
      fill: style.color,
      "font-family": style.fontFamily,
      "font-size": style.fontSize,
      "font-weight": style.fontWeight,
      ...(style.fontStyle === "normal" ? {} : { "font-style": style.fontStyle }),
      ...(style.letterSpacing === "normal" ? {} : { "letter-spacing": style.letterSpacing }),
      ...(struck === "none" ? {} : { "text-decoration": struck }),
      "xml:space": "preserve",
    });
    element.textContent = style.textTransform === "uppercase" ? words.toUpperCase() : words;
    into.append(element);
  }
}

/** The text decoration, which may come from any element around it. */
function strike(element: HTMLElement): string {
  for (let one: HTMLElement | null = element; one && one.dataset.figure === undefined; one = one.parentElement) {
    const found = getComputedStyle(one).textDecorationLine;
    if (found !== "none") return found;
  }
  return "none";
}

interface Line {
  words: string;
  left: number;
  top: number;
  end: number; // offsets of its characters in the node
}

function lines(node: Text, spaced: boolean): Line[] {
  const found: Line[] = [];
  const put = (from: number, end: number, box: DOMRect) => {
    const words = node.data.slice(from, end);
    const last = found.at(-1);
    if (last && Math.abs(last.top - box.top) < 2) {
      last.words += (spaced ? node.data.slice(last.end, from) : from > last.end ? " " : "") + words;
      last.end = end;
    } else found.push({ words, left: box.left, top: box.top, end });
  };
  const range = document.createRange();
  const boxes = (from: number, end: number) => {
    range.setStart(node, from);
    range.setEnd(node, end);
    return [...range.getClientRects()].filter((box) => box.width);
  };
  for (const { index, 0: word } of node.data.matchAll(/\S+/g)) {
    const all = boxes(index, index + word.length);
    if (all.length === 1) put(index, index + word.length, all[0]);
    else if (all.length) {
      // A word that is broken over lines, character by character.
      let at = index;
      for (const letter of word) {
        const [box] = boxes(at, at + letter.length);
        if (box) put(at, at + letter.length, box);
        at += letter.length;
      }
    }
  }
  return found;
}
