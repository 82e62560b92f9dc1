"""JSON within limits: depth, numbers, and the one error."""

from __future__ import annotations

import json
import math

import pytest

from heedful.files.json import MAX_DEPTH, read_json


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "nul", "NaN", "[Infinity]", "[" * 100_000, '{"a":' * 100_000 + "1" + "}" * 100_000,
        "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), "9" * 400, "9" * 5000, "-" + "9" * 309, "1e400", "[-1E+999]",
    ],
    ids=lambda text: text[:20],
)  # fmt: skip
def test_json_beyond_a_limit_is_a_decode_error(text: str) -> None:
    with pytest.raises(json.JSONDecodeError):
        read_json(text)


@pytest.mark.parametrize(
    "text", ["null", "0", "-1.5e-300", '"' + "9" * 500 + '"', '"1e999"', '{"a": [1, {"b": "[[["}]}', "1" + "0" * 30]
)
def test_json_within_the_limits_is_parsed(text: str) -> None:
    assert read_json(text) == json.loads(text)


def test_nesting_limit_is_exact() -> None:
    text = "[" * MAX_DEPTH + "]" * MAX_DEPTH
    assert read_json(text) == json.loads(text)
    with pytest.raises(json.JSONDecodeError, match="nested more than 2 levels deep"):
        read_json("[[[]]]", max_depth=2)
    assert read_json("[[1]]", max_depth=2) == [[1]]


def test_nan_can_be_allowed() -> None:
    assert math.isnan(read_json("NaN", constant=float))
