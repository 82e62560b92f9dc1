"""Extractive question answering with an encoder (Devlin et al., 2019).

The sequence is `[CLS] question [SEP] passage [SEP]`. The head is a start vector s and an end vector
e: the answer starts at token i with p_i = softmax_i <s, v_i>, over the tokens of the passage, and ends likewise.

B batch, T positions, D width, N sequences, P positions of a passage.
"""

import torch
from torch import Tensor

from heedful.blocks.layouts import Layout, PackedTexts
from heedful.models.heads.config import AnswererConfig
from heedful.models.heads.head import Head, head_layer


class Answerer(Head):
    """tokens (B, T), start (N,) and length (N,) of each passage -> logits of answer start and end (N, P, 2).

    Logits are -inf beyond the end of a passage, so that a softmax over them covers the passage only.
    """

    def __init__(self, config: AnswererConfig) -> None:
        super().__init__(config)
        self.config = config
        assert config.encoder is not None
        self.head = head_layer(config.encoder.width, 2)  # rows: s and e

    def forward(
        self,
        tokens: Tensor,
        segments: Tensor,
        layout: Layout | PackedTexts,
        begins: Tensor,
        sizes: Tensor,
        most: int,
    ) -> Tensor:
        x = self.head(self.encoder.layers(tokens, segments, layout)[-1]).flatten(0, 1)  # (B * T, 2)
        position = torch.arange(most, device=tokens.device)  # (P,)
        at = (begins[:, None] + position).clamp(max=len(x) - 1)  # (N, P)
        beyond = position >= sizes.clamp(min=1)[:, None]  # (N, P)
        x = x.to(torch.promote_types(x.dtype, torch.float32))
        return x[at].masked_fill(beyond[:, :, None], -torch.inf)  # (N, P, 2)
