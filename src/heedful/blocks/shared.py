"""Layers that share their weights (Dehghani et al., 2019; Lan et al., 2020)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any, Concatenate, Self

from torch import Tensor, nn

from heedful.blocks.taps import Tap

State = dict[str, Tensor]  # of a module, by name


class SharedLayers(nn.ModuleList):
    """`count` layers, of which equally many neighbours have the weights of each block: layer i those of `group(i)`.

    Every layer has taps of its own. In a state dict, shared weights stand once, under the first layer that has them.
    """

    if TYPE_CHECKING:  # inherited, where they have no types

        def register_state_dict_post_hook(self, hook: Callable[[Self, State, str, Any], None]) -> None: ...
        def register_load_state_dict_pre_hook(
            self, hook: Callable[Concatenate[Self, State, str, ...], None]
        ) -> None: ...

    def __init__(self, blocks: Sequence[nn.Module], count: int) -> None:
        groups = [group(layer, count, len(blocks)) for layer in range(count)]
        self.first = [groups.index(each) for each in groups]  # of each layer, the first one with the same weights
        owns = [first == layer for layer, first in enumerate(self.first)]
        super().__init__(blocks[each] if own else twin(blocks[each]) for each, own in zip(groups, owns, strict=True))
        self.register_state_dict_post_hook(_leave_out_twins)
        self.register_load_state_dict_pre_hook(_repeat_for_twins)

    @property
    def twins(self) -> list[tuple[int, int]]:
        """The layers with weights of an earlier one, and which that is."""
        return [(layer, first) for layer, first in enumerate(self.first) if first != layer]


def group(layer: int, layers: int, groups: int) -> int:
    """The group of a layer: as published, floor(layer / (layers / groups))."""
    return layer * groups // layers


def twin(module: nn.Module) -> nn.Module:
    """The same module with the same weights, but with taps of its own."""
    if isinstance(module, Tap):
        return Tap()
    if not any(isinstance(part, Tap) for part in module.modules()):
        return module
    found = copy(module)
    found._modules = {name: None if child is None else twin(child) for name, child in module._modules.items()}
    return found


def _leave_out_twins(layers: SharedLayers, state: State, prefix: str, metadata: object) -> None:
    for layer, _ in layers.twins:
        for name in [name for name in state if name.startswith(f"{prefix}{layer}.")]:
            del state[name]


def _repeat_for_twins(layers: SharedLayers, state: State, prefix: str, *options: object) -> None:
    for layer, first in layers.twins:
        start = f"{prefix}{first}."
        state |= {f"{prefix}{layer}.{name.removeprefix(start)}": value for name, value in state.items()
                  if name.startswith(start)}  # fmt: skip
