"""The command `heedful explore`: the page, a saved file, and invalid usage."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from heedful.cli.app import app
from heedful.cli.explore import explore_command
from heedful.errors import UserError
from patience import LONG

Run = Callable[[str], Path]


def failing(*words: str) -> UserError:
    """The error of a command that is wrong."""
    found = CliRunner().invoke(app, ["explore", *words]).exception
    assert isinstance(found, UserError), found
    return found


@contextmanager
def explorer(*words: str, **environment: str) -> Iterator[tuple[subprocess.Popen[str], str, str]]:
    """A running command, its address, and what it said before."""
    with subprocess.Popen(
        [sys.executable, "-m", "heedful", "explore", *words, "--no-browser"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    ) as process:
        said = ""
        try:
            assert process.stdout is not None
            for line in process.stdout:
                said += line
                if found := re.search(r"http://\S+", line):
                    yield process, found[0], said
                    break
            else:
                pytest.fail(f"it said {said!r} and {process.stderr and process.stderr.read()!r}")
        finally:
            process.kill()


def test_page_is_served_at_a_view_until_ctrl_c(run: Run) -> None:
    words = ["--view", "steps", "--set", "text=Return the", "--host", "127.0.0.2"]
    with explorer(str(run("gpt")), "--port", "0", *words) as (process, url, said):
        assert "token" not in said  # still this machine alone
        page, _, state = url.partition("#")
        assert page.startswith("http://127.0.0.2:")
        assert state == "view=steps&model=gpt&text=Return+the"
        with urllib.request.urlopen(page) as answer:
            assert b"<title>Heedful</title>" in answer.read()
        with urllib.request.urlopen(page + "api/about") as answer:
            assert b'"gpt"' in answer.read()
        process.send_signal(signal.SIGINT)
        assert process.wait(LONG) in (0, 130)
        assert process.stderr is not None and "Traceback" not in process.stderr.read()


def test_another_address_requires_a_token(run: Run) -> None:
    with explorer(str(run("gpt")), "--port", "0", "--host", "0.0.0.0") as (_, url, said):
        (token,) = re.findall(r"^token +(\S+)$", said, re.MULTILINE)
        assert len(token) >= 40
        assert token not in url
        port = url.rstrip("/").rpartition(":")[2]
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/api/about")
        assert refused.value.code == 401
        proof = {"Authorization": f"Bearer {token}"}
        asked = urllib.request.Request(f"http://127.0.0.1:{port}/api/about", headers=proof)
        with urllib.request.urlopen(asked) as answer:
            assert b'"gpt"' in answer.read()


@pytest.mark.slow
def test_token_comes_from_the_environment(run: Run) -> None:
    with explorer(str(run("gpt")), "--port", "0", "--host", "0.0.0.0", HEEDFUL_TOKEN="a" * 20) as (_, _, said):
        assert "aaaa" not in said
    with explorer(str(run("gpt")), "--port", "0", "--host", "0.0.0.0", HEEDFUL_TOKEN="") as (_, _, said):
        assert re.search(r"^token +\S{40,}$", said, re.MULTILINE), "one that is empty is none"


@pytest.mark.slow
def test_port_in_use_is_an_error_but_the_default_port_may_change(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        error = failing(str(run("gpt")), "--port", port, "--no-browser")
        assert f"port {port} is in use" in error.message
        assert "--port 0" in (error.todo or "")
    with explorer(str(run("gpt"))) as (_, first, _), explorer(str(run("gpt"))) as (_, second, _):
        assert first != second


def test_view_is_written_to_a_file(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "heads.html"
    state = ["--view", "heads", "--set", "text=Return the", "--set", "layer=1"]
    result = CliRunner().invoke(app, ["explore", str(run("gpt")), "--out", str(out), *state])
    assert result.exit_code == 0, result.output
    page = out.read_text(encoding="utf-8")
    assert '"text": "Return the"' in page
    assert "default-src 'none'" in page
    assert list(tmp_path.iterdir()) == [out]


def test_run_without_a_checkpoint_can_be_saved(run: Run, tmp_path: Path) -> None:
    prefix_of, out = tmp_path / "begun", tmp_path / "run.html"
    prefix_of.mkdir()
    for name in ("recipe.yaml", "metrics.jsonl"):
        (prefix_of / name).write_bytes((run("gpt") / name).read_bytes())
    result = CliRunner().invoke(app, ["explore", str(prefix_of), "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert '"view": "run"' in out.read_text(encoding="utf-8")


def test_invalid_usage_is_reported(run: Run, tmp_path: Path) -> None:
    here = str(run("gpt"))
    assert "no such folder" in failing(str(tmp_path / "nowhere")).message
    (tmp_path / "file").touch()
    assert "this is a file" in failing(str(tmp_path / "file")).message
    twice = failing(here, here)
    assert "given twice" in twice.message and twice.where == here
    assert "ends in .html" in (failing(here, "--out", str(tmp_path / "x.png")).expected or "")
    assert "does not fit" in failing(here, "--view", "fill", "--no-browser").message
    wrong = failing(here, "--out", str(tmp_path / "x.html"), "--view", "fill")
    assert "does not fit" in wrong.message
    assert "heads" in (wrong.expected or "")
    assert "no such view" in failing(here, "--out", str(tmp_path / "x.html"), "--view", "head").message
    for setting, said in (
        ("layer=abc", "--set layer: 'abc' is not an integer"),
        ("layer=99", "--set layer: there is no such layer\n  found:    99\n  expected: 0 to 1"),
        ("head=4", "--set head: there is no such head\n  found:    4\n  expected: 0 to 3"),
        ("token=500", "--set token: there is no such token"),
        ("model=nope", "model: this model is not open\n  found:    'nope'\n  expected: gpt"),
    ):
        assert str(failing(here, "--out", str(tmp_path / "x.html"), "--view", "steps", "--set", setting)).startswith(
            said
        )
    assert "KEY=VALUE" in failing(here, "--out", str(tmp_path / "x.html"), "--set", "text").message
    assert "too short" in _with_token(here)
    assert not (tmp_path / "x.html").exists()


def _with_token(folder: str) -> str:
    found = CliRunner().invoke(app, ["explore", folder, "--host", "0.0.0.0"], env={"HEEDFUL_TOKEN": "short"}).exception
    assert isinstance(found, UserError)
    return found.message


def test_folder_without_a_model_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    error = failing(str(tmp_path / "empty"))
    assert "nothing to explore" in error.message
    assert "heedful runs" in (error.todo or "")


def test_invalid_token_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEEDFUL_TOKEN", "a-long-token-with-\udcff-in-it")
    with pytest.raises(UserError, match="HEEDFUL_TOKEN: the token is not UTF-8 text"):
        explore_command([tmp_path], "127.0.0.1", None, False, None, None, [])
