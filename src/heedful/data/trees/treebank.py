"""Trees of words from files in the format of the Penn Treebank, one per line: `(3 (2 It) (4 (2 's) (4 great)))`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import Field

from heedful.config import Config
from heedful.data.formats.sources import SPLITS, Name, Split, lines, missing_files, no_data
from heedful.data.tokenizers.base import replace_surrogates
from heedful.errors import UserError, shown

PIECES = re.compile(r"[()]|[^ \t()]+")  # a word may contain other whitespace, such as the "2 1/2" of some reviews
ESCAPES = {"-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "-LCB-": "{", "-RCB-": "}", "``": '"', "''": '"'}
MAX_DEPTH = 1000  # the cost of a batch is that of its deepest tree
IGNORE_INDEX = -100  # the label of a node without one


@dataclass(frozen=True, slots=True)
class Tree:
    """A tree as lists of nodes, children before parents, the root last: labels[n], words[n], children[n]."""

    labels: tuple[int, ...]  # IGNORE_INDEX: no label
    words: tuple[str | None, ...]  # None: no word
    children: tuple[tuple[int, ...], ...]  # from left to right

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def text(self) -> str:
        """The words, joined by spaces."""
        return " ".join(word for word in self.words if word is not None)


class Trees(NamedTuple):
    """The trees of one split, and how many lines were blank."""

    trees: list[Tree]
    skipped: int


MOST_CLASSES = 10_000


class SentimentTrees(Config):
    """Files of labelled trees, and a file of initial word vectors."""

    kind: Literal["trees"] = "trees"
    root: Name = Field(".", description="folder of the files, relative to the working directory")
    longest: int = Field(100_000, ge=1, le=100_000_000, description="maximum characters per line")
    train: Name = Field(description="file for training, one tree per line")
    valid: Name = Field(description="file for validation")
    test: Name | None = Field(None, description="file for the final score")
    classes: int = Field(5, ge=2, le=MOST_CLASSES, description="number of classes; labels are integers from 0")
    vectors: Name | None = Field(
        None, description="file of word vectors, one word with its values per line, as GloVe's"
    )

    def file(self, split: Split) -> Path | None:
        """The file of a split, if it is given."""
        name = {"train": self.train, "valid": self.valid, "test": self.test}[split]
        return None if name is None else Path(self.root, name)

    @property
    def vectors_file(self) -> Path | None:
        """The file of word vectors, if it is given."""
        return None if self.vectors is None else Path(self.root, self.vectors)

    def read(self, split: Split) -> Trees:
        """The trees of a split, and the number of blank lines."""
        path = self.file(split)
        if path is None:
            raise no_data(split)
        return read_trees(path, self.longest, self.classes)

    def problems(self, splits: Sequence[Split] = SPLITS) -> list[UserError]:
        """Problems with the files of these splits that can be seen without reading them.

        The word vectors belong to the training set: only it is initialized from them.
        """
        return missing_files(self.root, [*map(self.file, splits), self.vectors_file if "train" in splits else None])


class WordsConfig(Config):
    """The vocabulary; all other words are unknown."""

    kind: Literal["words"] = "words"
    lowercase: bool = Field(True, description="lowercase words")
    at_least: int = Field(1, ge=1, description="minimum count in the training data of a word without a vector")
    known: int = Field(
        50_000,
        ge=0,
        le=10_000_000,
        description="words from the top of the vector file that are always in the vocabulary",
    )


def read_trees(path: Path, longest: int, classes: int | None) -> Trees:
    """Read the trees of a file, and count its blank lines."""
    trees = []
    skipped = 0
    for number, line in enumerate(lines(path, longest), start=1):
        if line.strip():
            trees.append(parse_tree(line, f"{path}:{number}", classes))
        else:
            skipped += 1
    if not trees:
        raise UserError(
            "there are no trees", where=str(path), found=f"{skipped} blank lines", expected="one tree per line"
        )
    return Trees(trees, skipped)


@dataclass(slots=True)
class _Open:
    """A node whose bracket is still open."""

    place: int  # of its bracket
    label: int | None = None
    word: str | None = None
    children: tuple[int, ...] = ()

    @property
    def empty(self) -> bool:
        return self.word is None and not self.children


def parse_tree(line: str, where: str, classes: int | None) -> Tree:
    """Parse a tree; without `classes`, labels may be any words and are ignored."""
    line, _ = replace_surrogates(line)
    labels: list[int] = []
    words: list[str | None] = []
    children: list[tuple[int, ...]] = []
    path: list[_Open] = []  # from the root to the current node

    def wrong(message: str, place: int, found: str, expected: str) -> UserError:
        return UserError(message, where=f"{where}:{place + 1}", found=found, expected=expected)

    for match in PIECES.finditer(line):
        piece, place = match[0], match.start()
        if labels and not path:
            raise wrong("there is text after the tree", place, shown(line[place:]), "one tree a line")
        node = path[-1] if path else None
        if node is None and piece != "(":
            raise wrong("a tree begins with a bracket", place, shown(piece), "(label ...)")
        if node is not None and node.label is None:
            node.label = _label(piece, f"{where}:{place + 1}", classes)
        elif piece == "(":
            if node is not None and node.word is not None:
                raise wrong("a node holds a word or nodes, not both", place, f"a node after {shown(node.word)}", ")")
            if len(path) == MAX_DEPTH:
                raise wrong("this tree is too deep", place, f"level {MAX_DEPTH + 1:,}", f"at most {MAX_DEPTH:,} levels")
            path.append(_Open(place))
        elif piece == ")":
            assert node is not None and node.label is not None
            if node.empty:
                raise wrong("this node is empty", node.place, shown(line[node.place : place + 1]), "(label word)")
            path.pop()
            labels.append(node.label)
            words.append(node.word)
            children.append(node.children)
            if path:
                path[-1].children += (len(labels) - 1,)
        else:
            assert node is not None
            if not node.empty:
                raise wrong("a leaf holds one word", place, f"{shown(piece)} besides", "(label word)")
            node.word = ESCAPES.get(piece, piece.replace("\\/", "/").replace("\\*", "*"))
    if path:
        found = f"the end of the line, {len(path)} bracket{'s' * (len(path) > 1)} still open"
        raise wrong("this bracket is not closed", path[-1].place, found, "as many ) as (")
    if not labels:
        raise wrong("there is no tree", 0, "a blank line", "(label ...)")
    return Tree(tuple(labels), tuple(words), tuple(children))


def _label(piece: str, where: str, classes: int | None) -> int:
    """The label after an opening bracket."""
    if piece in ("(", ")"):
        raise UserError("a label is missing", where=where, found=shown(piece), expected="(label word) or (label nodes)")
    if classes is None:
        return IGNORE_INDEX
    if not (piece.isascii() and piece.isdigit() and len(piece) < 10 and int(piece) < classes):
        expected = f"a whole number from 0 to {classes - 1}"
        raise UserError("this is not a label", where=where, found=shown(piece), expected=expected)
    return int(piece)
