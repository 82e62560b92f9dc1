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

MUCH_UNKNOWN = 0.01  # of the tokens of a text, above which a note says so
MOST_SHOWN = 48  # tokens of a sample


class PretrainingTask(Task[Prose | TokenizedDocuments, MaskTokenizer, EncodedDocuments, TextEncoder]):
    """Masked tokens from those around them, and whether two texts follow each other (Devlin et al., 2019)."""

    words: ClassVar = Names(
        examples="tokens of text",
        tokens="word pieces",
        too_long="tokens that are too long",
        blank="blank lines",
        learning="training the tokenizer",
        encoding="turning text into tokens",
        testing="reading the {} set",
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
        """The tokenizer of the text."""
        if isinstance(read, TokenizedDocuments):
            return read.tokenizer
        assert self.recipe.tokenizer is not None, "only token files bring their own"
        return encoder_tokenizer(self.recipe.tokenizer, read.texts)

    def encode(self, read: Prose | TokenizedDocuments, vocabulary: MaskTokenizer) -> EncodedDocuments:
        """The documents as ids, of which pairs as long as the model's context are made."""
        context = self.recipe.model.context
        if isinstance(read, Prose):
            return encode_documents(read.documents, vocabulary, context, self.rules)
        if read.tokenizer.sha256 != vocabulary.sha256:
            raise UserError(
                "these token files were made with another tokenizer",
                where="data.folder",
                found=f"{read.tokenizer.vocab:,} pieces of SHA-256 {read.tokenizer.sha256[:16]}...",
                expected=f"the model's own {vocabulary.vocab:,}, of SHA-256 {vocabulary.sha256[:16]}...",
            )
        arrays = (read.ids, read.sentences, read.documents)
        return require_pairs(
            EncodedDocuments(*arrays, MaskingVocab.of(vocabulary), context, self.rules, read.sha256, read.unknown)
        )

    def notes(self, encoded: EncodedDocuments) -> list[str]:
        """How much of the text the tokenizer does not know, where that is much."""
        share = encoded.unknown / len(encoded)
        note = f"{share:.1%} of the tokens of the training text are unknown: a larger tokenizer.vocab may know them"
        return [note] if share > MUCH_UNKNOWN else []

    def batches(self, encoded: EncodedDocuments, packed: bool, even: bool) -> PretrainingBatches:
        """Pairs from all over the documents, masked again in every epoch."""
        return PretrainingBatches(encoded, self.recipe.train.seed, self.recipe.train.batch_tokens, packed, even)

    def loss_of(self, model: Any, packed: bool) -> Callable[[Any], Loss]:
        """The loss of masked words and of pairs."""
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
        """The sum of the two mean losses on held-out text, where the same tokens are masked each time."""
        return evaluate_pretraining(predictor.model, encoded, predictor.device, self.recipe.train.batch_tokens).loss

    def evaluate(
        self, predictor: TextEncoder, held_out: HeldOut[Prose | TokenizedDocuments, EncodedDocuments]
    ) -> Evaluated:
        """Accuracy of masked tokens and of pairs, and the perplexity of masked tokens."""
        encoded = held_out.encoded
        found = evaluate_pretraining(predictor.model, encoded, predictor.device, self.recipe.train.batch_tokens)
        return held_out.result(found.scores(self.rules.hidden), self._samples(predictor, encoded, held_out.step))

    def _samples(self, encoder: TextEncoder, encoded: EncodedDocuments, step: int) -> tuple[tuple[str, str, str], ...]:
        """Beginnings of pairs with masks, the masked tokens, and the predicted ones."""
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
            some = [place for place, at in enumerate(rows) if at == row and columns[place] < MOST_SHOWN]
            right = [int(built.ids[row, columns[place]]) for place in some]
            shown = built.shown[row, : min(int(built.lengths[row]), MOST_SHOWN)].tolist()
            hidden, predictions = map(encoder.tokenizer.pieces, (right, [predicted[at] for at in some]))
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
        """To fill masks, and to evaluate."""
        run = shlex.quote(str(folder))
        return [
            f"heedful fill-mask {run} {shlex.quote('This module provides a [MASK] interface.')}",
            f"heedful eval {run} --split valid",
        ]
