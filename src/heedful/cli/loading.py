"""A run's model, ready for a verb."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import torch
import typer

from heedful.errors import UserError, printable
from heedful.runs.load import few_threads, load
from heedful.tasks.answering.predictor import QuestionAnswerer
from heedful.tasks.classification.predictor import TextClassifier, TextRegressor
from heedful.tasks.language_model.predictor import BidirectionalLanguageModel, TextGenerator
from heedful.tasks.multiple_choice.predictor import MultipleChoiceAnswerer
from heedful.tasks.pretraining.predictor import TextEncoder
from heedful.tasks.reconstruction.predictor import ImageAutoencoder
from heedful.tasks.tagging.predictor import TokenTagger
from heedful.tasks.translation.predictor import Translator
from heedful.tasks.tree_classification.predictor import TreeClassifier

Predictor = TypeVar("Predictor")
# What each kind of model does, and with what it is asked to.
USES: dict[type, tuple[str, str]] = {
    Translator: ("translates", "`heedful translate`"),
    TextGenerator: ("goes on with texts", "`heedful generate`"),
    TreeClassifier: ("judges trees", "`heedful classify-tree`"),
    TextClassifier: ("says the class of texts", "`heedful classify`"),
    TextRegressor: ("says a number of texts", "`heedful classify`"),
    MultipleChoiceAnswerer: ("chooses how texts go on", "`heedful choose`"),
    TokenTagger: ("marks words of texts", "`heedful tag`"),
    QuestionAnswerer: ("answers questions about a passage", "`heedful answer`"),
    ImageAutoencoder: ("makes images from their codes", "`heedful reconstruct`, `heedful denoise` or `heedful encode`"),
    TextEncoder: (
        "gives vectors of texts",
        "`heedful embed`, and where it has a head for hidden words, `heedful fill-mask`",
    ),
    BidirectionalLanguageModel: ("gives vectors of texts", "it from Python: heedful.load(RUN).layers([TEXT])"),
}


def load_run(run: Path) -> Any:
    """The model of a run folder, with as many CPU threads as its size is worth."""
    predictor = load(run)
    torch.set_num_threads(few_threads(predictor.model, predictor.device))
    for note in predictor.notes:
        typer.echo(f"note: {printable(note)}", err=True)
    return predictor


def load_as(kind: type[Predictor], run: Path) -> Predictor:
    """The same, if it is of a kind that the verb can use."""
    predictor = load_run(run)
    if not isinstance(predictor, kind):
        raise other_use(predictor, run)
    return predictor


def other_use(predictor: Any, run: Path) -> UserError:
    """The error of a verb that a model is not for."""
    does, use = USES[type(predictor)]
    return UserError(f"this model {does}", where=str(run), todo=f"use {use}")
