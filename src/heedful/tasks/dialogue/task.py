"""Dialogues: each utterance given those before it; perplexity, exact match and distinct n-grams."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch

from heedful.blocks.losses import Loss
from heedful.data.dialogues.batches import EncodedDialogues, encode_dialogues
from heedful.data.dialogues.sources import Dialogue, Dialogues
from heedful.data.formats.sources import Split
from heedful.data.own import dialogues
from heedful.data.tokenizers.tokenizer import TrainedTokenizer
from heedful.decode.settings import ReplyConfig, ReplySettings
from heedful.tasks.base import Batches, Codec, Evaluated, Example, HeldOut, Names, Task
from heedful.tasks.compiled import compile_model
from heedful.tasks.dialogue.predictor import DialogueModel, reply_scores
from heedful.tasks.dialogue.reading import mean_loss, reading_of
from heedful.tasks.dialogue.recipe import DialogueRecipe

BETWEEN = " / "  # utterances of a history, in one line


class DialogueTask(Task[Dialogues, TrainedTokenizer, EncodedDialogues, DialogueModel]):
    """Predict each utterance of a dialogue from those before it."""

    words: ClassVar = Names(
        examples="dialogues",
        tokens="tokens",
        too_long="dialogues with an utterance longer than task.longest, left out",
        blank="dialogues of fewer than two utterances, left out",
        learning="training the tokenizer",
        encoding="tokenizing the utterances",
        testing="replying in the {} set",
        sample=("history", "reference", "reply"),
    )
    decoding: ClassVar = ReplyConfig
    artifacts: ClassVar = {"tokenizer.json": Codec(TrainedTokenizer, TrainedTokenizer.load)}
    searches: ClassVar = True

    recipe: DialogueRecipe

    @property
    def decode(self) -> ReplyConfig:
        """The settings of the beam search."""
        return self.recipe.decode

    def read(self, split: Split) -> Dialogues:
        """The dialogues of a split."""
        found: Dialogues = self.recipe.data.read(split)
        return found

    collect = staticmethod(dialogues)

    def learn(self, read: Dialogues) -> TrainedTokenizer:
        """A tokenizer trained on all utterances."""
        texts = (text for dialogue in read.dialogues for text in dialogue.utterances)
        return TrainedTokenizer.train(self.recipe.tokenizer, texts)

    def encode(self, read: Dialogues, vocabulary: TrainedTokenizer) -> EncodedDialogues:
        """Dialogues of token ids, without those with an utterance that is too long; long ones in parts."""
        task = self.recipe.task
        return encode_dialogues(read.dialogues, vocabulary, task.longest, task.utterances, read.blank)

    def notes(self, encoded: EncodedDialogues) -> list[str]:
        """What was left out of dialogues, and which were split."""
        model, notes = self.recipe.model, list[str]()
        if encoded.blank:
            notes.append(f"utterances without text, left out: {encoded.blank:,}")
        if encoded.split:
            notes.append(f"dialogues of more than {self.recipe.task.utterances:,} utterances, split: {encoded.split:,}")
        if model.role == "hierarchical":
            more = encoded.more_speakers(model.speakers)
            if more:
                notes.append(f"dialogues of more than {model.speakers:,} speakers, the others taken for one: {more:,}")
        elif shortened := encoded.shortened(model.context):
            notes.append(f"replies whose first utterances do not fit the model's context: {shortened:,}")
        return notes

    def batches(self, encoded: EncodedDialogues, packed: bool, even: bool) -> Batches:
        """Batches of dialogues, or of replies with all earlier utterances as their source."""
        train = self.recipe.train
        return reading_of(self.recipe.model).batches(encoded, train.seed, train.batch_tokens, packed, even)

    def loss_of(self, model: Any, packed: bool) -> Callable[[Any], Loss]:
        """The cross-entropy of each utterance but the first."""
        trained: Any = compile_model(model, dynamic=not packed) if self.recipe.train.compile else model
        loss = reading_of(self.recipe.model).loss
        task = self.recipe.task
        return partial(loss, trained, label_smoothing=task.label_smoothing, penalty=task.confidence_penalty)

    @staticmethod
    def predictor(
        model: Any,
        config: Any,
        vocabulary: TrainedTokenizer,
        decode: ReplyConfig,
        device: torch.device,
        notes: tuple[str, ...] = (),
    ) -> DialogueModel:
        """The dialogue model, ready to reply."""
        return DialogueModel(model, vocabulary, config.context, device, ReplySettings.of(decode), notes)

    def loss(self, predictor: DialogueModel, encoded: EncodedDialogues) -> float:
        """The mean loss per token of the replies."""
        tokens = self.recipe.train.batch_tokens
        return mean_loss(predictor.model, predictor.reading, encoded, predictor.device, tokens)

    def evaluate(self, predictor: DialogueModel, held_out: HeldOut[Dialogues, EncodedDialogues]) -> Evaluated:
        """Perplexity; exact match and distinct n-grams of the last replies, and a few of them."""
        read, limit = held_out.read.dialogues, self.recipe.task.utterances
        found, unread = predictor.last_replies(read, limit, held_out.beams, held_out.progress)
        references = [dialogue.utterances[-1] for dialogue in read]
        rows = held_out.rows(len(read), self.recipe.train.samples)
        samples = [(history_line(read[row]), references[row], found[row]) for row in rows]
        return held_out.result(reply_scores(held_out.loss, found, references), samples, unread)

    def examples(self, split: Split) -> Iterator[Example]:
        """The last utterance of each dialogue, with those before it."""
        return (Example(history_line(one), None, one.utterances[-1]) for one in self.read(split).dialogues)

    def in_words(self, loss: float) -> str:
        """The loss and the perplexity."""
        perplexity = f"{math.exp(loss):.4f}" if loss < 100 else "inf"
        return f"loss {loss:.5f}, perplexity {perplexity}"

    def remarks(self, result: Evaluated) -> list[str]:
        """A remark about dialogues that are too long."""
        if not result.unread:
            return []
        return [
            f"{result.unread:,} dialogues have an utterance that exceeds the model's context; their replies are empty"
        ]

    def next(self, folder: Path, test: Evaluated | None) -> list[str]:
        """Commands that talk to the model, and that evaluate it with beam search."""
        run = shlex.quote(str(folder))
        return [f"heedful chat {run}", f"heedful eval {run} --beams 4"] if test else [f"heedful chat {run}"]


def history_line(dialogue: Dialogue) -> str:
    """All utterances but the last one, in a line."""
    return BETWEEN.join(dialogue.utterances[:-1])
