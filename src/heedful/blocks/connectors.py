"""Connectors: from the final state of an encoder to the first state of a decoder, by way of a code.

A decoder that does not attend knows its source from this state alone. The code is what is between the two: what a model
of sentences can sample, and what it interpolates.

B batch, M numbers of the encoder's state, N of the decoder's, K units of the code.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from heedful.blocks.linear import Linear
from heedful.blocks.taps import Tap


class Posterior(NamedTuple):
    """The code of a source: N(mean, variance), or the mean alone where nothing is random."""

    mean: Tensor  # (B, K)
    log_variance: Tensor | None = None  # (B, K)


def reparameterize(mean: Tensor, log_variance: Tensor, noise: Tensor) -> Tensor:
    """z = mean + sigma * noise (..., K), with noise from N(0, 1): gradients reach mean and variance through the sample.

    (Kingma and Welling, 2014; Rezende et al., 2014)
    """
    return mean + (0.5 * log_variance).exp() * noise


class Constant(nn.Module):
    """The same learned state for every source, whose code is empty: the decoder is a language model."""

    def __init__(self, into: int, out: int) -> None:
        super().__init__()
        self.state = nn.Parameter(torch.zeros(out))

    def encode(self, state: Tensor) -> Posterior:
        return Posterior(state[:, :0])  # (B, K) of no units

    def decode(self, code: Tensor) -> Tensor:
        nothing = code.sum(-1, keepdim=True)  # (B, 1), zeros: the encoder has gradients of zero, as processes expect
        return self.state + nothing  # (B, N)


class Forward(nn.Module):
    """The encoder's state itself, which must be as wide as the decoder's."""

    def __init__(self, into: int, out: int) -> None:
        super().__init__()
        assert into == out, "encoder and decoder have states of one size"

    def encode(self, state: Tensor) -> Posterior:
        return Posterior(state)

    def decode(self, code: Tensor) -> Tensor:
        return code


class Mlp(nn.Module):
    """code = tanh(W s + b); state = tanh(U code + c)."""

    def __init__(self, into: int, out: int, width: int) -> None:
        super().__init__()
        self.code, self.begin = Linear(into, width), Linear(width, out)

    def encode(self, state: Tensor) -> Posterior:
        return Posterior(torch.tanh(self.code(state)))  # (B, K)

    def decode(self, code: Tensor) -> Tensor:
        return torch.tanh(self.begin(code))  # (B, N)


class Stochastic(nn.Module):
    """z ~ N(mean, variance), both linear in the encoder's state; state = tanh(U z + c) (Bowman et al., 2016)."""

    def __init__(self, into: int, out: int, width: int) -> None:
        super().__init__()
        self.mean, self.log_variance = Linear(into, width), Linear(into, width)
        self.begin = Linear(width, out)
        self.means, self.log_variances = Tap(), Tap()

    def encode(self, state: Tensor) -> Posterior:
        mean = self.means(self.mean(state))  # (B, K)
        return Posterior(mean, self.log_variances(self.log_variance(state)))

    def decode(self, code: Tensor) -> Tensor:
        return torch.tanh(self.begin(code))  # (B, N)
