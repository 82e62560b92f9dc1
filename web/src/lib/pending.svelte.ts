/** How long the page has been waiting for answers. */
let waiting = 0; // not part of what the page shows: an effect that asks must not depend on it
let stage = $state(0);
let timers: ReturnType<typeof setTimeout>[] = [];

export const pending = {
  /** 0: not noticeable; 1: short; 2: long. */
  get stage(): number {
    return stage;
  },
  async during<T>(work: Promise<T>): Promise<T> {
    if (++waiting === 1) timers = [setTimeout(() => (stage = 1), 250), setTimeout(() => (stage = 2), 8000)];
    try {
      return await work;
    } finally {
      if (--waiting === 0) {
        timers.forEach(clearTimeout);
        stage = 0;
      }
    }
  },
};
