"""Distillation (Hinton et al., 2015): a student learns to predict what a trained encoder, its teacher, predicts.

The loss of DistilBERT (Sanh et al., 2019) has three parts: cross-entropy with the teacher's probabilities, both
softened by a temperature, the loss of masked tokens, and 1 - cosine of the vectors of the last layer.

N tokens, D width, V vocabulary, M masked tokens.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.blocks.losses import Loss
from heedful.data.text.pretraining_batches import PretrainingBatch
from heedful.data.tokenizers.base import MaskTokenizer
from heedful.errors import UserError
from heedful.hub.loading import Pretrained, no_tokenizer_error, pretrained
from heedful.models import build
from heedful.tasks.pretraining.loss import masked_vectors
from heedful.tasks.pretraining.recipe import PretrainingRecipe, Teacher
from heedful.training.checkpoint.weights import hash_tensors

Read = Callable[..., Tensor]


def load_teacher(config: Teacher) -> Pretrained:
    """The teacher with its weights."""
    return pretrained(Path(config.folder), role="encoder")


def teacher_tokenizer(config: Teacher) -> MaskTokenizer:
    """The tokenizer of the teacher, which is the student's as well."""
    found = load_teacher(config)
    if found.tokenizer is None:
        raise no_tokenizer_error(found, Path(config.folder))
    tokenizer: MaskTokenizer = found.tokenizer
    return tokenizer


def teacher_hash(config: Teacher) -> str:
    """A hash of the teacher's weights."""
    return hash_tensors(load_teacher(config).tensors)


def teacher_model(recipe: PretrainingRecipe, device: torch.device) -> Any:
    """The teacher in evaluation mode, without gradients."""
    assert recipe.task.teacher is not None
    if problems := recipe.problems():
        raise problems[0]
    found = load_teacher(recipe.task.teacher)
    model = build(found.config)
    model.load_state_dict(found.tensors)
    return model.to(device).eval().requires_grad_(False)


def initialize_student(student: nn.Module, config: Teacher) -> list[str]:
    """Initialize the student from its teacher, if the recipe asks for it; returns notes."""
    return copy_layers(student, load_teacher(config), config.folder) if config.copy_layers else []


def copy_layers(student: Any, teacher: Pretrained, folder: str) -> list[str]:
    """Initialize the l layers of a student from every (L / l)-th of its teacher's L layers; returns notes.

    Parts that the teacher does not have stay random; with a shorter context, the student gets the first positions.
    """
    config = student.config
    every = teacher.config.layers / config.layers
    own = student.state_dict()
    given = {name: teacher.tensors.get(_teacher_name(name, every)) for name in own}
    if (table := given.get("positions.table")) is not None:
        spare = len(own["positions.table"]) - config.context  # rows before the first position
        if len(table) - teacher.config.context == spare:
            given["positions.table"] = table[: len(own["positions.table"])]
    wrong = [
        f"{name}: {tuple(value.shape)} in the teacher, {tuple(own[name].shape)} in the student"
        for name, value in given.items()
        if value is not None and value.shape != own[name].shape
    ]
    wrong += [f"{name}: not in the teacher" for name, value in given.items() if value is None and _is_needed(name)]
    if wrong:
        raise UserError(
            "the student cannot start with the teacher's weights", where=f"task.teacher.folder: {folder}",
            found="\n".join(wrong[:10]), todo="make the student as wide, or set task.teacher.copy_layers=false",
        )  # fmt: skip
    with torch.no_grad():
        for name, value in given.items():
            if value is not None:
                own[name].copy_(value)
    taken = [int(layer * every) for layer in range(config.layers)]
    missing = sorted({name.partition(".")[0] for name, value in given.items() if value is None})
    note = f"the student starts with layers {', '.join(str(layer + 1) for layer in taken)} of {folder}"
    return [note] + [f"the teacher has no {', '.join(missing)}: randomly initialized"] * bool(missing)


def _teacher_name(name: str, every: float) -> str:
    """The name in the teacher of a tensor of the student."""
    return re.sub(r"^blocks\.(\d+)\.", lambda found: f"blocks.{int(int(found[1]) * every)}.", name)


def _is_needed(name: str) -> bool:
    """Whether a student cannot be initialized from a teacher without this tensor."""
    return name.startswith(("tokens.", "positions.", "norm.", "blocks."))


def soft_cross_entropy(logits: Tensor, targets: Tensor, temperature: float) -> Tensor:
    """T^2 KL(softmax(targets / T) || softmax(logits / T)) for each token (N,): logits and targets (N, V)."""
    size = min(logits.shape[1], targets.shape[1])  # a published table may have more rows than there are tokens
    teacher, student = (
        (_at_least_float32(x[:, :size]) / temperature).log_softmax(-1) for x in (targets, logits)
    )  # (N, V)
    return F.kl_div(student, teacher, reduction="none", log_target=True).sum(-1) * temperature**2  # (N,)


def cosine_loss(x: Tensor, target: Tensor) -> Tensor:
    """1 - cosine of the two vectors of each token (N,): x and target (N, D)."""
    return 1 - F.cosine_similarity(_at_least_float32(x), _at_least_float32(target), dim=-1)  # (N,)


def _at_least_float32(x: Tensor) -> Tensor:
    """Convert to float32, unless it is wider."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def distillation_loss(
    objective: Callable[..., Loss], config: Teacher, teacher: Any, model: Any, batch: PretrainingBatch, read: Read
) -> Loss:
    """The weighted sum of the three means over the whole batch that this one may be a part of, times the tokens read.

    Tokens are chosen by `where`, since indexing with a mask gives shapes that a CUDA graph cannot capture.
    """
    seen: list[Tensor] = []

    def keep(*given: Any) -> Tensor:
        seen.append(read(*given))
        return seen[-1]

    loss = objective(model, batch, keep)
    x, real = seen[-1].flatten(0, 1), _real_positions(batch)  # (N, D) and (N,)
    with torch.no_grad():
        target = masked_vectors(teacher.masked_vectors, batch)  # (N, D)
    tokens, hidden, _ = batch.whole.clamp(min=1)
    added, parts = _at_least_float32(x.new_zeros(())), dict(loss.parts or {"masked": loss.plain})
    if config.soft > 0 and config.tokens == "all":
        each = soft_cross_entropy(model.words(x), teacher.words(target), config.temperature)  # (N,)
        soft = torch.where(real, each, 0.0).sum()
        added, parts["soft"] = added + config.soft * soft, soft.detach()
    elif config.soft > 0:
        logits, targets = model.words(x[batch.places]), teacher.words(target[batch.places])  # (M, V)
        each = soft_cross_entropy(logits, targets, config.temperature)  # (M,)
        soft = torch.where(batch.targets >= 0, each, 0.0).sum()
        added, parts["soft"] = added + config.soft * soft * tokens / hidden, soft.detach() * tokens / hidden
    if config.cosine > 0:
        cosine = torch.where(real, cosine_loss(x, target), 0.0).sum()
        added, parts["cosine"] = added + config.cosine * cosine, cosine.detach()
    return Loss(config.masked * loss.total + added, config.masked * loss.plain + added.detach(), loss.count, parts)


def _real_positions(batch: PretrainingBatch) -> Tensor:
    """Which of the N positions are not padding."""
    lengths = torch.where(batch.indices >= 0, batch.lengths, 0)
    at = torch.arange(batch.ids.shape[1], device=lengths.device)
    if batch.sequences.packed:
        return at < lengths.sum()  # (N,)
    return (at < lengths[:, None]).flatten()  # (N,)
