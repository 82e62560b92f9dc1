"""The verb `generate`: a language model continues texts."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import typer

from heedful.cli.loading import load_as
from heedful.cli.output import json_line, write
from heedful.cli.reading import batched, piped, stdin_lines
from heedful.errors import UserError, printable
from heedful.tasks.language_model.predictor import TOGETHER, GeneratedText, TextGenerator


def generate_command(
    run: Path, prompts: Sequence[str], said: Mapping[str, Any], greedy: bool, special: bool, bf16: bool, as_json: bool
) -> None:
    """Continue each prompt, given as an argument or as a line of stdin."""
    changes = fitting(said, greedy)
    writer = load_as(TextGenerator, run)
    writer = writer.bfloat16() if bf16 else writer
    writer.settings = how = writer.settings.but(**changes)
    reads, first, written, began = piped(prompts), 0, 0, time.monotonic()
    if len(prompts) <= 1 and not reads and not as_json and how.samples == 1:
        prompt = "".join(prompts)
        tell(writer, [prompt], special, False)
        written = flow(writer, prompt, special)
    else:
        told = False
        # A person who types lines waits for each.
        for batch in batched(given(prompts), 1 if reads and sys.stdin.isatty() else TOGETHER):
            told = tell(writer, batch, special, told)
            found = writer.generate(batch, first=first, special=special)
            for one in found:
                write(json_line(record(one)) if as_json else shown(one.text))
            first, written = first + len(batch), written + sum(len(one.ids) for one in found)
    if sys.stderr.isatty():
        passed = time.monotonic() - began
        typer.echo(f"{written:,} tokens in {passed:.1f} s, {written / passed:,.0f} tokens/s", err=True)


def fitting(said: Mapping[str, Any], greedy: bool) -> dict[str, Any]:
    """The settings that were said, None where nothing was, if they go together."""
    chance = [f"--{name.replace('_', '-')}" for name in ("temperature", "top_k", "top_p") if said[name] is not None]
    chance += ["--seed"] if said["seed"] else []
    beams, samples = said["beams"] or 1, said["samples"]
    if (greedy or beams > 1) and chance:
        raise UserError(
            f"{chance[0]} is about chance, and with {'--greedy' if greedy else '--beams'} there is none",
            where=chance[0], todo="leave one of them out",
        )  # fmt: skip
    if greedy and beams > 1:
        raise UserError("one beam is greedy, and more are not", where="--beams", todo="leave one of them out")
    if samples > 1 and (greedy or 1 < beams < samples):
        what = "without chance there is one text" if greedy else f"{beams} beams cannot give {samples} texts"
        raise UserError(what, where="--samples", todo=f"write --beams {samples}, or leave --samples out")
    if said["length_penalty"] is not None and beams == 1:
        raise UserError("only beams compare texts by their length", where="--length-penalty", todo="add --beams 4")
    return {**said, **({"temperature": 0.0} if greedy else {})}


def flow(writer: TextGenerator, prompt: str, special: bool) -> int:
    """Write a text as it comes, and say how many tokens came; an interrupt keeps what is written."""
    pieces = writer.stream(prompt, special=special)
    first = next(pieces, "")  # what cannot be done is said before anything is written
    count = -1
    try:
        for piece in chain([prompt, first], pieces):
            sys.stdout.write(shown(piece))
            sys.stdout.flush()
            count += 1
    finally:
        write("")
    return count


def tell(writer: TextGenerator, prompts: Sequence[str], special: bool, told: bool) -> bool:
    """Say once that the model forgets, where texts are longer than its context; whether it has been said."""
    if not writer.start_token and not all(prompts) and not told:
        name = writer.tokenizer.pieces([writer.codec.start_id])[0]
        typer.echo(f"note: nothing stands before the text, so the model begins after {name}", err=True)
    context, how = writer.context, writer.settings
    if told or context is None or how.beams > 1:
        return told
    longest = max(writer.tokens_of(prompt, special) for prompt in prompts)
    if longest + how.length - 1 <= context:
        return False
    seen = longest - writer.forgotten(longest)
    begun = f"; of a prompt of {longest:,} tokens it sees the last {seen:,}" if seen < longest else ""
    what = f"note: the model sees {context:,} tokens at once, and when they are full it forgets the older half"
    typer.echo(what + begun, err=True)
    return True


def given(prompts: Sequence[str]) -> Iterator[str]:
    """The prompts; an empty one stands for the start of a text."""
    if not piped(prompts):
        return iter(prompts or [""])
    lines = (line.text for line in stdin_lines(sys.stdin.buffer))
    return lines if prompts else chain([next(lines, "")], lines)


def record(found: GeneratedText) -> dict[str, object]:
    """What --json writes of one text."""
    return {
        "prompt": found.prompt, "added": found.completion, "text": found.text, "log_probability": found.log_probability,
        "tokens": len(found.ids), "ended": found.ended,
    }  # fmt: skip


def shown(text: str) -> str:
    """A text as it is, but for what could move the cursor where a person looks on."""
    return "\n".join(map(printable, text.split("\n"))) if sys.stdout.isatty() else text
