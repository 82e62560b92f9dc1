"""How weights start."""

from torch import nn


def xavier(module: nn.Module) -> None:
    """Glorot-uniform matrices and zero biases in every linear layer below the module."""
    for part in module.modules():
        if isinstance(part, nn.Linear):
            nn.init.xavier_uniform_(part.weight)
            if part.bias is not None:
                nn.init.zeros_(part.bias)
