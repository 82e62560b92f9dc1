"""Predict the word in a blank, "The child came home from ___", by a causal or a masked language model.

A causal language model sees only the text before the blank; a masked one sees both sides.
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

BLANK = "___"
MAX_TOKENS = 16  # to complete a word from its first piece
WORD = re.compile(r"\s*(\w+(?:['’-]\w+)*|[^\w\s]+)")


@dataclass(frozen=True)
class WordPredictions:
    """The most probable words for the blank of a text, and the part of the text that the model saw."""

    kind: Literal["causal", "masked"]
    seen: str
    predictions: list[TokenPrediction]


def split_at_blank(text: str) -> tuple[str, str]:
    """The text before and after the blank."""
    before, *after = re.split(r"_{3,}|\[MASK\]", text)
    if len(after) != 1:
        raise UserError(
            "a text must have one blank", found=f"{len(after)} in {shown(text)}",
            expected='a text such as "The child came home from ___"', todo="write ___ in place of the word",
        )  # fmt: skip
    return before, after[0]


@torch.inference_mode()
def next_words(generator: TextGenerator, text: str, top: int = 5) -> WordPredictions:
    """The most probable words after the text before the blank.

    The probability is that of the first piece of a word, which is then completed greedily.
    """
    before, codec = split_at_blank(text)[0].rstrip(" "), generator.codec
    with_space = codec.encode(before + " ")
    if before and codec.encode(before + " a")[: len(with_space)] == with_space:  # the space is a token of its own
        before = before + " "
    ids = generator.prompt_ids(before)
    ids = ids[generator.context_start(len(ids)) :]
    net: Any = generator.model
    logits, _ = net(torch.tensor([ids], device=generator.device), generator.start(1))
    logs = logits[0, -1, : generator.tokenizer.vocab].float().log_softmax(-1)  # (V,)
    logs[list(codec.suppressed)] = -math.inf
    values, tokens = (part.tolist() for part in logs.topk(min(top, len(logs) - len(codec.suppressed))))
    words = generator.complete(ids, tokens, MAX_TOKENS)
    predictions = [
        TokenPrediction("<end>" if token == codec.end_id else first_word(word) or word, math.exp(value))
        for word, token, value in zip(words, tokens, values, strict=True)
    ]
    return WordPredictions("causal", f"{before.rstrip(' ')} {BLANK}".lstrip(" "), predictions)


def masked_words(encoder: TextEncoder, text: str, top: int = 5) -> WordPredictions:
    """The most probable words between the text before the blank and the text after it."""
    before, after = split_at_blank(text)
    (predictions,) = encoder.fill(before + encoder.tokenizer.mask_name + after, top).predictions
    return WordPredictions("masked", before + BLANK + after, predictions)


def first_word(text: str) -> str:
    """The first word or punctuation of a text; empty where the text starts with a newline."""
    found = WORD.match(text)
    return found[1] if found and "\n" not in found[0] else ""
