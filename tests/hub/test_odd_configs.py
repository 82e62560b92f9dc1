"""Odd values in published config files: read as `transformers` reads them, or one error that names the key."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from bert_folders import PIECES, change, random_bert, save_folder
from gpt_folders import gpt_folder, random_gpt
from test_convert import convert

import heedful
from classifier_folders import FAMILIES, TEXTS
from classifier_folders import folder as random_folder
from heedful.errors import UserError
from heedful.hub import pretrained, write
from heedful.hub.loading import task_model
from tolerance import close

TEXT = "a bad cab, a"
ODD: list[Any] = [
    None, True, False, -1, 0, 1, 2, 3, 10**9, 10**30, 0.5, -0.5, 1e308, "", "a", "gelu", "\ud800", [], [1], ["a"], {},
    {"0": "a"}, {"a": 1}, [[]], {"0": None}, {"1": "x"}, "BertModel", ["BertModel"], {"0": ""}, {"0": "y" * 2000},
    {"0": "a", "1": "a"},
]  # fmt: skip


def with_labels(kind: str, labels: list[str], folder: Path) -> Path:
    model = random_bert(kind, num_labels=len(labels))
    with torch.no_grad():  # so that outputs depend on the words
        model.bert.embeddings.word_embeddings.weight.mul_(20)
        model.classifier.bias.zero_()
    return change(save_folder(model, folder), id2label={str(number): label for number, label in enumerate(labels)})


def test_tagger_with_one_label_round_trips(tmp_path: Path) -> None:
    folder = with_labels("BertForTokenClassification", ["NAME"], tmp_path / "one")
    found = pretrained(folder)
    write(tmp_path / "back", found)
    for place in (folder, tmp_path / "back"):
        (marked,) = heedful.load(place, "cpu").tag([TEXT])
        assert len(marked.words) == 5
        theirs = transformers.BertForTokenClassification.from_pretrained(place)
        assert theirs.config.id2label == {0: "NAME"}


@pytest.mark.parametrize(
    "labels",
    [
        ["NOUN", "VERB", "DET"],
        ["O", "PER", "LOC"],
        ["B_PER", "O", "I_PER"],
        ["LABEL_0", "LABEL_1", "LABEL_2"],
        ["o", "i-per", "b-per"],
        ["O", "B-PER", "I-PER", "E-PER", "S-PER"],
        ["I-LOC", "O", "I-PER"],
    ],
)
def test_tagger_labels_round_trip(labels: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    folder = with_labels("BertForTokenClassification", labels, tmp_path / "theirs")
    theirs = transformers.BertForTokenClassification.from_pretrained(folder)
    words = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", ".", ","]
    ids = torch.tensor([[2, *(PIECES.index(word) for word in words), 3]])
    with torch.no_grad():
        right = tuple(labels[number] for number in theirs(ids).logits[0, 1:-1].argmax(-1).tolist())
    assert len(set(right)) > 1
    write(tmp_path / "hf", pretrained(folder))
    assert convert(monkeypatch, folder, tmp_path / "ours") == 0
    assert convert(monkeypatch, tmp_path / "ours", tmp_path / "back") == 0
    for place in (folder, tmp_path / "hf", tmp_path / "ours", tmp_path / "back"):
        marker = heedful.load(place, "cpu")
        assert marker.labels == tuple(labels)
        (marked,) = marker.tag([words])
        assert marked.tags == right and bool(marked.entities) == (labels[2] == "I-PER")
    known = json.loads((tmp_path / "back" / "config.json").read_text())["id2label"]
    assert known == {str(number): label for number, label in enumerate(labels)}


@pytest.mark.parametrize("named", [True, False])
def test_classifier_with_one_output_is_a_regressor_as_in_transformers(named: bool, tmp_path: Path) -> None:
    folder = with_labels("BertForSequenceClassification", ["score"], tmp_path / "one")
    theirs = transformers.BertForSequenceClassification.from_pretrained(folder)
    if not named:
        change(folder, architectures=None, id2label=None)
    regressor = heedful.load(folder, "cpu")
    ids = [2, *(PIECES.index(piece) for piece in ("a", "b", "##a", "##d")), 3]
    with torch.no_grad():
        right = theirs(torch.tensor([ids])).logits[0, 0]
    close(torch.tensor(regressor.predict(["a bad"])[0].value), right)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("problem", "outputs", "kind"),
    [
        (None, 3, "classifier"),
        ("single_label_classification", 3, "classifier"),
        ("multi_label_classification", 3, "multi_label"),
        ("multi_label_classification", 1, "multi_label"),
        ("regression", 1, "regressor"),
        ("regression", 3, "regressor"),
    ],
)
def test_problem_type_decides_where_no_architecture_is_named(
    family: str, problem: str | None, outputs: int, kind: str, tmp_path: Path
) -> None:
    random_folder(tmp_path, family, random.Random(0), problem, outputs)
    named = heedful.load(tmp_path, "cpu")
    change(tmp_path, architectures=None)
    head = pretrained(tmp_path).head
    assert head is not None and head.kind == kind
    assert heedful.load(tmp_path, "cpu").predict(TEXTS) == named.predict(TEXTS)
    change(tmp_path, problem_type="ranking")
    with pytest.raises(UserError, match="not supported: problem_type"):
        pretrained(tmp_path)


@pytest.mark.parametrize("kind", ["BertForTokenClassification", "BertForSequenceClassification"])
@pytest.mark.parametrize(
    "names",
    [
        ["a", ""],
        ["a", "b" * 1001],
        ["a", "a"],
        {"0": "a", "2": "b"},
        {"0": "a", "x": "b"},
        ["a", 3],
        [["a"], "b"],
        3,
    ],
)
def test_invalid_label_names_are_rejected_with_file_and_key(kind: str, names: Any, tmp_path: Path) -> None:
    given = {str(number): name for number, name in enumerate(names)} if isinstance(names, list) else names
    folder = change(save_folder(random_bert(kind, num_labels=2), tmp_path / "theirs"), id2label=given)
    with pytest.raises(UserError) as refused:
        heedful.load(folder, "cpu")
    assert refused.value.where == f"{folder / 'config.json'}: id2label"
    assert refused.value.found is not None and refused.value.expected is not None


def all_keys(folder: Path) -> list[str]:
    more = ("problem_type", "num_labels", "id2label", "hidden_act", "n_inner", "afn", "tie_word_embeddings")
    return sorted({*json.loads((folder / "config.json").read_text()), *more} - {"model_type"})


def try_values(kind: str, values: int, tmp_path: Path) -> None:
    """Set odd values for each key, and load the folder."""
    rng, folder = random.Random(kind), tmp_path / "folder"
    if kind == "GPT2LMHeadModel":
        gpt_folder(random_gpt(), folder)
    else:
        save_folder(random_bert(kind), folder)
    text, errors = (folder / "config.json").read_text(), list[str]()
    for key in all_keys(folder):
        for value in rng.sample(ODD, values):
            (folder / "config.json").write_text(json.dumps({**json.loads(text), key: value}))
            try:
                heedful.load(folder, "cpu")
            except UserError as error:
                errors.append(str(error))
    assert len(errors) > 10 and all(str(folder) in error for error in errors)


KINDS = ["BertForTokenClassification", "BertForSequenceClassification", "BertModel", "GPT2LMHeadModel"]


@pytest.mark.parametrize("kind", KINDS)
def test_odd_config_values_are_accepted_or_rejected_by_name(kind: str, tmp_path: Path) -> None:
    try_values(kind, 1, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_random_config_values_are_accepted_or_rejected_by_name(kind: str, tmp_path: Path) -> None:
    try_values(kind, len(ODD), tmp_path)


@pytest.mark.parametrize("labels", [3, [], ["a", ""], ["a", "a"], [1, 2], None, "ab"])
def test_labels_in_a_model_folder_of_heedful_are_checked(labels: Any, tmp_path: Path) -> None:
    found = pretrained(save_folder(random_bert("BertForTokenClassification"), tmp_path / "theirs"))
    assert task_model(found).task == "tagging"
    from heedful.cli.convert import write_own

    write_own(tmp_path / "ours", found, tmp_path)
    file = tmp_path / "ours" / "config.json"
    settings = json.loads(file.read_text())
    settings["model"]["labels"] = labels
    (tmp_path / "ours" / "manifest.json").unlink()
    file.write_text(json.dumps(settings))
    with pytest.raises(UserError, match="labels"):
        heedful.load(tmp_path / "ours", "cpu")
    if labels is not None:
        with pytest.raises(UserError, match="labels"):
            pretrained(tmp_path / "ours")
    shutil.rmtree(tmp_path / "ours")
