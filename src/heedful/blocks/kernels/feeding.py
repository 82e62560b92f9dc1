"""A recurrent decoder that attends to a memory before each step, over a whole sequence: few kernels per step, and
gradients of the weights in single products after the last one.

The input of a layer stands in one buffer for all steps, (T + 1, B, X + H): what comes from below beside the layer's own
state before the step. Kernels write their results right there.

B batch, T steps, S keys, K width of a key, M of the memory, H hidden width, X width from below, L layers.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import torch
import triton
import triton.language as tl
from torch import Tensor

CHUNK = 16  # keys that a program holds at once
WIDE = 512  # hidden numbers that a program holds at once


@triton.jit
def _tanh(x):
    return 2 * tl.sigmoid(2 * x) - 1


@triton.jit
def _look(
    q, keys, memory, real, v, context, weights, S, K, M, q_row, context_row, scale,
    ADDITIVE: tl.constexpr, C: tl.constexpr, KK: tl.constexpr, MM: tl.constexpr, SS: tl.constexpr,
):  # fmt: skip
    """One row's query against its keys: weights (S,) and their sum of the memory (M,)."""
    row = tl.program_id(0).to(tl.int64)
    k, m = tl.arange(0, KK), tl.arange(0, MM)
    query = tl.load(q + row * q_row + k, mask=k < K, other=0.0).to(tl.float32)
    if ADDITIVE:
        vector = tl.load(v + k, mask=k < K, other=0.0).to(tl.float32)
    peak, mass, total = -float("inf"), 0.0, tl.zeros([MM], tl.float32)
    for start in range(0, S, C):
        s = start + tl.arange(0, C)
        here = tl.load(real + row * S + s, mask=s < S, other=0) != 0
        at = (row * S + s)[:, None]
        key = tl.load(keys + at * K + k[None, :], mask=here[:, None] & (k < K)[None, :], other=0.0).to(tl.float32)
        if ADDITIVE:
            score = tl.sum(_tanh(query[None, :] + key) * vector[None, :], 1)
        else:
            score = scale * tl.sum(query[None, :] * key, 1)
        score = tl.where(here, score, -float("inf"))
        tl.store(weights + row * S + s, score, mask=s < S)
        higher = tl.maximum(peak, tl.max(score, 0))
        ground = tl.where(higher == -float("inf"), 0.0, higher)
        part, shrink = tl.exp(score - ground), tl.exp(peak - ground)
        value = tl.load(memory + at * M + m[None, :], mask=here[:, None] & (m < M)[None, :], other=0.0).to(tl.float32)
        total = total * shrink + tl.sum(part[:, None] * value, 0)
        mass = mass * shrink + tl.sum(part, 0)
        peak = higher
    mass = tl.where(mass == 0.0, 1.0, mass)
    tl.store(context + row * context_row + m, (total / mass).to(context.dtype.element_ty), mask=m < M)
    tl.debug_barrier()  # all scores are written before they are read again
    s = tl.arange(0, SS)
    score = tl.load(weights + row * S + s, mask=s < S, other=-float("inf"))
    ground = tl.where(peak == -float("inf"), 0.0, peak)
    tl.store(weights + row * S + s, tl.exp(score - ground) / mass, mask=s < S)


