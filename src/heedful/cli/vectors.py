"""The commands for word vectors: `word2vec`, `neighbours`, `analogy` and `lookup`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import typer

from heedful.cli.display import counting, duration
from heedful.cli.output import json_line, say
from heedful.data.word_vectors import Neighbour, WordVectors, load_vectors
from heedful.errors import UserError, printable
from heedful.files.writing import require_writable
from heedful.plots.style import Figure, Style, require_figure, save


def word2vec_command(texts: Sequence[Path], out: Path, settings: dict[str, object]) -> None:
    """Learn the vectors of a text's words, and write them."""
    from heedful.config import parse
    from heedful.extras.word2vec import read_corpus, train_vectors
    from heedful.extras.word2vec_config import SkipGramConfig

    require_writable(out, "--out")
    config = parse(SkipGramConfig, settings)
    corpus = read_corpus(texts, config)
    typer.echo(f"{len(corpus.ids):,} words of text, vocabulary of {len(corpus.words):,}", err=True)
    started, done = time.monotonic(), 0.0
    with counting("per cent", 100) as advance:

        def progress(share: float) -> None:
            nonlocal done
            advance(100 * (share - done))  # type: ignore[arg-type]
            done = share

        vectors = train_vectors(corpus, config, progress)
    vectors.save(out)
    took = duration(time.monotonic() - started)
    say(f"wrote {len(vectors):,} vectors of dimension {vectors.width:,} to {out}, trained in {took}")
    say(f"next: heedful neighbours {out} {printable(vectors.words[min(99, len(vectors) - 1)])}")


def open_vectors(path: Path, most: int | None) -> WordVectors:
    """Load a file of word vectors, and print its notes."""
    vectors = load_vectors(path, most=most)
    for note in vectors.notes:
        typer.echo(f"note: {printable(note)}", err=True)
    return vectors


def neighbours_command(path: Path, words: Sequence[str], top: int, most: int | None, as_json: bool) -> None:
    """Print the nearest neighbours of each word."""
    vectors = open_vectors(path, most)
    for word in words:
        nearest = vectors.neighbours(word, top)
        if as_json:
            say(json_line({"word": word, "neighbours": [one._asdict() for one in nearest]}))
        else:
            say(word)
            print_neighbours(nearest)


def analogy_command(path: Path, three: tuple[str, str, str], top: int, most: int | None, as_json: bool) -> None:
    """Print the words nearest to b - a + c."""
    a, b, c = three
    nearest = open_vectors(path, most).analogy(a, b, c, top)
    if as_json:
        say(json_line({"a": a, "b": b, "c": c, "found": [one._asdict() for one in nearest]}))
    else:
        say(f"{a} is to {b} as {c} is to")
        print_neighbours(nearest)


def print_neighbours(nearest: Sequence[Neighbour]) -> None:
    """Print a line per word with its cosine similarity, the most similar first."""
    widest = max((len(one.word) for one in nearest), default=0)
    for one in nearest:
        say(f"  {one.word:<{widest}}  {one.cosine:6.3f}")


def lookup_command(
    path: Path,
    words: Sequence[str],
    columns: int,
    map_path: Path | None,
    most: int | None,
    as_json: bool,
    style: Style = "light",
) -> None:
    """Print the vectors of words, one per row, and draw a map of them."""
    if map_path is not None:
        require_figure(map_path, "--map")
    vectors = open_vectors(path, most)
    rows = [(word, vectors[word]) for word in words]
    if as_json:
        for word, row in rows:
            say(json_line({"word": word, "vector": [float(f"{number:.7g}") for number in row.tolist()]}))
    else:
        count, widest = min(columns, vectors.width), max(map(len, words))
        say(" " * widest + "".join(f"  {column:>9}" for column in range(count)))
        for word, row in rows:
            say(f"{word:<{widest}}" + "".join(f"  {number:9.6f}" for number in row[:count].tolist()))
    if map_path is not None:
        save(plot_words(vectors, words, style), map_path)
        typer.echo(f"wrote {map_path}", err=True)


def plot_words(vectors: WordVectors, words: Sequence[str], style: Style = "light") -> Figure:
    """A map of words: the first two principal components of their unit vectors."""
    import numpy as np

    from heedful.extras.estimators.pca import PCA
    from heedful.plots.figures import word_map

    if len(set(words)) < 3:
        raise UserError("a map needs at least three words", where="--map", found=f"{len(set(words))} words")
    different = list(dict.fromkeys(words))
    units = np.stack([vectors.unit(word) for word in different])
    pca = PCA(2).fit(units)
    shares = float(np.sum(pca.explained_variance_ratio_))
    points = pca.transform(units)
    about = f"PCA of {len(different)} vectors: {shares:.0%} of their variance"
    return word_map(different, points, "Words", about, style)
