"""Taps: named points in a model where a value can be recorded or replaced while it runs.

Inside of `with watch(model, "decoder.*.cross.weights") as seen:` the taps with such names are recorded;
`seen["decoder.3.cross.weights"]` is then the last value there, and `seen.all[name]` has every one. Of a long text, the
weights of block-sparse attention are in `seen.blocks` (block_values.py).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from torch import Tensor, nn

if TYPE_CHECKING:
    from heedful.blocks.block_values import BlockValues

Hook = Callable[[Tensor], Tensor | None]
BlockHook = Callable[["BlockValues"], "BlockValues | None"]


class Tap(nn.Module):
    """x -> x; a hook gets x and may return a replacement.

    Without a hook for blocks, long texts give whole tensors too.
    """

    hook: Hook | None
    block_hook: BlockHook | None

    def __init__(self) -> None:
        super().__init__()
        self.hook = self.block_hook = None

    def forward(self, x: Tensor) -> Tensor:
        if self.hook is None:
            return x
        replaced = self.hook(x)
        return x if replaced is None else replaced

    def blocks(self, x: "BlockValues") -> "BlockValues":
        """The same for values in blocks."""
        replaced = None if self.block_hook is None else self.block_hook(x)
        return x if replaced is None else replaced


def watched(model: nn.Module) -> bool:
    """Whether any tap of the model has a hook."""
    return tapped(*taps(model).values())


def tapped(*taps: Tap | None) -> bool:
    """Whether one of these taps has a hook."""
    return any(tap is not None and tap.hook is not None for tap in taps)


def take_blocks(*taps: Tap | None) -> bool:
    """Whether all of these taps that have a hook have one for blocks too."""
    return all(tap is None or tap.hook is None or tap.block_hook is not None for tap in taps)


class Recorded(dict[str, Tensor]):
    """The last value at each watched tap, by module path; `all` has every value in order.

    `blocks` has the last value of those that are not whole tensors but blocks.
    """

    def __init__(self) -> None:
        super().__init__()
        self.all: dict[str, list[Tensor]] = {}
        self.blocks: dict[str, BlockValues] = {}

    def __missing__(self, name: str) -> Tensor:
        if name in self.blocks:
            raise KeyError(f"{name} has values in blocks: seen.blocks[{name!r}], whose dense() is a tensor")
        raise KeyError(name)

    def record(self, name: str, value: Tensor) -> None:
        self[name] = value
        self.all.setdefault(name, []).append(value)


def taps(model: nn.Module) -> dict[str, Tap]:
    """Every tap of the model by its module path."""
    return {name: module for name, module in model.named_modules() if isinstance(module, Tap)}


@contextmanager
def watch(
    model: nn.Module,
    pattern: str = "*",
    edit: Callable[[str, Tensor], Tensor | None] | None = None,
    edit_blocks: Callable[[str, "BlockValues"], "BlockValues | None"] | None = None,
) -> Iterator[Recorded]:
    """Record (and with `edit` replace) the values at the taps whose path matches the pattern.

    Weights of block-sparse attention over more than 1,024 tokens are recorded as blocks; `edit_blocks` replaces those,
    and with `edit` alone they are whole tensors, as for shorter texts. Inside of another `watch`, a value first goes
    through the hooks of the outer one, whose edits stay in effect.
    """
    found = {name: tap for name, tap in taps(model).items() if fnmatchcase(name, pattern)}
    if not found:
        raise ValueError(f"no tap matches {pattern!r}; taps here: {', '.join(taps(model)) or 'none'}")
    seen, before = Recorded(), {name: (tap.hook, tap.block_hook) for name, tap in found.items()}

    def hook_for(name: str, outer: Hook | None) -> Hook:
        def hook(x: Tensor) -> Tensor:
            given = None if outer is None else outer(x)
            x = x if given is None else given
            replaced = None if edit is None else edit(name, x)
            x = x if replaced is None else replaced
            seen.record(name, x.detach())
            return x

        return hook

    def block_hook_for(name: str, outer: BlockHook | None) -> BlockHook:
        def hook(x: "BlockValues") -> "BlockValues":
            given = None if outer is None else outer(x)
            x = x if given is None else given
            replaced = None if edit_blocks is None else edit_blocks(name, x)
            x = x if replaced is None else replaced
            seen.blocks[name] = x.detach()
            return x

        return hook

    try:
        for name, tap in found.items():
            outer, outer_blocks = before[name]
            whole = (edit is not None and edit_blocks is None) or (outer is not None and outer_blocks is None)
            tap.hook = hook_for(name, outer)
            tap.block_hook = None if whole else block_hook_for(name, outer_blocks)
        yield seen
    finally:
        for name, tap in found.items():
            tap.hook, tap.block_hook = before[name]
