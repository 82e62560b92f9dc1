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
