"""Heads of GPT-2 for tasks, compared with `transformers`: equal logits, folders that round-trip, and fine-tuning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import transformers
from bert_folders import change
from gpt_folders import gpt_folder, pairs, random_gpt
from test_convert import convert
from torch import Tensor

import heedful
from heedful import load_recipe, train
from heedful.blocks.layouts import Padded
from heedful.errors import UserError
from heedful.hub import pretrained, write
from heedful.hub.loading import HEADS, task_model
from heedful.models import build
from tolerance import close

POOLED = "GPT2ForSequenceClassification"
KINDS = {  # of transformers: our head
    POOLED: "classifier",
    "GPT2ForTokenClassification": "tagger",
    "GPT2ForQuestionAnswering": "answerer",
}
PROBLEMS = {
    "classifier": "single_label_classification",
    "multi_label": "multi_label_classification",
    "regressor": "regression",
}
TEXTS = ["the child came home", "school", "", " and the house again,\n then", ("the child", " went to school")]
LABELS = {"id2label": {0: "no", 1: "maybe", 2: "yes"}, "label2id": {"no": 0, "maybe": 1, "yes": 2}}


def with_head(kind: str, folder: Path, **changes: Any) -> tuple[Any, Path]:
    """A model of `transformers` with a head, and its folder."""
    torch.manual_seed(0)
    settings = {"pad_token_id": pairs().end, **({} if "num_labels" in changes or "Question" in kind else LABELS)}
    model = random_gpt(kind, **{**settings, **changes})
    return model, gpt_folder(model, folder)


def inputs(side: str) -> dict[str, Tensor]:
    """Rows of different lengths, padded on one side; positions count no padding."""
    ids, lengths = torch.randint(0, 280, (4, 12)), torch.tensor([12, 5, 1, 9])
    place = torch.arange(12)
    real = place < lengths[:, None] if side == "right" else place >= 12 - lengths[:, None]
    return {
        "input_ids": ids.where(real, pairs().end), "attention_mask": real.long(),
        "position_ids": (real.cumsum(1) - 1).clamp(min=0),
    }  # fmt: skip


def logits(model: Any, head: str, given: dict[str, Tensor]) -> list[Tensor]:
    """Our logits of every row; of heads on tokens, of each of its tokens."""
    ids, real = given["input_ids"], given["attention_mask"] == 1
    layout, segments = Padded(real), torch.zeros_like(ids)
    if head == "tagger":
        found = model(ids, segments, layout, real.flatten().nonzero()[:, 0])
        return list(found.split(real.sum(1).tolist()))
    if head == "answerer":
        begins = torch.arange(len(ids)) * ids.shape[1] + real.int().argmax(1)
        return [
            row[:size]
            for row, size in zip(model(ids, segments, layout, begins, real.sum(1), 12), real.sum(1), strict=True)
        ]
    return list(model(ids, segments, layout))


def right_logits(results: Any, head: str, real: Tensor) -> list[Tensor]:
    """Those of `transformers`."""
    if head == "answerer":
        whole = torch.stack([results.start_logits, results.end_logits], -1)
        return [row[mask] for row, mask in zip(whole, real, strict=True)]
    if head == "tagger":
        return [row[mask] for row, mask in zip(results.logits, real, strict=True)]
    return list(results.logits.squeeze(-1) if head == "regressor" else results.logits)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize(
    ("kind", "head"),
    [*KINDS.items(), *(("GPT2ForSequenceClassification", head) for head in ("multi_label", "regressor"))],
)
def test_heads_of_gpt2_equal_transformers_and_round_trip(kind: str, head: str, side: str, tmp_path: Path) -> None:
    more = {"problem_type": PROBLEMS[head]} if head in PROBLEMS else {}
    more |= {"num_labels": 1} if head == "regressor" else {}
    theirs, folder = with_head(kind, tmp_path / "theirs", **more)
    found = pretrained(folder)
    assert found.head is not None and found.head.kind == head and not found.writes
    assert found.head.labels == (("no", "maybe", "yes") if head in ("classifier", "multi_label", "tagger") else ())
    task, config, tensors, unused = task_model(found)
    assert (task, unused) == (HEADS[head], ())
    model = build(config).eval()
    model.load_state_dict(tensors)
    given = inputs(side)
    with torch.no_grad():
        right = right_logits(theirs(**given), head, given["attention_mask"] == 1)
        ours = logits(model, head, given)
        largest = max(float(one.abs().max()) for one in right)
        for mine, its in zip(ours, right, strict=True):
            torch.testing.assert_close(mine, its, rtol=0, atol=1e-5 * largest)
        for row, whole in enumerate(ours):  # alone as in the batch
            real = given["attention_mask"][row] == 1
            alone = {name: value[row : row + 1, real] for name, value in given.items()}
            close(logits(model, head, alone)[0], whole)
    write(tmp_path / "back", found)
    before, after = (safetensors.torch.load_file(one / "model.safetensors") for one in (folder, tmp_path / "back"))
    assert before.keys() == after.keys() and all(torch.equal(before[name], value) for name, value in after.items())
    again = getattr(transformers, kind).from_pretrained(tmp_path / "back").eval()
    assert again.config.problem_type in (more.get("problem_type"), None) and again.config.pad_token_id == pairs().end
    with torch.no_grad():
        for mine, its in zip(right_logits(again(**given), head, given["attention_mask"] == 1), right, strict=True):
            torch.testing.assert_close(mine, its)


def test_a_published_classifier_predicts_as_the_pipeline_of_transformers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs, folder = with_head("GPT2ForSequenceClassification", tmp_path / "theirs")
    words = transformers.AutoTokenizer.from_pretrained(folder)
    assert (
        convert(monkeypatch, folder, tmp_path / "ours")
        == 0
        == convert(monkeypatch, tmp_path / "ours", tmp_path / "back")
    )
    for place in (folder, tmp_path / "ours", tmp_path / "back"):
        classifier = heedful.load(place, "cpu")
        for text, found in zip(TEXTS, classifier.classify(TEXTS), strict=True):
            ids = words(*(text if isinstance(text, tuple) else (text,)))["input_ids"] or [pairs().end]
            with torch.no_grad():
                right = theirs(torch.tensor([ids])).logits.softmax(-1)[0]
            close(torch.tensor(list(found.probabilities.values())), right)
            assert [*found.probabilities] == ["no", "maybe", "yes"]


def test_several_numbers_of_a_gpt2_are_those_of_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs, folder = with_head(POOLED, tmp_path / "theirs", num_labels=2, problem_type="regression")
    words = transformers.AutoTokenizer.from_pretrained(folder)
    for source, target in ((folder, tmp_path / "ours"), (tmp_path / "ours", tmp_path / "back")):
        assert convert(monkeypatch, source, target) == 0
    again = transformers.GPT2ForSequenceClassification.from_pretrained(tmp_path / "back")
    assert (again.config.problem_type, again.config.num_labels) == ("regression", 2)
    before, after = (safetensors.torch.load_file(one / "model.safetensors") for one in (folder, tmp_path / "back"))
    assert before.keys() == after.keys() and all(torch.equal(before[name], value) for name, value in after.items())
    with torch.no_grad():
        right = torch.cat([theirs(**words(text, return_tensors="pt")).logits for text in TEXTS[:2]])
    for place in (folder, tmp_path / "ours"):
        found = heedful.load(place, heedful.MultiRegressor, "cpu").predict(TEXTS[:2])
        close(torch.tensor([list(one.values.values()) for one in found]), right)


DATA = "text,label\nthe child came home,yes\nschool again,no\nthe house,yes\nthen home,no\n"


@pytest.mark.parametrize("start", ["GPT2LMHeadModel", "untied", "heedful", "GPT2ForSequenceClassification"])
def test_fine_tuning_starts_from_a_gpt2_folder_and_is_written_back(
    start: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "start"
    if start == "GPT2ForSequenceClassification":
        with_head(start, folder)
    else:
        gpt_folder(random_gpt(tie_word_embeddings=start != "untied"), folder)
    if start == "heedful":
        assert convert(monkeypatch, folder, tmp_path / "ours") == 0
        folder = tmp_path / "ours"
    (tmp_path / "data.csv").write_text(DATA)
    files = ", ".join(f"{split}: data.csv" for split in ("train", "valid", "test"))
    recipe = load_recipe(
        "number-languages",
        [f"data={{kind: csv, root: {tmp_path}, text: text, label: label, {files}}}", f"start={{folder: {folder}}}",
         "tokenizer=null",
         "model={kind: classifier}", "train.budget={steps: 2}", "train.batch_examples=2"],
    )  # fmt: skip
    list(train(recipe, tmp_path / "run"))
    classifier = heedful.load(tmp_path / "run", "cpu")
    table = safetensors.torch.load_file(tmp_path / "start" / "model.safetensors")["transformer.wte.weight"]
    moved = (classifier.model.encoder.tokens.weight - table).abs().max()
    assert 0 < moved < 0.1  # it began there
    assert convert(monkeypatch, tmp_path / "run", tmp_path / "hf") == 0
    theirs = transformers.GPT2ForSequenceClassification.from_pretrained(tmp_path / "hf").eval()
    words = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    found = classifier.classify(["the child came home", "school"])
    for text, one in zip(["the child came home", "school"], found, strict=True):
        with torch.no_grad():
            right = theirs(**words(text, return_tensors="pt")).logits.softmax(-1)[0]
        close(torch.tensor([one.probabilities[theirs.config.id2label[index]] for index in range(2)]), right)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"architectures": ["GPT2DoubleHeadsModel"]}, "not supported: architectures"),
        ({"problem_type": "ranking"}, "not supported: problem_type"),
        ({"id2label": {"0": "no", "1": "yes"}}, "2 labels"),
    ],
)
def test_other_heads_are_refused(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    _, folder = with_head("GPT2ForSequenceClassification", tmp_path / "theirs")
    with pytest.raises(UserError, match=words):
        pretrained(change(folder, **changes))
