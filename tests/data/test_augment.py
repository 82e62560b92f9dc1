"""Augmentation is a function of the seed, the epoch and the image: alone, in any batch, in any process."""

from __future__ import annotations

import colorsys
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from heedful.data.images import augment
from heedful.data.images.augment import Draws, beta, inside, mix, resized, saturated, shifted, turned
from heedful.data.images.augmentation import Augmentation
from heedful.data.images.image_spec import ImageSpec
from heedful.data.images.labelled_batches import EncodedLabelledImages, LabelledImageBatches
from heedful.data.workers import BatchIndex, load_batches
from tolerance import close

COUNT = 40
SETTINGS: dict[str, dict[str, Any]] = {
    "crop": {"crop": 2},
    "resized_crop": {"resized_crop": (0.3, 0.9)},
    "flip": {"flip": 0.5},
    "brightness": {"brightness": 0.4},
    "contrast": {"contrast": 0.4},
    "saturation": {"saturation": 0.4},
    "hue": {"hue": 0.3},
    "erase": {"erase": 0.7},
    "mixup": {"mixup": 0.3},
    "cutmix": {"cutmix": 1.0},
    "all": {
        "crop": 1, "flip": 0.5, "brightness": 0.2, "contrast": 0.2, "saturation": 0.2, "erase": 0.5, "mixup": 0.2,
        "cutmix": 1.0,
    },
}  # fmt: skip


def images(dtype: Any = np.uint8) -> EncodedLabelledImages:
    pixels = np.random.default_rng(1).integers(1, 256, (COUNT, 3, 9, 7), np.uint8)
    given = pixels if dtype == np.uint8 else (pixels / 255).astype(dtype)
    return EncodedLabelledImages(
        torch.from_numpy(given), np.arange(COUNT) % 4, ImageSpec((3, 9, 7), tuple("abcd"), (0.5,) * 3, (0.2,) * 3)
    )


def batches(name: str, seed: int = 5, dtype: Any = np.uint8, **more: Any) -> LabelledImageBatches:
    return LabelledImageBatches(images(dtype), seed, 10, augmentation=Augmentation(**SETTINGS[name]), **more)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32], ids=["bytes", "floats"])
@pytest.mark.parametrize("name", SETTINGS)
def test_image_is_the_same_alone_and_in_any_batch(name: str, dtype: Any) -> None:
    made = batches(name, dtype=dtype)
    keys = torch.arange(COUNT)
    whole = made.augmented(keys, 3)
    assert whole.pixels.dtype == made.encoded.pixels.dtype and whole.pixels.shape == made.encoded.pixels.shape
    for key in range(0, COUNT, 7):
        alone = made.augmented(keys[key : key + 1], 3)
        assert torch.equal(alone.pixels[0], whole.pixels[key])
        assert alone.shares[0] == whole.shares[key] and alone.others[0] == whole.others[key]
    order = torch.randperm(COUNT)
    assert torch.equal(made.augmented(order, 3).pixels, whole.pixels[order])


def test_parts_that_are_changed_together_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    made, keys = batches("all"), torch.arange(COUNT)
    whole = made.augmented(keys, 3).pixels
    monkeypatch.setattr(augment, "TOGETHER", 4 * 3 * 9 * 7)
    assert torch.equal(made.augmented(keys, 3).pixels, whole)


@pytest.mark.parametrize("name", SETTINGS)
def test_epochs_seeds_and_repetitions_differ(name: str) -> None:
    made, keys = batches(name), torch.arange(COUNT)
    first = made.augmented(keys, 0).pixels
    assert torch.equal(first, batches(name).augmented(keys, 0).pixels)
    others = (made.augmented(keys, 1), batches(name, seed=6).augmented(keys, 0), made.augmented(keys + COUNT, 0))
    for other in others:
        assert not torch.equal(other.pixels, first)


def test_nothing_is_changed_by_default() -> None:
    made = LabelledImageBatches(images(), 5, 10)
    assert torch.equal(made.augmented(torch.arange(COUNT), 2).pixels, made.encoded.pixels)


def test_shards_and_workers_have_the_images_of_the_whole_batch() -> None:
    made = batches("all")
    whole = made.at(6)
    parts = [made.at(6, part, 3) for part in range(3)]
    for part, batch in enumerate(parts):
        assert torch.equal(batch.pixels, whole.pixels[part::3]) and torch.equal(batch.shares, whole.shares[part::3])
    assert len(made.at(6, 12, 13).pixels) == 0  # an empty shard
    places = [BatchIndex(position) for position in range(5)]
    here, there = (load_batches(made, lambda: iter(places), workers) for workers in (0, 2))
    for one, other in zip(here, there, strict=True):
        assert torch.equal(one.pixels, other.pixels) and torch.equal(one.others, other.others)
        assert one.mean == other.mean


