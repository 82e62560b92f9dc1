"""`heedful runs diff` and `runs compare`: every difference and no other, as lines, JSON and a picture."""

from __future__ import annotations

import itertools
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parents[1] / "golden" / "runs"
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def runs(tmp_path: Path) -> tuple[str, str]:
    """Two runs, the second with another learning rate, torch, test data and result."""
    for name in ("a", "b"):
        shutil.copytree(GOLDEN / "tagging-tagger", tmp_path / name)
    changes = {
        "recipe.yaml": ("lr: 0.0", "lr: 1.0"),
        "env.json": ('"torch": "2', '"torch": "3'),
        "checkpoints/step-00000030/manifest.json": ('"test": "10c1', '"test": "20c1'),
    }
    for file, (old, new) in changes.items():
        path = tmp_path / "b" / file
        text = path.read_text()
        assert text.count(old) == 1, file
        path.write_text(text.replace(old, new))
    lines = (tmp_path / "b" / "metrics.jsonl").read_text().splitlines()
    lines = [json.dumps({**json.loads(line), "loss": 7.0}) if '"split": "test"' in line else line for line in lines]
    (tmp_path / "b" / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    return "a", "b"


def test_differences_of_two_runs(runs: tuple[str, str], heedful: Run) -> None:
    code, out, _ = heedful("runs", "diff", *runs, "--json")
    found = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [(one["part"], one["key"]) for one in found] == [
        ("recipe", "train.optimizer.lr"), ("environment", "torch"), ("data", "test"), ("results", "test loss")
    ]  # fmt: skip
    assert found[0]["b"] == found[0]["a"] + 1 and found[3]["b"] == 7.0
    lines = heedful("runs", "diff", *runs)[1].splitlines()
    assert "recipe" in lines and any(line.startswith("  train.optimizer.lr") for line in lines)
    same = heedful("runs", "diff", "a", "a")[1]
    assert same.count("no differences") == 4


def test_runs_side_by_side_with_a_picture(runs: tuple[str, str], heedful: Run, tmp_path: Path) -> None:
    code, out, _ = heedful("runs", "compare", *runs, "--picture", "curves.png")
    heads = [cell.strip() for cell in out.splitlines()[0].split("|")]
    assert code == 0 and heads[1:4] == ["run", "step", "train.optimizer.lr"] and "test f1" in heads
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    records = [json.loads(line) for line in heedful("runs", "compare", *runs, "--json")[1].splitlines()]
    assert [record["run"] for record in records] == ["a", "b"] and records[1]["results"]["test loss"] == 7.0
    assert list(records[0]["settings"]) == ["train.optimizer.lr"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("diff", "a"), "a difference is between two runs"),
        (("compare", "a"), "one run cannot be compared"),
        (("diff", "a", "nosuch"), "this is not a run"),
        (("a", "b"), "heedful runs compare a b"),
        (("a", "--picture", "x.png"), "only compared runs have a picture"),
        (("compare", "a", "b", "--picture", "x.txt"), ".png, .svg or .pdf"),
    ],
)
def test_mistakes(runs: tuple[str, str], words: tuple[str, ...], message: str, heedful: Run) -> None:
    code, _, err = heedful("runs", *words)
    assert code == 2 and message in err


def test_small_settings_are_not_rounded_to_nothing(runs: tuple[str, str], heedful: Run, tmp_path: Path) -> None:
    for name, rate in (("a", "2e-5"), ("b", "3.0e-05")):
        path = tmp_path / name / "recipe.yaml"
        path.write_text(re.sub(r"( lr: ).*", rf"\g<1>{rate}", path.read_text()))
    assert "train.optimizer.lr  2e-05 | 3e-05" in heedful("runs", "diff", *runs)[1]
    assert "| 2e-05 |" in heedful("runs", "compare", *runs)[1]


def test_folder_stands_for_its_runs(runs: tuple[str, str], heedful: Run, tmp_path: Path) -> None:
    below = [json.loads(line)["run"] for line in heedful("runs", "compare", ".", "--json")[1].splitlines()]
    assert below == list(runs)
    (tmp_path / "empty").mkdir()
    code, _, error = heedful("runs", "compare", "empty", "a")
    assert code == 2 and "this is not a run" in error


@pytest.mark.parametrize("words", [("compare",), ("diff",), ()])
def test_numbers_that_are_not_finite_are_null_in_json(
    words: tuple[str, ...], runs: tuple[str, str], heedful: Run, tmp_path: Path
) -> None:
    event = '{"kind": "evaluated", "step": 30, "split": "valid", "loss": NaN, "scores": {"f1": {"value": Infinity}}}\n'
    with (tmp_path / "b" / "metrics.jsonl").open("a") as file:
        file.write(event)

    def refuse(name: str) -> None:
        raise AssertionError(name)

    code, out, _ = heedful("runs", *words, *(runs if words else (".",)), "--json")
    found = [json.loads(line, parse_constant=refuse) for line in out.splitlines()]
    assert code == 0 and found and "null" in out


@pytest.mark.parametrize("verb", ["diff", "compare"])
def test_runs_of_any_two_tasks(verb: str, heedful: Run) -> None:
    every = sorted(GOLDEN.iterdir())
    pairs = [every] if verb == "compare" else list(itertools.pairwise(every))
    for some in pairs:
        code, out, _ = heedful("runs", verb, *map(str, some), "--json")
        records = [json.loads(line) for line in out.splitlines()]
        assert code == 0 and records
        if verb == "compare":
            assert [record["run"] for record in records] == list(map(str, some))
        else:
            assert {"recipe", "results"} <= {record["part"] for record in records}
