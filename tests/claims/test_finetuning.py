"""Rows F13, F16, F20, F21, F24, F25, L2 and L4 of the claim sheet: one encoder, many tasks, one new layer each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from heedful.data.embedded import NumberWords
from heedful.data.labelled.glue import COLUMNS, RESULTS, TASKS, glue_average
from heedful.models import build
from heedful.models.bert.config import BertConfig
from heedful.models.heads.config import (
    AnswererConfig,
    ClassifierConfig,
    MultipleChoiceConfig,
    RegressorConfig,
    TaggerConfig,
)
from heedful.runs.load import load
from heedful.runs.recipe import load_recipe
from heedful.runs.train import train
from heedful.tasks import task_of
from heedful.tasks.base import HeldOut
from tolerance import close

WIDTH = 24
ENCODER = BertConfig(vocab=50, width=WIDTH, heads=3, layers=2, hidden=32, context=20)
PRETRAINING = [
    "tokenizer.vocab=300", "model={kind: bert, width: 16, heads: 2, layers: 1, hidden: 24, context: 32}",
    "train.batch_tokens=512", "train.budget={steps: 3}", "train.device=cpu", "train.samples=0", "train.workers=0",
]  # fmt: skip
TUNING = [
    "data.train=200", "data.valid=20", "data.test=20", "train.budget={steps: 5}", "train.device=cpu",
    "tokenizer=null", "model.encoder=null", "train.evaluate_every=100", "train.save_every=100",
]  # fmt: skip


def tokens() -> tuple[Tensor, Tensor]:
    """Pairs of texts, and which text each token belongs to."""
    return torch.randint(5, 50, (3, 11)), (torch.arange(11) >= 6).long().expand(3, 11)


@pytest.mark.claim("F13")
@pytest.mark.parametrize("classes", [2, 3])
def test_classification_is_one_linear_layer_on_cls(classes: int) -> None:
    model: Any = build(ClassifierConfig(encoder=ENCODER, labels=tuple("abc"[:classes]))).eval()
    ids, segments = tokens()
    assert model(ids).shape == model(ids, segments).shape == (3, classes)
    first = model.encoder(ids, segments)[:, 0]
    by_hand = (first @ model.encoder.pooler.dense.weight.T + model.encoder.pooler.dense.bias).tanh()
    torch.testing.assert_close(model(ids, segments), by_hand @ model.head.weight.T + model.head.bias)
    assert model.head.weight.shape == (classes, WIDTH)


# The tasks in their file formats: the recipe, its overrides, and rows. MNLI, QQP, QNLI and RTE are
# pairs with a class each, as MRPC's are, under other columns.
PAIRS = ("the dog runs", "the cat sleeps"), ("a cat sleeps", "a cat rests")
SWAG = "n,video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3,label\n"


def pairs(columns: str, labels: tuple[str, str], before: int, after: int = 0) -> str:
    """A table of two pairs, with this many columns before them, and between them and their labels."""
    rows = [["x"] * before + [*pair] + ["x"] * after + [label] for pair, label in zip(PAIRS, labels, strict=True)]
    return "\n".join([columns.replace(" ", "\t"), *("\t".join(row) for row in rows)]) + "\n"


def squad(version: str) -> str:
    qas = [{"id": "1", "question": "who runs?", "answers": [{"text": "the dog", "answer_start": 0}]}]
    return json.dumps({"version": version, "data": [{"paragraphs": [{"context": "the dog runs", "qas": qas * 2}]}]})


MNLI = "index promptID pairID genre parse1 parse2 parse3 parse4 sentence1 sentence2 label1 gold_label"
FILES: dict[str, tuple[str, list[str], str]] = {
    "MNLI": (
        "mrpc",
        ["data.text=sentence1", "data.pair=sentence2", "data.label=gold_label", "task.metric=accuracy",
         "model.labels=[contradiction, entailment, neutral]"],
        pairs(MNLI, ("neutral", "entailment"), 8, 1),
    ),
    "QQP": ("mrpc", ["data.text=question1", "data.pair=question2", "data.label=is_duplicate"],
            pairs("id qid1 qid2 question1 question2 is_duplicate", ("0", "1"), 3)),
    "QNLI": ("mrpc", ["data.text=question", "data.pair=sentence", "data.label=label", "task.metric=accuracy"],
             pairs("index question sentence label", ("entailment", "not_entailment"), 1)),
    "SST-2": ("sst2", [], "sentence\tlabel\nthe dog runs\t1\na cat sleeps\t0\n"),
    "CoLA": ("cola", [], "x\t1\t\tthe dog runs\nx\t0\t*\tcat a sleeps\n"),
    "STS-B": ("stsb", [], pairs("index genre filename year old_index source1 source2 sentence1 sentence2 score",
                                ("1.5", "4.25"), 7)),
    "MRPC": ("mrpc", [], "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
             "0\t1\t2\tthe dog runs\tthe cat sleeps\n1\t3\t4\ta cat sleeps\ta cat rests\n"),
    "RTE": ("mrpc", ["data.text=sentence1", "data.pair=sentence2", "data.label=label", "task.metric=accuracy"],
            pairs("index sentence1 sentence2 label", ("entailment", "not_entailment"), 1)),
    "SQuAD v1.1": ("squad", [], squad("1.1")),
    "SQuAD v2.0": ("squad", [], squad("v2.0")),
    "SWAG": ("swag", [], SWAG + "0,v,1,x,the dog runs,It,gold,sleeps,rests,runs,is a cat,2\n"
             "1,v,2,x,a cat rests,It,gold,purrs,sleeps,is a dog,rests,0\n"),
    "CoNLL-2003": ("conll2003", [], "the O\ndog I-PER\nruns O\n\na O\ncat I-LOC\nrests O\n"),
}  # fmt: skip
SMALL = [
    "start=null", "tokenizer={kind: wordpiece, vocab: 120}", "train.batch_examples=2", "data.train=file",
    "data.valid=file", "model.encoder={width: 24, heads: 3, layers: 2, hidden: 32, context: 32, dropout: 0.0}",
]  # fmt: skip
FIRST_TOKEN = ("classification", "regression", "multiple_choice")


@pytest.mark.claim("F21")
@pytest.mark.parametrize("name", TASKS)
def test_each_of_twelve_tasks_is_loaded_and_learned(name: str, tmp_path: Path) -> None:
    row, (shipped, changes, text) = TASKS[name], FILES[name]
    (tmp_path / "file").write_text(text)
    recipe: Any = load_recipe(shipped, [*SMALL, f"data.root={tmp_path}", *changes])
    assert recipe.task.kind == row.kind
    if "metric" in type(recipe.task).model_fields:
        assert recipe.task.metric == row.metric
    recipe = recipe.fill_in()
    task: Any = task_of(recipe)
    read = task.read("train")
    vocabulary = task.learn(read)
    encoded = task.encode(read, vocabulary)
    torch.manual_seed(0)
    config = task.fitted(recipe.model, vocabulary, "model")
    model: Any = build(config).eval()  # without dropout
    loss_of, batch = task.loss_of(model, False), task.batches(encoded, False, False).at(0)
    assert row.reads == ("pair" if bool(batch.segments.any()) else "text")
    optimizer, losses = torch.optim.Adam(model.parameters(), 3e-3), []
    for _ in range(50):
        loss = loss_of(batch)
        losses.append(float(loss.plain.detach()))
        optimizer.zero_grad()
        loss.total.backward()
        optimizer.step()
    assert losses[-1] < 0.2 * losses[0]
    predictor = task.predictor(model, config, vocabulary, task.decode, torch.device("cpu"))
    result = task.evaluate(predictor, HeldOut(read, encoded, task.loss(predictor, encoded), 1, "valid"))
    assert next(score.value for score in result.scores if row.metric in score.name) == pytest.approx(100)


@pytest.mark.claim("F13")
def test_nine_tasks_use_the_cls_token() -> None:
    named = {name for name, task in TASKS.items() if task.kind in FIRST_TOKEN}
    assert named == {"MNLI", "QQP", "QNLI", "STS-B", "MRPC", "RTE", "SWAG", "SST-2", "CoLA"}
    assert {name for name in named if TASKS[name].reads == "text"} == {"SST-2", "CoLA"}


@pytest.mark.claim("F13")
@pytest.mark.parametrize("config", [RegressorConfig(encoder=ENCODER), MultipleChoiceConfig(encoder=ENCODER)])
def test_regression_and_multiple_choice_have_one_output(config: Any) -> None:
    model: Any = build(config).eval()
    ids, segments = tokens()
    first = model.encoder(ids, segments)[:, 0]
    by_hand = (first @ model.encoder.pooler.dense.weight.T + model.encoder.pooler.dense.bias).tanh()
    torch.testing.assert_close(model(ids, segments), by_hand @ model.head.weight[0] + model.head.bias)


@pytest.mark.claim("F16")
@pytest.mark.parametrize(
    ("config", "added"),
    [
        (ClassifierConfig(encoder=ENCODER, labels=("a", "b", "c")), 3 * WIDTH + 3),
        (RegressorConfig(encoder=ENCODER), WIDTH + 1),
        (MultipleChoiceConfig(encoder=ENCODER), WIDTH + 1),
        (TaggerConfig(encoder=ENCODER, labels=("O", "B-X", "I-X")), 3 * WIDTH + 3),
        (AnswererConfig(encoder=ENCODER), 2 * WIDTH + 2),
    ],
    ids=lambda value: getattr(value, "kind", None),
)
def test_fine_tuning_adds_one_output_layer(config: Any, added: int) -> None:
    new = {name: weight for name, weight in build(config).named_parameters() if not name.startswith("encoder.")}
    assert {name.split(".")[-1] for name in new} == {"weight", "bias"} and len(new) == 2
    assert sum(weight.numel() for weight in new.values()) == added


@pytest.mark.claim("L4")
def test_any_head_on_the_same_encoder() -> None:
    classifier: Any = build(ClassifierConfig(encoder=ENCODER, labels=("a", "b"))).eval()
    regressor: Any = build(RegressorConfig(encoder=ENCODER)).eval()
    ids, segments = tokens()
    assert not torch.equal(classifier.encoder(ids, segments), regressor.encoder(ids, segments))
    regressor.encoder.load_state_dict(classifier.encoder.state_dict())
    assert torch.equal(classifier.encoder(ids, segments), regressor.encoder(ids, segments))
    before = regressor(ids, segments)
    with torch.no_grad():
        regressor.head.weight.mul_(2)
    close(regressor(ids, segments) - regressor.head.bias, 2 * (before - regressor.head.bias))


# As printed: systems by columns, and the average.
PRINTED = """
Pre-OpenAI SOTA   80.6/80.1 66.1 82.3 93.2 35.0 81.0 86.0 61.7 74.0
BiLSTM+ELMo+Attn  76.4/76.1 64.8 79.9 90.4 36.0 73.3 84.9 56.8 71.0
OpenAI GPT        82.1/81.4 70.3 88.1 91.3 45.4 80.0 82.3 56.0 75.2
BERT-base         84.6/83.4 71.2 90.1 93.5 52.1 85.8 88.9 66.4 79.6
BERT-large        86.7/85.9 72.1 91.1 94.9 60.5 86.5 89.3 70.1 81.9
"""
TABLE = {line[:17].strip(): [float(cell) for cell in line[17:].replace("/", " ").split()] for line in
         PRINTED.strip().splitlines()}  # fmt: skip


@pytest.mark.claim("F20")
def test_results_table_matches_the_paper() -> None:
    assert COLUMNS == ("MNLI-m", "MNLI-mm", "QQP", "QNLI", "SST-2", "CoLA", "STS-B", "MRPC", "RTE")
    assert {system: list(scores) for system, scores in RESULTS.items()} == {
        system: cells[:-1] for system, cells in TABLE.items()
    }
    assert sum(map(len, RESULTS.values())) == 45
    assert list(RESULTS) == list(TABLE)


@pytest.mark.claim("F20")
@pytest.mark.claim("X12")
@pytest.mark.parametrize("system", TABLE)
def test_average_column_is_the_mean_of_nine_scores(system: str) -> None:
    scores = dict(zip(COLUMNS, RESULTS[system], strict=True))
    assert len(scores) == 9
    assert round(glue_average(scores), 1) == TABLE[system][-1]
    with pytest.raises(ValueError, match="no average without MNLI-mm"):
        glue_average({name: value for name, value in scores.items() if name != "MNLI-mm"})


@pytest.mark.claim("F21")
def test_twelve_tasks_are_listed_with_sizes() -> None:
    assert len(TASKS) == 12 and TASKS.keys() == FILES.keys()
    assert [TASKS[column].examples for column in ("MNLI", "QQP", "QNLI", "SST-2", "CoLA", "STS-B", "MRPC", "RTE")] == [
        392_000, 363_000, 108_000, 67_000, 8_500, 5_700, 3_500, 2_500,
    ]  # fmt: skip
    others = {"SQuAD v1.1": 88_000, "SQuAD v2.0": 130_000, "SWAG": 73_000, "CoNLL-2003": 14_000}  # as published
    assert {name: TASKS[name].examples for name in others} == others


@pytest.fixture(scope="module")
def pretrained_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short pre-training run."""
    folder = tmp_path_factory.mktemp("bert")
    pairs = NumberWords(train=300, valid=1, test=1).pairs("train")
    (folder / "text.txt").write_text("\n".join(f"{source}. {target}.\n" * 2 for source, target in pairs))
    part = "{kind: text, files: [text.txt], between: blank_lines}"
    data = f"data={{kind: documents, root: {folder}, train: [{part}], test: [{part}], held_out: 0.1}}"
    list(train(load_recipe("bert-prose", [data, *PRETRAINING]), folder / "run"))
    return folder / "run"


