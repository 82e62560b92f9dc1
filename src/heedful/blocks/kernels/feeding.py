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

KEYS, COLUMNS = 16, 64  # keys of a tile, and values of each where a program takes a part of them
WIDE = 512  # hidden units of a tile


@triton.jit
def _tanh(x):
    return 2 * tl.sigmoid(2 * x) - 1


@triton.jit
def _scores(
    q, keys, real, v, scores, S, K, q_row, scale, ADDITIVE: tl.constexpr, C: tl.constexpr, KK: tl.constexpr
):  # fmt: skip
    """The scores of C keys of a row; -inf for those that are not real."""
    row, s, k = tl.program_id(0).to(tl.int64), tl.program_id(1) * C + tl.arange(0, C), tl.arange(0, KK)
    here = tl.load(real + row * S + s, mask=s < S, other=0) != 0
    query = tl.load(q + row * q_row + k, mask=k < K, other=0.0).to(tl.float32)
    at = (row * S + s)[:, None] * K + k[None, :]
    key = tl.load(keys + at, mask=here[:, None] & (k < K)[None, :], other=0.0).to(tl.float32)
    if ADDITIVE:
        vector = tl.load(v + k, mask=k < K, other=0.0).to(tl.float32)
        score = tl.sum(_tanh(query[None, :] + key) * vector[None, :], 1)
    else:
        score = scale * tl.sum(query[None, :] * key, 1)
    tl.store(scores + row * S + s, tl.where(here, score, -float("inf")), mask=s < S)


@triton.jit
def _context(
    scores, memory, gate, context, weights, S, M, context_row,
    GATED: tl.constexpr, C: tl.constexpr, MM: tl.constexpr, SS: tl.constexpr,
):  # fmt: skip
    """The weights (S,) of a row, and MM values of its context vector, times the sigmoid of `gate` if gated."""
    row, m = tl.program_id(0).to(tl.int64), tl.program_id(1) * MM + tl.arange(0, MM)
    every = tl.arange(0, SS)
    score = tl.load(scores + row * S + every, mask=every < S, other=-float("inf"))
    peak = tl.max(score, 0)
    peak = tl.where(peak == -float("inf"), 0.0, peak)
    part = tl.exp(score - peak)
    whole = tl.sum(part, 0)
    whole = tl.where(whole == 0.0, 1.0, whole)
    if tl.program_id(1) == 0:
        tl.store(weights + row * S + every, part / whole, mask=every < S)
    total = tl.zeros([C, MM], tl.float32)
    for start in range(0, S, C):
        s = start + tl.arange(0, C)
        weight = tl.exp(tl.load(scores + row * S + s, mask=s < S, other=-float("inf")) - peak)
        seen = (weight > 0.0)[:, None] & (m < M)[None, :]  # values that are not real may be NaN
        value = tl.load(memory + (row * S + s)[:, None] * M + m[None, :], mask=seen, other=0.0)
        total += weight[:, None] * value.to(tl.float32)
    found = tl.sum(total, 0) / whole
    if GATED:
        found *= tl.sigmoid(tl.load(gate + row).to(tl.float32))
    tl.store(context + row * context_row + m, found.to(context.dtype.element_ty), mask=m < M)


