"""Hostile words and files at the entry points of the command line: a result, or one message; no traceback, no hang."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import heedful as library
from data.test_table_fuzz import broken
from heedful.contracts.settings import CallConfig
from heedful.errors import UserError
from heedful.extras.tuning.outcomes import Metric
from heedful.extras.tuning.space import read_space
from heedful.extras.tuning.study import Study
from heedful.hub.remote import REPOSITORY

Run = Callable[..., tuple[int, str, str]]
Attempt = Callable[[random.Random, int, Run], bool]
RUNS = Path(__file__).parents[1] / "golden" / "runs"
CLASSES = RUNS / "text_classification-conv_classifier"
TABLES = ("translate", "classify", "label", "tag", "answer", "table", "language-model")
TEXTS = (
    "",
    " ",
    "\x00",
    "\ud800",
    "é\u0301",
    "a" * 5000,
    "‮",
    "👩‍👩‍👧",
    "<script>",
    "[MASK]",
    "\n",
    "../../etc/passwd",
    "1e999",
)
VALUES = (
    "", "null", "true", "-1", "0", "1", "2.5", "1e999", ".nan", "9" * 30, "[3,32,32]", "[]", "[[1]]", "{a: 1}", "x",
    "'", "mask", "tokens", "3,32", "!!python/object:os.system", "&a [*a]", "\x07", "é", "real", "padding", "right",
    "[-3]", "[100000000,100000000]",
)  # fmt: skip
MODEL = """
import torch
from torch import nn

class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.out = nn.Embedding(20, 8), nn.Linear(8, 3)

    def forward(self, tokens, mask=None, past=None, pos=None):
        return self.out(self.embed(tokens))
