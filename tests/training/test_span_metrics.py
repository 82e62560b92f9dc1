"""Span scores against reimplementations of conlleval, seqeval and SQuAD's script."""

import random
import re
import string
import warnings
from collections import Counter

import pytest

from heedful.data.formats.conll import iob2
from heedful.training.span_metrics import answer_f1, answer_scores, chunk_scores, plain_answer
from tolerance import near

Sentences = list[list[str]]


# ------------------------------------------------------------------ conlleval, after its Perl script
def conlleval(found: Sentences, right: Sentences) -> tuple[float, float, float]:
    """Precision, recall and F1 as the script counts them, word by word, by where a chunk ends and starts."""

    def ends(before: str, before_kind: str, tag: str, kind: str) -> bool:
        if before in "ES" and before != "O":
            return True
        if before in "BI" and tag in "BSO":
            return True
        return before not in "O." and before_kind != kind

    def starts(before: str, before_kind: str, tag: str, kind: str) -> bool:
        if tag in "BS":
            return True
        if before in "ESO" and tag in "EI":
            return True
        return tag not in "O." and before_kind != kind

    hits = said = true = 0
    for guesses, golds in zip(found, right, strict=True):
        inside = False
        guess_before = gold_before = ("O", "")
        for guess_tag, gold_tag in zip([*guesses, "O"], [*golds, "O"], strict=True):
            guess, gold = ((tag[0], tag[2:]) for tag in (guess_tag, gold_tag))
            guess_ends, gold_ends = ends(*guess_before, *guess), ends(*gold_before, *gold)
            if inside:
                if guess_ends and gold_ends and guess_before[1] == gold_before[1]:
                    inside, hits = False, hits + 1
                elif guess_ends != gold_ends or guess[1] != gold[1]:
                    inside = False
            guess_starts, gold_starts = starts(*guess_before, *guess), starts(*gold_before, *gold)
            if guess_starts and gold_starts and guess[1] == gold[1]:
                inside = True
            true, said = true + gold_starts, said + guess_starts
            guess_before, gold_before = guess, gold
    precision, recall = (100 * hits / said if said else 0.0), (100 * hits / true if true else 0.0)
    return precision, recall, 2 * precision * recall / (precision + recall) if precision + recall else 0.0


def tagged(rng: random.Random, marks: str, odd: bool) -> list[str]:
    """The tags of a sentence: valid chunks, or random tags."""
    kinds = ["PER", "LOC", "ORG"]
    if odd:
        every = ["O", *(f"{mark}-{kind}" for mark in marks for kind in kinds)]
        return [rng.choice(every) for _ in range(rng.randint(1, 9))]
    tags: list[str] = []
    for _ in range(rng.randint(1, 4)):
        kind, size = rng.choice(kinds), rng.randint(1, 3)
        tags += [f"B-{kind}"] + [f"I-{kind}"] * (size - 1) + ["O"] * rng.randint(0, 2)
    return tags


def with_errors(rng: random.Random, tags: list[str], marks: str) -> list[str]:
    every = ["O", *(f"{mark}-{kind}" for mark in marks for kind in ("PER", "LOC", "ORG"))]
    return [rng.choice(every) if rng.random() < 0.3 else tag for tag in tags]


def cases(marks: str, odd: bool) -> tuple[Sentences, Sentences]:
    rng = random.Random(f"{marks}{odd}")
    right = [tagged(rng, marks, odd) for _ in range(300)]
    return [with_errors(rng, tags, marks) for tags in right], right


@pytest.mark.parametrize("marks", ["BI", "I", "BIES"])  # with I alone, the tags are IOB1 that never needs a B
@pytest.mark.parametrize("odd", [False, True])
def test_chunk_scores_match_conlleval(marks: str, odd: bool) -> None:
    found, right = cases(marks, odd)
    f1, precision, recall = (score.value for score in chunk_scores(found, right))
    assert (precision, recall, f1) == pytest.approx(conlleval(found, right))
    assert 5 < f1 < 95


@pytest.mark.parametrize("marks", ["BI", "I", "BIES"])
@pytest.mark.parametrize("odd", [False, True])
def test_chunk_scores_match_seqeval(marks: str, odd: bool) -> None:
    metrics = pytest.importorskip("seqeval.metrics", reason="seqeval is not installed")
    found, right = cases(marks, odd)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = [100 * getattr(metrics, f"{name}_score")(right, found) for name in ("f1", "precision", "recall")]
    assert [score.value for score in chunk_scores(found, right)] == pytest.approx(theirs)


