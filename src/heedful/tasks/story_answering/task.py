"""Answering questions about stories: a class for each answer, from the sentences of the story."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from heedful.blocks.losses import Loss
from heedful.data.formats.sources import Split
from heedful.data.stories.batches import EncodedStories, StoryBatches, encode_stories
from heedful.data.stories.sources import own_stories
from heedful.data.stories.story import Stories, words_of
from heedful.data.tokenizers.vocabulary import TextVocab
from heedful.errors import UserError, shown
from heedful.models.roles import StoryModelConfig
from heedful.tasks.base import Codec, Evaluated, HeldOut, Names, Task
from heedful.tasks.story_answering.predictor import KNOWN, StoryAnswerer, mean_loss, story_loss, story_scores
from heedful.tasks.story_answering.recipe import StoryRecipe
from heedful.training.class_report import ClassReport, answer_report


class StoryTask(Task[Stories, TextVocab, EncodedStories, StoryAnswerer]):
    """Answer questions about stories."""

    words: ClassVar = Names(
        examples="stories",
        tokens="words",
        too_long="questions that are too long",
        blank="stories without a question, left out",
        learning="collecting the words and the answers",
        encoding="encoding the stories",
        testing="answering the {} set",
        sample=("story", "answer", "predicted"),
        counted="questions",
        loss="nats a question",
    )
    decoding: ClassVar = None
    artifacts: ClassVar = {"tokenizer.json": Codec(TextVocab, TextVocab.load)}
    searches: ClassVar = False

    recipe: StoryRecipe

    collect = staticmethod(own_stories)

    def read(self, split: Split) -> Stories:
        """The stories of a split."""
        found: Stories = self.recipe.data.read(split)
        return found

    def learn(self, read: Stories) -> TextVocab:
        """The words of the stories and questions, and the answers."""
        labels = self.recipe.model.labels or tuple(sorted({one.question.answer for one in read.asked}))
        if len(labels) < 2:
            raise UserError(
                "all questions have the same answer", where="the training data", found=shown(labels[0]),
                expected="at least two different answers",
            )  # fmt: skip
        texts = (text for story in read.stories for text in (*story.sentences, *(one.text for one in story.questions)))
        return TextVocab.learn((" ".join(words_of(text)) for text in texts), labels, "words", True, 1)

    @staticmethod
    def fitted(config: StoryModelConfig, vocabulary: TextVocab, where: str) -> Any:
        """The settings of a model with the number of words and the answers."""
        if config.labels not in (None, vocabulary.labels):
            raise UserError(
                "the model has other answers than its vocabulary", where=f"{where}.labels",
                found=shown(config.labels), expected=shown(vocabulary.labels),
            )  # fmt: skip
        return Task.fitted(config.model_copy(update={"labels": vocabulary.labels}), vocabulary, where)

    def encode(self, read: Stories, vocabulary: TextVocab) -> EncodedStories:
        """The words of sentences and questions, and the classes of the answers."""
        encoded = encode_stories(read.asked, vocabulary, self.recipe.model.memory)
        if not len(encoded.with_targets):
            raise UserError(
                "no question has an answer of the training data", where="data", found=shown(encoded.unseen[0]),
                expected=f"one of {shown(vocabulary.labels)}",
            )  # fmt: skip
        return encoded

    def notes(self, encoded: EncodedStories) -> list[str]:
        """A note on stories that are longer than the memory."""
        long, memory = int(np.count_nonzero(encoded.forgotten)), self.recipe.model.memory
        note = f"{long:,} of {len(encoded):,} questions are about more than {memory} sentences; the last are kept"
        return [note] if long else []

    def batches(self, encoded: EncodedStories, packed: bool, even: bool) -> StoryBatches:
        """Batches of questions about stories of similar lengths."""
        train = self.recipe.train
        return StoryBatches(encoded, train.seed, train.batch_tokens, train.batch_examples)

    def loss_of(self, model: Any, packed: bool) -> Callable[[Any], Loss]:
        """The cross-entropy of the answers."""
        return partial(story_loss, model)

    @staticmethod
    def predictor(
        model: Any,
        config: StoryModelConfig,
        vocabulary: TextVocab,
        decode: None,
        device: torch.device,
        notes: tuple[str, ...] = (),
    ) -> StoryAnswerer:
        """The answerer of a trained model."""
        return StoryAnswerer(model, vocabulary, device, notes)

    def loss(self, predictor: StoryAnswerer, encoded: EncodedStories) -> float:
        """The mean loss per question."""
        return mean_loss(predictor.model, encoded, predictor.device)

    def evaluate(self, predictor: StoryAnswerer, held_out: HeldOut[Stories, EncodedStories]) -> Evaluated:
        """Accuracy and supporting facts, and a few questions with their stories."""
        asked, encoded = held_out.read.asked, held_out.encoded
        shares, weights = predictor.outputs(encoded)
        samples = []
        for row in held_out.rows(len(asked), self.recipe.train.samples):
            one, best = asked[row], int(shares[row].argmax())
            text = " ".join([*one.sentences, one.question.text])
            samples.append((text, one.question.answer, f"{predictor.labels[best]} ({shares[row][best]:.0%})"))
        return held_out.result(story_scores(shares, weights, encoded, asked), samples)

    def remarks(self, result: Evaluated) -> list[str]:
        """A remark on answers that training has not seen, if there are any."""
        return [
            f"{100 - score.value:.1f}% of the questions have an answer that training has not seen, which counts as "
            f"wrong: {score.signature.rpartition(':')[2]}"
            for score in result.scores
            if score.name == KNOWN
        ]

    def details(self, predictor: StoryAnswerer, split: Split) -> ClassReport:
        """Calibration of the answers, and the questions with the most confident wrong ones."""
        asked, labels = (read := self.read(split)).asked, predictor.labels
        shares, _ = predictor.outputs(self.encode(read, predictor.tokenizer))
        best, right = [int(each.argmax()) for each in shares], [one.question.answer for one in asked]
        hits = [labels[found] == answer for found, answer in zip(best, right, strict=True)]
        confidence = [float(each.max()) for each in shares]

        def show(row: int) -> str:
            return " ".join([*asked[row].sentences, asked[row].question.text])

        return answer_report(split, "questions", hits, confidence, show, lambda row: (right[row], labels[best[row]]))

    @property
    def metric(self) -> str:
        """The accuracy of the answers."""
        return "accuracy"

    def example(self, sample: tuple[str, str, str]) -> None:
        """None: a sample does not separate the question from the story."""
        return

    def next(self, folder: Path, test: Evaluated | None) -> list[str]:
        """Commands that answer a question, and that evaluate."""
        name = shlex.quote(str(folder))
        return [
            f"heedful answer {name} --passage 'Mary went to the garden. John went to the office.' 'Where is Mary?'",
            f"heedful eval {name} --split valid",
        ]
