/** The pages beside the views: they are about the lectures, not about a model. */
import type { Component } from "svelte";
import Lectures from "./Lectures.svelte";
import Quiz from "./Quiz.svelte";

export const PAGES: Record<string, { title: string; about: string; component: Component }> = {
  lectures: {
    title: "Lectures",
    about: "Five decks topic by topic: what to type, what it shows, the code, and the test that proves it.",
    component: Lectures,
  },
  quiz: {
    title: "Quiz",
    about: "Missing words, and questions whose answers are computed for random numbers.",
    component: Quiz,
  },
};
