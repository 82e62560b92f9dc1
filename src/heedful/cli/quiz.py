"""The command `quiz`: asks questions about the lectures and explains the answers."""

from __future__ import annotations

import random
import sys
import textwrap

import typer
from rich.console import Console
from rich.text import Text

from heedful.cli.output import print_table
from heedful.errors import UserError
from heedful.lectures.quiz import Question, quiz

WIDTH = 96  # columns of a paragraph


def quiz_command(seed: int | None, count: int, answers: bool, as_json: bool) -> None:
    """Ask questions until all are asked or the input ends, or print them with their answers."""
    if seed is None:
        seed = random.randrange(1000)
    if answers or as_json:
        questions = quiz(seed, count)
        lines = (line for number, one in enumerate(questions, 1) for line in solution(number, one))
        print_table(lines, ({"seed": seed, **one.record()} for one in questions), as_json)
        return
    if not sys.stdin.isatty():
        raise UserError(
            "the quiz needs a terminal to ask in",
            found="standard input is closed or not a terminal",
            todo="`heedful quiz --answers` prints the questions with their answers",
        )
    ask(quiz(seed, count), seed)


def ask(questions: list[Question], seed: int) -> int:
    """Ask one question after the other and return the number of right answers; Ctrl-D ends it."""
    console = Console(markup=False, highlight=False)
    console.print(Text(f"{len(questions)} questions; Enter skips one, Ctrl-D ends. Seed {seed}.", "dim"))
    right = asked = 0
    for number, one in enumerate(questions, 1):
        console.print()
        for line in question(number, one, min(WIDTH, console.width - 1)):
            console.print(Text(line))
        try:
            answer = typer.prompt(">", prompt_suffix=" ", default="", show_default=False)
        except typer.Abort:  # the end of the input
            console.print()
            break
        asked += 1
        good = one.accepts(answer)
        right += good
        verdict = Text("right", "bold green") if good else Text(f"it is {one.answers[0]}", "bold yellow")
        console.print(verdict, Text(one.why))
        console.print(Text(f"try: {one.run}", "dim"))
    console.print(Text(f"\n{right} of {asked} right", "bold"))
    return right


def question(number: int, one: Question, width: int = WIDTH) -> list[str]:
    """The lines of a question, with a letter for each choice."""
    lines = textwrap.wrap(f"{number}. {one.prompt}", width, subsequent_indent="   ")
    return lines + [f"   {letter}) {choice}" for letter, choice in zip("abcdef", one.choices, strict=False)]


def solution(number: int, one: Question) -> list[str]:
    """A question with its answer, the reason, and what to run."""
    return [*question(number, one), f"   = {one.answers[0]}", f"   {one.why}", f"   {one.run}", ""]
