"""A computation on the CPU, recorded once and run again without autograd, without views and without new memory.

What a small model's step costs on a CPU is less its arithmetic than what is around it: Python, autograd's bookkeeping,
and memory that the system takes back and hands out again page by page. A recording has none of it. It is a list of
calls that each write into a buffer of their own; a buffer is used again as soon as nobody needs what is in it. Torch's
script interpreter makes the calls, so that several threads run their recordings at once without waiting for Python.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.fx import Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.node import map_arg

aten = torch.ops.aten


class CannotRecordError(Exception):
    """What is to be recorded has an operation that cannot be run again into a buffer."""


class Recording:
    """`function(*inputs)`, a tuple of tensors, as calls on buffers: fill `inputs`, `run()`, read the outputs.

    The outputs are the caller's: contiguous tensors that what the function gives is written into. Of the inputs there
    are those that it looks at, and None for others.
    """

    def __init__(
        self, function: Callable[..., tuple[Tensor, ...]], inputs: Sequence[Tensor], outputs: Sequence[Tensor]
    ) -> None:
        rooms = [x.clone() for x in inputs]
        traced: Any = make_fx(function)(*rooms)
        traced.graph.eliminate_dead_code()
        nodes = list(traced.graph.nodes)
        results: Sequence[Node] = nodes[-1].args[0]
        given, planner = iter(rooms), Planner(nodes, dict(zip(results, outputs, strict=True)))
        for node in nodes:
            if node.op == "placeholder":
                planner.give(node, next(given))
            elif node.op == "get_attr":
                planner.give(node, getattr(traced, node.target).detach())
            elif node.op == "call_function":
                planner.call(node)
        asked = (bool(node.users) for node in nodes if node.op == "placeholder")
        self.inputs = [room if used else None for room, used in zip(rooms, asked, strict=True)]
        for result, output in zip(results, outputs, strict=True):
            if planner.values[result].data_ptr() != output.data_ptr():
                planner.calls.append(Call(aten.copy_.default, (output, planner.values[result]), {}))
        self.run = _scripted(planner.calls)  # do it again, on what is in the inputs now


class Planner:
    """Which calls make the values of a graph, and in which buffers."""

    def __init__(self, nodes: Sequence[Node], wanted: Mapping[Node, Tensor]) -> None:
        self.calls: list[Call] = []
        self.values: dict[Node, Tensor] = {}
        self.roots: dict[Node, Node] = {}  # whose buffer a value lies in
        self.own: set[Node] = set()  # values whose buffers were made here, and may be used again
        self.free: list[Tensor] = []
        self.ends, roots = _last_uses(nodes)
        # Buffers that are there already, for what is put out as it lies: not for a matrix that is turned at the end.
        self.wanted = {roots[node]: output for node, output in wanted.items() if node.meta["val"].is_contiguous()}

    def give(self, node: Node, value: Tensor) -> None:
        """A value that is there."""
        self.values[node], self.roots[node] = value, node

    def call(self, node: Node) -> None:
        """A value that an operation makes: a view of a buffer, or what a call writes into one."""
        operation: Any = node.target
        if not isinstance(operation, OpOverload) or torch.Tag.nondeterministic_seeded in operation.tags:
            raise CannotRecordError(str(operation))
        args = map_arg(node.args, self.values.__getitem__)
        options = map_arg(node.kwargs, self.values.__getitem__)
        example = operation(*args, **options)
        if not isinstance(example, Tensor):
            raise CannotRecordError(str(operation))
        if _lies_in(node) is not None:
            if operation._schema.is_mutable:  # it writes into the buffer of what it is given
                self.calls.append(Call(operation, tuple(args), options))
            self.values[node], self.roots[node] = example, self.roots[node.all_input_nodes[0]]
            return
        dying = [root for root in {self.roots[used] for used in node.all_input_nodes} if self.ends[root] is node]
        pointwise = torch.Tag.pointwise in operation.tags
        room = self._wanted(node, example)
        if room is None and pointwise:
            room = self._in_place(node, example, dying)
        if room is None:
            room = self._room(example)
        self.calls.append(_into(operation, args, options, room))
        self.free += [self.values[root] for root in dying if root in self.own and self.values[root] is not room]
        self.give(node, room)
        if node not in self.wanted:
            self.own.add(node)

    def _wanted(self, node: Node, example: Tensor) -> Tensor | None:
        """The caller's buffer for a value, if it lies there as it is made."""
        output = self.wanted.get(node)
        fits = output is not None and example.is_contiguous() and example.numel() == output.numel()
        return output.view_as(example) if output is not None and fits else None

    def _in_place(self, node: Node, example: Tensor, dying: Sequence[Node]) -> Tensor | None:
        """A buffer that is read here for the last time, place by place as it is written."""
        for root in dying:
            seen = [self.values[used] for used in node.all_input_nodes if self.roots[used] is root]
            if root in self.own and all(_alike(value, example) for value in (*seen, self.values[root])):
                return self.values[root]
        return None

    def _room(self, example: Tensor) -> Tensor:
        """A buffer that nobody needs any more, or a new one."""
        for number, buffer in enumerate(self.free):
            if _alike(buffer, example):
                return self.free.pop(number)
        return torch.empty_like(example)


