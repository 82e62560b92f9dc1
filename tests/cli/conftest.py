"""Tests here run the command line in their own process."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from heedful.cli import app as cli


@pytest.fixture
def heedful(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., tuple[int, str, str]]:
    """Run the command line in an empty folder; returns exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)

    def call(*words: object, stdin: bytes = b"") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["heedful", *map(str, words)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        with pytest.raises(SystemExit) as exit_info:
            cli.main()
        output = capsys.readouterr()
        assert "Traceback" not in output.err
        code = exit_info.value.code
        return (code if isinstance(code, int) else 0), output.out, output.err

    return call
