"""Word vectors that an embedding begins from; readable without numpy."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from heedful.config import Config
from heedful.data.formats.sources import Name, unfit
from heedful.errors import UserError

if TYPE_CHECKING:
    from heedful.data.word_vectors import WordVectors


class EmbeddingInit(Config):
    """A file of word vectors. Words that are not in it begin with vectors that are drawn by chance."""

    file: Name = Field(description="file of word vectors, plain or gzip, seen from the current folder")
    read_fn: Literal["load_word2vec", "load_glove"] = Field(
        "load_word2vec", description="what it is: word2vec's, text or bytes, with a header; or GloVe's text without one"
    )

    def read(self, only: Collection[str], most: int, width: int) -> WordVectors:
        """The vectors of some words, and of the first so many of the file, if they are as wide as the model's."""
        from heedful.data.word_vectors import load_vectors, require_header

        if self.read_fn == "load_word2vec":
            vectors = load_vectors(self.file, require_header(self.file), only=only, most=most)
        else:
            vectors = load_vectors(self.file, "glove", only=only, most=most)
        if vectors.width != width:
            raise UserError(
                "the word vectors do not fit into the model",
                where="model.width",
                found=f"{width}, but {vectors.width} numbers a word in {self.file}",
                expected="the same",
                todo=f"write model.width: {vectors.width}",
            )
        return vectors

    def missing(self) -> list[UserError]:
        """What a look at the file, without reading, already shows to be wrong."""
        problem = unfit(Path(self.file))
        if problem is None:
            return []
        todo = "say where it is: embedding_init.file=PATH; or begin without: embedding_init=null"
        return [UserError(problem.message, where="embedding_init.file", found=self.file, todo=todo)]
