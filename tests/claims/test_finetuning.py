"""Rows F13, F16, F20, F21, F24, F25, L2 and L4 of the claim sheet: one encoder, many tasks, one new layer each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from heedful.data.glue import COLUMNS, RESULTS, TASKS, glue_average
from heedful.experiment import train
from heedful.loading import load
from heedful.models import build
from heedful.models.configs import AnswererConfig, BertConfig, ClassifierConfig, RegressorConfig, TaggerConfig
from heedful.recipe import KINDS, load_recipe
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
def test_a_text_or_a_pair_is_classified_from_the_first_token_by_one_dense_layer(classes: int) -> None:
    model: Any = build(ClassifierConfig(encoder=ENCODER, labels=tuple("abc"[:classes]))).eval()
    ids, segments = tokens()
    assert model(ids).shape == model(ids, segments).shape == (3, classes)
    first = model.encoder(ids, segments)[:, 0]
    by_hand = (first @ model.encoder.pooler.dense.weight.T + model.encoder.pooler.dense.bias).tanh()
    torch.testing.assert_close(model(ids, segments), by_hand @ model.head.weight.T + model.head.bias)
    assert model.head.weight.shape == (classes, WIDTH)


@pytest.mark.claim("F13")
@pytest.mark.parametrize(
    ("name", "kind", "pair", "metric"),
    [
        ("sst2", "classification", False, "accuracy"),
        ("cola", "classification", False, "matthews"),
        ("mrpc", "classification", True, "f1"),
        ("stsb", "regression", True, "spearman"),
    ],
)
def test_there_is_a_recipe_for_each_task_of_glue_at_hand(name: str, kind: str, pair: bool, metric: str) -> None:
    recipe: Any = load_recipe(name)
    assert (recipe.task.kind, recipe.data.pair is not None, recipe.task.metric) == (kind, pair, metric)
    task = next(TASKS[task] for task in TASKS if task.replace("-", "").lower() == name)
    assert (task.kind, task.reads == "pair", task.metric) == (kind, pair, metric)


@pytest.mark.claim("F16")
@pytest.mark.parametrize(
    ("config", "added"),
    [
        (ClassifierConfig(encoder=ENCODER, labels=("a", "b", "c")), 3 * WIDTH + 3),
        (RegressorConfig(encoder=ENCODER), WIDTH + 1),
        (TaggerConfig(encoder=ENCODER, labels=("O", "B-X", "I-X")), 3 * WIDTH + 3),
        (AnswererConfig(encoder=ENCODER), 2 * WIDTH + 2),
    ],
    ids=lambda value: getattr(value, "kind", None),
)
def test_a_task_adds_one_output_layer_and_nothing_else(config: Any, added: int) -> None:
    new = {name: weight for name, weight in build(config).named_parameters() if not name.startswith("encoder.")}
    assert {name.split(".")[-1] for name in new} == {"weight", "bias"} and len(new) == 2
    assert sum(weight.numel() for weight in new.values()) == added


@pytest.mark.claim("L4")
def test_the_same_encoder_carries_any_head() -> None:
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
def test_the_table_has_every_cell_as_printed() -> None:
    assert COLUMNS == ("MNLI-m", "MNLI-mm", "QQP", "QNLI", "SST-2", "CoLA", "STS-B", "MRPC", "RTE")
    assert {system: list(scores) for system, scores in RESULTS.items()} == {
        system: cells[:-1] for system, cells in TABLE.items()
    }
    assert sum(map(len, RESULTS.values())) == 45
    assert list(RESULTS) == list(TABLE)


@pytest.mark.claim("F20")
@pytest.mark.claim("X12")
@pytest.mark.parametrize("system", TABLE)
def test_the_last_column_of_the_table_is_the_mean_of_nine(system: str) -> None:
    scores = dict(zip(COLUMNS, RESULTS[system], strict=True))
    assert len(scores) == 9
    assert round(glue_average(scores), 1) == TABLE[system][-1]
    with pytest.raises(ValueError, match="no average without MNLI-mm"):
        glue_average({name: value for name, value in scores.items() if name != "MNLI-mm"})


@pytest.mark.claim("F21")
def test_the_twelve_tasks_are_listed_and_each_has_a_kind_of_recipe() -> None:
    assert len(TASKS) == 12
    assert {task.kind for task in TASKS.values()} == {"classification", "regression", "tagging", "answering"}
    assert all(task.kind in KINDS for task in TASKS.values())
    assert [TASKS[column].examples for column in ("MNLI", "QQP", "QNLI", "SST-2", "CoLA", "STS-B", "MRPC", "RTE")] == [
        392_000, 363_000, 108_000, 67_000, 8_500, 5_700, 3_500, 2_500,
    ]  # fmt: skip


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of pre-training, however short."""
    run = tmp_path_factory.mktemp("bert") / "run"
    list(train(load_recipe("bert-prose", PRETRAINING), run))
    return run


def tuned(start: Path, run: Path, *more: str) -> dict[str, Tensor]:
    """The weights after a few steps on a task with labels, from a folder."""
    recipe = load_recipe("number-languages", [*TUNING, f"start={{folder: {start}}}", *more])
    list(train(recipe, run))
    return load_file(run / "model" / "model.safetensors")


@pytest.mark.claim("F24")
def test_two_recipes_share_one_checkpoint(pretrained: Path, tmp_path: Path) -> None:
    there = load_file(pretrained / "model" / "model.safetensors")
    still = tuned(pretrained, tmp_path / "still", "train.optimizer.lr=1e-30", "train.optimizer.weight_decay=0")
    for name, weight in there.items():
        if not name.startswith(("masked_words.", "next_sentence.")):
            torch.testing.assert_close(still[f"encoder.{name}"], weight, atol=1e-20, rtol=0)
    assert (tmp_path / "still" / "tokenizer.json").read_text() == (pretrained / "tokenizer.json").read_text()


@pytest.mark.claim("L2")
@pytest.mark.claim("F25")
def test_features_stay_as_they_are_and_fine_tuning_changes_them(pretrained: Path, tmp_path: Path) -> None:
    there = load_file(pretrained / "model" / "model.safetensors")
    for freeze in (True, False):
        run = tmp_path / f"{freeze}"
        found = tuned(pretrained, run, f"model.freeze={str(freeze).lower()}")
        same = [torch.equal(found[f"encoder.{name}"], there[name]) for name in there if f"encoder.{name}" in found]
        assert all(same) if freeze else not any(same)
        labelled = load(run).classify(["vierhundert", "four hundred"])
        assert all(sum(one.probabilities.values()) == pytest.approx(1) for one in labelled)
