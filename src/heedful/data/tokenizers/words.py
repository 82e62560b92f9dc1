"""Whole words as tokens, and vectors for them from a file such as GloVe's (Pennington et al., 2014)."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from heedful.data.formats.sources import lines
from heedful.data.trees.treebank import WordsConfig
from heedful.errors import UserError, shown
from heedful.files.reading import read_file

SPECIAL = ("<pad>", "<unk>")  # ids 0 and 1
LONGEST = 100_000  # characters of a line of vectors
WIDEST = 65_536  # numbers of a vector
LARGEST = float(np.finfo(np.float32).max)


class Words:
    """A list of words; the id of a word is its place, and of a word that is not there, `unk`."""

    pad, unk = range(2)

    def __init__(self, text: str, where: str) -> None:
        """Build it from the JSON text of a file; `where` is what errors name."""
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise damaged(where, f"no JSON: {error}") from None
        if not isinstance(data, dict) or set(data) - {"vectors"} != {"kind", "lowercase", "words"}:
            raise damaged(where, shown(data))
        if data["kind"] != "words" or not isinstance(data.get("vectors", ""), str):
            raise damaged(where, shown(data))
        words = data["words"]
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise damaged(where, "words that are no list of texts")
        if tuple(words[: len(SPECIAL)]) != SPECIAL or len(set(words)) != len(words) or data["lowercase"] not in (0, 1):
            raise damaged(where, "a list that does not begin with <pad> and <unk>, or has a word twice")
        self.lowercase = bool(data["lowercase"])
        self.words: list[str] = words
        self.vectors: str | None = data.get("vectors")  # what tells those that the words begin from, if it was noted
        self.json: str = json.dumps(data, ensure_ascii=False)
        self.vocab: int = len(words)
        self._ids = {word: number for number, word in enumerate(words) if number >= len(SPECIAL)}

    @classmethod
    def learn(cls, config: WordsConfig, texts: Iterable[Sequence[str]], vectors: Collection[str] = ()) -> Words:
        """The words of some texts, the most frequent first, and then those that only have a vector."""
        counts = Counter(folded(word, config.lowercase) for text in texts for word in text)
        if not counts:
            raise UserError("there is no word to learn", where="words", found="no text")
        known = set(vectors)
        often = (word for word, count in counts.items() if count >= config.at_least or word in known)
        ranked = sorted(often, key=lambda word: (-counts[word], word))
        ranked += sorted(known - counts.keys())
        words = [*SPECIAL, *(word for word in ranked if word not in SPECIAL)]
        return cls(json.dumps({"kind": "words", "lowercase": config.lowercase, "words": words}), "words")

    @classmethod
    def load(cls, path: str | Path) -> Words:
        """The words of a file."""
        return cls(words_in(path), str(path))

    def beginning_from(self, vectors: Vectors) -> Words:
        """The same list with a note of the vectors that its words begin from."""
        return Words(json.dumps({**json.loads(self.json), "vectors": vectors.sha256(self)}), "words")

    @property
    def sha256(self) -> str:
        """What tells this list from any other."""
        return hashlib.sha256(self.json.encode(errors="surrogatepass")).hexdigest()

    def id(self, word: str) -> int:
        """The id of a word."""
        return self._ids.get(folded(word, self.lowercase), self.unk)

    def ids(self, text: Sequence[str]) -> list[int]:
        """The id of each word."""
        return [self.id(word) for word in text]

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """How each id reads."""
        return [self.words[number] for number in ids]


def folded(word: str, lowercase: bool) -> str:
    """A word as it is looked up."""
    return word.lower() if lowercase else word


def words_in(path: str | Path) -> str:
    """The text of a file of words."""
    try:
        return read_file(path).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"this list of words cannot be read: {error}", where=str(path)) from None


def damaged(where: str, found: str) -> UserError:
    """The error for a list of words that is not as it was written."""
    return UserError(
        "this list of words is damaged or of another make",
        where=where,
        found=found,
        expected="a list of words written by Heedful",
        todo="take it from the run that trained it, or train again",
    )


@dataclass(frozen=True)
class Vectors:
    """A vector for each of some words, in the order of a file."""

    rows: dict[str, int]
    matrix: NDArray[np.float32]  # (N, D)

    @property
    def width(self) -> int:
        """The numbers of each vector."""
        return self.matrix.shape[1]

    def table(self, words: Words) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """A row for each word of a list, zeros where there is no vector, and which words have one."""
        places = np.array([self.rows.get(word, -1) for word in words.words])
        found = places >= 0
        found[: len(SPECIAL)] = False
        table = np.zeros((len(places), self.width), np.float32)
        table[found] = self.matrix[places[found]]
        return table, found

    def sha256(self, words: Words) -> str:
        """What tells the vectors of these words from any others."""
        return hashlib.sha256(b"".join(part.tobytes() for part in self.table(words))).hexdigest()


def read_vectors(path: Path, wanted: Collection[str], known: int) -> Vectors:
    """The vectors of the words that are wanted, and of the first so many words of the file."""
    rows: dict[str, int] = {}
    kept: list[NDArray[np.float32]] = []
    width = None
    for number, line in enumerate(lines(path, LONGEST), start=1):
        where = f"{path}:{number}"
        if number == 1:
            fields = line.split(" ")
            if len(fields) == 2 and all(field.isascii() and field.isdigit() for field in fields):
                continue  # a count of words and of columns, as word2vec writes it
        if width is None:
            width = line.rstrip(" ").count(" ")
            if not 1 <= width <= WIDEST:
                found = f"{_counted(width)} in {shown(line)}"
                raise UserError(
                    "this is no word with its vector", where=where, found=found, expected="word 0.1 -0.2 ..."
                )
        word, *numbers = line.rstrip(" ").rsplit(" ", width)  # a word may itself hold a space
        if len(numbers) != width or not word:
            found = f"{_counted(len(numbers))} in {shown(line)}"
            raise UserError(
                "this line has another number of columns",
                where=where,
                found=found,
                expected=f"a word and {_counted(width)}",
            )
        if word in rows or not (number <= known or word in wanted):
            continue
        rows[word] = len(rows)
        kept.append(_numbers(numbers, where))
    if not kept:
        raise UserError("none of the words has a vector here", where=str(path), found=f"{len(wanted):,} words wanted")
    return Vectors(rows, np.stack(kept))


def _counted(count: int) -> str:
    return f"{count:,} number{'s' * (count != 1)}"


def _numbers(fields: list[str], where: str) -> NDArray[np.float32]:
    """The numbers of one line."""
    numbers = [_number(field) for field in fields]
    if None in numbers:
        bad = fields[numbers.index(None)]
        raise UserError("this is no number", where=where, found=shown(bad), expected="finite numbers after the word")
    return np.array(numbers, np.float32)


def _number(field: str) -> float | None:
    """A number that 32 bits can hold."""
    try:
        number = float(field)
    except ValueError:
        return None
    return number if abs(number) <= LARGEST else None
