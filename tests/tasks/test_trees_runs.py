"""Runs of tree classifiers: exact resume, results, the command line, and errors."""

import json
import random
from pathlib import Path

import pytest
import torch
from click.testing import Result
from typer.testing import CliRunner

import heedful
from heedful.cli.app import app
from heedful.data.trees.treebank import Tree, parse_tree
from heedful.errors import UserError
from heedful.models import build
from heedful.runs.artifacts import load_artifacts
from heedful.runs.evaluate import Evaluated, results, scored
from heedful.runs.recipe import load_recipe
from heedful.runs.train import Started, train
from heedful.tasks.tree_classification.predictor import TreeClassifier
from heedful.tasks.tree_classification.recipe import TreeRecipe
from heedful.tasks.tree_classification.task import TreeTask
from heedful.training.checkpoint.folder import newest
from heedful.training.loop import Step

GOOD, BAD = ("good", "fine", "great"), ("bad", "poor", "awful")


def line(r: random.Random) -> str:
    """A tree of a few words, whose class is the number of good words minus bad ones."""

    def node(depth: int) -> tuple[str, int]:
        if depth == 0 or r.random() < 0.3:
            side = r.choice((GOOD, BAD, ("the", "a")))
            value = {GOOD: 1, BAD: -1}.get(side, 0)
            return f"({max(0, min(4, 2 + value))} {r.choice(side)})", value
        (left, one), (right, two) = node(depth - 1), node(depth - 1)
        return f"({max(0, min(4, 2 + one + two))} {left} {right})", one + two

    return node(3)[0]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    r = random.Random(0)
    for name, count in (("train", 60), ("dev", 15), ("test", 20)):
        (tmp_path / f"{name}.txt").write_text("".join(line(r) + "\n" for _ in range(count)))
    vectors = [f"{word} {' '.join(f'{r.gauss(0, 1):.4f}' for _ in range(6))}\n" for word in (*GOOD, *BAD, "other")]
    (tmp_path / "vectors.txt").write_text("".join(vectors))
    return tmp_path


def recipe(folder: Path, *changes: str) -> TreeRecipe:
    settings = [
        f"data.root={folder}", "data.train=train.txt", "data.valid=dev.txt", "data.test=test.txt",
        "data.vectors=vectors.txt", "model.width=6", "model.hidden=8", "train.batch_tokens=120",
        "train.budget.steps=24", "train.evaluate_every=8", "train.save_every=8", "train.log_every=1",
        "train.optimizer.lr=2e-2", "train.samples=3", "train.device=cpu",
    ]  # fmt: skip
    found = load_recipe("sentiment-trees", [*settings, *changes])
    assert isinstance(found, TreeRecipe)
    return found


def test_run_learns_and_its_folder_predicts_the_same(folder: Path) -> None:
    run = folder / "run"
    events = list(train(recipe(folder, "train.budget.steps=80", "train.evaluate_every=40"), run))
    started = next(event for event in events if isinstance(event, Started))
    assert (started.examples, started.vocab) == (60, 11)  # two special words, eight of the trees, one of the vectors
    test = results(run)
    assert test is not None and [score.name for score in test.scores] == [
        "accuracy", "binary_accuracy", "node_accuracy",
    ]  # fmt: skip
    assert test.scores[2].value > 70
    assert all(given and right and found for given, right, found in test.samples)
    classifier = heedful.load(run)
    assert isinstance(classifier, TreeClassifier)
    again = scored(classifier, recipe(folder), "test", step=test.step)
    assert again == test
    assert classifier.classify(["(S (A good) (B (C very) (D good)))"])[0].label > 2


@pytest.mark.parametrize("workers", [0, 2])
def test_interrupted_run_equals_the_uninterrupted_one(folder: Path, workers: int) -> None:
    whole, parts = folder / "whole", folder / "parts"
    losses = [event.loss for event in train(recipe(folder), whole) if isinstance(event, Step)]
    seen: list[float] = []
    for last in (5, 13, 24):
        at = [0]
        for event in train(recipe(folder, f"train.workers={workers}"), parts, lambda: at[0] >= last):  # noqa: B023
            if isinstance(event, Step):
                at[0] = event.step
                seen.append(event.loss)
    assert seen == losses
    one, two = (newest(run, 1)[0][0].load("model") for run in (whole, parts))
    assert all(one[name].equal(two[name]) for name in one)


def test_new_model_starts_from_the_word_vectors(folder: Path) -> None:
    task = TreeTask(recipe(folder))
    words = task.learn(task.read("train"))
    model = build(task.recipe.model.model_copy(update={"vocab": words.vocab}))
    before = model.tokens.weight.detach().clone()
    task.begin(model, words)
    row = next(text for text in (folder / "vectors.txt").read_text().splitlines() if text.startswith("awful "))
    expected = torch.tensor([float(number) for number in row.split()[1:]])
    torch.testing.assert_close(model.tokens.weight[words.id("awful")].detach(), expected)
    for word in ("the", "<unk>"):
        assert model.tokens.weight[words.id(word)].equal(before[words.id(word)])
    plain = TreeTask(recipe(folder, "data.vectors=null"))
    assert plain.learn(plain.read("train")).vocab == words.vocab - 1
    plain.begin(model, words)  # no vectors to load


