"""The verb `choose`: which of several texts goes on best from another."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from heedful.cli.display import json_line, say
from heedful.cli.loading import load_as
from heedful.errors import UserError
from heedful.tasks.multiple_choice.predictor import MultipleChoiceAnswerer


def choose_verb(run: Path, text: str, choices: Sequence[str], as_json: bool) -> None:
    """Say how likely each choice is, the likeliest first."""
    if len(choices) < 2:
        raise UserError(
            "there is nothing to choose from", where="CHOICES", found=f"{len(choices)} choices",
            expected="two or more", todo=f'heedful choose {run} "a text" "one way to go on" "another"',
        )  # fmt: skip
    found = load_as(MultipleChoiceAnswerer, run).choose(text, choices)
    if as_json:
        record = {name: value for name, value in vars(found).items() if name != "index"}
        say(json_line({"text": text, "choices": list(choices)} | {"number": found.index} | record))
        return
    for probability, choice in sorted(zip(found.probabilities, choices, strict=True), key=lambda pair: -pair[0]):
        say(f"{probability:4.0%}  {choice}")
