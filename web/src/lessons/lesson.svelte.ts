/** The lesson that the address names, as `lesson=NAME/STEP` with steps from 0, and what the student guessed in it. */
import { address } from "../lib/address.svelte";
import { fetchJson, held, RequestError, type Subject } from "../lib/ask";
import { open } from "../lib/open.svelte";

export interface About {
  name: string;
  title: string;
  about: string;
  topics: string[];
  model: string; // which models it is for
  command: string;
  views: string[];
  given: boolean; // whether it brings a text of its own
}

export interface Step {
  title: string;
  state: Record<string, string>;
  spot: string;
  do: string;
  until: Record<string, string>; // * stands for any value
  cover: boolean; // the figure, until there is a guess
}

export interface Piece {
  kind: "text" | "em" | "code" | "value";
  text: string;
  value?: number | null;
}

export interface Question {
  prompt: string;
  choices: { name: string; value: number | null; text: string }[];
  right: number;
  truth: string;
  then: Record<string, string>;
  because: Piece[];
}

export interface Computed {
  paragraphs: Piece[][];
  question: Question | null;
  otherwise: string[]; // comparisons of the text that are not so on this model
}

export interface Lesson extends Omit<About, "steps"> {
  steps: Step[];
}

/** Whether a button can do what is to be done: not where any value will do. */
export function showable(step: Step): boolean {
  return !Object.values(step.until).includes("*");
}

/** Whether a model has all views of a lesson. */
export function fits(lesson: { views: string[] }, subject: Subject): boolean {
  return lesson.views.every((view) => subject.views.includes(view));
}

/** Lessons to begin with: those for this model by its name, then others that it fits with its own texts. */
export function suggested<L extends About>(lessons: L[], subject: Subject): L[] {
  const meant = (one: About) => new RegExp(`\\b${subject.name.replace(/\W/g, "\\$&")}(?![\\w-])`).test(one.command);
  const found = lessons.filter((one) => fits(one, subject) && (meant(one) || !one.given));
  return [...found.filter(meant), ...found.filter((one) => !meant(one))];
}

/** The model for a lesson: one that it names, else one with all its views. */
export function fitting(lesson: About, subjects: Subject[]): Subject | undefined {
  return subjects.find((one) => suggested([lesson], one).length) ?? subjects.find((one) => fits(lesson, one));
}

/** The address of the first step of a lesson, on a model. */
export function entry(lesson: About, model: string): string {
  const none = Object.fromEntries(Object.keys(address.all).map((name) => [name, name === "theme" ? address.text(name) : null]));
  return address.link({ ...none, model, lesson: `${lesson.name}/0` });
}

export function fetchLessons(): Promise<(About & { steps: number })[]> {
  return fetchJson("/api/lessons");
}

export async function fetchLesson(name: string, model: string): Promise<Lesson> {
  return held?.lesson ? held.lesson.lesson : fetchJson(`/api/lesson?${new URLSearchParams({ name, model })}`);
}

export async function fetchStep(name: string, at: number, model: string): Promise<Computed> {
  if (held?.lesson) return held.lesson.answers[at];
  return fetchJson(`/api/lesson/step?${new URLSearchParams({ name, at: String(at), model })}`);
}

/** The address of a step: the state of the step alone, and what belongs to no step. */
export function leading(lesson: Lesson, at: number): Record<string, string | null> {
  const none = Object.fromEntries(Object.keys(address.all).map((name) => [name, null]));
  const kept = Object.fromEntries(["theme", "room", "size"].filter((name) => address.has(name)).map((name) => [name, address.text(name)]));
  return { ...none, ...kept, ...lesson.steps[at].state, model: open.subject?.name ?? null, lesson: `${lesson.name}/${at}` };
}

export const current = {
  get open(): boolean {
    return address.has("lesson");
  },
  /** Whether all steps are on one page. */
  get whole(): boolean {
    return address.has("lesson") && address.has("all");
  },
  get name(): string {
    return address.text("lesson").replace(/\/\d*$/, "");
  },
  get at(): number {
    return Number(/\/(\d+)$/.exec(address.text("lesson"))?.[1] ?? 0);
  },
};

export { RequestError };
