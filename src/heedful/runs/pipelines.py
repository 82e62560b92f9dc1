"""Predictors by the names that users of `transformers` type, with results in the same form."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from heedful.data.fields.columns import Array, Picture
from heedful.errors import UserError, shown
from heedful.runs.load import AnyPredictor, load
from heedful.tasks import TASKS
from heedful.tasks.answering.predictor import QuestionAnswerer
from heedful.tasks.captioning.predictor import ImageCaptioner
from heedful.tasks.classification.numbers import MultiRegressor
from heedful.tasks.classification.predictor import TextClassifier, TextRegressor
from heedful.tasks.control.predictor import Agent
from heedful.tasks.dialogue.predictor import DialogueModel
from heedful.tasks.image_classification.glimpses import GlimpseClassifier
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

P = TypeVar("P")
Answers = Sequence[Any]


Fits = Callable[[Any], bool]


def is_text(given: Any) -> bool:
    """Whether an input is a text."""
    return isinstance(given, str)


def is_text_or_pair(given: Any) -> bool:
    """Whether an input is a text or a pair of texts."""
    return isinstance(given, str) or (isinstance(given, tuple) and len(given) == 2 and all(map(is_text, given)))


def is_text_or_words(given: Any) -> bool:
    """Whether an input is a text or the words of one."""
    return isinstance(given, str) or (isinstance(given, list | tuple) and all(map(is_text, given)))


def is_pair(given: Any) -> bool:
    """Whether an input is two texts."""
    return isinstance(given, tuple) and len(given) == 2 and all(map(is_text, given))


def is_story(given: Any) -> bool:
    """Whether an input is a story, as a text or its sentences, and a question."""
    return isinstance(given, tuple) and len(given) == 2 and is_text_or_words(given[0]) and is_text(given[1])


def has_choices(given: Any) -> bool:
    """Whether an input is a text with several continuations."""
    return isinstance(given, tuple) and len(given) == 2 and is_text(given[0]) and is_history(given[1])


def is_history(given: Any) -> bool:
    """Whether an input is a list of texts."""
    return isinstance(given, list | tuple) and len(given) > 0 and all(map(is_text, given))


def is_image(given: Any) -> bool:
    """Whether an input is an image, or the path of one."""
    return isinstance(given, str | os.PathLike | Array | Picture)


def has_boxes(given: Any) -> bool:
    """Whether an input is an image with boxes in it."""
    return (
        isinstance(given, tuple) and len(given) == 2 and is_image(given[0]) and isinstance(given[1], Sequence | Array)
    )


def is_row(given: Any) -> bool:
    """Whether an input is a row of a table."""
    return isinstance(given, Mapping)


def is_observation(given: Any) -> bool:
    """Whether an input is a list of numbers."""
    return isinstance(given, Sequence | Array) and not isinstance(given, str | bytes)


def is_asked(given: Any) -> bool:
    """Whether an input is a question with its context."""
    return isinstance(given, Mapping) and all(isinstance(given.get(key), str) for key in ("question", "context"))


ONE = (str, bytes, tuple, Mapping)  # what is never a list of inputs
EXPECTED: dict[Fits, str] = {
    is_text: "a text",
    is_text_or_pair: "a text, or a pair of texts",
    is_asked: "{'question': a text, 'context': a text}",
    is_text_or_words: "a text, or a tuple of words",
    is_pair: "two texts, as (text, text)",
    is_story: "a story and a question, as (story, question)",
    has_choices: "a text and its continuations, as (text, [choice, choice])",
    is_history: "a list of utterances, as [[text, text]] for one dialogue",
    is_image: "an array, an image of Pillow, or the path of a file",
    has_boxes: "an image and boxes in it, as (image, [[top, left, bottom, right]])",
    is_row: "a row, as {'column': value}",
    is_observation: "a list of numbers",
}


SHAPED = (is_image, is_observation)  # inputs that may be arrays, of which only a list is several


@dataclass(frozen=True, repr=False)
class Pipeline(Generic[P]):
    """A predictor that is called with an input, or a list of inputs, and returns dicts."""

    task: str
    predictor: P
    results: Callable[[Any, list[Any]], Answers]
    fits: Fits  # of one input

    def __repr__(self) -> str:
        """The task and the kind of predictor, without its model."""
        return f"Pipeline({self.task!r}, {type(self.predictor).__name__})"

    def __call__(self, inputs: Any) -> Any:
        """The result of an input, or the list of results of a list, of a column or of an iterator."""
        one = isinstance(inputs, ONE) or (self.fits in SHAPED and not isinstance(inputs, list))
        several = list(inputs) if isinstance(inputs, Iterable) and not one else inputs
        if isinstance(several, list):
            return list(
                self.results(self.predictor, [self._checked(one, f"input {n}") for n, one in enumerate(several)])
            )
        return self.results(self.predictor, [self._checked(several, "the input")])[0]

    def _checked(self, given: Any, where: str) -> Any:
        if not self.fits(given):
            raise UserError(
                "invalid input for this pipeline", where=where, found=shown(given), expected=EXPECTED[self.fits]
            )
        return given


def labels(classifier: TextClassifier, texts: list[Any]) -> Answers:
    """The most probable class of each text, and its probability."""
    return [{"label": one.label, "score": one.probability} for one in classifier.predict(texts)]


def ranked(classifier: ImageClassifier, images: list[Any]) -> Answers:
    """The five most probable classes of each image."""
    found = classifier.predict(images)
    return [[{"label": name, "score": score} for name, score in one.probabilities.items()] for one in found]


def entities(tagger: TokenTagger, texts: list[str]) -> Answers:
    """The entities of each text."""
    return [
        [
            {"entity_group": one.kind, "score": one.probability, "word": one.text, "start": one.start, "end": one.end}
            for one in text.entities
        ]
        for text in tagger.predict(texts)
    ]


def spans(answerer: QuestionAnswerer, asked: list[dict[str, str]]) -> Answers:
    """The best answer to each question about its context; None if the context is empty."""
    found = answerer.predict([(one["question"], one["context"]) for one in asked])
    return [
        None if one is None else {"score": one.probability, "start": one.start, "end": one.end, "answer": one.text}
        for one in found
    ]


def fillings(encoder: TextEncoder, texts: list[str]) -> Answers:
    """The five most probable tokens for the mask of each text; of several masks, a list for each."""
    found = [
        [[{"score": token.probability, "token_str": token.word} for token in mask] for mask in one.predictions]
        for one in map(encoder.fill, texts)
    ]
    return [masks[0] if len(masks) == 1 else masks for masks in found]


def token_vectors(encoder: TextEncoder, texts: list[str]) -> Answers:
    """The vector of every token of each text, special ones included."""
    return [one.values.tolist() for one in encoder.vectors(texts)]


def continuations(generator: TextGenerator, prompts: list[str]) -> Answers:
    """Each prompt with its continuation."""
    return [[{"generated_text": one.prompt + one.completion}] for one in generator.predict(prompts)]


def translations(translator: Translator, texts: list[str]) -> Answers:
    """The translation of each text."""
    return [{"translation_text": one.text} for one in translator.predict(texts)]


def captions(captioner: ImageCaptioner, images: list[Any]) -> Answers:
    """The caption of each image."""
    return [[{"generated_text": one.text}] for one in captioner.predict(images)]


def fields(predictor: Any, inputs: list[Any]) -> Answers:
    """All fields of each prediction; None where there is none."""
    return [None if one is None else one.to_dict() for one in predictor.predict(inputs)]


PIPELINES: dict[str, tuple[type, Callable[[Any, list[Any]], Answers], Fits]] = {
    "text-classification": (TextClassifier, labels, is_text_or_pair),
    "token-classification": (TokenTagger, entities, is_text),
    "question-answering": (QuestionAnswerer, spans, is_asked),
    "fill-mask": (TextEncoder, fillings, is_text),
    "feature-extraction": (TextEncoder, token_vectors, is_text),
    "text-generation": (TextGenerator, continuations, is_text),
    "translation": (Translator, translations, is_text),
    "image-classification": (ImageClassifier, ranked, is_image),
    "image-to-text": (ImageCaptioner, captions, is_image),
}
ALIASES = {
    "classification": "text-classification",
    "sentiment-analysis": "text-classification",
    "ner": "token-classification",
}
FITS: dict[type, Fits] = {  # inputs of the predictors of all other tasks
    TextClassifier: is_text_or_pair,
    MultiLabelClassifier: is_text_or_pair,
    TextRegressor: is_text_or_pair,
    MultiRegressor: is_text_or_pair,
    Translator: is_text,
    TextGenerator: is_text,
    TextEncoder: is_text,
    BidirectionalLanguageModel: is_text,
    SentenceAutoencoder: is_text,
    TreeClassifier: is_text,
    TokenTagger: is_text_or_words,
    QuestionAnswerer: is_pair,
    TextStyleTransfer: is_pair,
    StoryAnswerer: is_story,
    MultipleChoiceAnswerer: has_choices,
    DialogueModel: is_history,
    ImageClassifier: is_image,
    GlimpseClassifier: is_image,
    ImageAutoencoder: is_image,
    ImageCaptioner: is_image,
    ImageDescriber: has_boxes,
    TablePredictor: is_row,
    Agent: is_observation,
}
SAME = {"permutation_lm": "pretraining", "text_classification": "classification"}  # tasks of the same predictors


def pipeline(task: str, path: str | Path, device: str | None = None) -> Pipeline[AnyPredictor]:
    """A model of a run, a model folder or a Hugging Face folder, called as the pipelines of `transformers` are.

    `task` is one of their names, or a kind of task as recipes name it; then results have the fields of `predict`.

    >>> classify = heedful.pipeline("text-classification", "runs/reviews")
    >>> classify("A fine film.")
    {'label': 'good', 'score': 0.98}
    """
    name = ALIASES.get(task, str(task))
    if name in TASKS and name not in PIPELINES:
        predictor = load(path, device)
        if predictor.task != SAME.get(name, name):
            raise UserError(
                f"this folder does not hold a model of the task {name}", where=str(path),
                found=f"a {type(predictor).__name__}", todo=f"heedful.pipeline({predictor.task!r}, path)",
            )  # fmt: skip
        return Pipeline(name, predictor, fields, FITS[type(predictor)])
    if name not in PIPELINES:
        close = difflib.get_close_matches(name, [*PIPELINES, *ALIASES, *TASKS], n=1)
        raise UserError(
            "there is no such pipeline", where="task", found=shown(task),
            expected="one of " + ", ".join([*PIPELINES, *ALIASES]) + ", or a kind of task",
            todo=f"did you mean {close[0]}?" if close else "heedful.load(path) returns the predictor of any model",
        )  # fmt: skip
    kind, results, fits = PIPELINES[name]
    return Pipeline(name, load(path, kind, device), results, fits)