# ------------------------------------------------------------------ each change
def draws(count: int = COUNT) -> Draws:
    return Draws(0, 0, np.arange(count))


def test_crop_shifts_by_at_most_the_padding() -> None:
    x = images().pixels.float()
    found, seen = shifted(x, 2, [False] * COUNT, draws()), set()
    assert torch.equal(shifted(x, 2, [True] * COUNT, draws()), found.flip(-1))
    padded = torch.nn.functional.pad(x, (2, 2, 2, 2))
    for row in range(COUNT):
        fits = [
            (top, left)
            for top in range(5)
            for left in range(5)
            if torch.equal(found[row], padded[row, :, top : top + 9, left : left + 7])
        ]
        assert len(fits) == 1
        seen.update(fits)
    assert {top for top, _ in seen} == {left for _, left in seen} == set(range(5))


def test_crop_beyond_the_image_is_black() -> None:
    made = LabelledImageBatches(images(), 5, 10, augmentation=Augmentation(crop=1000, flip=0.5))
    found = made.augmented(torch.arange(COUNT), 0).pixels
    assert found.shape == made.encoded.pixels.shape and not found.any((1, 2, 3)).all()


def test_crop_of_everything_is_the_image_and_of_a_quarter_is_larger() -> None:
    x = images().pixels.float()[:2]
    close(resized(x, [(0, 0, 9, 7), (0, 0, 9, 7)], [False, True]), torch.stack([x[0], x[1].flip(-1)]))
    ramp = torch.arange(8.0).expand(1, 1, 8, 8)
    close(resized(ramp, [(2.0, 2.0, 4.0, 4.0)], [False])[0, 0, 0], (torch.arange(8) / 2 + 1.75).clamp(2, 5))
    rows = torch.arange(64, dtype=torch.uint8).view(1, 1, 8, 8)
    found = resized(rows, [(2.4, 0.0, 0.3, 8.0)], [False])  # thinner than a row: bytes of the nearest one
    assert torch.equal(found, rows[:, :, 2:3].expand(1, 1, 8, 8))


def test_flip_swaps_left_and_right_of_half_of_the_images() -> None:
    made = batches("flip")
    x, found = made.encoded.pixels, made.augmented(torch.arange(COUNT), 0).pixels
    flipped = [row for row in range(COUNT) if torch.equal(found[row], x[row].flip(-1))]
    assert 10 < len(flipped) < 30
    assert all(torch.equal(found[row], x[row]) for row in range(COUNT) if row not in flipped)


def test_saturation_of_zero_is_grey() -> None:
    grey = saturated(images().pixels.float(), torch.zeros(COUNT, 1, 1, 1))
    close(grey[:, 0], grey[:, 1])
    close(grey[:, 0], grey[:, 2])


def test_hue_turns_as_in_the_colour_circle() -> None:
    x = torch.rand(6, 3, 4, 5, generator=torch.Generator().manual_seed(0))
    x[0] = x[0, :1]  # grey stays grey
    turns = torch.tensor([0.3, 0.0, 0.25, -0.4, 0.5, -0.1])
    found = turned(x * 255, turns[:, None, None, None]) / 255
    for one, other, turn in zip(x, found, turns.tolist(), strict=True):
        for (red, green, blue), after in zip(one.flatten(1).T.tolist(), other.flatten(1).T, strict=True):
            hue, saturation, value = colorsys.rgb_to_hsv(red, green, blue)
            close(after, torch.tensor(colorsys.hsv_to_rgb((hue + turn) % 1, saturation, value)))
    grey = torch.rand(2, 1, 3, 3)
    assert torch.equal(turned(grey, turns[:2, None, None, None]), grey)


def test_erased_rectangle_has_the_mean_colour() -> None:
    made = LabelledImageBatches(images(), 5, 10, augmentation=Augmentation(erase=1.0))
    x, found = made.encoded.pixels, made.augmented(torch.arange(COUNT), 0).pixels
    for row in range(COUNT):
        changed = (found[row] != x[row]).any(0)
        assert (found[row][:, changed] == 128).all()
        down, across = changed.any(1).nonzero().flatten(), changed.any(0).nonzero().flatten()
        if len(down):
            box = changed[down[0] : down[-1] + 1, across[0] : across[-1] + 1]
            assert box.float().mean() > 0.9  # a pixel of the mean colour does not change


