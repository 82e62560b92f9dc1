/** What is kept on the way from one view to another: the layer, the head and the token that are shown. */
import type { Subject } from "./ask";

type State = Record<string, string>;
type Changes = Record<string, string | null>;

const ROLES = ["layer", "head", "token"] as const;
const SHARED = ["view", "model", "text", "other", "look", "theme", "lesson"]; // what all views understand

/** What a view calls each of the three, where not by its own name. */
const NAMES: Record<string, Partial<Record<(typeof ROLES)[number], string>>> = {
  heads: { head: "heads" },
  alignment: { layer: "aligned", head: "alignhead", token: "step" },
  fill: { token: "hidden" },
  lens: { token: "place" },
  ablation: { token: "place" },
  recurrent: { token: "back" },
};
/** Views whose tokens are those that a translator writes. */
const WRITTEN = ["alignment", "lens", "recurrent"];

function nameIn(view: string, role: (typeof ROLES)[number]): string {
  return NAMES[view]?.[role] ?? role;
}

/** Which text of a translation a state's token belongs to; other models have one. */
function sideOf(view: string, look: string | undefined, subject: Subject): string {
  if (subject.reads !== "pair") return "text";
  return !WRITTEN.includes(view) && (look ?? subject.looks?.[0] ?? "").startsWith("encoder") ? "source" : "written";
}

/** The changes of a state that lead from one view to another: what belongs to the first alone is removed. */
export function toward(state: State, from: string, to: string, subject: Subject): Changes {
  const changes: Changes = { view: to };
  for (const name of Object.keys(state)) if (!SHARED.includes(name)) changes[name] = null;
  for (const role of ROLES) {
    const [, place] = /^(?:ask-)?(\d+)$/.exec(state[nameIn(from, role)] ?? "") ?? [];
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
  const text: Changes = from.kind === to.kind ? {} : { text: null, other: null, [nameIn(there, "token")]: null };
  return { ...toward(state, view, there, from), ...look, ...text, model: to.name };
}
