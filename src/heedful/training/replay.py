"""A computation on the CPU, recorded once and run again without autograd, without views and without new memory.

Most of the time of a small model's step on a CPU is not arithmetic, but Python, autograd's bookkeeping, and memory that
is returned to the system and mapped again page by page. A recording avoids all of it: it is a list of calls that write
into preallocated buffers, which are reused as soon as their values are not needed any more. Torch releases Python's
lock while it computes, so that several threads can run their recordings at once.
"""

from __future__ import annotations

import operator
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

from heedful.training.replay_ops import forms

aten = torch.ops.aten
KNOWN_FROM_BUFFER = ("dtype", "layout", "device", "pin_memory")
SEVERAL = (aten.native_layer_norm.default, aten.native_layer_norm_backward.default, aten.cummax.default)  # results


class CannotRecordError(Exception):
    """The function has an operation that cannot write its result into a given buffer."""


class Recording:
    """`function(*inputs)`, a tuple of tensors, as calls on buffers: fill `inputs`, `run()`, read the outputs.

    Results are written into `outputs`, contiguous tensors of the caller. `inputs` has None for inputs that the function
    does not use. Tracing takes a while; `like`, a recording of the same function with inputs of the same shapes, avoids
    it.
    """

    def __init__(
        self,
        function: Callable[..., tuple[Tensor, ...]],
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        like: Recording | None = None,
    ) -> None:
        rooms = [x.clone() for x in inputs]
        traced: Any = make_fx(function, forms())(*rooms) if like is None else like.traced
        traced.graph.eliminate_dead_code()
        self.traced: Any = traced
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
        self.calls = [partial(call.function(), *call.args, **call.options) for call in planner.calls]

    def run(self) -> None:
        """Compute the outputs from the current inputs."""
        for call in self.calls:
            call()


class Planner:
    """Plans the calls and buffers that compute the values of a graph."""

    def __init__(self, nodes: Sequence[Node], wanted: Mapping[Node, Tensor]) -> None:
        self.calls: list[Call] = []
        self.values: dict[Node, Tensor] = {}
        self.roots: dict[Node, Node] = {}  # the node that owns the buffer of a value
        self.own: set[Node] = set()  # nodes whose buffers were allocated here, and may be reused
        self.free: list[Tensor] = []
        self.ends, roots = _last_uses(nodes)
        # Buffers that are there already, for what is put out as it lies: not for a matrix that is turned at the end.
        self.wanted = {roots[node]: output for node, output in wanted.items() if node.meta["val"].is_contiguous()}

    def give(self, node: Node, value: Tensor) -> None:
        """Add a value that exists already."""
        self.values[node], self.roots[node] = value, node

    def call(self, node: Node) -> None:
        """Add the value of an operation: a view of a buffer, or a call that writes into one."""
        operation: Any = node.target
        if operation is operator.getitem:
            self._pick(node)
            return
        if not isinstance(operation, OpOverload) or torch.Tag.nondeterministic_seeded in operation.tags:
            raise CannotRecordError(str(operation))
        if torch.Tag.inplace_view in operation.tags:  # a view, so that the buffer keeps its shape
            operation = _out_of_place(operation)
        args = map_arg(node.args, self.values.__getitem__)
        options = map_arg(node.kwargs, self.values.__getitem__)
        example = operation(*args, **options)
        holder = _lies_in(node)
        if holder is not None:
            if operation._schema.is_mutable:  # it writes into the buffer of an input
                self.calls.append(Call(operation, tuple(args), options))
            self.values[node], self.roots[node] = example, self.roots[holder]
            return
        dying = [root for root in {self.roots[used] for used in node.all_input_nodes} if self.ends[root] is node]
        made, rooms = _made(node, example), list[Tensor]()
        for part, like in made:
            room = self._wanted(part, like)
            if room is None and torch.Tag.pointwise in operation.tags:
                room = self._in_place(part, like, dying)
            rooms.append(self._room(like) if room is None else room)
        self.calls.append(_into(operation, args, options, rooms))
        self.calls[-1]()  # the next calls may read positions from it
        left = [self.values[root] for root in dying if root in self.own]
        self.free += [value for value in left if all(value is not room for room in rooms)]
        for (part, _), room in zip(made, rooms, strict=True):
            self.give(part, room)
            if part not in self.wanted:
                self.own.add(part)

    def _pick(self, node: Node) -> None:
        """Select one of several outputs of an operation."""
        holder = _lies_in(node)
        if holder is not None:
            values = self.values[holder]
            self.values[node] = values if isinstance(values, Tensor) else values[node.args[1]]
            self.roots[node] = self.roots[holder]

    def _wanted(self, node: Node, example: Tensor) -> Tensor | None:
        """The caller's buffer for a value, if its memory layout fits."""
        output = self.wanted.get(node)
        fits = output is not None and example.is_contiguous() and example.numel() == output.numel()
        return output.view_as(example) if output is not None and fits else None

    def _in_place(self, node: Node, example: Tensor, dying: Sequence[Node]) -> Tensor | None:
        """A buffer that is read here for the last time, elementwise, and can be overwritten."""
        for root in dying:
            seen = [self.values[used] for used in node.all_input_nodes if self.roots[used] is root]
            if root in self.own and all(_alike(value, example) for value in (*seen, self.values[root])):
                return self.values[root]
        return None

    def _room(self, example: Tensor) -> Tensor:
        """A free buffer, or a new one."""
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
    """The node whose buffer a value shares, as a view or in place; None if it has its own."""
    if node.target is operator.getitem:
        several: Any = node.args[0]
        first = _picks(several)[node.args[1]]
        return several if _lies_in(several) is not None else (None if first is node else first)
    if not isinstance(node.target, OpOverload):
        return None
    if node.target is aten._unsafe_view.default:  # unsafe only for those who write into what it was made of
        return node.all_input_nodes[0]
    schema = node.target._schema
    if schema.returns[0].alias_info is None:
        return None
    places = [place for place, one in enumerate(schema.arguments) if one.alias_info is not None]
    if len(places) != 1:
        raise CannotRecordError(str(node.target))
    (place,) = places
    found: Any = node.args[place] if place < len(node.args) else node.kwargs[schema.arguments[place].name]
    return found


