"""ConvNets for inference on a CPU: batch norms folded into convolutions, which oneDNN computes with what follows them.

B batch, C channels, Y rows, X columns, F filters.
"""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from heedful.blocks.convolution import ConvNorm, ConvNormRelu, ConvRelu
from heedful.blocks.taps import Tap


class FoldedConvolution(nn.Module):
    """relu(W * x + b + shortcut), or without relu or shortcut, with the weights packed for oneDNN."""

    def __init__(self, conv: nn.Conv2d, relu: bool, dtype: torch.dtype) -> None:
        super().__init__()
        assert conv.bias is not None and isinstance(conv.padding, tuple)
        self.geometry = list(conv.padding), list(conv.stride), list(conv.dilation), conv.groups
        self.plain = conv.weight.detach().to(dtype)
        self.packed: Tensor = torch.ops.mkldnn._reorder_convolution_weight(self.plain, *self.geometry)
        self.bias = conv.bias.detach().to(dtype)
        self.relu, self.output = "relu" if relu else "none", Tap()

    def forward(self, x: Tensor, shortcut: Tensor | None = None) -> Tensor:
        x = x.to(self.plain.dtype).contiguous(memory_format=torch.channels_last)
        known = self.packed, self.bias, *self.geometry
        if shortcut is None:
            y = torch.ops.mkldnn._convolution_pointwise(x, *known, self.relu, [], "")
        else:
            y = torch.ops.mkldnn._convolution_pointwise.binary(x, shortcut, *known, "add", 1.0, "relu", [], "")
        found: Tensor = self.output(y)  # (B, F, Y, X)
        return found


def fold(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """A copy of a model for inference on a CPU in this precision; there are no batch norms in it."""
    copied = deepcopy(model).cpu().eval()
    for parent in list(copied.modules()):
        for name, layer in list(parent.named_children()):
            if isinstance(layer, ConvNorm | ConvNormRelu):
                conv = fuse_conv_bn_eval(layer.conv, layer.norm)
            elif isinstance(layer, ConvRelu):
                conv = layer.conv
            else:
                continue
            setattr(parent, name, FoldedConvolution(conv, not isinstance(layer, ConvNorm), dtype))
    return copied.to(dtype)
