"""A recurrent decoder that attends to a memory before each step, over whole sequences on a GPU.

The definitions are the loops in `models/seq2seq/model.py` and `models/captioner/model.py`; here the same runs in Triton
kernels.

B batch, T steps, S keys, E width of an embedding, H hidden width, M width of the memory.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from heedful.blocks.linear import Linear
from heedful.blocks.memory import GlobalSpan, MemoryAttention, Source
from heedful.blocks.normalizers import softmax
from heedful.blocks.recurrent import GRU, LSTM, Stack, State
from heedful.blocks.scores import Additive, General, Weightless, dot, scaled_dot
from heedful.blocks.taps import watched

WIDEST = 1024  # a kernel holds one key and one value vector
LONGEST = 4096  # and the attention weights of all keys


def has_kernels(attention: MemoryAttention, stack: Stack, x: Tensor, source: Source) -> bool:
    """Whether the kernels support this attention and stack, and no tap in them has a hook."""
    if not x.is_cuda or x.shape[1] == 1 or x.dtype == torch.float64 or len(x) != len(source.real):
        return False
    known = isinstance(attention.score, Additive | General) or attention.score.compare in (dot, scaled_dot)
    plain = isinstance(attention.span, GlobalSpan) and attention.normalize is softmax and not attention.hard
    fits = max(source.kv.k.shape[-1], source.kv.v.shape[-1]) <= WIDEST and source.real.shape[1] <= LONGEST
    gated = all(isinstance(layer.cell, LSTM | GRU) for layer in stack.layers)
    return known and plain and fits and gated and not watched(attention) and not watched(stack)


class Fused(NamedTuple):
    """What a decoder leaves of a whole sequence."""

    outputs: Tensor  # (B, T, H) of its last layer
    layers: tuple[State, ...]  # the states after the last step
    contexts: Tensor  # (B, T, M), scaled by the gate if there is one
    weights: Tensor  # (B, T, S)


def run_fused(
    attention: MemoryAttention,
    stack: Stack,
    x: Tensor,
    layers: tuple[State, ...],
    source: Source,
    gate: Linear | None = None,
) -> Fused:
    """A stack that reads [context; x]; with a gate, the context is scaled by sigmoid(gate(h))."""
    from heedful.blocks.kernels.feeding import AttentionDecoder  # needs Triton, part of torch's GPU builds

    half = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else x.dtype
    cells: list[Any] = [layer.cell for layer in stack.layers]
    memory, gru = source.kv.v[:, 0], isinstance(cells[0], GRU)
    wide = memory.shape[-1]
    context, embedding = cells[0].x.weight.split(
        [wide, x.shape[-1]], 1
    )  # input weights of the context and of the embedding
    weights = [stack_weights(cells[0], context), *(stack_weights(cell, cell.x.weight) for cell in cells[1:])]
    biases = [bias(cell) for cell in cells]
    pre = torch.nn.functional.linear(x, as_four_gates(embedding) if gru else embedding, biases[0])  # (B, T, 4 H)
    score = attention.score
    masks = None
    if stack.training and stack.dropout.p and len(cells) > 1:
        masks = stack.dropout(x.new_ones(len(cells) - 1, x.shape[1], len(x), cells[0].h.weight.shape[1])).to(half)
    hidden = torch.stack([state[0] for state in layers]).to(half)  # (L, B, H)
    past = None if gru else torch.stack([state[1] for state in layers]).float()  # (L, B, H)
    scaled = isinstance(score, Weightless) and score.compare is scaled_dot
    scale = hidden.shape[-1] ** -0.5 if scaled else 1.0
    with torch.autocast("cuda", enabled=False):
        y, after, cell_states, contexts, seen = AttentionDecoder.apply(
            gru, scale, masks, source.real, pre.transpose(0, 1).to(half).contiguous(),
            source.kv.k[:, 0].to(half).contiguous(), memory.to(half).contiguous(),
            score.q.weight.to(half) if isinstance(score, Additive) else None,
            score.v.weight[0].to(half) if isinstance(score, Additive) else None,
            None if gate is None else gate.weight.to(half),
            None if gate is None or gate.bias is None else gate.bias.to(half),
            hidden, past, *(weight.to(half) for weight in weights), *(part.to(half) for part in biases[1:]),
        )  # fmt: skip
    states = tuple((h,) if gru else (h, c) for h, c in zip(after, cell_states, strict=True))
    return Fused(y.transpose(0, 1), states, contexts.transpose(0, 1), seen.transpose(0, 1))


def stack_weights(cell: LSTM | GRU, below: Tensor) -> Tensor:
    """The input weights and the state weights side by side, (4 H, X + H)."""
    if isinstance(cell, LSTM):
        return torch.cat([below, cell.h.weight], 1)
    gates, new = cell.h.weight.split([len(below) // 3 * 2, len(below) // 3])
    state = torch.cat([gates, torch.zeros_like(new), new])
    return torch.cat([as_four_gates(below), state], 1)


def as_four_gates(weight: Tensor) -> Tensor:
    """The three gates of a GRU as four: the candidate's part from the state is separate, and zero here."""
    return torch.cat([weight, torch.zeros_like(weight[: len(weight) // 3])])


def bias(cell: LSTM | GRU) -> Tensor:
    assert cell.x.bias is not None
    if isinstance(cell, LSTM):
        return cell.x.bias
    assert cell.h.bias is not None
    gates, new = cell.h.bias.split([len(cell.h.bias) // 3 * 2, len(cell.h.bias) // 3])
    three = cell.x.bias + torch.cat([gates, torch.zeros_like(new)])
    return torch.cat([three, new])
