"""The command `summary`: of recipes, kinds of models and folders."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from heedful.runs.recipe import load_recipe

Run = Callable[..., tuple[int, str, str]]


@pytest.mark.parametrize("name", ["numbers", "numbers-rnn", "digits", "gpt-prose"])
def test_total_of_a_recipe_equals_check(name: str, heedful: Run) -> None:
    code, out, err = heedful("summary", name, "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["parameters"] == load_recipe(name).size


def test_sizes_in_a_recipe_need_no_data(heedful: Run) -> None:
    code, out, err = heedful("summary", "gpt2", "--json")  # its token files are not there
    assert (code, err) == (0, "") and json.loads(out)["parameters"] == 124_439_808


def test_kind_is_shown_in_its_tiny_size_and_overrides_change_a_recipe(heedful: Run) -> None:
    assert "blocks.1 (EncoderBlock)" in heedful("summary", "bert")[1]
    assert "encoder.4" in heedful("summary", "numbers", "model.encoder_layers=5")[1]
    assert "blocks.0.attention.q" in heedful("summary", "gpt", "--depth", "0")[1].replace("attend", "attention")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("nombers",), "did you mean numbers?"),
        (("brt",), "did you mean bert?"),
        (("xlnett",), "did you mean xlnet?"),
        (("sst2",), "no such folder"),
        (("numbers", "model.x=1"), "model.x"),
    ],
)
def test_invalid_arguments_are_reported(words: tuple[str, ...], message: str, heedful: Run) -> None:
    code, _, err = heedful("summary", *words)
    assert code == 2 and message in err
