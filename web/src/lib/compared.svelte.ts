/** What each pane of a comparison shows in numbers, so that B - A can stand below them. */
import { untrack } from "svelte";
import { address as page, beside } from "./address.svelte";
import { here } from "./here";

/** Numbers with names: matched in the order of a sequence, by equal names, or place by place where all names are equal. */
export interface Table {
  of: string;
  names: string[];
  values: ArrayLike<number>;
  match: "order" | "name" | "place";
  percent?: boolean;
}

/** Numbers in rows and columns, matched in the order of both. */
export interface Field {
  of: string;
  rows: string[];
  columns: string[];
  data: ArrayLike<number>;
  says?: string; // its layer and head, which may be others in the other pane
  plain?: boolean; // with too many rows or columns to name each
  within?: string; // compared only with one of the same, such as units of one model
}

/** A sentence instead says why there is nothing to subtract. */
export type Numbers = (Table | Field)[] | string | undefined;

let sides = $state.raw<Record<string, Numbers>>({});

/** The numbers of both panes. */
export const compared = {
  get a(): Numbers {
    return sides[page.pane];
  },
  get b(): Numbers {
    return sides[beside.pane];
  },
};

/** Call it while a view is set up: its numbers, once it shows them. */
export function compares(numbers: () => Numbers): void {
  const { address } = here();
  if (address !== page && address !== beside) return;
  const put = (found: Numbers) => (sides = { ...untrack(() => sides), [address.pane]: found });
  $effect(() => {
    put(page.has("compare") ? numbers() : undefined);
    return () => void put(undefined);
  });
}

/** Names of places in a grid. */
export function numbered(what: string, count: number): string[] {
  return Array.from({ length: count }, (_, place) => `${what} ${place + 1}`);
}
