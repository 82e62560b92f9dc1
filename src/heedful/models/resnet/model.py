"""ResNet ("Deep residual learning for image recognition", He et al., 2016).

Blocks of convolutions learn what is to be added to their input: y = relu(F(x) + x). A shortcut without weights leads
past each block, except where the image is halved, so that nets of a hundred layers and more can be trained.

Differs: a bottleneck halves the image in its 3 x 3 convolution, not in its first one, as published weights have it.

B batch, Y rows, X columns, D channels.
"""

from itertools import pairwise

from torch import Tensor, nn

from heedful.blocks.convolution import ConvNorm, ConvNormRelu, Residual, init_he
from heedful.models.image_model import ImageModel
from heedful.models.resnet.config import BOTTLENECK, ResNetConfig


def basic(before: int, width: int, stride: int) -> nn.Sequential:
    """Two 3 x 3 convolutions."""
    return nn.Sequential(ConvNormRelu(before, width, 3, stride), ConvNorm(width, width, 3))


def bottleneck(before: int, width: int, stride: int) -> nn.Sequential:
    """1 x 1 to a quarter of the channels, 3 x 3, and 1 x 1 back to all of them."""
    narrow = width // BOTTLENECK
    return nn.Sequential(
        ConvNormRelu(before, narrow, 1), ConvNormRelu(narrow, narrow, 3, stride), ConvNorm(narrow, width, 1)
    )


BODIES = {"basic": basic, "bottleneck": bottleneck}


class ResNet(ImageModel):
    """images (B, C, Y, X) -> logits (B, N)."""

    def __init__(self, config: ResNetConfig) -> None:
        super().__init__()
        self.config = c = config
        if c.stem == "large":
            self.stem = nn.Sequential(ConvNormRelu(c.channels, c.stem_width, 7, 2), nn.MaxPool2d(3, 2, padding=1))
        else:
            self.stem = nn.Sequential(ConvNormRelu(c.channels, c.stem_width, 3))
        self.stages = nn.Sequential()
        for stage, (before, width) in enumerate(pairwise((c.stem_width, *c.widths))):
            stride = 2 if stage else 1
            shortcut = ConvNorm(before, width, 1, stride) if c.projects(stage) else nn.Identity()
            first = Residual(BODIES[c.block](before, width, stride), shortcut)
            others = (Residual(BODIES[c.block](width, width, 1), nn.Identity()) for _ in range(c.depths[stage] - 1))
            self.stages.append(nn.Sequential(first, *others))
        self.head = nn.Linear(c.widths[-1], c.outputs)
        init_he(self)

    def map(self, images: Tensor) -> Tensor:
        self.check(images)
        return self.stages(self.stem(images))  # (B, D, Y, X)

    def features(self, images: Tensor) -> Tensor:
        return self.map(images).mean((2, 3))  # (B, D)
