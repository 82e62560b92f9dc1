"""Augmentation of images: each change is a function of the seed, the epoch and the image's key alone.

So a batch has the same pixels whichever process makes it, and a resumed run sees what the unbroken one would have seen.
The key of an image is its number, or, where it is repeated in an epoch, another one for each repetition.

B images of a batch, C channels, Y rows, X columns.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from heedful.data.images.augmentation import Augmentation
from heedful.data.order import random_bits_at

FIRST_STREAM = 2**40  # of random numbers: those below are for the order of images
ASPECT = 4 / 3  # of a crop, at most, and its inverse
ERASED_SHARES, ERASED_ASPECT = (0.02, 1 / 3), 10 / 3  # of the rectangle that is erased (Zhong et al., 2017)
TOGETHER = 2**18  # values of images that are changed together, so that they stay in the CPU's cache
ATTEMPTS = 500  # to draw a number by rejection; all fail with a probability below 1e-39
GREY = (0.299, 0.587, 0.114)  # weights of red, green and blue in the brightness

Numbers = NDArray[np.float64]
Box = tuple[float, float, float, float]  # top, left, height, width
NOWHERE: Box = (0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Draws:
    """Random numbers for each image of a batch, by purpose."""

    seed: int
    epoch: int
    keys: NDArray[np.int64]  # (B,)

    def bits(self, purpose: int) -> NDArray[np.uint64]:
        """Random 64-bit integers (B,)."""
        return random_bits_at(self.seed, self.epoch, FIRST_STREAM + purpose, self.keys)

    def uniform(self, purpose: int, low: float = 0.0, high: float = 1.0) -> Numbers:
        """Numbers (B,) from low to high."""
        shares: Numbers = (self.bits(purpose) >> np.uint64(11)).astype(np.float64) * 2.0**-53
        return low + (high - low) * shares


def augment(pixels: Tensor, settings: Augmentation, fill: tuple[float, ...], draws: Draws) -> Tensor:
    """Images (B, C, Y, X) with all changes but mixing; `fill` is the colour of erased rectangles, from 0 to 1.

    In this order: crop, flip, brightness, contrast, saturation, hue, erasing.
    """
    x = placed(pixels, settings, draws)
    if not (settings.brightness or settings.contrast or settings.saturation or settings.hue or settings.erase):
        return x
    found, size = torch.empty_like(x), max(1, TOGETHER // math.prod(x.shape[1:]))
    for start in range(0, len(x), size):
        some = slice(start, start + size)
        found[some] = _recoloured(x[some], settings, fill, replace(draws, keys=draws.keys[some]))
    return found


def _recoloured(pixels: Tensor, settings: Augmentation, fill: tuple[float, ...], draws: Draws) -> Tensor:
    most = 255.0 if pixels.dtype == torch.uint8 else math.inf
    x = pixels
    for purpose, strength, change in (
        (7, settings.brightness, brightened),
        (8, settings.contrast, contrasted),
        (9, settings.saturation, saturated),
    ):
        if strength:
            factors = _column(draws.uniform(purpose, 1 - strength, 1 + strength))
            x = change(x.float(), factors).clamp_(min=0.0, max=most)
    if settings.hue:
        x = turned(x.float(), _column(draws.uniform(19, -settings.hue, settings.hue)))
    if settings.erase:
        x = x.float()
        colour = x.new_tensor(fill)[:, None, None] * (255 if pixels.dtype == torch.uint8 else 1)
        x = torch.where(erased(settings.erase, x.shape, draws), colour, x)
    return x if x.dtype == pixels.dtype else _like(x, pixels)


def _column(values: NDArray[np.generic]) -> Tensor:
    """A value of each image as (B, 1, 1, 1)."""
    found = torch.from_numpy(values)
    return (found if found.dtype == torch.bool else found.float())[:, None, None, None]


def _like(x: Tensor, pixels: Tensor) -> Tensor:
    """Pixels of the type that they had: bytes are rounded."""
    return x.round().clamp(0, 255).to(torch.uint8) if pixels.dtype == torch.uint8 else x


# ------------------------------------------------------------------ crops
def placed(x: Tensor, settings: Augmentation, draws: Draws) -> Tensor:
    """Images that are cropped, then mirrored; one after the other, since one stays in the CPU's cache."""
    if not (settings.crop or settings.resized_crop or settings.flip):
        return x
    mirrored = (draws.uniform(6) < settings.flip).tolist()
    if settings.resized_crop is not None:
        boxes = [crop_box(one, x.shape) for one in crop_draws(settings.resized_crop, draws)]
        return resized(x, boxes, mirrored)
    return shifted(x, settings.crop, mirrored, draws)


