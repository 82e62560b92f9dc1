"""A model as nested parts, in the order of the data: its modules, with what passes them and the matrices they own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import nn

from heedful.explore.capabilities import HasHeads
from heedful.explore.explanations import EXPLANATIONS
from heedful.models.tracing import RUNS, trace_calls

LISTS = (nn.ModuleList, nn.ModuleDict, nn.Sequential, nn.ParameterList)  # they compute nothing of their own


class Matrix(NamedTuple):
    """A parameter: its name in its module, and its shape."""

    name: str
    shape: tuple[int, ...]
    parameters: int


@dataclass(frozen=True)
class Part:
    """A module, or a row of modules alike, of which it shows one.

    `numbers` has an entry for each of the row: whose weights it has, which is another one where they are shared.
    """

    name: str  # in the module around it
    kind: str  # its class
    shape: tuple[int, ...]  # of its output, features first, without the batch; empty where there is none
    parameters: int  # of one of the row
    heads: int
    numbers: tuple[int, ...]
    matrices: tuple[Matrix, ...]
    parts: tuple[Part, ...]

    @property
    def times(self) -> int:
        """How many modules of the row have weights of their own."""
        return len(set(self.numbers)) or 1

    @property
    def stacks(self) -> bool:
        """Whether there is a row of modules in it."""
        return bool(self.numbers) or any(part.stacks for part in self.parts)

    @property
    def holds_heads(self) -> bool:
        """Whether there is attention with several heads in it."""
        return any(part.heads or part.holds_heads for part in self.parts)

    def names(self, around: str = "") -> Iterator[tuple[str, tuple[int, ...]]]:
        """The name in a checkpoint and the shape of every parameter."""
        for path in self.paths(around):
            yield from ((join(path, matrix.name), matrix.shape) for matrix in self.matrices)
            for part in self.parts:
                yield from part.names(path)

    def paths(self, around: str) -> list[str]:
        """The paths of its modules."""
        path = join(around, self.name)
        return [join(path, str(number)) for number in sorted(set(self.numbers))] or [path]


def join(around: str, name: str) -> str:
    """A path of two parts, of which either may be empty."""
    return ".".join(part for part in (around, name) if part)


def architecture(model: nn.Module) -> Part:
    """The parts of a model. Shared weights belong to the first module that has them."""
    return _Builder(model).part("", "")


class _Builder:
    """The modules of a model in the order in which a small input of its role passes them."""

    def __init__(self, model: nn.Module) -> None:
        self.modules = dict(model.named_modules(remove_duplicate=False))
        self.shapes = traced_shapes(model)
        self.order = {name: place for place, name in enumerate(self.shapes)}
        for name in sorted(self.modules, key=lambda one: -one.count(".")):  # if not called, it is at its first part
            below = [join(name, child) for child, _ in self.modules[name].named_children()]
            places = [self.order[one] for one in below if one in self.order]
            if places:
                self.order.setdefault(name, min(places))
        self.own: dict[str, list[Matrix]] = {}
        for name, weight in model.named_parameters():
            above, _, last = name.rpartition(".")
            self.own.setdefault(above, []).append(Matrix(last, tuple(weight.shape), weight.numel()))

    def part(self, path: str, name: str, numbers: tuple[int, ...] = ()) -> Part:
        """The module of a path; of a row, its first."""
        module = self.modules[path]
        below = sorted(self.below(path), key=self.place)
        own = tuple(self.own.get(path, ()))
        parts = tuple(self.rows(path, below))
        if name and not numbers and not own and isinstance(module, LISTS) and len(parts) == 1:
            only = parts[0]  # a list of one, or of one row
            return Part(join(name, only.name), *list(vars(only).values())[1:])
        count = sum(matrix.parameters for matrix in own) + sum(part.parameters * part.times for part in parts)
        heads = module.heads if isinstance(module, HasHeads) else 0
        return Part(name, type(module).__name__, self.shape(path), count, heads, numbers, own, parts)

    def below(self, path: str) -> list[str]:
        """The modules in a module; of a list between whose members others are called, its members."""
        named = [(join(path, child), one) for child, one in self.modules[path].named_children()]
        shown = [(name, one) for name, one in named if self.is_shown(name, one)]
        found = []
        for name, one in shown:
            inner = [join(name, child) for child, _ in one.named_children()]
            places = [self.order[each] for each in inner if each in self.order]
            others = [self.order[other] for other, _ in shown if other != name and other in self.order]
            apart = name not in self.shapes and isinstance(one, LISTS) and 0 < len(places) == len(inner)
            apart = apart and any(min(places) < place < max(places) for place in others)
            found += inner if apart else [name]
        return found

    def rows(self, path: str, below: list[str]) -> Iterator[Part]:
        """The modules in a list of paths; neighbours alike with numbers for names are one row."""
        while below:
            alike = [one for one in below if one.rpartition(".")[2].isdecimal() and self.same(one, below[0])]
            count = next((at for at, one in enumerate(below) if one not in alike), len(below))
            name = below[0].removeprefix(path).removeprefix(".")
            if count < 2:
                yield self.part(below[0], name)
                below = below[1:]
            else:
                row, below = below[:count], below[count:]
                yield self.part(row[0], "", tuple(self.owner(one, row) for one in row))

    def place(self, path: str) -> float:
        """When a module is called; of those that are not, embeddings come first, vectors that join what the first part
        makes of the input after it, and what only training needs last."""
        if path in self.order:
            return self.order[path]
        if isinstance(self.modules[path], nn.ParameterList):
            around = path.rpartition(".")[0]
            beside = [join(around, child) for child, _ in self.modules[around].named_children()]
            return min((self.order[one] for one in beside if one in self.order), default=-1) + 0.5
        return -1 if isinstance(self.modules[path], nn.Embedding) else len(self.shapes)

    def shape(self, path: str) -> tuple[int, ...]:
        """The output shape of a module, or of the last that is called in it."""
        inside = (shape for name, shape in reversed(self.shapes.items()) if name.startswith(f"{path}."))
        return self.shapes.get(path) or next(inside, ())

    def is_shown(self, path: str, module: nn.Module) -> bool:
        """Whether a module has weights, or computes something that is explained."""
        weights = any(True for _ in module.parameters())
        return weights or (path in self.shapes and type(module).__name__ in EXPLANATIONS)

    def same(self, path: str, other: str) -> bool:
        """Whether two modules have the same classes and shapes throughout."""
        first, second = self.modules[path], self.modules[other]
        kinds = [[(name, type(one)) for name, one in module.named_modules()] for module in (first, second)]
        sizes = [[(name, one.shape) for name, one in module.named_parameters()] for module in (first, second)]
        return kinds[0] == kinds[1] and sizes[0] == sizes[1]

    def owner(self, path: str, row: list[str]) -> int:
        """The number of the first module of a row with the same weights."""
        weights = [id(one) for one in self.modules[path].parameters()]
        same = (one for one in row if weights == [id(other) for other in self.modules[one].parameters()])
        return int((path if not weights else next(same)).rpartition(".")[2])


def traced_shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """The output shape of each module in the order of the calls; none of a model that cannot run on such an input."""
    net: Any = model
    try:
        return trace_calls(model, lambda: RUNS[net.config.role](net, net.config))[0]
    except Exception:  # a user's own module may raise anything; its parts are shown all the same
        return {}
