"""AlexNet ("ImageNet classification with deep convolutional neural networks", Krizhevsky et al., 2012).

Five convolutions with three max pools, then three dense layers, with relu and dropout.

Differs: one tower instead of two on two GPUs, and no local response normalization, as in "One weird trick for
parallelizing convolutional neural networks" (Krizhevsky, 2014) and the published weights of this form.

B batch, Y rows, X columns, D filters of the last convolution, H hidden width.
"""

from typing import ClassVar

from torch import Tensor, nn

from heedful.blocks.convolution import ConvRelu, init_he
from heedful.models.alexnet.config import AlexNetConfig
from heedful.models.image_model import ImageModel


class AlexNet(ImageModel):
    """images (B, C, Y, X) -> logits (B, N)."""

    after_map: ClassVar = ("dense", "head")

    def __init__(self, config: AlexNetConfig) -> None:
        super().__init__()
        self.config = c = config
        one, two, three, four, five = c.filters
        self.layers = nn.Sequential(
            ConvRelu(c.channels, one, c.kernel, c.stride, c.padding),
            nn.MaxPool2d(3, 2),
            ConvRelu(one, two, 5),
            nn.MaxPool2d(3, 2),
            ConvRelu(two, three),
            ConvRelu(three, four),
            ConvRelu(four, five),
            nn.MaxPool2d(3, 2),
        )
        self.pool = nn.AdaptiveAvgPool2d(c.grid)
        self.dense = nn.Sequential(
            nn.Dropout(c.dropout),
            nn.Linear(c.grid**2 * five, c.hidden),
            nn.ReLU(),
            nn.Dropout(c.dropout),
            nn.Linear(c.hidden, c.hidden),
            nn.ReLU(),
        )
        self.head = nn.Linear(c.hidden, c.outputs)
        init_he(self)

    def map(self, images: Tensor) -> Tensor:
        self.check(images)
        return self.layers(images)  # (B, D, Y, X)

    def features(self, images: Tensor) -> Tensor:
        return self.dense(self.pool(self.map(images)).flatten(1))  # (B, H)
