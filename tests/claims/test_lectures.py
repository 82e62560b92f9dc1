"""Rows N1, N4, N5 and G10 of the claim sheet: the quiz, the references and the takeaways."""

from __future__ import annotations

import json
import math
import os
import pty
import random
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from heedful.cli.app import app
from heedful.lectures import quiz as questions
from heedful.lectures.decks import decks, references, takeaways, topics
from heedful.lectures.quiz import COMPUTED, Question, blanks, quiz
from heedful.models import MODELS
from patience import LONG

# The word that the deck leaves out in each sentence, as its context suggests.
WORDS = [
    "resource", "end-to-end", "alignment", "value", "encodes", "bottom", "input", "smaller", "weights", "matrix",
    "heads", "order", "residual", "cross", "masked", "vocabulary", "greedy", "beam", "bidirectional", "masked",
    "unmasked", "next", "segment", "left-to-right", "permutations",
]  # fmt: skip


@pytest.mark.claim("N1")
def test_every_blank_of_the_deck_is_a_question() -> None:
    assert len(blanks()) == len(WORDS) == 25
    for blank, word in zip(blanks(), WORDS, strict=True):
        assert blank.prompt.count("___") == 1
        assert blank.accepts(word) and blank.accepts(f" {word.upper().replace('-', ' ')}. ")
        assert not blank.accepts("") and not blank.accepts("nothing")
        assert blank.why and blank.topic in topics()
        assert blank.accepts(blank.answers[0]) and blank.answers[0].lower() not in blank.prompt.lower().split()


@pytest.mark.claim("N1")
@pytest.mark.parametrize("maker", COMPUTED, ids=lambda maker: maker.__name__)
def test_computed_questions_accept_only_their_answer(maker: object) -> None:
    assert callable(maker)
    asked: list[Question] = [maker(random.Random(seed)) for seed in range(12)]
    assert len({one.prompt for one in asked}) > 1
    for one in asked:
        assert one.topic in topics() and one.why
        assert one.accepts(one.answers[0]) and not one.accepts("x") and not one.accepts("")
        if one.choices:
            assert [one.accepts(choice) for choice in one.choices].count(True) == 1
            letters = [one.accepts(letter) for letter in "abcdef"[: len(one.choices)]]
            assert letters == [choice == one.answers[0] for choice in one.choices]
        else:
            assert not one.accepts(str(float(one.answers[0].replace(",", "")) + 1))


