"""The graph of a ConvNet's layers: receptive fields, and the number of weighted layers on the longest path.

The model is traced symbolically, so that nothing is computed: every path from the image to a layer is known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar

from torch import fx, nn

from heedful.errors import UserError

Value = TypeVar("Value")
Join = Callable[[list[Value]], Value]
Spatial = nn.Conv2d | nn.MaxPool2d | nn.AvgPool2d


class Field(NamedTuple):
    """The pixels that a unit of a layer sees, along one side: unit i sees `size` of them from `start + i * stride`.

    Pixels outside of the image are zeros.
    """

    size: int = 1
    stride: int = 1
    start: int = 0

    def through(self, layer: Spatial) -> Field:
        """The field of a unit after a layer whose input has this one."""
        kernel, stride, padding = (_one(layer, name) for name in ("kernel_size", "stride", "padding"))
        reach = (kernel - 1) * _one(layer, "dilation", 1) * self.stride
        return Field(self.size + reach, self.stride * stride, self.start - padding * self.stride)

    def pixels(self, unit: int, side: int) -> range:
        """The rows, or columns, of an image with so many of them that a unit sees."""
        begin = self.start + unit * self.stride
        return range(max(0, begin), min(side, begin + self.size))


def _join(fields: list[Field]) -> Field:
    """The smallest field around those of branches that are added or concatenated."""
    start = min(field.start for field in fields)
    assert len({field.stride for field in fields}) == 1, "branches have units at the same distances"
    return Field(max(field.start + field.size for field in fields) - start, fields[0].stride, start)


def receptive_fields(model: nn.Module) -> dict[str, Field]:
    """The receptive field of each convolution and pool of a ConvNet, by its name, from the first to the last.

    >>> receptive_fields(build(SIZES["alexnet"]))["layers.0.conv"]
    Field(size=11, stride=4, start=-2)
    """

    def step(layer: nn.Module, field: Field) -> Field:
        return field.through(layer) if isinstance(layer, Spatial) else field

    found = _walk(model, "map", Field(), step, _join)
    return {name: field for name, layer, field in found if isinstance(layer, Spatial)}


def weighted_layers(model: nn.Module) -> int:
    """The depth of a model: the convolutions and dense layers on the longest path from an image to its logits."""

    def step(layer: nn.Module, depth: int) -> int:
        return depth + isinstance(layer, nn.Conv2d | nn.Linear)

    return max(depth for _, _, depth in _walk(model, "forward", 0, step, max))


def _walk(
    model: nn.Module, method: str, image: Value, step: Callable[[nn.Module, Value], Value], join: Join[Value]
) -> Iterator[tuple[str, nn.Module, Value]]:
    """Each call of a layer with its value, which `step` makes of that of its input; `join` takes several inputs."""
    tracer = fx.Tracer()
    tracer.traced_func_name = method
    try:
        graph = tracer.trace(model)
    except (TypeError, fx.proxy.TraceError) as error:
        raise UserError(
            "only ConvNets have receptive fields", found=type(model).__name__, expected="a model of convolutions"
        ) from error
    values: dict[fx.Node, Value] = {}
    for node in graph.nodes:
        inputs = [values[one] for one in node.all_input_nodes if one in values]
        if node.op == "placeholder":
            values[node] = image
        elif inputs:
            values[node] = join(inputs) if len(inputs) > 1 else inputs[0]
        if node.op == "call_module":
            layer = model.get_submodule(str(node.target))
            values[node] = step(layer, values[node])
            yield str(node.target), layer, values[node]


def _one(layer: nn.Module, name: str, usual: int | None = None) -> int:
    """A setting of a layer that is the same along rows and columns."""
    found = getattr(layer, name, usual) if usual is not None else getattr(layer, name)
    sides = found if isinstance(found, tuple) else (found, found)
    assert isinstance(sides[0], int) and sides[0] == sides[1], f"{name} {found} differs between rows and columns"
    return sides[0]
