/** The answer to a question that changes: the last one is shown until the next arrives; late answers are dropped. */
import { ask, isKnown, type RequestError } from "./ask";
import type { Packet } from "./packet";

type Question = [view: string, call: string, asked: object];

export interface Answer {
  readonly packet: Packet | undefined;
  readonly problem: RequestError | undefined;
  readonly waiting: boolean;
}

/** Call it while a component is set up; nothing is asked while the question is null. */
export function answer(question: () => Question | null): Answer {
  let packet = $state.raw<Packet | undefined>();
  let problem = $state.raw<RequestError | undefined>();
  let waiting = $state(false);
  let before: Promise<unknown> = Promise.resolve();

  // Nothing is asked where the address changes but the question does not.
  const written = $derived(JSON.stringify(question()));

  $effect(() => {
    const asked: Question | null = JSON.parse(written);
    if (!asked) {
      [problem, waiting] = [undefined, false];
      return;
    }
    let current = true;
    waiting = true;
    // One question at a time: a moving slider asks for its current value once the last answer is here.
    const coming = isKnown(...asked) ? ask(...asked) : before.then(() => (current ? ask(...asked) : undefined));
    before = coming.catch(() => undefined);
    coming
      .then(
        (found) => {
          if (current) [packet, problem] = [found, undefined];
        },
        (error) => {
          if (current) problem = error;
        },
      )
      .finally(() => {
        if (current) waiting = false;
      });
    return () => {
      current = false;
    };
  });

  return {
    get packet() {
      return packet;
    },
    get problem() {
      return problem;
    },
    get waiting() {
      return waiting;
    },
  };
}