"""


def message(found: tuple[int, str, str], *named: str) -> bool:
    """Whether a command succeeded; a refusal is one message, which names one of these."""
    code, _, err = found
    assert code in (0, 1, 2), err
    if code == 2:
        assert ("error: " in err or "Usage: " in err) and len(err) < 6000
        assert not named or any(name in err for name in named), err
    return code != 2


def refused(error: UserError, *named: str) -> bool:
    """False; a refusal is one message, which names one of these."""
    assert len(str(error)) < 6000 and (not named or any(name in str(error) for name in named)), error
    return False


def damaged(chance: random.Random, path: Path) -> None:
    """Change, cut or empty a file."""
    data = bytearray(path.read_bytes())
    place = chance.randrange(max(1, len(data)))
    match chance.randrange(4):
        case 0:
            data = data[:place]
        case 1:
            data[place : place + 1] = bytes([chance.randrange(256)])
        case 2:
            data[place:place] = chance.choice([b"\x00", b"[" * 3000, b"NaN", b"{", b'"', b"9" * 400, b"\xff"])
        case _:
            data = bytearray(chance.choice([b"", b"{}", b"[]", b"null", b"\x80\x04.", b"PK\3\4"]))
    path.write_bytes(bytes(data))


# ------------------------------------------------------------------ the entry points
REFUSED = ("pull and push", "doctor of a folder", "export")  # each attempt: no such repository, a damaged file


def init(chance: random.Random, seed: int, heedful: Run) -> bool:
    name, data = broken(seed)
    Path(name).write_bytes(data)
    more = chance.choice([(), (), ("data.encoding=cp1252",), (f"data.separator={chance.choice(VALUES)}",)])
    made = message(
        heedful("init", chance.choice(TABLES), f"r{seed}.yaml", "--data", name, *more), name, "data", "column"
    )
    if made:
        message(heedful("check", f"r{seed}.yaml"), name, "data", "r")
    return made


def predict(chance: random.Random, seed: int, heedful: Run) -> bool:
    name, data = broken(seed)
    Path(name).write_bytes(data)
    more = chance.choice([(), ("-o", f"o{seed}.csv"), ("--field", chance.choice(["text", "x", "", "\x00"]))])
    return message(heedful("predict", CLASSES, name, *more), name, "field", "data.", "-o")


def pipeline(chance: random.Random, seed: int, heedful: Run) -> bool:
    def value(depth: int = 0) -> Any:
        some: list[Any] = [chance.choice(TEXTS), chance.choice(TEXTS), None, 3, float("nan"), b"a", object(), True]
        if depth < 2:
            some += [[value(depth + 1) for _ in range(chance.randrange(4))], {"text": value(depth + 1)}, ("a", "b")]
        return chance.choice(some)

    classify = library.pipeline("text_classification", CLASSES, device="cpu")
    try:
        found = classify(value())
    except UserError as error:
        return refused(error, "invalid input", "text")
    json.dumps(found, allow_nan=False)
    return True


def tune(chance: random.Random, seed: int, heedful: Run) -> bool:
    keys = ("train.seed", "model.layers", "train.optimizer.lr", "model", "", "train.sed", "data.root")
    ends = (*VALUES, "0", "1", "1e-5", "0.5", "1e308", "inf", "-2")
    word = f"{chance.choice(keys)}={chance.choice(ends)}{chance.choice(['..', ',', ':', '..1..'])}{chance.choice(ends)}"
    try:
        space = read_space(
            chance.choice([["numbers", word], ["numbers", "numbers-rnn", word], [word], ["nowhere", word]])
        )
        study = Study(Path("study"), space, Metric("loss"), "grid", None, 0, False)
    except UserError as error:
        return refused(error)
    study.folder.mkdir(exist_ok=True)
    study.open()
    damaged(chance, study.log)
    again = Study(Path("study"), space, Metric("loss"), "grid", None, 0, False)
    try:
        again.open()
    except UserError as error:
        return refused(error, "study")
    finally:
        study.log.unlink()
    return True


def doctor(chance: random.Random, seed: int, heedful: Run) -> bool:
    Path("bag.py").write_text(MODEL)
    keys = (*CallConfig.model_fields, "maks")
    words = [f"{chance.choice(keys)}={chance.choice(VALUES)}" for _ in range(chance.randint(0, 2))]
    name = chance.choice(
        ["bag.py:Bag", "bag.py:Bag", "bag.py:nn", "bag.py:torch", ":", "bag.py:__doc__", "bag.py:Bag.x"]
    )
    return message(heedful("doctor", name, *words, "--only", chance.choice(["batch", "padding-right", "batchh"])))


def doctor_of_a_damaged_folder(chance: random.Random, seed: int, heedful: Run) -> bool:
    damaged(chance, copied(chance, seed))
    return message(heedful("doctor", f"run{seed}", "--only", "batch"), f"run{seed}")


def export(chance: random.Random, seed: int, heedful: Run) -> bool:
    damaged(chance, copied(chance, seed))
    to = chance.choice(["onnx", "onnx", "torch", "hf", "\x00", "ctranslate2"])
    done = message(heedful("export", f"run{seed}", f"out{seed}", "--to", to))
    assert done or not Path(f"out{seed}").exists()
    return done


def copied(chance: random.Random, seed: int) -> Path:
    """A file of a copy of the run that is read when its model is loaded."""
    shutil.copytree(CLASSES, f"run{seed}")
    return chance.choice(sorted(path for path in Path(f"run{seed}/model").rglob("*") if path.is_file()))


def repository(chance: random.Random, seed: int, heedful: Run) -> bool:
    pieces = ("..", "/", "a", "org", "\\", "%2e", "@", ":", "http://", "\x00", " ", "é", "-", "a" * 200)
    name = "".join(chance.choice(pieces) for _ in range(chance.randint(1, 5)))
    name += "/.." if REPOSITORY.fullmatch(name) else ""  # never one that would be asked for
    command = chance.choice([("pull", name, "there"), ("push", CLASSES, name)])
    assert not message(heedful(*command))
    return False


ENTRIES: dict[str, tuple[Attempt, int]] = {  # with the number of attempts in `make test`
    "init": (init, 25), "predict": (predict, 15), "pipeline": (pipeline, 40), "tune": (tune, 40),
    "doctor": (doctor, 40), "doctor of a folder": (doctor_of_a_damaged_folder, 15), "export": (export, 10),
    "pull and push": (repository, 40),
}  # fmt: skip


@pytest.mark.parametrize(
    ("entry", "first", "count"),
    [
        *((name, 0, count) for name, (_, count) in ENTRIES.items()),
        *(pytest.param(name, 1000, 20 * count, marks=pytest.mark.slow) for name, (_, count) in ENTRIES.items()),
    ],
)
def test_hostile_input_gives_a_result_or_one_message(entry: str, first: int, count: int, heedful: Run) -> None:
    attempt = ENTRIES[entry][0]
    results = [attempt(random.Random(f"{entry} {seed}"), seed, heedful) for seed in range(first, first + count)]
    assert not all(results) and any(results) == (entry not in REFUSED)


def test_a_traceback_would_be_noticed(heedful: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heedful.cli.doctor.doctor", lambda *words, **more: {}["a bug"])
    with pytest.raises((AssertionError, KeyError)):
        doctor(random.Random(0), 0, heedful)
