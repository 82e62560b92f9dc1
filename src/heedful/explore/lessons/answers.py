"""What the page shows of a lesson's step for one of the open models: its sentences and its question, computed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from heedful.errors import UserError, shown
from heedful.explore.lessons.lesson import Check, Lesson, Query, Question, Sentences, Step
from heedful.explore.lessons.of_predictions import heads_off
from heedful.explore.lessons.quantities import QUANTITIES
from heedful.explore.lessons.state import Packet, Value
from heedful.explore.packets import unpack
from heedful.explore.subjects import Explorer, Subject
from heedful.explore.views import Call, find

ANY = "*"  # the value of a setting that may be any
WHOLE = 9.95  # a number from which on two digits are a whole number
LEAST = 0.05  # of the largest share in a ranking whose shares have two decimals


class StepPage:
    """What the quantities of a step are computed from: the answers that the page would get."""

    def __init__(self, explorer: Explorer, subject: Subject, state: Mapping[str, str]) -> None:
        self.explorer, self.subject, self.state = explorer, subject, state

    @property
    def parameters(self) -> int:
        return sum(each.numel() for each in self.subject.model.parameters())

    def texts(self) -> dict[str, Any]:
        """The texts of the state, else the model's first example."""
        if "text" in self.state:
            given = {"text": self.state["text"], "other": self.state.get("other") or None}
        else:
            given = {**self.subject.sample}
        return {"model": self.subject.name, **given}

    def ask(self, view: str, call: str, **settings: object) -> Packet:
        return unpack(self.explorer.answer(view, call, settings))


def steps_of(explorer: Explorer, lesson: Lesson, model: str) -> dict[str, Any]:
    """A lesson for the page and a model, without what is computed."""
    subject = explorer.subject(model)
    missing = [view for view in lesson.views if view not in subject.views]
    if missing:
        raise UserError(
            f"this lesson needs a model with the view {missing[0]}", where="model", found=shown(model),
            expected=lesson.model, todo=lesson.command,
        )  # fmt: skip
    each = [
        {
            "title": one.title, "state": concrete(explorer, subject, one.state, one.state), "spot": one.spot,
            "do": one.do, "until": concrete(explorer, subject, one.state, one.until),
            "cover": one.question is not None and one.question.cover,
        }
        for one in lesson.steps
    ]  # fmt: skip
    return {**lesson.record(), "steps": each}


def concrete(
    explorer: Explorer, subject: Subject, state: Mapping[str, str], changes: Mapping[str, str]
) -> dict[str, str]:
    """Changes of a state in which * stands for no heads any more, but for those of the model."""
    if "*" not in changes.get("off", ""):
        return {**changes}
    heads = heads_off(StepPage(explorer, subject, state), changes["off"])
    return {**changes, "off": ",".join(".".join(map(str, head)) for head in heads)}


def held_lesson(explorer: Explorer, name: str, model: str) -> tuple[dict[str, Any], list[Call]]:
    """All of a lesson for a page without a server: its steps with all that is computed, and the calls of its views."""
    lesson, subject = explorer.lesson(name), explorer.subject(model)
    about = steps_of(explorer, lesson, model)
    answers = [answer(explorer, lesson, at, model) for at in range(len(lesson.steps))]
    calls: list[Call] = []
    for step, found in zip(about["steps"], answers, strict=True):
        texts = StepPage(explorer, subject, step["state"]).texts()
        given = {key: value for key, value in texts.items() if value is not None}
        then: dict[str, str] = {} if found["question"] is None else found["question"]["then"]
        done = {key: value for key, value in step["until"].items() if value != ANY}
        for changes in (then, done, {}):
            state = {**given, **step["state"], **changes}
            calls += find(state["view"]).calls(subject, state)
    return {"lesson": about, "answers": answers}, calls


def answer(explorer: Explorer, lesson: Lesson, at: int, model: str) -> dict[str, Any]:
    """The sentences and the question of a step, and which comparisons in them are otherwise on this model."""
    if not 0 <= at < len(lesson.steps):
        raise UserError("there is no such step", found=str(at + 1), expected=f"1 to {len(lesson.steps)}")
    step, subject = lesson.steps[at], explorer.subject(model)
    if step.view not in subject.views:
        raise UserError(f"this step needs the view {step.view}", found=shown(subject.name), expected=lesson.model)
    question = None if step.question is None else asked(explorer, subject, lesson, step, step.question)
    paragraphs = [pieces(explorer, subject, lesson, step, each) for each in step.paragraphs]
    checks = [checked(explorer, subject, lesson, step, each) for each in step.checks]
    return {"paragraphs": paragraphs, "question": question, "otherwise": [one for one in checks if one]}


