/** What the server calls the pattern of each head, over the model's examples. */
import { answer } from "./answer.svelte";
import { here } from "./here";

export interface Patterns {
  readonly names: string[];
  readonly texts: number;
  /** The patterns of one kind of attention, by layer and head. */
  of(look: string): string[][] | undefined;
}

/** Call it while a component is set up. */
export function patternsOf(): Patterns {
  const { open } = here();
  const found = answer(() => ["heads", "patterns", { model: open.subject!.name }]);
  return {
    get names() {
      return found.packet?.words.names ?? [];
    },
    get texts() {
      return found.packet?.words.texts ?? 0;
    },
    of: (look) => found.packet?.words.patterns[look],
  };
}