def test_mixup_is_the_weighted_mean_of_both() -> None:
    x, other = torch.zeros(COUNT, 1, 4, 4), torch.ones(COUNT, 1, 4, 4)
    found, shares = mix(x, other, Augmentation(mixup=0.4), draws())
    close(found, (1 - shares)[:, None, None, None].expand_as(found))
    assert 0 < shares.min() < 0.2 and 0.8 < shares.max() < 1


def test_cutmix_counts_the_pixels_that_are_left() -> None:
    x, other = torch.zeros(COUNT, 1, 9, 7, dtype=torch.uint8), torch.full((COUNT, 1, 9, 7), 255, dtype=torch.uint8)
    found, shares = mix(x, other, Augmentation(cutmix=1.0), draws())
    assert set(found.unique().tolist()) == {0, 255}
    close((found == 0).float().mean((1, 2, 3)), shares)


def test_with_both_half_of_the_images_are_cut() -> None:
    x, other = torch.zeros(COUNT, 1, 9, 7), torch.ones(COUNT, 1, 9, 7)
    found, _ = mix(x, other, Augmentation(mixup=1.0, cutmix=1.0), draws())
    cut = [bool(((one == 0) | (one == 1)).all()) for one in found]
    assert 10 < sum(cut) < 30


@pytest.mark.parametrize("alpha", [0.2, 1.0, 2.0])
def test_shares_have_the_moments_of_a_beta_distribution(alpha: float) -> None:
    shares = np.array(beta([alpha] * 4000, draws(4000)))
    variance = 1 / (4 * (2 * alpha + 1))
    assert abs(shares.mean() - 0.5) < 4 * np.sqrt(variance / 4000)
    assert abs(shares.var() / variance - 1) < 0.1


def test_rectangle_has_the_pixels_whose_centres_it_covers() -> None:
    there = inside([(1.0, 2.0, 2.0, 3.0), (0.0, 0.0, 0.0, 0.0)], torch.Size((2, 1, 4, 6)))
    assert there[0, 0].nonzero().tolist() == [[row, column] for row in (1, 2) for column in (2, 3, 4)]
    assert not there[1].any()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"resized_crop": (0.5, 0.2)}, "not above the second"),
        ({"resized_crop": (0.0, 0.2)}, "above 0"),
        ({"crop": 2, "resized_crop": (0.5, 1.0)}, "leave out crop or resized_crop"),
        ({"mixup": 0.01}, "this mixes nothing"),
        ({"flip": 1.5}, "less than or equal to 1"),
    ],
)
def test_impossible_settings_are_rejected(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Augmentation(**settings)


# ------------------------------------------------------------------ order
def test_batches_of_an_epoch_have_every_image_once_and_similar_sizes() -> None:
    made = LabelledImageBatches(images(), 5, 11)
    sizes = [made.tokens(position) for position in range(made.count)]
    assert sizes == [10, 10, 10, 10] and made.one_shape
    uneven = LabelledImageBatches(images(), 5, 12)
    parts = [uneven.at(position) for position in range(uneven.count)]
    assert [len(part.indices) for part in parts] == [uneven.tokens(position) for position in range(uneven.count)]
    assert {len(part.indices) for part in parts} <= {10, 9, 11}
    assert sorted(int(row) for part in parts for row in part.indices) == list(range(COUNT))


def test_balanced_epoch_has_as_many_images_of_each_class() -> None:
    labels = np.array([0] * 30 + [1] * 8 + [2] * 2)
    encoded = EncodedLabelledImages(images().pixels, labels, images().spec)
    made = LabelledImageBatches(encoded, 5, 10, balanced=True)
    found = torch.cat([made.at(position).targets for position in range(made.count)])
    assert np.bincount(found.numpy()).tolist() == [13, 13, 14]
    rows = torch.cat([made.at(position).indices for position in range(made.count)])
    assert set(rows[found == 2].tolist()) == {38, 39}
    assert len(set(rows[found == 0].tolist())) == 13
    again = torch.cat([made.at(position).indices for position in range(made.count)])
    assert torch.equal(rows, again)
    assert not torch.equal(rows, torch.cat([made.at(made.count + position).indices for position in range(made.count)]))
