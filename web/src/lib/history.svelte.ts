/** The metrics of a run, polled for new records while it trains. */
import { askAgain, held, RequestError } from "./ask";
import type { Packet } from "./packet";

export interface Evaluation {
  step: number;
  split: string;
  loss: number | null;
  scores: [name: string, value: number, signature: string][];
  samples: [given: string, right: string, made: string][];
}

export interface Recorded {
  columns: Record<string, number[]>; // step, loss, rate, norm, tokens_per_second, progress; "part NAME" of each loss
  evaluations: Evaluation[];
  broken: number; // lines that cannot be parsed
  running: boolean;
}

export interface History {
  readonly recorded: Recorded | undefined;
  readonly problem: RequestError | undefined;
  readonly waiting: boolean;
  again(): void;
}

const PAUSE = 1000; // milliseconds between two questions

/** Call it while a component is set up; nothing is asked while there is no name. */
export function history(name: () => string | undefined): History {
  let recorded = $state.raw<Recorded | undefined>();
  let problem = $state.raw<RequestError | undefined>();
  let waiting = $state(false);
  let turn = $state(0);

  $effect(() => {
    const model = name();
    void turn;
    recorded = undefined;
    problem = undefined;
    if (!model) return;
    let [current, from, timer] = [true, { offset: 0, mark: "" }, 0];
    let known: Recorded | undefined;
    waiting = true;

    async function next(): Promise<void> {
      try {
        const packet = await askAgain("run", "metrics", { model, ...from });
        if (!current) return;
        const { offset, mark, more, running } = packet.words;
        if (!known || packet.words.anew || offset !== from.offset || running !== known.running) known = appendRecords(known, packet);
        from = { offset, mark };
        if (more) return next();
        recorded = known;
        [problem, waiting] = [undefined, false];
        if (running && !held) timer = setTimeout(next, PAUSE);
      } catch (error) {
        if (!current) return;
        [problem, waiting] = [error as RequestError, false];
        if (known?.running && !held) timer = setTimeout(next, 3 * PAUSE);
      }
    }
    next();
    return () => {
      current = false;
      clearTimeout(timer);
    };
  });

  return {
    get recorded() {
      return recorded;
    },
    get problem() {
      return problem;
    },
    get waiting() {
      return waiting;
    },
    again() {
      turn++;
    },
  };
}

/** The records so far and the new ones; only the new ones, where the file was read from its beginning. */
function appendRecords(known: Recorded | undefined, { words, arrays }: Packet): Recorded {
  const before = words.anew ? undefined : known;
  const blank = (count = 0) => Array<number>(count).fill(NaN); // a loss may be recorded in some steps only
  const names = new Set([...Object.keys(before?.columns ?? {}), ...Object.keys(arrays)]);
  const columns = Object.fromEntries(
    [...names].map((name) => [name, [...(before?.columns[name] ?? blank(before?.columns.step.length)), ...(arrays[name]?.data ?? blank(arrays.step.data.length))]]),
  );
  const evaluations = [...(before?.evaluations ?? []), ...words.evaluations];
  return { columns, evaluations, broken: (before?.broken ?? 0) + words.broken, running: words.running };
}
