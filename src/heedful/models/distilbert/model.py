"""DistilBERT ("a distilled version of BERT: smaller, faster, cheaper and lighter", Sanh et al., 2019).

BERT's encoder with half of its layers, no segments and no pooler. It learns to predict what a trained BERT predicts.

B batch, T positions, D width.
"""

from torch import Tensor

from heedful.models.bert.model import MaskedEncoder
from heedful.models.distilbert.config import DistilBertConfig


class DistilBert(MaskedEncoder):
    """tokens (B, T) -> a vector for each token (B, T, D)."""

    def __init__(self, config: DistilBertConfig) -> None:
        super().__init__(config)

    def embed(self, tokens: Tensor, segments: Tensor | None, at: Tensor) -> Tensor:
        """Token + position, normalized; `segments` are ignored."""
        x = self.positions(self.tokens(tokens), at)  # (B, T, D)
        return self.embedded(self.dropout(self.norm(x)))  # (B, T, D)
