"""GPT-2's next token on a GPU in few kernels, with each batch row computed independently.

A completion is then bit for bit the same, whatever other texts are in the batch, and a step is several times as fast,
since launching kernels dominates for models of this size.

R rows, L layers, H heads, S room for keys, K width of one head, V vocabulary.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from heedful.blocks.positions import NoPositions
from heedful.blocks.state import Shared
from heedful.models.gpt.model import Gpt
from heedful.models.sizes import has_kernel

MAX_ROWS = 4096  # in one call
MIN_ROWS = 16
EVEN = 128  # the cache has room for a multiple of this many keys

Run = Callable[[str, Callable[..., Any], tuple[Any, ...]], Any]


@dataclass(frozen=True)
class RowsState:
    """Keys and values (L, 2, rows, H, S, K), and the length of each row's text.

    With `table` (R, S), key s of hypothesis r is stored in row table[r, s], for beam search.
    """

    cache: Shared[Tensor]
    length: Tensor  # (R,)
    table: Tensor | None

    @property
    def room(self) -> int:
        """The number of keys that there is room for."""
        return self.cache.value.shape[4]


class RowByRow:
    """tokens (R, 1), state -> logits (R, 1, V), state: the same as `Gpt`, row by row."""

    def __init__(self, model: Gpt) -> None:
        self.model = model

    @staticmethod
    def supports(model: Gpt) -> bool:
        """Whether the kernels support this model."""
        c, weight = model.config, model.tokens.weight
        plain = c.norm == "pre" and c.activation == "gelu_tanh" and c.positions in ("learned", "none")
        plain = plain and c.output == "tied" and has_kernel(c.score, c.normalize) and c.window is None
        return plain and weight.is_cuda and weight.dtype in (torch.float32, torch.bfloat16, torch.float16)

    def begin(self, texts: Sequence[Sequence[int]], room: int, hypotheses: int, run: Run) -> tuple[RowsState, Tensor]:
        """The state before the last token of each text, with room for `room` tokens, and these last tokens (R, 1).

        Each text may then have `hypotheses` hypotheses. `run` calls a function, possibly as a CUDA graph.
        """
        weight = self.model.tokens.weight
        count, lengths = len(texts), [len(text) - 1 for text in texts]
        state = self.empty(count * hypotheses, room)
        length = torch.tensor(lengths, dtype=torch.int32, device=weight.device)  # (R,)
        own = torch.arange(count, dtype=torch.int32, device=weight.device)[:, None] * hypotheses  # (R, 1)
        table = None if hypotheses == 1 else own.expand(-1, state.room).contiguous()  # (R, S)
        state = replace(state, length=length, table=table)
        owners = (row * hypotheses for row in range(count))
        # Padding is written to the last position, which is overwritten before it is attended to.
        for rows in self.prompt_rows(zip(owners, texts, strict=True), (0, state.room - 1)):
            state = run("read", self.read, (rows.to(weight.device), state))
        return state, torch.tensor([text[-1:] for text in texts], device=weight.device)

    def empty(self, rows: int, room: int) -> RowsState:
        """The state of rows without tokens, with room for at most `room`."""
        c, weight = self.model.config, self.model.tokens.weight
        room = min(c.context, -(-room // EVEN) * EVEN)
        cache = weight.new_zeros(c.layers, 2, rows, c.heads, room, c.width // c.heads)
        return RowsState(Shared(cache), torch.zeros(rows, dtype=torch.int32, device=weight.device), None)

    @staticmethod
    def prompt_rows(texts: Iterable[tuple[int, Sequence[int]]], padding: tuple[int, int]) -> Iterator[Tensor]:
        """All tokens but the last of texts with their owners as rows (R, 3) for `read`, in parts of a few sizes.

        A part is padded to a power of two with rows of the owner and the position `padding`.
        """
        rows = [(token, owner, at) for owner, text in texts for at, token in enumerate(text[:-1])]
        for start in range(0, len(rows), MAX_ROWS):
            some = rows[start : start + MAX_ROWS]
            some += [(0, *padding)] * (max(MIN_ROWS, 1 << (len(some) - 1).bit_length()) - len(some))
            yield torch.tensor(some, dtype=torch.int32)

    def read(self, rows: Tensor, state: RowsState) -> RowsState:
        """Append the keys of rows (R, 3): token, owner and position."""
        tokens, owner, place = (part.contiguous() for part in rows.unbind(1))
        self.last(tokens, owner, place, replace(state, table=None))
        return state

    def __call__(self, tokens: Tensor, state: RowsState) -> tuple[Tensor, RowsState]:
        own = torch.arange(len(tokens), dtype=torch.int32, device=tokens.device)  # (R,)
        own = own * (state.cache.value.shape[2] // len(tokens))  # before the first step, a text has a single row
        # A finished text may pass the end while others continue: its unused tokens overwrite the last position.
        place = state.length.clamp(max=state.room - 1)  # (R,)
        logits = self.logits(tokens.flatten(), own, place, state)[:, None]  # (R, 1, V)
        table = state.table
        if table is not None:
            table = table.scatter(1, place.long()[:, None], own[:, None])  # (R, S)
        return logits, replace(state, length=state.length + 1, table=table)

    def logits(
        self, tokens: Tensor, owner: Tensor, place: Tensor, state: RowsState, count: int | None = None
    ) -> Tensor:
        """The logits (R, V) after tokens at their positions in the texts of their owners; caches their keys.

        With `count`, those of the first rows alone: the others are tokens of prompts.
        """
        from heedful.blocks.kernels import rows  # needs Triton, which comes with torch's GPU builds only

        last = self.last(tokens, owner, place, state)[:count]  # (R, D)
        return rows.product(last, self.model.tokens.weight, wide=True)  # (R, V)

    def last(self, tokens: Tensor, owner: Tensor, place: Tensor, state: RowsState) -> Tensor:
        """The last layer (R, D) for tokens at their positions in the texts of their owners; caches their keys."""
        from heedful.blocks.kernels import rows

        model: Any = self.model  # a ModuleList does not know the type of its blocks
        eps, places = model.config.norm_eps, None if isinstance(model.positions, NoPositions) else model.positions.table
        blocks = [(block.attention, block.mlp, block.add1.norm, block.add2.norm) for block in model.blocks]
        norms = [*(norm for _, _, *two in blocks for norm in two), model.norm]
        x, h = rows.embed(tokens, place, model.tokens.weight, places, norms[0].weight, norms[0].bias, eps)  # (R, D)
        for layer, (attention, mlp, _, middle) in enumerate(blocks):
            cache, after = state.cache.value[layer], norms[2 * layer + 2]
            q = rows.queries(h, attention.qkv.weight, attention.qkv.bias, cache, owner, place)  # (R, D)
            o = rows.parts(rows.attend_cached(q, cache, owner, place, state.table), attention.out.weight)  # (P, R, D)
            h = rows.add_norm_(x, o, attention.out.bias, middle.weight, middle.bias, eps)  # (R, D)
            o = rows.parts(rows.gelu(h, mlp.up.weight, mlp.up.bias), mlp.down.weight)  # (P, R, D)
            h = rows.add_norm_(x, o, mlp.down.bias, after.weight, after.bias, eps)  # (R, D)
        return h
