"""The project speaks the field's language: coinages stay out of code, tests, pages and docs."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SUFFIXES = {".py", ".md", ".yaml", ".toml", ".ts", ".svelte", ".html", ".css"}
OLD_NAMES = {
    "CHANGELOG.md",
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
    r"\bforetells?\b": "predicts",
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
}


def files() -> list[Path]:
    """Every file with words in it."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True)
    paths = [Path(name) for name in listed.stdout.split("\0")]
    skipped = {*map(Path, OLD_NAMES), Path(__file__).relative_to(ROOT)}
    return [path for path in paths if path.suffix in SUFFIXES and path not in skipped and (ROOT / path).is_file()]


@pytest.mark.parametrize("coinage", COINAGES)
def test_coinages_are_not_used(coinage: str) -> None:
    pattern = re.compile(coinage, re.IGNORECASE)
    found = [
        f"{path}:{number}: {line.strip()}"
        for path in files()
        for number, line in enumerate((ROOT / path).read_text(encoding="utf-8").splitlines(), 1)
        if pattern.search(line)
    ]
    assert not found, f"write {COINAGES[coinage]!r} instead:\n" + "\n".join(found)
