"""Scores against known values, with their signatures."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from heedful.training.metrics import (
    Score,
    accuracy,
    bleu,
    chrf,
    exact_match,
    f1,
    matthews,
    pearson,
    ranks,
    spearman,
    translation_scores,
)

METRICS = [bleu, chrf, exact_match]
LINES = ["the cat sat on the mat .", "a dog ran in the park today ."]


@pytest.mark.parametrize("metric", METRICS)
def test_equal_text_scores_100_and_different_text_0(
    metric: Callable[[Sequence[str], Sequence[str]], Score],
) -> None:
    assert metric(LINES, LINES).value == pytest.approx(100)
    assert metric(["1 2 3 4 5", "6 7 8 9 0"], ["q w e r t", "z u i o p"]).value == pytest.approx(0, abs=1e-6)


def test_bleu_is_the_geometric_mean_with_the_brevity_penalty() -> None:
    # 5 of 6 words, 4 of 5 pairs, 3 of 4 triples and 2 of 3 quadruples are in the reference; the lengths are equal.
    score = bleu(["the cat sat on the hat"], ["the cat sat on the mat"])
    assert score.value == pytest.approx(100 * (5 / 6 * 4 / 5 * 3 / 4 * 2 / 3) ** 0.25)
    assert score.name == "bleu"
    assert "tok:13a" in score.signature
    assert "nrefs:1" in score.signature


def test_bleu_is_of_the_corpus() -> None:
    score = bleu(["the cat sat on the hat", "a dog ran"], ["the cat sat on the mat", "a dog ran"])
    assert score.value == pytest.approx(100 * (8 / 9 * 6 / 7 * 4 / 5 * 2 / 3) ** 0.25)


def test_bleu_is_omitted_for_short_references() -> None:
    """Not of single words, nor where a few lines are longer; of sentences it is the first score."""
    assert [score.name for score in translation_scores(["dreizehn"] * 3, ["dreizehn"] * 3)] == ["chrf", "exact_match"]
    assert [score.name for score in translation_scores(LINES, LINES)] == ["bleu", "chrf", "exact_match"]
    short = ["vier", "fünf", "the cat sat on the mat ."]
    assert "bleu" not in [score.name for score in translation_scores(short, short)]


def test_chrf_has_its_name() -> None:
    score = chrf(["the cat"], ["the cats"])
    assert 50 < score.value < 100
    assert score.name == "chrf"
    assert "nc:6" in score.signature


def test_exact_match_counts_equal_lines() -> None:
    assert exact_match(["a", "b", "c", "D"], ["a", "b", "x", "d"]) == Score(
        "exact_match", 50.0, "nrefs:1|case:mixed|lines:4"
    )


@pytest.mark.parametrize("metric", METRICS)
def test_unequal_lengths_are_rejected(metric: Callable[[Sequence[str], Sequence[str]], Score]) -> None:
    for hypotheses, references in (([], []), (["a"], ["a", "b"]), (["a", "b"], ["a"])):
        with pytest.raises(ValueError, match="hypotheses"):
            metric(hypotheses, references)


def test_sacrebleu_is_imported_only_when_needed() -> None:
    code = "import sys, heedful.training.metrics; sys.exit('sacrebleu' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": ":".join(sys.path)}, check=False).returncode
        == 0
    )


# ------------------------------------------------------------------ classes and numbers
@pytest.mark.parametrize("classes", [2, 3, 7])
@pytest.mark.parametrize("seed", range(4))
def test_classification_scores_match_scikit_learn(classes: int, seed: int) -> None:
    import sklearn.metrics as theirs

    random = np.random.default_rng(seed)
    right = random.integers(0, classes - (seed % 2), 60)  # with an odd seed, a class that the data do not name
    found = np.where(random.random(60) < 0.6, right, random.integers(0, classes, 60))
    assert accuracy(found, right).value == pytest.approx(100 * theirs.accuracy_score(right, found))
    assert matthews(found, right).value == pytest.approx(100 * theirs.matthews_corrcoef(right, found))
    named = [f"class {number}" for number in range(classes)]
    average: Any = "binary" if classes == 2 else "macro"
    assert f1(found, right, named).value == pytest.approx(
        100 * theirs.f1_score(right, found, average=average, zero_division=0)
    )


@pytest.mark.parametrize("seed", range(4))
def test_correlations_match_scipy_with_ties(seed: int) -> None:
    import scipy.stats as theirs

    random = np.random.default_rng(seed)
    right = random.integers(0, 6, 50) / 2
    found = right + random.normal(0, 1, 50).round(seed % 3)
    assert pearson(found, right).value == pytest.approx(100 * theirs.pearsonr(found, right).statistic)
    assert spearman(found, right).value == pytest.approx(100 * theirs.spearmanr(found, right).statistic)
    assert ranks(found).tolist() == theirs.rankdata(found).tolist()


def test_constant_values_have_no_correlation() -> None:
    assert matthews([1, 1, 1], [0, 1, 1]).value == matthews([0, 1], [1, 1]).value == 0
    assert pearson([2.0, 2.0, 2.0], [1.0, 2.0, 3.0]).value == spearman([1.0, 2.0], [4.0, 4.0]).value == 0
    assert f1([0, 0], [0, 0], ["no", "yes"]).value == 0


def test_signatures_describe_the_metric() -> None:
    assert f1([0, 1], [1, 1], ["no", "yes"]) == Score("f1", pytest.approx(200 / 3), "class:yes|texts:2")
    assert f1([0, 1], [1, 1], ["a", "b", "c"]).signature == "average:macro|classes:3|texts:2"
    with pytest.raises(ValueError, match="3 hypotheses for 2 references"):
        accuracy([0, 1, 1], [0, 1])
