"""Byte pairs as the first GPT reads them (Radford et al., 2018): words in lower case, `</w>` where one ends."""

from __future__ import annotations

import builtins
import hashlib
import json
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from heedful.config import Config
from heedful.data.bytepairs import (
    UNSET,
    Merge,
    array_by,
    by_id,
    damaged,
    found_in,
    ids_by,
    json_in,
    listing,
    merges_in,
    read_parts,
    text_in,
    write,
    wrong_merge,
)
from heedful.data.tokenizers import Encoding, clean, several

if TYPE_CHECKING:
    import numpy as np
    import tokenizers

UNKNOWN = "<unk>"
SUFFIX = "</w>"
# What a tokenizer.json of GPT's is made of; what it says of other things changes no ids.
FRAME: dict[str, str | None] = {
    "model": "BPE",
    "normalizer": "BertNormalizer",
    "pre_tokenizer": "BertPreTokenizer",
    "decoder": "BPEDecoder",
}
USUAL: dict[str, tuple[Any, ...]] = {
    "model.unk_token": (UNKNOWN,),
    "model.end_of_word_suffix": (SUFFIX,),
    **{
        f"model.{setting}": UNSET
        for setting in ("dropout", "continuing_subword_prefix", "fuse_unk", "byte_fallback", "ignore_merges")
    },
    **{f"normalizer.{setting}": (True,) for setting in ("clean_text", "handle_chinese_chars", "lowercase")},
    "normalizer.strip_accents": (None, True),
    "decoder.suffix": (SUFFIX,),
}


class WordEndFiles(Config):
    """The pieces of the first GPT, or of one that was made like it."""

    kind: Literal["word_end_files"] = "word_end_files"
    file: str = Field(
        min_length=1, description="a tokenizer.json; a vocab.json with merges.txt beside it; or their folder"
    )
    merges: str | None = Field(None, description="the file of the merges, where it lies elsewhere")

    def read(self) -> WordEnds:
        """The pieces of the files."""
        return WordEnds.read(self.file, self.merges)

    @property
    def vocab(self) -> int:
        """How many pieces there are."""
        return self.read().vocab


