"""The command `heedful serve`: keys, refusals before anything is loaded, and the end after SIGTERM."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from heedful.cli.serve import KEY, read_keys
from heedful.errors import UserError
from patience import LONG

RUNS = Path(__file__).parents[1] / "golden" / "runs"
GPT = RUNS / "language_model-gpt"


def test_keys_come_from_a_file_and_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "keys"
    file.write_text("# of the laptop\nabcdefghijklmnop\n\n  qrstuvwxyz012345  \n", encoding="utf-8")
    file.chmod(0o600)
    monkeypatch.setenv(KEY, "from-the-environment")
    assert read_keys(file) == ("from-the-environment", "abcdefghijklmnop", "qrstuvwxyz012345")
    assert capsys.readouterr().err == ""
    file.chmod(0o644)
    read_keys(file)
    assert "chmod 600" in capsys.readouterr().err
    file.write_text("secret-but-short\nshort\n", encoding="utf-8")
    with pytest.raises(UserError, match="no API key") as error:
        read_keys(file)
    assert error.value.where == f"{file}:2" and "short" not in str(error.value).replace("shorter", "")
    file.write_text("# nothing\n", encoding="utf-8")
    monkeypatch.delenv(KEY)
    with pytest.raises(UserError, match="there is no key"):
        read_keys(file)
    assert read_keys(None) == ()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--host", "0.0.0.0"], "other machines could use the models"),
        (["--precision", "int8"], "cannot be served in int8"),
        ([str(GPT)], "the same folder is given twice"),
        (["--keys", "nowhere.txt"], "nowhere.txt"),
    ],
)
def test_refusals(words: list[str], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from heedful.cli.app import app

    monkeypatch.delenv(KEY, raising=False)
    found = CliRunner().invoke(app, ["serve", str(GPT), "--port", "0", *words])
    assert found.exit_code != 0 and message in str(found.exception) + found.output


@pytest.mark.slow
def test_running_requests_end_after_sigterm() -> None:
    command = [sys.executable, "-m", "heedful", "serve", str(GPT), "--port", "0", "--drain", str(LONG)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"})
    assert process.stdout is not None
    try:
        line = next(line for line in process.stdout if line.startswith("open "))
        port = int(line.split()[1].rsplit(":", 1)[1].strip("/"))
        connection = HTTPConnection("127.0.0.1", port, timeout=LONG)
        body: dict[str, Any] = {"prompt": "the red", "max_tokens": 1500, "seed": 1, "stream": True}
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        assert answer.readline().startswith(b"data: ")
        process.send_signal(signal.SIGTERM)
        rest = answer.read()
        assert rest.endswith(b"data: [DONE]\n\n")
        assert process.wait(LONG) == 128 + signal.SIGTERM
        with pytest.raises(OSError):
            HTTPConnection("127.0.0.1", port, timeout=5).request("GET", "/healthz")
    finally:
        process.kill()


@pytest.mark.slow
def test_sigterm_while_loading_ends_the_server_even_as_the_first_process_of_a_container() -> None:
    command = [sys.executable, "-m", "heedful", "serve", str(GPT), "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        assert process.stderr.readline().startswith("loading ")
        process.send_signal(signal.SIGTERM)
        assert process.wait(LONG) == 128 + signal.SIGTERM  # by a handler: the first process has no default one
        assert "Traceback" not in process.stderr.read()
    finally:
        process.kill()
