"""Runs of the convolutional text classifier: word vectors, training, loading, and errors."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from heedful.data.tokenizers.vocabulary import TextVocab, split_words
from heedful.data.word_vectors import WordVectors
from heedful.errors import UserError
from heedful.runs.load import load, read_recipe
from heedful.runs.recipe import check_recipe, load_recipe
from heedful.runs.train import Finished, Started, train
from heedful.tasks import task_of
from heedful.tasks.base import Evaluated
from heedful.tasks.classification.predictor import TextClassifier
from tolerance import near

KINDS = (("good", "fine", "great"), ("bad", "poor", "dull"))
SMALL = [
    "train.batch_examples=8", "train.budget={steps: 60}", "train.evaluate_every=30", "train.save_every=30",
    "train.optimizer.lr=1e-2", "train.schedule.warmup=1", "train.samples=2", "train.device=cpu", "model.filters=8",
    "model.width=6", "model.dropout=0.1",
]  # fmt: skip


@pytest.fixture
def settings(tmp_path: Path) -> list[str]:
    """Overrides for generated texts, good or bad, and word vectors, some of words that no text has."""
    for name, size in (("train", 48), ("valid", 12)):
        rows = [f"It's a {KINDS[row % 2][row % 3]} film!\t{'yn'[row % 2]}" for row in range(size)]
        (tmp_path / f"{name}.tsv").write_text("text\tlabel\n" + "\n".join(rows) + "\n")
    words = ["film", "good", "fine", "great", "bad", "poor", "dull", "superb", "awful"]
    matrix = np.random.default_rng(0).standard_normal((len(words), 6)).astype(np.float32) / 4
    matrix[:, 0] = [0, 1, 1, 1, -1, -1, -1, 1, -1]
    WordVectors(words, matrix).save(tmp_path / "vectors.txt", "glove")
    files = "train: train.tsv, valid: valid.tsv, text: text, label: label"
    file = tmp_path / "vectors.txt"
    return [*SMALL, f"data={{kind: tsv, root: {tmp_path}, {files}}}", f"embedding_init.file={file}"]


def test_texts_are_tokenized_as_in_the_penn_treebank() -> None:
    assert split_words("It's well-made; I don't CARE... -- (2 of 3)", "words", True) == [
        "it", "'s", "well-made", ";", "i", "do", "n't", "care", "...", "--", "(", "2", "of", "3", ")",
    ]  # fmt: skip
    already = "it 's a charming and often affecting journey , is n't it ?"
    assert split_words(already, "words", True) == already.split()
    assert split_words("aB\udcff", "characters", False) == ["a", "B", "\ufffd"]


@pytest.mark.claim("M20")
def test_run_starts_from_word_vectors_and_knows_their_words(settings: list[str], tmp_path: Path) -> None:
    recipe, run = load_recipe("sst2-conv", settings), tmp_path / "run"
    check_recipe(recipe, ("train", "valid"))
    events = list(train(recipe, run))
    started = next(event for event in events if isinstance(event, Started))
    assert any("9 of" in note and "vectors.txt" in note for note in started.notes)
    last = [event for event in events if isinstance(event, Evaluated)][-1]
    assert {score.name: score.value for score in last.scores}["accuracy"] == 100
    assert isinstance(events[-1], Finished)
    classifier = load(run)
    assert isinstance(classifier, TextClassifier)
    texts = ["it's a great film", "a dull, DULL film", "superb", "awful"]
    said = classifier.classify(texts)
    assert [one.label for one in said] == ["y", "n", "y", "n"]
    for text, together in zip(texts, said, strict=True):
        (alone,) = classifier.classify([text])
        assert alone.probability == near(together.probability, 16)
    assert classifier.classify([""])[0].label in "yn"


def test_model_without_an_encoder_classifies(settings: list[str], tmp_path: Path) -> None:
    both = [
        load_recipe("sst2-conv", [*settings, f"task.kind={kind}", "train.budget={steps: 2}"])
        for kind in ("text_classification", "classification")
    ]
    for recipe in both:
        list(train(recipe, tmp_path / recipe.task.kind))
    loaded = [load(tmp_path / recipe.task.kind) for recipe in both]
    for one, two in zip(*(found.model.state_dict().values() for found in loaded), strict=True):
        assert torch.equal(one, two)
    assert [type(found) for found in loaded] == [TextClassifier, TextClassifier]
    kept = read_recipe(tmp_path / "classification")
    assert kept == both[1] and kept.model.kind == "conv_classifier"


def test_truncated_texts_are_noted(settings: list[str]) -> None:
    task = task_of(load_recipe("sst2-conv", [*settings, "model.context=6"]))
    read = task.read("valid")
    assert task.notes(task.encode(read, task.learn(read))) == [
        "12 of 12 texts are longer than 6 tokens, and are truncated"
    ]


@pytest.mark.claim("M20")
def test_initial_rows_equal_the_file_bit_for_bit(settings: list[str], tmp_path: Path) -> None:
    from heedful.data.word_vectors import load_vectors
    from heedful.models import build

    task = task_of(load_recipe("sst2-conv", settings))
    words = task.learn(task.read("train"))
    assert isinstance(words, TextVocab)
    assert words.labels == ("n", "y")
    torch.manual_seed(0)
    model = build(task.fitted(task.recipe.model, words, "model"))
    drawn = model.tokens.weight.detach().clone()
    task.begin(model, words)
    vectors = load_vectors(tmp_path / "vectors.txt")
    for number, word in enumerate(words.words):
        row = model.tokens.weight[number].detach()
        assert row.numpy().tobytes() == (vectors[word] if word in vectors else drawn[number].numpy()).tobytes()


def test_changed_vectors_are_rejected(settings: list[str], tmp_path: Path) -> None:
    from heedful.models import build

    task = task_of(load_recipe("sst2-conv", settings))
    words = task.learn(task.read("train"))
    model = build(task.fitted(task.recipe.model, words, "model"))
    file = tmp_path / "vectors.txt"
    file.write_text(file.read_text().replace("good 1.0", "good 2.0"))
    with pytest.raises(UserError, match="not the word vectors that the run started with"):
        task.begin(model, words)


def test_mismatched_or_missing_vectors_are_reported(settings: list[str]) -> None:
    task = task_of(load_recipe("sst2-conv", [*settings, "model.width=5"]))
    read = task.read("train")
    with pytest.raises(UserError, match="width of the word vectors"):
        task.learn(read)
    with pytest.raises(UserError, match="a file is not as the recipe says") as raised:
        check_recipe(load_recipe("sst2-conv", [*settings, "embedding_init.file=none"]), ("train", "valid"))
    assert "embedding_init=null" in str(raised.value)


def test_run_resumes_bit_for_bit(settings: list[str], tmp_path: Path) -> None:
    recipe = load_recipe("sst2-conv", settings)
    list(train(recipe, tmp_path / "whole"))
    steps = iter(range(10_000))
    list(train(recipe, tmp_path / "parts", stop=lambda: next(steps) > 20))
    list(train(recipe, tmp_path / "parts"))
    assert (tmp_path / "whole/model/model.safetensors").read_bytes() == (
        tmp_path / "parts/model/model.safetensors"
    ).read_bytes()


def test_edited_vocabulary_is_rejected() -> None:
    words = TextVocab.learn(["a b"], ("x", "y"), "words", True, 1)
    assert TextVocab(words.json, "w").sha256 == words.sha256
    good = json.loads(words.json)
    for change in ({"words": ["a"]}, {"labels": ["x"]}, {"kind": "bpe"}, {"lowercase": 1}, {"vectors": 3}, {"more": 1}):
        with pytest.raises(UserError, match="damaged or was not written by Heedful"):
            TextVocab(json.dumps({**good, **change}), "w")
    with pytest.raises(UserError, match="no word to build a vocabulary from"):
        TextVocab.learn([" "], ("x", "y"), "words", True, 1)
