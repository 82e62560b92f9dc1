"""The encoding of a language model's texts, for each kind of tokenizer.

A text follows the token `start_id`, and the model ends a text with `end_id`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, TypeAlias

from heedful.data.tokenizers.base import read_tokenizer_file
from heedful.data.tokenizers.byte_pairs import END, Gpt2Tokenizer, invalid
from heedful.data.tokenizers.tokenizer import TrainedTokenizer
from heedful.data.tokenizers.words import EOS, WordTokenizer

LanguageTokenizer: TypeAlias = TrainedTokenizer | WordTokenizer | Gpt2Tokenizer


class TextCodec(Protocol):
    """Encodes and decodes the texts of a language model."""

    @property
    def start_id(self) -> int:
        """The token before every text."""

    @property
    def end_id(self) -> int | None:
        """The end-of-text token; None: the model never ends a text."""

    @property
    def unknown_id(self) -> int | None:
        """The token of text that the tokenizer does not know; None: it knows all."""

    @property
    def suppressed(self) -> tuple[int, ...]:
        """Tokens that are never generated."""

    def encode(self, text: str) -> list[int]: ...

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]: ...

    def split_point(self, text: str) -> int:
        """The last position at which a text can be split without changing its ids; 0 or less if there is none."""

    def decode(self, ids: Sequence[int]) -> str: ...


class LineCodec:
    """A text as lines, each ended by `eos`; a text starts after an `eos`."""

    end_id = None

    def __init__(self, tokenizer: TrainedTokenizer | WordTokenizer) -> None:
        self.tokenizer, self.start_id, self.unknown_id = tokenizer, tokenizer.eos, tokenizer.unk
        self.suppressed = tuple(sorted(tokenizer.special - {tokenizer.eos}))

    def encode(self, text: str) -> list[int]:
        """The ids of a text whose last line is incomplete."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, faster than one by one."""
        cut = [text.split("\n") for text in texts]
        found = iter(self.tokenizer.ids([line for lines in cut for line in lines]))
        return [[number for _ in lines for number in (*next(found), self.start_id)][:-1] for lines in cut]

    @staticmethod
    def split_point(text: str) -> int:
        """The end of the last complete line."""
        return text.rfind("\n")

    def decode(self, ids: Sequence[int]) -> str:
        """Decode ids to text, line ends included."""
        lines: list[list[int]] = [[]]
        for number in ids:
            if number == self.start_id:
                lines.append([])
            else:
                lines[-1].append(number)
        return "\n".join(self.tokenizer.decode(line) for line in lines)


class ByteCodec:
    """A text as byte-level BPE, line ends included, between two `<|endoftext|>`."""

    suppressed = ()
    unknown_id = None

    def __init__(self, tokenizer: Gpt2Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.start_id = self.end_id = tokenizer.end

    def encode(self, text: str) -> list[int]:
        """The ids of a text."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, faster than one by one."""
        return self.tokenizer.ids(texts)

    def split_point(self, text: str) -> int:
        """Before the last space or line end that follows a visible character, where no added token spans that point."""
        return last_split(text, self.tokenizer.can_split, self.tokenizer.reach)

    def decode(self, ids: Sequence[int]) -> str:
        """Decode ids to text."""
        return self.tokenizer.decode(ids)


def last_split(text: str, allowed: Callable[[str, int], bool] = lambda text, place: True, reach: int = 0) -> int:
    """Before the last space or line end that follows a visible character, where that is `allowed`; 0: none.

    `reach` characters must follow it, since the text goes on.
    """
    place = len(text) - reach
    while place > 0:
        place = max(text.rfind(" ", 0, place), text.rfind("\n", 0, place))
        if place > 0 and not text[place - 1].isspace() and allowed(text, place):
            return place
    return 0


def load_tokenizer(path: Path) -> LanguageTokenizer:
    """Read a tokenizer file."""
    return open_tokenizer(read_tokenizer_file(path, invalid), str(path))


def open_tokenizer(text: str, where: str) -> LanguageTokenizer:
    """Parse a tokenizer file, of any kind; `where` is its name in errors."""
    try:
        special = {token["content"] for token in json.loads(text)["added_tokens"]}
    except (ValueError, KeyError, TypeError, RecursionError):
        special = set()  # the parser reports the error
    if EOS in special and len(special) == 2:
        return WordTokenizer(text, where)
    return Gpt2Tokenizer(text, where) if END in special else TrainedTokenizer(text, where)


def codec_of(tokenizer: LanguageTokenizer) -> TextCodec:
    """The codec for a tokenizer."""
    return ByteCodec(tokenizer) if isinstance(tokenizer, Gpt2Tokenizer) else LineCodec(tokenizer)
