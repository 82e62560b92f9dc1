"""GPT-1's BPE (Radford et al., 2018): lowercased words, `</w>` at the end of each."""

from __future__ import annotations

import builtins
import json
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from heedful.data.tokenizers.byte_pairs import (
    UNSET,
    Added,
    BpeTokenizer,
    Merge,
    invalid,
    parse_bpe,
    sort_by_id,
    vocab_and_merges,
)
from heedful.data.tokenizers.wordpiece import AddedTokenSpec

if TYPE_CHECKING:
    import tokenizers

UNKNOWN = "<unk>"
SUFFIX = "</w>"
# The components of a GPT-1 tokenizer.json; others do not change ids.
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


class Gpt1Tokenizer(BpeTokenizer):
    """A GPT-1 tokenizer: case, accents and spacing are lost, and rare characters are unknown.

    It has no end-of-document token.
    """

    mark = UNKNOWN
    end = None

    @property
    def unk(self) -> int:
        """The unknown token."""
        return self._vocab[UNKNOWN]

    @staticmethod
    def _read(text: str, where: str) -> tuple[dict[str, int], Sequence[Merge], Added]:
        return parse_bpe(text, FRAME, USUAL, {UNKNOWN}, where)

    @staticmethod
    def _check_vocab(vocab: Any, added: Added, where: str) -> dict[str, int]:
        return check_vocab(vocab, where)

    @staticmethod
    def _build_engine(
        vocab: dict[str, int], merges: Sequence[Merge], added: Sequence[AddedTokenSpec]
    ) -> tokenizers.Tokenizer:
        return build_engine(vocab, merges, added)

    def encode_special(self, text: str) -> list[int]:
        """The ids of a text; there is no special token to parse."""
        return self.ids([text])[0]

    def decode(self, ids: Iterable[int]) -> str:
        """Decode ids to text, without special tokens and the space after the last word."""
        return self.bytes(ids).decode().removesuffix(" ")

    def files(self, context: int | None = None, starts: bool = False) -> dict[str, str]:
        """The equivalent files for Hugging Face's OpenAIGPTTokenizer; `context` is the model's."""
        settings: dict[str, Any] = {"tokenizer_class": "OpenAIGPTTokenizer", "unk_token": UNKNOWN}
        if context is not None:
            settings["model_max_length"] = context
        return {
            **vocab_and_merges(self._vocab, self._merges),
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


def build_engine(
    vocab: dict[str, int], merges: Sequence[Merge], added: Sequence[AddedTokenSpec]
) -> tokenizers.Tokenizer:
    """A `tokenizers.Tokenizer` with these pieces, merges and added tokens.

    Words are split at `<` and `>` before merging, so that no text can spell `<unk>`.
    """
    from tokenizers import Tokenizer as Engine
    from tokenizers import decoders, models, normalizers, pre_tokenizers

    engine = Engine(models.BPE(vocab, list(merges), unk_token=UNKNOWN, end_of_word_suffix=SUFFIX))
    engine.normalizer = normalizers.BertNormalizer(lowercase=True)
    engine.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    engine.decoder = decoders.BPEDecoder(suffix=SUFFIX)
    engine.add_tokens([token.to_engine() for token in added])
    return engine


def check_vocab(vocab: Any, where: str) -> dict[str, int]:
    """A vocabulary in id order; it must have `<unk>` and no gaps."""
    ordered = sort_by_id(vocab, where)
    if UNKNOWN not in ordered:
        raise invalid(where, f"{len(ordered):,} pieces, but none is {UNKNOWN}")
    return ordered
