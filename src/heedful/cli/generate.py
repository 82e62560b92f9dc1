"""The command `generate`: a language model continues texts."""

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
from heedful.tasks.language_model.predictor import BATCH_SIZE, GeneratedText, TextGenerator


def generate_command(
    run: Path,
    prompts: Sequence[str],
    options: Mapping[str, Any],
    greedy: bool,
    special: bool,
    bf16: bool,
    as_json: bool,
) -> None:
    """Continue each prompt, from arguments or lines of stdin."""
    changes = check_options(options, greedy)
    generator = load_as(TextGenerator, run)
    generator = generator.bfloat16() if bf16 else generator
    generator.settings = settings = generator.settings.but(**changes)
    reads, first, generated, started = piped(prompts), 0, 0, time.monotonic()
    if len(prompts) <= 1 and not reads and not as_json and settings.samples == 1:
        prompt = "".join(prompts)
        print_notes(generator, [prompt], special, False)
        generated = stream(generator, prompt, special)
    else:
        noted = False
        # Lines typed into a terminal are answered one by one.
        for batch in batched(read_prompts(prompts), 1 if reads and sys.stdin.isatty() else BATCH_SIZE):
            noted = print_notes(generator, batch, special, noted)
            texts = generator.generate(batch, first=first, special=special)
            for one in texts:
                write(json_line(record(one)) if as_json else for_terminal(one.text))
            first, generated = first + len(batch), generated + sum(len(one.ids) for one in texts)
    if sys.stderr.isatty():
        seconds = time.monotonic() - started
        typer.echo(f"{generated:,} tokens in {seconds:.1f} s, {generated / seconds:,.0f} tokens/s", err=True)


def check_options(options: Mapping[str, Any], greedy: bool) -> dict[str, Any]:
    """The options as settings, None where an option was omitted; combinations that make no sense are refused."""
    sampling = [
        f"--{name.replace('_', '-')}" for name in ("temperature", "top_k", "top_p") if options[name] is not None
    ]
    sampling += ["--seed"] if options["seed"] else []
    beams, samples = options["beams"] or 1, options["samples"]
    if (greedy or beams > 1) and sampling:
        raise UserError(
            f"{sampling[0]} is for sampling, and {'--greedy' if greedy else '--beams'} does not sample",
            where=sampling[0], todo="leave one of them out",
        )  # fmt: skip
    if greedy and beams > 1:
        raise UserError("--greedy and --beams cannot be combined", where="--beams", todo="leave one of them out")
    if samples > 1 and (greedy or 1 < beams < samples):
        what = "--greedy gives only one text" if greedy else f"{beams} beams cannot give {samples} texts"
        raise UserError(what, where="--samples", todo=f"write --beams {samples}, or leave --samples out")
    if options["length_penalty"] is not None and beams == 1:
        raise UserError("a length penalty needs beam search", where="--length-penalty", todo="add --beams 4")
    return {**options, **({"temperature": 0.0} if greedy else {})}


def stream(generator: TextGenerator, prompt: str, special: bool) -> int:
    """Print a text token by token; returns the number of tokens."""
    pieces = generator.stream(prompt, special=special)
    first = next(pieces, "")  # errors come before any output
    count = -1
    try:
        for piece in chain([prompt, first], pieces):
            sys.stdout.write(for_terminal(piece))
            sys.stdout.flush()
            count += 1
    finally:
        write("")
    return count


def print_notes(generator: TextGenerator, prompts: Sequence[str], special: bool, noted: bool) -> bool:
    """Print a note where texts are longer than the model's context, once; returns whether it has been printed."""
    if not generator.start_token and not all(prompts) and not noted:
        name = generator.tokenizer.pieces([generator.codec.start_id])[0]
        typer.echo(f"note: the prompt is empty, so the model starts from {name}", err=True)
    context, settings = generator.context, generator.settings
    if noted or context is None or settings.beams > 1:
        return noted
    longest = max(generator.tokens_of(prompt, special) for prompt in prompts)
    if longest + settings.length - 1 <= context:
        return False
    seen = longest - generator.context_start(longest)
    prompt = f"; of a prompt of {longest:,} tokens it sees the last {seen:,}" if seen < longest else ""
    note = f"note: the model's context is {context:,} tokens; when it is full, the older half is dropped"
    typer.echo(note + prompt, err=True)
    return True


def read_prompts(prompts: Sequence[str]) -> Iterator[str]:
    """The prompts from arguments or stdin; an empty one generates a text from its start."""
    if not piped(prompts):
        return iter(prompts or [""])
    lines = (line.text for line in stdin_lines(sys.stdin.buffer))
    return lines if prompts else chain([next(lines, "")], lines)


def record(text: GeneratedText) -> dict[str, object]:
    """A text as --json prints it."""
    return {
        "prompt": text.prompt, "added": text.completion, "text": text.text, "log_probability": text.log_probability,
        "tokens": len(text.ids), "ended": text.ended,
    }  # fmt: skip


def for_terminal(text: str) -> str:
    """A text with control characters escaped, if stdout is a terminal."""
    return "\n".join(map(printable, text.split("\n"))) if sys.stdout.isatty() else text
