"""Token tagging with an encoder (Devlin et al., 2019): fine-tuned with an output layer, or as features for an LSTM.

A word is represented by its first token. Other tokens, including special ones, have no tag. A frozen encoder provides
features: the output of one or several layers.

B batch, T positions, D width of the encoder, F width of the features, E width of the last layer's input, M words,
C tags.
"""

from torch import Tensor, nn

from heedful.blocks.features import FEATURES
from heedful.blocks.layouts import Layout, PackedTexts
from heedful.blocks.recurrent import BidirectionalLayer, Stack
from heedful.models.heads.config import BiLSTMReader, TaggerConfig
from heedful.models.heads.head import Head, head_layer


class Tagger(Head):
    """tokens (B, T), indices of the words' first tokens (M,) -> logits (M, C)."""

    def __init__(self, config: TaggerConfig) -> None:
        super().__init__(config)
        self.config = c = config
        assert c.encoder is not None and c.labels is not None, "both come from the data and the folder to start from"
        self.dropout = nn.Dropout(c.dropout)
        self.reader = lstm(c.feature_width, c.reader, c.dropout) if isinstance(c.reader, BiLSTMReader) else None
        self.head = head_layer(c.reader.width(c.feature_width), len(c.labels))

    def forward(self, tokens: Tensor, segments: Tensor, layout: Layout | PackedTexts, words: Tensor) -> Tensor:
        layers = self.encoder.layers(tokens, segments, layout)
        x = self.dropout(FEATURES[self.config.features](layers))  # (B, T, F)
        if self.reader is not None:
            assert not isinstance(layout, PackedTexts), "an LSTM cannot read packed sequences"
            x, _ = self.reader(x, None, layout.real, layout.gaps)
            x = self.dropout(x)  # (B, T, E)
        return self.head(x.flatten(0, 1)[words])  # (M, C)


def lstm(width: int, config: BiLSTMReader, dropout: float) -> Stack:
    """Bidirectional LSTM layers, with dropout between them."""
    widths = [width] + [config.hidden] * (config.layers - 1)
    return Stack([BidirectionalLayer("lstm", each, config.hidden // 2) for each in widths], dropout)
