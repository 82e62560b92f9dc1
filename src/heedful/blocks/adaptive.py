"""Adaptive input embeddings and adaptive softmax: rare tokens have narrow vectors (Grave et al., 2017; Baevski and
Auli, 2019).

Tokens are sorted by frequency and cut into clusters. The first, the head, predicts its tokens and the other clusters;
each of those, a tail, predicts its own tokens: log p(token) = log p(cluster) + log p(token | cluster).

B batch, T positions, N = B * T positions, D width, E embedding width, V vocabulary, C tokens of a cluster.
"""

import math
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.blocks.losses import Loss, projected_cross_entropy

STD = 0.02  # of random tables; half as much for projections, as Transformer-XL was published


class AdaptiveEmbedding(nn.Module):
    """x = sqrt(D) P_c E_c[token], where c is the token's cluster, and logits from the same tables E_c.

    Cluster c has vectors of E / divisor^c. Without projections (one width, as that of the model), there is a single
    table E. The head has a projection of its own for the logits; the tails use those of the input.
    """

    def __init__(self, vocab: int, width: int, embed: int, cutoffs: tuple[int, ...] = (), divisor: int = 1) -> None:
        super().__init__()
        self.edges = (0, *(cutoff for cutoff in cutoffs if cutoff < vocab), vocab)
        self.scale = math.sqrt(width)
        sizes = [end - begin for begin, end in pairwise(self.edges)]
        self.one = divisor == 1  # table
        widths = [embed // divisor**number for number in range(len(sizes))]
        tables = [(vocab, embed)] if self.one else list(zip(sizes, widths, strict=True))
        self.tables = nn.ParameterList(torch.randn(rows, narrow) * STD for rows, narrow in tables)
        self.biases = nn.ParameterList(torch.zeros(rows) for rows, _ in tables)
        projected = tables if embed != width or not self.one else []
        self.projections = nn.ParameterList(torch.randn(width, narrow) * STD / 2 for _, narrow in projected)
        self.out = nn.Parameter(torch.randn(width, embed) * STD / 2) if projected else None
        tails = len(sizes) - 1
        self.clusters = nn.Parameter(torch.randn(tails, embed) * STD) if tails else None
        self.cluster_bias = nn.Parameter(torch.zeros(tails)) if tails else None

    def forward(self, tokens: Tensor) -> Tensor:
        if self.one:
            return self.scale * self.project(F.embedding(tokens, self.tables[0]), 0)  # (B, T, D)
        parts = [
            self.project(F.embedding((tokens - begin).clamp(0, len(table) - 1), table), number)
            for number, (begin, table) in enumerate(zip(self.edges, self.tables, strict=False))
        ]
        x = parts[0]  # (B, T, D)
        for begin, part in zip(self.edges[1:], parts[1:], strict=False):
            x = torch.where((tokens >= begin)[..., None], part, x)  # (B, T, D)
        return self.scale * x

    def project(self, x: Tensor, cluster: int) -> Tensor:
        """The vectors of a cluster (B, T, E), as wide as the model."""
        return F.linear(x, self.projections[cluster]) if len(self.projections) else x  # (B, T, D)

    def cluster(self, number: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """The table (C, E), the bias (C,) and the projection (D, E) that give a cluster's logits."""
        begin, end = self.edges[number : number + 2]
        weight, bias = (part[0][begin:end] if self.one else part[number] for part in (self.tables, self.biases))
        projection = None if self.out is None else self.projections[0 if self.one else number]
        if number > 0:
            return weight, bias, projection
        if self.clusters is None or self.cluster_bias is None:
            return weight, bias, self.out
        return torch.cat([weight, self.clusters]), torch.cat([bias, self.cluster_bias]), self.out

    def logits(self, x: Tensor) -> Tensor:
        """The logits (B, T, V); with clusters, log-probabilities."""
        first, *tails = (self.cluster_logits(x, number) for number in range(len(self.edges) - 1))
        if not tails:
            return first
        head, count = first.log_softmax(-1), self.edges[1]
        parts = [
            head[..., count + number, None] + tail.log_softmax(-1)  # log p(cluster) + log p(token | cluster)
            for number, tail in enumerate(tails)
        ]
        return torch.cat([head[..., :count], *parts], -1)  # (B, T, V)

    def cluster_logits(self, x: Tensor, number: int) -> Tensor:
        weight, bias, projection = self.cluster(number)
        return F.linear(x if projection is None else x @ projection, weight, bias)

    def loss(self, x: Tensor, targets: Tensor, ignore: int = -100) -> Loss:
        """-sum log p(target) for x (N, D) and targets (N,): a tail is computed only where its tokens are targets."""
        head = targets  # (N,)
        tails: list[Loss] = []
        for number in range(1, len(self.edges) - 1):
            begin, end = self.edges[number : number + 2]
            mine = (targets >= begin) & (targets < end)  # (N,)
            head = torch.where(mine, self.edges[1] + number - 1, head)  # (N,)
            rows = slice(None) if capturing() else mine.nonzero()[:, 0]
            own = torch.where(mine, targets - begin, ignore)[rows]
            tails.append(self.cluster_loss(x[rows], own, number, ignore))
        first = self.cluster_loss(x, head, 0, ignore)
        total = sum((tail.total for tail in tails), first.total)
        return Loss(total, sum((tail.plain for tail in tails), first.plain), first.count)

    def cluster_loss(self, x: Tensor, targets: Tensor, number: int, ignore: int) -> Loss:
        weight, bias, projection = self.cluster(number)
        x = x if projection is None else x @ projection
        return projected_cross_entropy(x, weight, targets, ignore=ignore, bias=bias)


def capturing() -> bool:
    """Whether a CUDA graph is being captured, in which a shape cannot depend on the values of a tensor."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
