"""The table of tasks. A task is a folder: its recipe, which needs no torch, its class, and its predictor."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from heedful.tasks.base import Task
    from heedful.tasks.recipe_parts import Recipe


class Entry(NamedTuple):
    """Where a task is found, and the kinds of models that it trains."""

    folder: str
    recipe: str  # the class of its recipes
    task: str  # the class that does what a run asks of it
    models: tuple[str, ...]


TASKS = {
    "translation": Entry("translation", "TranslationRecipe", "TranslationTask", ("transformer", "seq2seq")),
    "language_model": Entry("language_model", "LanguageModelRecipe", "LanguageModelTask", ("rnn_lm", "elmo", "gpt")),
    "tree_classification": Entry("tree_classification", "TreeRecipe", "TreeTask", ("tree_lstm",)),
    "pretraining": Entry("pretraining", "PretrainingRecipe", "PretrainingTask", ("bert",)),
    "classification": Entry("classification", "ClassificationRecipe", "ClassificationTask", ("classifier",)),
    "text_classification": Entry(
        "text_classification", "TextClassificationRecipe", "TextClassificationTask", ("conv_classifier",)
    ),
    "regression": Entry("classification", "RegressionRecipe", "RegressionTask", ("regressor",)),
    "multiple_choice": Entry("multiple_choice", "MultipleChoiceRecipe", "MultipleChoiceTask", ("multiple_choice",)),
    "tagging": Entry("tagging", "TaggingRecipe", "TaggingTask", ("tagger",)),
    "reconstruction": Entry("reconstruction", "ReconstructionRecipe", "ReconstructionTask", ("autoencoder",)),
    "answering": Entry("answering", "AnsweringRecipe", "AnsweringTask", ("answerer",)),
}


def recipe_class(kind: str) -> type[Recipe]:
    """The class of a task's recipes, which is imported when it is asked for."""
    entry = TASKS[kind]
    found: type[Recipe] = getattr(importlib.import_module(f"heedful.tasks.{entry.folder}.recipe"), entry.recipe)
    return found


def task_class(kind: str) -> type[Task]:
    """The class of a task, likewise."""
    entry = TASKS[kind]
    found: type[Task] = getattr(importlib.import_module(f"heedful.tasks.{entry.folder}.task"), entry.task)
    return found


def task_of(recipe: Recipe) -> Task:
    """The task that a recipe describes."""
    return task_class(recipe.task.kind)(recipe)
