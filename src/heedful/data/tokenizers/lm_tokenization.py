"""How a language model's texts are written as ids, for each kind of tokenizer.

A text is read after the token `begins`, and where the model ends a text it writes `ends`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, TypeAlias

from heedful.data.tokenizers.base import text_in
from heedful.data.tokenizers.byte_pairs import END, BytePairs, damaged
from heedful.data.tokenizers.tokenizer import TrainedTokenizer

LanguageTokenizer: TypeAlias = TrainedTokenizer | BytePairs


class Script(Protocol):
    """What a language model needs to know of its tokenizer."""

    @property
    def begins(self) -> int:
        """The token that a text is read after."""

    @property
    def ends(self) -> int | None:
        """The token with which the model ends a text; None: it goes on for ever."""

    @property
    def unwritten(self) -> tuple[int, ...]:
        """Tokens that are never written."""

    def text_ids(self, text: str) -> list[int]: ...

    def texts_ids(self, texts: Sequence[str]) -> list[list[int]]: ...

    def cut(self, text: str) -> int:
        """The last place at which a text has the same ids in two parts as in one; 0 or less, where there is none."""

    def ids_text(self, ids: Sequence[int]) -> str: ...


class Lines:
    """A text as lines: the end of a line is the token `eos`, and a text begins as if a line had just ended."""

    begins = TrainedTokenizer.eos
    ends = None
    unwritten = (TrainedTokenizer.pad, TrainedTokenizer.unk, TrainedTokenizer.bos)

    def __init__(self, tokenizer: TrainedTokenizer) -> None:
        self.tokenizer = tokenizer

    def text_ids(self, text: str) -> list[int]:
        """The ids of a text whose last line may go on."""
        return self.texts_ids([text])[0]

    def texts_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Those of each text, which is quicker for all at once."""
        cut = [text.split("\n") for text in texts]
        found = iter(self.tokenizer.ids([line for lines in cut for line in lines]))
        return [[number for _ in lines for number in (*next(found), TrainedTokenizer.eos)][:-1] for lines in cut]

    @staticmethod
    def cut(text: str) -> int:
        """The end of the last line but one."""
        return text.rfind("\n")

    def ids_text(self, ids: Sequence[int]) -> str:
        """The text that ids stand for, line ends included."""
        lines: list[list[int]] = [[]]
        for number in ids:
            if number == TrainedTokenizer.eos:
                lines.append([])
            else:
                lines[-1].append(number)
        return "\n".join(self.tokenizer.decode(line) for line in lines)


class Bytes:
    """A text as the bytes that it is, line ends among them: `<|endoftext|>` stands before it and behind it."""

    unwritten = ()

    def __init__(self, tokenizer: BytePairs) -> None:
        self.tokenizer = tokenizer
        self.begins = self.ends = tokenizer.end

    def text_ids(self, text: str) -> list[int]:
        """The ids of a text."""
        return self.texts_ids([text])[0]

    def texts_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Those of each text, which is quicker for all at once."""
        return self.tokenizer.ids(texts)

    @staticmethod
    def cut(text: str) -> int:
        """Before the last space or end of a line that follows a visible character: no token reaches over that place."""
        place = len(text)
        while place > 0:
            place = max(text.rfind(" ", 0, place), text.rfind("\n", 0, place))
            if place > 0 and not text[place - 1].isspace():
                return place
        return 0

    def ids_text(self, ids: Sequence[int]) -> str:
        """The text that ids stand for."""
        return self.tokenizer.decode(ids)


def load_tokenizer(path: Path) -> LanguageTokenizer:
    """The tokenizer of a file."""
    return open_tokenizer(text_in(path, damaged), str(path))


def open_tokenizer(text: str, where: str) -> LanguageTokenizer:
    """The tokenizer of a file's text, of either kind; `where` is what errors name."""
    try:
        special = {token["content"] for token in json.loads(text)["added_tokens"]}
    except (ValueError, KeyError, TypeError, RecursionError):
        special = set()  # reading it then says what is wrong
    return BytePairs(text, where) if END in special else TrainedTokenizer(text, where)


def script_of(tokenizer: LanguageTokenizer) -> Script:
    """How texts are written with a tokenizer."""
    return Bytes(tokenizer) if isinstance(tokenizer, BytePairs) else Lines(tokenizer)
