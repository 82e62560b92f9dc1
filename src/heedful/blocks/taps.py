"""Taps: named points in a model where a value can be recorded or replaced while it runs.

Inside of `with watch(model, "decoder.*.cross.weights") as seen:` the taps with such names are recorded;
`seen["decoder.3.cross.weights"]` is then the last value there, and `seen.all[name]` has every one.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase

from torch import Tensor, nn

Hook = Callable[[Tensor], Tensor | None]


class Tap(nn.Module):
    """x -> x; a hook gets x and may return a replacement."""

    hook: Hook | None

    def __init__(self) -> None:
        super().__init__()
        self.hook = None

    def forward(self, x: Tensor) -> Tensor:
        if self.hook is None:
            return x
        replaced = self.hook(x)
        return x if replaced is None else replaced


def watched(model: nn.Module) -> bool:
    """Whether any tap of the model has a hook."""
    return tapped(*taps(model).values())


def tapped(*taps: Tap | None) -> bool:
    """Whether one of these taps has a hook."""
    return any(tap is not None and tap.hook is not None for tap in taps)


class Recorded(dict[str, Tensor]):
    """The last value at each watched tap, by module path; `all` has every value in order."""

    def __init__(self) -> None:
        super().__init__()
        self.all: dict[str, list[Tensor]] = {}

    def record(self, name: str, value: Tensor) -> None:
        self[name] = value
        self.all.setdefault(name, []).append(value)


def taps(model: nn.Module) -> dict[str, Tap]:
    """Every tap of the model by its module path."""
    return {name: module for name, module in model.named_modules() if isinstance(module, Tap)}


@contextmanager
def watch(
    model: nn.Module, pattern: str = "*", edit: Callable[[str, Tensor], Tensor | None] | None = None
) -> Iterator[Recorded]:
    """Record (and with `edit` replace) the values at the taps whose path matches the pattern."""
    found = {name: tap for name, tap in taps(model).items() if fnmatchcase(name, pattern)}
    if not found:
        raise ValueError(f"no tap matches {pattern!r}; taps here: {', '.join(taps(model)) or 'none'}")
    seen, before = Recorded(), {name: tap.hook for name, tap in found.items()}

    def hook_for(name: str) -> Hook:
        def hook(x: Tensor) -> Tensor | None:
            replaced = None if edit is None else edit(name, x)
            seen.record(name, (x if replaced is None else replaced).detach())
            return replaced

        return hook

    try:
        for name, tap in found.items():
            tap.hook = hook_for(name)
        yield seen
    finally:
        for name, tap in found.items():
            tap.hook = before[name]
