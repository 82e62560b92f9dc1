"""Stories: generated ones against a simulation of their sentences, bAbI's files, JSON lines, and batches."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heedful.data.batch import IGNORE_INDEX
from heedful.data.stories.batches import EncodedStories, StoryBatch, StoryBatches, encode_stories, unknown_words
from heedful.data.stories.generator import OBJECTS, PLACES, generate_story
from heedful.data.stories.sources import (
    BabiFiles,
    GeneratedStories,
    JsonStories,
    own_stories,
    read_babi,
    read_json_stories,
)
from heedful.data.stories.story import Asked, Facts, Story, StoryQuestion, split_sentences, words_of
from heedful.data.tokenizers.vocabulary import TextVocab
from heedful.errors import UserError

FIRST = ("Sandra moved to the kitchen.", "Mary journeyed to the bedroom.")  # of seed 0
BABI = """1 Mary moved to the bathroom.
2 John went to the hallway.
3 Where is Mary? \tbathroom\t1
4 Daniel went back to the hallway.
5 Sandra moved to the garden.
6 Where is Daniel? \thallway\t4
1 Mary got the milk there.
2 John moved to the bedroom.
3 Mary travelled to the hallway.
4 Where is the milk? \thallway\t1 3
"""


# ------------------------------------------------------------------ generated stories
def places_of(sentences: tuple[str, ...]) -> tuple[dict[str, str], dict[str, list[str]]]:
    """Where each person is, and the places of each object in order, by reading the sentences one by one."""
    person, holder, lies = dict[str, str](), dict[str, str](), dict[str, list[str]]()
    for sentence in sentences:
        words = sentence.removesuffix(".").split()
        name, last = words[0], words[-1]
        if last in PLACES:
            person[name] = last
            for thing, by in holder.items():
                if by == name:
                    lies[thing].append(last)
            continue
        assert last == "there"
        thing = words[-2]
        if words[1] in ("took", "got", "grabbed", "picked"):
            assert thing not in holder
            assert lies.get(thing, [person[name]])[-1] == person[name], "taken where it is"
            holder[thing] = name
            lies.setdefault(thing, [person[name]])
        else:
            assert holder.pop(thing) == name, "left by who has it"
    return person, lies


@pytest.mark.claim("M10")
@pytest.mark.parametrize("facts", [1, 2, 3])
def test_answers_are_those_of_a_simulation(facts: Facts) -> None:
    """Every answer follows from the sentences before its question, and each of its supporting facts is one of them."""
    answers = Counter[str]()
    for number in range(150):
        story = generate_story(3, number, facts, 4, 2 + facts)
        assert len(story.questions) == 4
        for question in story.questions:
            before = story.sentences[: question.after]
            people, lies = places_of(before)
            words = words_of(question.text)
            if facts == 1:
                expected = people[words[-1].capitalize()]
            elif facts == 2:
                expected = lies[words[-1]][-1]
            else:
                visits = lies[words[3]]
                assert visits.count(words[-1]) == 1, "the question has one answer"
                expected = visits[visits.index(words[-1]) - 1]
            assert question.answer == expected
            assert len(question.supports) == facts and list(question.supports) == sorted(set(question.supports))
            supports = [before[fact] for fact in question.supports]
            assert sum(question.answer in fact for fact in supports) == 1
            if facts > 1:
                (thing,) = [word for word in words if word in OBJECTS]
                assert sum(thing in fact for fact in supports) == 1
                assert len({fact.split()[0] for fact in supports}) == 1, "of one person"
            answers[question.answer] += 1
    assert set(answers) == set(PLACES)
    assert max(answers.values()) < 2 * min(answers.values())


@pytest.mark.parametrize("facts", [1, 2, 3])
def test_question_cannot_be_answered_without_its_facts(facts: Facts) -> None:
    """Without one of its supporting facts, what is read from the sentences is not the answer, or undefined."""
    lost = 0
    for number in range(60):
        story = generate_story(0, number, facts, 1, 3)
        (question,) = story.questions
        for fact in question.supports:
            rest = tuple(text for place, text in enumerate(story.sentences[: question.after]) if place != fact)
            try:
                people, lies = places_of(rest)
                words = words_of(question.text)
                if facts == 1:
                    found = people.get(words[-1].capitalize())
                elif facts == 2:
                    found = lies.get(words[-1], [None])[-1]
                else:
                    visits = lies.get(words[3], [])
                    found = visits[visits.index(words[-1]) - 1] if words[-1] in visits[1:] else None
            except (AssertionError, KeyError):
                found = None
            lost += found != question.answer
    assert lost > 0.8 * 60 * facts


def test_stories_are_a_function_of_seed_and_number() -> None:
    data = GeneratedStories(facts=2, train=6, valid=3, test=3, every=3)
    assert data.read("train") == data.read("train")
    assert GeneratedStories(facts=2, train=9, every=3).read("train").stories[:6] == data.read("train").stories
    assert GeneratedStories(facts=2, train=6, every=3, seed=1).read("train") != data.read("train")
    splits = [{one.sentences for one in data.read(split).stories} for split in ("train", "valid", "test")]
    assert all(splits) and not splits[0] & splits[1] and not splits[1] & splits[2] and not splits[0] & splits[2]
    assert len(data.read("valid").stories) == 3 and data.problems() == []
    assert generate_story(0, 0, 1, 1, 2).sentences == FIRST


# ------------------------------------------------------------------ files
def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_babi_file_is_read(tmp_path: Path) -> None:
    found = read_babi(write(tmp_path / "qa.txt", BABI), 1000)
    assert found.skipped == 0 and len(found.stories) == 2
    first, second = found.stories
    assert first.sentences[1] == "John went to the hallway." and len(first.sentences) == 4
    assert first.questions[1] == StoryQuestion("Where is Daniel?", "hallway", 4, (2,))
    assert second.questions == (StoryQuestion("Where is the milk?", "hallway", 3, (0, 2)),)
    assert [len(one.sentences) for one in found.asked] == [2, 4, 3]
    lists = "1 Mary got the milk there.\n2 What is Mary carrying?\tmilk,apple\t1\n\n3 John left.\n"
    (story,) = read_babi(write(tmp_path / "qa8.txt", lists), 1000).stories
    assert story.questions[0].answer == "milk,apple" and story.sentences[-1] == "John left."
    bare = read_babi(write(tmp_path / "bare.txt", "1 A b.\n2 Q?\tx\n1 Only a sentence.\n"), 1000)
    assert bare.skipped == 1 and bare.stories[0].questions[0].supports == ()


def test_babi_validation_is_the_end_of_the_training_file(tmp_path: Path) -> None:
    write(tmp_path / "train.txt", "".join(f"1 Mary is at {n}.\n2 Where?\tplace{n}\t1\n" for n in range(20)))
    data = BabiFiles(root=str(tmp_path), train="train.txt")
    train, valid = data.read("train"), data.read("valid")
    assert [one.question.answer for one in valid.asked] == ["place18", "place19"] and len(train.stories) == 18
    assert data.problems() == [] and data.file("test") is None
    write(tmp_path / "valid.txt", BABI)
    data = BabiFiles(root=str(tmp_path), train="train.txt", valid="valid.txt", test="none.txt")
    assert len(data.read("train").stories) == 20 and len(data.read("valid").stories) == 2
    assert [str(problem.where) for problem in data.problems()] == [str(tmp_path / "none.txt")]
    write(tmp_path / "one.txt", "1 A b.\n2 Q?\tx\t1\n")
    with pytest.raises(UserError, match="no story can be held out"):
        BabiFiles(root=str(tmp_path), train="one.txt").read("valid")
    with pytest.raises(UserError):
        BabiFiles(root=str(tmp_path), train="one.txt").read("test")


@pytest.mark.parametrize(
    ("text", "where", "message"),
    [
        ("", ":1", "empty"),
        ("Mary moved.\n", ":1", "no number"),
        ("1 \n", ":1", "no number"),
        ("2 Mary moved.\n", ":1", "not numbered one by one"),
        ("1 Mary moved.\n3 John left.\n", ":2", "not numbered one by one"),
        ("1 Where is Mary?\tkitchen\t1\n", ":1", "is no sentence before its question"),
        ("1 Where is Mary?\tkitchen\n", ":1", "no sentence before this question"),
        ("1 Mary moved.\n2 Where is Mary?\t\t1\n", ":2", "has no answer"),
        ("1 Mary moved.\n2 ?\tkitchen\t1\n", ":2", "there is no question"),
        ("1 Mary moved.\n2 Where?\tkitchen\t2\n", ":2", "is no sentence before its question"),
        ("1 Mary moved.\n2 Where?\tkitchen\tone\n", ":2", "is no sentence before its question"),
        ("1 Mary moved.\n1 John left.\n", "", "there are no questions"),
        ("1 Mary \x00 moved.\n", ":1", "not text"),
    ],
)
def test_bad_babi_file_is_refused(tmp_path: Path, text: str, where: str, message: str) -> None:
    path = write(tmp_path / "qa.txt", text)
    with pytest.raises(UserError, match=message) as caught:
        read_babi(path, 1000)
    assert str(caught.value.where).startswith(f"{path}{where}" if text else str(path))


def test_json_lines_are_read(tmp_path: Path) -> None:
    rows = [
        {"story": ["Mary left.", "John came."], "question": "Who came?", "answer": "John", "supports": [1]},
        {"story": "Mary left. John came.\nSandra slept!", "question": "Who slept?", "answer": "Sandra"},
    ]
    path = write(tmp_path / "s.jsonl", "\n".join(map(json.dumps, rows)) + "\n\n")
    found = JsonStories(root=str(tmp_path), train="s.jsonl", valid="s.jsonl").read("train")
    assert found == read_json_stories(path, 1000) and len(found.stories) == 2
    assert found.stories[0].questions == (StoryQuestion("Who came?", "John", 2, (1,)),)
    assert found.stories[1].sentences == ("Mary left.", "John came.", "Sandra slept!")
    own = own_stories([(["Mary left.", "John came."], "Who came?", "John", [1]), ("A. B.", "Q?", "a")], "train")
    assert own.stories[0] == found.stories[0] and own.stories[1].sentences == ("A.", "B.")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"question": "Who?", "answer": "a"}, "needs a story"),
        ({"story": 3, "question": "Who?", "answer": "a"}, "needs a story"),
        ({"story": ["a", 3], "question": "Who?", "answer": "a"}, "needs a story"),
        ({"story": [], "question": "Who?", "answer": "a"}, "no sentence before"),
        ({"story": " ... ", "question": "Who?", "answer": "a"}, "no sentence before"),
        ({"story": "A b.", "question": "?", "answer": "a"}, "no question"),
        ({"story": "A b.", "question": "Who?", "answer": " "}, "no answer"),
        ({"story": "A b.", "question": "Who?"}, "answer"),
        ({"story": "A b.", "question": "Who?", "answer": "a", "supports": [1]}, "supporting fact"),
        ({"story": "A b.", "question": "Who?", "answer": "a", "supports": [True]}, "supporting fact"),
        ({"story": "A b.", "question": "Who?", "answer": "a", "supports": 0}, "no list"),
    ],
)
def test_bad_rows_are_refused(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    path = write(tmp_path / "s.jsonl", json.dumps(row) + "\n")
    with pytest.raises(UserError, match=message) as caught:
        read_json_stories(path, 1000)
    assert str(caught.value.where).startswith(f"{path}:1")


@pytest.mark.parametrize("row", [3, "text", ("a", "b"), ("A b.", 3, "a"), (["A b."], "Who?", None)])
def test_bad_examples_are_refused(row: Any) -> None:
    with pytest.raises(UserError, match="invalid example") as caught:
        own_stories([("A b.", "Who?", "a"), row], "valid")
    assert caught.value.where == "data.valid[1]"
    with pytest.raises(UserError, match="no questions"):
        own_stories([], "train")


def test_texts_are_split() -> None:
    assert split_sentences("Mary left.  John came!\n\nWho? ...\n") == ("Mary left.", "John came!", "Who?")
    assert words_of("Mary's well-known 3 apples, don't.") == ["mary's", "well-known", "3", "apples", "don't"]


# ------------------------------------------------------------------ batches
def encoded(count: int = 12, memory: int = 50) -> tuple[list[Asked], TextVocab, EncodedStories]:
    asked = GeneratedStories(facts=2, train=count, every=3).read("train").asked
    texts = {text for one in asked for text in (*one.sentences, one.question.text)}
    vocabulary = TextVocab.learn([" ".join(words_of(text)) for text in sorted(texts)], PLACES, "words", True, 1)
    return asked, vocabulary, encode_stories(asked, vocabulary, memory)


def texts_of(batch: StoryBatch, row: int, vocabulary: TextVocab) -> tuple[list[list[str]], list[str]]:
    """The words of a row's sentences and of its question."""

    def words(ids: Any) -> list[str]:
        return vocabulary.pieces(number for number in ids.tolist() if number)

    places = [place for place in batch.stories[row].tolist() if place >= 0]
    return [words(batch.sentences[place]) for place in places], words(batch.questions[row])


