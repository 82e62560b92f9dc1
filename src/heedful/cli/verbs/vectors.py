"""Verbs about vectors of words."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from heedful.cli.options import Json

VectorFile = Annotated[
    Path, typer.Argument(metavar="VECTORS", help="A file of word2vec's or GloVe's make, plain or gzip.")
]
FirstWords = Annotated[int | None, typer.Option(min=1, help="Read only so many words from the file's top.")]
Likest = Annotated[int, typer.Option(min=1, max=1000, help="How many words to show, the likest first.")]


def word2vec(
    texts: Annotated[list[Path], typer.Argument(metavar="TEXT", help="Files of text, plain or gzip.")],
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FILE", help="The file to write: .bin, or .txt for text; .gz packs.")
    ],
    width: Annotated[int | None, typer.Option(help="Numbers of a vector; else 100.")] = None,
    window: Annotated[int | None, typer.Option(help="Words to either side that a word may see; else 5.")] = None,
    negatives: Annotated[
        int | None, typer.Option(help="Words drawn by chance, for each pair of neighbours; else 5.")
    ] = None,
    at_least: Annotated[int | None, typer.Option(help="Times that a word must stand in the text; else 5.")] = None,
    sample: Annotated[
        float | None, typer.Option(help="Share of the text above which words are thinned out; else 0.001.")
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Times that the text is gone through; else 5.")] = None,
    rate: Annotated[float | None, typer.Option(help="Learning rate at the beginning; else 0.05.")] = None,
    keep_case: Annotated[bool, typer.Option("--keep-case", help="Tell capital letters from small ones.")] = False,
    seed: Annotated[int | None, typer.Option(help="Which chance; else 0.")] = None,
) -> None:
    """Learn vectors of the words of a text: skip-gram with negative sampling. The same command gives the same file."""
    from heedful.cli.vectors import vectors_verb

    settings = {
        "width": width, "window": window, "negatives": negatives, "at_least": at_least, "sample": sample,
        "epochs": epochs, "rate": rate, "lowercase": not keep_case, "seed": seed,
    }  # fmt: skip
    vectors_verb(texts, out, {name: value for name, value in settings.items() if value is not None})


def neighbours(
    vectors: VectorFile,
    words: Annotated[list[str], typer.Argument(metavar="WORD", help="Words to ask about.")],
    top: Likest = 10,
    first: FirstWords = None,
    as_json: Json = False,
) -> None:
    """Tell the words that are most like a word. By the cosine between their vectors."""
    from heedful.cli.vectors import neighbours_verb

    neighbours_verb(vectors, words, top, first, as_json)


def analogy(
    vectors: VectorFile,
    a: Annotated[str, typer.Argument(metavar="A", help="As in: man")],
    b: Annotated[str, typer.Argument(metavar="B", help="is to king")],
    c: Annotated[str, typer.Argument(metavar="C", help="as woman is to ...")],
    top: Likest = 5,
    first: FirstWords = None,
    as_json: Json = False,
) -> None:
    """Tell what is to C as B is to A. The words nearest to B - A + C, these three left out."""
    from heedful.cli.vectors import analogy_verb

    analogy_verb(vectors, (a, b, c), top, first, as_json)


def lookup(
    vectors: VectorFile,
    words: Annotated[list[str], typer.Argument(metavar="WORD", help="Words to look up.")],
    columns: Annotated[int, typer.Option(min=1, max=1000, help="How many numbers of each to print.")] = 10,
    drawn: Annotated[
        Path | None, typer.Option("--map", metavar="FILE", help="Draw a map of the words into a PNG file.")
    ] = None,
    first: FirstWords = None,
    as_json: Json = False,
) -> None:
    """Print the vectors of words, a row each."""
    from heedful.cli.vectors import lookup_verb

    lookup_verb(vectors, words, columns, drawn, first, as_json)
