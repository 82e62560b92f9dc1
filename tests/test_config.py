from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field, ValidationError, ValidationInfo, field_validator, model_validator

from heedful.config import MAX_PROBLEMS, Config, FieldError, load_yaml, override, parse, render
from heedful.errors import UserError


class Round(Config):
    kind: Literal["round"] = "round"
    radius: float = Field(1.0, gt=0)


class Square(Config):
    kind: Literal["square"] = "square"
    side: int = Field(2, ge=1, description="length of an edge")
    name: str = "no"


class Pen(Config):
    colour: Literal["red", "blue"] = "red"
    width: int | float | None = None
    dashes: tuple[int, int] = (1, 2)

    @model_validator(mode="after")
    def _even(self) -> Pen:
        if sum(self.dashes) % 2 == 0:
            raise ValueError("dashes must differ by an odd number")
        return self


class Drawing(Config):
    shape: Annotated[Round | Square, Field(discriminator="kind")]
    more: list[Annotated[Round | Square, Field(discriminator="kind")]] = Field(default_factory=list)
    pen: Pen = Pen()
    title: str = Field(description="what it shows")
    copies: int = 1


def problems(cls: type[Config], data: dict[str, Any], *overrides: str) -> dict[str, UserError]:
    """Each problem by the first word of its message, which is the path."""
    with pytest.raises(UserError) as caught:
        parse(cls, data, None, overrides)
    found = caught.value.problems or (caught.value,)
    return {problem.message.removeprefix("invalid value for ").split()[0].rstrip(":"): problem for problem in found}


GOOD = {"shape": {"kind": "round"}, "title": "a"}


def test_good_settings_become_a_frozen_config() -> None:
    drawing = parse(Drawing, {**GOOD, "pen": {"dashes": [3, 4]}})
    assert drawing.shape == Round()
    assert drawing.pen.dashes == (3, 4)
    with pytest.raises(ValidationError):
        drawing.copies = 2  # type: ignore[misc]


def test_all_problems_are_reported_at_once_with_line_numbers(tmp_path: Path) -> None:
    path = tmp_path / "drawing.yaml"
    path.write_text("shape:\n  kind: square\n  side: 0\n  sides: 3\npen:\n  colour: rad\ncopies: true\n")
    data, marks = load_yaml(path)
    with pytest.raises(UserError) as caught:
        parse(Drawing, data, marks, ["pen.dashes=[1, x]"], path)
    assert str(caught.value) == (
        f"6 problems in {path}\n"
        f"  {path}:3:3: invalid value for shape.side\n"
        "    found:    0\n"
        "    expected: greater than or equal to 1\n"
        f"  {path}:4:3: shape.sides is an unknown key\n"
        "    expected: one of kind, name, side\n"
        "    to do:    did you mean shape.side?\n"
        f"  {path}:6:3: invalid value for pen.colour\n"
        "    found:    'rad'\n"
        "    expected: 'red' or 'blue'\n"
        "    to do:    did you mean red?\n"
        "  override pen.dashes: invalid value for pen.dashes.1\n"
        "    found:    'x'\n"
        "    expected: a whole number\n"
        f"  {path}:1:1: title is missing\n"
        "    expected: what it shows\n"
        "    to do:    add `title:`\n"
        f"  {path}:7:1: invalid value for copies\n"
        "    found:    True\n"
        "    expected: a whole number"
    )


def test_single_problem_is_not_listed() -> None:
    with pytest.raises(UserError) as caught:
        parse(Drawing, {**GOOD, "copies": "3"})
    assert caught.value.problems == ()
    assert caught.value.found == "'3'"


def test_unknown_and_missing_kind() -> None:
    found = problems(Drawing, {**GOOD, "shape": {"kind": "sqare"}, "more": [{"kind": "round"}, {"side": 3}]})
    assert found["shape.kind"].todo == "did you mean square?"
    assert found["shape.kind"].expected == "one of round, square"
    assert found["more.1.kind"].found is None


def test_paths_have_no_union_tags() -> None:
    found = problems(Drawing, {**GOOD, "shape": {"kind": "round", "radius": -1}, "more": [{"kind": "square", "x": 1}]})
    assert set(found) == {"shape.radius", "more.0.x"}


def test_plain_union_is_one_problem() -> None:
    found = problems(Drawing, {**GOOD, "pen": {"width": "wide"}})
    assert found["pen.width"].expected == "a whole number, or a number"


