"""The model folder: exact, written atomically, verified by its manifest."""

from __future__ import annotations

import math
import os
import random
from pathlib import Path

import pytest
import torch

from heedful.errors import UserError
from heedful.hub.model_folder import read_model, write_model


def write(folder: Path, value: float = 1.0, tokenizer: str | None = '{"pieces": "ü"}') -> None:
    artifacts = {} if tokenizer is None else {"tokenizer.json": tokenizer}
    write_model(folder, '{"kind": "transformer"}', {"weight": torch.full((2, 3), value)}, artifacts, {"step": 5})


@pytest.mark.parametrize("tokenizer", ['{"pieces": "ü"}', None])
def test_model_folder_round_trip(tmp_path: Path, tokenizer: str | None) -> None:
    write(tmp_path / "model", 1.0)
    write(tmp_path / "model", 2.0, tokenizer)
    read = read_model(tmp_path / "model")
    assert read.config_json == '{"kind": "transformer"}'
    assert read.artifacts.get("tokenizer.json") == tokenizer
    assert torch.equal(read.tensors["weight"], torch.full((2, 3), 2.0))
    assert os.listdir(tmp_path) == ["model"]


def test_folder_without_a_manifest_is_read(tmp_path: Path) -> None:
    write(tmp_path / "model")
    (tmp_path / "model" / "manifest.json").unlink()
    (tmp_path / "model" / "README.md").touch()
    assert read_model(tmp_path / "model").artifacts["tokenizer.json"] == '{"pieces": "ü"}'


def test_any_flipped_bit_is_detected_and_its_file_named(tmp_path: Path) -> None:
    write(tmp_path / "model")
    draw = random.Random(0)
    for path in sorted((tmp_path / "model").iterdir()):
        data = path.read_bytes()
        for _ in range(100):
            flipped = bytearray(data)
            flipped[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
            path.write_bytes(flipped)
            with pytest.raises(UserError) as raised:
                read_model(tmp_path / "model")
            assert raised.value.where == str(path)
        path.write_bytes(data)


@pytest.mark.parametrize("sealed", [True, False])
@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_missing_file_is_named(tmp_path: Path, name: str, sealed: bool) -> None:
    write(tmp_path / "model")
    (tmp_path / "model" / name).unlink()
    if not sealed:
        (tmp_path / "model" / "manifest.json").unlink()
    with pytest.raises(UserError) as raised:
        read_model(tmp_path / "model")
    assert raised.value.where == str(tmp_path / "model" / name)


def test_missing_tokenizer_is_detected_by_the_manifest(tmp_path: Path) -> None:
    write(tmp_path / "model")
    (tmp_path / "model" / "tokenizer.json").unlink()
    with pytest.raises(UserError, match=r"tokenizer\.json"):
        read_model(tmp_path / "model")


def test_weights_that_are_not_finite_are_neither_written_nor_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match="weight"):
        write(tmp_path / "model", math.nan)
    assert os.listdir(tmp_path) == []
    with monkeypatch.context() as patch:
        patch.setattr("heedful.hub.model_folder.require_finite", lambda *_: None)
        write(tmp_path / "model", math.nan)
    with pytest.raises(UserError, match="weight"):
        read_model(tmp_path / "model")


def test_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="absent"):
        read_model(tmp_path / "absent")
