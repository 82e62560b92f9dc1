"""Text classification and regression with an encoder (Devlin et al., 2019): one layer on the pooled vector.

B batch, T positions, D width, N texts, C classes.
"""

from torch import Tensor, nn

from heedful.blocks.layouts import EncoderLayout
from heedful.models.heads.config import ClassifierConfig, MultiLabelConfig, MultipleChoiceConfig, RegressorConfig
from heedful.models.heads.head import Head, head_layer


class Classifier(Head):
    """tokens (B, T) -> logits (N, C)."""

    def __init__(self, config: ClassifierConfig | MultiLabelConfig) -> None:
        super().__init__(config)
        assert config.encoder is not None and config.labels is not None, "both come from the folder and the data"
        self.config = config
        self.dropout = nn.Dropout(config.dropout)
        self.head = head_layer(config.encoder.width, len(config.labels), config.encoder.pooled_bias)

    def forward(self, tokens: Tensor, segments: Tensor | None = None, layout: EncoderLayout | None = None) -> Tensor:
        x = self.pool_texts(tokens, segments, layout)  # (N, D)
        return self.head(self.dropout(x))  # (N, C)


class Regressor(Head):
    """tokens (B, T) -> one number per text (N,), such as a choice's score, or several (N, C)."""

    def __init__(self, config: RegressorConfig | MultipleChoiceConfig) -> None:
        super().__init__(config)
        assert config.encoder is not None
        self.config = config
        self.dropout = nn.Dropout(config.dropout)
        self.several = len(config.numbers) if isinstance(config, RegressorConfig) else 0
        self.head = head_layer(config.encoder.width, self.several or 1, config.encoder.pooled_bias)

    def forward(self, tokens: Tensor, segments: Tensor | None = None, layout: EncoderLayout | None = None) -> Tensor:
        x = self.pool_texts(tokens, segments, layout)  # (N, D)
        found: Tensor = self.head(self.dropout(x))  # (N, C)
        return found if self.several else found.squeeze(-1)
