"""What is known from the layers of a ConvNet alone: receptive fields, and the depth.

A model runs once on an image of which there is only the shape; a value follows it through every function, and changes
where it passes a layer.

C channels, Y rows, X columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, Self, TypeVar

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.func import functional_call
from torch.overrides import TorchFunctionMode

from heedful.blocks.convolution import Convolution
from heedful.blocks.linear import Linear
from heedful.blocks.taps import Tap, taps, watch

Value = TypeVar("Value")
SPATIAL = (nn.Conv2d, Convolution, nn.MaxPool2d, nn.AvgPool2d)
WEIGHTED = (nn.Conv2d, Convolution, nn.Linear, Linear)


@dataclass(frozen=True)
class Field:
    """The pixels that units of a layer see: `size` x `size`, `stride` apart, from `start` on for the first unit.

    At the edges of an image a unit sees fewer of them: `rows` and `columns` have those of each unit.
    """

    size: int
    stride: int
    start: int
    rows: tuple[range, ...] = field(repr=False)
    columns: tuple[range, ...] = field(repr=False)

    @classmethod
    def pixel(cls, rows: int, columns: int) -> Self:
        """The field of a pixel of an image: itself."""
        return cls(1, 1, 0, *(tuple(range(n, n + 1) for n in range(side)) for side in (rows, columns)))

    def through(self, layer: nn.Module, output: Tensor) -> Field:
        """The field after a convolution or pool whose input has this one."""
        kernel, stride, padding = (_side(getattr(layer, name)) for name in ("kernel_size", "stride", "padding"))

        def seen(units: tuple[range, ...], count: int) -> tuple[range, ...]:
            first = [unit * stride - padding for unit in range(count)]
            return tuple(_cover(units[max(0, begin) : max(0, begin + kernel)]) for begin in first)

        size, start = self.size + (kernel - 1) * self.stride, self.start - padding * self.stride
        rows, columns = output.shape[2:]
        return Field(size, self.stride * stride, start, seen(self.rows, rows), seen(self.columns, columns))

    @classmethod
    def join(cls, fields: list[Field]) -> Field:
        """The smallest field around several."""
        start, end = min(one.start for one in fields), max(one.start + one.size for one in fields)
        rows, columns = (
            zip(*(one.rows for one in fields), strict=True),
            zip(*(one.columns for one in fields), strict=True),
        )
        return cls(end - start, fields[0].stride, start, tuple(map(_cover, rows)), tuple(map(_cover, columns)))


def receptive_fields(model: Any) -> dict[str, Field]:
    """The receptive field of each convolution and pool of an image model, by its name, from the first to the last.

    >>> receptive_fields(build(SIZES["alexnet"]))["layers.0.conv"]
    Field(size=11, stride=4, start=-2)
    """
    size: tuple[int, int] = model.config.size
    return follow(
        model, SPATIAL, Field.pixel(*size), lambda layer, field, output: field.through(layer, output), Field.join
    )


def tap_fields(model: Any) -> dict[str, Field]:
    """The receptive field of the value at each tap of an image model; of a token, its own patch."""

    def step(layer: nn.Module, field: Field, output: Tensor) -> Field:
        return field if isinstance(layer, Tap) else field.through(layer, output)

    with watch(model):  # a model may leave out what nobody reads
        found = follow(model, (*SPATIAL, Tap), Field.pixel(*model.config.size), step, Field.join)
    return {name: found[name] for name in taps(model) if name in found}


def weighted_layers(model: nn.Module) -> int:
    """The depth of an image model: convolutions and dense layers on the longest path from an image to its logits."""
    return max(follow(model, WEIGHTED, 0, lambda layer, depth, output: depth + 1, max).values())


def follow(
    model: Any,
    kinds: tuple[type[nn.Module], ...],
    image: Value,
    step: Callable[[nn.Module, Value, Tensor], Value],
    join: Callable[[list[Value]], Value],
) -> dict[str, Value]:
    """The value after each layer of these kinds, by name: `step` makes it of the value before, `join` of several."""
    values, found = Followed(join), dict[str, Value]()

    def after(name: str) -> Callable[[nn.Module, tuple[Any, ...], Tensor], None]:
        def hook(layer: nn.Module, given: tuple[Any, ...], output: Tensor) -> None:
            found[name] = step(layer, values.of(given), output)
            values.put(output, found[name])

        return hook

    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, kinds)}
    hooks = [layer.register_forward_hook(after(name)) for name, layer in layers.items()]
    try:
        with torch.no_grad(), evaluating(model), FakeTensorMode():
            state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
            shapes = {name: torch.empty(tensor.shape, dtype=tensor.dtype) for name, tensor in state.items()}
            images = torch.empty(1, *model.config.input, dtype=model.head.weight.dtype)  # (1, C, Y, X)
            values.put(images, image)
            with values:
                functional_call(model, shapes, (images,))
    finally:
        for hook in hooks:
            hook.remove()
    return found


class Followed(TorchFunctionMode, Generic[Value]):
    """Values of tensors; within it, what a function returns has the value of what it was given."""

    def __init__(self, join: Callable[[list[Value]], Value]) -> None:
        super().__init__()
        self.join = join
        self.known: dict[int, tuple[Tensor, Value]] = {}  # the tensors too, so that no other takes their numbers

    def put(self, output: object, value: Value) -> None:
        for tensor in _tensors((output,)):
            self.known[id(tensor)] = (tensor, value)

    def of(self, given: Iterable[object]) -> Value:
        return self.join([self.known[id(tensor)][1] for tensor in _tensors(given) if id(tensor) in self.known])

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        given = [*args, *(kwargs or {}).values()]
        if any(id(tensor) in self.known for tensor in _tensors(given)):
            self.put(output, self.of(given))
        return output


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode, and afterwards in its own."""
    training = model.training
    try:
        model.eval()
        yield
    finally:
        model.train(training)


def _cover(ranges: Sequence[range]) -> range:
    """The smallest range around several; empty ones, of units that see padding alone, do not count."""
    some = [one for one in ranges if one]
    return range(min(one.start for one in some), max(one.stop for one in some)) if some else range(0)


def _tensors(values: Iterable[object]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, tuple | list):
            yield from _tensors(value)


def _side(setting: object) -> int:
    """A setting of a layer, which is the same along rows and columns."""
    first, second = setting if isinstance(setting, tuple) else (setting, setting)
    assert isinstance(first, int) and first == second, "rows and columns are treated alike"
    return first