@triton.jit
def _look_back(
    q, keys, memory, v, context, weights, grad_context, grad_scores, grad_q,
    S, K, M, q_row, context_row, grad_row, scale,
    ADDITIVE: tl.constexpr, C: tl.constexpr, KK: tl.constexpr, MM: tl.constexpr,
):  # fmt: skip
    """From the gradient in a context to those in its scores (S,) and in its query (K,)."""
    row = tl.program_id(0).to(tl.int64)
    k, m = tl.arange(0, KK), tl.arange(0, MM)
    query = tl.load(q + row * q_row + k, mask=k < K, other=0.0).to(tl.float32)
    if ADDITIVE:
        vector = tl.load(v + k, mask=k < K, other=0.0).to(tl.float32)
    grad = tl.load(grad_context + row * grad_row + m, mask=m < M, other=0.0).to(tl.float32)
    mean = tl.sum(grad * tl.load(context + row * context_row + m, mask=m < M, other=0.0).to(tl.float32), 0)
    total = tl.zeros([KK], tl.float32)
    for start in range(0, S, C):
        s = start + tl.arange(0, C)
        at = (row * S + s)[:, None]
        weight = tl.load(weights + row * S + s, mask=s < S, other=0.0)
        value = tl.load(memory + at * M + m[None, :], mask=(s < S)[:, None] & (m < M)[None, :], other=0.0)
        inner = weight * (tl.sum(value.to(tl.float32) * grad[None, :], 1) - mean)
        tl.store(grad_scores + row * S + s, inner, mask=s < S)
        key = tl.load(keys + at * K + k[None, :], mask=(s < S)[:, None] & (k < K)[None, :], other=0.0).to(tl.float32)
        if ADDITIVE:
            hidden = _tanh(query[None, :] + key)
            total += tl.sum(inner[:, None] * vector[None, :] * (1 - hidden * hidden), 0)
        else:
            total += scale * tl.sum(inner[:, None] * key, 0)
    tl.store(grad_q + row * K + k, total.to(grad_q.dtype.element_ty), mask=k < K)


@triton.jit
def _keys_back(
    q, keys, v, grad_scores, grad_keys, grad_v, B, T, S, K, C: tl.constexpr, KK: tl.constexpr
):  # fmt: skip
    """The additive score's gradients in some keys of a row, over all steps, and their part of that in v."""
    row, piece = tl.program_id(0).to(tl.int64), tl.program_id(1)
    k, s = tl.arange(0, KK), piece * C + tl.arange(0, C)
    inside = (s < S)[:, None] & (k < K)[None, :]
    at = (row * S + s)[:, None] * K + k[None, :]
    key = tl.load(keys + at, mask=inside, other=0.0).to(tl.float32)
    vector = tl.load(v + k, mask=k < K, other=0.0).to(tl.float32)
    total, of_v = tl.zeros([C, KK], tl.float32), tl.zeros([KK], tl.float32)
    for t in range(T):
        query = tl.load(q + (t * B + row) * K + k, mask=k < K, other=0.0).to(tl.float32)
        inner = tl.load(grad_scores + (t * B + row) * S + s, mask=s < S, other=0.0)
        hidden = _tanh(query[None, :] + key)
        total += inner[:, None] * vector[None, :] * (1 - hidden * hidden)
        of_v += tl.sum(inner[:, None] * hidden, 0)
    tl.store(grad_keys + at, total.to(grad_keys.dtype.element_ty), mask=inside)
    tl.store(grad_v + (row * tl.num_programs(1) + piece) * K + k, of_v, mask=k < K)


