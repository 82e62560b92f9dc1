"""The tracer reports wrong shape comments and accepts correct ones."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from heedful.shapes import check, follow, statements

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
    path = tmp_path / "example.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location("example", path)
    assert spec is not None
    assert spec.loader is not None
    imported = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(imported)
    return path, imported


def observe(tmp_path: Path, source: str, **sizes: tuple[int, ...]) -> dict[int, bool]:
    import torch

    path, loaded_module = module(tmp_path, source)
    x = torch.zeros(2, 3, 5)
    seen = check(path, lambda: (loaded_module.twice(x), list(loaded_module.lazily(x))), sizes)
    lines = {observation.line for observation in seen}
    return {line: all(o.fits for o in seen if o.line == line) for line in lines}


def test_correct_comments_pass_and_all_are_checked(tmp_path: Path) -> None:
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
        ("(B, 2 * T, D)", "(B, 4 * K, D)", 6),  # no size of K makes 6
        ("(B, 2 * T, D)", "(B, K + 7, D)", 6),
    ],
)
def test_wrong_shape_comment_is_reported(tmp_path: Path, right: str, wrong: str, line: int) -> None:
    assert observe(tmp_path, RIGHT.replace("# " + right, "# " + wrong))[line] is False


def test_given_sizes_bind_letters(tmp_path: Path) -> None:
    assert all(observe(tmp_path, RIGHT, B=(2,), T=(3,), D=(5,)).values())
    assert not all(observe(tmp_path, RIGHT, B=(2,), T=(4,), D=(5,)).values())


def test_trace_function_is_removed_after_an_exception(tmp_path: Path) -> None:
    import sys

    path, loaded_module = module(tmp_path, RIGHT)
    with pytest.raises(AttributeError):
        check(path, lambda: loaded_module.twice(None))
    assert sys.gettrace() is None


FOLLOWED = """
import torch

class Block:
    def __init__(self, size):
        self.weight = torch.ones(size, size)

    def forward(self, x, *, shift=None):
        y = (
            x @ self.weight
        )  # (B, T, D)
        for part in y.unbind(1):
            last = part.sum(-1)  # (B,)
        if shift is not None:
            y = y + shift
        pair = [y, y]
        try:
            z = y.missing()
        except AttributeError:
            z, *rest = y.mT, 1
        return y, (z, z)

def steps(x):
    for row in x:
        seen = row[None]
        yield seen

def both(block, x):
    once = block.forward(x)
    total = sum(list(steps(x)))
    again = (lambda t: block.forward(t))(x[:, :2])
    return total
"""


def test_every_executed_line_is_traced_with_shapes(tmp_path: Path) -> None:
    import torch

    path, loaded_module = module(tmp_path, FOLLOWED)
    block, x = loaded_module.Block(5), torch.zeros(2, 3, 5)
    (lines,) = follow(lambda: loaded_module.both(block, x), [path, tmp_path / "other.py"]).values()
    found = {number: [(one.name, one.shape, one.items) for one in line.found] for number, line in lines.items()}
    assert found[8] == [("x", (2, 3, 5), 1), ("x", (2, 2, 5), 1)]  # the parameters of a function
    assert found[11] == [("y", (2, 3, 5), 1), ("y", (2, 2, 5), 1)]  # the last of three lines, which has the comment
    assert lines[11].sizes == {"B": (2,), "T": (3, 2), "D": (5,)}
    assert [lines[number].runs for number in (8, 9, 10, 11)] == [2, 2, 2, 2]
    assert found[13] == [("last", (2,), 1)]
    assert lines[13].runs == 5  # three positions, then two
    assert 15 not in lines  # it did not run
    assert found[16] == [("pair", (2, 3, 5), 2), ("pair", (2, 2, 5), 2)]
    assert found[18] == []  # this line raised
    assert found[20] == [("z", (2, 5, 3), 1), ("z", (2, 5, 2), 1)]
    assert found[21][:3] == [
        ("return[0]", (2, 3, 5), 1),
        ("return[1][0]", (2, 5, 3), 1),
        ("return[1][1]", (2, 5, 3), 1),
    ]
    assert lines[23].runs == 1  # a generator starts once
    assert lines[25].runs == 2
    assert found[25] == [("seen", (1, 3, 5), 1)]
    assert found[32] == [("return", (1, 3, 5), 1)]
    assert not any(number in lines for number in (4, 5, 6))


def test_trace_function_is_removed_after_tracing(tmp_path: Path) -> None:
    import sys

    path, loaded_module = module(tmp_path, FOLLOWED)
    with pytest.raises(AttributeError):
        follow(lambda: loaded_module.both(None, None), [path])
    assert sys.gettrace() is None
