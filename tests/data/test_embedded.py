"""Data that needs no download: number words, docstrings and digits."""

import sysconfig
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import ValidationError
from unicode_rbnf import RbnfEngine

from heedful.data.embedded import Counting, LibraryProse, NumberWords, even_shares, languages, library, sample, spell
from heedful.data.formats.sources import SPLITS
from heedful.errors import UserError

SPELLED = {
    "en": {
        0: "zero",
        13: "thirteen",
        40: "forty",
        321: "three hundred twenty-one",
        1_001: "one thousand one",
        101_700: "one hundred one thousand seven hundred",
        999_999: "nine hundred ninety-nine thousand nine hundred ninety-nine",
    },
    "de": {
        0: "null",
        1: "eins",
        16: "sechzehn",
        17: "siebzehn",
        30: "dreißig",
        101: "einhunderteins",
        321: "dreihunderteinundzwanzig",
        1_001: "eintausendeins",
        21_000: "einundzwanzigtausend",
        101_700: "einhunderteintausendsiebenhundert",
        700_071: "siebenhunderttausendeinundsiebzig",
    },
    "fr": {
        71: "soixante-et-onze",
        80: "quatre-vingts",
        81: "quatre-vingt-un",
        99: "quatre-vingt-dix-neuf",
        200: "deux cents",
        201: "deux cent un",
        1_000: "mille",
        80_000: "quatre-vingt mille",
        200_000: "deux cent mille",
    },
}


@pytest.mark.parametrize("language", SPELLED)
def test_number_words_are_correct(language: str) -> None:
    assert spell(list(SPELLED[language]), language) == list(SPELLED[language].values())


@pytest.mark.parametrize("language", languages())
def test_every_language_has_default_spelling(language: str) -> None:
    numbers = [0, 1, 11, 21, 99, 100, 101, 999, 1000, 1001, 20_000, 999_999, 10**12 - 1]
    engine = RbnfEngine.for_language(language)
    words = spell(numbers, language)
    assert words == [engine.format_number(number).text for number in numbers]
    assert not [word for word in words if not word.strip() or "\u00ad" in word or any(map(str.isdigit, word))]


def test_splits_are_disjoint_and_have_the_requested_size() -> None:
    data = NumberWords(train=3000, valid=200, test=300)
    numbers = {split: data.numbers(split) for split in SPLITS}
    assert [len(numbers[split]) for split in SPLITS] == [3000, 200, 300]
    assert len({number for split in SPLITS for number in numbers[split]}) == 3500
    assert 0 in numbers["train"]
    assert all(0 <= number < 1_000_000 for split in SPLITS for number in numbers[split])


def test_numbers_are_balanced_over_digit_lengths() -> None:
    numbers = NumberWords().numbers("train")
    counts = Counter(len(str(number)) for number in numbers)
    assert counts[1] + counts[2] >= 60  # most of the 100 there are
    assert all(6100 < counts[digits] < 6700 for digits in (4, 5, 6))


@pytest.mark.parametrize(
    ("total", "counts", "shares"),
    [(12, [10, 90, 900], [4, 4, 4]), (150, [10, 90, 900], [10, 70, 70]), (4, [3, 9], [2, 2])],
)
def test_even_shares(total: int, counts: list[int], shares: list[int]) -> None:
    assert even_shares(total, counts) == shares


@pytest.mark.parametrize(("count", "share"), [(1, 1), (10, 10), (10, 3), (10**11, 1000)])
def test_sampling_is_without_replacement(count: int, share: int) -> None:
    chosen = sample(0, 1, count, share)
    assert len(set(chosen)) == share
    assert all(0 <= number < count for number in chosen)


def test_sampling_is_uniform() -> None:
    counts = Counter(number for seed in range(3000) for number in sample(seed, 0, 10, 3))
    assert min(counts.values()) > 780  # 900 expected, deviation 25
    assert max(counts.values()) < 1020


@pytest.mark.parametrize("below", [3, 10, 11, 12_345])
def test_all_numbers_can_be_requested(below: int) -> None:
    data = NumberWords(train=below - 2, valid=1, test=1, below=below)
    assert sorted(number for split in SPLITS for number in data.numbers(split)) == list(range(below))


