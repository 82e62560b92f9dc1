"""Pre-training of encoders: masked language modelling, and next-sentence prediction where the model has that head."""

from __future__ import annotations

import random
import shlex
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from heedful.blocks.losses import Loss
from heedful.data.formats.sources import Split
from heedful.data.masking import MaskingVocab
from heedful.data.own import OwnData, documents
from heedful.data.text.documents import Prose, read_documents
from heedful.data.text.pretraining import (
    EncodedDocuments,
    PairRules,
    PretrainingBatches,
    encode_documents,
    padded_batch,
    require_pairs,
)
from heedful.data.text.token_documents import TokenFiles, TokenizedDocuments
from heedful.data.tokenizers.base import MaskTokenizer
from heedful.data.tokenizers.encoders import encoder_tokenizer, load_encoder_tokenizer, open_encoder_tokenizer
from heedful.errors import UserError
from heedful.hub.sentence_transformers import SentenceConfig
from heedful.models.roles import EncoderConfig
from heedful.tasks.base import Codec, Evaluated, Example, HeldOut, Names, Task
from heedful.tasks.pretraining.loss import OBJECTIVES, evaluate_pretraining, predict_masked
from heedful.tasks.pretraining.predictor import TextEncoder
from heedful.tasks.pretraining.recipe import PretrainingRecipe

MAX_UNKNOWN = 0.01  # fraction of unknown tokens above which a note warns
SAMPLE_TOKENS = 48  # maximum length of a sample


