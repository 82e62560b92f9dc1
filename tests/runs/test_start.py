"""Every task can start from a trained model of its own: its weights and its vocabulary."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from heedful.errors import UserError
from heedful.runs import train as experiment
from heedful.runs.load import load
from heedful.runs.recipe import load_recipe, templates
from heedful.runs.train import Finished, Started, train
from heedful.tasks import TASKS
from heedful.training.checkpoint.folder import newest

pytestmark = pytest.mark.usefixtures("no_loss_curve")

TRAINED = [
    "train.budget={steps: 2}", "train.evaluate_every=1", "train.save_every=1", "train.samples=0", "train.device=cpu",
    "train.schedule={kind: constant}", "train.optimizer.lr=1e-2",
]  # fmt: skip
ENCODER = "{kind: bert, width: 16, heads: 2, layers: 1, hidden: 32, context: 24}"
PIECES = "tokenizer={kind: wordpiece, vocab: 60, lowercase: true}"
TUNED = ["start=null", PIECES, f"model.encoder={ENCODER}", "train.batch_examples=8"]
NUMBERS = ["data.train=40", "data.valid=4", "data.test=4"]
SPLITS = ("train", "valid", "test")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small files for every task."""
    folder = tmp_path_factory.mktemp("data")
    for split in SPLITS:
        (folder / f"{split}.tags").write_text("Ada B-PER\nsaw O\nRome B-LOC\n\nKurt B-PER\nleft O\nOslo B-LOC\n\n" * 3)
        (folder / f"{split}.tsv").write_text("".join(f"ein Satz {n}\t{n}\n" for n in range(6)))
        (folder / f"{split}.labels").write_text("Ada saw Rome\tperson, city\nOslo\tcity\nso it is\t\n" * 3)
        (folder / f"{split}.trees").write_text("(3 (2 so) (4 good))\n(1 (2 so) (0 bad))\n" * 3)
        (folder / f"{split}.prose").write_text(
            "All the world is a stage.\nThey have exits.\n\nMen are players.\nSo it is.\n\n" * 3
        )
        row = "Ada saw Rome,She,left,fell,sang,slept"
        (folder / f"{split}.csv").write_text(f"sent1,sent2,ending0,ending1,ending2,ending3,label\n{row},0\n{row},2\n")
        asked = [{"question": "where was Ada", "passage": "Ada saw Rome", "answer": "Rome", "start": 8}] * 4
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in asked))
    return folder


def files(data: Path, kind: str, ending: str, more: str = "") -> str:
    return f"data={{kind: {kind}, root: {data}, {', '.join(f'{s}: {s}.{ending}' for s in SPLITS)}{more}}}"


def documents(data: Path) -> str:
    parts = ", ".join(f"{s}: [{{kind: text, files: [{s}.prose], between: blank_lines}}]" for s in SPLITS)
    return f"data={{kind: documents, root: {data}, {parts}}}"


def case(name: str, data: Path) -> tuple[str, list[str]]:
    """A shipped recipe of a task, and overrides that make it tiny."""
    letters, text = "tokenizer={kind: characters, vocab: 40}", files(data, "text", "prose")
    languages = "data.languages=[de, en]"
    tiny = {
        "translation": "numbers model.width=16 model.heads=2 model.hidden=16 tokenizer.vocab=70",
        "language_model": "language-model model.width=8 model.hidden=8 model.layers=1 model.context=8",
        "gpt": "gpt-prose model.width=16 model.heads=2 model.layers=1 model.context=8",
        "tree_classification": "sentiment-trees model.width=6 model.hidden=6",
        "pretraining": "bert-prose tokenizer.vocab=60",
        "permutation_lm": "xlnet-prose tokenizer.vocab=60",
        "classification": "number-languages",
        "text_classification": "number-languages-conv model.width=8 train.batch_examples=8",
        "regression": "stsb",
        "multi_label": str(templates()["label"]),
        "tagging": f"conll2003 data.root={data} data.train=train.tags data.valid=valid.tags data.test=test.tags",
        "answering": "squad",
        "multiple_choice": f"swag data.root={data} data.train=train.csv data.valid=valid.csv data.test=test.csv",
        "story_answering": "stories-1 data.train=8 data.valid=2 data.test=2 model.width=8",
        "reconstruction": "digits data.train=40 data.valid=4",
        "image_classification": "digits-lenet data.train=40 data.valid=4",
        "captioning": "captions data.train=6 data.valid=2 data.test=2 model.decoder.width=12 model.decoder.hidden=12",
        "style_transfer": "registers data.train=16 data.valid=4 model.width=8 model.hidden=12 train.batch_examples=8",
        "control": "cartpole-policy model.hidden=[4] data.limit=9 data.valid=2 data.test=2 task.lanes=2",
        "dialogue": "trips data.train=8 data.valid=2 data.test=2 model.width=8 model.hidden=8",
        "tabular": "parcels data.train=60 data.valid=10 data.test=10",
        "text_autoencoding": "sentences data.train=12 data.valid=10 data.test=10 model.width=8 model.hidden=8",
        "paragraphs": "paragraphs data.train=6 data.valid=2 data.test=2 model.memory=12 model.hidden=12",
    }
    more = {
        "translation": NUMBERS,
        "language_model": [letters, text],
        "gpt": [letters, text],
        "tree_classification": [files(data, "trees", "trees", ", vectors: null")],
        "pretraining": [documents(data), f"model={ENCODER}"],
        "permutation_lm": [documents(data), f"model={ENCODER.replace('bert', 'xlnet')}"],
        "classification": [*TUNED, *NUMBERS, languages],
        "text_classification": [*NUMBERS, languages],
        "regression": [*TUNED, files(data, "tsv", "tsv", ", text: 0, label: 1")],
        "multi_label": [*TUNED, files(data, "tsv", "labels", ", text: 0, label: 1, header: false")],
        "tagging": TUNED,
        "multiple_choice": TUNED,
        "answering": [*TUNED, files(data, "jsonl", "jsonl")],
    }
    shipped, *changes = tiny[name].split()
    return shipped, [*changes, *more.get(name, [])]


