"""Answers as parts of a passage, from an encoder (Devlin et al., 2019).

The sequence is `[CLS] question [SEP] passage [SEP]`. A start vector s and an end vector e are all that is added: the
answer begins at token i with p_i = softmax_i <s, v_i>, over the tokens of the passage alone, and ends likewise.

B batch, T positions, D width, N sequences, P places of a passage.
"""

import torch
from torch import Tensor

from heedful.blocks.layouts import EndToEnd, Layout
from heedful.models.heads.config import AnswererConfig
from heedful.models.heads.head import Head, added


class Answerer(Head):
    """tokens (B, T), where each passage begins (N,) and how long it is (N,) -> scores of start and end (N, P, 2).

    Scores are logits, and -inf beyond a passage's end, so that a softmax over them is one over the passage.
    """

    def __init__(self, config: AnswererConfig) -> None:
        super().__init__(config)
        self.config = config
        assert config.encoder is not None
        self.head = added(config.encoder.width, 2)  # rows: s and e

    def forward(
        self,
        tokens: Tensor,
        segments: Tensor,
        layout: Layout | EndToEnd,
        begins: Tensor,
        sizes: Tensor,
        most: int,
    ) -> Tensor:
        x = self.head(self.encoder(tokens, segments, layout)).flatten(0, 1)  # (B * T, 2)
        place = torch.arange(most, device=tokens.device)  # (P,)
        at = (begins[:, None] + place).clamp(max=len(x) - 1)  # (N, P)
        beyond = place >= sizes.clamp(min=1)[:, None]  # (N, P)
        x = x.to(torch.promote_types(x.dtype, torch.float32))
        return x[at].masked_fill(beyond[:, :, None], -torch.inf)  # (N, P, 2)