def checked(explorer: Explorer, subject: Subject, lesson: Lesson, step: Step, check: Check) -> str:
    """What is otherwise: empty where a comparison holds, else its two values."""
    left = compute(explorer, subject, lesson, step, check.left)
    given = check.right
    right = compute(explorer, subject, lesson, step, given) if isinstance(given, Query) else given
    if holds(left, check.sign, right, f"{lesson.place(check.left.line)}: {check.text}"):
        return ""
    return f"{check.text}: here {written(left)} and {written(right)}"


def holds(left: Value, sign: str, right: Value, where: str) -> bool:
    """Whether a comparison is true of two numbers, or of two texts; a ranking counts by its first name."""
    if isinstance(left, int | float) and isinstance(right, int | float):
        equal = math.isclose(left, right, rel_tol=1e-6, abs_tol=1e-9)
        larger = left > right and not equal
        return {"=": equal, "!=": not equal, ">": larger, "<=": not larger, ">=": larger or equal}.get(
            sign, not larger and not equal
        )
    if sign not in ("=", "!="):
        raise UserError("texts have no order", where=where, found=sign, expected="= or !=")
    return (written(left) == written(right)) == (sign == "=")


def asked(explorer: Explorer, subject: Subject, lesson: Lesson, step: Step, question: Question) -> dict[str, Any]:
    """A question with its choices, of which one is right."""
    value = compute(explorer, subject, lesson, step, question.answer)
    if isinstance(value, list):
        right = max(range(len(value)), key=lambda at: value[at].value)
        shares = value[right].value >= LEAST and min(one.value for one in value) >= 0
        shares = shares and not all(one.value.is_integer() for one in value)
        choices = [
            {"name": one.name, "value": one.value, "text": f"{one.value:.2f}" if shares else written(one.value)}
            for one in value
        ]
        truth = value[right].name
    else:
        assert isinstance(value, int | float)
        right = min(range(len(question.choices)), key=lambda at: abs(question.choices[at] - value))
        choices = [{"name": f"{one:,.12g}".replace("-", "−"), "value": None, "text": ""} for one in question.choices]
        truth = written(value)
    because = pieces(explorer, subject, lesson, step, question.because)
    return {
        "prompt": question.prompt, "choices": choices, "right": right, "truth": truth,
        "then": concrete(explorer, subject, step.state, question.then), "because": because,
    }  # fmt: skip


def pieces(
    explorer: Explorer, subject: Subject, lesson: Lesson, step: Step, sentences: Sentences
) -> list[dict[str, Any]]:
    """Sentences with their quantities computed."""
    found: list[dict[str, Any]] = []
    for one in sentences:
        if one.query is None:
            found.append({"kind": one.kind, "text": one.text})
        else:
            value = compute(explorer, subject, lesson, step, one.query)
            exact = None if isinstance(value, str | list) else value
            found.append({"kind": one.kind, "text": written(value), "value": exact})
    return found


def compute(explorer: Explorer, subject: Subject, lesson: Lesson, step: Step, query: Query) -> Value:
    """The value of a quantity; an error names its line."""
    page = StepPage(explorer, subject, {**step.state, **query.given})
    try:
        return QUANTITIES[query.name].compute(page)
    except UserError as error:
        where = f"{lesson.place(query.line)}: {query.name}"
        raise UserError(
            error.message, where=where, found=error.found, expected=error.expected, todo=error.todo
        ) from None
    except (KeyError, ValueError, IndexError):
        todo = f"ask for it in a view that shows it, or remove it from line {query.line}"
        raise UserError(f"{lesson.place(query.line)}: {query.name} cannot be computed here", todo=todo) from None


def written(value: Value) -> str:
    """A value in a sentence: two significant digits of a number, the first name of a ranking."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return max(value, key=lambda one: one.value).name if value else "nothing"
    text = f"{value:,.0f}" if isinstance(value, int) or abs(value) >= WHOLE else f"{value:#.2g}"
    return text.replace("-", "−")
