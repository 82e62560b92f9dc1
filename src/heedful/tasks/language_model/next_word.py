"""The missing word of a text by a causal and by a masked language model: "The child came home from ___".

A causal language model sees only what comes before the blank; a masked one sees both sides.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any, Literal

import torch

from heedful.errors import UserError, shown
from heedful.tasks.language_model.predictor import TextGenerator
from heedful.tasks.pretraining.predictor import TextEncoder, TokenPrediction

GAP = "___"
LONGEST = 16  # tokens that a piece is completed with, at most
WORD = re.compile(r"\s*(\w+(?:['’-]\w+)*|[^\w\s]+)")


@dataclass(frozen=True)
class WordPredictions:
    """The most probable words for the blank of a text, and the part of the text that the model saw."""

    kind: Literal["causal", "masked"]
    seen: str
    predictions: list[TokenPrediction]


def sides(text: str) -> tuple[str, str]:
    """What comes before and after the blank of a text."""
    before, *behind = re.split(r"_{3,}|\[MASK\]", text)
    if len(behind) != 1:
        raise UserError(
            "a text must have one blank", found=f"{len(behind)} in {shown(text)}",
            expected='a text such as "The child came home from ___"', todo="write ___ in place of the word",
        )  # fmt: skip
    return before, behind[0]


@torch.inference_mode()
def next_words(generator: TextGenerator, text: str, top: int = 5) -> WordPredictions:
    """The most probable words after what comes before the blank.

    Their probability is that of a word's first piece; the piece is then completed greedily, so that it can be read.
    """
    before, codec = sides(text)[0].rstrip(" "), generator.codec
    joint = codec.encode(before + " ")
    if before and codec.encode(before + " a")[: len(joint)] == joint:  # a space that no word takes along
        before = before + " "
    ids = generator.read_ids(before)
    ids = ids[generator.forgotten(len(ids)) :]
    net: Any = generator.model
    logits, _ = net(torch.tensor([ids], device=generator.device), generator.start(1))
    logs = logits[0, -1, : generator.tokenizer.vocab].float().log_softmax(-1)  # (V,)
    logs[list(codec.suppressed)] = -math.inf
    values, tokens = (part.tolist() for part in logs.topk(min(top, len(logs) - len(codec.suppressed))))
    words = generator.complete(ids, tokens, LONGEST)
    predictions = [
        TokenPrediction("<end>" if token == codec.end_id else word_of(word) or word, math.exp(value))
        for word, token, value in zip(words, tokens, values, strict=True)
    ]
    return WordPredictions("causal", f"{before.rstrip(' ')} {GAP}".lstrip(" "), predictions)


def hidden_words(encoder: TextEncoder, text: str, top: int = 5) -> WordPredictions:
    """The most probable words between what comes before the blank and what comes after it."""
    before, behind = sides(text)
    (predictions,) = encoder.fill(before + encoder.tokenizer.mask_name + behind, top).predictions
    return WordPredictions("masked", before + GAP + behind, predictions)


def word_of(text: str) -> str:
    """The first word of a text, or its first punctuation; nothing where it begins with a line end."""
    found = WORD.match(text)
    return found[1] if found and "\n" not in found[0] else ""
