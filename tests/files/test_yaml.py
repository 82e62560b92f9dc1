"""YAML for settings: scalars, positions, round trip and refused features."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heedful.errors import UserError
from heedful.files.yaml import MAX_FILE, Mark, load_yaml, parse_scalar, read_yaml, write_yaml


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("1E5", 100000.0),
        ("-2.5", -2.5),
        (".5", 0.5),
        ("3.", 3.0),
        ("20_000", 20000),
        ("0", 0),
        ("-7", -7),
        ("+7", 7),
        ("true", True),
        ("false", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("-.inf", float("-inf")),
        # A YAML 1.1 parser reads all of these as other types.
        ("no", "no"),
        ("yes", "yes"),
        ("on", "on"),
        ("True", "True"),
        ("007", "007"),
        ("0x10", "0x10"),
        ("12:30:45", "12:30:45"),
        ("2016-01-01", "2016-01-01"),
        ("1__0", "1__0"),
        ("1.2.3", "1.2.3"),
        (".", "."),
        ("e5", "e5"),
        ("-", "-"),
        ("9" * 5000, "9" * 5000),
    ],
)
def test_unquoted_scalars(text: str, value: object) -> None:
    read = parse_scalar(text)
    assert read == value
    assert type(read) is type(value)


def test_quoted_scalars_are_text() -> None:
    assert read_yaml("""{a: "1", b: 'true', c: 1}""", "x")[0] == {"a": "1", "b": "true", "c": 1}


def test_marks_are_positions_of_keys_and_items() -> None:
    _, marks = read_yaml("a:\n  b: 1\n  c: [5, 6]\n", "x")
    assert marks[("a", "b")] == Mark(2, 3)
    assert marks[("a", "c", 1)] == Mark(3, 10)


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(PLAIN)
def test_yaml_round_trip(value: Any) -> None:
    read, _ = read_yaml(write_yaml(value), "x")
    assert repr(read) == repr(value)  # repr distinguishes 1, 1.0 and True


@pytest.mark.parametrize(
    ("text", "where", "message"),
    [
        ("a: &x [1]\nb: *x\n", "r.yaml:1:4", "anchor"),
        ("a: *x\n", "r.yaml:1:4", "alias"),
        ("&k a: 1\n", "r.yaml:1:1", "anchor"),
        ("a: !!python/object:os.system 1\n", "r.yaml:1:4", "tag"),
        ("a: 1\nb: 2\na: 3\n", "r.yaml:3:1", "also on line 1"),
        ("a: 1\n---\nb: 2\n", "r.yaml:2:1", "second YAML document"),
        ("a: [1, 2\nb: 3\n", "r.yaml:2:2", "not valid YAML"),
        ("a:\n\t- b\n", "r.yaml:2:1", "not valid YAML"),
        ("[a, b]: 1\n", "r.yaml:1:1", "a word as the key"),
        ("a: " + "[" * 100_000, "r.yaml:1:43", "levels of nesting"),
        ('a: "\\ud800"\n', "r.yaml:1:", "YAML"),
        ("a: \x00\n", "r.yaml", "not valid YAML"),
    ],
)
def test_rejected_yaml_is_reported_with_its_position(text: str, where: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        read_yaml(text, "r.yaml")
    assert (caught.value.where or "").startswith(where)
    assert message in str(caught.value)


def test_missing_file_or_a_directory_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        load_yaml(tmp_path / "none.yaml")
    with pytest.raises(UserError, match="a directory"):
        load_yaml(tmp_path)
    with pytest.raises(UserError, match="no such file"):
        load_yaml("a" * 5000)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "empty"),
        (b"# only a comment\n", "empty"),
        (b"- 1\n- 2\n", "has no settings"),
        (b"a: 1\nb: \xff\n", "not UTF-8"),
        ("a: 1\n".encode("utf-16"), "not UTF-8"),
        (b"a" * (MAX_FILE + 1), "too large"),
    ],
)
def test_file_without_settings_is_reported(tmp_path: Path, raw: bytes, message: str) -> None:
    path = tmp_path / "r.yaml"
    path.write_bytes(raw)
    with pytest.raises(UserError, match=message) as caught:
        load_yaml(path)
    assert (caught.value.where or "").startswith(str(path))


def test_invalid_byte_is_reported_by_its_line(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_bytes(b"a: 1\nb: \xff\n")
    with pytest.raises(UserError) as caught:
        load_yaml(path)
    assert caught.value.where == f"{path}:2"
    assert "0xff at offset 8" in str(caught.value)


def test_byte_order_mark_and_windows_line_ends_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: no\r\nb: 2\r\n")
    assert load_yaml(path)[0] == {"a": "no", "b": 2}


def test_full_size_file_is_read_in_bounded_time() -> None:
    text = "".join(f"k{i}: {i}\n" for i in range(60_000))
    begin = time.process_time()
    data, _ = read_yaml(text, "x")
    assert len(data) == 60_000
    assert time.process_time() - begin < 20
