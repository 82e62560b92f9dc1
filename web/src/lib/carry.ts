/** The selection that all views share: the layer, the head, the token and the region that are shown. */
import type { Subject } from "./ask";

type State = Record<string, string>;
type Changes = Record<string, string | null>;

const ROLES = ["layer", "head", "token", "region"] as const;
export type Role = (typeof ROLES)[number];
const SHARED = ["view", "model", "text", "other", "look", "image", "drawn", "theme", "lesson", "compare", "room", "size", "off", "uniform", "open"]; // what all views understand

/** What a view calls each of them, where not by its own name. */
const NAMES: Record<string, Partial<Record<Role, string>>> = {
  heads: { head: "heads" },
  alignment: { layer: "aligned", head: "alignhead", token: "step" },
  fill: { token: "hidden" },
  lens: { token: "place" },
  ablation: { token: "place" },
  recurrent: { token: "back" },
  image: { layer: "block" },
  caption: { token: "step", region: "place" },
};
/** What each view shows of the selection; the others show nothing of it, and keep it. */
const USES: Record<string, readonly Role[]> = {
  home: ["layer", "head", "token"],
  heads: ["layer", "head", "token"],
  grid: ["layer", "head"],
  blocks: ["layer", "head"],
  alignment: ["layer", "head", "token"],
  steps: ["layer", "head", "token"],
  fill: ["layer", "head", "token"],
  classifier: ["token"],
  lens: ["token"],
  ablation: ["token"],
  recurrent: ["token"],
  image: ["layer"],
  caption: ["token", "region"],
};
/** Views whose tokens are those that a translator writes. */
const WRITTEN = ["alignment", "lens", "recurrent"];

function nameIn(view: string, role: Role): string {
  return NAMES[view]?.[role] ?? role;
}

/** The first of the places that a state has for a role; undefined, where it has none. */
function placeOf(state: State, view: string, role: Role): string | undefined {
  return /^(?:ask-)?(\d+)(?:,\d+)*$/.exec(state[nameIn(view, role)] ?? "")?.[1];
}

/** What of the selection a state has, and whether its view shows it. */
export function selection(state: State, view: string): { role: Role; place: number; shown: boolean }[] {
  return ROLES.flatMap((role) => {
    const place = placeOf(state, view, role);
    return place === undefined ? [] : [{ role, place: Number(place), shown: !!USES[view]?.includes(role) }];
  });
}

/** Which text of a translation a state's token belongs to; other models have one. */
function sideOf(view: string, look: string | undefined, subject: Subject): string {
  if (subject.reads !== "pair") return "text";
  return !WRITTEN.includes(view) && (look ?? subject.looks?.[0] ?? "").startsWith("encoder") ? "source" : "written";
}

/** The changes of a state that lead from one view to another: what belongs to the first alone is removed. */
export function toward(state: State, from: string, to: string, subject: Subject): Changes {
  const changes: Changes = { view: to };
  for (const name of Object.keys(state)) if (!SHARED.includes(name) && !name.startsWith("b.")) changes[name] = null;
  for (const role of ROLES) {
    const place = placeOf(state, from, role);
    if (place !== undefined) changes[nameIn(to, role)] = role === "token" && to === "heads" ? `ask-${place}` : place;
  }
  const side = sideOf(from, state.look, subject);
  if (side === "written" && sideOf(to, state.look, subject) === "source") {
    // A token of the translation needs an attention whose queries are there: cross or decoder self.
    changes.look = (from === "alignment" ? subject.looks?.at(-1) : subject.looks?.[1]) ?? null;
  } else if (side !== sideOf(to, state.look, subject)) changes[nameIn(to, "token")] = null;
  return changes;
}

/** The changes that lead to another model: the view and the text stay, where the other model has the view and can read the text. */
export function towardModel(state: State, view: string, from: Subject, to: Subject): Changes {
  const there = to.views.includes(view) ? view : (to.views[0] ?? view);
  const look: Changes = state.look && to.looks?.includes(state.look) ? {} : { look: null };
  const heads: Changes = String(from.looks) === String(to.looks) ? {} : { off: null, uniform: null };
  const text: Changes = from.kind === to.kind ? {} : { text: null, other: null, image: null, drawn: null, [nameIn(there, "token")]: null };
  return { ...toward(state, view, there, from), ...look, ...heads, ...text, open: null, model: to.name };
}
