"""Vocabularies of whole words or characters, for trees and for text classification.

N words with a vector, D dimensions.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from heedful.data.tokenizers.base import ClsSepLayout, Encoding, replace_surrogates
from heedful.data.trees.treebank import WordsConfig
from heedful.data.word_vectors import WordVectors
from heedful.errors import UserError, shown
from heedful.files.reading import read_file

# Penn Treebank word splitting: do n't, it 's, well-made, "..." and "--" whole.
WORD = re.compile(r"\w+(?=n['’]t\b)|n['’]t\b|['’](?:s|re|ve|ll|d|m)\b|\w+(?:-\w+)*|\.{2,}|-{2,}|[^\w\s]", re.IGNORECASE)


class Vocabulary:
    """A list of words in a JSON file; the id of a word is its index, of an unknown word `unk`."""

    names: ClassVar[tuple[str, ...]]  # special tokens, which have the first ids
    unk: ClassVar = 1

    def __init__(self, text: str, where: str) -> None:
        """Parse the JSON text of a file; errors name `where`."""
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise _invalid(where, f"text that is not JSON: {error}") from None
        words: Any = data.get("words") if isinstance(data, dict) else None
        if not _strings(words) or not self._valid(data):
            raise _invalid(where, shown(data))
        if tuple(words[: len(self.names)]) != self.names or len(set(words)) != len(words):
            raise _invalid(where, f"words that do not start with {' '.join(self.names)}, or a word twice")
        self.kind: str = data["kind"]
        self.lowercase = bool(data["lowercase"])
        self.words: list[str] = words
        self.vectors: str | None = data.get("vectors")  # hash of the initial vectors, if recorded
        self.labels: tuple[str, ...] = tuple(data.get("labels", ()))
        self.json: str = json.dumps(data, ensure_ascii=False)
        self.vocab: int = len(words)
        self._ids = {word: number for number, word in enumerate(words) if number >= len(self.names)}

    @staticmethod
    def _valid(data: dict[str, Any]) -> bool:
        """Whether the other keys of a file are valid."""
        raise NotImplementedError

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a file."""
        try:
            return cls(read_file(path).decode(), str(path))
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"this vocabulary cannot be read: {error}", where=str(path)) from None

    @property
    def sha256(self) -> str:
        """A hash that identifies this vocabulary."""
        return hashlib.sha256(self.json.encode(errors="surrogatepass")).hexdigest()

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """The text of each id."""
        return [self.words[number] for number in ids]

    @classmethod
    def _rank(cls, counts: Counter[str], known: Collection[str], extra: Iterable[str], at_least: int) -> list[str]:
        """Special tokens, words by frequency, and `extra` ones; rare words need to be known."""
        often = (word for word, count in counts.items() if count >= at_least or word in known)
        ranked = [*sorted(often, key=lambda word: (-counts[word], word)), *extra]
        if not ranked:
            raise UserError("there is no word to build a vocabulary from", where="tokenizer", found="no text")
        return [*cls.names, *(word for word in ranked if word not in cls.names)]


class WordVocab(Vocabulary):
    """The words of trees."""

    names = ("<pad>", "<unk>")
    pad: ClassVar = 0

    @staticmethod
    def _valid(data: dict[str, Any]) -> bool:
        keys = set(data) - {"vectors"} == {"kind", "lowercase", "words"} and data["kind"] == "words"
        return keys and data["lowercase"] in (0, 1) and isinstance(data.get("vectors", ""), str)

    @classmethod
    def learn(cls, config: WordsConfig, texts: Iterable[Sequence[str]], vectors: Collection[str] = ()) -> WordVocab:
        """Build a vocabulary: the words of texts by frequency, then those that only have a pretrained vector."""
        counts = Counter(normalize_word(word, config.lowercase) for text in texts for word in text)
        known = set(vectors)
        # Vector files contain invalid UTF-8, which is skipped.
        extra = sorted(word for word in known - counts.keys() if not replace_surrogates(word)[1])
        words = cls._rank(counts, known, extra if counts else (), config.at_least)
        return cls(json.dumps({"kind": "words", "lowercase": config.lowercase, "words": words}), "words")

    def initialized_from(self, vectors: WordVectors) -> WordVocab:
        """The same vocabulary, with a hash of its initial vectors."""
        return WordVocab(json.dumps({**json.loads(self.json), "vectors": self.fingerprint(vectors)}), "words")

    def id(self, word: str) -> int:
        """The id of a word."""
        return self._ids.get(normalize_word(word, self.lowercase), self.unk)

    def ids(self, text: Sequence[str]) -> list[int]:
        """The id of each word."""
        return [self.id(word) for word in text]

    def table(self, vectors: WordVectors) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """A vector (D,) per word, zeros where there is none, and a mask of the words that have one."""
        rows = np.array([vectors.rows.get(word, -1) for word in self.words])
        found = rows >= 0
        found[: len(self.names)] = False
        table = np.zeros((len(rows), vectors.width), np.float32)
        table[found] = vectors.matrix[rows[found]]
        return table, found

    def fingerprint(self, vectors: WordVectors) -> str:
        """A hash over the vectors of these words."""
        return hashlib.sha256(b"".join(part.tobytes() for part in self.table(vectors))).hexdigest()


