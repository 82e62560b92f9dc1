"""A user's own examples in place of a recipe's files, and callbacks on events."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heedful.data.formats.sources import Pair, Split
from heedful.data.own import Dataset, choices, documents, images, labelled, pairs, questions, tagged, text, trees
from heedful.data.trees.treebank import Tree
from heedful.errors import UserError
from heedful.runs.fit import fit
from heedful.runs.load import load, read_recipe
from heedful.runs.recipe import load_recipe
from heedful.runs.train import Evaluated, Event, Finished, Started, Step, train
from heedful.tasks.recipe_parts import Recipe

pytestmark = pytest.mark.usefixtures("no_loss_curve")

PAIRS = [(f"number {n}", f"Zahl {n}") for n in range(40)]
WORDS = Dataset(train=PAIRS, valid=PAIRS[:5], test=PAIRS[5:9])

LABELLED = ("a", None, "x", "data.train[0]")


def recipe(*changes: str) -> Recipe:
    tiny = [
        "tokenizer.vocab=60", "model.width=8", "model.heads=2", "model.hidden=8", "model.context=32",
        "model.encoder_layers=1", "model.decoder_layers=1", "train.batch_tokens=256", "train.budget.steps=4",
        "train.save_every=2", "train.evaluate_every=2", "train.samples=2", "train.schedule.warmup=2",
    ]  # fmt: skip
    return load_recipe("numbers", [*tiny, *changes])


def until(step: int, run: Path, data: Dataset | None) -> None:
    at = [0]
    for event in train(recipe(), run, lambda: at[0] >= step, data=data):
        at[0] = event.step if isinstance(event, Started | Step) else at[0]


def weights(run: Path) -> bytes:
    return (run / "model" / "model.safetensors").read_bytes()


def test_run_on_own_examples_is_noted_and_resumes_bit_for_bit(tmp_path: Path) -> None:
    events = list(train(recipe(), tmp_path / "whole", data=WORDS))
    (start,) = (event for event in events if isinstance(event, Started))
    assert start.examples == 40 and [event.split for event in events if isinstance(event, Evaluated)][-1] == "test"
    assert read_recipe(tmp_path / "whole").data.model_dump() == {"kind": "own", "test": True}
    until(3, tmp_path / "stopped", WORDS)
    list(train(recipe(), tmp_path / "stopped", data=WORDS))
    assert weights(tmp_path / "stopped") == weights(tmp_path / "whole")
    assert load(tmp_path / "whole").translate(["number 3"])


def test_own_examples_train_the_same_run_as_files(tmp_path: Path) -> None:
    for name, rows in (("train", WORDS.train), ("valid", WORDS.valid), ("test", WORDS.test)):
        (tmp_path / f"{name}.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in rows))  # type: ignore[misc, union-attr]
    files = f"data={{kind: tsv, root: {tmp_path}, train: train.tsv, valid: valid.tsv, test: test.tsv}}"
    list(train(recipe(files), tmp_path / "files"))
    list(train(recipe(), tmp_path / "own", data=WORDS))
    assert weights(tmp_path / "own") == weights(tmp_path / "files")


@pytest.mark.parametrize(
    ("data", "where"),
    [
        (WORDS._replace(train=[*PAIRS[:-1], ("number 39", "Zahl 40")]), "the training data"),
        (WORDS._replace(valid=PAIRS[1:6]), "the validation data"),
        (WORDS._replace(test=None), "recipe.yaml"),
        (None, "recipe.yaml"),
    ],
    ids=["train", "valid", "no test", "none"],
)
def test_different_examples_are_rejected_on_resume(data: Dataset | None, where: str, tmp_path: Path) -> None:
    until(2, tmp_path / "run", WORDS)
    with pytest.raises(UserError) as error:
        list(train(recipe(), tmp_path / "run", data=data))
    assert where in str(error.value.where)


def test_different_test_examples_are_noted(tmp_path: Path) -> None:
    until(2, tmp_path / "run", WORDS)
    events = list(train(recipe(), tmp_path / "run", data=WORDS._replace(test=PAIRS[:4])))
    (start,) = (event for event in events if isinstance(event, Started))
    assert any("test data changed" in note for note in start.notes)


def test_resuming_needs_the_own_examples(tmp_path: Path) -> None:
    list(train(recipe(), tmp_path / "run", data=WORDS))
    again = read_recipe(tmp_path / "run")
    with pytest.raises(UserError) as error:
        list(train(again, tmp_path / "other"))
    assert "come from Python" in str(error.value) or "come from Python" in str(error.value.problems)
    with pytest.raises(UserError, match="come from Python"):
        again.data.read("test")


def test_own_trees_train_a_tree_classifier(tmp_path: Path) -> None:
    good, bad = "(3 (2 a) (3 (3 good) (2 film)))", "(1 (2 a) (1 (0 bad) (2 film)))"
    tiny = ["data={kind: own}", "model.width=4", "model.hidden=4", "train.budget={steps: 4}"]
    tiny += ["train.evaluate_every=2", "train.save_every=2"]
    settings = load_recipe("sentiment-trees", tiny)
    classifier: Any = fit(settings, tmp_path / "run", data=Dataset([good, bad] * 8, [good], [bad]))
    assert classifier.predict([good])[0].label in range(5)
    with pytest.raises(UserError, match="no class for a label") as error:
        fit(settings, tmp_path / "other", data=Dataset([good, bad.replace("(0", "(7")], [good]))
    assert error.value.where == "data.train, tree 2"


@pytest.mark.parametrize(
    ("collect", "rows", "found"),
    [
        (pairs, [("a", "b"), ("", "c")], ([Pair("a", "b")], 1)),
        (text, ["a b\nc", " ", "d"], (["a b", "c", "d"], 0, (0, 2))),
        (documents, ["a b\n\nc", "d"], ([["a b", "c"], ["d"]], 0)),
        (labelled, [("a", "x"), ("b", "c", 3)], ([LABELLED, ("b", "c", "3", "data.train[1]")], 0)),
        (tagged, [(["a", "b"], ["I-X", "O"]), ([], [])], ([(("a", "b"), ("B-X", "O"), "data.train[0]")], 1)),
        (questions, [("who?", "it is me", "me", 6)], ([("0", "who?", "it is me", (("me", 6),))], 0)),
        (choices, [("a", ["b", "c"], 1)], ([("a", ("b", "c"), 1)], 0)),
        (trees, ["(1 (0 a) (2 b))"], ([Tree((0, 2, 1), ("a", "b", None), ((), (), (0, 1)))], 0)),
    ],
    ids=["pairs", "text", "documents", "labelled", "tagged", "questions", "choices", "trees"],
)  # fmt: skip
def test_plain_examples_equal_those_of_files(collect: Any, rows: list[object], found: tuple[Any, ...]) -> None:
    assert tuple(collect(rows, "train")) == found


def test_images_are_rows_of_pixels() -> None:
    grey, colour = np.zeros((4, 8, 8), np.uint8), [np.ones((3, 8, 6))] * 2
    assert images(grey, "train").pixels.shape == (4, 1, 8, 8) and images(grey, "train").pixels.dtype == np.uint8
    assert images(colour, "train").pixels.shape == (2, 3, 8, 6)


@pytest.mark.parametrize(
    ("collect", "rows"),
    [
        (pairs, [("a", "b"), "ab"]),
        (pairs, [("a", "b"), ("a", 3)]),
        (labelled, [("a", "x"), ("alone",)]),
        (tagged, [(["a"], ["O"]), (["a", "b"], ["O"])]),
        (questions, [("who?", "it is me", "me", 6), ("who?", "it is me", "me", 0)]),
        (choices, [("a", ["b", "c"], 1), ("a", ["b", "c"], 2)]),
        (choices, [("a", ["b", "c"], 1), ("a", "bc", 1)]),
        (trees, ["(1 a)", 3]),
        (text, ["a", 3]),
        (images, [np.zeros((8, 8)), np.zeros((8, 7))]),
    ],
)
def test_invalid_example_is_named_by_its_number(collect: Any, rows: list[object]) -> None:
    split: Split = "valid"
    with pytest.raises(UserError, match="invalid example for the task") as error:
        collect(rows, split)
    assert error.value.where == "data.valid[1]"
    with pytest.raises(UserError, match="no examples for valid"):
        collect([], split)


def test_fit_calls_functions_on_every_event_and_returns_the_predictor(tmp_path: Path) -> None:
    one: list[Event] = []
    two: list[str] = []
    translator: Any = fit(recipe(), tmp_path / "run", data=WORDS, on=[one.append, lambda event: two.append(str(event))])
    assert isinstance(one[-1], Finished) and two == list(map(str, one))
    assert translator.translate(["number 3"]) == load(tmp_path / "run").translate(["number 3"])
    fit(recipe(), tmp_path / "run", data=WORDS, on=one.append)
    assert len([event for event in one if isinstance(event, Finished)]) == 2


def test_error_in_a_callback_ends_the_run_which_resumes_bit_for_bit(tmp_path: Path) -> None:
    def failing(event: Event) -> None:
        if isinstance(event, Step) and event.step == 3:
            raise ZeroDivisionError("of the user's own")

    with pytest.raises(ZeroDivisionError, match="of the user's own"):
        fit(recipe(), tmp_path / "run", data=WORDS, on=failing)
    events: list[Event] = []
    fit(recipe(), tmp_path / "run", data=WORDS, on=events.append)
    assert next(event.step for event in events if isinstance(event, Started)) == 2
    fit(recipe(), tmp_path / "whole", data=WORDS)
    assert weights(tmp_path / "run") == weights(tmp_path / "whole")
