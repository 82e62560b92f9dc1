/** The parts of a model, nested, as the view Home describes them. */

export interface Part {
  name: string; // in the part around it
  kind: string;
  width: number;
  parameters: number; // of one of a row
  heads: number;
  numbers: number[]; // of a row of the same: for each, the one whose weights it has
  look: string; // its kind of attention, if the views of attention know it
  matrices: [name: string, shape: number[], parameters: number][];
  parts: Part[];
  views: string[]; // the best first
}

export interface Model {
  kind: string;
  parts: Part[];
  matrices: Part["matrices"];
  parameters: number;
  explained: Record<string, [title: string, about: string, equation: string]>;
  open: string[];
  does: string;
  reads: string;
  writes: string;
  outputs: string[]; // views of what comes out, the best first
  seen: [view: string, call: string] | null; // who answers what comes in and out, where no text is read
}

export function join(...names: string[]): string {
  return names.filter(Boolean).join(".");
}

/** The path of a part; * stands for the number of one of a row. */
export function pathOf(part: Part, around: string): string {
  return join(around, part.name, part.numbers.length ? "*" : "");
}

/** The number of parameters of all of a row. */
export function total(part: Part): number {
  return part.parameters * (new Set(part.numbers).size || 1);
}

export function stacks(part: Part): boolean {
  return part.numbers.length > 0 || part.parts.some(stacks);
}

function inside(parts: Part[]): Part[] {
  return parts.flatMap((part) => [part, ...inside(part.parts)]);
}

/** How many layers and heads a selection may have: those of the largest row, and of the attention with the most heads. */
export function sizes(model: Model): { layer: number; head: number } {
  const all = inside(model.parts);
  return { layer: Math.max(0, ...all.map((one) => one.numbers.length)), head: Math.max(0, ...all.map((one) => one.heads)) };
}

/** Whether a view shows a part, or an attention in it. */
export function shows(view: string, part: Part): boolean {
  return part.views.includes(view) || part.parts.some((one) => one.heads > 0 && one.views.includes(view));
}

/** The parts as the miniature has them: what surrounds a row of blocks is left out. */
export function cells(parts: Part[]): Part[] {
  return parts.flatMap((part) => (!part.numbers.length && stacks(part) ? cells(part.parts) : [part]));
}