@pytest.mark.claim("N1")
def test_computed_answers_match_hand_calculation() -> None:
    for seed in range(20):
        rng = random.Random(seed)
        n = random.Random(seed).randint(2, 5)
        assert questions.orders(rng).answers == [str(math.factorial(n))]
        n = random.Random(seed).randint(4, 12)
        assert questions.visible_pairs(random.Random(seed)).accepts(str(n * (n + 1) // 2))
        rng = random.Random(seed)
        x, h = rng.choice((10, 20, 50, 100)), rng.choice((10, 20, 50, 100))
        assert questions.lstm_parameters(random.Random(seed)).accepts(str(4 * (h * (h + x) + h)))
        rng = random.Random(seed)
        q, a, b = ([rng.randint(-1, 2) for _ in range(4)] for _ in range(3))
        score = [math.exp(sum(x * y for x, y in zip(q, key, strict=True)) / 2) for key in (a, b)]
        assert questions.attention_weight(random.Random(seed)).accepts(f"{score[0] / sum(score):.2f}")
        rng = random.Random(seed)
        side, kernel, size = rng.randint(9, 40), rng.choice((3, 5, 7)), rng.choice((2, 3))
        assert questions.conv_side(random.Random(seed)).accepts(str(math.ceil((side - kernel + 1) / size)))
        rng = random.Random(seed)
        position, width, column = rng.randint(1, 9), rng.choice((4, 8, 16)), rng.randrange(4)
        angle = position / 10000 ** (column // 2 * 2 / width)
        value = math.cos(angle) if column % 2 else math.sin(angle)
        assert questions.sinusoid(random.Random(seed)).accepts(f"{value:.2f}")


@pytest.mark.claim("N1")
def test_quiz_is_seeded_and_half_computed() -> None:
    assert quiz(3, 10) == quiz(3, 10) != quiz(4, 10)
    for count in (1, 10, 25, 60):
        asked = quiz(1, count)
        sentences = [one for one in asked if "___" in one.prompt]
        assert len(asked) == count
        assert len(set(sentences_of(asked))) == len(sentences) == min(count - count // 2, len(blanks()))


def sentences_of(asked: list[Question]) -> list[str]:
    return [one.prompt for one in asked if "___" in one.prompt]


@pytest.mark.claim("N1")
def test_quiz_command_prints_answers_without_a_terminal(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["quiz", "--answers", "--seed", "3", "--count", "4"])
    assert done.exit_code == 0
    for one in quiz(3, 4):
        assert f"= {one.answers[0]}" in done.output and one.run in done.output
    command = [sys.executable, "-m", "heedful", "quiz"]
    for stdin in (subprocess.DEVNULL, subprocess.PIPE):
        ended = subprocess.run(command, stdin=stdin, capture_output=True, text=True, timeout=LONG, cwd=tmp_path)
        assert ended.returncode == 2 and "needs a terminal" in ended.stderr and "--answers" in ended.stderr


@pytest.mark.claim("N1")
def test_terminal_quiz_counts_correct_answers() -> None:
    first, second = quiz(3, 2)
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "heedful", "quiz", "--seed", "3", "--count", "2"]
    with subprocess.Popen(command, stdin=theirs, stdout=subprocess.PIPE, text=True) as process:
        os.close(theirs)
        os.write(ours, f"{first.answers[0]}\n\n".encode())
        output, _ = process.communicate(timeout=LONG)
    os.close(ours)
    assert process.returncode == 0
    assert "1 of 2 right" in output and f"it is {second.answers[0]}" in output


@pytest.mark.claim("N4")
def test_references_of_decks_and_models_are_listed() -> None:
    titles = {one.title for one in references()}
    assert len(titles) == len(references())
    cited = (
        "The Annotated Transformer",
        "The Illustrated Transformer",
        "Attention? Attention!",
        "Tensor2Tensor",
        "GluonNLP",
    )
    for name in cited:
        (one,) = [one for one in references() if name in one.title]
        assert one.decks and one.link
    of_models = {kind for one in references() for kind in one.models}
    assert of_models == {kind for kind, model in MODELS.items() if model.folder != "heads"}
    for one in references():
        assert one.authors and one.where and (one.year is None or 1990 < one.year < 2030)
        assert set(one.topics) <= set(topics()) and one.topics
        assert set(one.decks) <= {deck.name for deck in decks()}
        assert not one.where.startswith("arXiv:") or one.link == f"https://arxiv.org/abs/{one.where[6:]}"
        running = [name for name in one.topics if topics()[name].code]
        assert bool(one.code) == (not one.cited) and (one.cited or running)


@pytest.mark.claim("N4")
def test_references_command_prints_every_reference() -> None:
    done = CliRunner().invoke(app, ["lectures", "references"])
    output = " ".join(done.output.split())
    assert all(" ".join(one.title.split()) in output for one in references())
    (record,) = [
        json.loads(line) for line in CliRunner().invoke(app, ["lectures", "references", "--json"]).output.splitlines()
    ]
    assert record["references"] == json.loads(json.dumps([one.record() for one in references()]))


@pytest.mark.claim("G10")
def test_alphafold_is_only_a_reference() -> None:
    (paper,) = [one for one in references() if "AlphaFold" in one.title]
    assert (paper.year, paper.link) == (2021, "https://doi.org/10.1038/s41586-021-03819-2")
    assert paper.cited and paper.code == [] and paper.decks == ["pilehvar"]
    assert "G10" in topics()["alphafold"].ids and paper.topics == ["alphafold"]


@pytest.mark.claim("N5")
def test_every_takeaway_has_a_command_and_a_test() -> None:
    root = Path(__file__).parents[2]
    assert {one.deck for one in takeaways()} == {"han", "xing", "yoon"}
    for one in takeaways():
        assert one.topic in topics() and topics()[one.topic].claims, one
        record = one.record()
        assert record["run"] in topics()[one.topic].run
        assert record["tests"] and all((root / test).is_file() for test in record["tests"])
    done = CliRunner().invoke(app, ["lectures", "takeaways"])
    output = " ".join(done.output.split())
    assert all(one.text in output and " ".join(one.record()["run"].split()) in output for one in takeaways())


@pytest.mark.parametrize(
    ("given", "answer", "right"),
    [
        ("0,59", "0.59", True),
        (".59", "0.59", True),
        ("0.590", "0.59", True),
        ("1024", "1,024", True),
        ("1 024", "1,024", True),
        ("1,024", "1,024", True),
        ("1,024", "1.02", False),
        ("1,048,576", "1,048,576", True),
        ("-0,5", "-0.50", True),
        (",", "0.59", False),
    ],
)
def test_numbers_may_have_a_decimal_comma(given: str, answer: str, right: bool) -> None:
    assert Question("?", [answer], "", "", tolerance=0.011).accepts(given) is right
