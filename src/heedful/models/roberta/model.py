"""RoBERTa ("A robustly optimized BERT pretraining approach", Liu et al., 2019).

BERT's encoder, pre-trained longer and on more text, by masked tokens alone: no segments, no next-sentence prediction.
Its tokenizer is byte-level BPE, and positions start at 2, since the first rows of their table are reserved.

B batch, T positions, D width.
"""

from torch import Tensor

from heedful.models.bert.model import MaskedEncoder
from heedful.models.roberta.config import FIRST, RobertaConfig


class RobertaEncoder(MaskedEncoder):
    """tokens (B, T) -> a vector for each token (B, T, D)."""

    def embed(self, tokens: Tensor, segments: Tensor | None, at: Tensor) -> Tensor:
        """Token + position + the first segment, normalized; `segments` are ignored."""
        x = self.add_segments(self.positions(self.tokens(tokens), FIRST + at), None)  # (B, T, D)
        return self.embedded(self.dropout(self.norm(x)))  # (B, T, D)


class Roberta(RobertaEncoder):
    """RoBERTa's encoder, with the head for masked tokens."""

    def __init__(self, config: RobertaConfig) -> None:
        super().__init__(config)