@pytest.fixture
def initial_weights(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, torch.Tensor]]:
    """The weights that training would start with."""
    found: dict[str, torch.Tensor] = {}

    def fit(model: torch.nn.Module, *_: Any, **__: Any) -> Iterator[Any]:
        found.update({name: tensor.clone() for name, tensor in model.state_dict().items()})
        return iter(())

    monkeypatch.setattr(experiment, "fit", fit)
    return found


@pytest.fixture(scope="module")
def trained(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Runs of two steps, each trained once."""
    runs: dict[str, Path] = {}

    def make(name: str) -> Path:
        if name not in runs:
            runs[name] = tmp_path_factory.mktemp(name) / "run"
            shipped, changes = case(name, data)
            assert isinstance(list(train(load_recipe(shipped, [*changes, *TRAINED]), runs[name]))[-1], Finished)
        return runs[name]

    return make


BRANCHED = {
    "gpt",
    "language_model",
    "classification",
    "regression",
    "multi_label",
    "tagging",
    "answering",
    "multiple_choice",
}  # bring their tokenizer


@pytest.mark.parametrize("name", [*TASKS, "gpt"])
def test_every_task_starts_from_a_run_of_its_own(
    name: str, trained: Any, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    run = trained(name)
    initial = request.getfixturevalue("initial_weights")
    plain = ["tokenizer=null"] if name in BRANCHED else []
    branch = load_recipe(str(run / "recipe.yaml"), [f"start.folder={run}", "train.optimizer.lr=1e-3", *plain])
    events = list(train(branch, tmp_path / "other"))
    wanted = load(run).model.state_dict()
    assert initial.keys() == wanted.keys() and all(torch.equal(initial[key], wanted[key]) for key in wanted)
    others = {"reconstruction": "images.json", "image_classification": "images.json", "control": "environment.json"}
    others["tabular"] = "columns.json"
    vocabulary = others.get(name, "tokenizer.json")
    assert (tmp_path / "other" / vocabulary).read_bytes() == (run / vocabulary).read_bytes()
    (start,) = (event for event in events if isinstance(event, Started))
    assert any(f"initialized from {run}" in note for note in start.notes)


def test_run_starts_from_the_named_checkpoint(trained: Any, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    run = trained("translation")
    initial = request.getfixturevalue("initial_weights")
    branch = load_recipe(str(run / "recipe.yaml"), [f"start.folder={run}/checkpoints/step-00000001"])
    list(train(branch, tmp_path / "other"))
    first = next(point for point in newest(run, 9)[0] if point.step == 1).load("model")
    assert all(torch.equal(initial[key], first[key]) for key in first)


def test_mismatched_models_are_rejected(trained: Any, tmp_path: Path) -> None:
    run = trained("translation")
    own = str(run / "recipe.yaml")
    for change in ("model.heads=4", "tokenizer.vocab=80"):
        with pytest.raises(UserError, match="differs from the recipe") as error:
            list(train(load_recipe(own, [f"start.folder={run}", change]), tmp_path / "other"))
        assert change.partition("=")[0] in str(error.value.found)
    with pytest.raises(UserError, match="cannot start from that folder") as error:
        list(train(load_recipe(own, [f"start.folder={trained('reconstruction')}"]), tmp_path / "other"))
    assert "another task" in str(error.value.found)
    with pytest.raises(UserError, match="no such folder"):
        list(train(load_recipe(own, ["start.folder=nowhere"]), tmp_path / "other"))


def test_started_run_resumes_without_its_origin(trained: Any, tmp_path: Path) -> None:
    run = trained("reconstruction")
    moved = tmp_path / "moved"
    branch = load_recipe(str(run / "recipe.yaml"), [f"start.folder={moved}", "train.budget.steps=4"])
    run.rename(moved)
    try:
        asked = iter((False, False, True, True))
        list(train(branch, tmp_path / "other", lambda: next(asked)))
    finally:
        moved.rename(run)
    ended = list(train(branch, tmp_path / "other"))[-1]
    assert isinstance(ended, Finished) and not ended.stopped
