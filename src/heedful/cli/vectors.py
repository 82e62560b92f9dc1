"""The verbs about word vectors: `vectors` learns them, `neighbours`, `analogy` and `lookup` ask about them."""

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
    typer.echo(f"{len(corpus.ids):,} words of text, {len(corpus.words):,} different ones", err=True)
    began, done = time.monotonic(), 0.0
    with counting("per cent", 100) as tell:

        def progress(share: float) -> None:
            nonlocal done
            tell(100 * (share - done))  # type: ignore[arg-type]
            done = share

        found = train_vectors(corpus, config, progress)
    found.save(out)
    took = duration(time.monotonic() - began)
    say(f"wrote {len(found):,} vectors of {found.width:,} numbers to {out}, learned in {took}")
    say(f"next: heedful neighbours {out} {printable(found.words[min(99, len(found) - 1)])}")


def opened(path: Path, most: int | None) -> WordVectors:
    """A file of vectors, and what there is to know of it on stderr."""
    found = load_vectors(path, most=most)
    for note in found.notes:
        typer.echo(f"note: {printable(note)}", err=True)
    return found


def neighbours_command(path: Path, words: Sequence[str], top: int, most: int | None, as_json: bool) -> None:
    """The words that are most like each word."""
    vectors = opened(path, most)
    for word in words:
        found = vectors.neighbours(word, top)
        if as_json:
            say(json_line({"word": word, "neighbours": [one._asdict() for one in found]}))
        else:
            say(word)
            listed(found)


def analogy_command(path: Path, three: tuple[str, str, str], top: int, most: int | None, as_json: bool) -> None:
    """What is to c as b is to a."""
    a, b, c = three
    found = opened(path, most).analogy(a, b, c, top)
    if as_json:
        say(json_line({"a": a, "b": b, "c": c, "found": [one._asdict() for one in found]}))
    else:
        say(f"{a} is to {b} as {c} is to")
        listed(found)


def listed(found: Sequence[Neighbour]) -> None:
    """A line for each word, the likest first."""
    widest = max((len(one.word) for one in found), default=0)
    for one in found:
        say(f"  {one.word:<{widest}}  {one.cosine:6.3f}")


def lookup_command(
    path: Path,
    words: Sequence[str],
    columns: int,
    drawn: Path | None,
    most: int | None,
    as_json: bool,
    style: Style = "light",
) -> None:
    """The vectors of words, a row each, and a map of them."""
    if drawn is not None:
        require_figure(drawn, "--map")
    vectors = opened(path, most)
    rows = [(word, vectors[word]) for word in words]
    if as_json:
        for word, row in rows:
            say(json_line({"word": word, "vector": [float(f"{number:.7g}") for number in row.tolist()]}))
    else:
        shown, widest = min(columns, vectors.width), max(map(len, words))
        say(" " * widest + "".join(f"  {column:>9}" for column in range(shown)))
        for word, row in rows:
            say(f"{word:<{widest}}" + "".join(f"  {number:9.6f}" for number in row[:shown].tolist()))
    if drawn is not None:
        save(plot_words(vectors, words, style), drawn)
        typer.echo(f"drew {drawn}", err=True)


def plot_words(vectors: WordVectors, words: Sequence[str], style: Style = "light") -> Figure:
    """A map of words: their vectors, each made one long, seen along the two directions in which they differ most."""
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
