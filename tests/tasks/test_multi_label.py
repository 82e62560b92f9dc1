"""Multi-label classification: folders of `transformers` both ways, the loss, scores, training, and the command line."""

from __future__ import annotations

import json
import random
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import sklearn.metrics
import torch
import transformers

import heedful
from classifier_folders import FAMILIES, TEXTS, TOKENIZER, WORDS, folder, theirs_on
from heedful.cli.app import main
from heedful.data.labelled.batches import encode_texts
from heedful.errors import UserError
from heedful.hub import pretrained, write
from heedful.runs.load import load
from heedful.runs.recipe import recipe_of
from heedful.runs.train import train
from heedful.tasks.classification.predictor import outputs
from heedful.tasks.imbalance import label_weights
from heedful.tasks.multi_label.predictor import MultiLabelClassifier, label_loss, label_scores
from tolerance import close

Run = Callable[..., tuple[int, str, str]]


@pytest.mark.parametrize("seed", [pytest.param(at, marks=[pytest.mark.slow] if at > 3 else []) for at in range(24)])
def test_folders_of_transformers_give_the_same_probabilities_and_round_trip(seed: int, tmp_path: Path) -> None:
    torch.manual_seed(seed)
    rng, family = random.Random(seed), list(FAMILIES)[seed % len(FAMILIES)]
    count = rng.randint(1, 6)
    names = {at: f"label {at}" for at in range(count)}
    more = {} if seed % 3 else {"id2label": names, "label2id": {name: at for at, name in names.items()}}
    model = folder(tmp_path / "theirs", family, rng, "multi_label_classification", count, **more)
    right = theirs_on(model, family).sigmoid()  # (N, C)
    ours = heedful.load(tmp_path / "theirs", MultiLabelClassifier, "cpu")
    found = torch.tensor([list(one.probabilities.values()) for one in ours.predict(TEXTS)])
    torch.testing.assert_close(found, right, rtol=0, atol=1e-5 * float(right.max()))
    assert ours.labels == (tuple(names.values()) if more else tuple(f"LABEL_{at}" for at in range(count)))
    write(tmp_path / "back", pretrained(tmp_path / "theirs"))
    before, after = (safetensors.torch.load_file(tmp_path / at / "model.safetensors") for at in ("theirs", "back"))
    assert all(torch.equal(before[name], x) for name, x in after.items())
    assert all("pooler" in name for name in before.keys() - after.keys())  # of a BigBird, whose head does not read it
    again = getattr(transformers, f"{family}ForSequenceClassification").from_pretrained(tmp_path / "back").eval()
    assert (again.config.problem_type, again.config.num_labels) == ("multi_label_classification", count)
    close(theirs_on(again, family).sigmoid(), right)


def test_threshold_chooses_the_labels_in_the_order_of_their_probability(tmp_path: Path) -> None:
    torch.manual_seed(0)
    folder(tmp_path, "Bert", random.Random(0), "multi_label_classification", 5)
    ours = heedful.load(tmp_path, MultiLabelClassifier, "cpu")
    for threshold in (0.0, 0.3, 0.5, 0.9, 1.0):
        for one in ours.predict(TEXTS, threshold):
            shares = [one.probabilities[name] for name in one.labels]
            assert shares == sorted(shares, reverse=True)
            assert set(one.labels) == {name for name, share in one.probabilities.items() if share >= threshold}
    with pytest.raises(UserError, match="no probability"):
        ours.predict(TEXTS, 1.5)


@pytest.mark.parametrize("packed", [False, True])
def test_loss_and_gradients_are_those_of_transformers(packed: bool, tmp_path: Path) -> None:
    torch.manual_seed(1)
    dropouts = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    theirs = folder(tmp_path, "Bert", random.Random(3), "multi_label_classification", 3, **dropouts)
    ours: Any = heedful.load(tmp_path, "cpu").model
    rng = np.random.default_rng(0)
    texts = [(" ".join(rng.choice(WORDS, 1 + row % 7)), None) for row in range(8)]
    encoded = encode_texts(texts, rng.integers(0, 2, (8, 3)), TOKENIZER, 32)
    batch = encoded.batch(np.arange(8))
    loss = label_loss(ours, encoded.pack(np.arange(8), 128, 10) if packed else batch)
    real = (torch.arange(batch.ids.shape[1]) < batch.lengths[:, None]).long()
    right = theirs(batch.ids, attention_mask=real, labels=batch.targets.float()).loss
    assert int(loss.count) == 8
    close(loss.total / loss.count, right)
    (loss.total / loss.count).backward()
    right.backward()
    close(ours.head.weight.grad, theirs.classifier.weight.grad)
    close(ours.encoder.tokens.weight.grad, theirs.bert.embeddings.word_embeddings.weight.grad)