class TextVocab(ClsSepLayout, Vocabulary):
    """The words or characters of texts, and the class names; texts are put between two special tokens."""

    names = ("<pad>", "<unk>", "<s>", "</s>")
    pad, unk, cls, sep = range(4)
    special = frozenset(range(4))

    @staticmethod
    def _valid(data: dict[str, Any]) -> bool:
        keys = set(data) == {"kind", "lowercase", "words", "labels", "vectors"}
        return (
            keys
            and data["kind"] in ("words", "characters")
            and _strings(data["labels"])
            and len(set(data["labels"])) == len(data["labels"]) >= 2
            and isinstance(data["lowercase"], bool)
            and isinstance(data["vectors"], str | None)
        )

    @classmethod
    def learn(
        cls,
        texts: Iterable[str],
        labels: Sequence[str],
        kind: str,
        lowercase: bool,
        at_least: int,
        vectors: WordVectors | None = None,
    ) -> TextVocab:
        """Build a vocabulary: the tokens of texts by frequency, then those that only have a pretrained vector."""
        counts = Counter(word for text in texts for word in split_words(text, kind, lowercase))
        known: Collection[str] = vectors.rows if vectors else ()
        # Of words that occur in no text, only printable ones: vector files contain invalid UTF-8.
        extra = [word for word in known if word not in counts and word.isprintable()]
        words = cls._rank(counts, known, extra, at_least)
        data = {"kind": kind, "lowercase": lowercase, "words": words, "labels": list(labels), "vectors": None}
        vocab = cls(json.dumps(data), "words")
        if vectors is None:
            return vocab
        return cls(json.dumps({**data, "vectors": vocab.fingerprint(vectors)}), "words")

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text."""
        split = (split_words(text, self.kind, self.lowercase) for text in texts)
        return [[self._ids.get(word, self.unk) for word in words] for words in split]

    def encode(self, text: str) -> Encoding:
        """Encode a text, with the character span of each token."""
        whole, replaced = replace_surrogates(text)
        places = [place for place, letter in enumerate(whole) for _ in (letter.lower() if self.lowercase else letter)]
        found = word_spans(whole, self.kind, self.lowercase)
        ids = [self._ids.get(word, self.unk) for word, _, _ in found]
        spans = [(places[start], places[end - 1] + 1) for _, start, end in found]
        return Encoding(ids, spans, self.pieces(ids), replaced)

    def encode_batch(self, texts: Sequence[str]) -> list[Encoding]:
        """Encode each text."""
        return list(map(self.encode, texts))

    def decode(self, ids: Iterable[int]) -> str:
        """Decode ids to text, without special tokens, words separated by spaces."""
        pieces = self.pieces(number for number in ids if number not in self.special)
        return (" " if self.kind == "words" else "").join(pieces)

    def rows(self, vectors: WordVectors) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """The ids that have a vector, and these vectors (N, D)."""
        found = [(number, vectors.rows[word]) for word, number in self._ids.items() if word in vectors]
        places = np.array(found, dtype=np.int64).reshape(-1, 2)
        return places[:, 0], vectors.matrix[places[:, 1]]

    def fingerprint(self, vectors: WordVectors) -> str:
        """A hash over the vectors of these words."""
        return hashlib.sha256(b"".join(part.tobytes() for part in self.rows(vectors))).hexdigest()


def split_words(text: str, kind: str, lowercase: bool) -> list[str]:
    """The words of a text, or its characters."""
    return [word for word, _, _ in word_spans(replace_surrogates(text)[0], kind, lowercase)]


def word_spans(text: str, kind: str, lowercase: bool) -> list[tuple[str, int, int]]:
    """Like `split_words`, with the start and end of each word."""
    text = text.lower() if lowercase else text
    if kind == "words":
        return [(match[0], *match.span()) for match in WORD.finditer(text)]
    return [(letter, place, place + 1) for place, letter in enumerate(text)]


def normalize_word(word: str, lowercase: bool) -> str:
    """Lowercase a word if the vocabulary is lowercase."""
    return word.lower() if lowercase else word


def _strings(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _invalid(where: str, found: str) -> UserError:
    """The error for an invalid vocabulary file."""
    return UserError(
        "this vocabulary is damaged or was not written by Heedful", where=where, found=found,
        expected="a vocabulary written by Heedful", todo="take it from the run that trained it, or train again",
    )  # fmt: skip