class PretrainingTask(Task[Prose | TokenizedDocuments, MaskTokenizer, EncodedDocuments, TextEncoder]):
    """Masked language modelling and next-sentence prediction (Devlin et al., 2019)."""

    words: ClassVar = Names(
        examples="tokens of text",
        tokens="word pieces",
        too_long="tokens are too long",
        blank="lines are blank",
        learning="training the tokenizer",
        encoding="tokenizing the text",
        testing="evaluating the {} set",
        sample=("text", "masked", "predicted"),
    )
    decoding: ClassVar = None
    artifacts: ClassVar = {"tokenizer.json": Codec(open_encoder_tokenizer, load_encoder_tokenizer)}
    searches: ClassVar = False

    def __init__(self, recipe: PretrainingRecipe) -> None:
        super().__init__(recipe)
        task = recipe.task
        pairs = recipe.model.segments > 1
        self.rules = PairRules(task.hidden, task.whole_words, task.unrelated, task.short, task.last_sep, pairs)

    def read(self, split: Split) -> Prose | TokenizedDocuments:
        """The documents of a split, as text or as token files."""
        data = self.recipe.data
        return data.read(split) if isinstance(data, TokenFiles | OwnData) else read_documents(data, split)

    collect = staticmethod(documents)

    def learn(self, read: Prose | TokenizedDocuments) -> MaskTokenizer:
        """A tokenizer trained on the text, or that of the token files."""
        if isinstance(read, TokenizedDocuments):
            return read.tokenizer
        assert self.recipe.tokenizer is not None, "only token files bring their own"
        return encoder_tokenizer(self.recipe.tokenizer, read.texts)

    def encode(self, read: Prose | TokenizedDocuments, vocabulary: MaskTokenizer) -> EncodedDocuments:
        """The token ids of the documents, from which pairs as long as the model's context are formed."""
        context = self.recipe.model.context
        if isinstance(read, Prose):
            return encode_documents(read.documents, vocabulary, context, self.rules)
        if read.tokenizer.sha256 != vocabulary.sha256:
            raise UserError(
                "these token files were written with another tokenizer",
                where="data.folder",
                found=f"{read.tokenizer.vocab:,} pieces of SHA-256 {read.tokenizer.sha256[:16]}...",
                expected=f"the model's own {vocabulary.vocab:,}, of SHA-256 {vocabulary.sha256[:16]}...",
            )
        arrays = (read.ids, read.sentences, read.documents)
        return require_pairs(
            EncodedDocuments(*arrays, MaskingVocab.of(vocabulary), context, self.rules, read.sha256, read.unknown)
        )

    def notes(self, encoded: EncodedDocuments) -> list[str]:
        """A warning about many unknown tokens."""
        share = encoded.unknown / len(encoded)
        note = f"{share:.1%} of the tokens of the training text are unknown: try a larger tokenizer.vocab"
        return [note] if share > MAX_UNKNOWN else []

    def batches(self, encoded: EncodedDocuments, packed: bool, even: bool) -> PretrainingBatches:
        """Batches of random pairs, masked differently in every epoch."""
        return PretrainingBatches(encoded, self.recipe.train.seed, self.recipe.train.batch_tokens, packed, even)

    def loss_of(self, model: Any, packed: bool) -> Callable[[Any], Loss]:
        """The loss of masked tokens and of pairs."""
        read = torch.compile(model, dynamic=not packed) if self.recipe.train.compile else model
        return partial(OBJECTIVES[self.recipe.task.objective], model, read=read)

    @staticmethod
    def predictor(
        model: Any,
        config: EncoderConfig,
        vocabulary: MaskTokenizer,
        decode: SentenceConfig | None,
        device: torch.device,
        notes: tuple[str, ...] = (),
    ) -> TextEncoder:
        """The text encoder of a trained model."""
        return TextEncoder(model, vocabulary, device, notes, **dict(decode or ()))

    def loss(self, predictor: TextEncoder, encoded: EncodedDocuments) -> float:
        """The sum of the two mean losses on held-out text, where the masked tokens are always the same."""
        return evaluate_pretraining(predictor.model, encoded, predictor.device, self.recipe.train.batch_tokens).loss

    def evaluate(
        self, predictor: TextEncoder, held_out: HeldOut[Prose | TokenizedDocuments, EncodedDocuments]
    ) -> Evaluated:
        """Accuracy of masked tokens and of pairs, and the perplexity of masked tokens."""
        encoded = held_out.encoded
        found = evaluate_pretraining(predictor.model, encoded, predictor.device, self.recipe.train.batch_tokens)
        return held_out.result(found.scores(self.rules.hidden), self._samples(predictor, encoded, held_out.step))

    def _samples(self, encoder: TextEncoder, encoded: EncodedDocuments, step: int) -> tuple[tuple[str, str, str], ...]:
        """The beginnings of masked pairs, the masked tokens, and the predicted ones."""
        count = min(self.recipe.train.samples, encoded.cells)
        cells = np.array(sorted(random.Random(step).sample(range(encoded.cells), count)), dtype=np.int64)
        if not count:
            return ()
        built = encoded.build(0, 0, cells)
        batch = padded_batch(built, cells, np.arange(count), encoded.marks)
        predicted, _ = predict_masked(encoder.model, batch.to(encoder.device))
        rows, columns = np.nonzero(built.hidden)
        found: list[tuple[str, str, str]] = []
        for row in range(count):
            masked = [index for index, of_row in enumerate(rows) if of_row == row and columns[index] < SAMPLE_TOKENS]
            expected = [int(built.ids[row, columns[index]]) for index in masked]
            shown = built.shown[row, : min(int(built.lengths[row]), SAMPLE_TOKENS)].tolist()
            hidden, predictions = map(encoder.tokenizer.pieces, (expected, [predicted[index] for index in masked]))
            found.append((encoder.tokenizer.decode_with_special(shown), " ".join(hidden), " ".join(predictions)))
        return tuple(found)

    def example(self, sample: tuple[str, str, str]) -> None:
        """None: tokens of a sample are masked or replaced."""
        return

    def examples(self, split: Split) -> Iterator[Example]:
        """The first sentences of the documents of a split."""
        read = self.read(split)
        if isinstance(read, TokenizedDocuments):
            firsts = zip(read.sentences[read.documents[:-1]], read.sentences[read.documents[:-1] + 1], strict=True)
            return (Example(read.tokenizer.decode_with_special(read.ids[a:b].tolist()), None, "") for a, b in firsts)
        return (Example(document[0], None, "") for document in read.documents)

    def next(self, folder: Path, test: Evaluated | None) -> list[str]:
        """Commands that fill masks, and that evaluate."""
        run = shlex.quote(str(folder))
        return [
            f"heedful fill-mask {run} {shlex.quote('This module provides a [MASK] interface.')}",
            f"heedful eval {run} --split valid",
        ]