def test_weights_are_those_of_the_positive_class_in_torch(tmp_path: Path) -> None:
    torch.manual_seed(2)
    folder(tmp_path, "Bert", random.Random(3), "multi_label_classification", 3)
    ours: Any = heedful.load(tmp_path, "cpu").model
    rng = np.random.default_rng(1)
    encoded = encode_texts(
        [(str(rng.choice(WORDS)), None) for _ in range(8)], rng.integers(0, 2, (8, 3)), TOKENIZER, 32
    )
    batch, targets = encoded.batch(np.arange(8)), torch.from_numpy(encoded.targets).float()
    for wanted in ({"LABEL_1": 4.0}, "balanced"):
        weights = label_weights(ours, encoded.targets, ("LABEL_0", "LABEL_1", "LABEL_2"), wanted)
        assert weights is not None
        if wanted == "balanced":  # texts with a label count as much in all as the others
            close(weights * targets.sum(0), (1 - targets).sum(0))
        else:
            assert weights.tolist() == [1, 4, 1]
        loss, plain = label_loss(ours, batch, weights), label_loss(ours, batch)
        each = torch.nn.BCEWithLogitsLoss(pos_weight=weights, reduction="none")(outputs(ours, batch), targets)
        close(loss.total, each.mean(-1).sum())
        close(loss.plain, plain.total)
        assert not torch.isclose(loss.total, plain.total)
    assert label_weights(ours, encoded.targets, ("a", "b", "c"), None) is None


def test_scores_are_those_of_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    for labels in (2, 3, 7):
        has = rng.random(labels) < 0.8
        right, found = (rng.integers(0, 2, (40, labels)) * has for _ in range(2))
        micro, macro, exact = label_scores(found, right)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for one in (micro, macro):
                how = one.name.removesuffix("_f1")
                f1 = sklearn.metrics.f1_score(right, found, average=how, zero_division=np.nan)
                assert one.value == pytest.approx(0.0 if np.isnan(f1) else 100 * f1)
        assert exact.value == pytest.approx(100 * sklearn.metrics.accuracy_score(right, found))


@pytest.fixture
def settings(tmp_path: Path) -> str:
    """A recipe of texts with the labels of their words: cat, dog, both or none."""
    rng = random.Random(0)
    for name, size in (("train", 192), ("valid", 16)):
        rows = []
        for _ in range(size):
            words = rng.sample(WORDS[:8], 2)
            rows.append((" ".join(words), ", ".join(word for word in ("cat", "dog") if word in words)))
        text = "".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in rows)
        (tmp_path / f"{name}.jsonl").write_text(text)
    return f"""
task: {{kind: multi_label}}
data: {{kind: jsonl, root: {tmp_path}, train: train.jsonl, valid: valid.jsonl}}
tokenizer: {{kind: wordpiece, vocab: 60}}
model:
  kind: multi_label
  encoder: {{kind: bert, width: 32, heads: 2, layers: 1, hidden: 32, context: 16, dropout: 0.0, attention_dropout: 0.0}}
train:
  budget: {{steps: 140}}
  batch_examples: 16
  evaluate_every: 140
  save_every: 140
  samples: 2
  device: cpu
  optimizer: {{kind: adamw, lr: 5e-3}}
"""


def test_run_learns_labels_and_is_exported(
    settings: str, tmp_path: Path, no_loss_curve: None, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    recipe, run = recipe_of(settings, "test"), tmp_path / "run"
    list(train(recipe, run))
    ours = load(run, MultiLabelClassifier, "cpu")
    assert ours.labels == ("cat", "dog")
    scores = ours.evaluate(tmp_path / "valid.jsonl")
    assert scores.scores["micro_f1"] > 90 and scores.count == 16
    assert ours.evaluate([("a cat", "cat"), ("home", "")]).count == 2
    with pytest.raises(UserError, match="unknown label"):
        ours.evaluate([("a cat", "bird")])
    write(tmp_path / "hf", pretrained(run))
    again = load(tmp_path / "hf", MultiLabelClassifier, "cpu")
    assert again.predict(TEXTS) == ours.predict(TEXTS)
    monkeypatch.setattr(sys, "argv", ["heedful", "classify", str(run), "cat dog", "a big"])
    with pytest.raises(SystemExit) as ended:
        main()
    lines = capsys.readouterr().out.splitlines()
    assert ended.value.code in (0, None)
    assert [sorted(word for word in ("cat", "dog") if word in line[: line.rindex("  ")]) for line in lines] == [
        ["cat", "dog"],
        [],
    ]


def test_rare_label_is_found_with_weights(settings: str, tmp_path: Path, no_loss_curve: None) -> None:
    rng, rows = random.Random(0), []
    for row in range(200):
        words = [*rng.sample(WORDS[2:8], 2), *(["cat"] if row % 20 == 0 else [])]
        rows.append({"text": " ".join(words), "label": "cat" if "cat" in words else ""})
    for name in ("train", "valid"):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    recall = {}
    for name, weights in (("plain", "null"), ("balanced", "balanced"), ("named", "{cat: 19.0}")):
        changed = settings.replace("kind: multi_label}", f"kind: multi_label, class_weights: {weights}}}", 1)
        list(train(recipe_of(changed.replace("steps: 140", "steps: 25"), "test"), tmp_path / name))
        predictor = load(tmp_path / name, MultiLabelClassifier, "cpu")
        found = [bool(one.labels) for one in predictor.predict([row["text"] for row in rows])]
        recall[name] = sum(found[::20]) / len(found[::20])
    assert recall["plain"] == 0 and recall["balanced"] == recall["named"] == 1
    wrong = settings.replace("kind: multi_label}", "kind: multi_label, class_weights: {bird: 2.0}}", 1)
    with pytest.raises(UserError, match="no such class"):
        list(train(recipe_of(wrong, "test"), tmp_path / "wrong"))


def test_texts_without_any_label_are_refused(settings: str, tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text('{"text": "a cat", "label": ""}\n')
    with pytest.raises(UserError, match="no text has a label"):
        list(train(recipe_of(settings, "test"), tmp_path / "run"))
