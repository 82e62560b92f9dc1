"""Reconstruction of images: the loss is a mean over pixels for any batch, and any number of images is predicted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from heedful.data.images.batches import EncodedImages, ImageBatch
from heedful.data.images.image_spec import ImageSpec
from heedful.errors import UserError
from heedful.models import build
from heedful.models.autoencoder.config import AutoencoderConfig, dense
from heedful.models.autoencoder.layers import Conv, MaxPool, Upsample
from heedful.tasks.reconstruction import predictor as reconstruction
from heedful.tasks.reconstruction.predictor import ImageAutoencoder, Noise, mean_loss, pixels_of, reconstruction_loss
from tolerance import close

CPU = torch.device("cpu")
NONE = Noise(0.0, None)
CONV = AutoencoderConfig(
    input=(2, 6, 4), encoder=(Conv(filters=3), MaxPool()), decoder=(Upsample(), Conv(filters=2, activation="sigmoid"))
)
CONFIGS = {"dense": dense(48, 20, 5), "conv": CONV}
RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (23, 2, 6, 4), dtype=np.uint8)


def autoencoder(name: str = "dense", noise: Noise = NONE) -> ImageAutoencoder:
    torch.manual_seed(0)
    return ImageAutoencoder(build(CONFIGS[name]), ImageSpec((2, 6, 4)), noise, CPU)


def batch_of(pixels: Any, start: int = 0) -> ImageBatch:
    x = torch.as_tensor(pixels)
    return ImageBatch(x, torch.tensor(0), torch.arange(start, start + len(x)))


@pytest.mark.parametrize("name", CONFIGS)
def test_loss_is_the_mean_square_over_pixels_and_parts_add_up(name: str) -> None:
    model: Any = build(CONFIGS[name])
    noise = Noise(0.3, (0.0, 1.0), 4)
    whole = reconstruction_loss(model, batch_of(IMAGES), noise)
    x = torch.from_numpy(IMAGES) / 255
    given = noise(x, torch.tensor(0), torch.arange(23))
    made = model(given.view(-1, *CONFIGS[name].input)).view_as(x)
    assert float(whole.plain / whole.count) == pytest.approx(float((made - x).square().mean().detach()), rel=1e-5)
    cuts = [(0, 10), (10, 10), (10, 23)]  # one of them without an image, as for a process without a share
    parts = [reconstruction_loss(model, batch_of(IMAGES[a:b], a), noise) for a, b in cuts]
    assert sum(float(part.plain) for part in parts) == pytest.approx(float(whole.plain), rel=1e-6)
    assert [int(part.count) for part in parts] == [10, 0, 13]
    assert not whole.plain.requires_grad and whole.total.requires_grad


@pytest.mark.parametrize("name", CONFIGS)
def test_empty_share_has_no_gradient(name: str) -> None:
    model: Any = build(CONFIGS[name])
    reconstruction_loss(model, batch_of(IMAGES[:0]), NONE).total.backward()
    assert all(weight.grad is not None and not weight.grad.any() for weight in model.parameters())


def test_bytes_are_scaled_by_255_and_floats_kept() -> None:
    assert pixels_of(batch_of(np.array([[[[0, 51, 255]]]], np.uint8))).flatten().tolist() == pytest.approx([0, 0.2, 1])
    floats = torch.tensor([[[[-3.0, 0.5]]]])
    assert torch.equal(pixels_of(batch_of(floats)), floats)


def test_zero_deviation_adds_no_noise_and_no_bounds_clip_nothing() -> None:
    x = torch.rand(5, 1, 4, 4)
    assert Noise(0.0, (0.2, 0.4))(x, torch.tensor(0), torch.arange(5)) is x
    free = Noise(3.0, None)(x, torch.tensor(0), torch.arange(5))
    assert free.min() < -1 and free.max() > 2
    cut = Noise(3.0, (-0.5, 0.5))(x, torch.tensor(0), torch.arange(5))
    assert (float(cut.min()), float(cut.max())) == (-0.5, 0.5)


def test_mean_loss_does_not_depend_on_the_batch_size(monkeypatch: pytest.MonkeyPatch) -> None:
    model: Any = build(CONFIGS["conv"])
    encoded, noise = EncodedImages(torch.from_numpy(IMAGES)), Noise(0.5, (0.0, 1.0), 1)
    expected = mean_loss(model, encoded, noise, CPU)
    monkeypatch.setattr(reconstruction, "BATCH_SIZE", 4)
    assert mean_loss(model, encoded, noise, CPU) == pytest.approx(expected, rel=1e-6)
    assert mean_loss(model, encoded, Noise(0.5, (0.0, 1.0), 2), CPU) != expected


# ------------------------------------------------------------------ the predictor
@pytest.mark.parametrize("name", CONFIGS)
def test_any_number_of_images_is_encoded_decoded_and_reconstructed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    predictor = autoencoder(name)
    codes, made = predictor.encode(IMAGES), predictor.reconstruct(IMAGES)
    assert codes.shape == (23, int(np.prod(CONFIGS[name].code))) and made.shape == IMAGES.shape
    assert codes.dtype == made.dtype == np.float32
    close(predictor.decode(codes), made)
    monkeypatch.setattr(reconstruction, "BATCH_SIZE", 4)
    close(predictor.encode(IMAGES), codes)
    assert predictor.encode(IMAGES[:0]).shape == (0, codes.shape[1])
    assert predictor.reconstruct(IMAGES[:0]).shape == (0, 2, 6, 4)
    assert not predictor.model.training


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_bytes_and_floats_give_the_same(dtype: Any) -> None:
    predictor = autoencoder("conv")
    shares = (IMAGES / 255).astype(dtype)
    np.testing.assert_allclose(predictor.encode(shares), predictor.encode(IMAGES), rtol=1e-2, atol=2e-3)
    assert predictor.noisy(shares).dtype == np.float32


def test_mismatched_images_and_codes_are_rejected() -> None:
    predictor = autoencoder()
    with pytest.raises(UserError, match="do not have the size"):
        predictor.encode(IMAGES[:, :1])
    with pytest.raises(UserError, match="do not have the size"):
        predictor.reconstruct(IMAGES.reshape(23, 48))
    for codes in (np.zeros((3, 6)), np.zeros(5), np.zeros((2, 5, 1))):
        with pytest.raises(UserError, match="not codes of this model") as raised:
            predictor.decode(codes)
        assert "(N, 5)" in str(raised.value.expected)


def test_noise_is_repeated_by_its_seed() -> None:
    predictor = autoencoder(noise=Noise(0.5, (0.0, 1.0)))
    first = predictor.noisy(IMAGES, seed=3)
    assert np.array_equal(predictor.noisy(IMAGES, seed=3), first)
    assert not np.array_equal(predictor.noisy(IMAGES, seed=4), first)
    assert (first.min(), first.max()) == (0, 1)
    assert np.array_equal(autoencoder().noisy(IMAGES), (IMAGES / np.float32(255)).astype(np.float32))


def test_interpolation_has_even_steps() -> None:
    predictor = autoencoder()
    images = predictor.walk(IMAGES[:1], IMAGES[1:2], 5)
    assert images.shape == (5, 2, 6, 4)
    codes = predictor.encode(IMAGES[:2])
    close(images[[0, 4]], predictor.decode(codes), slack=16)
    close(images[2], predictor.decode(codes.mean(0, keepdims=True))[0], slack=16)
