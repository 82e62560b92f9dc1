"""A recurrent decoder that attends to a memory before each step, over a whole sequence: few kernels per step, and each
weight gradient in one matrix product after the last step.

The inputs of a layer are in one buffer for all steps, (T + 1, B, X + H): the output of the layer below, then the
layer's own previous state. Kernels write their results directly to these buffers.

With a gate, the context of a step is scaled by a number between 0 and 1 from the state (Xu et al., 2015).

B batch, T steps, S keys, K width of a key, M of the memory, H hidden width, X width of the layer below, L layers.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import torch
import triton
import triton.language as tl
from torch import Tensor

CHUNK = 16  # keys of a tile
WIDE = 512  # hidden units of a tile


@triton.jit
def _tanh(x):
    return 2 * tl.sigmoid(2 * x) - 1


@triton.jit
def _attend(
    q, keys, memory, real, v, gate, context, weights, S, K, M, q_row, context_row, scale,
    ADDITIVE: tl.constexpr, GATED: tl.constexpr, C: tl.constexpr, KK: tl.constexpr, MM: tl.constexpr, SS: tl.constexpr,
):  # fmt: skip
    """Attention of one row: the weights (S,) and the context vector (M,), times the sigmoid of `gate` if gated."""
    row = tl.program_id(0).to(tl.int64)
    k, m = tl.arange(0, KK), tl.arange(0, MM)
    query = tl.load(q + row * q_row + k, mask=k < K, other=0.0).to(tl.float32)
    if ADDITIVE:
        vector = tl.load(v + k, mask=k < K, other=0.0).to(tl.float32)
    running_max, running_sum, total = -float("inf"), 0.0, tl.zeros([MM], tl.float32)
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
        new_max = tl.maximum(running_max, tl.max(score, 0))
        safe_max = tl.where(new_max == -float("inf"), 0.0, new_max)
        part, rescale = tl.exp(score - safe_max), tl.exp(running_max - safe_max)
        value = tl.load(memory + at * M + m[None, :], mask=here[:, None] & (m < M)[None, :], other=0.0).to(tl.float32)
        total = total * rescale + tl.sum(part[:, None] * value, 0)
        running_sum = running_sum * rescale + tl.sum(part, 0)
        running_max = new_max
    running_sum = tl.where(running_sum == 0.0, 1.0, running_sum)
    found = total / running_sum
    if GATED:
        found *= tl.sigmoid(tl.load(gate + row).to(tl.float32))
    tl.store(context + row * context_row + m, found.to(context.dtype.element_ty), mask=m < M)
    tl.debug_barrier()  # all scores must be written before they are read again
    s = tl.arange(0, SS)
    score = tl.load(weights + row * S + s, mask=s < S, other=-float("inf"))
    safe_max = tl.where(running_max == -float("inf"), 0.0, running_max)
    tl.store(weights + row * S + s, tl.exp(score - safe_max) / running_sum, mask=s < S)


@triton.jit
def _attend_backward(
    q, keys, memory, v, gate, context, weights, grad_context, grad_weights, grad_scores, grad_q, grad_gate,
    S, K, M, q_row, context_row, grad_row, scale,
    ADDITIVE: tl.constexpr, GATED: tl.constexpr, SEEN: tl.constexpr, C: tl.constexpr, KK: tl.constexpr,
    MM: tl.constexpr, SS: tl.constexpr,
):  # fmt: skip
    """The gradients of the scores (S,), the query (K,) and the gate, from those of the context vector and the weights.

    `grad_context` is overwritten by the gradient before the gate; the weights have one if they are `SEEN`.
    """
    row = tl.program_id(0).to(tl.int64)
    k, m = tl.arange(0, KK), tl.arange(0, MM)
    query = tl.load(q + row * q_row + k, mask=k < K, other=0.0).to(tl.float32)
    if ADDITIVE:
        vector = tl.load(v + k, mask=k < K, other=0.0).to(tl.float32)
    grad = tl.load(grad_context + row * grad_row + m, mask=m < M, other=0.0).to(tl.float32)
    mean = tl.sum(grad * tl.load(context + row * context_row + m, mask=m < M, other=0.0).to(tl.float32), 0)
    if GATED:  # the context is scaled already: its product with the gradient is the same before and after the gate
        beta = tl.sigmoid(tl.load(gate + row).to(tl.float32))
        tl.store(grad_gate + row, (mean * (1 - beta)).to(grad_gate.dtype.element_ty))
        grad *= beta
        tl.store(grad_context + row * grad_row + m, grad.to(grad_context.dtype.element_ty), mask=m < M)
    if SEEN:
        every = tl.arange(0, SS)
        there = tl.load(weights + row * S + every, mask=every < S, other=0.0)
        mean += tl.sum(there * tl.load(grad_weights + row * S + every, mask=every < S, other=0.0), 0)
    total = tl.zeros([KK], tl.float32)
    for start in range(0, S, C):
        s = start + tl.arange(0, C)
        at = (row * S + s)[:, None]
        weight = tl.load(weights + row * S + s, mask=s < S, other=0.0)
        value = tl.load(memory + at * M + m[None, :], mask=(s < S)[:, None] & (m < M)[None, :], other=0.0)
        product = tl.sum(value.to(tl.float32) * grad[None, :], 1)
        if SEEN:
            product += tl.load(grad_weights + row * S + s, mask=s < S, other=0.0)
        inner = weight * (product - mean)
        tl.store(grad_scores + row * S + s, inner, mask=s < S)
        key = tl.load(keys + at * K + k[None, :], mask=(s < S)[:, None] & (k < K)[None, :], other=0.0).to(tl.float32)
        if ADDITIVE:
            hidden = _tanh(query[None, :] + key)
            total += tl.sum(inner[:, None] * vector[None, :] * (1 - hidden * hidden), 0)
        else:
            total += scale * tl.sum(inner[:, None] * key, 0)
    tl.store(grad_q + row * K + k, total.to(grad_q.dtype.element_ty), mask=k < K)


@triton.jit
def _keys_backward(
    q, keys, v, grad_scores, grad_keys, grad_v, B, T, S, K, C: tl.constexpr, KK: tl.constexpr
):  # fmt: skip
    """The gradients of some keys of a row under the additive score, over all steps, and a partial sum of that of v."""
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
    """One step of a layer from its pre-activations z: gates, new state, and the output, written where it is read next.

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
    if GRU:  # reset, update, the candidate's parts from the layer below and from the state
        c = _tanh(c + a * d)
        state = b * state + (1 - b) * c
        output = state
    else:  # input, forget, candidate, output
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
def _cell_backward(
    kept, before, after, output, mask, carried, query, kept_grad, grad_z,
    H, output_row, carried_row,
    GRU: tl.constexpr, DROPS: tl.constexpr, QUERY: tl.constexpr, W: tl.constexpr,
):  # fmt: skip
    """The gradient of the pre-activations of one step, from those of its output, its next state and the next query.

    `kept_grad` (B, H) is the gradient of the state apart from the pre-activations, updated for the previous step.
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


class AttentionDecoder(torch.autograd.Function):
    """pre (T, B, 4 H) and a memory -> outputs (T, B, H) of the last layer, and the states after the last step.

    Then the contexts (T, B, M), gated if there is a gate, and the weights (T, B, S). The weights of a layer are
    (4 H, X + H); those of a GRU have zeros, since its candidate has two separate parts. A gate has (1, H) and (1,).
    """

    apply: ClassVar[Callable[..., tuple[Tensor, Tensor, Tensor, Tensor, Tensor]]]  # inherited, where it has no type

    @staticmethod
    def forward(
        ctx: Any, gru: bool, scale: float, masks: Tensor | None, real: Tensor, pre: Tensor, keys: Tensor,
        memory: Tensor, w_query: Tensor | None, v: Tensor | None, w_gate: Tensor | None, b_gate: Tensor | None,
        hidden: Tensor, cells: Tensor | None, *layers: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
        (steps, rows, size), count = pre.shape, len(hidden)
        weights, biases, size = layers[:count], layers[count:], size // 4
        (_, length, wide), wide_memory = keys.shape, memory.shape[2]
        inputs = [pre.new_empty(steps + 1, rows, weight.shape[1]) for weight in weights]
        below = [wide_memory] + [size] * (count - 1)  # the width of the layer below
        kept = pre.new_empty(count, steps, rows, 4 * size)
        states = pre.new_empty(count, steps + 1, rows, size, dtype=torch.float32)
        for layer in range(count):
            inputs[layer][0, :, below[layer] :] = hidden[layer]
            states[layer, 0] = hidden[layer] if cells is None else cells[layer]
        queries = pre.new_empty(steps, rows, wide)
        seen = pre.new_empty(steps, rows, length, dtype=torch.float32)
        gates = pre.new_empty(steps, rows, 1)
        z = pre.new_empty(rows, 4 * size)
        across = (rows, triton.cdiv(size, WIDE))
        shape = {"C": CHUNK, "KK": triton.next_power_of_2(wide), "MM": triton.next_power_of_2(wide_memory)}
        shape["SS"] = triton.next_power_of_2(length)
        for t in range(steps):
            state = inputs[-1][t, :, below[-1] :]  # the last layer's, before the step
            if w_gate is not None and b_gate is not None:
                torch.addmm(b_gate, state, w_gate.mT, out=gates[t])
            query = state if w_query is None else torch.mm(state, w_query.mT, out=queries[t])
            _attend[(rows,)](
                query, keys, memory, real, keys if v is None else v, gates[t], inputs[0][t], seen[t], length, wide,
                wide_memory, query.stride(0), inputs[0].stride(1), scale, ADDITIVE=v is not None,
                GATED=w_gate is not None, **shape, num_warps=8,
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
        ctx.save_for_backward(
            masks, keys, memory, w_query, v, w_gate, *weights, *inputs, kept, states, queries, seen, gates
        )
        ctx.set_materialize_grads(False)
        ctx.gru, ctx.scale, ctx.below, ctx.lstm = gru, scale, below, cells is not None
        outputs = inputs[-1][1:, :, below[-1] :].contiguous()
        last = torch.stack([inputs[layer][steps, :, below[layer] :] for layer in range(count)])
        return outputs, last, states[:, steps].clone(), inputs[0][:steps, :, :wide_memory].clone(), seen.clone()

    @staticmethod
    def backward(
        ctx: Any, grad: Tensor | None, grad_hidden: Tensor | None, grad_cells: Tensor | None,
        grad_contexts: Tensor | None, grad_seen: Tensor | None,
    ) -> tuple[Tensor | None, ...]:  # fmt: skip
        masks, keys, memory, w_query, v, w_gate, *rest, kept, states, queries, seen, gates = ctx.saved_tensors
        count, below = len(ctx.below), ctx.below
        weights, inputs = rest[:count], rest[count:]
        _, steps, rows, size = kept.shape
        size //= 4
        (_, length, wide), wide_memory = keys.shape, memory.shape[2]
        grad = kept.new_zeros(steps, rows, size) if grad is None else grad.contiguous()
        lasting = grad_cells is not None and ctx.lstm
        past = grad_cells.clone() if lasting and grad_cells is not None else states.new_zeros(count, rows, size)
        grad_z = torch.empty_like(kept)
        flow = [[torch.empty_like(inputs[layer][0]) for _ in range(2)] for layer in range(count)]
        for layer in range(count):
            flow[layer][steps % 2][:, below[layer] :] = 0 if grad_hidden is None else grad_hidden[layer]
        contexts = memory.new_empty(steps, rows, wide_memory)
        grad_scores, grad_queries, grad_gates = map(torch.empty_like, (seen, queries, gates))
        of_seen = seen if grad_seen is None else grad_seen.contiguous()
        grad_query = grad.new_empty(rows, size)
        across = (rows, triton.cdiv(size, WIDE))
        shape = {"C": CHUNK, "KK": triton.next_power_of_2(wide), "MM": triton.next_power_of_2(wide_memory)}
        shape["SS"] = triton.next_power_of_2(length)
        for t in reversed(range(steps)):
            now, later = t % 2, (t + 1) % 2
            for layer in reversed(range(count)):
                top = layer == count - 1
                output = grad[t] if top else flow[layer + 1][now]
                carried = flow[layer][later][:, below[layer] :]
                _cell_backward[across](
                    kept[layer, t], states[layer, t], states[layer, t + 1], output,
                    output if masks is None or top else masks[layer, t], carried, grad_query, past[layer],
                    grad_z[layer, t], size, output.stride(0), carried.stride(0), GRU=ctx.gru,
                    DROPS=masks is not None and not top, QUERY=top and t + 1 < steps, W=WIDE,
                )  # fmt: skip
                torch.mm(grad_z[layer, t], weights[layer], out=flow[layer][now])
            into = flow[0][now][:, :wide_memory]
            contexts[t] = into if grad_contexts is None else into + grad_contexts[t]
            query = inputs[-1][t, :, below[-1] :] if w_query is None else queries[t]
            _attend_backward[(rows,)](
                query, keys, memory, keys if v is None else v, gates[t], inputs[0][t], seen[t], contexts[t],
                of_seen[t], grad_scores[t], grad_queries[t], grad_gates[t], length, wide, wide_memory, query.stride(0),
                inputs[0].stride(1), wide_memory, ctx.scale, ADDITIVE=v is not None, GATED=w_gate is not None,
                SEEN=grad_seen is not None, **shape, num_warps=8,
            )  # fmt: skip
            if w_query is None:
                grad_query = grad_queries[t]
            else:
                torch.mm(grad_queries[t], w_query, out=grad_query)
            if w_gate is not None:
                grad_query.addmm_(grad_gates[t], w_gate)
        grad_initial = torch.stack([flow[layer][0][:, below[layer] :] for layer in range(count)])
        grad_initial[-1] += grad_query
        query_states = inputs[-1][:steps, :, below[-1] :]  # (T, B, H)
        grad_memory = torch.einsum("tbs,tbm->bsm", seen.to(contexts.dtype), contexts)
        grad_v = grad_look = of_gate = of_gate_bias = None
        if w_gate is not None:
            of_gate = grad_gates.flatten(0, 1).mT @ query_states.flatten(0, 1)
            of_gate_bias = grad_gates.sum((0, 1))
        if v is None:
            grad_keys = ctx.scale * torch.einsum("tbs,tbk->bsk", grad_scores.to(query_states.dtype), query_states)
        else:
            pieces = triton.cdiv(length, CHUNK // 2)
            grad_keys, of_v = torch.empty_like(keys), seen.new_empty(rows * pieces, wide)
            _keys_backward[(rows, pieces)](
                queries, keys, v, grad_scores, grad_keys, of_v, rows, steps, length, wide, C=CHUNK // 2, KK=shape["KK"],
                num_warps=8,
            )  # fmt: skip
            grad_v = of_v.sum(0).to(v.dtype)
            grad_look = grad_queries.flatten(0, 1).mT @ query_states.flatten(0, 1)
        of_weights = [grad_z[layer].flatten(0, 1).mT @ inputs[layer][:steps].flatten(0, 1) for layer in range(count)]
        of_biases = [grad_z[layer].sum((0, 1)) for layer in range(1, count)]
        return (
            None, None, None, None, grad_z[0], grad_keys, grad_memory, grad_look, grad_v, of_gate, of_gate_bias,
            grad_initial + past.to(grad_initial.dtype) if not ctx.lstm else grad_initial, past if ctx.lstm else None,
            *of_weights, *of_biases,
        )  # fmt: skip