@triton.jit
def _scores_backward(
    memory, gate, context, weights, of_context, more, grad_weights, grad_context, grad_scores, grad_gate,
    S, M, context_row, of_row, GATED: tl.constexpr, MORE: tl.constexpr, SEEN: tl.constexpr, C: tl.constexpr,
    MM: tl.constexpr, SS: tl.constexpr,
):  # fmt: skip
    """The gradients of C scores of a row, from those of the context vector and the weights, and that of the gate.

    The gradient of the context is `of_context` (and `more` if MORE); `grad_context` becomes that before the gate.
    The weights have one if they are `SEEN`.
    """
    row, s, m = tl.program_id(0).to(tl.int64), tl.program_id(1) * C + tl.arange(0, C), tl.arange(0, MM)
    grad = tl.load(of_context + row * of_row + m, mask=m < M, other=0.0).to(tl.float32)
    if MORE:
        grad += tl.load(more + row * M + m, mask=m < M, other=0.0).to(tl.float32)
    mean = tl.sum(grad * tl.load(context + row * context_row + m, mask=m < M, other=0.0).to(tl.float32), 0)
    first = tl.program_id(1) == 0
    if GATED:  # the context is scaled already: its product with the gradient is the same before and after the gate
        beta = tl.sigmoid(tl.load(gate + row).to(tl.float32))
        if first:
            tl.store(grad_gate + row, (mean * (1 - beta)).to(grad_gate.dtype.element_ty))
        grad *= beta
    if first:
        tl.store(grad_context + row * M + m, grad.to(grad_context.dtype.element_ty), mask=m < M)
    if SEEN:
        every = tl.arange(0, SS)
        there = tl.load(weights + row * S + every, mask=every < S, other=0.0)
        mean += tl.sum(there * tl.load(grad_weights + row * S + every, mask=every < S, other=0.0), 0)
    weight = tl.load(weights + row * S + s, mask=s < S, other=0.0)
    inside = (weight > 0.0)[:, None] & (m < M)[None, :]
    value = tl.load(memory + (row * S + s)[:, None] * M + m[None, :], mask=inside, other=0.0).to(tl.float32)
    product = tl.sum(value * grad[None, :], 1)
    if SEEN:
        product += tl.load(grad_weights + row * S + s, mask=s < S, other=0.0)
    tl.store(grad_scores + row * S + s, weight * (product - mean), mask=s < S)


@triton.jit
def _query_backward(
    q, keys, v, grad_scores, grad_q, S, K, q_row, scale, ADDITIVE: tl.constexpr, C: tl.constexpr, KK: tl.constexpr
):  # fmt: skip
    """KK values of the gradient of a row's query, from those of all scores."""
    row, k = tl.program_id(0).to(tl.int64), tl.program_id(1) * KK + tl.arange(0, KK)
    query = tl.load(q + row * q_row + k, mask=k < K, other=0.0).to(tl.float32)
    total = tl.zeros([C, KK], tl.float32)
    for start in range(0, S, C):
        s = start + tl.arange(0, C)
        inner = tl.load(grad_scores + row * S + s, mask=s < S, other=0.0)
        inside = (inner != 0.0)[:, None] & (k < K)[None, :]
        key = tl.load(keys + (row * S + s)[:, None] * K + k[None, :], mask=inside, other=0.0).to(tl.float32)
        if ADDITIVE:
            hidden = _tanh(query[None, :] + key)
            total += inner[:, None] * (1 - hidden * hidden)
        else:
            total += inner[:, None] * key
    found = tl.sum(total, 0)
    if ADDITIVE:
        found *= tl.load(v + k, mask=k < K, other=0.0).to(tl.float32)
    else:
        found *= scale
    tl.store(grad_q + row * K + k, found.to(grad_q.dtype.element_ty), mask=k < K)