def test_error_in_the_data_does_not_create_the_folder(folder: Path) -> None:
    run, trees = folder / "run", folder / "train.txt"
    was = trees.read_text()
    trees.write_text(was + "(2 (2 good)\n")
    with pytest.raises(UserError, match="bracket"):
        list(train(recipe(folder), run))
    with pytest.raises(UserError, match="this run has not started"):
        heedful.load(run)
    for wrong in ("model.width=7", "model.vocab=5"):  # the latter only with the vocabulary
        trees.write_text(was)
        with pytest.raises(UserError, match=r"width of the word vectors|too small"):
            list(train(recipe(folder, wrong), run))
    with pytest.raises(UserError, match="this run has no checkpoint yet"):
        heedful.load(run)
    trees.write_text(was.replace("good", "new"))
    events = list(train(recipe(folder), run))
    started = next(event for event in events if isinstance(event, Started))
    assert started.notes == ("the folder held a run that had saved nothing yet; it starts over",)
    assert "new" in heedful.load(run).tokenizer.words, "the words are of the data as they are now"


def test_vectors_changed_before_the_first_checkpoint_are_used(folder: Path) -> None:
    run, vectors = folder / "run", folder / "vectors.txt"
    was = vectors.read_text()
    events = train(recipe(folder), run)
    next(event for event in events if isinstance(event, Started))
    events.close()
    assert not newest(run, 1)[0] and (run / "tokenizer.json").exists()
    (run / "notes.txt").touch()  # so that it is not a run without a checkpoint, which starts over
    vectors.write_text(was.replace("awful ", "awful 1"))
    former = (run / "tokenizer.json").read_text()
    assert any(isinstance(event, Step) for event in train(recipe(folder), run))
    list(train(recipe(folder), folder / "fresh"))
    assert former != (run / "tokenizer.json").read_text() == (folder / "fresh" / "tokenizer.json").read_text()


def test_evaluation_needs_no_training_files(folder: Path, trained: Path) -> None:
    for name in ("vectors.txt", "train.txt", "dev.txt"):
        (folder / name).unlink()
    said = run_cli("eval", str(trained))
    assert said.exit_code == 0 and said.output.startswith("test: loss "), said.output
    error = run_cli("eval", str(trained), "--split", "valid").exception
    assert isinstance(error, UserError) and [problem.where for problem in error.problems] == [str(folder / "dev.txt")]