def shifted(x: Tensor, padding: int, mirrored: list[bool], draws: Draws) -> Tensor:
    """A random part of its own size of each image with zeros around it; some are mirrored."""
    _, _, rows, columns = x.shape
    found = torch.empty_like(x)
    tops, lefts = ((draws.bits(n) % np.uint64(2 * padding + 1)).astype(np.int64) - padding for n in (0, 1))
    for image, to, top, left, mirror in zip(x, found, tops.tolist(), lefts.tolist(), mirrored, strict=True):
        part = image[:, max(0, top) : max(0, rows + min(0, top)), max(0, left) : max(0, columns + min(0, left))]
        (_, high, wide), down = part.shape, max(0, -top)
        across = max(0, left) if mirror else max(0, -left)
        if high < rows or wide < columns:
            to.zero_()
        to[:, down : down + high, across : across + wide] = part.flip(-1) if mirror else part
    return found


def crop_draws(
    shares: tuple[float, float], draws: Draws, aspect: float = ASPECT, purpose: int = 2
) -> list[tuple[float, ...]]:
    """The share of the area, the logarithm of the aspect, and the position from 0 to 1 of a rectangle in each image."""
    limit = math.log(aspect)
    numbers = [draws.uniform(purpose, *shares), draws.uniform(purpose + 1, -limit, limit)]
    numbers += [draws.uniform(purpose + 2), draws.uniform(purpose + 3)]
    return list(zip(*(part.tolist() for part in numbers), strict=True))


def crop_box(drawn: tuple[float, ...], shape: torch.Size) -> Box:
    """A rectangle of this share of the area and this aspect, cut to the image, at its position."""
    (share, aspect, down, across), (_, _, rows, columns) = drawn, shape
    height = min(float(rows), math.sqrt(share * rows * columns / math.exp(aspect)))
    width = min(float(columns), math.sqrt(share * rows * columns * math.exp(aspect)))
    return down * (rows - height), across * (columns - width), height, width


def resized(x: Tensor, boxes: list[Box], mirrored: list[bool]) -> Tensor:
    """The rectangles of images, rounded to whole pixels, resized bilinearly to their size, and some mirrored."""
    found = torch.empty_like(x)
    for image, to, (top, left, height, width), mirror in zip(x, found, boxes, mirrored, strict=True):
        first, start = round(top), round(left)
        part = image[:, first : max(first + 1, round(top + height)), start : max(start + 1, round(left + width))]
        whole = functional.interpolate(part[None], x.shape[2:], mode="bilinear", antialias=True)[0]
        to[:] = whole.flip(-1) if mirror else whole
    return found


# ------------------------------------------------------------------ colours
def brightened(x: Tensor, factors: Tensor) -> Tensor:
    """Brighter or darker images."""
    return x * factors


def contrasted(x: Tensor, factors: Tensor) -> Tensor:
    """Images further from their mean brightness, or nearer to it."""
    # One by one: a sum over a batch may be added in another order.
    mean = torch.stack([one.mean() for one in grey(x)])[:, None, None, None] if len(x) else x[:, :1, :1, :1]
    return mean + factors * (x - mean)


def saturated(x: Tensor, factors: Tensor) -> Tensor:
    """Images further from grey, or nearer to it."""
    plain = grey(x)
    return plain + factors * (x - plain)


def turned(x: Tensor, turns: Tensor) -> Tensor:
    """Images whose hues are turned by a share of the colour circle (HSV); grey pixels and grey images stay."""
    if x.shape[1] != 3:
        return x
    red, green, blue = x.unbind(1)
    most, least = x.amax(1), x.amin(1)
    spread = most - least
    ratio = 1 / torch.where(spread > 0, spread, 1)
    hue = torch.where(
        most == red,
        (green - blue) * ratio,
        torch.where(most == green, (blue - red) * ratio + 2, (red - green) * ratio + 4),
    )
    hue = hue + 6 * turns.squeeze(1)
    places = [(hue + shift) % 6 for shift in (5, 3, 1)]  # of red, green and blue on the circle
    shares = [torch.minimum(place, 4 - place).clamp(0, 1) for place in places]
    return torch.stack([most - spread * share for share in shares], 1)


