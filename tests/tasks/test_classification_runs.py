"""Fine-tuning runs: the pretrained start, inferred settings, and resume without the start folder."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from scipy import stats

from heedful.config import render
from heedful.data.tokenizers.tokenizer import WordPiece
from heedful.data.tokenizers.wordpiece import BertTokenizer
from heedful.errors import UserError
from heedful.hub.model_folder import write_model
from heedful.models import build
from heedful.models.bert.config import SIZES, BertConfig
from heedful.runs.load import load, read_recipe
from heedful.runs.recipe import check_recipe, load_recipe, recipe_of
from heedful.runs.train import Finished, Started, train
from heedful.tasks import task_of
from heedful.tasks.base import Evaluated
from heedful.tasks.classification.predictor import TextClassifier, TextRegressor
from heedful.training.loop import Step
from tolerance import near

ENCODER = BertConfig(width=16, heads=2, layers=2, hidden=24, context=24)
SMALL = [
    "train.batch_examples=8", "train.budget={steps: 6}", "train.evaluate_every=3", "train.save_every=3",
    "train.log_every=1", "train.samples=2", "train.device=cpu",
]  # fmt: skip
WORDS = ["good", "bad", "film", "book", "very", "not", "fine", "poor", "plot", "story"]


@pytest.fixture
def texts(tmp_path: Path) -> list[str]:
    """Overrides for generated labelled texts, good or bad."""
    for name, size in (("train", 48), ("valid", 12), ("test", 12)):
        rows = [f"the {WORDS[row % 10]} {WORDS[row % 7]} was {WORDS[row % 2]}\t{'yn'[row % 2]}" for row in range(size)]
        (tmp_path / f"{name}.tsv").write_text("text\tlabel\n" + "\n".join(rows) + "\n")
    files = "train: train.tsv, valid: valid.tsv, test: test.tsv, text: text, label: label"
    return [*SMALL, f"data={{kind: tsv, root: {tmp_path}, {files}}}"]


def write_encoder(folder: Path, **changes: Any) -> Path:
    """A folder like that of a trained encoder, with its tokenizer and its heads."""
    tokenizer = BertTokenizer.train(WordPiece(vocab=80), [" ".join(WORDS), "the was", "a b c d e f g h"])
    config = ENCODER.model_copy(update={"vocab": tokenizer.vocab, **changes})
    torch.manual_seed(7)
    settings = json.dumps({"task": "pretraining", "model": config.model_dump()})
    write_model(folder, settings, build(config).state_dict(), {"tokenizer.json": tokenizer.json}, {})
    return folder


@pytest.fixture
def start(tmp_path: Path) -> Path:
    return write_encoder(tmp_path / "start")


def recipe(start: Path | None, texts: list[str], *more: str, name: str = "sst2") -> Any:
    return load_recipe(name, [*texts, f"start={{folder: {start}}}", *more])


def started(events: Iterator[Any]) -> Started:
    return next(event for event in events if isinstance(event, Started))


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "model" / "model.safetensors")


# ------------------------------------------------------------------ starting from a folder
def test_encoder_tokenizer_and_labels_come_from_folder_and_data(start: Path, texts: list[str], tmp_path: Path) -> None:
    given = recipe(start, texts)
    check_recipe(given)
    assert given.model.encoder is None and given.model.labels is None
    notes = started(train(given, tmp_path / "run")).notes
    assert any("unused weights of" in note and "masked_words." in note for note in notes)
    run = read_recipe(tmp_path / "run")
    assert run.model.labels == ("n", "y")
    assert run.model.encoder == ENCODER.model_copy(
        update={
            "vocab": run.model.vocab,
            "masked_words": False,
            "next_sentence": False,
        }
    )
    assert recipe_of(render(run), "here") == run
    assert (tmp_path / "run" / "tokenizer.json").read_text() == (start / "tokenizer.json").read_text()


def test_initial_weights_are_those_of_the_folder(start: Path, texts: list[str], tmp_path: Path) -> None:
    list(train(recipe(start, texts, "train.optimizer.lr=1e-30", "train.optimizer.weight_decay=0"), tmp_path / "run"))
    there, now = load_file(start / "model.safetensors"), weights(tmp_path / "run")
    names = {name.removeprefix("encoder.") for name in now if name.startswith("encoder.")}
    assert names == {name for name in there if not name.startswith(("masked_words.", "next_sentence."))}
    assert all(torch.allclose(now[f"encoder.{name}"], there[name], atol=1e-20, rtol=0) for name in names)


def test_missing_pooler_is_randomly_initialized_and_noted(texts: list[str], tmp_path: Path) -> None:
    bare = write_encoder(tmp_path / "bare", pooler=False, next_sentence=False)
    notes = started(train(recipe(bare, texts), tmp_path / "run")).notes
    assert any(
        "has no pooler: pooler.dense.weight, pooler.dense.bias are randomly initialized" in note for note in notes
    )


def test_dropout_may_differ_from_the_folder(start: Path, texts: list[str]) -> None:
    filled = recipe(start, texts, "start.dropout=0.3").fill_in()
    assert (filled.model.encoder.dropout, filled.model.encoder.attention_dropout) == (0.3, 0.3)
    assert recipe(start, texts).fill_in().model.encoder.dropout == ENCODER.dropout


def test_encoder_of_another_size_is_rejected(start: Path, texts: list[str], tmp_path: Path) -> None:
    encoder = "{width: 32, heads: 2, layers: 2, hidden: 24, context: 24}"
    given = recipe(start, texts, f"model.encoder={encoder}")
    with pytest.raises(UserError, match=r"differs from model\.encoder in the recipe") as error:
        list(train(given, tmp_path / "run"))
    assert "blocks.0.add1.norm.bias: (16,) in the folder, (32,) in the model" in str(error.value.found)
    assert "leave out model.encoder" in str(error.value.todo)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["start=null"], "a tokenizer is needed"),
        (["start=null", "tokenizer={kind: wordpiece, vocab: 90}"], "model.encoder is needed"),
        (["tokenizer={kind: wordpiece, vocab: 90}"], "leave this out"),
        (["train.compile=true"], "write false"),
    ],
)
def test_recipe_names_its_start(more: list[str], message: str, start: Path, texts: list[str]) -> None:
    with pytest.raises(UserError, match=message):
        recipe(start, texts, *more)


def test_folders_without_an_encoder_are_named(texts: list[str], tmp_path: Path) -> None:
    with pytest.raises(UserError) as error:
        check_recipe(recipe(tmp_path / "nowhere", texts))
    assert error.value.problems[0].where == "start.folder"
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError) as error:
        check_recipe(recipe(tmp_path / "empty", texts))
    assert "no model in this folder" in str(error.value)


def test_only_classification_limits_the_number_of_examples() -> None:
    with pytest.raises(UserError, match="the batch size of this task is batch_tokens"):
        load_recipe("numbers", ["train.batch_examples=8"])


# ------------------------------------------------------------------ resuming
def test_run_resumes_without_its_start_folder(start: Path, texts: list[str], tmp_path: Path) -> None:
    given = recipe(start, texts)
    whole = list(train(given, tmp_path / "whole"))
    asked = count()
    list(train(given, tmp_path / "broken", lambda: next(asked) >= 4))
    shutil.rmtree(start)
    again = list(train(given, tmp_path / "broken"))
    assert started(iter(again)).step == 4
    assert isinstance(again[-1], Finished) and isinstance(whole[-1], Finished)
    both = [weights(tmp_path / name) for name in ("whole", "broken")]
    assert all(torch.equal(both[0][name], both[1][name]) for name in both[0])
    with pytest.raises(UserError):  # a new run needs it
        list(train(given, tmp_path / "new"))


def test_run_without_a_checkpoint_reads_its_labels_again(start: Path, texts: list[str], tmp_path: Path) -> None:
    given = recipe(start, texts)
    next(event for event in train(given, tmp_path / "run") if isinstance(event, Step))
    for name in ("train", "valid", "test"):
        file = tmp_path / f"{name}.tsv"
        file.write_text(file.read_text().replace("\ty", "\tyes"))
    list(train(given, tmp_path / "run"))
    assert load(tmp_path / "run").labels == ("n", "yes")


def test_label_missing_from_training_is_rejected_with_its_line(start: Path, texts: list[str], tmp_path: Path) -> None:
    with (tmp_path / "valid.tsv").open("a") as file:
        file.write("a strange one\tmaybe\n")
    with pytest.raises(UserError, match="unknown label") as error:
        list(train(recipe(start, texts), tmp_path / "run"))
    assert error.value.where == f"{tmp_path}/valid.tsv:14:15"
    assert error.value.expected == "one of 'n', 'y'"
    named = recipe(start, texts, "model.labels=[y, maybe, n]")
    assert isinstance(list(train(named, tmp_path / "named"))[-1], Finished)
    assert load(tmp_path / "named").labels == ("y", "maybe", "n")


def test_truncated_texts_are_counted(start: Path, texts: list[str], tmp_path: Path) -> None:
    with (tmp_path / "train.tsv").open("a") as file:
        file.write("good " * 40 + "\ty\n")
    notes = started(train(recipe(start, texts), tmp_path / "run")).notes
    assert "1 of 49 texts are longer than 24 tokens, and are truncated" in notes


# ------------------------------------------------------------------ results
def test_trained_classifier_predicts_and_scores_are_stored(start: Path, texts: list[str], tmp_path: Path) -> None:
    given = recipe(start, texts, "task.metric=matthews", "train.budget.steps=60", "train.optimizer.lr=5e-3",
                   "train.evaluate_every=60", "train.schedule.warmup=5")  # fmt: skip
    events = list(train(given, tmp_path / "run"))
    test = next(event for event in events if isinstance(event, Evaluated) and event.split == "test")
    assert {score.name: score.value for score in test.scores} == {"accuracy": 100, "f1": 100, "matthews": 100}
    assert test.selection_score(task_of(given).metric) == 100
    assert all(found.startswith(f"{right} (") for _, right, found in test.samples)
    predictor = load(tmp_path / "run")
    assert type(predictor) is TextClassifier
    asked = ["the film was good", ("the book was bad", "so it is"), "", "the plot was bad " * 30]
    found = predictor.classify(asked)
    assert [one.label for one in found[:2]] == ["y", "n"]
    assert all(sum(one.probabilities.values()) == pytest.approx(1) for one in found)
    assert all(one.probability == one.probabilities[one.label] for one in found)
    assert [one.cut > 0 for one in found] == [False, False, False, True]
    alone = [predictor.classify([text])[0] for text in asked]
    assert [one.probability for one in alone] == near([one.probability for one in found], 16)
    assert predictor.classify([]) == []
    with pytest.raises(TypeError, match="pass a list"):
        predictor.classify("one text")


def test_regression_is_learned_and_predicted(start: Path, texts: list[str], tmp_path: Path) -> None:
    for name in ("train", "valid", "test"):
        file = tmp_path / f"{name}.tsv"
        file.write_text(file.read_text().replace("\ty", "\t4.5").replace("\tn", "\t1.25"))
    given = recipe(start, [], *texts, "train.budget.steps=150", "train.optimizer.lr=1e-2", "train.schedule.warmup=5",
                   "train.evaluate_every=200", name="stsb")  # fmt: skip
    events = list(train(given, tmp_path / "run"))
    test = next(event for event in events if isinstance(event, Evaluated) and event.split == "test")
    assert [score.name for score in test.scores] == ["pearson", "spearman"]
    assert test.scores[0].value > 95
    predictor = load(tmp_path / "run")
    assert type(predictor) is TextRegressor
    rows = [line.split("\t") for line in (tmp_path / "test.tsv").read_text().splitlines()[1:]]
    said = [one.value for one in predictor.predict([row[0] for row in rows])]
    right = [float(row[1]) for row in rows]
    assert [score.value for score in test.scores] == pytest.approx(
        [100 * float(measure(said, right).statistic) for measure in (stats.pearsonr, stats.spearmanr)], rel=1e-4
    )
    high, low = predictor.predict(["the film film was good", "the book book was bad"])
    assert high.value - low.value > 1.5
    with (tmp_path / "valid.tsv").open("a") as file:
        file.write("a strange one\tmuch\n")
    with pytest.raises(UserError, match="this is not a number"):
        list(train(given, tmp_path / "other"))


def test_incomplete_config_is_rejected(start: Path, texts: list[str], tmp_path: Path) -> None:
    list(train(recipe(start, texts), tmp_path / "run"))
    config = tmp_path / "run" / "model" / "config.json"
    (config.parent / "manifest.json").unlink()
    content = json.loads(config.read_text())
    for part in ("encoder", "labels"):
        config.write_text(json.dumps({**content, "model": {**content["model"], part: None}}))
        with pytest.raises(UserError, match=r"part of the model is missing") as error:
            load(tmp_path / "run")
        assert "model." in str(error.value.where)


def test_published_sizes_can_have_a_head() -> None:
    base = SIZES["bert-base"]
    assert isinstance(base, BertConfig)
    given = load_recipe(
        "number-languages", [f"model.encoder={{width: {base.width}, heads: {base.heads}, layers: {base.layers}}}"]
    )
    assert given.size == given.model.parameters(400) > 86_000_000