def test_model_too_large_with_its_vocabulary_is_rejected(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = recipe(folder, "tokenizer.known=10000000")  # the file has seven
    there = 16 * few.model.parameters(11)
    monkeypatch.setattr("heedful.runs.prepare.memory", lambda device: there)
    assert any(isinstance(event, Started) for event in train(few, folder / "run"))
    monkeypatch.setattr("heedful.runs.prepare.memory", lambda device: there - 1)
    with pytest.raises(UserError, match="too large to train here"):
        list(train(few, folder / "other"))


def test_mismatched_vectors_are_named(folder: Path) -> None:
    task = TreeTask(recipe(folder, "model.width=7"))
    with pytest.raises(UserError, match="width of the word vectors") as caught:
        task.learn(task.read("train"))
    assert caught.value.where == "model.width"
    assert caught.value.todo == "write model.width: 6"


def test_node_with_too_many_children_is_named(folder: Path) -> None:
    path = folder / "dev.txt"
    path.write_text("(2 good)\n(2 (2 a) (2 b) (2 c))\n")
    with pytest.raises(UserError, match="more children") as caught:
        TreeTask(recipe(folder)).read("valid")
    assert caught.value.where == f"{path}, tree 2"
    assert len(TreeTask(recipe(folder, "model.arity=3")).read("valid").trees) == 2
    assert len(TreeTask(recipe(folder, "model.form=child_sum")).read("valid").trees) == 2


def test_classes_must_agree(folder: Path) -> None:
    with pytest.raises(UserError, match=r"write model\.classes: 3"):
        recipe(folder, "data.classes=3")
    assert recipe(folder, "data.classes=3", "model.classes=3").model.classes == 3


def test_packed_batches_are_rejected(folder: Path) -> None:
    with pytest.raises(UserError, match="batching"):
        recipe(folder, "train.batching=packed")


def test_best_checkpoint_has_the_best_root_accuracy(folder: Path) -> None:
    events = list(train(recipe(folder), folder / "run"))
    task = TreeTask(recipe(folder))
    found = [event for event in events if isinstance(event, Evaluated) and event.split == "valid"]
    assert len(found) == 3
    assert [event.selection_score(task.metric) for event in found] == [event.scores[0].value for event in found]
    assert task.remarks(found[0]) == []
    command, look = task.next(folder / "run", None)
    assert (
        command.startswith(f"heedful classify-tree {folder / 'run'} '(2 ")
        and look == f"heedful eval {folder / 'run'} --split valid"
    )


def test_damaged_vocabulary_is_named(folder: Path) -> None:
    path = folder / "tokenizer.json"
    path.write_bytes(b"\xff")
    with pytest.raises(UserError, match="cannot be read") as caught:
        load_artifacts(TreeTask, folder)
    assert caught.value.where == str(path)
    path.write_text("{}")
    with pytest.raises(UserError, match="damaged"):
        load_artifacts(TreeTask, folder)


def test_single_tree_is_classified_by_an_untrained_model(folder: Path) -> None:
    task = TreeTask(recipe(folder))
    words = task.learn(task.read("train"))
    config = task.recipe.model.model_copy(update={"vocab": words.vocab})
    classifier = task.predictor(build(config), config, words, None, torch.device("cpu"))
    tree = parse_tree("(2 (2 good) (2 bad))", "here", 5)
    assert isinstance(tree, Tree) and len(classifier.classify([tree])[0].nodes) == 3


@pytest.fixture
def trained(folder: Path) -> Path:
    list(
        train(recipe(folder, "train.budget.steps=80", "train.evaluate_every=80", "train.save_every=80"), folder / "run")
    )
    return folder / "run"


def run_cli(*words: str, stdin: str = "") -> Result:
    return CliRunner().invoke(app, [*words], input=stdin)


def test_command_line_classifies_trees_and_nodes(trained: Path) -> None:
    line = "(? (? good) (? (? awful) (? awful)))"
    said = run_cli("classify-tree", str(trained), line, "--nodes")
    assert said.exit_code == 0, said.output
    root, *nodes = said.output.splitlines()
    assert root.endswith("good awful awful") and "%" in root
    parts = ("good awful awful", "good", "awful awful", "awful", "awful")
    assert all(node.endswith(f" {words}") for node, words in zip(nodes, parts, strict=True))
    assert [len(node) - len(node.lstrip()) for node in nodes] == [2, 4, 4, 6, 6]
    printed = json.loads(run_cli("classify-tree", str(trained), "--json", stdin=f"{line}\n").output)
    assert printed["text"] == "good awful awful"
    assert printed["nodes"][-1] == printed["label"] == max(range(5), key=lambda label: printed["probabilities"][label])
    predicted = heedful.load(trained).classify([line])[0]
    assert printed["nodes"] == predicted.nodes


def test_wrong_command_names_the_right_one(trained: Path) -> None:
    for verb in ("translate", "generate"):
        error = run_cli(verb, str(trained), "some text").exception
        assert isinstance(error, UserError)
        assert error.message == "this model classifies trees" and error.todo == "use `heedful classify-tree`"


def test_text_that_is_no_tree_is_named(trained: Path) -> None:
    error = run_cli("classify-tree", str(trained), "(2 good)", "a plain sentence").exception
    assert isinstance(error, UserError)
    assert error.where is not None and error.where.startswith("tree 2")


def test_trees_with_too_many_children_are_named(trained: Path) -> None:
    wrong = {"(1 (1 a) (1 b) (1 c))": "more children than the model supports", " ": "there is no tree"}
    for line, message in wrong.items():
        error = run_cli("classify-tree", str(trained), "(2 good)", line).exception
        assert isinstance(error, UserError) and error.where is not None
        assert message in error.message and error.where.startswith("tree 2")
        with pytest.raises(UserError, match=message):
            heedful.load(trained).classify(["(1 a)", line])


def test_blank_lines_are_kept(trained: Path) -> None:
    said = run_cli("classify-tree", str(trained), stdin="(2 good)\n\n(2 bad)\n").output.splitlines()
    assert [line.split()[-1:] for line in said] == [["good"], [], ["bad"]]


@pytest.mark.parametrize("given", [[], ["-"]])
def test_missing_input_is_reported(trained: Path, given: list[str]) -> None:
    error = run_cli("classify-tree", str(trained), *given).exception
    assert isinstance(error, UserError) and error.message == "there is no tree to read"
    assert run_cli("classify-tree", str(trained), *given, stdin="\n").exit_code == 0  # a blank line is a line


@pytest.mark.parametrize("wrong", ["no tree", "(1 (1 a) (1 b) (1 c))"])
def test_lines_before_an_invalid_one_are_printed(trained: Path, wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heedful.cli.reading.BATCH", 2)
    said = run_cli("classify-tree", str(trained), "-", stdin=f"(2 good)\n\n(2 bad)\n{wrong}\n(2 fine)\n")
    assert [line.split()[-1:] for line in said.output.splitlines()] == [["good"], [], ["bad"]]
    assert isinstance(said.exception, UserError) and str(said.exception.where).startswith("stdin:4")


def test_too_small_vocabulary_is_rejected(folder: Path) -> None:
    with pytest.raises(UserError, match="vocabulary is too small") as error:
        list(train(recipe(folder, "model.vocab=5"), folder / "run"))
    assert error.value.where == "model.vocab" and error.value.found == "5"


def test_compiling_trees_is_rejected(folder: Path) -> None:
    with pytest.raises(UserError, match="compile"):
        recipe(folder, "train.compile=true")
