/**
 * Questions to the server, one function for all views. Answers are kept, so that going back costs nothing; and a page
 * that was written to a file finds them in itself.
 */
import { unpack, type Packet } from "./packet";
import { pending } from "./pending.svelte";

export interface Example {
  text: string;
  other: string | null;
  right: string;
}

export interface Subject {
  name: string;
  run: boolean;
  broken: string | null;
  views: string[];
  kind?: string;
  parameters?: number;
  examples?: Example[]; // of its own data, or one that it can read; the one to begin with comes first
  named?: string | null; // what is right of an example; null where they are not of its own data
  looks?: string[]; // its kinds of attention
  reads?: "pair" | "two" | "one" | "none";
}

export interface About {
  subjects: Subject[];
  views: { name: string; title: string; about: string }[];
}

interface Held {
  about: About;
  view: string;
  state: Record<string, unknown>;
  answers: { view: string; call: string; asked: object; packet: string }[];
}

/** What went wrong, in words that people can use. */
export class Trouble extends Error {
  constructor(
    message: string,
    readonly more: string[] = [],
  ) {
    super(message);
  }
}

const element = document.getElementById("held");
/** What a page in a file holds; nothing, where there is a server. */
export const held: Held | undefined = element ? JSON.parse(element.textContent!) : undefined;

const LONGEST = 90_000; // milliseconds that an answer may take; the server gives up earlier
const MOST_BYTES = 200_000_000; // of answers that are kept
const answers = new Map<string, Promise<Packet>>();
const sizes = new Map<string, number>();
const inside = new Map<string, string>();
for (const one of held?.answers ?? []) inside.set(keyOf(one.view, one.call, one.asked), one.packet);

/** The questions that each view has asked, for its file. */
const asking = new Map<string, { view: string; call: string; asked: object }>();

function keyOf(view: string, call: string, asked: object): string {
  const given = Object.entries(asked).filter(([, value]) => value !== null && value !== undefined);
  return JSON.stringify([view, call, given.sort(([a], [b]) => (a < b ? -1 : 1))]);
}

/** Ask a view's part of the server; the same question is asked once. */
export function ask(view: string, call: string, asked: object): Promise<Packet> {
  const key = keyOf(view, call, asked);
  const answered = known(key, view, call, asked);
  pending.during(answered).then(
    () => {
      asking.delete(key);
      asking.set(key, { view, call, asked });
    },
    () => {},
  );
  return answered;
}

/** Whether the answer to a question is here or on its way. */
export function isKnown(view: string, call: string, asked: object): boolean {
  return !!held || answers.has(keyOf(view, call, asked));
}

/** Ask what will be asked soon, one after the other while nothing else is to do; gives a way to stop. */
export function askAhead(questions: [view: string, call: string, asked: object][]): () => void {
  let wanted = !held;
  (async () => {
    for (const [view, call, asked] of questions) {
      await new Promise((done) => setTimeout(done, 30));
      if (!wanted) return;
      await known(keyOf(view, call, asked), view, call, asked).catch(() => (wanted = false));
    }
  })();
  return () => {
    wanted = false;
  };
}

function known(key: string, view: string, call: string, asked: object): Promise<Packet> {
  const before = answers.get(key);
  const answered = before ?? (held ? found(key) : fetched(view, call, asked));
  answers.delete(key); // the last one asked for comes last
  answers.set(key, answered);
  if (!before)
    answered.then(
      (packet) => keep(key, packet),
      () => answers.delete(key),
    );
  return answered;
}

/** Keep an answer, and forget the oldest when there are too many. */
function keep(key: string, packet: Packet): void {
  sizes.set(key, Object.values(packet.arrays).reduce((sum, array) => sum + array.data.byteLength, 1000));
  let all = [...answers.keys()].reduce((sum, one) => sum + (sizes.get(one) ?? 0), 0);
  for (const old of answers.keys()) {
    if (all <= MOST_BYTES || old === key) break;
    all -= sizes.get(old) ?? 0;
    answers.delete(old);
  }
}

/** Ask again even if the answer is known: for what changes, as a run that is being trained. */
export function askAgain(view: string, call: string, asked: object): Promise<Packet> {
  if (!held) answers.delete(keyOf(view, call, asked));
  return ask(view, call, asked);
}

export async function aboutAll(): Promise<About> {
  return held ? held.about : (await sent("/api/about")).json();
}

/** The page of a view as one file, as the server writes it, with what was asked about this very input. */
export async function exported(view: string, state: Record<string, string | undefined>): Promise<Blob> {
  const questions = [...asking.values()].filter((one) => {
    const asked = one.asked as Record<string, unknown>;
    return one.view === view && ["model", "text", "other"].every((name) => asked[name] === undefined || asked[name] === state[name]);
  });
  return (await pending.during(sent("/api/export", { view, state, questions: questions.slice(-40) }))).blob();
}

async function fetched(view: string, call: string, asked: object): Promise<Packet> {
  return unpack(await (await sent(`/api/${view}/${call}`, asked)).arrayBuffer());
}

/** An answer of the server, or the trouble that there is with it. */
async function sent(path: string, given?: object): Promise<Response> {
  const post = { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(given) };
  let response: Response;
  try {
    response = await fetch(path, { ...(given ? post : {}), signal: AbortSignal.timeout(LONGEST) });
  } catch {
    throw new Trouble("the explorer does not answer", ["start it again in the terminal, then reload this page"]);
  }
  if (!response.ok) throw await troubleOf(response);
  return response;
}

async function troubleOf(response: Response): Promise<Trouble> {
  try {
    const { error, more } = await response.json();
    return new Trouble(error, more ?? []);
  } catch {
    return new Trouble(`the explorer answered ${response.status}`);
  }
}

async function found(key: string): Promise<Packet> {
  const packet = inside.get(key);
  if (!packet) throw new Trouble("this file does not hold that", ["open the explorer on the model to go further"]);
  const bytes = Uint8Array.from(atob(packet), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return unpack(await new Response(stream).arrayBuffer());
}
