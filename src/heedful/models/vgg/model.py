"""VGG ("Very deep convolutional networks for large-scale image recognition", Simonyan and Zisserman, 2015).

Stages of 3 x 3 convolutions, each ended by a max pool that halves the image, then three dense layers. Two convolutions
of 3 x 3 cover 5 x 5 pixels with fewer weights than one of 5 x 5, and with one more relu.

Differs: for images of other sizes, the last feature map is averaged to `grid` x `grid`; dropout stands after the hidden
layers.

B batch, Y rows, X columns, D filters of the last convolution, H hidden width.
"""

from typing import ClassVar

from torch import Tensor, nn

from heedful.blocks.convolution import ConvNormRelu, ConvRelu, init_he
from heedful.models.image_model import ImageModel
from heedful.models.vgg.config import VggConfig


class Vgg(ImageModel):
    """images (B, C, Y, X) -> logits (B, N)."""

    after_map: ClassVar = ("dense", "head")

    def __init__(self, config: VggConfig) -> None:
        super().__init__()
        self.config = c = config
        self.stages, channels = nn.Sequential(), c.channels
        for depth, filters in zip(c.depths, c.filters, strict=True):
            stage = nn.Sequential()
            for _ in range(depth):
                batch = c.norm == "batch"
                stage.append(ConvNormRelu(channels, filters, bias=True) if batch else ConvRelu(channels, filters))
                channels = filters
            self.stages.append(stage.append(nn.MaxPool2d(2)))
        self.pool = nn.AdaptiveAvgPool2d(c.grid)
        self.dense = nn.Sequential(
            nn.Linear(c.grid**2 * channels, c.hidden),
            nn.ReLU(),
            nn.Dropout(c.dropout),
            nn.Linear(c.hidden, c.hidden),
            nn.ReLU(),
            nn.Dropout(c.dropout),
        )
        self.head = nn.Linear(c.hidden, c.outputs)
        init_he(self)

    def map(self, images: Tensor) -> Tensor:
        self.check(images)
        return self.stages(images)  # (B, D, Y, X)

    def features(self, images: Tensor) -> Tensor:
        return self.dense(self.pool(self.map(images)).flatten(1))  # (B, H)