def test_key_of_another_group_is_suggested() -> None:
    assert problems(Drawing, {**GOOD, "colour": "red"})["colour"].todo == "did you mean pen.colour?"


def test_validator_message_is_kept() -> None:
    found = problems(Drawing, {**GOOD, "pen": {"dashes": [1, 3]}})
    assert found["pen"].message == "pen: dashes must differ by an odd number"


def test_hints_for_numbers_and_text() -> None:
    found = problems(Drawing, {"shape": {"kind": "square", "side": 1e3, "name": 2016}, "title": "a", "pen": 3})
    assert found["shape.side"].todo == "write 1000"
    assert found["shape.name"].todo == "put it in quotes"
    assert "group of settings" in (found["pen"].expected or "")


@pytest.mark.parametrize("value", [".nan", ".inf", "1e999"])
def test_numbers_are_finite(value: str) -> None:
    assert "finite" in (problems(Drawing, GOOD, f"shape.radius={value}")["shape.radius"].expected or "")


def test_long_problem_lists_are_truncated() -> None:
    with pytest.raises(UserError) as caught:
        parse(Drawing, {**GOOD, **{f"key{i}": i for i in range(1000)}})
    assert len(caught.value.problems) == MAX_PROBLEMS
    assert caught.value.message.startswith("1000 problems")
    assert f"{1000 - MAX_PROBLEMS} more" in (caught.value.todo or "")


def test_override_sets_and_creates_keys_in_a_copy() -> None:
    data = {"a": {"b": 1}, "list": [1, 2], "empty": None}
    changed = override(data, ["a.b=1e-3", "c.d.e=[x, 2]", "list.1=no", "empty.x={y: true}", "a.c=", "t=a=b"])
    assert changed == {
        "a": {"b": 0.001, "c": None},
        "list": [1, "no"],
        "c": {"d": {"e": ["x", 2]}},
        "empty": {"x": {"y": True}},
        "t": "a=b",
    }
    assert data == {"a": {"b": 1}, "list": [1, 2], "empty": None}


@pytest.mark.parametrize(
    "text", ["noequals", "=3", "a..b=3", ".a=3", "a.b.c=3", "list.7=1", "x=[1", "x=*y", "x=\udcff", "a." * 50 + "b=1"]
)
def test_invalid_overrides_are_rejected(text: str) -> None:
    with pytest.raises(UserError):
        override({"a": {"b": 1}, "list": [1]}, [text])


def test_invalid_overrides_are_reported_with_other_problems() -> None:
    with pytest.raises(UserError) as caught:
        parse(Drawing, GOOD, None, ["copies", "title.x=1", "copies=[", "copies=x"])
    assert [problem.where for problem in caught.value.problems] == [
        None,
        "override title.x",
        "override copies",
        "override copies",
    ]


def test_rendered_settings_parse_back_equal(tmp_path: Path) -> None:
    tricky = Drawing(shape=Square(name="1e-3"), title="no: # '\"\n\x07é", more=[Round(radius=1e-09)], copies=1)
    path = tmp_path / "out.yaml"
    path.write_text(render(tricky), encoding="utf-8")
    data, marks = load_yaml(path)
    assert parse(Drawing, data, marks, (), path) == tricky
    assert "copies: 1\n" in render(tricky)


def test_schema_forbids_unknown_keys_and_describes() -> None:
    schema = Drawing.model_json_schema()
    assert schema["additionalProperties"] is False
    assert schema["properties"]["title"]["description"] == "what it shows"


def test_validator_can_name_a_nested_setting() -> None:
    class Inner(Config):
        low: int = 0
        high: int = 1

    class Outer(Config):
        most: int = 9
        inner: Inner = Inner()

        @field_validator("inner")
        @classmethod
        def _fits(cls, inner: Inner, info: ValidationInfo) -> Inner:
            if inner.high > info.data["most"]:
                raise FieldError("more than the maximum", "high")
            return inner

    with pytest.raises(UserError) as caught:
        parse(Outer, {}, None, ["inner.low=3", "inner.high=12"])
    assert caught.value.message == "inner.high: more than the maximum"
    assert caught.value.where == "override inner.high"


