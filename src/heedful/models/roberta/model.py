"""RoBERTa ("A robustly optimized BERT pretraining approach", Liu et al., 2019).

BERT's encoder, trained longer and on more text, by masked tokens alone: no segments, no next sentence. Its tokens are
pairs of bytes, and positions are counted from 2 on, since the first rows of their table are kept for padding.

B batch, T positions, D width.
"""

from torch import Tensor

from heedful.models.bert.model import MaskedEncoder
from heedful.models.roberta.config import FIRST, RobertaConfig


class Roberta(MaskedEncoder):
    """tokens (B, T) -> a vector for each token (B, T, D)."""

    def __init__(self, config: RobertaConfig) -> None:
        super().__init__(config)

    def embed(self, tokens: Tensor, segments: Tensor | None, at: Tensor) -> Tensor:
        """Token + position + the one segment, normalized; the segments given mean nothing."""
        x = self.positions(self.tokens(tokens), FIRST + at) + self.segments[0]  # (B, T, D)
        return self.embedded(self.dropout(self.norm(x)))  # (B, T, D)
