"""How weights are initialized, and words that training has not seen."""

from torch import nn

from heedful.blocks.linear import Linear

STD = 0.1  # of the initial weights
UNK = 1  # the id of words that training has not seen


def initialize(*layers: nn.Embedding | Linear) -> None:
    """Initialize weights from a normal distribution."""
    for layer in layers:
        nn.init.normal_(layer.weight, std=STD)


def ignore_unknown(*tables: nn.Embedding) -> None:
    """Set the vector of unknown words to zero, which it remains: no gradient reaches it."""
    for table in tables:
        nn.init.zeros_(table.weight[UNK].detach())
