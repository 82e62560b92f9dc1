"""The verb `generate`: a language model goes on with texts."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from heedful.commands.display import json_line
from heedful.commands.loading import load_as
from heedful.errors import printable
from heedful.tasks.language_model import Writer, Writing


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
    """Go on with each prompt, or from the beginning of a line where there is none."""
    writer = load_as(Writer, run)
    for found in writer.write(list(prompts) or [""], length, temperature, top_k, top_p, seed):
        sys.stdout.write((json_line(record(found)) if as_json else shown(found)) + "\n")


def record(found: Writing) -> dict[str, object]:
    """What --json writes of one text."""
    return {
        "prompt": found.prompt, "added": found.added, "text": found.text, "log_probability": found.log_probability,
    }  # fmt: skip


def shown(found: Writing) -> str:
    """A text as it is, but for what could move the cursor where a person looks on."""
    return "\n".join(map(printable, found.text.split("\n"))) if sys.stdout.isatty() else found.text
