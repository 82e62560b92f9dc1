"""Facts of scenes: what the scenes say of themselves is true, anything else is not, and nouns name the right boxes."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from heedful.data.images.scene_facts import RELATIONS, check, check_paragraph, parse, split_sentences
from heedful.data.images.scenes import COLOURS, COUNTED, GROUNDS, PLACES, SHAPES, SIZES, Scene, Thing, scene

SCENES = [scene(5, number, 64, 72, (1, 9)) for number in range(300)]


def thing(name: str, size: str, row: int, column: int, radius: int) -> Thing:
    colour, shape = name.split()
    return Thing(shape, colour, size, row, column, radius, COLOURS[colour])


HERE = Scene(
    60,
    60,
    "white",
    (
        thing("red circle", "large", 10, 10, 9),
        thing("blue square", "medium", 10, 50, 6),
        thing("red circle", "small", 50, 12, 3),
        thing("orange cross", "small", 50, 50, 3),
    ),
)


def test_all_that_a_scene_says_of_itself_is_true() -> None:
    for one in SCENES:
        for caption in one.captions:
            verdict = check(caption, one)
            assert verdict.true, (caption, verdict.reason)
        sentences = split_sentences(one.paragraph)
        assert " ".join(sentences) == one.paragraph and len(sentences) == 2 * len(one.things)
        assert all(verdict.true for verdict in check_paragraph(one.paragraph, one))


def mutants(sentence: str) -> Iterator[str]:
    """The sentence with one word or phrase replaced by another of its kind."""
    for options in (COLOURS, SHAPES, SIZES, PLACES, RELATIONS, GROUNDS, COUNTED[1:]):
        pattern = re.compile(rf"\b({'|'.join(sorted(options, key=len, reverse=True))})\b")
        for match in pattern.finditer(sentence.lower()):
            for other in options:
                if other != match[0]:
                    changed = sentence[: match.start()] + other + sentence[match.end() :]
                    changed = re.sub(r"\ba (?=orange)", "an ", re.sub(r"\ban (?!orange)", "a ", changed))
                    if options is COUNTED[1:]:
                        changed = re.sub(r"\bone( other)? shapes\b", r"one\1 shape", changed)
                        changed = re.sub(r"\b(?<!one )(?<!one other )shape\b", "shapes", changed)
                    yield changed


def test_a_scene_that_fits_is_needed_for_truth() -> None:
    """A changed caption is true only where the scene has another thing that fits, of which it is then said."""
    changed = false = 0
    for one in SCENES[:100]:
        single = len({found.name for found in one.things}) == len(one.things)
        for sentence in (*one.captions, *split_sentences(one.paragraph)):
            for mutant in mutants(sentence):
                verdict = check(mutant, one)
                changed += 1
                false += not verdict.true
                assert verdict.true != bool(verdict.reason)
                if verdict.true and single:
                    spoken = {one.things[place].name for reading in verdict.readings for place in reading}
                    assert any(name in mutant for name in spoken)
                    assert spoken != {one.things[place].name for place in check(sentence, one).readings[0]}
    assert changed > 10_000 and false > 0.95 * changed


def test_mutants_of_a_single_thing_are_false() -> None:
    for one in (one for one in SCENES if len(one.things) == 1):
        for sentence in (*one.captions, *split_sentences(one.paragraph)):
            assert check(sentence, one).true
            assert not [mutant for mutant in mutants(sentence) if check(mutant, one).true]


@pytest.mark.parametrize(
    ("sentence", "reason"),
    [
        ("there are three shapes on white, the largest a red circle", "says 3, the scene has four shapes"),
        ("a red circle with two other shapes", "says 3, the scene has four shapes"),
        ("The picture shows four shapes on a black ground.", "says black, the ground is white"),
        ("a medium red circle at the top left", "there is no medium red circle"),
        ("a red circle and a green cross on a white ground", "there is no green cross"),
        ("a red circle and a red circle and a red circle on a white ground", "fewer such things"),
        ("at the top is a large red circle", "says at the top, the large red circle is at the top left"),
        ("there are four shapes on white, the largest a blue square", "the blue square is not the largest"),
        ("The blue square is to the left of the red circle.", "no blue square is to the left of a red circle"),
        ("a small orange cross below a large red circle", "no small orange cross is below a large red circle"),
        ("a orange cross", "not a sentence about a scene"),
        ("there are one shape on white, the largest a red circle", "not a sentence about a scene"),
        ("there is four shapes on white, a red circle", "not a sentence about a scene"),
        ("a large red circle at the top left at the top left", "not a sentence about a scene"),
        ("a red circle. a blue square", "not a sentence about a scene"),
        ("", "not a sentence about a scene"),
    ],
)
def test_what_is_not_so_is_false_and_says_why(sentence: str, reason: str) -> None:
    verdict = check(sentence, HERE)
    assert not verdict.true and reason in verdict.reason and not verdict.readings and not verdict.mentions


@pytest.mark.parametrize(
    ("sentence", "readings"),
    [
        ("there are four shapes on white , the largest a red circle", ((0,),)),
        ("A small red circle at the bottom left.", ((2,),)),
        ("a red circle and a red circle on a white ground", ((0, 2), (2, 0))),
        ("the red circle is to the left of the orange cross", ((0, 3), (2, 3))),
        ("a blue square with three other shapes", ((1,),)),
        ("a large  red circle above a small red circle", ((0, 2),)),
        ("the picture shows four shapes on a white ground.", ((),)),
    ],
)
def test_sentences_speak_of_the_things_that_fit(sentence: str, readings: tuple[tuple[int, ...], ...]) -> None:
    assert check(sentence, HERE).readings == readings


def test_nouns_name_their_boxes() -> None:
    sentence = "The red circle is to the left of the orange cross."
    first, second = check(sentence, HERE).mentions
    assert (first.word, sentence[first.begin : first.end], first.things) == (2, "circle", (0, 2))
    assert first.boxes == (HERE.things[0].box, HERE.things[2].box)
    assert (sentence.split()[second.word], second.boxes) == ("cross.", (HERE.things[3].box,))
    for one in SCENES:
        for caption in one.captions:
            mentions = check(caption, one).mentions
            nouns = [word for word, text in enumerate(caption.split()) if text.strip(",.") in SHAPES]
            assert [mention.word for mention in mentions] == nouns
            assert one.things[0].box in mentions[0].boxes  # all captions begin with the largest thing
            for mention in mentions:
                assert {one.things[place].shape for place in mention.things} == {caption[mention.begin : mention.end]}
                assert tuple(one.things[place].box for place in mention.things) == mention.boxes


def test_statements() -> None:
    statement = parse("a small orange cross to the right of a large red circle")
    assert statement is not None and statement.relation == "to the right of" and statement.count is None
    assert [str(description) for description in statement.descriptions] == ["small orange cross", "large red circle"]
    assert parse("a lovely day") is None
    assert split_sentences(" A red circle. a dog.Yes ") == ["A red circle.", "a dog.", "Yes"]
