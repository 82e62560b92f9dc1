"""The verb `fill`: words for the gaps of texts, and how much they depend on each other."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from heedful.cli.display import json_line, say
from heedful.cli.loading import load_as
from heedful.cli.translate import piped, stdin_lines
from heedful.errors import UserError
from heedful.tasks.pretraining.predictor import MaskPredictions, TextEncoder


def fill_verb(run: Path, texts: Sequence[str], top: int, as_json: bool) -> None:
    """Tell the likeliest words for every gap of each text, given as an argument or as a line of stdin."""
    reads = piped(texts)
    if not texts and not reads:
        raise UserError(
            "there is no text to fill", todo=f'heedful fill-mask {run} "the [MASK] sat", or pipe lines into it'
        )
    reader = load_as(TextEncoder, run)
    for text in (line.text for line in stdin_lines(sys.stdin.buffer)) if reads else texts:
        if not text.strip() and reads:
            say("null" if as_json else "")
            continue
        found = reader.fill(text, top)
        for line in [json_line(record(found))] if as_json else told(found):
            say(line)


def record(found: MaskPredictions) -> dict[str, object]:
    """What --json writes of one text."""
    gaps = [[{"word": guess.word, "probability": guess.probability} for guess in gap] for gap in found.predictions]
    fillings = [
        {"words": one.words, "alone": one.independent, "ahead": one.forward, "back": one.backward}
        for one in found.joint
    ]
    return {"text": found.text, "gaps": gaps, "fillings": fillings, "joint_gap": found.dependence}


def told(found: MaskPredictions) -> Iterator[str]:
    """The lines about one text."""
    yield found.text
    widest = max(len(guess.word) for gap in found.predictions for guess in gap)
    for number, gap in enumerate(found.predictions, 1):
        if len(found.predictions) > 1:
            yield f"  gap {number}"
        for guess in gap:
            yield f"    {guess.word:<{widest}}  {guess.probability:6.1%}"
    if found.joint:
        yield from _together(found)


def _together(found: MaskPredictions) -> Iterator[str]:
    """Fillings of all gaps by three counts, best first, and by how much the words depend on each other."""
    spelled = [" ... ".join(one.words) for one in found.joint]
    widest = max(map(len, [*spelled, "all gaps"]))
    yield f"  {'all gaps':<{widest}}  each alone     ahead      back   nats apart"
    for words, one in zip(spelled, found.joint, strict=True):
        shares = "  ".join(f"{math.exp(log):8.2%}" for log in (one.independent, one.forward, one.backward))
        yield f"  {words:<{widest}}    {shares}   {one.forward - one.independent:+10.2f}"
    yield f"  each word told alone, the fillings above lose {found.dependence:.3f} nats on the average"
