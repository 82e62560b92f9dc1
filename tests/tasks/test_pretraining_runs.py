"""Pretraining runs: token files train the same run as text, and invalid settings are reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from heedful.cli.tokenize import tokenize_command
from heedful.config import render
from heedful.data.tokenizers.wordpiece import BertTokenizer
from heedful.errors import UserError
from heedful.runs.events import read_events
from heedful.runs.load import load
from heedful.runs.recipe import load_recipe, recipe_in
from heedful.runs.train import Started, train
from heedful.tasks import task_of
from heedful.tasks.base import Evaluated
from heedful.tasks.pretraining.loss import evaluate_pretraining
from heedful.training.loop import Step

SMALL = [
    "train.batch_tokens=512", "train.budget.steps=6", "train.evaluate_every=6", "train.save_every=6",
    "train.log_every=1", "train.samples=2", "train.device=cpu", "train.optimizer.lr=3e-2", "train.schedule.warmup=0",
    "model={width: 16, heads: 2, layers: 1, hidden: 32, context: 24}",
]  # fmt: skip
LINES = [
    "The cat sat on the mat. It was old.",
    "A dog ran. The cat slept.",
    "",
    "Birds fly over the log.",
    "They sing.",
]


@pytest.fixture
def documents(tmp_path: Path) -> str:
    (tmp_path / "text.txt").write_text("\n".join([*LINES, ""] * 30))
    part = "{kind: text, files: [text.txt], between: blank_lines}"
    return f"data={{kind: documents, root: {tmp_path}, train: [{part}], test: [{part}], held_out: 0.1}}"


def test_token_files_train_the_same_model_as_text(
    documents: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    vocab = "tokenizer={kind: wordpiece, vocab: 80, lowercase: true}"
    text = load_recipe("bert-prose", [*SMALL, documents, vocab])
    first = list(train(text, tmp_path / "text"))
    tokenize_command("bert-prose", [*SMALL, documents, vocab], tmp_path / "tokens")
    printed = capsys.readouterr().out
    assert "54 documents" in printed
    assert f"'data={{kind: tokens, folder: {tmp_path / 'tokens'}}}' tokenizer=null" in printed
    files: Any = load_recipe(
        "bert-prose", [*SMALL, f"data={{kind: tokens, folder: {tmp_path / 'tokens'}}}", "tokenizer=null"]
    )
    second = list(train(files, tmp_path / "files"))
    losses = [[event.loss for event in events if isinstance(event, Step | Evaluated)] for events in (first, second)]
    assert losses[0] == losses[1]
    assert files.size == text.size
    weights = [(tmp_path / run / "model" / "model.safetensors").read_bytes() for run in ("text", "files")]
    assert weights[0] == weights[1]
    assert isinstance(load(tmp_path / "files").tokenizer, BertTokenizer)


@pytest.mark.claim("M24")
def test_evaluation_reports_accuracies_and_samples(documents: str, tmp_path: Path) -> None:
    recipe = load_recipe("bert-prose", [*SMALL, documents, "tokenizer.vocab=80"])
    events = list(train(recipe, tmp_path / "run"))
    last = next(event for event in reversed(events) if isinstance(event, Evaluated))
    assert [score.name for score in last.scores] == ["masked_accuracy", "next_sentence_accuracy", "masked_perplexity"]
    recorded = read_events(tmp_path / "run").steps()
    assert len(recorded) == 6
    for event in recorded:
        assert event["parts"].keys() == {"masked", "next_sentence"}
        assert event["loss"] == pytest.approx(sum(event["parts"].values()), rel=1e-5)
    task, reader = task_of(recipe), load(tmp_path / "run")
    held_out = task.encode(task.read(last.split), reader.tokenizer)
    found = evaluate_pretraining(reader.model, held_out, reader.device, recipe.train.batch_tokens)
    shares = (found.correct / found.hidden, found.correct_pairs / found.pairs)
    assert [score.value for score in last.scores[:2]] == pytest.approx([100 * share for share in shares])
    assert last.loss == pytest.approx(found.loss, rel=1e-5)
    assert len(last.samples) == 2
    for given, hidden, said in last.samples:
        assert given.startswith("[CLS] ")
        assert len(hidden.split()) == len(said.split()) >= 1
    started = next(event for event in events if isinstance(event, Started))
    assert started.examples > 500
    assert task_of(recipe).next(tmp_path / "run", last)[0].startswith("heedful fill-mask ")


def test_samples_show_tokens_alone_where_the_model_has_more_rows(documents: str, tmp_path: Path) -> None:
    more = ["tokenizer.vocab=80", "model.vocab=5000", "train.budget.steps=1", "train.optimizer.lr=1e-9"]
    events = list(train(load_recipe("bert-prose", [*SMALL, documents, *more]), tmp_path / "run"))
    last = next(event for event in reversed(events) if isinstance(event, Evaluated))
    pieces = set(load(tmp_path / "run").tokenizer.pieces(range(80)))
    assert last.samples and all(set(predicted.split()) <= pieces for _, _, predicted in last.samples)


def test_small_bert_learns_masked_words(documents: str, tmp_path: Path) -> None:
    recipe = load_recipe(
        "bert-prose",
        [*SMALL, documents, "tokenizer.vocab=80", "train.budget.steps=120", "train.evaluate_every=120",
         "train.optimizer.lr=5e-3", "train.save_every=120", "model.width=48", "model.dropout=0.0",
         "model.attention_dropout=0.0"],
    )  # fmt: skip
    events = list(train(recipe, tmp_path / "run"))
    test = next(event for event in events if isinstance(event, Evaluated) and event.split == "test")
    losses = [event.loss for event in events if isinstance(event, Step)]
    assert losses[-1] < 0.6 * losses[0]
    assert test.scores[0].value > 50


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["tokenizer=null"], "text needs a tokenizer"),
        (["data={kind: tokens, folder: x}"], "token files have their own tokenizer"),
        (["model.masked_words=false"], "write true"),
        (["model.context=7"], "at least 8 tokens"),
        (["model.segments=1"], "without segments"),
        (["model.vocab=100"], "leave model.vocab out"),
        (["task.hidden=0"], "task.hidden"),
        (["data={kind: documents, train: []}"], "data.train"),
        (["data={kind: documents, train: [{kind: text, files: [a], between: chapters}]}"], "between"),
        (["tokenizer.kind=bpe"], "tokenizer"),
    ],
)
def test_invalid_settings_are_reported(overrides: list[str], message: str) -> None:
    with pytest.raises(UserError) as error:
        load_recipe("bert-prose", overrides)
    assert message in str(error.value)


@pytest.mark.parametrize("name", ["bert-prose", "bert-wiki", "bert-base"])
def test_shipped_recipes_round_trip(name: str, tmp_path: Path) -> None:
    recipe: Any = load_recipe(name)
    (tmp_path / "again.yaml").write_text(render(recipe))
    assert recipe_in(tmp_path / "again.yaml") == recipe
    assert recipe.task.hidden == 0.15
    if name == "bert-base":
        assert recipe.size == 109_482_240 + 768 * 768 + 768 + 2 * 768 + 30_522 + 2 * 768 + 2
        train = recipe.train
        assert train.batch_tokens // recipe.model.context * train.accumulate == 256
        assert (train.budget.steps, train.schedule.warmup, train.optimizer.lr) == (1_000_000, 10_000, 1e-4)


def test_only_documents_can_be_tokenized(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no text to tokenize"):
        tokenize_command("numbers", [], tmp_path / "tokens")