@triton.jit
def _cell(
    z, pre, before, kept, after, own, above, mask, H, pre_row, own_row, above_row,
    GRU: tl.constexpr, ABOVE: tl.constexpr, DROPS: tl.constexpr, W: tl.constexpr,
):  # fmt: skip
    """One step of a layer from its products z: gates, the state after it, and the output where it is read next.

    `before` and `after` are an LSTM's cell (B, H), or the hidden state of a GRU.
    """
    row, h = tl.program_id(0).to(tl.int64), tl.program_id(1) * W + tl.arange(0, W)
    inside = h < H
    at, into = row * 4 * H + h, row * pre_row + h
    a = tl.load(z + at, mask=inside, other=0.0).to(tl.float32) + tl.load(pre + into, mask=inside).to(tl.float32)
    b = tl.load(z + at + H, mask=inside, other=0.0).to(tl.float32) + tl.load(pre + into + H, mask=inside).to(tl.float32)
    c = tl.load(z + at + 2 * H, mask=inside, other=0.0).to(tl.float32)
    c += tl.load(pre + into + 2 * H, mask=inside, other=0.0).to(tl.float32)
    d = tl.load(z + at + 3 * H, mask=inside, other=0.0).to(tl.float32)
    d += tl.load(pre + into + 3 * H, mask=inside, other=0.0).to(tl.float32)
    state = tl.load(before + row * H + h, mask=inside, other=0.0)
    a, b = tl.sigmoid(a), tl.sigmoid(b)
    if GRU:  # reset, keep, candidate's part from below, candidate's part from the state
        c = _tanh(c + a * d)
        state = b * state + (1 - b) * c
        output = state
    else:  # write, forget, candidate, reveal
        c, d = _tanh(c), tl.sigmoid(d)
        state = b * state + a * c
        output = d * _tanh(state)
    kind = kept.dtype.element_ty
    tl.store(kept + at, a.to(kind), mask=inside)
    tl.store(kept + at + H, b.to(kind), mask=inside)
    tl.store(kept + at + 2 * H, c.to(kind), mask=inside)
    tl.store(kept + at + 3 * H, d.to(kind), mask=inside)
    tl.store(after + row * H + h, state, mask=inside)
    tl.store(own + row * own_row + h, output.to(kind), mask=inside)
    if ABOVE:
        if DROPS:
            output *= tl.load(mask + row * H + h, mask=inside, other=0.0).to(tl.float32)
        tl.store(above + row * above_row + h, output.to(kind), mask=inside)


