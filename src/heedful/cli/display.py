"""Events of a training run as a person reads them: a live bar in a terminal, single lines in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

from heedful.cli.output import say_on
from heedful.errors import printable, short
from heedful.runs.train import Event, Finished, Noted, Stage, Started
from heedful.tasks.base import AnyTask, Evaluated, Names
from heedful.training.loop import Epoch, Step

PAUSE = 5.0  # seconds between two lines about steps in a log


class Display(AbstractContextManager["Display"], Protocol):
    """Something that shows events one by one, and lines of text between them."""

    def show(self, event: Event) -> None: ...

    def say(self, text: str) -> None: ...


def display(words: Names, log_every: int, quiet: bool = False) -> Display:
    """A bar where a person looks on, lines where not; nothing for a process that does not lead."""
    if quiet:
        return Silence()
    return Bar(words) if sys.stdout.isatty() else Lines(words, log_every)


class Silence(Display):
    """Shows nothing."""

    def __exit__(self, *_: object) -> None:
        pass

    def say(self, text: str) -> None:
        pass

    def show(self, event: Event) -> None:
        pass


class Lines(Display):
    """One line an event, and now and then one for a step."""

    def __init__(self, words: Names, log_every: int) -> None:
        self.words, self.log_every, self.pace, self.last = words, log_every, Pace(), float("-inf")

    def __exit__(self, *_: object) -> None:
        pass

    def say(self, text: str) -> None:
        say_on(text)

    def show(self, event: Event) -> None:
        if isinstance(event, Step):
            left, now = self.pace.left(event), time.monotonic()
            due = event.step % self.log_every == 0 and now - self.last >= PAUSE
            if due or self.last < 0 or event.progress >= 1:
                self.last = now
                self.say(f"step {event.step:,}  {facts(event, self.words)}  {event.progress:.1%} done{left}")
        else:
            for line in told(event, self.words):
                self.say(line)


class Bar(Display):
    """A bar that moves with each step, and lines above it for what stays worth reading."""

    def __init__(self, words: Names) -> None:
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(14), TextColumn("{task.fields[facts]}"))
        console = Console(markup=False, highlight=False)
        self.bar = Progress(*columns, console=console, transient=True, refresh_per_second=5)
        self.task = self.bar.add_task("starting", total=None, facts="")
        self.words, self.pace = words, Pace()

    def __enter__(self) -> Bar:
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def say(self, text: str) -> None:
        self.bar.console.print(printable(text), soft_wrap=True)

    def show(self, event: Event) -> None:
        if isinstance(event, Stage):
            self.bar.update(self.task, description=event.name, total=None, facts="")
        elif isinstance(event, Step):
            note = f"{event.progress:4.0%}  {facts(event, self.words)}{self.pace.left(event)}"
            self.bar.update(
                self.task, description=f"step {event.step:,}", total=1.0, completed=event.progress, facts=note
            )
        else:
            for line in told(event, self.words):
                self.say(line)


class Pace:
    """How long a run still takes, from the steps since it began or went on."""

    def __init__(self) -> None:
        self.first: tuple[float, float] | None = None  # time and progress of the first step seen

    def left(self, event: Step) -> str:
        """The time left in words, once a second step has shown the pace."""
        now = time.monotonic()
        self.first = self.first or (now, event.progress)
        began, done = self.first
        if not done < event.progress < 1:
            return ""
        return f"  {duration((1 - event.progress) * (now - began) / (event.progress - done))} left"


def facts(step: Step, words: Names) -> str:
    """What a step has to tell."""
    skipped = f"  {step.skipped:,} skipped" if step.skipped else ""
    return f"loss {step.loss:.4f}  {step.tokens_per_second:,.0f} {words.counted}/s{skipped}"


def told(event: Event, words: Names) -> Iterator[str]:
    """The lines that are worth keeping of an event other than a step."""
    if isinstance(event, Stage):
        yield event.name
    elif isinstance(event, Noted):
        yield f"note: {event.text}"
    elif isinstance(event, Started):
        threads = f" with {event.threads} thread{'s' * (event.threads > 1)}" if event.device == "cpu" else ""
        yield (
            f"{event.examples:,} {words.examples}, {event.vocab:,} {words.tokens}, "
            f"{millions(event.parameters)} parameters, "
            f"on {event.device}{threads}{f', {event.processes} processes' * (event.processes > 1)}"
        )
        if event.dropped:
            yield f"note: {event.dropped:,} {words.too_long}"
        if event.skipped:
            yield f"note: {event.skipped:,} {words.blank}"
        yield from (f"note: {note}" for note in event.notes)
        if event.step:
            yield f"resuming at step {event.step:,}"
    elif isinstance(event, Epoch) and is_round(event.epoch):
        yield f"step {event.step:,}  epoch {event.epoch:,}: loss {event.loss:.4f}"
    elif isinstance(event, Evaluated):
        if event.split == "valid":
            yield f"step {event.step:,}  valid: loss {event.loss:.4f}  {scores(event)}"
            yield from (f"    {cut(given)} -> {cut(found)}" for given, _, found in event.samples[:1])
    elif isinstance(event, Finished) and event.stopped:
        yield f"stopped at step {event.step:,}"


def is_round(epoch: int) -> bool:
    """Whether an epoch gets a line: 1 to 9, then every tenth, then every hundredth; all are in metrics.jsonl."""
    return epoch % 10 ** (len(str(epoch)) - 1) == 0


def millions(count: int) -> str:
    """A number of parameters as people say it."""
    return f"{count / 1e6:,.2f} million" if count >= 100_000 else f"{count:,}"


def cut(text: str, longest: int = 60) -> str:
    """A text that leaves room for another one in its line."""
    return short(flat(text), longest)


def scores(event: Evaluated) -> str:
    """The scores of an evaluation in one line."""
    return "  ".join(f"{score.name} {score.value:.2f}" for score in event.scores)


def scoreboard(event: Evaluated, task: AnyTask, samples: int = 3) -> list[str]:
    """The scores of an evaluation with their signatures, and some samples."""
    lines = [f"{event.split}: {task.in_words(event.loss)}"]
    widest = max(len(score.name) for score in event.scores)
    lines += [f"  {score.name:<{widest}}  {score.value:6.2f}   {score.signature}" for score in event.scores]
    lines += [f"  ({remark})" for remark in task.remarks(event)]
    names = task.words.sample
    given_name, right_name, found_name = (name.ljust(max(map(len, names))) for name in names)
    for given, right, found in event.samples[:samples]:
        lines += ["", f"  {given_name}  {flat(given)}", f"  {found_name}  {flat(found)}"]
        lines += [f"  {right_name}  {flat(right)}"] if found != right else []
    return lines


def flat(text: str) -> str:
    """A text in one line."""
    return " / ".join(line for line in text.splitlines() if line.strip())


def duration(seconds: float) -> str:
    """Hours, minutes and seconds as a clock shows them."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


@contextmanager
def counting(what: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """A count of things done, drawn on stderr while a person looks on there and nothing else is written to it."""
    if not sys.stderr.isatty():
        yield lambda count: None
        return
    columns: Sequence[SpinnerColumn | TextColumn | BarColumn] = [SpinnerColumn(), TextColumn("{task.description}")]
    columns = [*columns, *([BarColumn(32)] if total else []), TextColumn("{task.completed:,.0f}")]
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda count: bar.advance(task, count)