def test_numbers_are_a_function_of_the_seed() -> None:
    small = NumberWords(train=200, valid=10, test=10)
    assert small.pairs("train") == NumberWords(train=200, valid=10, test=10).pairs("train")
    assert small.numbers("test") != NumberWords(train=200, valid=10, test=10, seed=1).numbers("test")
    assert NumberWords().numbers("test")[:5] == [380396, 9537, 31234, 8269, 5756]


def test_pairs_of_large_numbers() -> None:
    pairs = NumberWords(source="de", target="fr", train=50, valid=5, test=5, below=10**12).read("train")
    assert pairs.skipped == 0
    assert any("milliard" in pair.target for pair in pairs.pairs)


def test_generation_is_fast() -> None:
    begin = time.process_time()
    assert sum(len(set(NumberWords().pairs(split))) for split in SPLITS) == 22_500
    assert time.process_time() - begin < 4


def test_short_numbers_are_repeated_in_training() -> None:
    words = NumberWords(train=300, valid=20, test=20, below=1000)
    often = Counter(words.pairs("train"))
    short = set(words.numbers("train")) & set(range(100))
    assert short
    assert sum(count > 1 for count in often.values()) == len(short)
    assert max(Counter(words.pairs("test")).values()) == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"target": "en-in"}, "did you mean en_IN"),
        ({"source": "DE"}, "did you mean de?"),
        ({"source": "klingon"}, "known: af, ak,"),
        ({"train": 90, "valid": 10, "test": 10, "below": 100}, "raise below to 110"),
        ({"below": 10**13}, "less than or equal"),
        ({"seed": -1}, "greater than or equal"),
    ],
)
def test_invalid_settings_are_rejected(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message.replace("?", r"\?")):
        NumberWords.model_validate(settings)


def test_embedded_data_has_no_problems() -> None:
    assert NumberWords().problems() == []


@pytest.fixture
def small_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A standard library of a dozen modules, with other files beside them."""
    for number in range(12):
        words = f'"""Module {number}."""\ndef f():\n    """Of {number}.\n\n    More."""\n'
        (tmp_path / f"module{number}.py").write_text(words)
    (tmp_path / "broken.py").write_text('"""Never\n')
    (tmp_path / "silent.py").write_text("x = 1\n")
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "case.py").write_text('"""A test."""\n')
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
    library.cache_clear()
    yield tmp_path
    library.cache_clear()


@pytest.mark.usefixtures("small_library")
def test_library_prose_splits_are_disjoint_modules() -> None:
    prose = LibraryProse(valid=3, test=2)
    texts = {split: prose.read(split).lines for split in SPLITS}
    assert texts["train"][:5] == [texts["train"][0], "", texts["train"][2], "", "More."]
    named = {split: [line for line in lines if line.startswith("Module")] for split, lines in texts.items()}
    assert [len(named[split]) for split in SPLITS] == [7, 3, 2]
    assert sorted(line for lines in named.values() for line in lines) == sorted(f"Module {n}." for n in range(12))
    assert not any("test" in line or "Never" in line for lines in texts.values() for line in lines)
    assert prose.read("valid") == LibraryProse(valid=3, test=2).read("valid")
    assert prose.read("valid") != LibraryProse(valid=3, test=2, seed=1).read("valid")


@pytest.mark.usefixtures("small_library")
def test_requesting_too_many_modules_is_rejected() -> None:
    with pytest.raises(UserError, match="too small") as error:
        LibraryProse(valid=10, test=2).read("train")
    assert error.value.found == "12 modules with docstrings"
    assert LibraryProse().problems() == []


@pytest.mark.slow
def test_standard_library_has_enough_prose() -> None:
    text = LibraryProse().read("train")
    assert text.characters > 500_000


def test_counting_documents_count_in_one_language_each() -> None:
    data = Counting(languages=("fa", "en"), train=6, valid=2, test=2, length=3, below=1000)
    documents = list(data.documents("train"))
    assert len(documents) == 6 and all(len(document) == 3 for document in documents)
    for document, language in zip(documents, ("fa", "en") * 3, strict=True):
        first = next(number for number in range(1000) if spell([number], language)[0] == document[0])
        assert document == spell([first, first + 1, first + 2], language)
    assert list(data.documents("valid")) != list(data.documents("test"))
    for wrong in ({"languages": ("en", "en")}, {"languages": ("xx",)}, {"train": 2000, "below": 1000}):
        with pytest.raises(ValidationError):
            Counting.model_validate(wrong)
