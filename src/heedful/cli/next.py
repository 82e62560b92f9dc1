"""The verb `next`: words for a gap, by a model that reads ahead and by one that reads both ways."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from heedful.cli.display import json_line, say
from heedful.cli.loading import load_as
from heedful.errors import UserError
from heedful.plots.figures import bars
from heedful.plots.style import Style, require_figure, save
from heedful.tasks.language_model.next_word import WordPredictions, hidden_words, next_words, sides
from heedful.tasks.language_model.predictor import TextGenerator
from heedful.tasks.pretraining.predictor import TextEncoder

ABOUT = {
    "causal": "sees what stands before the gap alone; shares are of first pieces",
    "masked": "sees both sides of the gap",
}


def next_verb(
    text: str,
    causal: Path | None,
    masked: Path | None,
    top: int,
    out: Path | None,
    as_json: bool,
    start_token: bool | None = None,
    style: Style = "light",
) -> None:
    """Tell the likeliest words for the gap of a text by one model or by two."""
    sides(text)
    if causal is None and masked is None:
        raise UserError(
            "there is no model to ask", todo="add --causal RUN, a language model, or --masked RUN, a BERT, or both"
        )
    if out is not None:
        require_figure(out, "--out")
    found = []
    if causal is not None:
        writer = load_as(TextGenerator, causal)
        writer.start_token = writer.start_token if start_token is None else start_token
        found.append(next_words(writer, text, top))
    found += [] if masked is None else [hidden_words(load_as(TextEncoder, masked), text, top)]
    for line in [json_line(record(text, found))] if as_json else told(text, found):
        say(line)
    if out is not None:
        charts = {
            f"{one.kind}: {one.seen}": (ABOUT[one.kind], [(guess.word, guess.probability) for guess in one.predictions])
            for one in found
        }
        save(bars(charts, text, style), out)


def record(text: str, found: Sequence[WordPredictions]) -> dict[str, object]:
    """What --json writes."""
    models: dict[str, object] = {
        one.kind: {
            "seen": one.seen,
            "words": [{"word": guess.word, "probability": guess.probability} for guess in one.predictions],
        }
        for one in found
    }
    return {"text": text, **models}


def told(text: str, found: Sequence[WordPredictions]) -> Iterator[str]:
    """The lines about one text."""
    yield text
    widest = max(len(guess.word) for one in found for guess in one.predictions)
    for one in found:
        yield f"  {one.kind}: {one.seen}"
        yield f"    ({ABOUT[one.kind]})"
        for guess in one.predictions:
            yield f"    {guess.word:<{widest}}  {guess.probability:6.1%}"
