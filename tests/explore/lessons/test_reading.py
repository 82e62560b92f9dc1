"""Lessons as text files: what they hold, and one line for each mistake."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from heedful.errors import UserError
from heedful.explore.lessons.lesson import Check, Query, state_of
from heedful.explore.lessons.quantities import QUANTITIES
from heedful.explore.lessons.reading import MOST_BYTES, Reader, find_lesson, read_lesson, shipped
from heedful.explore.lessons.spots import SPOTS
from heedful.explore.views import VIEWS
from heedful.lectures.decks import decks, topics

LESSON = """---
title: A title
about: One sentence.
topics: coreference
model: any encoder
address: text=a+b
---

# The first step
address: http://127.0.0.1:8765/#view=heads&layer=3&lesson=x/1
spot: head-1
do: Click it.
until: token=ask-2

Some *strong* `code` and {weight from=a to="b c"} here,
on two lines.

A second paragraph.

# The second
address: view=next&text=c
ask: How probable?
choices: 0.1, 0.5,
  0.9
answer: next-probability temperature=2
then: temperature=2
because: It is {next-probability temperature=2}.
check: next-probability > next-probability temperature=2; next = "a b"

Text.
"""


def read(text: str):  # type: ignore[no-untyped-def]
    return Reader("a.md").lesson("a", text)


def test_lesson_is_read() -> None:
    lesson = read(LESSON)
    assert (lesson.title, lesson.topics, lesson.model) == ("A title", ["coreference"], "any encoder")
    assert lesson.command == "heedful explore RUN --lesson a.md"  # the page must not learn its folder
    assert shipped()["mask"].command.endswith(" --lesson mask")
    first, second = lesson.steps
    assert first.state == {"text": "a b", "view": "heads", "layer": "3"}
    assert (first.spot, first.do, first.until, first.question) == ("head-1", "Click it.", {"token": "ask-2"}, None)
    kinds = [(piece.kind, piece.text) for piece in first.paragraphs[0]]
    assert kinds[:5] == [("text", "Some "), ("em", "strong"), ("text", " "), ("code", "code"), ("text", " and ")]
    assert first.paragraphs[0][5].query == Query("weight", {"from": "a", "to": "b c"}, 15)
    assert "".join(piece.text for piece in first.paragraphs[0]).endswith("here, on two lines.")
    assert len(first.paragraphs) == 2
    assert second.state == {"text": "c", "view": "next"}
    question = second.question
    assert question is not None
    assert question.choices == [0.1, 0.5, 0.9]
    assert question.answer == Query("next-probability", {"temperature": "2"}, 25)
    assert question.then == {"temperature": "2"}
    assert second.checks == [
        Check("next-probability > next-probability temperature=2", Query("next-probability", {}, 28), ">",
              Query("next-probability", {"temperature": "2"}, 28)),
        Check('next = "a b"', Query("next", {}, 28), "=", "a b"),
    ]  # fmt: skip
    assert lesson.views == ("heads", "next")


MISTAKES = {
    ("title: A", "titel: A"): "a.md:2: unknown field 'titel': did you mean title?",
    ("coreference", "corefrence"): "a.md:4: unknown topic of the lectures 'corefrence': did you mean coreference?",
    ("layer=3", "layer=four"): "a.md:10: layer is not a number 'four': write layer=2, counted from 0",
    ("view=heads", "view=head"): "a.md:10: unknown view 'head': write view=... in the address; did you mean heads?",
    ("head-1", "haed-1"): "a.md:11: the view heads has no such spot 'haed-1': did you mean head-N?",
    ("until: token=ask-2\n", ""): "a.md:12: until is missing: write both do: Click ... and until: layer=2",
    ("until: token=ask-2", "until: ask 2 3"): "a.md:13: this is not an address",
    ("{weight ", "{wieght "): "a.md:15: unknown quantity 'wieght': did you mean weight?",
    ("{weight from=", "{weight fron="): "a.md:15: weight does not take 'fron=a': write key=value; did you mean from?",
    ("here,", "here},"): "a.md:15: a brace without its partner",
    ("`code`", "*{tokens}*"): "a.md:15: a quantity between * or ` '{tokens}': write it without",
    ("# The second", "#"): "a.md:20: a step without a title '#': write a few words after the #",
    ("ask: How probable?\n", ""): "a.md:22: choices without a question: write a line ask: ... above it",
    ("0.1, 0.5,", "0.1, five,"): "a.md:23: invalid choices",
    ("temperature=2\nthen", "temperature=hot\nthen"): "a.md:25: temperature is not a number 'hot': write temperature=2",
    ("ask: How", "cover: all\nask: How"): "a.md:22: only the figure can be covered 'all': write cover: figure",
    ("answer: next-probability", "answer: next"): "a.md:25: the answer is a ranking, which has its own choices 'next'",
    ("; next =", "; next"): "a.md:28: not a comparison 'next \"a b\"': write a quantity, a sign",
    ("> next-prob", "> nxt-prob"): "",
    ("check: next-", "check: nxt-"): "a.md:28: unknown quantity 'nxt-probability': did you mean next-probability?",
    ('"a b"', '"a b'): "a.md:28: a quote without its partner",
    ("because: It", "because: "): "",
    ("\nText.", "\nIt is {next-probability  temperature=2}."): "a.md:30: the text tells the answer 'next-probability ",
    ("\nText.\n", ""): "a.md:20: a step without text",
    ("Some *s", "x" * 5000): "a.md:15: a line of 5,0",
    ("# The first", "The first"): "a.md:9: text before the first step",
    ("---\ntitle", "title"): "a.md:1: the head is missing",
    ("model: any encoder\n", ""): "a.md:1: there is no model: write a line model: ...",
}  # fmt: skip


@pytest.mark.parametrize("change", [change for change, line in MISTAKES.items() if line], ids=lambda one: one[1][:20])
def test_each_mistake_is_one_line(change: tuple[str, str]) -> None:
    assert change[0] in LESSON
    with pytest.raises(UserError) as caught:
        read(LESSON.replace(change[0], change[1], 1))
    lines = [str(problem) for problem in caught.value.problems]
    assert any(line.startswith(MISTAKES[change]) for line in lines), lines
    assert all("\n" not in line for line in lines)


def test_all_mistakes_are_reported_at_once() -> None:
    text = LESSON.replace("title:", "titel:").replace("view=next", "view=nxt").replace("head-1", "x")
    with pytest.raises(UserError) as caught:
        read(text)
    lines = [int(str(problem.where).rpartition(":")[2]) for problem in caught.value.problems]
    assert lines == [1, 2, 11, 21]  # no title, an unknown field, a spot, a view


@pytest.mark.parametrize("text", ["", "---", "---\n---", "\n" * 10, "# a\n" * 50, "---\ntitle: x\nmodel: y\n---\n#\n"])
def test_incomplete_text_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="not a lesson yet"):
        read(text)


def test_files_that_are_no_lessons(tmp_path: Path) -> None:
    (tmp_path / "large.md").write_text("x" * (MOST_BYTES + 1))
    (tmp_path / "latin.md").write_bytes("---\ntitle: é".encode("latin-1"))
    for name, message in (("large.md", "too long"), ("latin.md", "not UTF-8"), ("none.md", "cannot be read")):
        with pytest.raises(UserError, match=message):
            read_lesson(tmp_path / name)
    with pytest.raises(UserError, match="no such lesson") as caught:
        find_lesson("corefrence")
    assert "did you mean coreference?" in str(caught.value.todo)


def test_address_of_a_browser_is_understood() -> None:
    assert state_of("http://127.0.0.1:8765/#view=heads&text=a%20b+c&token=") == {
        "view": "heads", "text": "a b c", "token": "",
    }  # fmt: skip


# ------------------------------------------------------------------ the shipped lessons
@pytest.mark.parametrize("name", shipped())
def test_shipped_lesson_is_short_and_asks(name: str) -> None:
    lesson = shipped()[name]
    assert 6 <= len(lesson.steps) <= 8
    assert lesson.about
    assert lesson.topics
    assert any(step.question for step in lesson.steps)
    assert any(step.do for step in lesson.steps)
    assert any(step.spot for step in lesson.steps)
    for step in lesson.steps:
        assert not step.question or step.question.because, f"{step.title}: a wrong guess needs a reason"


DECIMAL = re.compile(r"[0-9]+\.[0-9]+|[0-9]+ %")


@pytest.mark.parametrize("name", shipped())
def test_claims_of_a_shipped_lesson_are_computed(name: str) -> None:
    for step in shipped()[name].steps:
        sentences = [*step.paragraphs, step.question.because if step.question else ()]
        typed = "".join(piece.text for some in sentences for piece in some if piece.query is None)
        assert DECIMAL.findall(typed) == []


COMPARATIVE = re.compile(
    r"(?<!-)\b(more|less|fewer|most|least|(?:larg|small|high|low|great|long|short|sharp|wid|near|clos|fast|slow|deep|eas)(?:er|est)"
    r"|better|best|worse|worst|twice|half)\b(?! probable)"
)


@pytest.mark.parametrize("name", shipped())
def test_comparisons_of_a_shipped_lesson_are_checked(name: str) -> None:
    """A step has at least as many comparisons that are evaluated as it has comparing words."""
    for step in shipped()[name].steps:
        sentences = [*step.paragraphs, step.question.because if step.question else ()]
        typed = " ".join("".join(piece.text for piece in some if piece.query is None) for some in sentences)
        assert len(COMPARATIVE.findall(typed)) <= len(step.checks), (step.title, COMPARATIVE.findall(typed))


def test_spots_are_in_the_page() -> None:
    assert set(SPOTS) == set(VIEWS)
    web = Path(__file__).parents[3] / "web" / "src"
    shared = "".join(path.read_text(encoding="utf-8") for path in (web / "lib").glob("*.svelte"))
    for view, spots in SPOTS.items():
        source = (web / "views" / f"{view.capitalize()}.svelte").read_text(encoding="utf-8") + shared
        for spot in spots:
            word = re.escape(spot.split("-N")[0])
            assert re.search(rf"""["'`{{ ]{word}["'`\-$]|{word}=""", source) or spot == "figure", f"{view}: {spot}"


def test_quantities_are_documented() -> None:
    page = (Path(__file__).parents[3] / "docs" / "how-to" / "lessons.md").read_text(encoding="utf-8")
    for name, quantity in QUANTITIES.items():
        assert f"| `{name}` | {', '.join(f'`{key}`' for key in quantity.takes)} | {quantity.about} |" in page


def test_lessons_cover_every_deck() -> None:
    named = {topic for lesson in shipped().values() for topic in lesson.topics}
    assert named <= set(topics())
    for deck in decks():
        assert named & set(deck.topics), deck.name
