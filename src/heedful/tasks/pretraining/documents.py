"""The base of pre-training tasks: an encoder that is trained on unlabelled documents."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch

from heedful.data.formats.sources import Split
from heedful.data.masking import MaskingVocab
from heedful.data.own import OwnData, documents
from heedful.data.text.documents import Prose, read_documents
from heedful.data.text.pretraining import EncodedDocuments, PairRules, encode_documents, prepare_examples
from heedful.data.text.token_documents import TokenFiles, TokenizedDocuments
from heedful.data.tokenizers.base import MaskTokenizer
from heedful.data.tokenizers.encoders import encoder_tokenizer, load_encoder_tokenizer, open_encoder_tokenizer
from heedful.errors import UserError
from heedful.hub.dense import DenseLayers
from heedful.hub.sentence_transformers import SentenceConfig
from heedful.models.roles import EncoderConfig
from heedful.tasks.base import Codec, Evaluated, Example, Names, Task
from heedful.tasks.pretraining.predictor import TextEncoder

MASK = re.compile(r"\[MASK\]|<mask>")
SPECIAL = re.compile(r"\[(?:CLS|SEP|PAD)\]|</?s>|<(?:cls|sep|pad)>")
MAX_UNKNOWN = 0.01  # fraction of unknown tokens above which a note warns


class DocumentsTask(Task[Prose | TokenizedDocuments, MaskTokenizer, EncodedDocuments, TextEncoder]):
    """An encoder that learns from documents; a task says which tokens are predicted, and from which others."""

    words: ClassVar = Names(
        examples="tokens of text",
        tokens="word pieces",
        too_long="tokens that are too long",
        blank="blank lines",
        learning="training the tokenizer",
        encoding="tokenizing the text",
        testing="evaluating the {} set",
        sample=("text", "masked", "predicted"),
    )
    decoding: ClassVar = None
    artifacts: ClassVar = {"tokenizer.json": Codec(open_encoder_tokenizer, load_encoder_tokenizer)}
    searches: ClassVar = False

    rules: PairRules  # which texts there must be

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
                "these token files were written with another tokenizer",
                where="data.folder",
                found=f"{read.tokenizer.vocab:,} pieces of SHA-256 {read.tokenizer.sha256[:16]}...",
                expected=f"the model's own {vocabulary.vocab:,}, of SHA-256 {vocabulary.sha256[:16]}...",
            )
        arrays = (read.ids, read.sentences, read.documents)
        return prepare_examples(
            EncodedDocuments(*arrays, MaskingVocab.of(vocabulary), context, self.rules, read.sha256, read.unknown)
        )

    def notes(self, encoded: EncodedDocuments) -> list[str]:
        """How much of the text the tokenizer does not know, where that is much."""
        share = encoded.unknown / len(encoded)
        note = f"{share:.1%} of the tokens of the training text are unknown: try a larger tokenizer.vocab"
        return [note] if share > MAX_UNKNOWN else []

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
        sentences = decode or SentenceConfig()
        settings = {**dict(sentences), "dense": DenseLayers.of(config.width, sentences)}
        return TextEncoder(model, vocabulary, device, notes, **settings)

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
        text = masked_words([text for text, _, _ in test.samples] if test else [])
        return [f"heedful fill-mask {run} {shlex.quote(text)}", f"heedful eval {run} --split valid"]


def masked_words(samples: Sequence[str]) -> str:
    """A few words of a sample around a mask, preferably around a single one."""
    found = [
        " ".join(words[max(0, at - 6) : at + 7])
        for words in (part.split() for sample in samples for part in SPECIAL.split(sample))
        for at, word in enumerate(words)
        if MASK.search(word)
    ]
    return min(found, key=lambda text: len(MASK.findall(text)), default="This module provides a [MASK] interface.")
