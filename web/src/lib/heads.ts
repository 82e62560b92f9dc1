/** Heads that are switched off or whose weights are uniform, as the address and the server's calls have them. */
export type Head = [look: number, layer: number, head: number];

export interface Changed {
  off: Head[];
  uniform: Head[];
}

/** Heads as in the address: 0.1.3,2.0.1. */
export function headsIn(text: string): Head[] {
  return sorted(
    text
      .split(",")
      .map((one) => one.split(".").map(Number) as Head)
      .filter((one) => one.length === 3 && one.every((number) => Number.isInteger(number) && number >= 0)),
  );
}

export function sorted(heads: Head[]): Head[] {
  return heads.sort((a, b) => a[0] - b[0] || a[1] - b[1] || a[2] - b[2]);
}

/** Their names in the address; null where no head is changed. */
export function written({ off, uniform }: Changed): { off: string | null; uniform: string | null } {
  const text = (heads: Head[]) => sorted(heads).map((one) => one.join(".")).join(",") || null;
  return { off: text(off), uniform: text(uniform) };
}

/** A head in words. */
export function nameOf([look, layer, head]: Head, looks: { title: string }[]): string {
  return `${looks.length > 1 && looks[look] ? looks[look].title + ", " : ""}layer ${layer + 1}, head ${head + 1}`;
}
