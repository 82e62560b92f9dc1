"""Caption metrics against numbers that the published scripts gave for the same captions."""

from __future__ import annotations

import random

import numpy as np
import pytest

from heedful.training.caption_metrics import (
    CiderD,
    bleu_scores,
    caption_scores,
    caption_tokens,
    cider_d,
    longest_common,
    rouge_l,
)

SUBJECTS = ["A dog", "A man's dog", "Two girls", "the boy (in red)", "A 2-year-old child", "Mr. Brown"]
VERBS = ["runs", "doesn't run", "is running", "jumps and runs", "sits"]
PLACES = ["in the park", "on a T-shirt", "near the water's edge", "by the big, big house"]


def captions(seed: int) -> tuple[list[str], list[list[str]]]:
    """Forty captions, and one to four references for each."""
    rng = random.Random(seed)

    def sentence() -> str:
        return f"{rng.choice(SUBJECTS)} {rng.choice(VERBS)} {rng.choice(PLACES)}{rng.choice(['.', ' .', '', '!'])}"

    return [sentence() for _ in range(40)], [[sentence() for _ in range(rng.randint(1, 4))] for _ in range(40)]


# pycocoevalcap 1.2 with its own tokenizer, chrF by sacrebleu 2.6.0, both in percent.
PUBLISHED = {
    0: {
        "bleu1": 57.74723316679733,
        "bleu2": 48.36286844181484,
        "bleu3": 42.2121419313079,
        "bleu4": 36.69738409867443,
        "rouge_l": 48.711961934778465,
        "cider_d": 107.46054108209408,
        "chrf": 44.50411020026404,
    },
    1: {
        "bleu1": 53.02197802183236,
        "bleu2": 41.25457593120356,
        "bleu3": 33.8984434737,
        "bleu4": 27.1429527346909,
        "rouge_l": 41.515149308372344,
        "cider_d": 69.46532498678118,
        "chrf": 39.08003968732625,
    },
}


@pytest.mark.parametrize("seed", PUBLISHED)
def test_scores_are_those_of_the_published_scripts(seed: int) -> None:
    found = {score.name: score.value for score in caption_scores(*captions(seed))}
    assert found == pytest.approx(PUBLISHED[seed], rel=1e-9)


def test_a_signature_says_how_many_references_there_were() -> None:
    signatures = {score.name: score.signature for score in caption_scores(*captions(0))}
    assert signatures["cider_d"] == "nrefs:1-4|case:lc|tok:ptb|script:coco-caption|images:40"
    assert "nrefs:var" in signatures["chrf"]


@pytest.mark.parametrize(
    ("text", "tokens"),
    [  # the tokens of Stanford's PTBTokenizer 3.4.1 without those that the scripts leave out
        ("It's a man's dog; don't you think?", "it 's a man 's dog do n't you think"),
        ("He can't, won't and cannot go: they're \"here\".", "he ca n't wo n't and can not go they 're here"),
        ("A T-shirt and/or cap at 10:30 a.m. costs $5.50 (about 1,000 yen)...",
         "a t-shirt and/or cap at 10:30 a.m. costs $ 5.50 -lrb- about 1,000 yen -rrb-"),
        ("Mr. Smith and Mrs. Brown live on St. Mark's St.",
         "mr. smith and mrs. brown live on st. mark 's st."),
        ("The boys' bikes -- red & blue - stand in 'front'", "the boys bikes red & blue stand in front"),
        ("men’s “quoted” text… with café", "men 's quoted text with café"),
        ("gonna rock 'n' roll at six o'clock", "gon na rock 'n' roll at six o'clock"),
        (" ... ", ""),
    ],
)  # fmt: skip
def test_tokens_are_those_of_the_penn_treebank(text: str, tokens: str) -> None:
    assert caption_tokens(text) == tokens.split()


def test_the_reward_counts_the_references_once() -> None:
    """The incremental form, on ids: the same scores in any batch, those of the corpus as their mean."""
    hypotheses, references = captions(2)
    ids: dict[str, int] = {}
    ours = [[ids.setdefault(token, len(ids)) for token in caption_tokens(text)] for text in hypotheses]
    theirs = [[[ids.setdefault(token, len(ids)) for token in caption_tokens(text)] for text in e] for e in references]
    reward = CiderD(theirs)
    whole = reward.scores(ours, range(40))
    parts = [reward.scores(ours[i : i + 7], range(i, min(40, i + 7))) for i in range(0, 40, 7)]
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    assert cider_d(ours, theirs).value == pytest.approx(100 * whole.mean())
    assert reward.scores([theirs[5][0]], [5]) > reward.scores([theirs[5][0][:-1]], [5])
    assert reward.scores([[]], [3]) == [0.0]


def test_a_perfect_caption_of_rare_words_scores_ten() -> None:
    references = [[["a", "b", "c", "d", "e"]], [["f", "g", "h", "i"]]]
    assert CiderD(references).scores([["a", "b", "c", "d", "e"]], [0]) == pytest.approx([10])
    assert CiderD(references[:1]).scores([["a", "b", "c", "d", "e"]], [0]) == [0]  # one image: no n-gram is rare


def test_rouge_takes_the_best_precision_and_the_best_recall() -> None:
    assert longest_common("abcbdab", "bdcaba") == 4
    precision, recall = 2 / 3, 1.0  # of "a x b y" and of "c"
    value = (1 + 1.2**2) * precision * recall / (recall + 1.2**2 * precision)
    assert rouge_l([["a", "b", "c"]], [[["a", "x", "b", "y"], ["c"]]]).value == pytest.approx(100 * value)


def test_bleu_compares_with_the_closest_reference_and_the_shorter_of_two() -> None:
    long, short = list("abcdef"), list("abcd")
    scores = bleu_scores([list("abcde")], [[long, short]])  # of 4 and 6 tokens: 4 is taken, and there is no penalty
    assert [score.value for score in scores] == pytest.approx([100] * 4, rel=1e-6)
    assert bleu_scores([list("abcde")], [[long]])[0].value == pytest.approx(100 * np.exp(1 - 6 / 5), rel=1e-6)


@pytest.mark.parametrize(("hypotheses", "references"), [([], []), (["a"], [["a"], ["b"]]), (["a"], [[]])])
def test_captions_without_references_are_refused(hypotheses: list[str], references: list[list[str]]) -> None:
    with pytest.raises(ValueError, match="at least one reference in each list"):
        caption_scores(hypotheses, references)
