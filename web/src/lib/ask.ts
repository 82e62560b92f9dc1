/**
 * Questions to the server, one function for all views. Answers are cached; a page that was
 * saved as a file contains them.
 */
import type { Computed, Lesson } from "../lessons/lesson.svelte";
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
  examples?: Example[]; // from its own data, or one that it can read; the default first
  named?: string | null; // the name of an example's target; null where they are not from its own data
  looks?: string[]; // its kinds of attention
  reads?: "pair" | "two" | "one" | "none";
}

export interface About {
  subjects: Subject[];
  views: { name: string; title: string; about: string; opens: "" | "text" | "image" }[];
}

interface Held {
  lesson: { lesson: Lesson; answers: Computed[] } | null;
  about: About;
  view: string;
  state: Record<string, unknown>;
  answers: { view: string; call: string; asked: object; packet: string }[];
}

/** An error message for the user. */
export class RequestError extends Error {
  constructor(
    message: string,
    readonly more: string[] = [],
  ) {
    super(message);
  }
}

const element = document.getElementById("held");
/** What a page saved as a file holds; undefined, where there is a server. */
export const held: Held | undefined = element ? JSON.parse(element.textContent!) : undefined;

const LONGEST = 90_000; // milliseconds that an answer may take; the server gives up earlier
const MOST_BYTES = 200_000_000; // of cached answers
const answers = new Map<string, Promise<Packet>>();
const sizes = new Map<string, number>();
const saved = new Map<string, string>();
for (const one of held?.answers ?? []) saved.set(keyOf(one.view, one.call, one.asked), one.packet);

/** The questions that each view has asked, to save them in its file. */
const asking = new Map<string, { view: string; call: string; asked: object }>();

function keyOf(view: string, call: string, asked: object): string {
  const given = Object.entries(asked).filter(([, value]) => value !== null && value !== undefined);
  return JSON.stringify([view, call, given.sort(([a], [b]) => (a < b ? -1 : 1))]);
}

/** Send a view's question to the server; the same question is sent once. */
export function ask(view: string, call: string, asked: object): Promise<Packet> {
  const key = keyOf(view, call, asked);
  const answered = cachedPacket(key, view, call, asked);
  pending.during(answered).then(
    () => {
      asking.delete(key);
      asking.set(key, { view, call, asked });
    },
    () => {},
  );
  return answered;
}

/** Whether the answer to a question is cached or on its way. */
export function isKnown(view: string, call: string, asked: object): boolean {
  return !!held || answers.has(keyOf(view, call, asked));
}

/** Prefetch what will be asked soon, one question after the other; returns a function that stops it. */
export function prefetch(questions: [view: string, call: string, asked: object][]): () => void {
  let wanted = !held;
  (async () => {
    for (const [view, call, asked] of questions) {
      await new Promise((done) => setTimeout(done, 30));
      if (!wanted) return;
      await cachedPacket(keyOf(view, call, asked), view, call, asked).catch(() => (wanted = false));
    }
  })();
  return () => {
    wanted = false;
  };
}

function cachedPacket(key: string, view: string, call: string, asked: object): Promise<Packet> {
  const before = answers.get(key);
  const answered = before ?? (held ? savedPacket(key) : fetchPacket(view, call, asked));
  answers.delete(key); // the most recently used comes last
  answers.set(key, answered);
  if (!before)
    answered.then(
      (packet) => cache(key, packet),
      () => answers.delete(key),
    );
  return answered;
}

/** Cache an answer, and drop the oldest when they take too many bytes. */
function cache(key: string, packet: Packet): void {
  sizes.set(key, Object.values(packet.arrays).reduce((sum, array) => sum + array.data.byteLength, 1000));
  let all = [...answers.keys()].reduce((sum, one) => sum + (sizes.get(one) ?? 0), 0);
  for (const old of answers.keys()) {
    if (all <= MOST_BYTES || old === key) break;
    all -= sizes.get(old) ?? 0;
    answers.delete(old);
  }
}

/** Ask again even if the answer is cached: for what changes, such as a run in training. */
export function askAgain(view: string, call: string, asked: object): Promise<Packet> {
  if (!held) answers.delete(keyOf(view, call, asked));
  return ask(view, call, asked);
}

/** Send a file to a view, which answers with what it reads in it; neither is cached. */
export function upload(view: string, given: { model: string; file: string }): Promise<Packet> {
  return pending.during(fetchPacket(view, "read", given));
}

export async function fetchAbout(): Promise<About> {
  return held ? held.about : (await request("/api/about")).json();
}

/** A JSON document of the server's. */
export async function fetchJson<Document>(path: string): Promise<Document> {
  return (await pending.during(request(path))).json();
}

type State = Record<string, string | undefined>;

/** The page of a view as one file, as the server writes it, with what was asked about this input, and about that of a second pane. */
export async function exportView(view: string, state: State, second?: State): Promise<Blob> {
  const questions = [...asking.values()].filter((one) => {
    const asked = one.asked as Record<string, unknown>;
    const about = (input: State) => ["model", "text", "other"].every((name) => asked[name] === undefined || asked[name] === input[name]);
    return one.view === view && (about(state) || (second && about(second)));
  });
  return (await pending.during(request("/api/export", { view, state, questions: questions.slice(-40) }))).blob();
}

async function fetchPacket(view: string, call: string, asked: object): Promise<Packet> {
  return unpack(await (await request(`/api/${view}/${call}`, asked)).arrayBuffer());
}

/** The server's response, or its error. */
async function request(path: string, given?: object): Promise<Response> {
  const post = { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(given) };
  let response: Response;
  try {
    response = await fetch(path, { ...(given ? post : {}), signal: AbortSignal.timeout(LONGEST) });
  } catch {
    throw new RequestError("the explorer is not responding", ["restart it in the terminal, then reload this page"]);
  }
  if (!response.ok) throw await errorOf(response);
  return response;
}

async function errorOf(response: Response): Promise<RequestError> {
  try {
    const { error, more } = await response.json();
    return new RequestError(error, more ?? []);
  } catch {
    return new RequestError(`the explorer returned status ${response.status}`);
  }
}

async function savedPacket(key: string): Promise<Packet> {
  const packet = saved.get(key);
  if (!packet) throw new RequestError("this file does not contain that", ["open the explorer on the model to go further"]);
  const bytes = Uint8Array.from(atob(packet), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return unpack(await new Response(stream).arrayBuffer());
}
