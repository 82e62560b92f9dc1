"""The predictor of bidirectional language models: contextual embeddings of tokens.

B batch, T tokens, D width, L layers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn

from heedful.data.tokenizers.base import require_list
from heedful.data.tokenizers.lm_tokenization import codec_of
from heedful.data.tokenizers.tokenizer import TrainedTokenizer
from heedful.decode.settings import WritingConfig
from heedful.tasks.language_model.perplexity import STRIDE, bidirectional_loss, windows_loss
from heedful.tasks.language_model.scores import encode_whole, read_text, text_scores
from heedful.tasks.predictor import Evaluation, Predictor
from heedful.tasks.pretraining.predictor import TokenEmbeddings


@dataclass
class BidirectionalLanguageModel(Predictor[str, TokenEmbeddings, str]):
    """Contextual token embeddings from every layer of a forward and a backward language model (ELMo)."""

    task: ClassVar = "language_model"

    model: nn.Module
    tokenizer: TrainedTokenizer
    device: torch.device
    context: int
    notes: tuple[str, ...] = ()

    def predict(self, inputs: Sequence[str]) -> list[TokenEmbeddings]:
        """The embeddings and all layers (L + 1, T, 2 D) of the tokens of each text."""
        encodings = self.tokenizer.encode_batch(require_list(inputs))
        parts = zip(encodings, self.layers(inputs), strict=True)
        return [TokenEmbeddings(self.tokenizer.pieces(one.ids), one.offsets, values.cpu()) for one, values in parts]

    @property
    def decode_settings(self) -> WritingConfig:
        """The default generation settings, which recipes contain and this model does not use."""
        return WritingConfig()

    def _evaluate(self, data: Path | Sequence[str]) -> Evaluation:
        text = "\n".join(read_text(data).lines if isinstance(data, Path) else data) + "\n"
        return text_scores(self.loss(text), encode_whole(text, self.tokenizer, self.context))

    @torch.inference_mode()
    def layers(self, texts: Sequence[str]) -> list[Tensor]:
        """The embeddings and all layers (L + 1, T, 2 D) of each text with the T tokens of `tokenizer.encode`."""
        codec = codec_of(self.tokenizer)
        rows = [[codec.start_id, *codec.encode(text), codec.start_id] for text in require_list(texts)]
        if not rows:
            return []
        lengths = torch.tensor([len(row) for row in rows])  # (B,)
        real = torch.arange(int(lengths.max())) < lengths[:, None]  # (B, T + 2)
        ids = torch.full(real.shape, TrainedTokenizer.pad)  # (B, T + 2)
        ids[real] = torch.tensor([number for row in rows for number in row])
        layers = self._net.layers(ids.to(self.device), real.to(self.device))  # (B, L + 1, T + 2, 2 D)
        return [layers[index, :, 1 : len(row) - 1] for index, row in enumerate(rows)]

    def loss(self, text: str) -> float:
        """The mean loss per token of both directions, in nats, over windows as in training."""
        encoded = encode_whole(text, self.tokenizer, self.context)
        return windows_loss(bidirectional_loss, self.model, encoded, self.device, STRIDE)

    def perplexity(self, text: str) -> float:
        """exp(loss)."""
        return math.exp(self.loss(text))
