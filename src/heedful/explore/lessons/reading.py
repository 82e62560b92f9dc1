"""Lessons from text files: a head and one section for each step, with an error for each line that is wrong."""

from __future__ import annotations

import difflib
import errno
import math
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from heedful.errors import UserError, shown
from heedful.explore.lessons.lesson import Check, Lesson, Piece, Query, Question, Sentences, Step, state_of
from heedful.explore.lessons.quantities import NUMBERS, QUANTITIES
from heedful.explore.lessons.spots import SPOTS
from heedful.files.reading import is_file, read_file
from heedful.lectures.decks import topics

SHIPPED = Path(__file__).with_name("shipped")
MOST_BYTES, MOST_STEPS, MOST_PROBLEMS = 100_000, 20, 20
LONGEST, MOST_CHOICES = 4000, 12  # characters of a line; choices of a question
HEAD = ("title", "about", "topics", "model", "run", "address")
FIELDS = ("address", "spot", "do", "until", "ask", "choices", "answer", "then", "because", "cover", "check")
INDICES = ("layer", "head", "step", "block", "image", "k", "t", "near")  # of an address
NAMED = ("map", "recurrent")  # views whose layers have names
SIGNS = ("<", ">", "<=", ">=", "=", "!=")
PARTS = re.compile(r"\{(?P<value>[^{}]*)\}|\*(?P<em>[^*]+)\*|`(?P<code>[^`]+)`")


class Field(NamedTuple):
    """A value of the file, and its line."""

    text: str
    line: int


