"""The command `answer` for stories: the answers to questions, and the sentences that each hop attended to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from heedful.cli.reading import Source, text_or_none
from heedful.data.stories.story import split_sentences
from heedful.errors import UserError
from heedful.plots.hop_plot import Answered, plot_hops
from heedful.plots.style import require_figure, save
from heedful.tasks.story_answering.predictor import StoryAnswer, StoryAnswerer

MOST_DRAWN = 8  # questions in a picture
MOST_NAMED = 10  # unknown words in a note


def answer_about_story(
    answerer: StoryAnswerer, text: str, source: Source, top: int, as_json: bool, picture: Path | None
) -> None:
    """Print the answer to each question about a story; with `picture`, the hops of the first ones are drawn."""
    sentences = split_sentences(text)
    drawn, unknown, forgotten = list[Answered](), dict[str, None](), 0
    if picture is not None:
        require_figure(picture, "--picture")
        if not answerer.hops:
            raise UserError("this model has no hops to draw", where="--picture", todo="leave --picture out")

    def predict(batch: list[str]) -> list[StoryAnswer]:
        nonlocal forgotten
        found = answerer.predict([(sentences, question) for question in batch], top)
        for question, one in zip(batch, found, strict=True):
            unknown.update(dict.fromkeys(one.unknown))
            forgotten = one.forgotten
            if len(drawn) < MOST_DRAWN:
                drawn.append(Answered(sentences, question, one.text, one.probability, one.weights))
        return found

    def rows(question: str, found: StoryAnswer) -> Iterator[str]:
        yield question
        for answer, probability in found.probabilities.items():
            yield f"  {probability:4.0%}  {answer}"
        for hop, weights in enumerate(found.weights, start=1):
            most = max(range(len(weights)), key=lambda sentence: weights[sentence])
            yield f"  hop {hop}: {weights[most]:4.0%}  {sentences[most]}"

    def record(question: str, found: StoryAnswer) -> dict[str, Any]:
        return {"question": question, "story": list(sentences)} | found.to_dict()

    source.show(predict, rows, as_json, parse=text_or_none, record=record)
    if picture is not None and drawn:
        save(plot_hops(drawn, "What each hop attended to"), picture)
        typer.echo(f"wrote {picture}", err=True)
    if forgotten:
        typer.echo(f"note: the model remembers {answerer.memory} sentences; forgotten: {forgotten:,}", err=True)
    if unknown:
        named = ", ".join([*unknown][:MOST_NAMED])
        typer.echo(f"note: words that the model does not know: {named}", err=True)
