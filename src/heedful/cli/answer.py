"""The verb `answer`: the part of a passage that answers a question."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from heedful.cli.display import json_line, say
from heedful.cli.loading import load_as
from heedful.cli.translate import Line, batched, piped, stdin_lines
from heedful.data.formats.sources import lines
from heedful.errors import UserError, shown
from heedful.files.reading import is_file
from heedful.tasks.answering.predictor import Answer, QuestionAnswerer

TOGETHER = 64  # questions that are answered at a time
LONGEST = 10_000_000  # characters of a line of a passage


def answer_verb(run: Path, passage: str, questions: Sequence[str], top: int, as_json: bool) -> None:
    """Answer each question about one passage, given as an argument or as a line of stdin."""
    reads, count, text = piped(questions), 0, passage_of(passage)
    if questions or reads:
        responder = load_as(QuestionAnswerer, run)
        given = (Line(question, f"question {number}") for number, question in enumerate(questions, 1))
        asked = stdin_lines(sys.stdin.buffer) if reads else given
        for batch in batched(asked, 1 if reads and sys.stdin.isatty() else TOGETHER):  # who types waits for each
            count += len(batch)
            found = iter(responder.answer([(line.text, text) for line in batch if not line.blank], top))
            for line in batch:
                for told_line in told(line.text, [] if line.blank else next(found), as_json):
                    say(told_line)
    if not count:
        raise UserError("there is no question to answer", todo=f'heedful answer {run} --passage FILE "some question"')


def passage_of(given: str) -> str:
    """The text of a file of that name, else the text itself; one word alone is a mistyped name."""
    path = Path(given)
    named = is_file(path)
    text = "\n".join(lines(path, LONGEST)) if named else given
    if not text.strip():
        raise UserError("there is no passage", where="--passage", found=shown(text), expected="a file, or a text")
    if not named and len(text.split()) == 1:
        raise UserError("there is no such file", where="--passage", found=shown(text), expected="a file, or a text")
    return text


def told(question: str, found: Sequence[Answer], as_json: bool) -> Iterator[str]:
    """The lines about one question: itself, then the answers, with characters of the passage from and to before."""
    if as_json:
        yield json_line({"question": question, "answers": [asdict(answer) for answer in found]})
        return
    yield question
    for answer in found:
        place = f"{answer.start}-{answer.end}"
        yield f"  {answer.probability:4.0%}  {place:>11}  {' '.join(answer.text.split())}"
