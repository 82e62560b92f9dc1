"""The verb `generate`: a language model goes on with texts."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

from heedful.commands.display import json_line
from heedful.commands.loading import load_as
from heedful.commands.translate import batched, piped, stdin_lines, write
from heedful.errors import printable
from heedful.tasks.language_model import TOGETHER, Writer, Writing


def generate_verb(
    run: Path,
    prompts: Sequence[str],
    length: int | None,
    temperature: float | None,
    top_k: int | None,
    top_p: float | None,
    seed: int,
    as_json: bool,
) -> None:
    """Go on with each prompt, given as an argument or as a line of stdin."""
    writer = load_as(Writer, run)
    first = 0
    # A person who types lines waits for each.
    for batch in batched(given(prompts), 1 if piped(prompts) and sys.stdin.isatty() else TOGETHER):
        for found in writer.write(batch, length, temperature, top_k, top_p, seed, first):
            write(json_line(record(found)) if as_json else shown(found))
        first += len(batch)


def given(prompts: Sequence[str]) -> Iterator[str]:
    """What is to be gone on with: the beginning of a line where there is nothing."""
    if not piped(prompts):
        return iter(prompts or [""])
    lines = (line.text for line in stdin_lines(sys.stdin.buffer))
    return lines if prompts else chain([next(lines, "")], lines)


def record(found: Writing) -> dict[str, object]:
    """What --json writes of one text."""
    return {
        "prompt": found.prompt, "added": found.added, "text": found.text, "log_probability": found.log_probability,
    }  # fmt: skip


def shown(found: Writing) -> str:
    """A text as it is, but for what could move the cursor where a person looks on."""
    return "\n".join(map(printable, found.text.split("\n"))) if sys.stdout.isatty() else found.text
