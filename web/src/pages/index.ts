/** The pages beside the views: they are about the lectures, not about a model. */
import type { Component } from "svelte";
import Catalogue from "./Catalogue.svelte";
import Lectures from "./Lectures.svelte";
import Lessons from "./Lessons.svelte";
import Quiz from "./Quiz.svelte";

export const PAGES: Record<string, { title: string; about: string; component: Component }> = {
  lectures: {
    title: "Lectures",
    about: "Five decks topic by topic: what to type, what it shows, the code, and the test that proves it.",
    component: Lectures,
  },
  lessons: {
    title: "Lessons",
    about: "Short walks through the views, with something to do and to guess at each step.",
    component: Lessons,
  },
  catalogue: {
    title: "Catalogue",
    about: "The stack of exchangeable parts: click a box, pick another part, and see the one key that changes.",
    component: Catalogue,
  },
  quiz: {
    title: "Quiz",
    about: "Missing words, and questions whose answers are computed for random numbers.",
    component: Quiz,
  },
};
