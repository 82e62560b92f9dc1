"""The metrics of single sentences equal sacrebleu's numbers."""

from __future__ import annotations

import random

import numpy as np
import pytest
import sacrebleu

from heedful.training.sentence_metrics import METRICS, ExactMatch, SentenceBleu, SentenceChrf
from tolerance import close

WORDS = [
    "a",
    "the",
    "cat,",
    "mat.",
    "U.S.",
    "3.5",
    "--",
    "it's",
    "&amp;",
    "<x>",
    "10,000",
    "naïve",
    "Über",
    "日本",
    "x-y",
    "?",
]


def sentences(count: int) -> list[tuple[str, str]]:
    """Random hypotheses of 0 to 9 words, some of them near the reference."""
    rng, found = random.Random(0), list[tuple[str, str]]()
    for _ in range(count):
        reference = rng.choices(WORDS, k=rng.randint(1, 9))
        near = [word if rng.random() < 0.7 else rng.choice(WORDS) for word in reference][: rng.randint(0, 9)]
        found.append(
            (" ".join(near if rng.random() < 0.7 else rng.choices(WORDS, k=rng.randint(0, 9))), " ".join(reference))
        )
    return found


@pytest.mark.parametrize(
    ("metric", "theirs"), [(SentenceBleu, sacrebleu.sentence_bleu), (SentenceChrf, sacrebleu.sentence_chrf)]
)
def test_scores_equal_sacrebleu(metric: type[SentenceBleu | SentenceChrf], theirs: object) -> None:
    pairs = sentences(600)
    references = [reference for _, reference in pairs]
    order = random.Random(1).sample(range(600), 600)  # a reference is found by its number
    found = metric(references).scores([pairs[number][0] for number in order], order)
    expected = np.array([theirs(pairs[number][0], [references[number]]).score for number in order])  # type: ignore[operator]
    close(100 * found, expected)
    assert (found > 0).mean() > 0.5 and (found == 1).any() and (found == 0).any()


def test_exact_match_compares_characters() -> None:
    found = ExactMatch(["a b", "c"]).scores(["a b", "c ", "c", "A b"], [0, 1, 1, 0])
    assert found.tolist() == [1.0, 0.0, 1.0, 0.0]


@pytest.mark.parametrize("name", METRICS)
def test_the_reference_itself_has_the_highest_score(name: str) -> None:
    metric = METRICS[name](["the cat sat on the mat", "yes"])
    assert metric.scores(["the cat sat on the mat", "yes", ""], [0, 1, 0]).tolist() == [1.0, 1.0, 0.0]
