"""The table of tasks. A task is a folder: its recipe, which needs no torch, its class, and its predictor."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from heedful.models import MODELS, kinds_of

if TYPE_CHECKING:
    from heedful.models.roles import Role
    from heedful.tasks.base import AnyTask
    from heedful.tasks.recipe_parts import Recipe


class Entry(NamedTuple):
    """Where a task is defined, and the roles of the models that it trains."""

    folder: str
    recipe: str  # the class of its recipes
    task: str  # the class of the task
    roles: tuple[Role, ...]
    also: Mapping[Role, str] = {}  # more roles, and the task whose classes are used for them

    @property
    def models(self) -> tuple[str, ...]:
        """The kinds of models that it trains."""
        return kinds_of(*self.roles, *self.also)


TASKS = {
    "translation": Entry("translation", "TranslationRecipe", "TranslationTask", ("seq2seq",)),
    "dialogue": Entry("dialogue", "DialogueRecipe", "DialogueTask", ("hierarchical", "seq2seq")),
    "language_model": Entry("language_model", "LanguageModelRecipe", "LanguageModelTask", ("causal", "bidirectional")),
    "tree_classification": Entry("tree_classification", "TreeRecipe", "TreeTask", ("tree_classifier",)),
    "pretraining": Entry("pretraining", "PretrainingRecipe", "PretrainingTask", ("encoder",)),
    "permutation_lm": Entry("permutation_lm", "PermutationRecipe", "PermutationTask", ("two_streams",)),
    "classification": Entry(
        "classification",
        "ClassificationRecipe",
        "ClassificationTask",
        ("classifier",),
        also={"word_classifier": "text_classification"},
    ),
    "text_classification": Entry(
        "classification", "TextClassificationRecipe", "TextClassificationTask", ("word_classifier",)
    ),
    "regression": Entry("classification", "RegressionRecipe", "RegressionTask", ("regressor",)),
    "multi_label": Entry("multi_label", "MultiLabelRecipe", "MultiLabelTask", ("multi_label",)),
    "multiple_choice": Entry("multiple_choice", "MultipleChoiceRecipe", "MultipleChoiceTask", ("multiple_choice",)),
    "style_transfer": Entry("style_transfer", "StyleTransferRecipe", "StyleTransferTask", ("style_transfer",)),
    "tagging": Entry("tagging", "TaggingRecipe", "TaggingTask", ("tagger",)),
    "tabular": Entry("tabular", "TabularRecipe", "TabularTask", ("tabular",)),
    "text_autoencoding": Entry(
        "text_autoencoding", "TextAutoencodingRecipe", "TextAutoencodingTask", ("text_autoencoder",)
    ),
    "reconstruction": Entry("reconstruction", "ReconstructionRecipe", "ReconstructionTask", ("autoencoder",)),
    "image_classification": Entry(
        "image_classification",
        "ImageClassificationRecipe",
        "ImageClassificationTask",
        ("image_encoder", "glimpse_classifier"),
    ),
    "paragraphs": Entry("paragraphs", "ParagraphRecipe", "ParagraphTask", ("paragraph_captioner",)),
    "captioning": Entry("captioning", "CaptioningRecipe", "CaptioningTask", ("captioner",)),
    "control": Entry("control", "ControlRecipe", "ControlTask", ("policy", "q_network")),
    "story_answering": Entry("story_answering", "StoryRecipe", "StoryTask", ("story_answerer",)),
    "answering": Entry("answering", "AnsweringRecipe", "AnsweringTask", ("answerer",)),
}


def entry_of(kind: str, model: str | None = None) -> Entry:
    """The line of a task; which one it is may depend on the kind of model."""
    entry, found = TASKS[kind], MODELS.get(model or "")
    return TASKS[entry.also[found.role]] if found and found.role in entry.also else entry


def recipe_class(kind: str, model: str | None = None) -> type[Recipe]:
    """The class of a task's recipes, imported on first use."""
    entry = entry_of(kind, model)
    found: type[Recipe] = getattr(importlib.import_module(f"heedful.tasks.{entry.folder}.recipe"), entry.recipe)
    return found


def task_class(kind: str, model: str | None = None) -> type[AnyTask]:
    """The class of a task, imported on first use."""
    entry = entry_of(kind, model)
    found: type[AnyTask] = getattr(importlib.import_module(f"heedful.tasks.{entry.folder}.task"), entry.task)
    return found


def task_of(recipe: Recipe) -> AnyTask:
    """The task that a recipe describes."""
    return task_class(recipe.task.kind, recipe.model.kind)(recipe)
