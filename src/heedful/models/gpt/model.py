"""GPT and GPT-2 ("Improving language understanding by generative pre-training", Radford et al., 2018; "Language models
are unsupervised multitask learners", 2019).

The decoder of a Transformer alone, which predicts each token of a text from those before it.

B batch, T positions, D width, V vocabulary.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from heedful.blocks.attention import SelfAttention
from heedful.blocks.embedding import Tied
from heedful.blocks.feedforward import ACTIVATIONS, FeedForward
from heedful.blocks.layouts import Documents, OneByOne
from heedful.blocks.masks import Bias, Visible, alibi
from heedful.blocks.normalizers import NORMALIZERS
from heedful.blocks.norms import PostNorm, PreNorm
from heedful.blocks.positions import Absent, Fixed, Learned, Rotary, sinusoid_halves, sinusoids
from heedful.blocks.scores import head_score
from heedful.blocks.state import Cache, Past, Slot
from heedful.blocks.taps import Tap
from heedful.models.gpt.config import GptConfig
from heedful.models.sizes import in_kernels

if TYPE_CHECKING:
    from heedful.models.gpt.rows import RowByRow


class Block(nn.Module):
    """Attention to what came before, then a dense layer; add & norm around each."""

    def __init__(self, c: GptConfig) -> None:
        super().__init__()
        rotary = Rotary(c.context, c.width // c.heads) if c.positions == "rotary" else None
        norm = PreNorm if c.norm == "pre" else PostNorm
        score, normalize = head_score(c.score, c.width // c.heads), NORMALIZERS[c.normalize]
        self.attention = SelfAttention(c.width, c.heads, c.attention_dropout, rotary, score, normalize)
        self.mlp = FeedForward(c.width, c.inner, ACTIVATIONS[c.activation])
        self.add1, self.add2 = norm(c.width, c.dropout, c.norm_eps), norm(c.width, c.dropout, c.norm_eps)
        self.output = Tap()

    def forward(self, x: Tensor, past: Slot, mask: Visible, bias: Bias | None, at: Tensor) -> Tensor:
        x = self.add1(x, lambda x: self.attention.itself(x, mask, bias, at, past.append))  # (B, T, D)
        return self.output(self.add2(x, self.mlp))  # (B, T, D)


class Gpt(nn.Module):
    """tokens (B, T) -> logits (B, T, V) of the token after each."""

    lens_taps = "blocks.*.output"  # the taps whose values `lens` takes

    def __init__(self, config: GptConfig) -> None:
        super().__init__()
        self.config = c = config
        assert c.vocab is not None, "the vocabulary size comes from the tokenizer"
        # Beside sinusoids, which are about 0.7 large, small words would count for little: these are scaled, as in 2017.
        self.tokens = Tied(c.vocab, c.width, scale=None if c.positions.startswith("sinusoid") else 1.0)
        positions: dict[str, Callable[[], nn.Module]] = {
            "learned": lambda: Learned(c.context, c.width),
            "sinusoid": lambda: Fixed(sinusoids(c.context, c.width)),
            "sinusoid_halves": lambda: Fixed(sinusoid_halves(c.context, c.width)),
        }
        self.positions = positions.get(c.positions, Absent)()
        self.dropout = nn.Dropout(c.dropout)
        self.blocks = nn.ModuleList(Block(c) for _ in range(c.layers))
        self.norm = nn.LayerNorm(c.width, c.norm_eps) if c.norm == "pre" else nn.Identity()
        for name, weight in self.named_parameters():
            if weight.dim() == 2 and (weight is not self.tokens.weight or self.tokens.scale == 1):
                added = name.endswith(("out.weight", "down.weight"))  # to a sum of 2 L parts: initialized smaller
                nn.init.normal_(weight, std=0.02 / (2 * c.layers) ** 0.5 if added else 0.02)

    def bias(self, before: int | Tensor = 0) -> Bias | None:
        """How distance shifts a score, for tokens after `before` others."""
        return alibi(self.config.heads, before) if self.config.positions == "alibi" else None

    def embed(self, tokens: Tensor, at: Tensor) -> Tensor:
        return self.dropout(self.positions(self.tokens(tokens), at))  # (B, T, D)

    def read(self, tokens: Tensor, documents: Tensor | None = None) -> Tensor:
        """The last layer (B, T, D) for texts from their beginning.

        Where documents (B, T) says which document of its row each token belongs to, a token sees its own alone, and
        each stands as if it were the first; they may then come as one long row (1, B * T, D).
        """
        layout = OneByOne(tokens) if documents is None else Documents.of(documents, self.in_one_row)
        return self.features(layout.arrange(tokens), layout.past(self.config.layers))[0]

    def start(self, rows: int, device: torch.device) -> Past:
        """The state before the first token of this many texts."""
        return Cache((None,) * self.config.layers)

    def features(self, tokens: Tensor, state: Past) -> tuple[Tensor, Past]:
        """The last layer (B, T, D) for the next T tokens, and the state after them."""
        count = tokens.shape[1]
        self.fits(state.reach(count))
        at, mask, slots = state.positions(count, tokens.device), state.visible(count), state.slots(count)
        bias = self.bias(state.length)
        x = self.embed(tokens, at)  # (B, T, D)
        for block, slot in zip(self.blocks, slots, strict=True):
            x = block(x, slot, mask, bias, at)  # (B, T, D)
        return self.norm(x), state.after(slots)

    def forward(self, tokens: Tensor, state: Past) -> tuple[Tensor, Past]:
        x, state = self.features(tokens, state)  # (B, T, D)
        return self.tokens.logits(x), state  # (B, T, V)

    def lens(self, x: Tensor) -> Tensor:
        """The logits (B, T, V) that a block's output (B, T, D) would give if no other followed."""
        return self.tokens.logits(self.norm(x))  # (B, T, V)

    def row_by_row(self) -> "RowByRow | None":
        """The same model in kernels of our own, each row of a batch computed alone, if they can compute it."""
        from heedful.models.gpt.rows import RowByRow

        return RowByRow(self) if RowByRow.suits(self) else None

    @property
    def in_one_row(self) -> bool:
        """Whether documents are read best end to end in one row: where a kernel knows how, which drops no weights."""
        c = self.config
        known = in_kernels(c.score, c.normalize) and c.positions != "alibi"
        return self.tokens.weight.is_cuda and known and not (self.training and c.attention_dropout > 0)

    def fits(self, length: int) -> None:
        if length > self.config.context:
            raise ValueError(f"{length} tokens, but the model's context is {self.config.context}")
