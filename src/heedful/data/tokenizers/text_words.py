"""Whole words, or single characters, as the tokens of texts that have a class each."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heedful.data.tokenizers.base import Encoding, Framed, clean
from heedful.data.tokenizers.words import damaged, words_in
from heedful.data.word_vectors import WordVectors
from heedful.errors import UserError, shown

SPECIAL = ("<pad>", "<unk>", "<s>", "</s>")
KEYS = {"kind", "lowercase", "words", "labels", "vectors"}
# As the Penn Treebank cuts, and those who count words with it: do n't, it 's, well-made, "..." and "--" whole.
WORD = re.compile(r"\w+(?=n['’]t\b)|n['’]t\b|['’](?:s|re|ve|ll|d|m)\b|\w+(?:-\w+)*|\.{2,}|-{2,}|[^\w\s]", re.IGNORECASE)


def cut(text: str, kind: str, lowercase: bool) -> list[str]:
    """The words of a text, or its characters."""
    return [word for word, _, _ in spans(clean(text)[0], kind, lowercase)]


def spans(text: str, kind: str, lowercase: bool) -> list[tuple[str, int, int]]:
    """The same with where each begins and ends, in lower case if it is made so."""
    text = text.lower() if lowercase else text
    if kind == "words":
        return [(match[0], *match.span()) for match in WORD.finditer(text)]
    return [(letter, place, place + 1) for place, letter in enumerate(text)]


class TextWords(Framed):
    """Tokens by their numbers, and the names of the classes; a text stands between two marks."""

    pad, unk, cls, sep = range(4)
    special = frozenset(range(4))

    def __init__(self, text: str, where: str) -> None:
        """Build it from the JSON text of a file; `where` is what errors name."""
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise damaged(where, f"no JSON: {error}") from None
        if not _is_whole(data):
            raise damaged(where, shown(data))
        self.kind: str = data["kind"]
        self.lowercase: bool = data["lowercase"]
        self.words: list[str] = data["words"]
        self.labels: tuple[str, ...] = tuple(data["labels"])
        self.vectors: str | None = data["vectors"]  # what tells those that the words begin from
        self.json = json.dumps(data, ensure_ascii=False)
        self.vocab = len(self.words)
        self._ids = {word: number for number, word in enumerate(self.words) if number >= len(SPECIAL)}

    @classmethod
    def learn(
        cls,
        texts: Iterable[str],
        labels: Sequence[str],
        kind: str,
        lowercase: bool,
        at_least: int,
        vectors: WordVectors | None = None,
    ) -> TextWords:
        """The tokens of some texts, the most frequent first, and then those that only have a vector."""
        counts = Counter(word for text in texts for word in cut(text, kind, lowercase))
        known: Collection[str] = vectors.rows if vectors else ()
        often = (word for word, count in counts.items() if count >= at_least or word in known)
        ranked = sorted(often, key=lambda word: (-counts[word], word))
        # Of what no text holds, only what can be written as UTF-8: a file of vectors may have cut letters in two.
        ranked += [word for word in known if word not in counts and word.isprintable()]
        if not ranked:
            raise UserError("there is no word to learn", where="tokenizer", found="no text")
        words = [*SPECIAL, *(word for word in ranked if word not in SPECIAL)]
        data = {"kind": kind, "lowercase": lowercase, "words": words, "labels": list(labels), "vectors": None}
        made = cls(json.dumps(data), "words")
        if vectors is None:
            return made
        return cls(json.dumps({**data, "vectors": made.fingerprint(vectors)}), "words")

    @classmethod
    def load(cls, path: str | Path) -> TextWords:
        """The words and classes of a file."""
        return cls(words_in(path), str(path))

    @property
    def sha256(self) -> str:
        """What tells these words and classes from any others."""
        return hashlib.sha256(self.json.encode(errors="surrogatepass")).hexdigest()

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """The numbers of each text's tokens."""
        return [[self._ids.get(word, self.unk) for word in cut(text, self.kind, self.lowercase)] for text in texts]

    def encode(self, text: str) -> Encoding:
        """The tokens of a text, and the characters that each covers."""
        whole, replaced = clean(text)
        places = [place for place, letter in enumerate(whole) for _ in (letter.lower() if self.lowercase else letter)]
        found = spans(whole, self.kind, self.lowercase)
        ids = [self._ids.get(word, self.unk) for word, _, _ in found]
        return Encoding(
            ids, [(places[start], places[end - 1] + 1) for _, start, end in found], self.pieces(ids), replaced
        )

    def encode_batch(self, texts: Sequence[str]) -> list[Encoding]:
        """The tokens of each text."""
        return list(map(self.encode, texts))

    def decode(self, ids: Iterable[int]) -> str:
        """The text that ids stand for, special tokens left out, with a space between words."""
        kept = self.pieces(number for number in ids if number not in self.special)
        return (" " if self.kind == "words" else "").join(kept)

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """How each number reads."""
        return [self.words[number] for number in ids]

    def rows(self, vectors: WordVectors) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Which tokens have a vector, and these vectors."""
        found = [(number, vectors.rows[word]) for word, number in self._ids.items() if word in vectors]
        places = np.array(found, dtype=np.int64).reshape(-1, 2)
        return places[:, 0], vectors.matrix[places[:, 1]]

    def fingerprint(self, vectors: WordVectors) -> str:
        """What tells the vectors of these words from any others."""
        return hashlib.sha256(b"".join(part.tobytes() for part in self.rows(vectors))).hexdigest()


def _is_whole(data: Any) -> bool:
    """Whether all that a file of words must hold is there."""
    if not isinstance(data, dict) or set(data) != KEYS or data["kind"] not in ("words", "characters"):
        return False
    words, labels = data["words"], data["labels"]
    lists = all(isinstance(some, list) and all(isinstance(one, str) for one in some) for some in (words, labels))
    return (
        lists
        and tuple(words[: len(SPECIAL)]) == SPECIAL
        and len(set(words)) == len(words)
        and len(set(labels)) == len(labels) >= 2
        and isinstance(data["lowercase"], bool)
        and isinstance(data["vectors"], str | None)
    )
