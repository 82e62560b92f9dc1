/** The open models and their views, and those that the address names. */
import { address, beside, type Address } from "./address.svelte";
import type { About, Subject } from "./ask";
import { headsIn, type Changed } from "./heads";

let about = $state.raw<About>({ subjects: [], views: [] });

/** The open models as a state has them. */
export function openAt(address: Address) {
  const open = {
    set(found: About): void {
      about = found;
    },
    get subjects(): Subject[] {
      return about.subjects;
    },
    get views(): About["views"] {
      return about.views;
    },
    /** The model that is shown: the first, where the address names none; undefined, where it names an unknown one. */
    get subject(): Subject | undefined {
      return address.has("model") ? about.subjects.find((one) => one.name === address.text("model")) : about.subjects[0];
    },
    /** Its view; empty, where it has none of the name in the address. */
    get view(): string {
      const views = open.subject?.views ?? [];
      return address.has("view") ? (views.find((one) => one === address.text("view")) ?? "") : (views[0] ?? "");
    },
    /** An error for an address that names an unknown model or view, with links to those there are. */
    get lost(): { message: string; ways: [title: string, changes: Record<string, string | null>][] } | undefined {
      const { subject } = open;
      if (!subject)
        return {
          message: `there is no model called ${address.text("model")} here`,
          ways: about.subjects.map((one) => [one.name, { model: one.name, look: null }]),
        };
      if (open.view || !subject.views.length) return undefined;
      const said = about.views.find((one) => one.name === address.text("view"));
      return {
        message: said ? `“${said.title}” does not fit ${subject.name}` : `there is no view called ${address.text("view")}`,
        ways: about.views.filter((one) => subject.views.includes(one.name)).map((one) => [one.title, { view: one.name }]),
      };
    },
    /** The model, the text, and the other text where there is one. */
    get texts(): { model: string; text: string; other?: string } {
      const first = open.subject!.examples?.[0];
      const other = address.has("text") || address.has("other") ? address.text("other") : (first?.other ?? "");
      return { model: open.subject!.name, text: address.text("text", first?.text ?? ""), ...(other ? { other } : {}) };
    },
    /** The heads that are off or uniform, in all views. */
    get changed(): Changed {
      return { off: headsIn(address.text("off")), uniform: headsIn(address.text("uniform")) };
    },
    /** The same as a view asks about it. */
    get heads(): Partial<Changed> {
      const { off, uniform } = open.changed;
      return { ...(off.length ? { off } : {}), ...(uniform.length ? { uniform } : {}) };
    },
    /** The input as all views ask about it: the texts, and the changed heads. */
    get input(): { model: string; text: string; other?: string } & Partial<Changed> {
      return { ...open.texts, ...open.heads };
    },
  };
  return open;
}

export type Open = ReturnType<typeof openAt>;
export const open = openAt(address);
export const openBeside = openAt(beside);
