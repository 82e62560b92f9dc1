"""The verb `tag`: what a tagger marks in texts, and where."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from heedful.cli.display import json_line, say
from heedful.cli.loading import load_as
from heedful.cli.translate import Line, batched, piped, stdin_lines
from heedful.errors import UserError
from heedful.tasks.tagging.predictor import Entity, TaggedText, TokenTagger

TOGETHER = 256  # texts that are tagged at a time


def tag_verb(run: Path, texts: Sequence[str], as_json: bool) -> None:
    """Mark each text, given as an argument or as a line of stdin."""
    reads, count = piped(texts), 0
    if texts or reads:
        marker = load_as(TokenTagger, run)
        given = (Line(text, f"text {number}") for number, text in enumerate(texts, 1))
        lines = stdin_lines(sys.stdin.buffer) if reads else given
        for batch in batched(lines, 1 if reads and sys.stdin.isatty() else TOGETHER):  # who types waits for each
            count += len(batch)
            for marked in marker.tag([line.text for line in batch]):
                for line in told(marked, as_json, marker.has_chunks):
                    say(line)
    if not count:
        raise UserError("there is no text to tag", todo=f'heedful tag {run} "some text", or pipe lines into it')


def told(marked: TaggedText, as_json: bool, marks: bool) -> Iterator[str]:
    """The lines about one text: itself, then what is marked in it, or else every word, with characters from and to."""
    if as_json:
        yield json_line(asdict(marked))
        return
    yield marked.text
    rows: Sequence[Entity] = marked.entities
    if not marks:
        parts = zip(marked.tags, marked.words, marked.spans, marked.probabilities, strict=True)
        rows = [Entity(tag, word, *span, share) for tag, word, span, share in parts]
    kinds = max((len(row.kind) for row in rows), default=0)
    for row in rows:
        place = f"{row.start}-{row.end}"
        yield f"  {row.kind:<{kinds}}  {row.probability:4.0%}  {place:>9}  {row.text}"
