"""What image classifiers share: a linear layer over the features of an image.

B batch, C channels, Y rows, X columns, D width of the feature map, F features, N classes.
"""

from abc import abstractmethod
from typing import ClassVar

from torch import Tensor, nn

from heedful.models.limits import check_image
from heedful.models.roles import ImageEncoderConfig


class ImageModel(nn.Module):
    """images (B, C, Y, X) -> logits (B, N): head(features(images))."""

    after_map: ClassVar[tuple[str, ...]] = ("head",)  # layers that the map does not need

    config: ImageEncoderConfig
    head: nn.Linear

    def check(self, images: Tensor) -> None:
        """Refuse images that the model does not read."""
        check_image(images.shape, self.config.input, self.config.any_size)

    @abstractmethod
    def map(self, images: Tensor) -> Tensor:
        """The feature map (B, D, Y, X) of the last layer that has rows and columns."""

    def keep_map(self) -> None:
        """Remove the layers after the map, for a model that reads the map alone."""
        for name in self.after_map:
            self.set_submodule(name, nn.Identity())

    @abstractmethod
    def features(self, images: Tensor) -> Tensor:
        """The vector (B, F) of each image that the last layer reads."""

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.features(images))  # (B, N)

    def training_logits(self, images: Tensor) -> list[tuple[float, Tensor]]:
        """The logits (B, N) that are trained, each with the weight of its loss."""
        return [(1.0, self(images))]
