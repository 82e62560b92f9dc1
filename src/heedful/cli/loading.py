"""Load the model of a command."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import torch
import typer

from heedful.errors import UserError, printable
from heedful.runs.load import few_threads, load
from heedful.tasks.answering.predictor import QuestionAnswerer
from heedful.tasks.captioning.predictor import ImageCaptioner
from heedful.tasks.classification.numbers import MultiRegressor
from heedful.tasks.classification.predictor import TextClassifier, TextRegressor
from heedful.tasks.control.predictor import Agent
from heedful.tasks.dialogue.predictor import DialogueModel
from heedful.tasks.image_classification.predictor import ImageClassifier
from heedful.tasks.language_model.bidirectional import BidirectionalLanguageModel
from heedful.tasks.language_model.predictor import TextGenerator
from heedful.tasks.multi_label.predictor import MultiLabelClassifier
from heedful.tasks.multiple_choice.predictor import MultipleChoiceAnswerer
from heedful.tasks.paragraphs.predictor import ImageDescriber
from heedful.tasks.pretraining.predictor import TextEncoder
from heedful.tasks.reconstruction.predictor import ImageAutoencoder
from heedful.tasks.story_answering.predictor import StoryAnswerer
from heedful.tasks.style_transfer.predictor import TextStyleTransfer
from heedful.tasks.tabular.predictor import TablePredictor
from heedful.tasks.tagging.predictor import TokenTagger
from heedful.tasks.text_autoencoding.predictor import SentenceAutoencoder
from heedful.tasks.translation.predictor import Translator
from heedful.tasks.tree_classification.predictor import TreeClassifier

Predictor = TypeVar("Predictor")
# What each kind of model does, and the command for it.
USES: dict[type, tuple[str, str]] = {
    Translator: ("translates", "`heedful translate`"),
    DialogueModel: ("replies in dialogues", "`heedful chat`"),
    TextGenerator: ("generates text", "`heedful generate`"),
    TreeClassifier: ("classifies trees", "`heedful classify-tree`"),
    TextClassifier: ("classifies texts", "`heedful classify`"),
    TextRegressor: ("predicts a number for texts", "`heedful classify`"),
    MultiRegressor: ("predicts numbers for texts", "`heedful classify`"),
    MultiLabelClassifier: ("labels texts", "`heedful classify`"),
    MultipleChoiceAnswerer: ("chooses continuations", "`heedful choose`"),
    TablePredictor: ("predicts a column of a table", "`heedful predict RUN rows.csv`"),
    TextStyleTransfer: ("says texts in another style", "`heedful transfer`"),
    TokenTagger: ("tags words", "`heedful tag`"),
    QuestionAnswerer: ("answers questions about a passage", "`heedful answer`"),
    SentenceAutoencoder: ("encodes and decodes sentences", "`heedful interpolate` or `heedful sample`"),
    StoryAnswerer: ("answers questions about a story", "`heedful answer`"),
    ImageAutoencoder: ("reconstructs images", "`heedful reconstruct`, `heedful denoise` or `heedful encode`"),
    ImageCaptioner: ("describes images", "`heedful caption`"),
    ImageDescriber: ("describes images and their regions", "`heedful describe`"),
    Agent: ("plays an environment", "`heedful play`"),
    ImageClassifier: ("classifies images", "`heedful classify`"),
    TextEncoder: (
        "embeds texts",
        "`heedful embed`, or `heedful fill-mask` if it has a head for masked tokens",
    ),
    BidirectionalLanguageModel: ("embeds texts", "Python: heedful.load(RUN).layers([TEXT])"),
}


def load_run(run: Path) -> Any:
    """Load a model, and set the number of CPU threads by its size."""
    predictor = load(run)
    torch.set_num_threads(few_threads(predictor.model, predictor.device))
    for note in predictor.notes:
        typer.echo(f"note: {printable(note)}", err=True)
    return predictor


def load_as(kind: type[Predictor], run: Path) -> Predictor:
    """Load a model of this kind; another kind is an error that names its command."""
    predictor = load_run(run)
    if not isinstance(predictor, kind):
        raise wrong_command_error(predictor, run)
    return predictor


def wrong_command_error(predictor: Any, run: Path) -> UserError:
    """The error for a model that the command cannot use."""
    does, use = USES[type(predictor)]
    return UserError(f"this model {does}", where=str(run), todo=f"use {use}")
