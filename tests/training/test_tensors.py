"""Tensors to bytes and back exactly; invalid bytes are refused with the file's name."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest
import safetensors.torch
import torch

from heedful.errors import EXIT_MEMORY, UserError
from heedful.training.checkpoint import tensors
from heedful.training.checkpoint.tensors import (
    EXIT_NOT_FINITE,
    MOST_TENSORS,
    TYPES,
    pack,
    require_finite,
    require_sound,
    unpack,
)

FILE = Path("some/model.safetensors")


def packed(given: dict[str, torch.Tensor]) -> bytes:
    return b"".join(pack(given))


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.uint8]
)
def test_every_dtype_round_trips_bit_for_bit(dtype: torch.dtype) -> None:
    given = {
        "a": torch.arange(6).reshape(2, 3).to(dtype),
        "scalar": torch.tensor(3).to(dtype),
        "none": torch.empty(0, 4),
    }
    back = unpack(packed(given), FILE)
    assert back.keys() == given.keys()
    assert all(torch.equal(back[name], given[name]) and back[name].dtype == given[name].dtype for name in given)


def test_bytes_do_not_depend_on_name_order() -> None:
    one, two = torch.ones(2), torch.zeros(3)
    assert packed({"a": one, "b": two}) == packed({"b": two, "a": one})


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"scalar": torch.tensor(2.5)},
        {"none": torch.empty(3, 0, 2), "some": torch.ones(3)},
        {f"{dtype} {index}": torch.arange(index).to(dtype) for dtype in TYPES for index in (3, 1, 0, 2)},
        {
            name: torch.ones(2)
            for name in ("b", "B", "a.10", "a.9", "", "ü", "\U0001f600", "\uffff", '"\\\n\x01\x7f/\u2028')
        },
        {"x" * length: torch.ones(length) for length in range(20)},
    ],
    ids=["nothing", "scalar", "empty", "types", "names", "paddings"],
)
def test_bytes_match_the_safetensors_library(given: dict[str, torch.Tensor]) -> None:
    assert packed(given) == safetensors.torch.save(given)


def test_contiguous_tensors_are_not_copied() -> None:
    weight = torch.zeros(4, 5)
    _, piece = pack({"weight": weight})
    weight[0, 0] = 1.0
    assert bytes(piece) == weight.numpy().tobytes()


def test_shared_tensors_are_packed_once_per_name() -> None:
    whole = torch.arange(24.0).reshape(4, 6)
    given = {"a": whole, "b": whole, "rows": whole[1:3], "columns": whole[:, ::2], "wide": whole[0].expand(3, 6)}
    back = unpack(packed(given), FILE)
    assert all(torch.equal(back[name], given[name]) for name in given)
    assert packed(given) == safetensors.torch.save({name: tensor.clone() for name, tensor in given.items()})


def test_parameters_and_views_are_packed_as_values() -> None:
    whole = torch.arange(12.0, requires_grad=True).reshape(3, 4)
    back = unpack(packed({"row": whole[1], "turned": whole.T}), FILE)
    assert back["row"].tolist() == [4, 5, 6, 7]
    assert torch.equal(back["turned"], whole.T)


def header(content: object) -> bytes:
    text = json.dumps(content).encode()
    return len(text).to_bytes(8, "little") + text


SOUND = packed({"a": torch.ones(4)})


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "0 bytes"),
        (b"\x80\x04\x95abcdefgh", "pickle"),
        (b"PK\x03\x04" + b"0" * 40, "zip"),
        (b"<!DOCTYPE html><html>", "web page"),
        (b"version https://git-lfs.github.com/spec/v1\n", "LFS"),
        (SOUND[:-1], "Safetensor"),
        (SOUND[:20], "header"),
        (SOUND + b"\0", "Safetensor"),
        (header([1, 2]), "Safetensor"),
        (header({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}) + b"0000", "Safetensor"),
        (header({"a": {"dtype": "F4", "shape": [2], "data_offsets": [0, 1]}}) + b"0", "F4"),
        ((2**63).to_bytes(8, "little") + b"{}", "claims"),
    ],
)
def test_invalid_files_are_rejected_by_name(data: bytes, words: str) -> None:
    with pytest.raises(UserError) as raised:
        unpack(data, FILE)
    assert raised.value.where == str(FILE)
    assert words in str(raised.value)


def test_header_size_and_tensor_count_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    data = packed({str(index): torch.zeros(1) for index in range(5)})
    monkeypatch.setattr(tensors, "MOST_TENSORS", 5)
    assert len(unpack(data, FILE)) == 5
    monkeypatch.setattr(tensors, "MOST_TENSORS", 4)
    with pytest.raises(UserError, match="more than 4 tensors"):
        unpack(data, FILE)
    monkeypatch.setattr(tensors, "LARGEST_HEADER", 100)
    with pytest.raises(UserError, match="at most 100"):
        unpack(data, FILE)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_non_finite_values_are_named(bad: float) -> None:
    group = {
        "good": torch.ones(2),
        "count": torch.tensor(3),
        "bad": torch.tensor([1.0, bad]),
        "worse": torch.tensor(bad),
    }
    with pytest.raises(UserError, match=r"step 7: bad[^$]*2 of 4 tensors: bad, worse") as raised:
        require_finite(group, "step 7", "stop")
    assert raised.value.exit_code == EXIT_NOT_FINITE == 3
    require_finite({"good": torch.ones(2), "count": torch.tensor(3)}, "step 7", "stop")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.complex64])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_one_bad_value_is_found_anywhere(dtype: torch.dtype, bad: float) -> None:
    for shape in ((1,), (257,), (33, 65)):
        whole = torch.randn(shape).to(dtype)
        for position in {0, whole.numel() // 2, whole.numel() - 1}:
            broken = whole.clone()
            broken.view(-1)[position] = bad
            for view in (broken, broken.T if broken.dim() == 2 else broken):
                with pytest.raises(UserError, match="not finite"):
                    require_finite({"weight": view}, "step 7", "stop")
        require_finite({"weight": whole}, "step 7", "stop")


@pytest.mark.parametrize("dtype", TYPES)
def test_largest_numbers_and_empty_tensors_are_finite(dtype: torch.dtype) -> None:
    largest = torch.finfo(dtype).max if dtype.is_floating_point else 1
    require_finite({"full": torch.full((9,), largest, dtype=dtype)}, "step 7", "stop")
    require_finite({"none": torch.empty(0, 3, dtype=dtype)}, "step 7", "stop")


# ------------------------------------------------------------------ refused by the header alone
def test_sparse_file_is_rejected_unread(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.touch()
    os.truncate(path, 9 << 30)
    with pytest.raises(UserError, match="not a valid safetensors file"):
        require_sound(path)
    path.write_bytes(b"".join(pack({"a": torch.ones(3)})))
    require_sound(path)
    whole = path.stat().st_size
    os.truncate(path, 9 << 30)
    with pytest.raises(UserError, match="12, as its header says"):
        require_sound(path)
    os.truncate(path, whole - 1)
    with pytest.raises(UserError, match="11 bytes of numbers"):
        require_sound(path)


def test_file_larger_than_memory_is_rejected_unread(tmp_path: Path) -> None:
    path, numbers = tmp_path / "model.safetensors", 1 << 40
    header = json.dumps({"a": {"dtype": "U8", "shape": [numbers], "data_offsets": [0, numbers]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    try:
        os.truncate(path, 8 + len(header) + numbers)
    except OSError:
        pytest.skip("this disk has no room for a sparse file of a terabyte")
    with pytest.raises(UserError, match="larger than the memory of this machine") as raised:
        require_sound(path)
    assert raised.value.exit_code == EXIT_MEMORY


def test_escaped_names_are_counted(tmp_path: Path) -> None:
    entry = rb'"%d": {"dtype": "U8", "shape": [0], "data\u005foffsets": [0, 0]}'
    header = b"{" + b",".join(entry % number for number in range(MOST_TENSORS + 2)) + b"}"
    path = tmp_path / "model.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    for refused in (lambda: require_sound(path), lambda: unpack(path.read_bytes(), path)):
        with pytest.raises(UserError, match="more than 100,000 tensors"):
            refused()
