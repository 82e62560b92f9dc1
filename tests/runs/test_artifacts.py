"""A task may keep several files besides its weights: runs, checkpoints and model folders handle all of them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

import heedful
from heedful.errors import UserError
from heedful.runs.recipe import load_recipe
from heedful.runs.train import Started, train
from heedful.tasks.base import Codec
from heedful.tasks.translation import task as translation
from heedful.tasks.translation.predictor import Translator
from heedful.training.checkpoint.folder import newest

SMALL = [
    "data.train=60", "data.valid=4", "data.test=4",
    "model={width: 16, heads: 2, encoder_layers: 1, decoder_layers: 1, hidden: 16, context: 60}",
    "tokenizer.vocab=60", "train.budget={steps: 3}", "train.evaluate_every=2", "train.save_every=2",
    "train.batch_tokens=128", "train.device=cpu",
]  # fmt: skip


class Note:
    """A second artifact."""

    def __init__(self, text: str, where: str) -> None:
        self.json, self.sha256 = text, hashlib.sha256(text.encode()).hexdigest()

    @classmethod
    def load(cls, path: Path) -> Note:
        return cls(path.read_text(), str(path))


@dataclass(frozen=True)
class Both:
    """A tokenizer and a note, together a vocabulary."""

    tokenizer: Any
    note: Note

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tokenizer, name)


class TranslationWithNote(translation.TranslationTask):
    """Translation that keeps a note, too."""

    artifacts: ClassVar = {**translation.TranslationTask.artifacts, "note.json": Codec(Note, Note.load)}

    def learn(self, read: Any) -> Any:
        return Both(super().learn(read), Note('"begun"', "learned"))

    @classmethod
    def artifacts_of(cls, vocabulary: Any) -> dict[str, Any]:
        return {"tokenizer.json": vocabulary.tokenizer, "note.json": vocabulary.note}

    @classmethod
    def vocabulary_of(cls, artifacts: Mapping[str, Any]) -> Any:
        return Both(artifacts["tokenizer.json"], artifacts["note.json"])


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of three steps that keeps two artifacts."""
    monkeypatch.setattr(translation, "TranslationTask", TranslationWithNote)
    list(train(load_recipe("numbers", SMALL), tmp_path / "run"))
    return tmp_path / "run"


def test_runs_and_models_keep_every_artifact(run: Path) -> None:
    for folder in (run, run / "model"):
        assert (folder / "note.json").read_text() == '"begun"' and (folder / "tokenizer.json").stat().st_size
    (checkpoint,), _ = newest(run, 1)
    assert {"tokenizer", "note.json"} <= checkpoint.manifest.about.keys()
    for which in (None, "last"):
        found = heedful.load(run, checkpoint=which)
        assert isinstance(found, Translator) and found.tokenizer.note.json == '"begun"'


def test_changed_or_missing_second_artifact_is_rejected(run: Path) -> None:
    (run / "note.json").write_text('"another"')
    with pytest.raises(UserError, match=r"note\.json: this is not what the run started with"):
        heedful.load(run, checkpoint="last")
    with pytest.raises(UserError, match="not what the run started with"):
        list(train(load_recipe("numbers", [*SMALL, "train.budget={steps: 4}"]), run))
    (run / "note.json").write_text('"begun"')
    started = next(
        event
        for event in train(load_recipe("numbers", [*SMALL, "train.budget={steps: 4}"]), run)
        if isinstance(event, Started)
    )
    assert started.step == 3 and not any("note.json was" in note for note in started.notes)
    (run / "model" / "note.json").unlink()
    with pytest.raises(UserError, match=r"note\.json"):
        heedful.load(run / "model")
