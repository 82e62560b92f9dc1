"""The command `doctor`: code of a user's own, folders, mistakes, and exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import GPT2Config, GPT2LMHeadModel

from heedful.runs.fit import fit
from heedful.runs.recipe import load_recipe

Run = Callable[..., tuple[int, str, str]]
CODE = """
import json, torch
from torch import nn

class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.out = nn.Embedding(20, 8), nn.Linear(8, 3)

    def forward(self, tokens, mask):
        x = self.embed(tokens)
        return self.out((x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True).clamp(min=1))

class Mean(Bag):
    def forward(self, tokens, mask):
        return self.out(self.embed(tokens).mean(1))

def three():
    return 3

class Refuses(Bag):
    def forward(self, tokens):
        raise KeyError()

def broken():
    raise ValueError("no")

def leaves():
    raise SystemExit(5)

def two(width, depth):
    return Bag()

class Prints(Bag):
    def forward(self, tokens, mask):
        print("shape", tokens.shape)
        return super().forward(tokens, mask)

class Fussy(Bag):
    def forward(self, tokens, mask):
        if len(tokens) > 3:
            raise RuntimeError("too many rows")
        return super().forward(tokens, mask)

def reads():
    return json.loads("")
"""


def test_exit_code_says_whether_a_check_failed(heedful: Run, tmp_path: Path) -> None:
    (tmp_path / "bags.py").write_text(CODE)
    code, out, err = heedful("doctor", f"{tmp_path}/bags.py:Bag")
    assert (code, err) == (0, "") and "0 failed" in out
    code, out, _ = heedful("doctor", f"{tmp_path}/bags.py:Mean", "--only", "padding-right", "--json")
    found = json.loads(out)
    assert code == 1 and [one["verdict"] for one in found["checks"]] == ["failed"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("bags.py:Bagg",), "expected: one of Bag, Mean"),
        (("bags.py:three",), "a torch.nn.Module"),
        (("bags.py:Refuses",), "cannot be called"),
        (("bags.py:broken",), "ValueError: no (bags.py, line 26)"),
        (("bags.py:reads",), "JSONDecodeError: Expecting value: line 1 column 1 (char 0) (bags.py, line 46)"),
        (("nomodule:f",), "No module named 'nomodule'\n"),
        (("bags.py:leaves",), "sys.exit(5) (bags.py, line 29)"),
        (("bags.py:two",), "missing 2 required positional arguments"),
        (("exits.py:f",), "sys.exit('now') (exits.py, line 1)"),
        (("bags.py:Bag", "--in", "transformers"), "no folder of Hugging Face"),
        (("bags.py:Bag", "shape=[0]"), "greater than or equal to 1"),
        (("bags.py:Bag", "output=7"), "there is no output 7"),
        (("bags.py:",), "file.py:function"),
        (("none.py:f",), "no such file"),
        (("no_such_package:f",), "No module named"),
        (("nothing",), "no such folder"),
        (("bags.py:Bag", "maskk=x"), "did you mean mask?"),
        (("bags.py:Bag", "mask=x"), "has no argument x"),
        (("bags.py:Bag", "vocab=100"), "cannot be called"),
        (("bags.py:Bag", "--only", "padding"), "did you mean padding-"),
        (("bags.py:Bag", "--example", "none.safetensors"), "no such file"),
    ],
)
def test_mistakes_are_reported(
    words: tuple[str, ...], message: str, heedful: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bags.py").write_text(CODE)
    Path("exits.py").write_text("raise SystemExit('now')")
    code, out, err = heedful("doctor", *words)
    assert (code, out) == (2, "") and message in err


def test_what_the_model_prints_is_not_in_the_json(heedful: Run, tmp_path: Path) -> None:
    (tmp_path / "bags.py").write_text(CODE)
    code, out, err = heedful("doctor", f"{tmp_path}/bags.py:Prints", "--only", "batch", "--json")
    assert code == 0 and "shape torch.Size" in err
    assert [one["check"] for one in json.loads(out)["checks"]] == ["batch"]


def test_error_of_the_model_is_reported_with_its_line_and_the_smallest_input(heedful: Run, tmp_path: Path) -> None:
    (tmp_path / "bags.py").write_text(CODE)
    code, out, _ = heedful("doctor", f"{tmp_path}/bags.py:Fussy")
    assert code == 1 and "the model raised RuntimeError: too many rows (bags.py, line 42)" in out
    smallest = next(line for line in out.splitlines() if "smallest input" in line)
    assert smallest.count("[") == 4 and smallest.count(",") == 3


def test_folders_of_runs_and_of_transformers(heedful: Run, tmp_path: Path) -> None:
    small = ["data.train=200", "data.valid=10", "data.test=10", "tokenizer.vocab=90", "model.width=16", "model.heads=2"]
    fit(load_recipe("numbers", [*small, "model.hidden=32", "train.budget.steps=2"]), tmp_path / "run")
    code, out, err = heedful("doctor", tmp_path / "run")
    assert (code, err) == (0, "") and "passed          tokenizer" in out and "varying source" in out
    sizes = GPT2Config(vocab_size=41, n_embd=16, n_layer=2, n_head=2, n_positions=64, bos_token_id=0, eos_token_id=0)
    GPT2LMHeadModel(sizes).save_pretrained(tmp_path / "gpt2")
    code, out, _ = heedful("doctor", tmp_path / "gpt2", "--in", "transformers", "--only", "padding-left")
    assert code == 1 and "GPT2LMHeadModel(input_ids, attention_mask=real)" in out
    code, _, err = heedful("doctor", tmp_path / "run", "causal=true")
    assert code == 2 and "called by its role" in err
    settings = json.loads((tmp_path / "gpt2" / "config.json").read_text())
    (tmp_path / "gpt2" / "config.json").write_text(json.dumps(settings | {"auto_map": {"AutoModel": "code.Model"}}))
    code, _, err = heedful("doctor", tmp_path / "gpt2", "--in", "transformers")
    assert code == 2 and "code from its folder" in err