def grey(x: Tensor) -> Tensor:
    """The brightness of each pixel (B, 1, Y, X)."""
    if x.shape[1] != 3:
        return x[:, :1]
    red, green, blue = (weight * x[:, place, None] for place, weight in enumerate(GREY))
    return red + green + blue


# ------------------------------------------------------------------ rectangles
def erased(probability: float, shape: torch.Size, draws: Draws) -> Tensor:
    """Which pixels (B, 1, Y, X) are erased: a random rectangle of some images."""
    chosen = (draws.uniform(10) < probability).tolist()
    drawn = crop_draws(ERASED_SHARES, draws, ERASED_ASPECT, purpose=11)
    boxes = [crop_box(one, shape) if wanted else NOWHERE for wanted, one in zip(chosen, drawn, strict=True)]
    return inside(boxes, shape)


def inside(boxes: list[Box], shape: torch.Size) -> Tensor:
    """Which pixels (B, 1, Y, X) have their centres in the rectangles."""
    _, _, rows, columns = shape
    tops, lefts, heights, widths = torch.tensor(boxes, dtype=torch.float64).view(-1, 4).T[..., None]  # each (B, 1)
    down, across = torch.arange(rows) + 0.5, torch.arange(columns) + 0.5
    high, wide = (tops <= down) & (down < tops + heights), (lefts <= across) & (across < lefts + widths)
    return (high[:, :, None] & wide[:, None, :])[:, None]


# ------------------------------------------------------------------ mixing two images
def partners(draws: Draws, count: int) -> NDArray[np.int64]:
    """The number, of `count`, of the image that is mixed into each."""
    return (draws.bits(15) % np.uint64(count)).astype(np.int64)


def mix(x: Tensor, others: Tensor, settings: Augmentation, draws: Draws) -> tuple[Tensor, Tensor]:
    """Mixed images, and the share (B,) of the first of each: mixup (Zhang et al., 2018), cutmix (Yun et al., 2019)."""
    both = bool(settings.mixup and settings.cutmix)
    cuts = [number < 0.5 if both else settings.cutmix > 0 for number in draws.uniform(16).tolist()]
    shares = beta([settings.cutmix if cut else settings.mixup for cut in cuts], draws)
    places = zip(shares, draws.uniform(17).tolist(), draws.uniform(18).tolist(), strict=True)
    boxes = [cut_box(*place, x.shape) if cut else NOWHERE for cut, place in zip(cuts, places, strict=True)]
    there, chosen = inside(boxes, x.shape), torch.tensor(cuts, dtype=torch.bool)
    kept = torch.where(chosen, 1 - there.float().mean((1, 2, 3)), torch.tensor(shares))
    weights = kept[:, None, None, None]
    blended = weights * x.float() + (1 - weights) * others.float()
    mixed = torch.where(chosen[:, None, None, None], torch.where(there, others, x).float(), blended)
    return _like(mixed, x), kept


def cut_box(share: float, down: float, across: float, shape: torch.Size) -> Box:
    """A rectangle of the image's aspect with 1 - share of its area, around a position, cut to the image."""
    _, _, rows, columns = shape
    side = math.sqrt(1 - share)
    edges = [
        (max(0.0, size * (centre - side / 2)), min(float(size), size * (centre + side / 2)))
        for size, centre in ((rows, down), (columns, across))
    ]
    (top, bottom), (left, right) = edges
    return top, left, bottom - top, right - left


def beta(alphas: list[float], draws: Draws) -> list[float]:
    """Numbers from Beta(alpha, alpha) by Johnk's algorithm (1964): rejection, with new numbers in each attempt."""
    found: list[float | None] = [None] * len(alphas)
    for attempt in range(ATTEMPTS):
        if None not in found:
            break
        pairs = zip(draws.uniform(20 + 2 * attempt).tolist(), draws.uniform(21 + 2 * attempt).tolist(), strict=True)
        for place, (alpha, (u, v)) in enumerate(zip(alphas, pairs, strict=True)):
            one, other = u ** (1 / alpha), v ** (1 / alpha)
            if found[place] is None and 0 < one + other <= 1:
                found[place] = one / (one + other)
    assert None not in found, "an attempt succeeds with a probability of at least 1 / 6"
    return [share for share in found if share is not None]
