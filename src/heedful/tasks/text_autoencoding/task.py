"""Sentence autoencoding: the lower bound and its parts, the perplexity by importance sampling, active units."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from heedful.data.formats.sources import Pair, Split
from heedful.data.own import sentences
from heedful.data.pairs.batches import EncodedPairs, PairBatches, encode_pairs
from heedful.data.text.sentences import SentenceText
from heedful.data.tokenizers.tokenizer import TrainedTokenizer
from heedful.decode.settings import SentenceConfig
from heedful.tasks.base import Codec, Evaluated, Example, HeldOut, Names, Task
from heedful.tasks.text_autoencoding.losses import PROCESSES, estimate, training_loss
from heedful.tasks.text_autoencoding.predictor import SentenceAutoencoder
from heedful.tasks.text_autoencoding.recipe import TextAutoencodingRecipe


class TextAutoencodingTask(Task[SentenceText, TrainedTokenizer, EncodedPairs, SentenceAutoencoder]):
    """Encode a sentence as a code, and generate it again."""

    words: ClassVar = Names(
        examples="sentences",
        tokens="tokens",
        too_long="sentences longer than the model's context, left out",
        blank="blank lines, left out",
        learning="training the tokenizer",
        encoding="tokenizing the sentences",
        testing="decoding the {} set",
        sample=("sentence", "reference", "reconstruction"),
    )
    decoding: ClassVar = SentenceConfig
    artifacts: ClassVar = {"tokenizer.json": Codec(TrainedTokenizer, TrainedTokenizer.load)}
    searches: ClassVar = True

    recipe: TextAutoencodingRecipe

    @property
    def decode(self) -> SentenceConfig:
        """The settings of the search."""
        return self.recipe.decode

    def read(self, split: Split) -> SentenceText:
        """The sentences of a split."""
        found = self.recipe.data.read(split)
        return found if isinstance(found, SentenceText) else SentenceText.of(found.lines)

    collect = staticmethod(sentences)

    def learn(self, read: SentenceText) -> TrainedTokenizer:
        """A tokenizer of the training sentences."""
        return TrainedTokenizer.train(self.recipe.tokenizer, read.sentences)

    def encode(self, read: SentenceText, vocabulary: TrainedTokenizer) -> EncodedPairs:
        """Each sentence as the source and the target of itself."""
        return encode_pairs([Pair(text, text) for text in read.sentences], vocabulary, self.recipe.model.context)

    def batches(self, encoded: EncodedPairs, packed: bool, even: bool) -> PairBatches:
        """Padded batches of sentences of similar lengths."""
        return PairBatches(encoded, self.recipe.train.seed, self.recipe.train.batch_tokens)

    def loss_of(self, model: Any, packed: bool) -> Callable[..., Any]:
        """The lower bound with sampled codes, whose KL divergence is annealed by the number of batches so far."""
        return partial(training_loss, model, self.recipe.task, self.recipe.train.accumulate)

    def first_carry(self, model: Any, batches: Any, device: torch.device) -> Tensor:
        """The number of batches so far, a row for each process."""
        return torch.zeros(PROCESSES, 1, dtype=torch.long, device=device)

    @staticmethod
    def predictor(
        model: Any,
        config: Any,
        vocabulary: TrainedTokenizer,
        decode: SentenceConfig,
        device: torch.device,
        notes: tuple[str, ...] = (),
    ) -> SentenceAutoencoder:
        """The predictor of a trained model."""
        return SentenceAutoencoder(model, vocabulary, config.context, device, decode, notes)

    def loss(self, predictor: SentenceAutoencoder, encoded: EncodedPairs) -> float:
        """The negative lower bound per token."""
        model: Any = predictor.model
        return estimate(model, encoded, predictor.device, self.recipe.train.batch_tokens, 1).loss

    def evaluate(self, predictor: SentenceAutoencoder, held_out: HeldOut[SentenceText, EncodedPairs]) -> Evaluated:
        """The lower bound and its parts, perplexity and active units, and a few reconstructions."""
        model: Any = predictor.model
        recipe, encoded, texts = self.recipe, held_out.encoded, held_out.read.sentences
        found = estimate(model, encoded, predictor.device, recipe.train.batch_tokens, recipe.task.importance_samples)
        rows = [texts[int(encoded.indices[row])] for row in held_out.rows(len(encoded), recipe.train.samples)]
        made = predictor.decode(predictor.encode(rows), held_out.beams)
        samples = [(text, text, one.text) for text, one in zip(rows, made, strict=True)]
        return held_out.result(found.scores(), samples)

    def examples(self, split: Split) -> Iterator[Example]:
        """The sentences of a split."""
        return (Example(text, None, text) for text in self.read(split).sentences)

    def in_words(self, loss: float) -> str:
        """The negative lower bound."""
        return f"negative lower bound {loss:.5f} nats a token"

    def next(self, folder: Path, test: Evaluated | None) -> list[str]:
        """Commands that interpolate between sentences, that sample some, and that evaluate."""
        run, samples = shlex.quote(str(folder)), test.samples if test else ()
        first, last = ([sample[0] for sample in samples] * 2)[:2] if samples else ("a sentence", "another sentence")
        between = f"heedful interpolate {run} {shlex.quote(first)} {shlex.quote(last)}"
        return [between, f"heedful sample {run}", f"heedful eval {run}"]