def fine_tune(start: Path, run: Path, *more: str) -> dict[str, Tensor]:
    """The weights after a few fine-tuning steps, starting from a folder."""
    recipe = load_recipe("number-languages", [*TUNING, f"start={{folder: {start}}}", *more])
    list(train(recipe, run))
    return load_file(run / "model" / "model.safetensors")


@pytest.mark.claim("F24")
def test_two_recipes_start_from_one_checkpoint(pretrained_run: Path, tmp_path: Path) -> None:
    there = load_file(pretrained_run / "model" / "model.safetensors")
    still = fine_tune(pretrained_run, tmp_path / "still", "train.optimizer.lr=1e-30", "train.optimizer.weight_decay=0")
    for name, weight in there.items():
        if not name.startswith(("masked_words.", "next_sentence.")):
            torch.testing.assert_close(still[f"encoder.{name}"], weight, atol=1e-20, rtol=0)
    assert (tmp_path / "still" / "tokenizer.json").read_text() == (pretrained_run / "tokenizer.json").read_text()


@pytest.mark.claim("L2")
@pytest.mark.claim("F25")
def test_frozen_features_stay_and_fine_tuned_ones_change(pretrained_run: Path, tmp_path: Path) -> None:
    there = load_file(pretrained_run / "model" / "model.safetensors")
    for freeze in (True, False):
        run = tmp_path / f"{freeze}"
        found = fine_tune(pretrained_run, run, f"model.freeze={str(freeze).lower()}")
        same = [torch.equal(found[f"encoder.{name}"], there[name]) for name in there if f"encoder.{name}" in found]
        assert all(same) if freeze else not any(same)
        labelled = load(run).classify(["vierhundert", "four hundred"])
        assert all(sum(one.probabilities.values()) == pytest.approx(1) for one in labelled)