class Sizes(Config):
    many: tuple[Annotated[int, Field(ge=1)], ...] = Field((1,), min_length=1, max_length=2)
    two: tuple[int, int] = (1, 2)


@pytest.mark.parametrize(
    ("override", "path", "expected", "todo"),
    [
        ("many=[0]", "many.0", "greater than or equal to 1", None),
        ("many=[x]", "many.0", "a whole number", None),
        ("many=[]", "many", "at least 1 item", None),
        ("many=[1, 2, 3]", "many", "at most 2 items", None),
        ("two=[1, 2, 3]", "two", "at most 2 items", None),
        ("two=[1]", "two.1", None, "add it at the end of the list"),
    ],
)
def test_bad_item_or_wrong_list_length_is_one_problem(
    override: str, path: str, expected: str | None, todo: str | None
) -> None:
    ((name, problem),) = problems(Sizes, {}, override).items()
    assert (name, problem.expected, problem.todo) == (path, expected, todo)


class Lines(Config):
    kind: Literal["lines"] = "lines"
    side: int = 1
    many: int


class Page(Config):
    shape: Annotated[Round | Square | Lines, Field(discriminator="kind")] = Round()
    frame: Annotated[Round | Square, Field(discriminator="kind")] = Square()
    side: Pen = Pen()


def test_suggestions_exclude_the_rejected_key_and_keys_of_other_kinds() -> None:
    assert problems(Page, {"frame": {"kind": "round"}}, "frame.name=x")["frame.name"].todo is None
    assert (
        problems(Page, {"shape": {"kind": "square"}, "frame": {"kind": "round"}}, "frame.name=x")["frame.name"].todo
        == "did you mean shape.name?"
    )
    default = problems(Page, {"shape": {"kind": "round"}}, "shape.name=x")["shape.name"]
    assert default.todo == "did you mean frame.name?", "a frame is a square where none is given"
    assert problems(Drawing, {**GOOD, "more": [{"kind": "round", "name": "x"}]})["more.0.name"].todo is None


def test_override_of_a_kind_is_one_problem_with_a_suggested_group() -> None:
    data = {"shape": {"kind": "square", "side": 3, "name": "it's"}}
    assert set(problems(Page, data, "shape.kind=round")) == {"shape.kind"}
    found = problems(Page, data, "shape.kind=lines", "shape.many=4")["shape.kind"]
    assert found.message == "shape.kind is now lines, which has no name"
    assert found.where == "override shape.kind"
    assert found.expected == "the keys of lines: side, many"
    assert found.todo == "write the whole group: 'shape={kind: lines, side: 3, many: 4}'"
    assert parse(Page, data, None, ["shape={kind: lines, side: 3, many: 4}"]).shape == Lines(side=3, many=4)
    incomplete = problems(Page, data, "shape.kind=lines")
    assert set(incomplete) == {"shape.kind"}
    assert (incomplete["shape.kind"].todo or "").endswith("'shape={kind: lines, side: 3, many: ...}'")


def test_problems_in_overridden_keys_name_the_override() -> None:
    data = {"shape": {"kind": "square", "name": "no"}}
    found = problems(Page, data, "shape.kind=round", "shape.side=4")
    assert set(found) == {"shape.kind", "shape.side"}
    assert found["shape.side"].message == "shape.side is an unknown key"
    assert found["shape.kind"].message == "shape.kind is now round, which has no name"
    assert set(problems(Page, data, "shape={kind: round, name: x}")) == {"shape.name"}
    assert set(problems(Page, {"shape": {"kind": "square", "nam": "x"}}, "shape.kind=round")) == {"shape.nam"}


def test_invalid_values_are_not_suggested_for_another_kind() -> None:
    data = {"shape": {"kind": "square", "name": "a b", "side": 0, "many": "x"}}
    found = problems(Page, {"shape": {**data["shape"], "side": "x"}}, "shape.kind=lines")
    assert set(found) == {"shape.kind"}
    assert (found["shape.kind"].todo or "").endswith("'shape={kind: lines, many: ...}'")


def test_string_for_a_group_suggests_its_kind_key() -> None:
    found = problems(Page, {}, "shape=square", "frame=7", "side=red")
    assert found["shape"].expected == "a group of settings, `key: value` lines indented below it"
    assert found["shape"].todo == "write {kind: square}, or the override shape.kind=square"
    assert found["frame"].todo is None
    assert found["side"].todo is None
