"""Questions and passages as windows, with the tokens of their answers."""

import random
from itertools import pairwise

import numpy as np
import pytest

from heedful.data.formats.squad import Answer, Question, WindowsConfig
from heedful.data.labelled.answering import (
    IGNORE_INDEX,
    AnswerBatch,
    AnswerBatches,
    EncodedQuestions,
    best_windows,
    encode_questions,
    passage_windows,
)
from heedful.data.tokenizers.wordpiece import NAMES, BertTokenizer

WORDS = ["ann", "bob", "saw", "rome", "who", "##a", "##s", "a", "s", ".", "?"]
TOKENIZER = BertTokenizer.from_vocab([*NAMES, *WORDS], True, "here")


def questions(count: int, longest: int = 25) -> list[Question]:
    luck = random.Random(1)
    found = []
    for number in range(count):
        words = [luck.choice(["Ann", "Bobas", "saw", "Rome", "annsas", "."]) for _ in range(luck.randint(3, longest))]
        first = luck.randrange(len(words))
        text = " ".join(words[first : first + luck.randint(1, 3)])
        start = sum(len(word) + 1 for word in words[:first])
        asked = " ".join(luck.choice(["who", "saw", "Rome"]) for _ in range(luck.randint(1, 4))) + "?"
        found.append(Question(str(number), asked, " ".join(words), (Answer(text, start),)))
    return found


# ------------------------------------------------------------------ windows
def test_every_token_of_a_passage_is_in_a_window() -> None:
    for length in range(40):
        for room in (1, 3, 8, 50):
            for stride in (1, 3, 9, 100):
                windows = passage_windows(length, room, stride)
                assert {n for first, size in windows for n in range(first, first + size)} == set(range(length))
                assert all(size <= room for _, size in windows)
                assert windows[0][0] == 0 and sum(windows[-1]) == length
                firsts = [first for first, _ in windows]
                assert all(b - a == min(stride, room) for a, b in pairwise(firsts))


def test_best_window_of_a_token_has_the_most_context() -> None:
    for length, room, stride in [(30, 12, 5), (31, 12, 12), (9, 12, 5), (100, 40, 7)]:
        windows = passage_windows(length, room, stride)
        best = best_windows(windows, length)
        for token in range(length):
            context = [min(token - first, first + size - 1 - token) for first, size in windows]
            assert best[token] == context.index(max(context))
            assert context[best[token]] >= 0


# ------------------------------------------------------------------ encoding
@pytest.mark.parametrize("context", [64, 24])
def test_answer_tokens_cover_the_answer_characters(context: int) -> None:
    some = questions(60)
    encoded = encode_questions(some, TOKENIZER, context, WindowsConfig(stride=4))
    assert len(encoded) == 60 and (len(encoded.firsts) > 60) == (context == 24)
    for row in encoded.with_targets.tolist():
        number = int(np.searchsorted(encoded.windows, row, side="right")) - 1
        question, places = some[number], encoded.offsets[number]
        first = encoded.firsts[row]
        start, end = places[first + encoded.starts[row], 0], places[first + encoded.ends[row], 1]
        assert question.passage[start:end] == question.answers[0].text
        ids = encoded.ids.flat[encoded.ids.starts[row] : encoded.ids.starts[row + 1]].tolist()
        part = ids[encoded.begins[row] : encoded.begins[row] + encoded.sizes[row]]
        assert part == TOKENIZER.ids([question.passage])[0][first : first + encoded.sizes[row]]
        asked = TOKENIZER.ids([question.question])[0]
        assert ids == [TOKENIZER.cls, *asked, TOKENIZER.sep, *part, TOKENIZER.sep]
    with_answer = np.searchsorted(encoded.windows, encoded.with_targets, side="right")
    assert encoded.dropped == 60 - len(set(with_answer.tolist()))


def test_answers_in_no_window_are_counted() -> None:
    passage = " ".join(["ann"] * 30)
    long, short = (Question(n, "who?", passage, (Answer(passage[:end], 0),)) for n, end in (("a", 79), ("b", 3)))
    encoded = encode_questions([long, short], TOKENIZER, 16, WindowsConfig(stride=4))
    assert encoded.dropped == 1
    assert encoded.windows[1] not in encoded.with_targets.tolist() or encoded.starts[encoded.windows[1]] == 0


