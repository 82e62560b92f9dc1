"""The loss of paragraphs: their words, their regions, and where they end.

B images, R regions, S sentences, K regions of a sentence, N texts, T tokens, H width of a topic.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.blocks.losses import Loss, projected_cross_entropy
from heedful.data.images.normalization import normalize
from heedful.data.images.paragraph_batches import EncodedParagraphs, ParagraphBatch
from heedful.data.tokenizers.tokenizer import TrainedTokenizer
from heedful.models.roles import ParagraphCaptioner
from heedful.tasks.paragraphs.recipe import ParagraphTaskConfig

BATCH_SIZE = 64  # images


def paragraph_loss(model: ParagraphCaptioner, batch: ParagraphBatch, weigh: ParagraphTaskConfig) -> Loss:
    """-log p of all words, of the regions of each sentence where they are known, and of where the paragraph ends."""
    real = batch.real  # (B, R)
    regions = model.look(normalize(batch.pixels, batch.mean, batch.std), batch.boxes, real)  # (B, R, M)
    phrases = word_loss(model, model.phrase_topics(regions).flatten(0, 1)[batch.phrase_rows], batch.phrases)
    memory = model.remember(regions, *phrase_memory(batch))  # (B, R, M)
    state, plans = model.begin_paragraph(memory, real), []
    for step in range(batch.chosen.shape[1]):
        plan, state = model.plan(memory, real, state, batch.chosen[:, step])
        plans.append(plan)
    topics = torch.stack([plan.topic for plan in plans], 1)  # (B, S, H)
    words = word_loss(model, topics.flatten(0, 1)[batch.sentence_rows], batch.sentences)
    weights = torch.stack([plan.weights for plan in plans], 1)  # (B, S, K, R)
    right = weights.gather(-1, batch.chosen.clamp(min=0)[..., None])[..., 0]  # (B, S, K)
    at = torch.arange(topics.shape[1], device=topics.device)  # (S,)
    spoken = at < batch.counts[:, None]  # (B, S)
    known = (batch.chosen >= 0) & spoken[..., None]  # (B, S, K)
    grounding = -torch.where(known, right, 1.0).clamp(min=1e-12).log().sum()
    logits = torch.stack([plan.last for plan in plans], 1).float()  # (B, S)
    ends = (at == batch.counts[:, None] - 1).to(logits.dtype)  # (B, S)
    stop = (F.binary_cross_entropy_with_logits(logits, ends, reduction="none") * spoken).sum()
    total = words.total + weigh.phrases * phrases.total + weigh.grounding * grounding + weigh.stop * stop
    return Loss(total, words.plain + phrases.plain, words.count + phrases.count)


def word_loss(model: ParagraphCaptioner, topics: Tensor, texts: Tensor) -> Loss:
    """-log p of each token of texts (N, T) with these topics (N, H)."""
    x, _ = model.features(texts[:, :-1], model.start(topics))  # (N, T, D)
    loss = projected_cross_entropy(
        x.flatten(0, 1), model.tokens.weight, texts[:, 1:].flatten(), ignore=TrainedTokenizer.pad
    )
    return replace(loss, total=loss.total + 0 * x.sum())  # a process without images has gradients too: zeros


def phrase_memory(batch: ParagraphBatch) -> tuple[Tensor, Tensor]:
    """The phrase of each region (B, R, T) as the memory reads it, and which of its tokens are words."""
    shape = batch.boxes.shape[:2]
    table = batch.phrases.new_zeros(shape[0] * shape[1], batch.phrases.shape[1])  # (B * R, T)
    phrases = table.index_copy(0, batch.phrase_rows, batch.phrases).unflatten(0, shape)  # (B, R, T)
    return phrases, are_words(phrases)


def are_words(tokens: Tensor) -> Tensor:
    """Which tokens are neither padding nor the start or the end."""
    return (tokens != TrainedTokenizer.pad) & (tokens != TrainedTokenizer.bos) & (tokens != TrainedTokenizer.eos)


@torch.inference_mode()
def mean_loss(model: ParagraphCaptioner, encoded: EncodedParagraphs, device: torch.device) -> float:
    """The mean loss per token over a split: of sentences, and of phrases."""
    total, count, plain = 0.0, 0, ParagraphTaskConfig()
    for batch in encoded.in_order(BATCH_SIZE):
        loss = paragraph_loss(model, batch.to(device), plain)
        total, count = total + loss.plain.item(), count + batch.tokens
    return total / count
