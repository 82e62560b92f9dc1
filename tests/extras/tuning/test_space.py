"""The words of a study: lists, ranges, seeds, recipes, and mistakes in them."""

from __future__ import annotations

import pytest

from heedful.errors import UserError
from heedful.extras.tuning.space import Choice, Range, number, read_space, split_list


def test_words_become_axes_seeds_and_fixed_settings() -> None:
    varied = ["model.layers=1,2", "train.optimizer.lr=1e-5..1e-3", "train.seed=0,1"]
    space = read_space(["numbers", *varied, "train.budget={steps: 5, epochs: 1}"])
    assert space.axes == (
        Choice("model.layers", ("1", "2")),
        Range("train.optimizer.lr", 1e-5, 1e-3, log=True, whole=False),
    )
    assert space.seeds == ("0", "1") and space.fixed == ("train.budget={steps: 5, epochs: 1}",)
    point = {"model.layers": "2", "train.optimizer.lr": 0.0001}
    assert space.overrides(point, "1") == (
        "train.budget={steps: 5, epochs: 1}", "model.layers=2", "train.optimizer.lr=0.0001", "train.seed=1"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "log", "whole"),
    [("0.1..0.5", False, False), ("0.01..0.5", True, False), ("1..64", False, True), ("1..64:log", True, True),
     ("1e-5..1e-3:linear", False, False), ("-1..1", False, True)],
)  # fmt: skip
def test_scale_of_a_range(text: str, log: bool, whole: bool) -> None:
    (axis,) = read_space(["numbers", f"model.dropout={text}"]).axes
    assert isinstance(axis, Range) and (axis.log, axis.whole) == (log, whole)


def test_several_recipes_are_an_axis_and_a_range_of_seeds_is_a_list() -> None:
    space = read_space(["numbers", "numbers-rnn", "train.seed=0..3"])
    assert space.axes == (Choice("recipe", ("numbers", "numbers-rnn")),) and space.seeds == ("0", "1", "2", "3")
    assert [space.recipe(point) for point in space.grid()] == ["numbers", "numbers-rnn"]
    assert space.overrides({"recipe": "numbers-rnn"}, None) == ()


@pytest.mark.parametrize("value", ["../data", "data..old", "'a,b'", "[1, 2]", "{kind: linear, warmup: 3}", "a"])
def test_single_values_are_fixed(value: str) -> None:
    space = read_space(["numbers", f"data.root={value}"])
    assert space.fixed == (f"data.root={value}",) and space.axes == ()


def test_lists_are_split_outside_of_brackets_and_quotes() -> None:
    assert split_list("[1, 2], {a: 3, b: 4},'x, y', z") == ["[1, 2]", "{a: 3, b: 4}", "'x, y'", "z"]


@pytest.mark.parametrize("value", [1, 0.1, 1e-05, 123456.0, 3.2e-7, 1e20])
def test_numbers_are_written_so_that_they_are_read_back(value: float) -> None:
    from heedful.files.yaml import read_yaml

    assert read_yaml(number(value), "value")[0] == value


@pytest.mark.parametrize(
    ("words", "message", "todo"),
    [
        (["numbers", "train.optimizer.lr=1e-3..1e-5"], "not below its high end", "write train.optimizer.lr=1e-5..1e-3"),
        (["numbers", "train.optimizer.lr=1..1"], "not below its high end", "write train.optimizer.lr=1"),
        (["numbers", "train.optimizer.lr=1e-5.."], "invalid range", None),
        (["numbers", "train.optimizer.lr=1..2:cubic"], "invalid range", None),
        (["numbers", "train.optimizer.lr=1..1e999"], "invalid range", None),
        (["numbers", "train.optimizer.lr=0..1:log"], "two positive ends", "write 0..1:linear"),
        (["numbers", "model.layers=1,,2"], "a value of this list is empty", None),
        (["numbers", "model.layers=1,1"], "given twice", "remove one of them"),
        (["numbers", "model.layers=1,2", "model.layers=3"], "given twice", "remove one of them"),
        (["numbers", "numbers"], "given twice", "remove one of them"),
        (["model.layers=1,2"], "there is no recipe", "heedful recipes"),
        (["numbers", "train.seed=0.5..1"], "invalid range of seeds", None),
        (["numbers", "train.seed=0..5000"], "invalid range of seeds", None),
    ],
)
def test_mistakes_are_named(words: list[str], message: str, todo: str | None) -> None:
    with pytest.raises(UserError, match=message) as error:
        read_space(words)
    assert error.value.todo == todo


def test_grid_that_is_too_large_is_refused() -> None:
    values = ",".join(map(str, range(101)))
    with pytest.raises(UserError, match="too large"):
        read_space(["numbers", f"a={values}", f"b={values}"]).grid()