def test_batches_say_what_the_stories_say() -> None:
    asked, vocabulary, found = encoded()
    batches = StoryBatches(found, seed=5, batch_tokens=1, examples=7)
    seen = Counter[int]()
    count = -(-len(asked) // 7)
    for position in range(count):
        batch = batches.at(position)
        assert len(np.unique(batch.sentences.numpy(), axis=0)) == len(batch.sentences), "each sentence once"
        assert batches.tokens(position) == batch.tokens == len(batch.indices) and batches.epoch_of(position) == 0
        for row, index in enumerate(batch.indices.tolist()):
            sentences, question = texts_of(batch, row, vocabulary)
            assert sentences == [words_of(text) for text in asked[index].sentences]
            assert question == words_of(asked[index].question.text)
            assert PLACES[batch.targets[row]] == asked[index].question.answer
            seen[index] += 1
    assert seen == Counter(range(len(asked))) and batches.epoch_of(count) == 1
    again = StoryBatches(encoded()[2], seed=5, batch_tokens=1, examples=7)
    assert all(again.at(n).indices.equal(batches.at(n).indices) for n in (0, 3, 9, 30))
    other = StoryBatches(found, seed=6, batch_tokens=1, examples=7)
    assert [other.at(n).indices.tolist() for n in range(4)] != [again.at(n).indices.tolist() for n in range(4)]
    every = [index for batch in found.in_order(40) for index in batch.indices.tolist()]
    assert sorted(every) == list(range(len(asked)))


def test_shards_of_a_batch_are_the_batch() -> None:
    _, _, found = encoded()
    batches = StoryBatches(found, seed=0, batch_tokens=1, examples=3)
    whole = batches.at(1).indices.tolist()
    shards = [batches.at(1, part, 4) for part in range(4)]
    assert sorted(index for shard in shards for index in shard.indices.tolist() if index >= 0) == sorted(whole)
    assert shards[3].targets.tolist() == [IGNORE_INDEX] and shards[3].tokens == 0 and shards[3].indices.tolist() == [-1]


def test_long_stories_are_shortened_and_unknown_answers_counted() -> None:
    asked, vocabulary, whole = encoded()
    found = encode_stories(asked, vocabulary, 5)
    assert whole.forgotten.tolist() == [0] * len(asked) and whole.unseen == ()
    batch = found.batch(np.arange(len(asked)))
    for row, one in enumerate(asked):
        assert texts_of(batch, row, vocabulary)[0] == [words_of(text) for text in one.sentences[-5:]]
        assert found.forgotten[row] == max(0, len(one.sentences) - 5)
    assert found.sha256 != whole.sha256 == encoded()[2].sha256
    story = Story(("Mary flew to the moon.",), ())
    odd = [Asked(story.sentences, StoryQuestion("Where is Mary?", answer, 1)) for answer in ("moon", "kitchen")]
    other = encode_stories(odd, vocabulary, 5)
    assert other.unseen == ("moon",) and other.targets.tolist() == [IGNORE_INDEX, PLACES.index("kitchen")]
    assert other.with_targets.tolist() == [1]
    assert unknown_words(["Mary flew to the moon.", "the moon"], vocabulary) == ["flew", "moon"]
