"""The original checkpoint of TensorFlow, read without it.

`checkpoint/` was written by TensorFlow 2.21 with the names of the original program: two blocks of width 8, both heads,
some of what the optimizer remembers. `as_tensorflow_reads.safetensors` is what TensorFlow itself reads of it.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from heedful.errors import UserError
from heedful.hub import pretrained
from heedful.hub.crc32c import BYTE_TABLE, crc32c, mask_crc
from heedful.hub.tensorflow import MAGIC, DamageError, read_index
from heedful.models.bert.model import Bert
from tolerance import close

FOLDER = Path(__file__).parent / "checkpoint"
INDEX, DATA = "bert_model.ckpt.index", "bert_model.ckpt.data-00000-of-00001"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    copy = tmp_path / "bert"
    shutil.copytree(FOLDER, copy)
    return copy


def test_tensorflow_checkpoint_equals_transformers(tmp_path: Path) -> None:
    import transformers

    from heedful.hub import write

    found = pretrained(FOLDER)
    write(tmp_path / "hf", found)
    theirs = transformers.BertForPreTraining.from_pretrained(tmp_path / "hf").eval()
    ours = Bert(found.config).eval()
    ours.load_state_dict(found.tensors)
    ids = torch.randint(0, 30, (2, 9))
    with torch.no_grad():
        x, expected = ours(ids), theirs(ids)
        close(ours.words(x), expected.prediction_logits)
        close(ours.follows(x[:, 0]), expected.seq_relationship_logits)


def test_crc32c_equals_published_values_at_any_length() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA  # of RFC 3720
    assert crc32c(b"\xff" * 32) == 0x62A8AB43
    data = bytes(torch.randint(0, 256, (140_000,), dtype=torch.uint8).numpy())
    for length in (*range(40), 1000, 4099, 131_072, 139_999):
        register = 0xFFFFFFFF
        for byte in data[:length]:
            register = register >> 8 ^ BYTE_TABLE[(register ^ byte) & 0xFF]
        assert crc32c(data[:length]) == register ^ 0xFFFFFFFF
    assert mask_crc(0) == 0xA282EAD8


@pytest.mark.parametrize("name", [INDEX, DATA])
def test_every_flipped_bit_is_detected(folder: Path, name: str) -> None:
    """Bits between tensors and blocks could be flipped without harm; these files have no such bits."""
    whole = (folder / name).read_bytes()
    places = range(0, len(whole), 13 if name == INDEX else 97)
    for place in places:
        broken = bytearray(whole)
        broken[place] ^= 1 << place % 8
        (folder / name).write_bytes(broken)
        with pytest.raises(UserError) as raised:
            pretrained(folder)
        assert "bert_model.ckpt" in str(raised.value.where)


@pytest.mark.parametrize("name", [INDEX, DATA])
def test_truncated_or_missing_file_is_named(folder: Path, name: str) -> None:
    whole = (folder / name).read_bytes()
    for length in (0, 1, 47, len(whole) // 2, len(whole) - 1):
        (folder / name).write_bytes(whole[:length])
        with pytest.raises(UserError):
            pretrained(folder)
    (folder / name).unlink()
    with pytest.raises(UserError):
        pretrained(folder)


def test_random_bytes_with_a_valid_footer_are_rejected() -> None:
    for seed in range(200):
        torch.manual_seed(seed)
        data = bytes(torch.randint(0, 256, (200,), dtype=torch.uint8).numpy()) + MAGIC.to_bytes(8, "little")
        with pytest.raises(DamageError):
            read_index(data)


def test_config_of_another_size_names_the_tensors(folder: Path) -> None:
    config = folder / "bert_config.json"
    config.write_text(config.read_text().replace('"num_hidden_layers": 2', '"num_hidden_layers": 3'))
    with pytest.raises(UserError, match=r"layer_2/.*not in the file"):
        pretrained(folder)
    config.write_text(config.read_text().replace('"num_hidden_layers": 3', '"num_hidden_layers": 1'))
    with pytest.raises(UserError, match=r"layer_1/.*unexpected"):
        pretrained(folder)


def test_two_checkpoints_in_a_folder_are_rejected(folder: Path) -> None:
    shutil.copy(folder / INDEX, folder / "model.ckpt-7.index")
    with pytest.raises(UserError, match="several checkpoints"):
        pretrained(folder)
