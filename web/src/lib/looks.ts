/** The kinds of attention of a model, as the server tells of them. */
import { address } from "./address.svelte";
import type { Packet } from "./packet";

export interface Piece {
  piece: string;
  id: number;
  part: number | null;
}

export interface LookInfo {
  name: string;
  title: string;
  kind: "self" | "causal" | "cross";
  asks: string;
  sees: string;
  layers: number;
  heads: number;
}

/** The kind of attention that the address names, or the first. */
export function chosenLook(packet: Packet | undefined): LookInfo | undefined {
  const looks: LookInfo[] = packet?.words.looks ?? [];
  return looks.find((one) => one.name === address.text("look")) ?? looks[0];
}

export function chosenLayer(look: LookInfo | undefined): number {
  return Math.max(0, Math.min(address.number("layer"), (look?.layers ?? 1) - 1));
}

/** A piece as people read it: spaces that belong to it are seen. */
export function spelled(piece: string): string {
  return piece.replace(/^ /, "·").replace(/\n/g, "↵").replace(/\t/g, "→") || "∅";
}

/** Whether somebody types in a field, so that letters are not meant as keys; a slider takes no letters. */
export function typing(event: KeyboardEvent): boolean {
  return !!(event.target as HTMLElement).closest("input:not([type=range]), textarea, select");
}

/** Which way the keys [ and ] go through the layers: -1, 1, or nowhere. */
export function layerKey(event: KeyboardEvent): number {
  if (typing(event) || event.ctrlKey || event.metaKey || event.altKey) return 0;
  return { "[": -1, "]": 1 }[event.key] ?? 0;
}
