"""Commands for word vectors."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from heedful.cli.options import Dark, Json

VectorFile = Annotated[Path, typer.Argument(metavar="VECTORS", help="A word2vec or GloVe file, plain or gzip.")]
Limit = Annotated[int | None, typer.Option(min=1, metavar="N", help="Read only the first N words of the file.")]
Top = Annotated[int, typer.Option(min=1, max=1000, help="Words to show, the most similar first.")]


def word2vec(
    texts: Annotated[list[Path], typer.Argument(metavar="TEXT", help="Files of text, plain or gzip.")],
    out: Annotated[
        Path,
        typer.Option(
            "--out", "-o", metavar="FILE", help="The file to write: .bin, or .txt for text; .gz compresses it."
        ),
    ],
    **settings: Any,
) -> None:
    """Learn word vectors from a text by skip-gram with negative sampling. The same command writes the same file."""
    from heedful.cli.vectors import word2vec_command

    word2vec_command(texts, out, settings)


def neighbours(
    vectors: VectorFile,
    words: Annotated[list[str], typer.Argument(metavar="WORD", help="The words.")],
    top: Top = 10,
    limit: Limit = None,
    as_json: Json = False,
) -> None:
    """List the words with the highest cosine similarity to a word."""
    from heedful.cli.vectors import neighbours_command

    neighbours_command(vectors, words, top, limit, as_json)


def analogy(
    vectors: VectorFile,
    a: Annotated[str, typer.Argument(metavar="A", help="As in: man")],
    b: Annotated[str, typer.Argument(metavar="B", help="is to king")],
    c: Annotated[str, typer.Argument(metavar="C", help="as woman is to ...")],
    top: Top = 5,
    limit: Limit = None,
    as_json: Json = False,
) -> None:
    """Complete the analogy: A is to B as C is to ... The words nearest to B - A + C."""
    from heedful.cli.vectors import analogy_command

    analogy_command(vectors, (a, b, c), top, limit, as_json)


def lookup(
    vectors: VectorFile,
    words: Annotated[list[str], typer.Argument(metavar="WORD", help="Words to look up.")],
    columns: Annotated[int, typer.Option(min=1, max=1000, help="Values of each vector to print.")] = 10,
    map_path: Annotated[
        Path | None, typer.Option("--map", metavar="FILE", help="Draw a map of the words: .png, .svg or .pdf.")
    ] = None,
    dark: Dark = False,
    limit: Limit = None,
    as_json: Json = False,
) -> None:
    """Print the vectors of words, one per row."""
    from heedful.cli.vectors import lookup_command

    lookup_command(vectors, words, columns, map_path, limit, as_json, "dark" if dark else "light")
