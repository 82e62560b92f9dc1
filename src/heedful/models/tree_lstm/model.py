"""Tree-LSTM (Tai, Socher and Manning, 2015): an LSTM over the nodes of a tree, from the leaves to the root.

A node reads the states of its children, with a forget gate for each, and its own word if it has one. On a chain it is
the ordinary LSTM. All trees of a batch are computed together, level by level.

N nodes, L leaves, I inner nodes, M children, K arity, W nodes with a word, H hidden width, C classes.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from heedful.blocks.gates import Gates
from heedful.blocks.graphs import ChildSumCell
from heedful.blocks.linear import Linear
from heedful.blocks.taps import Tap
from heedful.models.tree_lstm.config import TreeLSTMConfig


class Forest(Protocol):
    """A batch of trees, all roots on one level: all leaves, then all inner nodes, the deepest level first."""

    words: Tensor  # (W,) of all leaves, then of the inner nodes that have a word
    inner: Tensor  # (W - L,) the inner nodes that have a word
    parents: Tensor  # the parent's index one level up; level by level, inner nodes before leaves
    places: Tensor  # the index of each node among its siblings
    leaf_counts: Sequence[int]  # per level
    inner_counts: Sequence[int]
    widest: int  # the largest number of children of a node


class Nary(nn.Module):
    """i, g, o and each f_k from x and all h_k; c = i * g + sum f_k * c_k and h = o * tanh(c).

    For ordered children: child k has its own weights, and a missing child has a state of zeros.
    """

    def __init__(self, width: int, hidden: int, arity: int) -> None:
        super().__init__()
        self.arity = arity
        self.x = Linear(width, 4 * hidden)  # the gates i, g, o, f
        self.h = Linear(arity * hidden, (3 + arity) * hidden, bias=False)  # i, g, o, f_1 ... f_K
        self.forget, self.gates = Tap(), Gates()
        assert self.x.bias is not None
        nn.init.ones_(self.x.bias.data[3 * hidden :])

    def forward(self, x: Tensor, h: Tensor, c: Tensor, to: Tensor) -> tuple[Tensor, Tensor]:
        """x (N, 4 H) are the words after projection; h, c (M, H) the children's states; `to` (M,) their slots."""
        K, H = self.arity, h.shape[1]
        igo, f = x.split([3 * H, H], -1)
        if not len(to):
            return self.gates(igo)
        h, c = (part.new_zeros(len(x) * K, H).index_copy(0, to, part) for part in (h, c))  # (N * K, H)
        below, forget = self.h(h.view(len(x), K * H)).split([3 * H, K * H], -1)
        forget = self.forget(torch.sigmoid(forget.view(-1, K, H) + f[:, None]))  # (N, K, H)
        return self.gates(igo + below, (forget * c.view(-1, K, H)).sum(1))  # (N, H)


class TreeLSTM(nn.Module):
    """A batch of trees -> logits (N, C), one row per node."""

    def __init__(self, config: TreeLSTMConfig) -> None:
        super().__init__()
        self.config = c = config
        assert c.vocab is not None, "the vocabulary size comes from the list of words"
        self.tokens = nn.Embedding(c.vocab, c.width)
        nn.init.normal_(self.tokens.weight, std=0.3)  # about the norm of GloVe vectors
        self.inputs, self.outputs = nn.Dropout(c.input_dropout), nn.Dropout(c.dropout)
        self.cell = Nary(c.width, c.hidden, c.arity) if c.form == "nary" else ChildSumCell(c.width, c.hidden)
        self.out = Linear(c.hidden, c.classes)

    def forward(self, batch: Forest) -> Tensor:
        return self.out(self.outputs(self.states(batch)))  # (N, C)

    def states(self, batch: Forest) -> Tensor:
        """The hidden state of each node: of all leaves at once, then of the inner nodes, level by level."""
        bias, count = self.cell.x.bias, sum(batch.leaf_counts)
        assert bias is not None
        words = self.cell.x(self.inputs(self.tokens(batch.words)))  # (W, 4 * H)
        inner = bias.to(words.dtype).expand(sum(batch.inner_counts), -1)  # (I, 4 * H), where there is no word
        inner = inner.index_put((batch.inner,), words[count:])  # (I, 4 * H)
        nothing = words.new_zeros(0, self.config.hidden)  # (0, H)
        h, c = self.cell(words[:count], nothing, nothing, batch.words[:0])  # (L, H)
        leaves = list(zip(h.split(batch.leaf_counts), c.split(batch.leaf_counts), strict=True))
        states, below = [h], leaves[0]  # the deepest level has leaves only
        for x, leaf, to in zip(inner.split(batch.inner_counts[1:]), leaves[1:], self.targets(batch), strict=True):
            h, c = self.cell(x, *below, to)
            states.append(h)
            below = torch.cat([h, leaf[0]]), torch.cat([c, leaf[1]])
        return torch.cat(states)  # (N, H)

    def targets(self, batch: Forest) -> Sequence[Tensor]:
        """For each level but the deepest, the slots of the children's states in the cell."""
        to = batch.parents
        if self.config.form == "nary":
            self.check_arity(batch.widest)
            to = to * self.config.arity + batch.places
        return to.split([inner + leaf for inner, leaf in zip(batch.inner_counts, batch.leaf_counts, strict=True)][:-1])

    def check_arity(self, widest: int) -> None:
        if widest > self.config.arity:
            raise ValueError(f"a node has {widest} children, but the model's arity is {self.config.arity}")


def one_by_one(model: TreeLSTM, words: Sequence[int | None], children: Sequence[Sequence[int]]) -> Tensor:
    """The hidden states of one tree, node by node, children first: the definition that tests compare with."""
    assert model.cell.x.bias is not None
    states: list[tuple[Tensor, Tensor]] = []
    nothing = model.out.weight.new_zeros(0, model.config.hidden)  # (0, H)
    for word, below in zip(words, children, strict=True):
        x = model.cell.x.bias[None]  # (1, 4 * H)
        if word is not None:
            x = model.cell.x(model.tokens.weight[word][None])  # (1, 4 * H)
        h, c = (torch.cat([nothing, *(states[k][part] for k in below)]) for part in (0, 1))
        to = range(len(below)) if model.config.form == "nary" else [0] * len(below)
        states.append(model.cell(x, h, c, torch.tensor(to, dtype=torch.long, device=x.device)))
    return torch.cat([h for h, _ in states])  # (N, H)
