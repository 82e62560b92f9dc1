"""The project speaks the field's language: coinages stay out of code, tests, pages and docs."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SUFFIXES = {".py", ".md", ".yaml", ".toml", ".ts", ".svelte", ".html", ".css"}
FOLDERS = ("benchmarks", "docs", "src", "tests", "web/src")
GENERATED = {"static", "__pycache__"}
OLD_NAMES = {
    "CHANGELOG.md",
    "docs/design/readers.md",
    "docs/mutants.md",
    "src/heedful/__init__.py",
    "tests/test_public.py",
}  # where old names stand beside new ones

# What was written once, and what the field says instead.
COINAGES = {
    r"\bby chance\b": "randomly, sampled; of weights: randomly initialized",
    r"\bwhich chance\b": "random seed",
    r"\bg(o|oes|oing|one) on with\b": "continue, generate, resume",
    r"\bso many\b": "the number of",
    r"\bwhoever\b": "the user, the caller",
    r"\bsomebody\b": "the user, another process",
    r"\b(is|are) not right\b": "invalid value for",
    r"\bbeg[aiu]ns? anew\b": "starts over",
    r"\bat the (most|least)\b": "at most, at least",
    r"\bbeyond count\b": "inf",
    r"\bsmall machines\b": "little-endian",
    r"\bcounts? aloud\b": "writes a heartbeat",
    r"\bmore daring\b": "higher is more random",
    r"\btells? hidden\b": "predicts masked",
    r"\bhidden words?\b": "masked word, masked token",
    r"\bforet(ells?|old)\b": "predicts",
    r"\bthe less the better\b": "lower is better",
    r"\bspeaks? for\b": "predictor of",
    r"\bsayings?\b": "prediction",
    r"\bLabeller\b": "TextClassifier",
    r"\bRater\b": "TextRegressor",
    r"(?-i:\bMarker\b)": "TokenTagger",
    r"\bResponder\b": "QuestionAnswerer",
    r"\bPainter\b": "ImageAutoencoder",
    r"(?-i:\bJudge\b)": "TreeClassifier",
    r"\bChooser\b": "MultipleChoiceAnswerer",
    r"\bvigil\b": "heartbeat",
    r"\bcrew\b": "thread pool",
    r"\bpaintings?\b": "autoencoder plots",
    r"\bwordends\b": "gpt1_bpe",
    r"\bgone on\b": "continued",
    r"\bfor good\b": "permanently",
    r"\baloud\b": "explicitly",
    r"\bby luck\b": "sampled",
    r"(?-i:\bSpeaker\b)": "predictor",  # a dialogue has speakers
    r"\bafresh\b": "again, from scratch",
    r"\black(s|ing)\b": "is missing, has no",
    r"\bmerit\b": "score",
    r"\b(takes?|taken|took) up\b": "resume",
    r"\bpassed over\b": "skipped",
    r"\bmay look\b": "may attend to",
    r"\blooks? back\b|\blook_back\b": "attends to earlier positions",
    r"\btold_from\b": "lens_taps",
    r"\bHappening\b": "event",
    r"\bcut into (tokens|words|pieces)\b": "tokenized",
    r"\btakes? a state along\b|\bstate to take along\b": "carry state",
    r"(?-i:\bBytePairs\b)": "Gpt2Tokenizer",
    r"(?-i:\bRobertaPairs\b)": "RobertaTokenizer",
    r"(?-i:\bTextWords\b)": "TextVocab",
    r"(?-i:\bTextReader\b)": "BidirectionalLanguageModel",
}
# Also forbidden in the package itself.
IN_SOURCE = {
    r"\btold\b": "the record, the message, the description",
    r"\b(is|are) judged\b": "evaluated",
    r"\bhow many numbers\b": "the number of parameters, the size",
}
# Also forbidden in tests and benchmarks; elements of the page may have such a name.
IN_TESTS = {
    r"(?<![\"-])\btold\b": "message, logged, reported, printed",
    r"def \w*_told\b|def \w*told_": "reported, noted",
}


@cache
def texts() -> dict[str, str]:
    """The text of every file with words in it, by path."""
    skipped = {*OLD_NAMES, Path(__file__).relative_to(ROOT).as_posix()}
    paths = [*ROOT.glob("*"), *ROOT.glob("web/*"), *(path for name in FOLDERS for path in (ROOT / name).rglob("*"))]
    return {
        path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
        for path in paths
        if path.suffix in SUFFIXES
        and path.relative_to(ROOT).as_posix() not in skipped
        and not GENERATED & {*path.relative_to(ROOT).parts}
        and path.is_file()
    }


def starts_words(coinage: str) -> bool:
    """Whether each alternative of a pattern starts where a word does."""
    alternatives = re.sub(r"\(.*?\)", "", coinage).split("|")
    return all(one.startswith(r"\b") for one in alternatives)


@cache
def suspects() -> dict[str, str]:
    """The texts in which one of the patterns that start a word matches: one search for all of them."""
    tails = "|".join(one.removeprefix(r"\b") for one in (*COINAGES, *IN_SOURCE, *IN_TESTS) if starts_words(one))
    pattern = re.compile(rf"\b(?:{tails})", re.IGNORECASE)
    return {path: text for path, text in texts().items() if pattern.search(text)}


def uses(coinage: str, below: str = "") -> list[str]:
    """The lines that use a coinage, in files whose path starts with `below`."""
    pattern = re.compile(coinage, re.IGNORECASE)
    return [
        f"{path}:{number}: {line.strip()}"
        for path, text in (suspects() if starts_words(coinage) else texts()).items()
        if path.startswith(below) and pattern.search(text)
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]


def test_one_search_finds_what_each_pattern_finds() -> None:
    joined = [one for one in COINAGES if starts_words(one)]
    assert len(joined) > 30 and r"(?-i:\bJudge\b)" not in joined
    text = "It is drawn by chance; many tests look back, and g(o) lacks it"
    tails = "|".join(one.removeprefix(r"\b") for one in joined)
    one = {found.start() for found in re.finditer(rf"\b(?:{tails})", text, re.IGNORECASE)}
    assert one == {found.start() for each in joined for found in re.finditer(each, text, re.IGNORECASE)}
    assert len(one) == 3


@pytest.mark.parametrize("coinage", COINAGES)
def test_coinages_are_not_used(coinage: str) -> None:
    found = uses(coinage)
    assert not found, f"write {COINAGES[coinage]!r} instead:\n" + "\n".join(found)


@pytest.mark.parametrize("coinage", IN_SOURCE)
def test_coinages_are_not_used_in_the_package(coinage: str) -> None:
    found = uses(coinage, "src/")
    assert not found, f"write {IN_SOURCE[coinage]!r} instead:\n" + "\n".join(found)


@pytest.mark.parametrize("coinage", IN_TESTS)
def test_coinages_are_not_used_in_tests_and_benchmarks(coinage: str) -> None:
    found = uses(coinage, "tests/") + uses(coinage, "benchmarks/")
    assert not found, f"write {IN_TESTS[coinage]!r} instead:\n" + "\n".join(found)
