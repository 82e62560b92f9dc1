"""How a language model's texts are written as ids, for each kind of tokenizer.

A text is read after the token `begins`, and the model ends a text with `ends`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, TypeAlias

from heedful.data.tokenizers.base import read_tokenizer_file
from heedful.data.tokenizers.byte_pairs import END, Gpt2Tokenizer, invalid_tokenizer
from heedful.data.tokenizers.tokenizer import TrainedTokenizer

LanguageTokenizer: TypeAlias = TrainedTokenizer | Gpt2Tokenizer


class TextCodec(Protocol):
    """What a language model needs to know about its tokenizer."""

    @property
    def begins(self) -> int:
        """The token before every text."""

    @property
    def ends(self) -> int | None:
        """The token with which the model ends a text; None: it never does."""

    @property
    def unwritten(self) -> tuple[int, ...]:
        """Tokens that are never written."""

    def text_ids(self, text: str) -> list[int]: ...

    def texts_ids(self, texts: Sequence[str]) -> list[list[int]]: ...

    def cut(self, text: str) -> int:
        """The last position at which a text can be split without changing its ids; 0 or less if there is none."""

    def ids_text(self, ids: Sequence[int]) -> str: ...


class LineCodec:
    """A text as lines: `eos` is the end of a line, and a text starts as if a line had just ended."""

    begins = TrainedTokenizer.eos
    ends = None
    unwritten = (TrainedTokenizer.pad, TrainedTokenizer.unk, TrainedTokenizer.bos)

    def __init__(self, tokenizer: TrainedTokenizer) -> None:
        self.tokenizer = tokenizer

    def text_ids(self, text: str) -> list[int]:
        """The ids of a text whose last line is incomplete."""
        return self.texts_ids([text])[0]

    def texts_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, faster than one by one."""
        cut = [text.split("\n") for text in texts]
        found = iter(self.tokenizer.ids([line for lines in cut for line in lines]))
        return [[number for _ in lines for number in (*next(found), TrainedTokenizer.eos)][:-1] for lines in cut]

    @staticmethod
    def cut(text: str) -> int:
        """The end of the last line but one."""
        return text.rfind("\n")

    def ids_text(self, ids: Sequence[int]) -> str:
        """Decode ids to text, line ends included."""
        lines: list[list[int]] = [[]]
        for number in ids:
            if number == TrainedTokenizer.eos:
                lines.append([])
            else:
                lines[-1].append(number)
        return "\n".join(self.tokenizer.decode(line) for line in lines)


class ByteCodec:
    """A text as bytes, line ends included: `<|endoftext|>` before and after it."""

    unwritten = ()

    def __init__(self, tokenizer: Gpt2Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.begins = self.ends = tokenizer.end

    def text_ids(self, text: str) -> list[int]:
        """The ids of a text."""
        return self.texts_ids([text])[0]

    def texts_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, faster than one by one."""
        return self.tokenizer.ids(texts)

    @staticmethod
    def cut(text: str) -> int:
        """Before the last space or line end that follows a visible character: no token spans that point."""
        place = len(text)
        while place > 0:
            place = max(text.rfind(" ", 0, place), text.rfind("\n", 0, place))
            if place > 0 and not text[place - 1].isspace():
                return place
        return 0

    def ids_text(self, ids: Sequence[int]) -> str:
        """Decode ids to text."""
        return self.tokenizer.decode(ids)


def load_tokenizer(path: Path) -> LanguageTokenizer:
    """The tokenizer of a file."""
    return open_tokenizer(read_tokenizer_file(path, invalid_tokenizer), str(path))


def open_tokenizer(text: str, where: str) -> LanguageTokenizer:
    """The tokenizer of a file's text, of either kind; `where` is what errors name."""
    try:
        special = {token["content"] for token in json.loads(text)["added_tokens"]}
    except (ValueError, KeyError, TypeError, RecursionError):
        special = set()  # the reader then reports what is wrong
    return Gpt2Tokenizer(text, where) if END in special else TrainedTokenizer(text, where)


def codec_of(tokenizer: LanguageTokenizer) -> TextCodec:
    """How texts are written with a tokenizer."""
    return ByteCodec(tokenizer) if isinstance(tokenizer, Gpt2Tokenizer) else LineCodec(tokenizer)