@triton.jit
def _keys_backward(
    q, keys, v, grad_scores, grad_keys, grad_v, B, T, S, K, C: tl.constexpr, KK: tl.constexpr
):  # fmt: skip
    """KK values of the gradients of C keys of a row under the additive score, over all steps; partial sums of v's."""
    row, piece, k = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2) * KK + tl.arange(0, KK)
    s = piece * C + tl.arange(0, C)
    inside = (s < S)[:, None] & (k < K)[None, :]
    at = (row * S + s)[:, None] * K + k[None, :]
    key = tl.load(keys + at, mask=inside, other=0.0).to(tl.float32)
    total, of_v = tl.zeros([C, KK], tl.float32), tl.zeros([C, KK], tl.float32)
    for t in range(T):
        query = tl.load(q + (t * B + row) * K + k, mask=k < K, other=0.0).to(tl.float32)
        inner = tl.load(grad_scores + (t * B + row) * S + s, mask=s < S, other=0.0)
        hidden = _tanh(query[None, :] + key)
        total += inner[:, None] * (1 - hidden * hidden)
        of_v += inner[:, None] * hidden
    vector = tl.load(v + k, mask=k < K, other=0.0).to(tl.float32)
    tl.store(grad_keys + at, (total * vector[None, :]).to(grad_keys.dtype.element_ty), mask=inside)
    tl.store(grad_v + (row * tl.num_programs(1) + piece) * K + k, tl.sum(of_v, 0), mask=k < K)


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
        scores = torch.empty_like(seen[0])
        gates = pre.new_empty(steps, rows, 1)
        z = pre.new_empty(rows, 4 * size)
        across, pieces = (rows, triton.cdiv(size, WIDE)), (rows, triton.cdiv(length, KEYS))
        for t in range(steps):
            state = inputs[-1][t, :, below[-1] :]  # the last layer's, before the step
            if w_gate is not None and b_gate is not None:
                torch.addmm(b_gate, state, w_gate.mT, out=gates[t])
            query = state if w_query is None else torch.mm(state, w_query.mT, out=queries[t])
            _scores[pieces](
                query, keys, real, keys if v is None else v, scores, length, wide, query.stride(0), scale,
                ADDITIVE=v is not None, C=KEYS, KK=triton.next_power_of_2(wide),
            )  # fmt: skip
            _context[(rows, triton.cdiv(wide_memory, COLUMNS))](
                scores, memory, gates[t], inputs[0][t], seen[t], length, wide_memory, inputs[0].stride(1),
                GATED=w_gate is not None, C=KEYS, MM=COLUMNS, SS=triton.next_power_of_2(length),
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
        more = None if grad_contexts is None else grad_contexts.contiguous()
        grad_query = grad.new_empty(rows, size)
        across, pieces = (rows, triton.cdiv(size, WIDE)), (rows, triton.cdiv(length, KEYS))
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
            query = inputs[-1][t, :, below[-1] :] if w_query is None else queries[t]
            _scores_backward[pieces](
                memory, gates[t], inputs[0][t], seen[t], into, into if more is None else more[t], of_seen[t],
                contexts[t], grad_scores[t], grad_gates[t], length, wide_memory, inputs[0].stride(1), into.stride(0),
                GATED=w_gate is not None, MORE=more is not None, SEEN=grad_seen is not None, C=KEYS,
                MM=triton.next_power_of_2(wide_memory), SS=triton.next_power_of_2(length),
            )  # fmt: skip
            _query_backward[(rows, triton.cdiv(wide, COLUMNS))](
                query, keys, keys if v is None else v, grad_scores[t], grad_queries[t], length, wide, query.stride(0),
                ctx.scale, ADDITIVE=v is not None, C=KEYS, KK=COLUMNS,
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
            grad_keys, of_v = torch.empty_like(keys), seen.new_empty(rows * pieces[1], wide)
            _keys_backward[(*pieces, triton.cdiv(wide, COLUMNS))](
                queries, keys, v, grad_scores, grad_keys, of_v, rows, steps, length, wide, C=KEYS, KK=COLUMNS
            )
            grad_v = of_v.sum(0).to(v.dtype)
            grad_look = grad_queries.flatten(0, 1).mT @ query_states.flatten(0, 1)
        of_weights = [grad_z[layer].flatten(0, 1).mT @ inputs[layer][:steps].flatten(0, 1) for layer in range(count)]
        of_biases = [grad_z[layer].sum((0, 1)) for layer in range(1, count)]
        return (
            None, None, None, None, grad_z[0], grad_keys, grad_memory, grad_look, grad_v, of_gate, of_gate_bias,
            grad_initial + past.to(grad_initial.dtype) if not ctx.lstm else grad_initial, past if ctx.lstm else None,
            *of_weights, *of_biases,
        )  # fmt: skip
