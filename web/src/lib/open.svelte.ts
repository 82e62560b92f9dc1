/** What is open: the subjects and views that the server tells of, and the one that the address names. */
import { address } from "./address.svelte";
import type { About, Subject } from "./ask";

let about = $state.raw<About>({ subjects: [], views: [] });

export const open = {
  set(told: About): void {
    about = told;
  },
  get subjects(): Subject[] {
    return about.subjects;
  },
  get views(): About["views"] {
    return about.views;
  },
  /** The subject that is looked at. */
  get subject(): Subject | undefined {
    return about.subjects.find((one) => one.name === address.text("model")) ?? about.subjects[0];
  },
  get view(): string {
    const said = address.text("view");
    return open.subject?.views.includes(said) ? said : (open.subject?.views[0] ?? "");
  },
  /** The input as all views ask about it: the model, the text, and the other text where there is one. */
  get input(): { model: string; text: string; other?: string } {
    const first = open.subject!.examples?.[0];
    const other = address.has("text") || address.has("other") ? address.text("other") : (first?.other ?? "");
    return { model: open.subject!.name, text: address.text("text", first?.text ?? ""), ...(other ? { other } : {}) };
  },
};
