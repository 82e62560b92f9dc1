"""The tracer finds wrong shape comments and passes right ones."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from heedful.shapes import check, statements

RIGHT = """
import torch

def twice(x):
    b, t, d = x.shape
    y = torch.cat([x, x], 1)  # (B, 2 * T, D)
    left, right = y.chunk(2, 1)  # (B, T, D)
    z = [part for part in (left, right)][0].sum(
        -1
    )  # (B, T)
    for step in range(2):
        z = z[:, :, None].squeeze(2)  # (B, T): unchanged
    count = 3
    w = z.new_zeros(count, 1)  # (count, 1)
    return left.flatten(1)  # (B, T * D)

def lazily(x):
    first = x[0]  # (T, D)
    yield first
    second = x.mT  # (B, D, T)
    yield second
"""


def module(tmp_path: Path, source: str) -> tuple[Path, Any]:
    path = tmp_path / "planted.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location("planted", path)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return path, loaded


def observe(tmp_path: Path, source: str, **sizes: tuple[int, ...]) -> dict[int, bool]:
    import torch

    path, planted = module(tmp_path, source)
    x = torch.zeros(2, 3, 5)
    seen = check(path, lambda: (planted.twice(x), list(planted.lazily(x))), sizes)
    lines = {observation.line for observation in seen}
    return {line: all(o.fits for o in seen if o.line == line) for line in lines}


def test_right_comments_pass_and_every_one_is_reached(tmp_path: Path) -> None:
    seen = observe(tmp_path, RIGHT)
    assert seen == dict.fromkeys([6, 7, 10, 12, 14, 15, 18, 20], True)
    path, _ = module(tmp_path, RIGHT)
    assert sorted(s.last for group in statements(path).values() for s in group) == sorted(seen)


@pytest.mark.parametrize(
    ("right", "wrong", "line"),
    [
        ("(B, 2 * T, D)", "(B, T, D)", 7),  # T is then twice what the next line finds
        ("(B, T): unchanged", "(T, B): swapped", 12),
        ("(count, 1)", "(count, 2)", 14),
        ("(count, 1)", "(1, count)", 14),
        ("(B, T * D)", "(B, T + D)", 15),
        ("(B, T * D)", "(B, T, D)", 15),
        ("(B, D, T)", "(B, T, D)", 20),
    ],
)
def test_a_planted_wrong_comment_is_caught(tmp_path: Path, right: str, wrong: str, line: int) -> None:
    assert observe(tmp_path, RIGHT.replace("# " + right, "# " + wrong))[line] is False


def test_sizes_pin_the_letters(tmp_path: Path) -> None:
    assert all(observe(tmp_path, RIGHT, B=(2,), T=(3,), D=(5,)).values())
    assert not all(observe(tmp_path, RIGHT, B=(2,), T=(4,), D=(5,)).values())


def test_an_exception_leaves_no_trace_function_behind(tmp_path: Path) -> None:
    import sys

    path, planted = module(tmp_path, RIGHT)
    with pytest.raises(AttributeError):
        check(path, lambda: planted.twice(None))
    assert sys.gettrace() is None