def _out_of_place(operation: OpOverload) -> OpOverload:
    """The operation that gives a view, of one that changes the shape of a tensor in place, such as `squeeze_`."""
    packet = getattr(aten, operation._schema.name.removeprefix("aten::").removesuffix("_"))
    found: OpOverload = getattr(packet, operation._overloadname)
    return found


def _picks(several: Node) -> dict[Any, Node]:
    """The first node that selects each of several outputs."""
    found: dict[Any, Node] = {}
    for user in several.users:
        found.setdefault(user.args[1], user)
    return found


def _made(node: Node, example: Any) -> list[tuple[Node, Tensor]]:
    """The outputs of an operation, with their nodes."""
    if isinstance(example, Tensor):
        return [(node, example)]
    picks = _picks(node)
    if node.target not in SEVERAL or not all(isinstance(part, Tensor) for part in example):
        raise CannotRecordError(str(node.target))
    return [(picks.get(place, node), part) for place, part in enumerate(example)]


def _into(operation: Any, args: Sequence[Any], options: dict[str, Any], rooms: Sequence[Tensor]) -> Call:
    """The call of an operation's `out` variant."""
    if operation in (aten._to_copy.default, aten.clone.default):
        return Call(aten.copy_.default, (rooms[0], args[0]), {})
    if operation is aten.relu.default:  # whose own form makes a new tensor and copies it
        return Call(aten.clamp_min.out, (args[0], 0), {"out": rooms[0]})
    packet = operation._overloadpacket
    wanted = [(one.name, str(one.type)) for one in operation._schema.arguments]
    for name in packet.overloads():
        written = getattr(packet, name)
        outs = [one.name for one in written._schema.arguments if one.is_out]
        rest = [(one.name, str(one.type)) for one in written._schema.arguments if not one.is_out]
        needed = [one for one in wanted if one in rest or one[0] not in KNOWN_FROM_BUFFER]
        if len(outs) == len(rooms) and rest == needed:
            kept = {name: value for name, value in options.items() if name in dict(needed)}
            return Call(written, tuple(args), {**kept, **dict(zip(outs, rooms, strict=True))})
    raise CannotRecordError(str(operation))


@dataclass(frozen=True)
class Call:
    """An operation with its arguments, including the output buffers."""

    operation: OpOverload
    args: tuple[Any, ...]
    options: dict[str, Any]

    def __call__(self) -> None:
        self.operation(*self.args, **self.options)

    def function(self) -> Callable[..., Any]:
        """The operation as `torch` exports it where it can, which parses its arguments in half the time."""
        name = self.operation._schema.name.removeprefix("aten::")
        exported = getattr(Tensor if name.endswith("_") else torch, name, None)
        if exported is None:
            return self.operation
        try:
            exported(*self.args, **self.options)
        except TypeError:  # it names its arguments otherwise
            return self.operation
        return exported


def _alike(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and one.stride() == other.stride() and one.dtype == other.dtype
