"""Initial word vectors of an embedding; imports no numpy."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from heedful.config import Config
from heedful.data.formats.sources import Name, file_problem
from heedful.errors import UserError

if TYPE_CHECKING:
    from heedful.data.word_vectors import WordVectors


class EmbeddingInit(Config):
    """A file of pretrained word vectors; other words are randomly initialized."""

    file: Name = Field(description="file of word vectors, plain or gzip, relative to the working directory")
    read_fn: Literal["load_word2vec", "load_glove"] = Field(
        "load_word2vec", description="format: word2vec's (text or binary, with a header), or GloVe's text without one"
    )

    def read(self, only: Collection[str], most: int, width: int) -> WordVectors:
        """The vectors of the words in `only` and of the first `most` of the file; their width must be the model's."""
        from heedful.data.word_vectors import load_vectors, require_header

        if self.read_fn == "load_word2vec":
            vectors = load_vectors(self.file, require_header(self.file), only=only, most=most)
        else:
            vectors = load_vectors(self.file, "glove", only=only, most=most)
        require_width(vectors, width, self.file)
        return vectors

    def problems(self) -> list[UserError]:
        """Problems that can be seen without reading the file."""
        problem = file_problem(Path(self.file))
        if problem is None:
            return []
        todo = "set embedding_init.file=PATH, or use none: embedding_init=null"
        return [UserError(problem.message, where="embedding_init.file", found=self.file, todo=todo)]


def require_width(vectors: WordVectors, width: int, file: str | Path) -> None:
    """Refuse word vectors whose width is not the model's."""
    if vectors.width != width:
        raise UserError(
            "the width of the word vectors differs from the model's", where="model.width",
            found=f"{width}, but {vectors.width} numbers per word in {file}", expected="the same",
            todo=f"write model.width: {vectors.width}",
        )  # fmt: skip
