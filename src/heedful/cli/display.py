"""The progress of a training run: a live bar in a terminal, single lines in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

from heedful.cli.output import say_safely
from heedful.errors import printable, short
from heedful.runs.train import Event, Finished, Hint, Noted, Stage, Started
from heedful.tasks.base import AnyTask, Evaluated, Names
from heedful.training.loop import Epoch, Step

PAUSE = 5.0  # seconds between two lines of progress in a log


class Display(AbstractContextManager["Display"], Protocol):
    """Shows the events of a run, and lines of text between them."""

    def show(self, event: Event) -> None: ...

    def say(self, text: str) -> None: ...


def display(words: Names, log_every: int, quiet: bool = False) -> Display:
    """A bar in a terminal, lines elsewhere; nothing if `quiet`."""
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
    """A line per event; of steps, at most one line every few seconds."""

    def __init__(self, words: Names, log_every: int) -> None:
        self.words, self.log_every, self.pace, self.last = words, log_every, Pace(), float("-inf")

    def __exit__(self, *_: object) -> None:
        pass

    def say(self, text: str) -> None:
        say_safely(text)

    def show(self, event: Event) -> None:
        if isinstance(event, Step):
            left, now = self.pace.left(event), time.monotonic()
            due = event.step % self.log_every == 0 and now - self.last >= PAUSE
            if due or self.last < 0 or event.progress >= 1:
                self.last = now
                self.say(f"step {event.step:,}  {facts(event, self.words)}  {event.progress:.1%} done{left}")
        else:
            for line in event_lines(event, self.words):
                self.say(line)


class Bar(Display):
    """A progress bar, with the lines of other events above it."""

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
            for line in event_lines(event, self.words):
                self.say(line)


class Pace:
    """Estimates the remaining time of a run from its steps since it was started or resumed."""

    def __init__(self) -> None:
        self.first: tuple[float, float] | None = None  # time and progress of the first step seen

    def left(self, event: Step) -> str:
        """The remaining time in words; empty before the second step."""
        now = time.monotonic()
        self.first = self.first or (now, event.progress)
        started, done = self.first
        if not done < event.progress < 1:
            return ""
        return f"  {duration((1 - event.progress) * (now - started) / (event.progress - done))} left"


def facts(step: Step, words: Names) -> str:
    """The loss, with its parts, and the speed of a step."""
    skipped = f"  {step.skipped:,} skipped" if step.skipped else ""
    each = ", ".join(f"{name} {part:.4f}" for name, part in step.parts.items())
    parts = f" ({each})" if each else ""
    return f"loss {step.loss:.4f}{parts}  {step.tokens_per_second:,.0f} {words.counted}/s{skipped}"


def event_lines(event: Event, words: Names) -> Iterator[str]:
    """The lines that describe an event other than a step."""
    if isinstance(event, Stage):
        yield event.name
    elif isinstance(event, Noted):
        yield f"note: {event.text}"
    elif isinstance(event, Hint):
        yield f"hint: {event.text}"
    elif isinstance(event, Started):
        threads = f" with {event.threads} thread{'s' * (event.threads > 1)}" if event.device == "cpu" else ""
        yield (
            f"{event.examples:,} {words.examples}, {event.vocab:,} {words.tokens}, "
            f"{millions(event.parameters)} parameters, "
            f"on {event.device}{threads}{f', {event.processes} processes' * (event.processes > 1)}"
        )
        if event.dropped:
            yield f"note: {words.too_long}: {event.dropped:,}"
        if event.skipped:
            yield f"note: {words.blank}: {event.skipped:,}"
        yield from (f"note: {note}" for note in event.notes)
        if event.step:
            yield f"resuming at step {event.step:,}"
    elif isinstance(event, Epoch) and is_round(event.epoch):
        yield f"step {event.step:,}  epoch {event.epoch:,}: loss {event.loss:.4f}"
    elif isinstance(event, Evaluated):
        if event.split == "valid":
            yield f"step {event.step:,}  valid: loss {event.loss:.4f}  {scores(event)}"
            yield from (f"    {shorten(source)} -> {shorten(output)}" for source, _, output in event.samples[:1])
    elif isinstance(event, Finished) and event.stopped:
        yield f"stopped at step {event.step:,}"


def is_round(epoch: int) -> bool:
    """Whether an epoch gets a line: 1 to 9, then every tenth, then every hundredth; all are in metrics.jsonl."""
    return epoch % 10 ** (len(str(epoch)) - 1) == 0


def millions(count: int) -> str:
    """A number of parameters, in millions if it is large."""
    return f"{count / 1e6:,.2f} million" if count >= 100_000 else f"{count:,}"


def shorten(text: str, longest: int = 60) -> str:
    """A text on one line, truncated."""
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
    source_name, reference_name, output_name = (name.ljust(max(map(len, names))) for name in names)
    for source, reference, output in event.samples[:samples]:
        lines += ["", f"  {source_name}  {flat(source)}", f"  {output_name}  {flat(output)}"]
        lines += [f"  {reference_name}  {flat(reference)}"] if output != reference else []
    return lines


def flat(text: str) -> str:
    """A text on one line, with slashes for line breaks."""
    return " / ".join(line for line in text.splitlines() if line.strip())


def duration(seconds: float) -> str:
    """A duration as 1:02:03 or 2:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


@contextmanager
def counting(what: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """A counter on stderr if that is a terminal; call the result with the number of new items."""
    if not sys.stderr.isatty():
        yield lambda count: None
        return
    columns: Sequence[SpinnerColumn | TextColumn | BarColumn] = [SpinnerColumn(), TextColumn("{task.description}")]
    columns = [*columns, *([BarColumn(32)] if total else []), TextColumn("{task.completed:,.0f}")]
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda count: bar.advance(task, count)
