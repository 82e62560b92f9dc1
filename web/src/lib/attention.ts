/** The kinds of attention of a model, as the server describes them. */
import type { Address } from "./address.svelte";
import type { Packet } from "./packet";

export interface Piece {
  piece: string;
  id: number;
  part: number | null;
}

export interface Attention {
  name: string;
  title: string;
  kind: "self" | "causal" | "cross";
  asks: string;
  sees: string;
  layers: number;
  heads: number;
}

/** The kind of attention that the address names, or the first. */
export function chosenAttention(address: Address, packet: Packet | undefined): Attention | undefined {
  const looks: Attention[] = packet?.words.looks ?? [];
  return looks.find((one) => one.name === address.text("look")) ?? looks[0];
}

export function chosenLayer(address: Address, look: Attention | undefined): number {
  return Math.max(0, Math.min(address.number("layer"), (look?.layers ?? 1) - 1));
}

/** A token as text, with visible spaces. */
export function tokenText(piece: string): string {
  return piece.replace(/^ /, "·").replace(/\n/g, "↵").replace(/\t/g, "→") || "∅";
}

/** Whether the user is typing in a field, so that letters are no shortcuts; a slider takes no letters. */
export function typing(event: KeyboardEvent): boolean {
  return !!(event.target as HTMLElement).closest("input:not([type=range]), textarea, select");
}

/** The layer change of the keys [ and ]: -1, 1, or 0; a key that another pane has handled counts no more. */
export function layerKey(event: KeyboardEvent): number {
  if (event.defaultPrevented || typing(event) || event.ctrlKey || event.metaKey || event.altKey) return 0;
  const way = { "[": -1, "]": 1 }[event.key] ?? 0;
  if (way) event.preventDefault();
  return way;
}
