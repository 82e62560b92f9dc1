"""Autoencoders (Rumelhart et al., 1986; denoising: Vincent et al., 2008), dense or convolutional.

An encoder makes a small code of its input and a decoder makes the input again from the code; both learn together.

B batch, D vector, C channels, Y rows, X columns.
"""

from __future__ import annotations

from torch import Tensor, nn

from heedful.models.autoencoder.config import AutoencoderConfig
from heedful.models.autoencoder.layers import summarize
from heedful.models.autoencoder.network import Network
from heedful.models.summary import Summary


class Autoencoder(nn.Module):
    """x -> decoder(encoder(x))."""

    def __init__(self, config: AutoencoderConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = Network.of(config.input, config.encoder)
        self.decoder = Network.of(config.code, config.decoder)

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.encoder(x))

    def summary(self) -> Summary:
        """Each layer with what comes out of it and how many parameters it has."""
        layers = (*self.encoder.specs, *self.decoder.specs)
        return summarize(self.config.input, layers, [*self.encoder.frozen, *self.decoder.frozen])