class WordEnds:
    """A tokenizer of the first GPT's kind: case, accents and spacing are lost, and rare characters are unknown.

    It has no token that ends a document, as the published one has none.
    """

    end = None

    def __init__(self, text: str, where: str) -> None:
        """Build it from the text of a tokenizer file; `where` is what errors name."""
        vocab, merges, special = read_parts(text, FRAME, USUAL, {UNKNOWN}, where)
        self._begin(vocab, merges, special, where)

    @classmethod
    def of(cls, vocab: dict[str, int], merges: Sequence[Merge], where: str) -> WordEnds:
        """A tokenizer of pieces by their ids, and of the pairs that are merged, the first ones first."""
        made = cls.__new__(cls)
        made._begin(vocab, merges, {UNKNOWN}, where)
        return made

    @classmethod
    def of_texts(cls, vocab: str, merges: str, where: str, merges_where: str) -> WordEnds:
        """A tokenizer of the texts of vocab.json and merges.txt, each with what errors name."""
        pieces, (pairs, first) = checked_vocab(json_in(vocab, where), where), merges_in(merges, merges_where)
        if wrong := wrong_merge(pieces.keys() - {UNKNOWN}, pairs):
            raise damaged(f"{merges_where}:{wrong[0] + first}", wrong[1])
        return cls.of(pieces, pairs, where)

    @classmethod
    def load(cls, path: str | Path) -> WordEnds:
        """Read a tokenizer.json, of Heedful's or of Hugging Face's make."""
        return cls(text_in(path), str(path))

    @classmethod
    def read(cls, file: str | Path, merges: str | Path | None = None) -> WordEnds:
        """Read the files of GPT: tokenizer.json, or pieces and merges, or their folder."""
        path, other = found_in(file, merges)
        if other is None:
            return cls.load(path)
        return cls.of_texts(text_in(path), text_in(other), str(path), str(other))

    def _begin(self, vocab: dict[str, int], merges: Sequence[Merge], special: set[str], where: str) -> None:
        vocab = checked_vocab(vocab, where)
        if wrong := wrong_merge(vocab.keys() - special, merges):
            raise damaged(where, f"as merge {wrong[0] + 1:,} of {len(merges):,}, {wrong[1]}")
        names = sorted(special, key=vocab.__getitem__)
        self._engine = engine_of(vocab, merges, names)
        self._vocab, self._merges = vocab, merges
        self.json: str = self._engine.to_str()
        self.vocab: int = len(vocab)
        self.unk: int = vocab[UNKNOWN]
        self.special = frozenset(vocab[name] for name in names)
        self._engine.encode_special_tokens = True  # the package means: encode their text as any other

    @cached_property
    def sha256(self) -> str:
        """What tells this tokenizer from any other."""
        return hashlib.sha256(self.json.encode()).hexdigest()

    def encode(self, text: str) -> Encoding:
        """The pieces of a text."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[Encoding]:
        """The pieces of each text."""
        cleaned = [clean(text) for text in several(texts)]
        found = self._engine.encode_batch([text for text, _ in cleaned], add_special_tokens=False)
        return [
            Encoding(one.ids, one.offsets, self.pieces(one.ids), replaced)
            for one, (_, replaced) in zip(found, cleaned, strict=True)
        ]

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text alone, which is quicker than `encode_batch`; all cores work, at a long text too."""
        return ids_by(self._engine, texts)

    def ids_of(self, text: str) -> np.ndarray[Any, np.dtype[np.int32]]:
        """The ids of one text, however long, in the least memory."""
        return array_by(self._engine, text)

    def allowing(self, text: str) -> list[int]:
        """The ids of a text; there is no special token that it could ask for."""
        return self.ids([text])[0]

    def decode(self, ids: Iterable[int]) -> str:
        """The text that ids stand for, special tokens left out, without the space after its last word."""
        return self.bytes(ids).decode().removesuffix(" ")

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """How each id reads."""
        return [self._pieces[number] for number in ids]

    def bytes(self, ids: Iterable[int]) -> builtins.bytes:
        """The bytes that ids stand for, special tokens left out, and a space after each word."""
        return b"".join([self._bytes[number] for number in ids])

    def save(self, path: str | Path) -> None:
        """Write tokenizer.json whole or not at all."""
        write(self.json, Path(path))

    def files(self, context: int | None = None) -> dict[str, str]:
        """The files that say the same of it to Hugging Face's OpenAIGPTTokenizer; `context` is the model's."""
        settings: dict[str, Any] = {"tokenizer_class": "OpenAIGPTTokenizer", "unk_token": UNKNOWN}
        if context is not None:
            settings["model_max_length"] = context
        return {
            **listing(self._vocab, self._merges),
            "tokenizer.json": self.json,
            "tokenizer_config.json": json.dumps(settings, indent=2) + "\n",
            "special_tokens_map.json": json.dumps({"unk_token": UNKNOWN}, indent=2) + "\n",
        }

    @cached_property
    def _pieces(self) -> list[str]:
        return list(self._vocab)

    @cached_property
    def _bytes(self) -> list[builtins.bytes]:
        return [
            b"" if number in self.special else piece.replace(SUFFIX, " ").encode()
            for piece, number in self._vocab.items()
        ]


def engine_of(vocab: dict[str, int], merges: Sequence[Merge], special: Sequence[str]) -> tokenizers.Tokenizer:
    """The package's tokenizer of some pieces and merges.

    It cuts words at `<` and `>` before it merges, so that no text can spell `<unk>`.
    """
    from tokenizers import Tokenizer as Engine
    from tokenizers import decoders, models, normalizers, pre_tokenizers

    engine = Engine(models.BPE(vocab, list(merges), unk_token=UNKNOWN, end_of_word_suffix=SUFFIX))
    engine.normalizer = normalizers.BertNormalizer(lowercase=True)
    engine.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    engine.decoder = decoders.BPEDecoder(suffix=SUFFIX)
    engine.add_special_tokens(list(special))
    return engine


def checked_vocab(vocab: Any, where: str) -> dict[str, int]:
    """A vocabulary in the order of its ids, if they have no gaps and `<unk>` is there."""
    ordered = by_id(vocab, where)
    if UNKNOWN not in ordered:
        raise damaged(where, f"{len(ordered):,} pieces, but none is {UNKNOWN}")
    return ordered
