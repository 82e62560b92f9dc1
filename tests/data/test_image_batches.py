"""Batches of images: the order depends on the seed alone, with and without workers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch

from heedful.data.images.batches import EncodedImages, ImageBatch, ImageBatches, encode_images
from heedful.data.images.sources import ArrayFile, ArrayImages, Images
from heedful.data.workers import BatchIndex, load_batches

BYTES = np.random.default_rng(0).integers(0, 256, (23, 3, 5, 7)).astype(np.uint8)
SETS = {"bytes": BYTES, "floats": BYTES.astype(np.float32) / 7}


def encode(kind: str = "bytes") -> EncodedImages:
    return encode_images(Images(SETS[kind].copy(), np.arange(23)))


def same(one: ImageBatch, other: ImageBatch) -> bool:
    pairs = [(getattr(one, field.name), getattr(other, field.name)) for field in fields(one)]
    return all(torch.equal(a, b) and a.dtype == b.dtype for a, b in pairs)


@pytest.mark.parametrize("kind", SETS)
def test_every_image_comes_once_per_epoch_unchanged(kind: str) -> None:
    batches = ImageBatches(encode(kind), seed=3, size=6)
    orders = []
    for epoch in range(3):
        parts = [batches.at(epoch * 4 + number) for number in range(4)]
        assert [batch.tokens for batch in parts] == [6, 6, 6, 5]
        assert [batches.tokens(epoch * 4 + number) for number in range(4)] == [6, 6, 6, 5]
        assert {batches.epoch_of(epoch * 4 + number) for number in range(4)} == {epoch}
        assert {int(batch.epoch) for batch in parts} == {epoch}
        rows = torch.cat([batch.indices for batch in parts])
        assert sorted(rows.tolist()) == list(range(23))
        pixels = torch.cat([batch.pixels for batch in parts])
        assert pixels.dtype == (torch.uint8 if kind == "bytes" else torch.float32)
        np.testing.assert_array_equal(pixels.numpy(), SETS[kind][rows.numpy()])
        orders.append(rows.tolist())
    assert orders[0] != orders[1] != orders[2]
    assert orders[0] != sorted(orders[0])


def test_order_depends_on_seed_and_position_only() -> None:
    one, two = (ImageBatches(encode(), seed=5, size=6) for _ in range(2))
    later = [two.at(position) for position in reversed(range(20))][::-1]
    assert all(same(one.at(position), batch) for position, batch in enumerate(later))
    other = ImageBatches(encode(), seed=6, size=6)
    assert not same(one.at(0), other.at(0))


@pytest.mark.parametrize(("size", "alike"), [(23, True), (1, True), (50, True), (6, False), (22, False)])
def test_one_shape_is_reported_correctly(size: int, alike: bool) -> None:
    batches = ImageBatches(encode(), seed=0, size=size)
    shapes = {batches.at(position).pixels.shape for position in range(2 * batches.count)}
    assert batches.one_shape is alike
    assert (len(shapes) == 1) is alike
    assert batches.few_shapes and batches.kind is ImageBatch


@pytest.mark.parametrize("kind", SETS)
def test_shards_make_up_the_batch_and_may_be_empty(kind: str) -> None:
    batches = ImageBatches(encode(kind), seed=0, size=2)
    whole = batches.at(3)
    parts = [batches.at(3, part, 3) for part in range(3)]
    assert [part.tokens for part in parts] == [1, 1, 0]
    assert torch.cat([part.indices for part in parts]).tolist() == whole.indices.tolist()
    assert parts[2].pixels.shape == (0, 3, 5, 7) and parts[2].pixels.dtype == whole.pixels.dtype
    assert int(parts[2].epoch) == 0


def test_in_order_has_every_image_once() -> None:
    found = list(encode().in_order(10))
    assert [batch.tokens for batch in found] == [10, 10, 3]
    assert torch.cat([batch.indices for batch in found]).tolist() == list(range(23))
    np.testing.assert_array_equal(torch.cat([batch.pixels for batch in found]).numpy(), BYTES)
    assert {int(batch.epoch) for batch in found} == {-1}


def test_batch_of_images_moves_to_a_device() -> None:
    moved = ImageBatches(encode(), seed=0, size=4).at(0).to("meta")
    assert {getattr(moved, field.name).device.type for field in fields(moved)} == {"meta"}


@pytest.mark.parametrize("kind", SETS)
@pytest.mark.parametrize("workers", [1, 2])
def test_workers_load_the_same_images(kind: str, workers: int) -> None:
    # 3 * 5 * 7 bytes per image: what follows in the pipe is not aligned for int64
    batches = ImageBatches(encode(kind), seed=1, size=6)

    def indices() -> Iterator[BatchIndex]:
        return iter([BatchIndex(position, part, 5) for position in range(9) for part in range(5)])

    ours, theirs = list(load_batches(batches, indices)), list(load_batches(batches, indices, workers))
    assert len(ours) == len(theirs) == 45
    assert all(same(one, other) for one, other in zip(ours, theirs, strict=True))


def test_hash_covers_dtype_shape_and_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    known = encode().sha256
    assert encode_images(Images(BYTES.copy())).sha256 == known
    changed = BYTES.copy()
    changed[-1, -1, -1, -1] ^= 1
    others = [changed, BYTES.transpose(0, 2, 1, 3), BYTES.reshape(23, 1, 15, 7), BYTES.view(np.int8), BYTES[:-1]]
    hashes = {encode_images(Images(other)).sha256 for other in others}
    assert len(hashes) == 5 and known not in hashes
    monkeypatch.setattr("heedful.data.images.batches.CHUNK", 100)
    assert encode().sha256 == known


def test_encoding_does_not_copy_memory_mapped_images(tmp_path: Path) -> None:
    pixels = BYTES[:, :1].copy()
    assert encode_images(Images(pixels)).pixels.data_ptr() == pixels.ctypes.data
    np.save(tmp_path / "x.npy", pixels[:, 0])
    data = ArrayImages(root=str(tmp_path), train=ArrayFile(file="x.npy"))
    found = encode_images(data.read("train"))
    np.testing.assert_array_equal(found.pixels.numpy(), pixels)
    pixels.flags.writeable = False
    np.testing.assert_array_equal(encode_images(Images(pixels)).pixels.numpy(), pixels)
    assert len(found) == 23 and found.dropped == 0
    assert encode_images(Images(BYTES.transpose(0, 1, 3, 2))).pixels.is_contiguous()
