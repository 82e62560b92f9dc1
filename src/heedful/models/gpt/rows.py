"""GPT-2's next token on a GPU, in few kernels: each row of a batch is computed alone.

A completion is then the same to the last bit, whatever other texts are in the batch; and a step takes a fraction of the
time, since a model of this size waits for the launching of kernels.

R rows, L layers, H heads, S room for keys, K width of one head, V vocabulary.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from heedful.blocks.positions import Absent
from heedful.blocks.state import Shared
from heedful.models.gpt.model import Gpt
from heedful.models.sizes import in_kernels

TOGETHER = 4096  # rows that are read at a time
EVEN = 128  # keys that room is made for at a time
LEAST = 16  # rows that are read at a time

Run = Callable[[str, Callable[..., Any], tuple[Any, ...]], Any]


@dataclass(frozen=True)
class RowsState:
    """What has been read: keys and values (L, 2, rows, H, S, K), and how long each row's text is.

    With `table` (R, S), key s of row r stands in row table[r, s], as hypotheses of a search need it.
    """

    cache: Shared[Tensor]
    length: Tensor  # (R,)
    table: Tensor | None


class RowByRow:
    """tokens (R, 1) and a state -> logits (R, 1, V) and the state after them: what `Gpt` gives, row by row."""

    def __init__(self, model: Gpt) -> None:
        self.model = model

    @staticmethod
    def suits(model: Gpt) -> bool:
        """Whether the kernels compute this model."""
        c, weight = model.config, model.tokens.weight
        plain = c.norm == "pre" and c.activation == "gelu_tanh" and c.positions in ("learned", "none")
        plain = plain and in_kernels(c.score, c.normalize)
        return plain and weight.is_cuda and weight.dtype in (torch.float32, torch.bfloat16, torch.float16)

    def begin(self, texts: Sequence[Sequence[int]], room: int, hypotheses: int, run: Run) -> tuple[RowsState, Tensor]:
        """The state before the last token of each text, and these tokens (R, 1); with room for this many tokens in all.

        A search may continue this many hypotheses of each. `run` runs a function, as a captured graph perhaps.
        """
        c, weight = self.model.config, self.model.tokens.weight
        count, room = len(texts), min(c.context, -(-room // EVEN) * EVEN)
        shape = (c.layers, 2, count * hypotheses, c.heads, room, c.width // c.heads)
        lengths = [len(text) - 1 for text in texts]
        length = torch.tensor(lengths, dtype=torch.int32, device=weight.device)  # (R,)
        own = torch.arange(count, dtype=torch.int32, device=weight.device)[:, None] * hypotheses  # (R, 1)
        table = None if hypotheses == 1 else own.expand(-1, room).contiguous()  # (R, S)
        told = RowsState(Shared(weight.new_zeros(shape)), length, table)
        rows = [(token, row * hypotheses, at) for row, text in enumerate(texts) for at, token in enumerate(text[:-1])]
        for start in range(0, len(rows), TOGETHER):
            some = rows[start : start + TOGETHER]
            # What pads them to a power of two is written where a key will be before any query attends to it.
            some += [(0, 0, room - 1)] * (max(LEAST, 1 << (len(some) - 1).bit_length()) - len(some))
            told = run("read", self.read, (torch.tensor(some, dtype=torch.int32).to(weight.device), told))
        return told, torch.tensor([text[-1:] for text in texts], device=weight.device)

    def read(self, rows: Tensor, told: RowsState) -> RowsState:
        """The state with the keys of more rows (R, 3): token, owner and position."""
        tokens, owner, place = (part.contiguous() for part in rows.unbind(1))
        self.last(tokens, owner, place, replace(told, table=None))
        return told

    def __call__(self, tokens: Tensor, state: RowsState) -> tuple[Tensor, RowsState]:
        from heedful.blocks.kernels import rows  # needs Triton, which comes with torch's GPU builds only

        own = torch.arange(len(tokens), dtype=torch.int32, device=tokens.device)  # (R,)
        own = own * (state.cache.value.shape[2] // len(tokens))  # before the first step a text has one row alone
        # A text that is done while others continue may pass the end: its tokens are not used, and overwrite the last.
        place = state.length.clamp(max=state.cache.value.shape[4] - 1)  # (R,)
        h = self.last(tokens.flatten(), own, place, state)  # (R, D)
        logits = rows.product(h, self.model.tokens.weight, wide=True)[:, None]  # (R, 1, V)
        table = state.table
        if table is not None:
            table = table.scatter(1, place.long()[:, None], own[:, None])  # (R, S)
        return logits, replace(state, length=state.length + 1, table=table)

    def last(self, tokens: Tensor, owner: Tensor, place: Tensor, told: RowsState) -> Tensor:
        """The last layer (R, D) of tokens, each at its position in the text of its owner; their keys are cached."""
        from heedful.blocks.kernels import rows

        model: Any = self.model  # a ModuleList does not know the type of its blocks
        eps, places = model.config.norm_eps, None if isinstance(model.positions, Absent) else model.positions.table
        blocks = [(block.attention, block.mlp, block.add1.norm, block.add2.norm) for block in model.blocks]
        norms = [*(norm for _, _, *two in blocks for norm in two), model.norm]
        x, h = rows.embed(tokens, place, model.tokens.weight, places, norms[0].weight, norms[0].bias, eps)  # (R, D)
        for layer, (attention, mlp, _, middle) in enumerate(blocks):
            cache, after = told.cache.value[layer], norms[2 * layer + 2]
            q = rows.queries(h, attention.qkv.weight, attention.qkv.bias, cache, owner, place)  # (R, D)
            o = rows.parts(rows.attend_cached(q, cache, owner, place, told.table), attention.out.weight)  # (P, R, D)
            h = rows.add_norm_(x, o, attention.out.bias, middle.weight, middle.bias, eps)  # (R, D)
            o = rows.parts(rows.gelu(h, mlp.up.weight, mlp.up.bias), mlp.down.weight)  # (P, R, D)
            h = rows.add_norm_(x, o, mlp.down.bias, after.weight, after.bias, eps)  # (R, D)
        return h
