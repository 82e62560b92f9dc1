"""Whole words as published with Transformer-XL: ids by frequency, and `<eos>` at the end of each line.

Texts are cut at whitespace alone, as WikiText is written: `He said , " no " .`
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from heedful.data.tokenizers.base import EngineTokenizer, parse_json
from heedful.data.tokenizers.tokenizer import MAX_VOCAB
from heedful.errors import AGAIN, UserError, shown

EOS = "<eos>"
UNKNOWN = ("<unk>", "<UNK>")


class WordTokenizer(EngineTokenizer):
    """A vocabulary of words; those that it does not have are unknown, and so are words that spell `<eos>`."""

    def __init__(self, text: str, where: str) -> None:
        from tokenizers import Tokenizer as Engine

        data = parse_json(text, where, self.invalid_file)
        if not isinstance(data, dict) or not isinstance(data.get("model"), dict):
            raise self.invalid_file(where, "no object with a `model`")
        vocab, normalizer = data["model"].get("vocab"), data.get("normalizer")
        if not isinstance(vocab, dict) or sorted(map(str, vocab.values())) != sorted(map(str, range(len(vocab)))):
            raise self.invalid_file(where, "missing or duplicate ids")
        # Built anew: a file has no say in the components.
        words = sorted(vocab, key=lambda word: int(vocab[word]))
        expected = description(words, normalizer == {"type": "Lowercase"}, where)
        if data["model"] != expected["model"]:
            raise self.invalid_file(where, "a model that is no list of words")
        self._engine = Engine.from_str(json.dumps(expected))
        self._engine.encode_special_tokens = True  # the text of a special token is encoded as ordinary text
        self.json = json.dumps(expected, ensure_ascii=False)
        self.vocab, self.lowercase = len(words), normalizer == {"type": "Lowercase"}
        self.eos, self.unk = (vocab[token["content"]] for token in expected["added_tokens"])
        self.special = frozenset({self.eos, self.unk})

    @classmethod
    def from_words(cls, words: Sequence[str], lowercase: bool, where: str) -> WordTokenizer:
        """The tokenizer of words in the order of their ids."""
        return cls(json.dumps(description(words, lowercase, where)), where)

    def _ordinary(self, ids: list[int]) -> list[int]:
        return [self.unk if number == self.eos else number for number in ids]

    @staticmethod
    def invalid_file(where: str, found: str) -> UserError:
        """The error for a file that is not such a tokenizer."""
        return UserError(
            "this is not a vocabulary of words", where=where, found=found,
            expected="different words, one an id, with <eos> and <unk> among them", todo=AGAIN,
        )  # fmt: skip

    @cached_property
    def _pieces(self) -> list[str]:
        return self.token_names

    def files(self) -> dict[str, str | bytes]:
        """The equivalent Hugging Face tokenizer files, by name."""
        settings = {"tokenizer_class": "TransfoXLTokenizer", "lower_case": self.lowercase}
        return {
            "vocab.txt": "".join(f"{word}\n" for word in self._pieces),
            "tokenizer_config.json": json.dumps(settings, indent=2) + "\n",
        }


def description(words: Sequence[str], lowercase: bool, where: str) -> dict[str, Any]:
    """The tokenizer.json of words, of which `<eos>` and the unknown one are special."""
    vocab = {word: number for number, word in enumerate(words)}
    unknown = next((word for word in UNKNOWN if word in vocab), None)
    if len(words) > MAX_VOCAB:
        raise WordTokenizer.invalid_file(where, f"{len(words):,} words, more than {MAX_VOCAB:,}")
    if len(vocab) < len(words):
        twice = next(word for number, word in enumerate(words) if vocab[word] != number)
        raise WordTokenizer.invalid_file(where, f"{shown(twice)} twice")
    if EOS not in vocab or unknown is None:
        raise WordTokenizer.invalid_file(where, f"{len(words):,} words without {EOS if unknown else '<unk>'}")
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": vocab[word], "content": word, **special} for word in (EOS, unknown)],
        "normalizer": {"type": "Lowercase"} if lowercase else None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": unknown},
    }
