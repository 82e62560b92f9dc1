/** Projector mode: large type and no sidebar, with the keys of a presenter; it is in the address, a blank screen is not. */
import { address } from "./address.svelte";

const SIZES = [100, 110, 125, 140, 160, 180]; // percent
const USUAL = 125;
let blank = $state(false);

export const room = {
  get on(): boolean {
    return address.has("room");
  },
  /** How large everything is, in percent. */
  get size(): number {
    const asked = address.number("size", USUAL);
    return room.on ? Math.min(SIZES.at(-1)!, Math.max(SIZES[0], asked)) : 100;
  },
  turn(): void {
    address.set({ room: room.on ? null : 1, size: null });
  },
  /** The next larger size, or the next smaller one. */
  grow(way: 1 | -1): void {
    const next = way > 0 ? SIZES.find((one) => one > room.size) : SIZES.filter((one) => one < room.size).at(-1);
    if (next) address.set({ size: next === USUAL ? null : next });
  },
  get blank(): boolean {
    return blank;
  },
  set blank(now: boolean) {
    blank = now;
  },
};
