/** The guesses of a student, which stay on this machine. */
const PLACE = "heedful-score";

function read(): Record<string, { guess: number; right: boolean }> {
  try {
    const found = JSON.parse(localStorage.getItem(PLACE) ?? "{}");
    return typeof found === "object" && found ? found : {};
  } catch {
    return {}; // a frame or a browser without a place to keep them
  }
}

let guesses = $state.raw(read());

function write(): void {
  try {
    localStorage.setItem(PLACE, JSON.stringify(guesses));
  } catch {
    // They are kept until the page is closed.
  }
}

export const score = {
  guess(key: string): number | undefined {
    return guesses[key]?.guess;
  },
  /** Only the first guess counts. */
  add(key: string, guess: number, right: boolean): void {
    if (guesses[key]) return;
    guesses = { ...guesses, [key]: { guess, right } };
    write();
  },
  get right(): number {
    return Object.values(guesses).filter((one) => one.right).length;
  },
  get count(): number {
    return Object.keys(guesses).length;
  },
  reset(): void {
    guesses = {};
    write();
  },
};
