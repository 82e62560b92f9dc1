"""Language modelling as a job: running text in windows, perplexity over whole texts, and texts that the model wrote."""

from __future__ import annotations

import math
import random
import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch

from heedful.blocks.losses import Loss
from heedful.data.sources import Split
from heedful.data.text import Text
from heedful.data.tokenizers import Tokenizer
from heedful.data.windows import EncodedText, TextBatches, encode_text
from heedful.jobs import Evaluated, Job, Names, Progress
from heedful.models.configs import ElmoConfig, RnnLMConfig
from heedful.recipe.language_model import LanguageModelRecipe, WritingConfig
from heedful.tasks.compiled import compiled
from heedful.tasks.language_model import (
    TextReader,
    Writer,
    ahead_loss,
    bits_per_character,
    both_ways_loss,
    text_loss,
    windows_loss,
)
from heedful.training.metrics import Score

MUCH_UNKNOWN = 0.01  # of the tokens of a text, from where on it is told
MOST_SHOWN = 100  # tokens that are written for a sample


class LanguageModelJob(Job):
    """The tokens of a text from those before them, or from those on either side."""

    words: ClassVar = Names(
        examples="tokens of text",
        tokens="different ones",
        too_long="tokens are too long",
        blank="lines are blank",
        learning="training the tokenizer",
        encoding="turning text into tokens",
        testing="reading the {} set",
        sample=("prompt", "text", "written"),
    )
    decoding: ClassVar = WritingConfig
    searches: ClassVar = False

    def __init__(self, recipe: LanguageModelRecipe) -> None:
        self.recipe, self.decode = recipe, recipe.decode
        self.task_loss: Callable[..., Loss] = both_ways_loss if recipe.model.kind == "elmo" else ahead_loss

    def read(self, split: Split) -> Text:
        """The text of a split."""
        return self.recipe.data.read(split)

    def learn(self, read: Text) -> Tokenizer:
        """The tokenizer of the text."""
        return Tokenizer.train(self.recipe.tokenizer, read.lines)

    @staticmethod
    def load(path: Path) -> Tokenizer:
        """The tokenizer of a file."""
        return Tokenizer.load(path)

    @staticmethod
    def open(text: str, where: str) -> Tokenizer:
        """The tokenizer of a file's text."""
        return Tokenizer(text, where)

    def encode(self, read: Text, vocabulary: Tokenizer) -> EncodedText:
        """The text as ids, in windows as long as the model's context."""
        return encode_text(read, vocabulary, self.recipe.model.context)

    def notes(self, encoded: EncodedText) -> list[str]:
        """How much of the text the tokenizer does not know, where that is much."""
        share = encoded.unknown / len(encoded)
        told = f"{share:.1%} of the tokens of the training text are unknown: a larger tokenizer.vocab may know them"
        return [told] if share > MUCH_UNKNOWN else []

    def batches(self, encoded: EncodedText, packed: bool, even: bool) -> TextBatches:
        """Windows from all over the text side by side."""
        return TextBatches(encoded, self.recipe.train.seed, self.recipe.train.batch_tokens)

    def loss_of(self, model: Any, packed: bool) -> Callable[[Any], Loss]:
        """The cross-entropy of the tokens of each window."""
        learner: Any = compiled(model, dynamic=False) if self.recipe.train.compile else model
        return partial(self.task_loss, learner)

    @staticmethod
    def speaker(
        model: Any,
        config: RnnLMConfig | ElmoConfig,
        vocabulary: Tokenizer,
        decode: WritingConfig,
        device: torch.device,
        notes: tuple[str, ...] = (),
    ) -> Writer | TextReader:
        """The model with its tokenizer, ready to write; or to give vectors, if it reads in both directions."""
        if config.kind == "elmo":
            return TextReader(model, vocabulary, device, config.context, notes)
        settings = (decode.length, decode.temperature, decode.top_k, decode.top_p)
        return Writer(model, vocabulary, device, *settings, notes=notes)

    def loss(self, speaker: Writer | TextReader, encoded: EncodedText) -> float:
        """The mean loss a token of the whole text; of both directions there are only windows."""
        if isinstance(speaker, Writer):
            return text_loss(speaker.model, encoded, speaker.device)
        return self.quick_loss(speaker, encoded)

    def quick_loss(self, speaker: Writer | TextReader, encoded: EncodedText) -> float:
        """The mean loss a token in windows, as in training."""
        return windows_loss(self.task_loss, speaker.model, encoded, speaker.device, self.recipe.train.batch_tokens)

    def evaluate(
        self,
        speaker: Writer | TextReader,
        read: Text,
        encoded: EncodedText,
        loss: float,
        step: int,
        split: Split,
        beams: int | None = None,
        progress: Progress | None = None,
    ) -> Evaluated:
        """Perplexity and bits a character, and what the model writes after some lines of the text."""
        counts = f"tokens:{len(encoded)}|unknown:{encoded.unknown}|characters:{encoded.characters}"
        perplexity = Score("perplexity", math.exp(min(loss, 700)), counts)
        bits = Score("bits_per_character", bits_per_character(loss, encoded), counts)
        shown = self._samples(speaker, read, step) if isinstance(speaker, Writer) else ()
        return Evaluated(step, split, loss, (perplexity, bits), shown, 0)

    def _samples(self, writer: Writer, text: Text, step: int) -> tuple[tuple[str, str, str], ...]:
        """Lines of a text, what follows them there, and what the model goes on with."""
        places = [place for place, line in enumerate(text.lines[:-1]) if line.strip()]
        rows = random.Random(step).sample(places, min(self.recipe.train.samples, len(places)))
        found = writer.write([text.lines[row] + "\n" for row in rows], min(writer.length, MOST_SHOWN), seed=step)
        return tuple(
            (text.lines[row], "\n".join(text.lines[row + 1 : row + 9])[: len(one.added)], one.added)
            for row, one in zip(rows, found, strict=True)
        )

    def merit(self, result: Evaluated) -> float:
        """How little is left to guess."""
        return -result.loss

    def next(self, folder: Path, test: Evaluated | None) -> list[str]:
        """To write, or to get vectors."""
        run = shlex.quote(str(folder))
        if self.recipe.model.kind == "elmo":
            return [f'in Python: heedful.load("{folder}").layers(["..."])']
        sample = test.samples[0][0] if test and test.samples else "Once upon a time"
        return [f"heedful generate {run} {shlex.quote(sample)} --temperature 0.8", f"heedful eval {run} --split valid"]