class Reader:
    """Reads one file, and collects what is wrong with it."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.problems: list[UserError] = []

    def report(self, line: int, message: str, found: str | None, todo: str) -> None:
        """Note a mistake in one line: where it is, what was found, and what to type."""
        quoted = "" if found is None else f" {shown(found)}"
        self.problems.append(UserError(f"{message}{quoted}: {todo}", where=f"{self.file}:{line}"))

    # -------------------------------------------------------------- the lines
    def lesson(self, name: str, text: str) -> Lesson:
        """The lesson of a text; raises one error with all problems."""
        lines = text.splitlines()
        for number, line in enumerate(lines, 1):
            if len(line) > LONGEST:
                self.report(
                    number, f"a line of {len(line):,} characters is too long", None, f"write at most {LONGEST:,}"
                )
        head, start = self.head(lines)
        sections = self.sections(lines, start)
        if not 1 <= len(sections) <= MOST_STEPS:
            todo = f"write 1 to {MOST_STEPS} sections that start with # and a title"
            self.report(len(lines), f"a lesson of {len(sections)} steps", None, todo)
        shared = self.state(head["address"]) if "address" in head else {}
        steps = [self.step(title, line, fields, body, shared) for title, line, fields, body in sections[:MOST_STEPS]]
        for key in ("title", "model"):
            if key not in head:
                self.report(1, f"there is no {key}", None, f"write a line {key}: ... between the two lines of ---")
        about = self.topics(head["topics"]) if "topics" in head else []
        if self.problems:
            self.problems.sort(key=lambda one: int(str(one.where).rpartition(":")[2]))
            more = len(self.problems) - MOST_PROBLEMS
            title = "this is not a lesson yet" + (f"; {more} more problems are not shown" if more > 0 else "")
            raise UserError(title, where=self.file, problems=self.problems[:MOST_PROBLEMS])
        said = {key: head[key].text if key in head else "" for key in HEAD}
        run = said["run"] or "heedful explore RUN"
        return Lesson(name, self.file, said["title"], said["about"], about, said["model"], run, steps)

    def head(self, lines: Sequence[str]) -> tuple[dict[str, Field], int]:
        """The fields between the first two lines of ---, and the index of the line after them."""
        if not lines or lines[0].strip() != "---":
            self.report(
                1, "the head is missing", lines[0] if lines else "", "begin with a line of ---, then title: ..."
            )
            return {}, 0
        end = next((at for at, line in enumerate(lines[1:], 1) if line.strip() == "---"), None)
        if end is None:
            self.report(1, "the head does not end", None, "write a second line of --- below its fields")
            end = 1
        return self.fields(lines, 1, end, HEAD), end + 1

    def sections(self, lines: Sequence[str], start: int) -> list[tuple[str, int, dict[str, Field], list[Field]]]:
        """Each step: its title, its line, its fields, and the lines below them."""
        starts = [at for at in range(start, len(lines)) if lines[at].startswith("#")]
        first = starts[0] if starts else len(lines)
        for at in range(start, first):
            if lines[at].strip():
                self.report(at + 1, "text before the first step", lines[at], "write a line # and a title above it")
                break
        found = []
        for at, end in zip(starts, [*starts[1:], len(lines)][: len(starts)], strict=True):
            title = lines[at].lstrip("#").strip()
            if not title:
                self.report(at + 1, "a step without a title", lines[at], "write a few words after the #")
            blank = next((one for one in range(at + 1, end) if not lines[one].strip()), end)
            fields = self.fields(lines, at + 1, blank, FIELDS)
            body = [Field(lines[one].strip(), one + 1) for one in range(blank, end)]
            found.append((title, at + 1, fields, body))
        return found

    def fields(self, lines: Sequence[str], start: int, end: int, known: Sequence[str]) -> dict[str, Field]:
        """Lines of `key: value`; one that starts with a space continues the line above."""
        found: dict[str, Field] = {}
        key = ""
        for at in range(start, end):
            line = lines[at]
            if line[:1].isspace() and key in found:
                found[key] = Field(f"{found[key].text} {line.strip()}", found[key].line)
                continue
            key, colon, value = (part.strip() for part in line.partition(":"))
            if not line.strip():
                continue
            if not colon:
                self.report(at + 1, "not a field", line, "write key: value, or an empty line above the text")
            elif key not in known:
                self.report(at + 1, "unknown field", key, suggestion(key, known))
            elif key in found:
                self.report(at + 1, f"{key} is given twice", value, "remove one of the two lines")
            elif not value:
                self.report(at + 1, f"{key} is empty", None, f"write a value after {key}:")
            else:
                found[key] = Field(value, at + 1)
        return found

    # -------------------------------------------------------------- a step
    def step(
        self, title: str, line: int, fields: Mapping[str, Field], body: Sequence[Field], shared: Mapping[str, str]
    ) -> Step:
        """A step from its fields and its text."""
        state = {**shared, **(self.state(fields["address"]) if "address" in fields else {})}
        where = fields.get("address", Field("", line)).line
        if state.get("view") not in SPOTS:
            todo = "write view=... in the address; " + suggestion(state.get("view", ""), SPOTS)
            self.report(where, "unknown view", state.get("view", ""), todo)
            state["view"] = "heads"
        paragraphs = self.paragraphs(body)
        if not paragraphs:
            self.report(line, "a step without text", title, "write a sentence below an empty line")
        spot, do = fields.get("spot", Field("", line)), fields.get("do", Field("", line))
        self.require_spot(spot, state["view"])
        if ("do" in fields) != ("until" in fields):
            missing = "until" if "do" in fields else "do"
            self.report(do.line, f"{missing} is missing", None, "write both do: Click ... and until: layer=2")
        until = self.state(fields["until"]) if "until" in fields else {}
        checks = self.checks(fields["check"]) if "check" in fields else []
        question = self.question(fields, line)
        if question is not None:
            self.require_secret(question.answer, paragraphs)
        return Step(title, line, state, spot.text, do.text, until, question, checks, paragraphs)

    def state(self, field: Field) -> dict[str, str]:
        """The state in an address, or in the changes of one."""
        found = state_of(field.text)
        if not found or any(re.fullmatch(r"[a-z_]{1,20}", key) is None for key in found):
            self.report(
                field.line, "this is not an address", field.text, "copy it from the browser: view=heads&layer=3"
            )
        for key in INDICES:
            if key in found and found.get("view") not in NAMED and not re.fullmatch(r"[0-9]{1,6}|\*", found[key]):
                self.report(field.line, f"{key} is not a number", found[key], f"write {key}=2, counted from 0")
        return {key: value for key, value in found.items() if key not in ("lesson", "theme", "page")}

    def require_secret(self, answer: Query, paragraphs: Sequence[Sentences]) -> None:
        """Note an answer in the text, which is shown before the guess."""
        for piece in (piece for some in paragraphs for piece in some):
            query = piece.query
            if query is not None and (query.name, query.given) == (answer.name, answer.given):
                self.report(query.line, "the text tells the answer", piece.text, "move it to because:")

    def require_spot(self, spot: Field, view: str) -> None:
        """Note a spot that a view does not have."""
        plain = re.sub(r"-[0-9]+(?=-|$)", "-N", spot.text)
        if spot.text and plain not in SPOTS[view]:
            self.report(spot.line, f"the view {view} has no such spot", spot.text, suggestion(plain, SPOTS[view]))

    def question(self, fields: Mapping[str, Field], line: int) -> Question | None:
        """The question of a step, if it has one."""
        if "ask" not in fields:
            for key in ("choices", "answer", "then", "because", "cover"):
                if key in fields:
                    self.report(fields[key].line, f"{key} without a question", None, "write a line ask: ... above it")
            return None
        if "answer" not in fields:
            todo = "write answer: and a quantity, such as answer: weights from=it"
            self.report(fields["ask"].line, "a question without an answer", fields["ask"].text, todo)
            return None
        query = self.query(self.words(fields["answer"]), fields["answer"].line)
        if query is None:
            return None
        choices = self.choices(fields["choices"]) if "choices" in fields else ()
        ranking = QUANTITIES[query.name].ranks
        if ranking == bool(choices):
            todo = "remove the line choices:" if ranking else "write choices: with two to twelve numbers: 0.1, 0.5, 0.9"
            kind = "a ranking, which has its own choices" if ranking else "a number, which needs choices"
            self.report(fields["answer"].line, f"the answer is {kind}", query.name, todo)
        then = self.state(fields["then"]) if "then" in fields else {}
        because = self.sentences([fields["because"]]) if "because" in fields else ()
        cover = fields.get("cover")
        if cover is not None and cover.text != "figure":
            self.report(cover.line, "only the figure can be covered", cover.text, "write cover: figure")
        return Question(fields["ask"].text, query, choices, then, because, cover is not None)

    def choices(self, field: Field) -> list[float]:
        """The numbers to choose from."""
        try:
            found = [float(part) for part in field.text.split(",")]
        except ValueError:
            found = []
        if not 2 <= len(set(found)) <= MOST_CHOICES or not all(map(math.isfinite, found)):
            self.report(field.line, "invalid choices", field.text, f"write 2 to {MOST_CHOICES} numbers: 0.1, 0.5, 0.9")
        return found

    def checks(self, field: Field) -> list[Check]:
        """The comparisons of a line, which semicolons separate."""
        found: list[Check] = []
        for text in map(str.strip, field.text.split(";")):
            words = self.words(Field(text, field.line))
            signs = [at for at, word in enumerate(words) if word in SIGNS]
            if len(signs) != 1 or signs[0] in (0, len(words) - 1):
                todo = "write a quantity, a sign and what it is compared with: weight to=it > 0.5; tokens = 14"
                self.report(field.line, "not a comparison", text, todo)
                continue
            (at,) = signs
            left, right = self.query(words[:at], field.line), self.compared(words[at + 1 :], field.line)
            if left is not None and right is not None:
                found.append(Check(text, left, words[at], right))
        return found

    def compared(self, words: Sequence[str], line: int) -> Query | float | str | None:
        """The right side of a comparison: a number, a text, or another quantity."""
        if words[0] in QUANTITIES:
            return self.query(words, line)
        text = " ".join(words)
        try:
            return float(text)
        except ValueError:
            return text

    # -------------------------------------------------------------- sentences
    def paragraphs(self, body: Sequence[Field]) -> list[Sentences]:
        """The paragraphs of a text, which empty lines separate."""
        found: list[list[Field]] = [[]]
        for line in body:
            if line.text:
                found[-1].append(line)
            elif found[-1]:
                found.append([])
        return [self.sentences(lines) for lines in found if lines]

    def sentences(self, lines: Sequence[Field]) -> Sentences:
        """The pieces of some lines: *emphasis*, `code` and {quantities}."""
        found: list[Piece] = []
        for number, line in enumerate(lines):
            text = line.text if number == len(lines) - 1 else f"{line.text} "
            at = 0
            for match in PARTS.finditer(text):
                found.append(Piece("text", text[at : match.start()]))
                if match["value"] is None:
                    kind = "em" if match["em"] else "code"
                    if "{" in match[kind]:
                        todo = "write it without; the page marks what is computed"
                        self.report(line.line, "a quantity between * or `", match[kind], todo)
                    found.append(Piece("em" if kind == "em" else "code", match[kind]))
                elif (query := self.query(self.words(Field(match["value"], line.line)), line.line)) is not None:
                    found.append(Piece("value", match["value"], query))
                at = match.end()
            rest = text[at:]
            if "{" in rest or "}" in rest:
                self.report(line.line, "a brace without its partner", rest, "write {quantity key=value}")
            found.append(Piece("text", rest))
        return [piece for piece in found if piece.text]

    def words(self, field: Field) -> list[str]:
        """The words of a quantity, of which one in quotes may contain spaces."""
        try:
            return shlex.split(field.text)
        except ValueError:
            self.report(field.line, "a quote without its partner", field.text, 'write to="a token"')
            return []

    def query(self, words: Sequence[str], line: int) -> Query | None:
        """A quantity with its arguments, if there is such a one."""
        name, *rest = words or [""]
        if name not in QUANTITIES:
            self.report(line, "unknown quantity", name, suggestion(name, QUANTITIES))
            return None
        given: dict[str, str] = {}
        allowed = QUANTITIES[name].takes
        for part in rest:
            key, sign, value = part.partition("=")
            if not sign or key not in allowed:
                todo = "write key=value; " + suggestion(key, allowed) if allowed else f"write {name} alone"
                self.report(line, f"{name} does not take", part, todo)
            elif key in NUMBERS and not re.fullmatch(r"-?[0-9]{1,6}(\.[0-9]{1,6})?", value):
                self.report(line, f"{key} is not a number", value, f"write {key}=2")
            else:
                given[key] = value
        return Query(name, given, line)

    def topics(self, field: Field) -> list[str]:
        """The topics of the lectures that a head names."""
        found = [name.strip() for name in field.text.split(",")]
        for name in found:
            if name not in topics():
                self.report(field.line, "unknown topic of the lectures", name, suggestion(name, topics()))
        return found


def suggestion(word: str, known: Iterable[str]) -> str:
    """What to type in place of a word: the closest of those there are, or a list of them."""
    every = list(known)
    near = difflib.get_close_matches(word, every, n=1)
    if near:
        return f"did you mean {near[0]}?"
    return "one of " + ", ".join(every[:MOST_PROBLEMS]) + (" ..." if len(every) > MOST_PROBLEMS else "")


def read_lesson(path: Path) -> Lesson:
    """The lesson in a text file."""
    try:
        text = read_file(path, MOST_BYTES).decode("utf-8-sig")
    except OSError as error:
        words = "is too long" if error.errno == errno.EFBIG else "cannot be read"
        raise UserError(
            f"the lesson {words}", where=str(path), found=error.strerror,
            todo="give the path of a text file, or a name that `heedful lessons` lists",
        ) from None  # fmt: skip
    except UnicodeDecodeError:
        raise UserError("the lesson is not UTF-8 text", where=str(path), todo="save it as UTF-8") from None
    return Reader(str(path)).lesson(path.stem, text)


@cache
def shipped() -> dict[str, Lesson]:
    """The lessons of the package by name."""
    return {path.stem: read_lesson(path)._replace(shipped=True) for path in sorted(SHIPPED.glob("*.md"))}


def find_lesson(name: str) -> Lesson:
    """A shipped lesson by its name, or the one in a file."""
    if name in shipped():
        return shipped()[name]
    path = Path(name)
    if path.suffix or is_file(path):
        return read_lesson(path)
    todo = suggestion(name, shipped()) + "; `heedful lessons` lists them"
    raise UserError("there is no such lesson", where="--lesson", found=shown(name), todo=todo)
