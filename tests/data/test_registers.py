"""A small language in two registers: its grammar both ways, and sentences that are not parallel."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from heedful.data.formats.sources import SPLITS
from heedful.data.labelled.registers import CONTENT, REGISTERS, Meaning, Noun, Registers, parse

KING = Meaning(Noun("king", "old", True), "sell", Noun("boat", None, False), "market", "tomorrow", False)
SHORT = Meaning(Noun("cat", None, False), "hide", Noun("ring", "bright", True), None, None, True)


@pytest.mark.parametrize(
    ("meaning", "plain", "courtly"),
    [
        (
            KING,
            "tomorrow the old king will sell a boat in the market",
            "yon king so old some boat within market sell shall tomorrow",
        ),
        (SHORT, "a cat did hide the bright ring", "some cat yon ring so bright hide hath"),
    ],
)
def test_each_meaning_has_a_sentence_in_each_register(meaning: Meaning, plain: str, courtly: str) -> None:
    assert (meaning.sentence("plain"), meaning.sentence("courtly")) == (plain, courtly)
    assert parse(plain, "plain") == parse(courtly, "courtly") == meaning
    assert parse(plain, "courtly") is None and parse(courtly, "plain") is None


def test_the_grammar_reads_what_it_writes_and_nothing_else() -> None:
    rng = random.Random(3)
    for _ in range(300):
        meaning = Meaning.draw(rng)
        for register in REGISTERS:
            words = meaning.sentence(register).split()
            assert parse(" ".join(words), register) == meaning
            without = rng.randrange(len(words))
            fewer = parse(" ".join(words[:without] + words[without + 1 :]), register)
            assert fewer is None or fewer != meaning
            assert parse(" ".join([*words, "the"]), register) is None
    for text in ("", "the king", "the boat will sell a king", "the king did sell a boat in market"):
        assert parse(text, "plain") is None


def test_both_sentences_have_the_same_content_words_and_no_other_word_in_common() -> None:
    rng = random.Random(4)
    for _ in range(200):
        meaning = Meaning.draw(rng)
        plain, courtly = (Counter(meaning.sentence(register).split()) for register in REGISTERS)
        assert set(plain & courtly) == {word for word in plain if word in CONTENT}
        assert {word for word in courtly if word in CONTENT} == set(plain & courtly)


def test_splits_are_not_parallel_and_follow_from_the_seed() -> None:
    data = Registers(train=400, valid=60, test=61)
    found = {split: data.read(split).items for split in SPLITS}
    assert [len(found[split]) for split in SPLITS] == [400, 60, 61]
    meanings = [parse(item.text, item.label) for items in found.values() for item in items]  # type: ignore[arg-type]
    assert None not in meanings and len(set(meanings)) == 521
    assert Counter(item.label for item in found["train"]) == {"plain": 200, "courtly": 200}
    assert data.read("test") == Registers(train=400, valid=60, test=61).read("test")
    assert data.model_copy(update={"seed": 1}).read("test") != data.read("test")