def test_answer_inside_a_token_includes_the_token() -> None:
    encoded = encode_questions(
        [Question("a", "who?", "saw rome .", (Answer("om", 5),))], TOKENIZER, 32, WindowsConfig()
    )
    assert (encoded.starts.tolist(), encoded.ends.tolist()) == ([1], [1])


def test_answer_excludes_adjacent_tokens() -> None:
    passage = "saw bobas.ann"  # tokens saw, bob, ##a, ##s, "." and ann
    for text, tokens in (("bobas", (1, 3)), (".", (4, 4)), ("ann", (5, 5))):
        asked = Question("a", "who?", passage, (Answer(text, passage.index(text)),))
        encoded = encode_questions([asked], TOKENIZER, 32, WindowsConfig())
        assert (int(encoded.starts[0]), int(encoded.ends[0])) == tokens


def test_long_question_is_truncated_and_counted() -> None:
    long = Question("a", "who " * 50, "ann saw rome", (Answer("ann", 0),))
    encoded = encode_questions([long], TOKENIZER, 64, WindowsConfig(question=10))
    assert encoded.cut == 1 and encoded.begins.tolist() == [12]
    encoded = encode_questions([long], TOKENIZER, 11, WindowsConfig(question=10))
    assert encoded.begins.tolist() == [6] and encoded.sizes.tolist() == [3]  # at least half is the passage's


def test_passage_without_tokens_has_one_empty_window() -> None:
    encoded = encode_questions([Question("a", "who?", "\u200d\u200d", ())], TOKENIZER, 16, WindowsConfig())
    assert encoded.sizes.tolist() == [0] and encoded.dropped == 1


# ------------------------------------------------------------------ batches
def answers(batch: AnswerBatch) -> list[tuple[int, ...]]:
    """The ids of each answer of a batch."""
    flat, found = batch.ids.flatten().tolist(), []
    for begin, start, end in zip(batch.begins.tolist(), batch.starts.tolist(), batch.ends.tolist(), strict=True):
        if start != IGNORE_INDEX:
            found.append(tuple(flat[begin + start : begin + end + 1]))
    return found


def expected(encoded: EncodedQuestions) -> list[tuple[int, ...]]:
    found = []
    for row in encoded.with_targets:
        begin = encoded.ids.starts[row] + encoded.begins[row]
        found.append(tuple(encoded.ids.flat[begin + encoded.starts[row] : begin + encoded.ends[row] + 1].tolist()))
    return sorted(found)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("examples", [None, 4])
@pytest.mark.parametrize("parts", [1, 3])
def test_epoch_has_every_answer_once(packed: bool, examples: int | None, parts: int) -> None:
    encoded = encode_questions(questions(50), TOKENIZER, 24, WindowsConfig(stride=4))
    batches = AnswerBatches(encoded, 0, 96, examples, packed)
    found: list[tuple[int, ...]] = []
    position = 0
    while batches.epoch_of(position) == 0:
        some = [batches.at(position, part, parts) for part in range(parts)]
        assert sum(batch.tokens for batch in some) == batches.tokens(position)
        for batch in some:
            found += answers(batch)
            assert batch.sequences.packed is packed
            real = batch.sizes > 0
            segments = batch.segments.flatten()
            assert bool((segments[batch.begins[real]] == 1).all() & (segments[batch.begins[real] - 1] == 0).all())
        position += 1
    assert sorted(found) == expected(encoded)


def test_packed_batches_of_a_budget_have_one_shape() -> None:
    encoded = encode_questions(questions(50), TOKENIZER, 24, WindowsConfig(stride=4))
    batches = AnswerBatches(encoded, 0, 96, None, True)
    some = [batches.at(position) for position in range(5)]
    assert len({(batch.ids.shape, batch.begins.shape, batch.most, batch.longest) for batch in some}) == 1


def test_answers_change_the_hash() -> None:
    some = questions(5)
    changed = [*some[:-1], some[-1]._replace(answers=(Answer(some[-1].passage, 0),))]
    one, other = (encode_questions(each, TOKENIZER, 64, WindowsConfig()).sha256 for each in (some, changed))
    assert one != other
