"""ALBERT ("A lite BERT for self-supervised learning of language representations", Lan et al., 2020).

BERT with fewer parameters: the token embeddings are factorized, a narrow table (V x E) and a matrix (E x D), and all
layers share the weights of one block. Instead of next sentences, it predicts whether two texts are in order or swapped.

B batch, T positions, D width, E width of the embeddings, N sequences.
"""

from torch import Tensor

from heedful.blocks.linear import Linear
from heedful.models.albert.config import AlbertConfig
from heedful.models.bert.model import MaskedEncoder, init_weights


class Albert(MaskedEncoder):
    """tokens (B, T), segments (B, T) -> a vector for each token (B, T, D)."""

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__(config)
        self.widen = Linear(config.embedding, config.width)
        self.sentence_order = Linear(config.width, 2) if config.sentence_order else None
        for added in (self.widen, self.sentence_order):
            if added is not None:
                init_weights(added)

    def embed(self, tokens: Tensor, segments: Tensor | None, at: Tensor) -> Tensor:
        """Token + position + segment, normalized, then projected to the width of the model."""
        x = self.add_segments(self.positions(self.tokens(tokens), at), segments)  # (B, T, E)
        return self.embedded(self.widen(self.dropout(self.norm(x))))  # (B, T, D)

    def follows(self, first: Tensor) -> Tensor:
        """Sentence-order logits (N, 2): "in order" and "swapped"."""
        assert self.sentence_order is not None, "this model has no head for sentence order"
        return self.sentence_order(self.pool(first))  # (N, 2)
