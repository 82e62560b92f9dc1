"""The public names, and the way they are used."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import heedful

NAMES = [
    "PCA", "Autoencoder", "ConvAutoencoder", "Dataset", "DenoisingAutoencoder", "TextEncoder", "UserError",
    "WordVectors", "__version__", "build", "fit", "load", "load_glove", "load_recipe", "load_vectors",
    "load_word2vec", "show", "train", "watch",
]  # fmt: skip
TINY = [
    "data.train=200", "data.valid=10", "data.test=10", "tokenizer.vocab=90", "model.width=16", "model.heads=2",
    "model.hidden=32", "train.budget.steps=3",
]  # fmt: skip


def test_the_names_are_these_and_each_is_there() -> None:
    assert heedful.__all__ == NAMES
    assert all(getattr(heedful, name) is not None for name in NAMES)
    with pytest.raises(AttributeError, match="has no attribute 'lode'"):
        heedful.lode  # noqa: B018


def test_dir_lists_the_names_and_fetches_none() -> None:
    asked = "import sys, heedful; print(set(heedful.__all__) <= set(dir(heedful)), 'torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True, timeout=60)
    assert found.stdout == "True False\n"


def test_train_load_translate_watch(tmp_path: Path) -> None:
    events = list(heedful.train(heedful.load_recipe("numbers", TINY), tmp_path / "run"))
    assert [type(event).__name__ for event in events].count("Step") == 3
    translator = heedful.load(tmp_path / "run")
    texts = ["three", "ninety-nine"]
    assert translator.translate(texts) == [found[0].text for found in translator.search(texts)]
    with heedful.watch(translator.model, "*.weights") as seen:
        translator.translate(["three"])
    assert "decoder.0.cross.weights" in seen
    with pytest.raises(heedful.UserError, match="no such folder"):
        heedful.load(tmp_path / "none")
