"""One added layer (Devlin et al., 2019): a class, or a number, from the vector that BERT pools of a text or a pair.

Everything below that layer is the encoder, which is trained on, or kept as it is: a feature extractor of any task.

B batch, T positions, D width, N texts, C classes.
"""

from torch import Tensor, nn

from heedful.blocks.layouts import Reading, Whole
from heedful.blocks.linear import Linear
from heedful.models.bert.model import Bert
from heedful.models.heads.config import ClassifierConfig, HeadConfig, MultipleChoiceConfig, RegressorConfig


class Classifier(nn.Module):
    """tokens (B, T), the number of each text's first token (N,) -> logits (N, C)."""

    def __init__(self, config: ClassifierConfig) -> None:
        super().__init__()
        assert config.encoder is not None and config.labels is not None, "both come from the folder and the data"
        self.config = config
        self.encoder = encoder_of(config)
        self.dropout = nn.Dropout(config.dropout)
        self.head = added(config.encoder.width, len(config.labels))

    def forward(
        self,
        tokens: Tensor,
        segments: Tensor | None = None,
        layout: Reading | None = None,
        first: Tensor | None = None,
    ) -> Tensor:
        x = pooled(self.encoder, tokens, segments, layout, first)  # (N, D)
        return self.head(self.dropout(x))  # (N, C)


class Regressor(nn.Module):
    """tokens (B, T), the number of each text's first token (N,) -> a number each (N,), such as a choice's score."""

    def __init__(self, config: RegressorConfig | MultipleChoiceConfig) -> None:
        super().__init__()
        assert config.encoder is not None, "it comes from the recipe, or from the folder to start from"
        self.config = config
        self.encoder = encoder_of(config)
        self.dropout = nn.Dropout(config.dropout)
        self.head = added(config.encoder.width, 1)

    def forward(
        self,
        tokens: Tensor,
        segments: Tensor | None = None,
        layout: Reading | None = None,
        first: Tensor | None = None,
    ) -> Tensor:
        x = pooled(self.encoder, tokens, segments, layout, first)  # (N, D)
        return self.head(self.dropout(x)).squeeze(-1)  # (N,)


def encoder_of(config: HeadConfig) -> Bert:
    """The encoder below a head, to be trained on or to be kept as it is."""
    assert config.encoder is not None, "it comes from the recipe, or from the folder to start from"
    encoder = Bert(config.encoder)
    return encoder.freeze() if config.freeze else encoder


def pooled(
    encoder: Bert, tokens: Tensor, segments: Tensor | None, layout: Reading | None, first: Tensor | None
) -> Tensor:
    """The pooled vector of each text, whose first tokens are numbered, or else those that the layout knows."""
    layout = layout or Whole(tokens)
    x = encoder(tokens, segments, layout)  # (B, T, D)
    return encoder.pool(layout.first(x) if first is None else x.flatten(0, 1)[first])  # (N, D)


def added(width: int, out: int) -> Linear:
    """The one layer that is not pre-trained, drawn as the others once were."""
    layer = Linear(width, out)
    nn.init.trunc_normal_(layer.weight, std=0.02, a=-0.04, b=0.04)
    return layer
