"""GoogLeNet ("Going deeper with convolutions", Szegedy et al., 2015).

Inception modules look at the image with filters of several sizes beside each other. In training, side classifiers read
the feature maps of inner modules, so that gradients reach the lower layers.

Differs: batch norm after each convolution, as in Inception-v2, no local response normalization, the last max pool has
windows of 2 x 2, and the third branch has filters of 3 x 3 unless `large_kernel` is 5: so are the published weights.

B batch, Y rows, X columns, D channels, F values of the small map, H hidden width, N classes.
"""

from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from heedful.blocks.convolution import ConvNormRelu, Inception, init_he
from heedful.models.googlenet.config import SIDE_GRID, GoogLeNetConfig, pool_size
from heedful.models.image_model import ImageModel

EPS = 1e-3  # of batch norm


class SideClassifier(nn.Module):
    """A feature map (B, D, Y, X) -> logits (B, N): an average, a 1 x 1 convolution and two dense layers."""

    def __init__(self, channels: int, c: GoogLeNetConfig, classes: int) -> None:
        super().__init__()
        self.pool = nn.AdaptiveAvgPool2d(SIDE_GRID)
        self.conv = nn.Conv2d(channels, c.side_filters, 1, bias=False)
        self.norm = nn.BatchNorm2d(c.side_filters, EPS)
        self.dense = nn.Linear(SIDE_GRID**2 * c.side_filters, c.side_hidden)
        self.dropout = nn.Dropout(c.side_dropout)
        self.head = nn.Linear(c.side_hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.conv(self.pool(x)))).flatten(1)  # (B, F)
        x = F.relu(self.dense(x))  # (B, H)
        return self.head(self.dropout(x))  # (B, N)


class GoogLeNet(ImageModel):
    """images (B, C, Y, X) -> logits (B, N)."""

    after_map: ClassVar = ("sides", "head")

    config: GoogLeNetConfig

    def __init__(self, config: GoogLeNetConfig) -> None:
        super().__init__()
        self.config = c = config
        one, two, channels = c.stem_filters
        large = c.stem == "large"
        self.stem = nn.Sequential(
            ConvNormRelu(c.channels, one, 7 if large else 3, 2 if large else 1, eps=EPS),
            nn.MaxPool2d(3, 2, ceil_mode=True) if large else nn.Identity(),
            ConvNormRelu(one, two, 1, eps=EPS),
            ConvNormRelu(two, channels, 3, eps=EPS),
            nn.MaxPool2d(3, 2, ceil_mode=True) if large else nn.Identity(),
        )
        self.inceptions, self.sides, number = nn.ModuleList(), nn.ModuleDict(), 0
        for stage, modules in enumerate(c.stages):
            pool = nn.MaxPool2d(pool_size(stage, len(c.stages)), 2, ceil_mode=True)
            for place, filters in enumerate(modules):
                inception = Inception(channels, filters, c.large_kernel, EPS)
                self.inceptions.append(nn.Sequential(pool, inception) if stage and not place else inception)
                channels, number = inception.channels, number + 1
                if number in c.sides:
                    self.sides[str(number)] = SideClassifier(channels, c, c.outputs)
        self.dropout = nn.Dropout(c.dropout)
        self.head = nn.Linear(channels, c.outputs)
        init_he(self)

    def maps(self, images: Tensor) -> list[Tensor]:
        """The feature maps after each inception module."""
        self.check(images)
        found = [self.stem(images)]
        for inception in self.inceptions:
            found.append(inception(found[-1]))
        return found[1:]

    def map(self, images: Tensor) -> Tensor:
        return self.maps(images)[-1]  # (B, D, Y, X)

    def pooled(self, map: Tensor) -> Tensor:
        return self.dropout(map.mean((2, 3)))  # (B, D)

    def features(self, images: Tensor) -> Tensor:
        return self.pooled(self.map(images))  # (B, D)

    def training_logits(self, images: Tensor) -> list[tuple[float, Tensor]]:
        """The logits (B, N) of the last layer, and of the side classifiers with their weight."""
        maps, weight = self.maps(images), self.config.side_weight
        sides = [(weight, side(maps[int(number) - 1])) for number, side in self.sides.items()]
        return [(1.0, self.head(self.pooled(maps[-1]))), *sides]
