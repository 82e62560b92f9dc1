"""The two losses of adversarial style transfer: the generator's and the discriminator's.

B texts, T tokens, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.blocks.layouts import Padded
from heedful.blocks.losses import Loss, weighted_sum
from heedful.data.labelled.batches import EncodedTexts, LabelledBatch
from heedful.data.tokenizers.vocabulary import TextVocab
from heedful.tasks.style_transfer.recipe import StyleTransferTaskConfig
from heedful.training.players import frozen

BATCH_TOKENS = 16384  # tokens of a batch in evaluation
ROOM = 4  # tokens by which a transfer may be longer than its text, in training
BEGIN, END, PAD = TextVocab.cls, TextVocab.sep, TextVocab.pad


@dataclass(frozen=True)
class Texts:
    """The texts of a batch, each with the end of the text as its last token."""

    words: Tensor  # (B, T)
    lengths: Tensor  # (B,)

    @classmethod
    def of(cls, batch: LabelledBatch) -> Texts:
        """The texts without their first token, which only begins them."""
        return cls(batch.ids[:, 1:], batch.lengths - 1)

    @property
    def real(self) -> Tensor:
        """Which tokens are no padding."""
        return torch.arange(self.words.shape[1], device=self.words.device) < self.lengths[:, None]  # (B, T)

    @property
    def layout(self) -> Padded:
        """How they are stored: one a row, padded at the end."""
        return Padded(self.real, gaps=False)

    def select(self, rows: Tensor) -> Texts:
        """Some of the texts."""
        return Texts(self.words[rows], self.lengths[rows])


@dataclass(frozen=True)
class PlayerLosses:
    """The losses of each text (B,); the generator's is the weighted sum of the first three."""

    reconstruction: Tensor  # -log p(x | noisy x, its style), a token
    cycle: Tensor  # -log p(x | its transfer to another style, its own style), a token
    adversarial: Tensor  # -log p(that style | the transfer), by the discriminator as it is
    discriminator: Tensor  # -log p(its style | x) - log p(generated | the transfer)


def transfer_loss(model: Any, batch: LabelledBatch, settings: StyleTransferTaskConfig) -> Loss:
    """The losses of generator and discriminator, whose gradients do not mix, and each of them as a part."""
    own = batch.targets >= 0  # (B,) not so for a row that stands for no text
    losses = player_losses(model, Texts.of(batch), batch.targets.clamp(min=0), settings)
    weights = {"cycle": settings.cycle, "adversarial": settings.adversarial}
    sums = {name: torch.where(own, each, 0.0).sum() for name, each in vars(losses).items()}
    return weighted_sum(own.sum(), {name: (weights.get(name, 1.0), each) for name, each in sums.items()})


def player_losses(model: Any, texts: Texts, styles: Tensor, settings: StyleTransferTaskConfig) -> PlayerLosses:
    """The losses of both players for texts in their styles (B,).

    The generator is trained through the discriminator, whose weights are constants there; the discriminator is trained
    on the same soft texts, which are constants there. A text whose reconstruction loss is not below `ready` is not
    transferred yet; its other losses are zero.
    """
    noisy = with_noise(texts, settings.drop, settings.shuffle)
    reconstruction = nats_per_token(model, texts, model.start(noisy.words, styles, noisy.layout))  # (B,)
    honest = F.cross_entropy(model.discriminator(texts.words, texts.real), styles, reduction="none")  # (B,)
    others = other_styles(styles, len(model.config.labels))  # (B,)
    (rows,) = (reconstruction < settings.ready).nonzero(as_tuple=True)  # (R,)
    nothing = torch.zeros_like(honest)
    if not len(rows):
        return PlayerLosses(reconstruction, nothing, nothing, honest)
    found = transfer_losses(model, texts.select(rows), styles[rows], others[rows], settings.temperature)
    cycle, adversarial, forged = (nothing.index_copy(0, rows, each) for each in found)
    return PlayerLosses(reconstruction, cycle, adversarial, honest + forged)


def transfer_losses(
    model: Any, texts: Texts, styles: Tensor, others: Tensor, temperature: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The losses (B,) of the transfers of texts from their styles (B,) to other ones: cycle, adversarial, forged."""
    judge, limits = model.discriminator, (texts.lengths + ROOM).clamp(max=model.config.context)  # (B,)
    state = model.start(texts.words, others, texts.layout)
    soft = model.write(state, begin_of(texts), END, never(model.config.vocab, styles.device), limits, temperature)
    cycle = nats_per_token(model, texts, model.start(soft.words, styles, Padded(soft.real, gaps=False)))
    with frozen(judge):
        adversarial = F.cross_entropy(judge(soft.words, soft.real), others, reduction="none")  # (B,)
    generated = torch.full_like(styles, len(model.config.labels))  # (B,)
    forged = F.cross_entropy(judge(soft.words.detach(), soft.real), generated, reduction="none")  # (B,)
    return cycle, adversarial, forged


def other_styles(styles: Tensor, known: int) -> Tensor:
    """Another style for each text (B,), at random."""
    return (styles + torch.randint_like(styles, 1, known)) % known


def nats_per_token(model: Any, texts: Texts, state: Any) -> Tensor:
    """-log p of each text, divided by its number of tokens (B,)."""
    inputs = torch.cat([begin_of(texts), texts.words[:, :-1]], 1)  # (B, T)
    logits, _ = model(inputs, state)  # (B, T, V)
    each = F.cross_entropy(logits.flatten(0, 1), texts.words.flatten(), reduction="none").view_as(inputs)  # (B, T)
    return torch.where(texts.real, each, 0.0).sum(1) / texts.lengths


def with_noise(texts: Texts, drop: float, shuffle: float) -> Texts:
    """Texts with words left out at random, and moved by at most about `shuffle` places (Lample et al., 2018).

    A text keeps its end, and all of its words where none would be left.
    """
    words, device = texts.words, texts.words.device
    at = torch.arange(words.shape[1], device=device)  # (T,)
    inner = at < texts.lengths[:, None] - 1  # (B, T) all but the end
    kept = inner & (torch.rand(words.shape, device=device) >= drop)  # (B, T)
    kept = torch.where(kept.any(1, keepdim=True), kept, inner)
    keys = torch.where(kept, at + (1 + shuffle) * torch.rand(words.shape, device=device), torch.inf)  # (B, T)
    end = at == texts.lengths[:, None] - 1  # (B, T)
    order = keys.masked_fill(end, 2.0 * words.shape[1] + shuffle).argsort(dim=1, stable=True)  # (B, T)
    lengths = kept.sum(1) + 1  # (B,)
    return Texts(words.gather(1, order).masked_fill(at >= lengths[:, None], PAD), lengths)


def begin_of(texts: Texts) -> Tensor:
    """The token before the first word of each text (B, 1)."""
    return texts.words.new_full((len(texts.words), 1), BEGIN)


def never(vocab: int, device: torch.device) -> Tensor:
    """Which words (V,) are never generated: special tokens but the end."""
    return torch.tensor([number in TextVocab.special and number != END for number in range(vocab)], device=device)


@torch.inference_mode()
def mean_loss(model: Any, encoded: EncodedTexts, device: torch.device) -> float:
    """The reconstruction loss of the texts as they are: nats a token, the mean over texts."""
    total = 0.0
    for batch in encoded.in_order(BATCH_TOKENS):
        there = batch.to(device)
        texts = Texts.of(there)
        state = model.start(texts.words, there.targets, texts.layout)
        total += nats_per_token(model, texts, state).sum().item()
    return total / len(encoded)
