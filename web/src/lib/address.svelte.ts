/** The state of the page, which is its address: a view can be linked, and the browser's back button works. */
import { held } from "./ask";

type Changes = Record<string, string | number | boolean | null | undefined>;

function read(): Record<string, string> {
  if (held && !location.hash) {
    const state = Object.entries({ view: held.view, ...held.state }).filter(([, value]) => value !== null);
    return Object.fromEntries(state.map(([name, value]) => [name, String(value)]));
  }
  return Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
}

let params = $state<Record<string, string>>(read());
let hash = $state(location.hash); // of which the page shows the state

// The places of the browser's history: how far the reader can go back and forward within this page.
let place = $state<number>(history.state?.place ?? 0);
let end = $state<number>(history.state?.place ?? 0);

addEventListener("hashchange", () => {
  params = read();
  hash = location.hash;
  last = undefined;
  if (history.state?.place === undefined) stand("replaceState", place + 1, hash); // a link
  else place = history.state.place;
  end = Math.max(end, place);
});

/** Write an entry of the browser's history, with its place; what came after it is no longer there. */
function stand(how: "pushState" | "replaceState", at: number, written: string): void {
  history[how]({ place: at }, "", written);
  if (at !== place) end = at;
  place = at;
}

const REST = 1000; // milliseconds after which a slider's next move is a new history entry
let sliding = false;
let last: { names: string; at: number } | undefined; // what a slider has just set

/** A state with some changes; null removes a name. */
function changed(state: Record<string, string>, changes: Changes): Record<string, string> {
  const next = { ...state };
  for (const [name, value] of Object.entries(changes)) {
    if (value === null || value === undefined) delete next[name];
    else next[name] = String(value);
  }
  return next;
}

/** Change the state, and the address with it: each choice is an entry in the browser's history. */
function write(changes: Changes, how: "step" | "follow"): void {
  const next = changed(params, changes);
  const written = "#" + new URLSearchParams(next).toString();
  if (written === "#" + new URLSearchParams(params).toString()) return;
  params = next;
  const names = Object.keys(changes).sort().join();
  const continues = sliding && last?.names === names && performance.now() - last.at < REST;
  if (how === "step") last = sliding ? { names, at: performance.now() } : undefined;
  try {
    if (how === "step" && !continues) stand("pushState", place + 1, written);
    else stand("replaceState", place, written);
    hash = location.hash;
  } catch {
    // A frame in a notebook has no address of its own.
  }
}

/** The state as a part of the page reads it and writes it: the whole page, or one pane of a comparison. */
export type Address = ReturnType<typeof addressOf>;

function addressOf(pane: string, read: () => Record<string, string>, translated: (changes: Changes) => Changes, put = write, all = () => params) {
  return {
    /** The prefix of its own names; empty for the page, which is also the first pane. */
    pane,
    text(name: string, otherwise = ""): string {
      return read()[name] ?? otherwise;
    },
    has(name: string): boolean {
      return name in read();
    },
    number(name: string, otherwise = 0): number {
      const found = Number(read()[name]);
      return read()[name] === undefined || Number.isNaN(found) ? otherwise : found;
    },
    /** A list of integers, such as 0,3,5. */
    numbers(name: string): number[] {
      return (read()[name] ?? "").split(",").filter(Boolean).map(Number).filter(Number.isInteger);
    },
    get all(): Record<string, string> {
      return read();
    },
    /** The part of the URL whose state the page shows: a link changes the URL a moment before the page. */
    get hash(): string {
      return hash;
    },
    /** Change some names; null removes one. The browser's back button undoes it. */
    set(changes: Changes): void {
      put(translated(changes), "step");
    },
    /** The same without a history entry: for a player's next step, or what another text invalidates. */
    follow(changes: Changes): void {
      put(translated(changes), "follow");
    },
    /** Whether there is a choice to undo, or one that was undone. */
    get undoable(): boolean {
      return place > 0;
    },
    get redoable(): boolean {
      return place < end;
    },
    undo(): void {
      if (place > 0) history.back();
    },
    redo(): void {
      if (place < end) history.forward();
    },
    /** The moves of a slider make one history entry, until it rests. */
    along(change: () => void): void {
      sliding = true;
      try {
        change();
      } finally {
        sliding = false;
      }
    },
    link(changes: Changes): string {
      const next: Changes = { ...all(), ...translated(changes) };
      const given = Object.entries(next).filter(([, value]) => value !== null && value !== undefined);
      return "#" + new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString();
    },
  };
}

export const address = addressOf("", () => params, (changes) => changes);

/** What the second pane may have of its own: the model and its inputs. Everything else is the selection of both. */
const OWN = ["model", "text", "other", "image", "drawn", "number", "story", "question", "history", "seed", "then", "forced", "temperature", "top_k", "top_p", "off", "uniform", "tried"];
const HEADS = ["off", "uniform", "tried"]; // of one model
const B = "b.";

/** The state of the second pane: that of the first, with its own names in place of it; an empty one has none. */
function second(): Record<string, string> {
  const found: Record<string, string> = {};
  for (const [name, value] of Object.entries(params)) if (!name.startsWith(B)) found[name] = value;
  for (const name of OWN) {
    const own = params[B + name];
    if (own || (own === "" && name === "text")) found[name] = own;
    else if (own === "" || (HEADS.includes(name) && (params[B + "model"] ?? params.model) !== params.model)) delete found[name];
  }
  return found;
}

function ofSecond(changes: Changes): Changes {
  const next: Changes = {};
  for (const [name, value] of Object.entries(changes)) {
    if (!OWN.includes(name)) next[name] = value;
    else next[B + name] = value ?? (name in params && name !== "text" ? "" : null);
  }
  return next;
}

export const beside = addressOf(B, second, ofSecond);

/** The changes that close a comparison. */
export function closing(): Changes {
  return Object.fromEntries(Object.keys(params).flatMap((name) => (name === "compare" || name.startsWith(B) ? [[name, null]] : [])));
}

/** A state that is not in the page's address: that of one of many views on a page. A link in it leads to that view alone. */
export function apart(start: Record<string, string>): Address {
  let own = $state.raw(start);
  const put = (changes: Changes) => {
    own = changed(own, changes);
  };
  return addressOf("", () => own, (changes) => changes, put, () => own);
}
