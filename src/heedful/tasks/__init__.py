"""The table of tasks. A task is a folder: its recipe, which needs no torch, its job, and its predictor."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from heedful.tasks.base import Job
    from heedful.tasks.recipe_parts import Recipe


class Task(NamedTuple):
    """Where a task is found, and the kinds of models that it trains."""

    folder: str
    recipe: str  # the class of its recipes
    job: str  # the class of its jobs
    models: tuple[str, ...]


TASKS = {
    "translation": Task("translation", "TranslationRecipe", "TranslationJob", ("transformer", "seq2seq")),
    "language_model": Task("language_model", "LanguageModelRecipe", "LanguageModelJob", ("rnn_lm", "elmo", "gpt")),
    "tree_classification": Task("tree_classification", "TreeRecipe", "TreeJob", ("tree_lstm",)),
    "pretraining": Task("pretraining", "PretrainingRecipe", "PretrainingJob", ("bert",)),
    "classification": Task("classification", "ClassificationRecipe", "ClassificationJob", ("classifier",)),
    "text_classification": Task(
        "text_classification", "TextClassificationRecipe", "TextClassificationJob", ("conv_classifier",)
    ),
    "regression": Task("classification", "RegressionRecipe", "RegressionJob", ("regressor",)),
    "multiple_choice": Task("multiple_choice", "MultipleChoiceRecipe", "MultipleChoiceJob", ("multiple_choice",)),
    "tagging": Task("tagging", "TaggingRecipe", "TaggingJob", ("tagger",)),
    "reconstruction": Task("reconstruction", "ReconstructionRecipe", "ReconstructionJob", ("autoencoder",)),
    "answering": Task("answering", "AnsweringRecipe", "AnsweringJob", ("answerer",)),
}


def recipe_class(kind: str) -> type[Recipe]:
    """The class of a task's recipes, which is imported when it is asked for."""
    task = TASKS[kind]
    found: type[Recipe] = getattr(importlib.import_module(f"heedful.tasks.{task.folder}.recipe"), task.recipe)
    return found


def job_class(kind: str) -> type[Job]:
    """The class of a task's jobs, likewise."""
    task = TASKS[kind]
    found: type[Job] = getattr(importlib.import_module(f"heedful.tasks.{task.folder}.task"), task.job)
    return found


def job_of(recipe: Recipe) -> Job:
    """The job that a recipe describes."""
    return job_class(recipe.task.kind)(recipe)
