"""An LSTM over a directed acyclic graph: each node reads its predecessors (Liang et al., 2016).

Nodes are computed level by level, in topological order; all nodes of a level at once.

Differs: in the paper, nodes also read their successors, by the states of the previous layer.

N nodes, E edges, X width in, H hidden width.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from heedful.blocks.gates import Gates
from heedful.blocks.linear import Linear
from heedful.blocks.taps import Tap


def sum_over_edges(x: Tensor, to: Tensor, count: int) -> Tensor:
    """The sum over the edges to each of `count` nodes."""
    return x.new_zeros(count, x.shape[-1]).index_add(0, to, x)


def mean_over_edges(x: Tensor, to: Tensor, count: int) -> Tensor:
    """The mean over the edges to each of `count` nodes."""
    degree = x.new_zeros(count).index_add(0, to, x.new_ones(len(to)))
    return sum_over_edges(x, to, count) / degree.clamp(min=1)[:, None]


MERGES: dict[str, Callable[[Tensor, Tensor, int], Tensor]] = {"sum": sum_over_edges, "mean": mean_over_edges}


class ChildSumCell(nn.Module):
    """h~ = sum h_k; i, g, o from x and h~; f_k from x and h_k; c = i * g + sum f_k * c_k and h = o * tanh(c).

    For any number of unordered predecessors, with a forget gate each: the child-sum cell (Tai et al., 2015).
    """

    def __init__(self, width: int, hidden: int, merge: str = "sum") -> None:
        super().__init__()
        self.x = Linear(width, 4 * hidden)  # the gates i, g, o, f
        self.h, self.f = Linear(hidden, 3 * hidden, bias=False), Linear(hidden, hidden, bias=False)
        self.merge = MERGES[merge]
        self.forget, self.gates = Tap(), Gates()
        assert self.x.bias is not None
        nn.init.ones_(self.x.bias.data[3 * hidden :])

    def forward(self, x: Tensor, h: Tensor, c: Tensor, to: Tensor) -> tuple[Tensor, Tensor]:
        """x (N, 4 H): projected inputs; h, c (E, H): predecessors' states; to (E,): the node of each edge."""
        igo, f = x.split([3 * h.shape[1], h.shape[1]], -1)
        if not len(to):
            return self.gates(igo)
        f = self.forget(torch.sigmoid(f.index_select(0, to) + self.f(h)))  # (E, H)
        return self.gates(igo + self.h(self.merge(h, to, len(x))), self.merge(f * c, to, len(x)))  # (N, H)


@dataclass(frozen=True)
class Level:
    """Nodes that are computed together, and the edges to them, grouped by the level they come from."""

    size: int
    reads: tuple[tuple[int, Tensor], ...]
    to: Tensor  # (E,) which node of this level reads, in the order of `reads`


@dataclass(frozen=True)
class Order:
    """The nodes of a graph, level by level."""

    nodes: Tensor  # (N,) level by level
    levels: tuple[Level, ...]

    @classmethod
    def of(cls, count: int, edges: Sequence[tuple[int, int]]) -> "Order":
        """The topological order of `count` nodes, where an edge (a, b) means that b reads a."""
        if not count:
            raise ValueError("the graph has no nodes")
        reads: list[list[int]] = [[] for _ in range(count)]
        seen = set[tuple[int, int]]()
        for a, b in edges:
            if not (0 <= a < count and 0 <= b < count):
                raise ValueError(f"edge from {a} to {b}, but nodes are numbered 0 to {count - 1}")
            if (a, b) in seen:
                raise ValueError(f"the edge from {a} to {b} is given twice")
            seen.add((a, b))
            reads[b].append(a)
        heights = _heights(reads)
        members: list[list[int]] = [[] for _ in range(max(heights) + 1)]
        place = [0] * count
        for node, height in enumerate(heights):
            place[node] = len(members[height])
            members[height].append(node)
        levels = []
        for nodes in members:
            found = sorted((heights[a], place[a], place[b]) for b in nodes for a in reads[b])
            sources = sorted({height for height, _, _ in found})
            groups = tuple((height, torch.tensor([a for at, a, _ in found if at == height])) for height in sources)
            levels.append(Level(len(nodes), groups, torch.tensor([b for _, _, b in found], dtype=torch.long)))
        return cls(torch.tensor([node for nodes in members for node in nodes], dtype=torch.long), tuple(levels))

    def to(self, device: torch.device | str) -> "Order":
        levels = (
            Level(level.size, tuple((at, nodes.to(device)) for at, nodes in level.reads), level.to.to(device))
            for level in self.levels
        )
        return Order(self.nodes.to(device), tuple(levels))


def _heights(reads: list[list[int]]) -> list[int]:
    """The level of each node: the longest path to it. A cycle is an error."""
    waiting = [len(some) for some in reads]
    readers: list[list[int]] = [[] for _ in reads]
    for b, some in enumerate(reads):
        for a in some:
            readers[a].append(b)
    heights = [0] * len(reads)
    ready = [node for node, count in enumerate(waiting) if not count]
    for a in ready:  # grows during iteration
        for b in readers[a]:
            heights[b] = max(heights[b], heights[a] + 1)
            waiting[b] -= 1
            if not waiting[b]:
                ready.append(b)
    if len(ready) < len(reads):
        raise ValueError(f"the graph has a cycle: {' -> '.join(map(str, _cycle(reads, waiting)))}")
    return heights


def _cycle(reads: list[list[int]], waiting: list[int]) -> list[int]:
    """The nodes of one cycle, the first repeated at the end; each of the `waiting` nodes reads another one."""
    path = [next(node for node, count in enumerate(waiting) if count)]
    seen: dict[int, int] = {}
    while path[-1] not in seen:
        seen[path[-1]] = len(path) - 1
        path.append(next(a for a in reads[path[-1]] if waiting[a]))
    return path[seen[path[-1]] :][::-1]


class GraphLSTM(nn.Module):
    """x (N, X) and a topological order -> h (N, H)."""

    def __init__(self, width: int, hidden: int, merge: str = "sum") -> None:
        super().__init__()
        self.cell, self.size = ChildSumCell(width, hidden, merge), hidden

    def forward(self, x: Tensor, order: Order) -> Tensor:
        if len(x) != len(order.nodes):
            raise ValueError(f"x has {len(x)} rows, but the graph has {len(order.nodes)} nodes")
        gates = self.cell.x(x.index_select(0, order.nodes)).split([level.size for level in order.levels])
        states: list[tuple[Tensor, Tensor]] = []
        nothing = gates[0].new_zeros(0, self.size)  # (0, H)
        for gate, level in zip(gates, order.levels, strict=True):
            read = [[states[at][part].index_select(0, nodes) for at, nodes in level.reads] for part in (0, 1)]
            h, c = (torch.cat([nothing, *parts]) for parts in read)
            states.append(self.cell(gate, h, c, level.to))
        y = torch.cat([state[0] for state in states])  # (N, H)
        return torch.empty_like(y).index_copy(0, order.nodes, y)  # (N, H)