def _last_uses(nodes: Sequence[Node]) -> tuple[dict[Node, Node], dict[Node, Node]]:
    """The last node that needs a value or a view of it, what is put out to the end; and the value that each lies in."""
    roots: dict[Node, Node] = {}
    ends: dict[Node, Node] = {}
    for node in nodes:
        lies_in = _lies_in(node)
        roots[node] = node if lies_in is None else roots[lies_in]
        for used in node.all_input_nodes:
            ends[roots[used]] = node
        ends.setdefault(roots[node], node)
    return ends, roots


def _lies_in(node: Node) -> Node | None:
    """The value whose buffer a value lies in, be it as a view or written over, if it has none of its own."""
    if not isinstance(node.target, OpOverload) or node.target._schema.returns[0].alias_info is None:
        return None
    return node.all_input_nodes[0]


def _into(operation: Any, args: Sequence[Any], options: dict[str, Any], room: Tensor) -> Call:
    """The call of an operation that writes into a buffer."""
    if operation is aten._to_copy.default:
        return Call(aten.copy_.default, (room, args[0]), {})
    if operation is aten.relu.default:  # whose own form makes a new tensor and copies it
        return Call(aten.clamp_min.out, (args[0], 0), {"out": room})
    packet = operation._overloadpacket
    wanted = [(one.name, str(one.type)) for one in operation._schema.arguments]
    for name in packet.overloads():
        written = getattr(packet, name)
        outs = [one.name for one in written._schema.arguments if one.is_out]
        rest = [(one.name, str(one.type)) for one in written._schema.arguments if not one.is_out]
        if len(outs) == 1 and rest == wanted:
            return Call(written, tuple(args), {**options, outs[0]: room})
    raise CannotRecordError(str(operation))


@dataclass(frozen=True)
class Call:
    """An operation with what it is given and the names of its other arguments, the buffer among them."""

    operation: OpOverload
    args: tuple[Any, ...]
    options: dict[str, Any]

    def __call__(self) -> None:
        self.operation(*self.args, **self.options)


def _scripted(calls: Sequence[Call]) -> Callable[[], object]:
    """What makes the calls one after the other, in one breath where torch can."""
    buffers: list[Tensor] = []
    places: dict[int, int] = {}

    def written(value: Any) -> str:
        if not isinstance(value, Tensor):
            return repr(value)
        if id(value) not in places:
            places[id(value)] = len(buffers)
            buffers.append(value)
        return f"b[{places[id(value)]}]"

    lines = []
    for call in calls:
        given = [*map(written, call.args), *(f"{name}={written(value)}" for name, value in call.options.items())]
        lines.append(f"    torch.ops.{call.operation._schema.name.replace('::', '.')}({', '.join(given)})\n")
    try:
        unit = torch.jit.CompilationUnit(f"def run(b: List[Tensor]) -> int:\n{''.join(lines)}    return 0\n")
    except (RuntimeError, AttributeError):  # a torch or a Python without the interpreter
        return partial(_one_by_one, calls)
    return partial(unit.run, buffers)


def _one_by_one(calls: Sequence[Call]) -> None:
    for call in calls:
        call()


def _alike(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and one.stride() == other.stride() and one.dtype == other.dtype
