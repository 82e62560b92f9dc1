"""The recurrent attention model (Mnih et al., 2014, "Recurrent models of visual attention").

B batch, C channels, Y rows, X columns, K scales, G side of a patch, S side of the widest one, T glimpses, H hidden
units, D width, N classes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.blocks.taps import Tap
from heedful.models.limits import check_image
from heedful.models.recurrent_attention.config import RecurrentAttentionConfig

CALM = 4.0  # by which states are divided for the policy: Adam's noisy steps would soon drive all places to a border


@dataclass(frozen=True)
class Glimpses:
    """What the model looked at, and the policy that chose it."""

    places: Tensor  # (B, T, 2) rows and columns from -1 to 1, the first at the centre
    states: Tensor  # (B, T, D) after each glimpse
    logs: Tensor  # (B, T - 1) log p of the places after the first
    values: Tensor  # (B, T - 1) the baseline: the reward expected before each of them


def crop(images: Tensor, places: Tensor, side: int) -> Tensor:
    """The square (B, C, side, side) of each image whose centre is at `places` (B, 2); zeros beyond the border."""
    shares = (places.float() + 1) / 2  # (B, 2)
    top, left = ((shares[:, axis] * images.shape[2 + axis]).round().long() for axis in (0, 1))  # each (B,)
    before, offsets = side // 2, torch.arange(side, device=images.device)
    padded = F.pad(images, (before, side - before) * 2)  # (B, C, Y + S, X + S)
    batch = torch.arange(images.shape[0], device=images.device)[:, None, None]  # (B, 1, 1)
    down = (top[:, None] + offsets)[:, :, None]  # (B, S, 1)
    across = (left[:, None] + offsets)[:, None]  # (B, 1, S)
    return padded.movedim(1, 3)[batch, down, across].movedim(3, 1)  # (B, C, S, S)


class GlimpseSensor(nn.Module):
    """A retina: patches around one place, each of twice the width and half the resolution of the one before."""

    def __init__(self, patch: int, scales: int) -> None:
        super().__init__()
        self.patch, self.scales = patch, scales

    def forward(self, images: Tensor, places: Tensor) -> Tensor:
        widest = self.patch << (self.scales - 1)
        around = crop(images, places, widest)  # (B, C, S, S)
        views = []
        for scale in range(self.scales):
            cut = (widest - (self.patch << scale)) // 2
            inner = around[:, :, cut : widest - cut, cut : widest - cut]
            views.append(F.avg_pool2d(inner, 1 << scale))  # (B, C, G, G)
        return torch.stack(views, 1)  # (B, K, C, G, G)


class GlimpseNetwork(nn.Module):
    """g = ReLU(W relu(what) + V relu(where)): a vector of what is seen, and where."""

    def __init__(self, config: RecurrentAttentionConfig) -> None:
        super().__init__()
        self.sensor = GlimpseSensor(config.patch, config.scales)
        self.what = nn.Linear(config.scales * config.channels * config.patch**2, config.hidden)
        self.where = nn.Linear(2, config.hidden)
        self.what_out = nn.Linear(config.hidden, config.width)
        self.where_out = nn.Linear(config.hidden, config.width)

    def forward(self, images: Tensor, places: Tensor) -> Tensor:
        patches = self.sensor(images, places).flatten(1)  # (B, K * C * G * G)
        what, where = self.what(patches).relu(), self.where(places).relu()  # (B, H), (B, H)
        return (self.what_out(what) + self.where_out(where)).relu()  # (B, D)


class RecurrentAttention(nn.Module):
    """h_t = ReLU(W h_(t-1) + V g_t); the next place is sampled from N(tanh(U h_t), noise^2); the last h gives a class.

    The class is learned by backpropagation, the places by REINFORCE, whose gradient ends at the states.
    """

    def __init__(self, config: RecurrentAttentionConfig) -> None:
        super().__init__()
        self.config = config
        self.glimpse = GlimpseNetwork(config)
        self.input = nn.Linear(config.width, config.width)
        self.recurrent = nn.Linear(config.width, config.width)
        self.policy = nn.Linear(config.width, 2)
        self.baseline = nn.Linear(config.width, 1)
        self.head = nn.Linear(config.width, config.outputs)
        self.places, self.states = Tap(), Tap()
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")  # He et al., 2015
                nn.init.zeros_(layer.bias)
        nn.init.eye_(self.recurrent.weight)  # Le et al., 2015
        for layer in (self.policy, self.baseline, self.head):  # at first: the centre, no reward, all classes alike
            nn.init.normal_(layer.weight, std=0.01)

    def choose(self, state: Tensor) -> tuple[Tensor, Tensor]:
        """The mean of the next place (B, 2), and the expected reward (B,); no gradient flows back to the state."""
        seen = state.detach() / CALM  # (B, D)
        mean = self.policy(seen).tanh()  # (B, 2)
        value = self.baseline(seen).squeeze(1)  # (B,)
        return mean, value

    def look(self, images: Tensor) -> Glimpses:
        """All glimpses at images (B, C, Y, X): at sampled places in training, otherwise at their means."""
        check_image(images.shape, self.config.input)
        noise = self.config.noise
        place, state = images.new_zeros(images.shape[0], 2), images.new_zeros(images.shape[0], self.config.width)
        places, states, logs, values = [], [], [], []
        for step in range(self.config.glimpses):
            if step > 0:
                mean, value = self.choose(state)
                sample = (mean + noise * torch.randn_like(mean) if self.training else mean).detach()  # (B, 2)
                log = -((sample - mean) / noise).square() / 2 - math.log(noise * math.sqrt(2 * math.pi))  # (B, 2)
                logs.append(log.sum(1))  # (B,)
                values.append(value)
                place = sample.clamp(-1, 1)  # (B, 2)
            state = (self.input(self.glimpse(images, place)) + self.recurrent(state)).relu()  # (B, D)
            places.append(place)
            states.append(state)
        return Glimpses(
            self.places(torch.stack(places, 1)),  # (B, T, 2)
            self.states(torch.stack(states, 1)),  # (B, T, D)
            torch.stack(logs, 1),  # (B, T - 1)
            torch.stack(values, 1),  # (B, T - 1)
        )

    def patches(self, images: Tensor, places: Tensor) -> Tensor:
        """What a glimpse at `places` (B, 2) sees, from the narrowest patch to the widest."""
        return self.glimpse.sensor(images, places)  # (B, K, C, G, G)

    def features(self, images: Tensor) -> Tensor:
        """The state after the last glimpse."""
        return self.look(images).states[:, -1]  # (B, D)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.features(images))  # (B, N)