# Reference values of seqeval 1.2.2 and of conlleval.pl, for machines that have neither.
ODD = [
    (["O", "I-PER", "I-PER"], ["O", "B-PER", "I-PER"]),  # an I- after O begins a chunk
    (["B-PER", "I-LOC"], ["B-PER", "B-LOC"]),  # and so does another type
    (["I-PER", "B-PER", "I-PER"], ["B-PER", "B-PER", "I-PER"]),  # IOB1
    (["B-PER", "B-PER"], ["B-PER", "I-PER"]),  # two chunks for one
    (["B-LOC", "I-LOC", "I-LOC"], ["B-LOC", "I-LOC", "O"]),  # one word too many
    (["O", "O"], ["B-ORG", "O"]),
    (["B-ORG", "O"], ["O", "O"]),
]


def test_invalid_tag_sequences_match_the_references() -> None:
    found, right = [list(one) for one, _ in ODD], [list(other) for _, other in ODD]
    scores = chunk_scores(found, right)
    assert [score.value for score in scores] == near([58.8235, 55.5556, 62.5], 1024)
    assert scores[0].signature == "chunks:8|found:9|right:5|words:17"
    assert scores == chunk_scores([iob2(tags) for tags in found], [iob2(tags) for tags in right])


def test_empty_predictions_and_references_score_zero() -> None:
    assert [score.value for score in chunk_scores([["O"]], [["O"]])] == [0, 0, 0]
    assert [score.value for score in chunk_scores([["O"]], [["B-A"]])] == [0, 0, 0]
    assert [score.value for score in chunk_scores([["B-A"]], [["B-A"]])] == [100, 100, 100]


# ------------------------------------------------------------------ SQuAD's script, version 1.1
def official_normal(text: str) -> str:
    lower = text.lower()
    bare = "".join(letter for letter in lower if letter not in set(string.punctuation))
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", bare).split())


def official_f1(prediction: str, truth: str) -> float:
    said, true = official_normal(prediction).split(), official_normal(truth).split()
    same = sum((Counter(said) & Counter(true)).values())
    if same == 0:
        return 0
    precision, recall = 1.0 * same / len(said), 1.0 * same / len(true)
    return (2 * precision * recall) / (precision + recall)


def test_answer_scores_match_the_squad_script() -> None:
    rng = random.Random(0)
    words = [
        "the",
        "The",
        "a",
        "an",
        "Then",
        "cat",
        "Cat.",
        "sat-on",
        "(mat)",
        "42",
        "4,200",
        "it's",
        "Straße",
        "…",
        "!",
    ]

    def text() -> str:
        return rng.choice(["  ", " "]).join(rng.choice(words) for _ in range(rng.randint(0, 5)))

    found, right = [text() for _ in range(500)], [[text() for _ in range(rng.randint(1, 3))] for _ in range(500)]
    pairs = list(zip(found, right, strict=True))
    f1, exact = (score.value for score in answer_scores(found, right))
    theirs = [max(official_f1(said, true) for true in truths) for said, truths in pairs]
    equal = [max(official_normal(said) == official_normal(true) for true in truths) for said, truths in pairs]
    assert f1 == pytest.approx(100 * sum(theirs) / len(theirs))
    assert exact == pytest.approx(100 * sum(equal) / len(equal))
    assert 5 < exact < f1 < 60


@pytest.mark.parametrize(
    ("found", "right", "f1", "exact"),
    [
        ("the Main Building", "Main building.", 1.0, True),
        ("a golden statue of Mary", "golden statue", 2 * (2 / 4) * 1 / (2 / 4 + 1), False),
        ("in 1858", "1858", 2 / 3, False),
        ("The", "An", 0.0, True),  # both are empty then: equal, but no word is shared, as the script has it
        ("cats", "cat", 0.0, False),
        ("cat…the…cat", "cat… …cat", 1.0, True),  # an article leaves a space
    ],
)
def test_single_answers(found: str, right: str, f1: float, exact: bool) -> None:
    assert answer_f1(found, right) == pytest.approx(f1)
    assert (plain_answer(found) == plain_answer(right)) is exact
