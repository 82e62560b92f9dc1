"""Extractive question answering: windows over long passages, exact match and F1 of the answers."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch

from heedful.blocks.losses import Loss
from heedful.data.formats.sources import Split
from heedful.data.formats.squad import Questions, WindowsConfig
from heedful.data.labelled.answering import AnswerBatches, EncodedQuestions, encode_questions
from heedful.data.own import questions
from heedful.data.tokenizers.base import MaskTokenizer
from heedful.errors import UserError
from heedful.models.heads.config import AnswererConfig
from heedful.tasks.answering.predictor import QuestionAnswerer, answer_loss, mean_loss
from heedful.tasks.answering.recipe import AnsweringRecipe
from heedful.tasks.base import Evaluated, Example, HeldOut, Names
from heedful.tasks.finetuning.task import FinetuningTask
from heedful.training.class_report import ClassReport, answer_report
from heedful.training.span_metrics import answer_scores


class AnsweringTask(FinetuningTask[Questions, MaskTokenizer, EncodedQuestions, QuestionAnswerer]):
    """Predict the span of a passage that answers a question."""

    words: ClassVar = Names(
        examples="questions",
        tokens="tokens",
        too_long="questions with an answer that does not fit into one window, not used for training",
        blank="blank questions or passages, left out",
        learning="preparing the tokenizer",
        encoding="tokenizing questions and passages",
        testing="answering the {} set",
        sample=("question", "answer", "predicted"),
        counted="questions",
    )
    decoding: ClassVar = WindowsConfig

    recipe: AnsweringRecipe

    collect = staticmethod(questions)

    @property
    def decode(self) -> WindowsConfig:
        """The settings of windows and answers."""
        return self.recipe.decode

    def texts(self, read: Questions) -> list[str]:
        """The distinct passages, then the questions."""
        passages = dict.fromkeys(question.passage for question in read.questions)
        return [*passages, *(question.question for question in read.questions)]

    def encode(self, read: Questions, vocabulary: MaskTokenizer) -> EncodedQuestions:
        """Token ids of questions and passages; a passage that is too long is split into windows."""
        encoded = encode_questions(read.questions, vocabulary, self.recipe.model.context, self.recipe.decode)
        if not len(encoded.with_targets):
            raise UserError(
                "there is no answer to train on",
                where="data",
                found=f"{len(encoded):,} questions, none with an answer that fits into one window",
                todo="raise the encoder's context, or lower decode.stride",
            )
        return encoded

    def notes(self, encoded: EncodedQuestions) -> list[str]:
        """Notes on the number of passages that are split into windows, and of truncated questions."""
        many = sum(int(end - begin) > 1 for begin, end in zip(encoded.windows, encoded.windows[1:], strict=False))
        windows = [f"{many:,} of {len(encoded):,} passages are longer than the context, and are split into windows"]
        cut = [f"{encoded.cut:,} of {len(encoded):,} questions are too long, and are truncated"]
        return [*(windows if many else []), *(cut if encoded.cut else [])]

    def batches(self, encoded: EncodedQuestions, packed: bool, even: bool) -> AnswerBatches:
        """Padded batches of windows of similar lengths, or packed batches."""
        train = self.recipe.train
        return AnswerBatches(encoded, train.seed, train.batch_tokens, train.batch_examples, packed)

    def loss_of(self, model: Any, packed: bool) -> Callable[[Any], Loss]:
        """Cross-entropy of the start and the end token of the answers."""
        return partial(answer_loss, model)

    @staticmethod
    def predictor(
        model: Any,
        config: AnswererConfig,
        vocabulary: MaskTokenizer,
        decode: WindowsConfig,
        device: torch.device,
        notes: tuple[str, ...] = (),
    ) -> QuestionAnswerer:
        """The question answerer of a trained model."""
        return QuestionAnswerer(model, vocabulary, device, decode, config.context, notes)

    def loss(self, predictor: QuestionAnswerer, encoded: EncodedQuestions) -> float:
        """The mean loss per answer."""
        return mean_loss(predictor.model, encoded, predictor.device)

    def evaluate(self, predictor: QuestionAnswerer, held_out: HeldOut[Questions, EncodedQuestions]) -> Evaluated:
        """F1 and exact match of the answers, and a few questions with predicted answers."""
        questions = held_out.read.questions
        best = predictor.answers([question.passage for question in questions], held_out.encoded)
        found = [each[0].text if each else "" for each in best]
        right = [[answer.text for answer in question.answers] for question in questions]
        rows = held_out.rows(len(right), self.recipe.train.samples)
        samples = [(questions[row].question, right[row][0], found[row]) for row in rows]
        return held_out.result(answer_scores(found, right), samples)

    def details(self, predictor: QuestionAnswerer, split: Split) -> ClassReport:
        """Calibration of the answers, and the questions with the most confident wrong ones."""
        questions = self.read(split).questions
        encoded = encode_questions(questions, predictor.tokenizer, predictor.context, predictor.windows)
        best = predictor.answers([question.passage for question in questions], encoded)
        found = [each[0].text if each else "" for each in best]
        shares = [each[0].probability if each else 1.0 for each in best]
        right = [[answer.text for answer in question.answers] for question in questions]
        hits = [answer_scores([one], [those])[1].value > 0 for one, those in zip(found, right, strict=True)]

        def name(row: int) -> tuple[str, str]:
            return " / ".join(dict.fromkeys(right[row])), found[row]

        return answer_report(split, "questions", hits, shares, lambda row: questions[row].question, name)

    def example(self, sample: tuple[str, str, str]) -> None:
        """None: a sample does not contain the passage."""
        return

    def examples(self, split: Split) -> Iterator[Example]:
        """The questions of a split with their passages."""
        questions = self.read(split).questions
        return (Example(one.question, one.passage, one.answers[0].text) for one in questions if one.answers)

    @property
    def metric(self) -> str:
        """F1 of the answers."""
        return "f1"

    def next(self, folder: Path, test: Evaluated | None) -> list[str]:
        """Commands that answer questions, and that evaluate."""
        name = shlex.quote(str(folder))
        asked = "--passage 'Ada Lovelace was born in London.' 'Where was Ada Lovelace born?'"
        return [f"heedful answer {name} {asked}", f"heedful eval {name} --split valid"]
