"""The commands `interpolate` and `sample`: sentences from codes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from heedful.cli.loading import load_as
from heedful.cli.output import json_line, say, write
from heedful.errors import printable
from heedful.tasks.text_autoencoding.predictor import DecodedSentence, SentenceAutoencoder


def interpolate_command(run: Path, first: str, last: str, steps: int, beams: int | None, as_json: bool) -> None:
    """Print the sentences between two."""
    show(load_as(SentenceAutoencoder, run).interpolate(first, last, steps, beams), as_json)


def sample_command(run: Path, count: int, seed: int, beams: int | None, as_json: bool) -> None:
    """Print sentences of sampled codes."""
    show(load_as(SentenceAutoencoder, run).sample(count, seed, beams), as_json)


def show(sentences: Sequence[DecodedSentence], as_json: bool) -> None:
    """Print each sentence on a line."""
    for one in sentences:
        if as_json:
            write(json_line(one.to_dict()))
        else:
            say(printable(one.text))
