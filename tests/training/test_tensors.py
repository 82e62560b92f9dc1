"""Tensors to bytes and back exactly, and foreign bytes refused with the file's name."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from heedful.errors import UserError
from heedful.training import tensors
from heedful.training.tensors import pack, require_finite, unpack

FILE = Path("some/model.safetensors")


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.uint8]
)
def test_every_type_comes_back_bit_for_bit(dtype: torch.dtype) -> None:
    given = {
        "a": torch.arange(6).reshape(2, 3).to(dtype),
        "scalar": torch.tensor(3).to(dtype),
        "none": torch.empty(0, 4),
    }
    back = unpack(pack(given), FILE)
    assert back.keys() == given.keys()
    assert all(torch.equal(back[name], given[name]) and back[name].dtype == given[name].dtype for name in given)


def test_bytes_do_not_depend_on_the_order_of_names() -> None:
    one, two = torch.ones(2), torch.zeros(3)
    assert pack({"a": one, "b": two}) == pack({"b": two, "a": one})


def test_gradients_and_views_are_packed_as_plain_values() -> None:
    whole = torch.arange(12.0, requires_grad=True).reshape(3, 4)
    back = unpack(pack({"row": whole[1], "turned": whole.T}), FILE)
    assert back["row"].tolist() == [4, 5, 6, 7]
    assert torch.equal(back["turned"], whole.T)


def header(content: object) -> bytes:
    text = json.dumps(content).encode()
    return len(text).to_bytes(8, "little") + text


SOUND = pack({"a": torch.ones(4)})


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
def test_what_is_not_a_sound_file_is_refused_by_name(data: bytes, words: str) -> None:
    with pytest.raises(UserError) as raised:
        unpack(data, FILE)
    assert raised.value.where == str(FILE)
    assert words in str(raised.value)


def test_limits_are_on_the_header_and_the_number_of_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    data = pack({str(index): torch.zeros(1) for index in range(5)})
    monkeypatch.setattr(tensors, "MOST_TENSORS", 5)
    assert len(unpack(data, FILE)) == 5
    monkeypatch.setattr(tensors, "MOST_TENSORS", 4)
    with pytest.raises(UserError, match="more than 4 tensors"):
        unpack(data, FILE)
    monkeypatch.setattr(tensors, "LARGEST_HEADER", 100)
    with pytest.raises(UserError, match="at most 100"):
        unpack(data, FILE)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_values_that_are_not_finite_are_named(bad: float) -> None:
    group = {
        "good": torch.ones(2),
        "count": torch.tensor(3),
        "bad": torch.tensor([1.0, bad]),
        "worse": torch.tensor(bad),
    }
    with pytest.raises(UserError, match=r"step 7: bad[^$]*2 of 4 tensors: bad, worse"):
        require_finite(group, "step 7", "stop")
    require_finite({"good": torch.ones(2), "count": torch.tensor(3)}, "step 7", "stop")
