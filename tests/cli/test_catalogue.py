"""The command `catalogue`: parts by kind, the stack, and the swaps of a recipe."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from heedful.catalogue.parts import parts, parts_of
from heedful.catalogue.stack import boxes
from heedful.runs.recipe import load_recipe

Heedful = Callable[..., tuple[int, str, str]]


def test_every_part_has_a_line_below_its_kind(heedful: Heedful) -> None:
    code, out, _ = heedful("catalogue")
    lines = out.splitlines()
    assert code == 0 and sum(line.startswith("  ") for line in lines) == len(parts())
    at = lines.index(next(line for line in lines if line.startswith("Optimizers: ")))
    assert [line.split()[0] for line in lines[at + 1 : at + 4]] == [part.name for part in parts_of("optimizer")]
    assert "  gru                        model.encoder.cell: gru" in out


def test_a_kind_is_shown_in_full(heedful: Heedful) -> None:
    code, out, _ = heedful("catalogue", "decoder")
    assert code == 0 and "gpt: The causal Transformer of Radford et al. (2018, 2019)" in out
    assert "  shapes   tokens (B, T), state -> logits (B, T, V) of the token after each" in out
    assert (
        "  key      model.kind: gpt, model.encoder.kind: gpt\n" in out
        and "  recipes  gpt-prose, gpt-shakespeare" in out
    )


def test_json_has_a_record_for_each_part(heedful: Heedful) -> None:
    records = [json.loads(line) for line in heedful("catalogue", "--json")[1].splitlines()]
    assert [(one["kind"], one["name"]) for one in records] == [(part.kind, part.name) for part in parts()]
    records = [json.loads(line) for line in heedful("catalogue", "--stack", "--json")[1].splitlines()]
    assert [one["box"] for one in records] == [box.name for box in boxes()]


def test_stack_goes_from_applications_to_the_trainer(heedful: Heedful) -> None:
    _, out, _ = heedful("catalogue", "--stack")
    places = [
        out.index(name) for name in ("Applications", "Library APIs", "Prediction", "Encoder", "MonoText", "Optimizer")
    ]
    assert places == sorted(places)


def test_swaps_say_what_fits_and_what_does_not_and_why(heedful: Heedful) -> None:
    code, out, _ = heedful("catalogue", "--swap", "captions", "--key", "model.decoder.attention.score")
    assert code == 0 and "model.decoder.attention.score: general" in out
    more = load_recipe("captions", ["model.decoder.attention.score=additive"]).size - load_recipe("captions").size
    assert f"  ok  additive             model.decoder.attention.score=additive; {more:+,}" in out
    assert (
        "  no  dot                  model.decoder.attention.score: the score dot compares vectors of one width" in out
    )


def test_swaps_of_a_file_of_ones_own_with_overrides(heedful: Heedful, tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text(
        "data: {kind: number_words}\ntokenizer: {kind: wordpiece, vocab: 140}\ntrain: {budget: {steps: 5}}\n"
    )
    code, out, err = heedful("catalogue", "optimizer", "train.optimizer.kind=sgd", "--swap", str(file), "--json")
    records = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and err == ""
    assert [(one["old"], one["new"], one["override"], one["fits"]) for one in records] == [
        ("sgd", kind, f"train.optimizer.kind={kind}", True) for kind in ("adamw", "rmsprop")
    ]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (("catalogue", "wheel"), "there is no such kind of part"),
        (("catalogue", "--swap", "nombers"), "did you mean numbers?"),
        (("catalogue", "--swap", "numbers", "--key", "model.width"), "this key selects no part of the recipe"),
        (("catalogue", "--swap", "numbers", "model.width=wide"), "invalid value for model.width"),
    ],
)
def test_mistakes_are_said_in_a_line(heedful: Heedful, words: tuple[str, ...], found: str) -> None:
    code, _, err = heedful(*words)
    assert code == 2 and found in err and "Traceback" not in err