@triton.jit
def _cell_back(
    kept, before, after, output, mask, carried, query, kept_grad, grad_z,
    H, output_row, carried_row,
    GRU: tl.constexpr, DROPS: tl.constexpr, QUERY: tl.constexpr, W: tl.constexpr,
):  # fmt: skip
    """The gradient in the products of one step, from those in its output, in the state after it and in the next query.

    `kept_grad` (B, H) holds the gradient that reaches the state past the products, and is left for the step before.
    """
    row, h = tl.program_id(0).to(tl.int64), tl.program_id(1) * W + tl.arange(0, W)
    inside = h < H
    at, place = row * 4 * H + h, row * H + h
    grad = tl.load(output + row * output_row + h, mask=inside, other=0.0).to(tl.float32)
    if DROPS:
        grad *= tl.load(mask + place, mask=inside, other=0.0).to(tl.float32)
    grad += tl.load(carried + row * carried_row + h, mask=inside, other=0.0).to(tl.float32)
    if QUERY:
        grad += tl.load(query + place, mask=inside, other=0.0).to(tl.float32)
    past = tl.load(kept_grad + place, mask=inside, other=0.0)
    state = tl.load(before + place, mask=inside, other=0.0)
    a = tl.load(kept + at, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(kept + at + H, mask=inside, other=0.0).to(tl.float32)
    c = tl.load(kept + at + 2 * H, mask=inside, other=0.0).to(tl.float32)
    d = tl.load(kept + at + 3 * H, mask=inside, other=0.0).to(tl.float32)
    if GRU:
        grad += past
        of_c = grad * (1 - b) * (1 - c * c)
        of_b = grad * (state - c) * b * (1 - b)
        of_a = of_c * d * a * (1 - a)
        of_d = of_c * a
        past = grad * b
    else:
        shown = _tanh(tl.load(after + place, mask=inside, other=0.0))
        of_d = grad * shown * d * (1 - d)
        past += grad * d * (1 - shown * shown)
        of_a = past * c * a * (1 - a)
        of_b = past * state * b * (1 - b)
        of_c = past * a * (1 - c * c)
        past *= b
    kind = grad_z.dtype.element_ty
    tl.store(grad_z + at, of_a.to(kind), mask=inside)
    tl.store(grad_z + at + H, of_b.to(kind), mask=inside)
    tl.store(grad_z + at + 2 * H, of_c.to(kind), mask=inside)
    tl.store(grad_z + at + 3 * H, of_d.to(kind), mask=inside)
    tl.store(kept_grad + place, past, mask=inside)


class Feeding(torch.autograd.Function):
    """pre (T, B, 4 H) and a memory -> the last layer's outputs (T, B, H), and the states after the last step.

    `weights` of a layer are (4 H, X + H), those of a GRU with zeros where the candidate's two parts do not meet.
    """

    apply: ClassVar[Callable[..., tuple[Tensor, Tensor, Tensor]]]  # inherited, where it has no type

    @staticmethod
    def forward(
        ctx: Any, gru: bool, scale: float, masks: Tensor | None, real: Tensor, pre: Tensor, keys: Tensor,
        memory: Tensor, look: Tensor | None, v: Tensor | None, hidden: Tensor, cells: Tensor | None, *layers: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        (steps, rows, size), count = pre.shape, len(hidden)
        weights, biases, size = layers[:count], layers[count:], size // 4
        (_, length, wide), wide_memory = keys.shape, memory.shape[2]
        inputs = [pre.new_empty(steps + 1, rows, weight.shape[1]) for weight in weights]
        below = [wide_memory] + [size] * (count - 1)  # the width of what comes from below
        kept = pre.new_empty(count, steps, rows, 4 * size)
        states = pre.new_empty(count, steps + 1, rows, size, dtype=torch.float32)
        for layer in range(count):
            inputs[layer][0, :, below[layer] :] = hidden[layer]
            states[layer, 0] = hidden[layer] if cells is None else cells[layer]
        queries = pre.new_empty(steps, rows, wide)
        seen = pre.new_empty(steps, rows, length, dtype=torch.float32)
        z = pre.new_empty(rows, 4 * size)
        across = (rows, triton.cdiv(size, WIDE))
        shape = {"C": CHUNK, "KK": triton.next_power_of_2(wide), "MM": triton.next_power_of_2(wide_memory)}
        for t in range(steps):
            state = inputs[-1][t, :, below[-1] :]  # the last layer's, before the step
            query = state if look is None else torch.mm(state, look.mT, out=queries[t])
            _look[(rows,)](
                query, keys, memory, real, keys if v is None else v, inputs[0][t], seen[t], length, wide, wide_memory,
                query.stride(0), inputs[0].stride(1), scale, ADDITIVE=v is not None,
                SS=triton.next_power_of_2(length), **shape, num_warps=8,
            )  # fmt: skip
            for layer, weight in enumerate(weights):
                torch.mm(inputs[layer][t], weight.mT, out=z)
                own, top = inputs[layer][t + 1, :, below[layer] :], layer == count - 1
                above = own if top else inputs[layer + 1][t]
                mask = z if masks is None or top else masks[layer, t]
                add = pre[t] if layer == 0 else biases[layer - 1]
                _cell[across](
                    z, add, states[layer, t], kept[layer, t], states[layer, t + 1], own, above, mask, size,
                    4 * size if layer == 0 else 0, own.stride(0), above.stride(0),
                    GRU=gru, ABOVE=not top, DROPS=masks is not None and not top, W=WIDE,
                )  # fmt: skip
        ctx.save_for_backward(masks, keys, memory, look, v, *weights, *inputs, kept, states, queries, seen)
        ctx.gru, ctx.scale, ctx.below, ctx.lstm = gru, scale, below, cells is not None
        outputs = inputs[-1][1:, :, below[-1] :].contiguous()
        last = torch.stack([inputs[layer][steps, :, below[layer] :] for layer in range(count)])
        return outputs, last, states[:, steps].clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor, grad_hidden: Tensor, grad_cells: Tensor) -> tuple[Tensor | None, ...]:
        masks, keys, memory, look, v, *rest, kept, states, queries, seen = ctx.saved_tensors
        count, below = len(ctx.below), ctx.below
        weights, inputs = rest[:count], rest[count:]
        _, steps, rows, size = kept.shape
        size //= 4
        (_, length, wide), wide_memory = keys.shape, memory.shape[2]
        grad = grad.contiguous()
        past = grad_cells.clone() if ctx.lstm else torch.zeros_like(grad_cells)
        grad_z = torch.empty_like(kept)
        flow = [[torch.empty_like(inputs[layer][0]) for _ in range(2)] for layer in range(count)]
        for layer in range(count):
            flow[layer][steps % 2][:, below[layer] :] = grad_hidden[layer]
        contexts = memory.new_empty(steps, rows, wide_memory)
        grad_scores, grad_queries = torch.empty_like(seen), torch.empty_like(queries)
        ask = grad.new_empty(rows, size)
        across = (rows, triton.cdiv(size, WIDE))
        shape = {"C": CHUNK, "KK": triton.next_power_of_2(wide), "MM": triton.next_power_of_2(wide_memory)}
        for t in reversed(range(steps)):
            now, later = t % 2, (t + 1) % 2
            for layer in reversed(range(count)):
                top = layer == count - 1
                output = grad[t] if top else flow[layer + 1][now]
                carried = flow[layer][later][:, below[layer] :]
                _cell_back[across](
                    kept[layer, t], states[layer, t], states[layer, t + 1], output,
                    output if masks is None or top else masks[layer, t], carried, ask, past[layer], grad_z[layer, t],
                    size, output.stride(0), carried.stride(0), GRU=ctx.gru, DROPS=masks is not None and not top,
                    QUERY=top and t + 1 < steps, W=WIDE,
                )  # fmt: skip
                torch.mm(grad_z[layer, t], weights[layer], out=flow[layer][now])
            contexts[t] = flow[0][now][:, :wide_memory]
            query = inputs[-1][t, :, below[-1] :] if look is None else queries[t]
            _look_back[(rows,)](
                query, keys, memory, keys if v is None else v, inputs[0][t], seen[t], contexts[t], grad_scores[t],
                grad_queries[t], length, wide, wide_memory, query.stride(0), inputs[0].stride(1), wide_memory,
                ctx.scale, ADDITIVE=v is not None, **shape, num_warps=8,
            )  # fmt: skip
            if look is None:
                ask = grad_queries[t]
            else:
                torch.mm(grad_queries[t], look, out=ask)
        begin = torch.stack([flow[layer][0][:, below[layer] :] for layer in range(count)])
        begin[-1] += ask
        asked = inputs[-1][:steps, :, below[-1] :]  # (T, B, H)
        grad_memory = torch.einsum("tbs,tbm->bsm", seen.to(contexts.dtype), contexts)
        grad_v = grad_look = None
        if v is None:
            grad_keys = ctx.scale * torch.einsum("tbs,tbk->bsk", grad_scores.to(asked.dtype), asked)
        else:
            pieces = triton.cdiv(length, CHUNK // 2)
            grad_keys, of_v = torch.empty_like(keys), seen.new_empty(rows * pieces, wide)
            _keys_back[(rows, pieces)](
                queries, keys, v, grad_scores, grad_keys, of_v, rows, steps, length, wide, C=CHUNK // 2, KK=shape["KK"],
                num_warps=8,
            )  # fmt: skip
            grad_v = of_v.sum(0).to(v.dtype)
            grad_look = grad_queries.flatten(0, 1).mT @ asked.flatten(0, 1)
        of_weights = [grad_z[layer].flatten(0, 1).mT @ inputs[layer][:steps].flatten(0, 1) for layer in range(count)]
        of_biases = [grad_z[layer].sum((0, 1)) for layer in range(1, count)]
        return (
            None, None, None, None, grad_z[0], grad_keys, grad_memory, grad_look, grad_v,
            begin + past.to(begin.dtype) if not ctx.lstm else begin, past if ctx.lstm else None,
            *of_weights, *of_biases,
        )  # fmt: skip
