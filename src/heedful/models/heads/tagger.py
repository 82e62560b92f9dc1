"""A tag for each word, from an encoder (Devlin et al., 2019): tuned with one added layer, or as features.

What the encoder gives of a word's first piece stands for the word. All other tokens, the special ones among them, have
no tag. Kept as it is, the encoder gives features: one of its layers or several, which an LSTM may read.

B batch, T positions, D width of the encoder, F width of the features, E width of what is read last, M words, C tags.
"""

from torch import Tensor, nn

from heedful.blocks.features import FEATURES
from heedful.blocks.layouts import EndToEnd, Layout
from heedful.blocks.recurrent import Both, Stack
from heedful.models.heads.config import BiLSTMReader, TaggerConfig
from heedful.models.heads.head import Head, added


class Tagger(Head):
    """tokens (B, T), which of them begin a word (M,) -> logits (M, C)."""

    def __init__(self, config: TaggerConfig) -> None:
        super().__init__(config)
        self.config = c = config
        assert c.encoder is not None and c.labels is not None, "both come from the data and the folder to start from"
        self.dropout = nn.Dropout(c.dropout)
        self.reader = lstm(c.feature_width, c.reader, c.dropout) if isinstance(c.reader, BiLSTMReader) else None
        self.head = added(c.reader.width(c.feature_width), len(c.labels))

    def forward(self, tokens: Tensor, segments: Tensor, layout: Layout | EndToEnd, words: Tensor) -> Tensor:
        layers = self.encoder.layers(tokens, segments, layout)
        x = self.dropout(FEATURES[self.config.features](layers))  # (B, T, F)
        if self.reader is not None:
            assert not isinstance(layout, EndToEnd), "an LSTM reads a row from end to end"
            x, _ = self.reader(x, None, layout.real, layout.gaps)
            x = self.dropout(x)  # (B, T, E)
        return self.head(x.flatten(0, 1)[words])  # (M, C)


def lstm(width: int, config: BiLSTMReader, dropout: float) -> Stack:
    """Layers in both directions, with dropout between them."""
    widths = [width] + [config.hidden] * (config.layers - 1)
    return Stack([Both("lstm", each, config.hidden // 2) for each in widths], dropout)
