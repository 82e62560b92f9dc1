"""Write errors, closed streams, out of memory, and Ctrl-C during import."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from heedful.cli import app as cli
from heedful.cli.train import memory_error, memory_errors
from heedful.errors import EXIT_MEMORY, UserError, lacks_memory
from heedful.runs.recipe import load_recipe

TINY = (
    "data.train=100", "data.valid=5", "data.test=5", "tokenizer.vocab=90", "model.width=8", "model.heads=2",
    "model.hidden=16", "model.context=40", "model.encoder_layers=1", "model.decoder_layers=1", "train.budget.steps=4",
    "train.batch_tokens=128", "train.log_every=1", "train.evaluate_every=4", "train.save_every=4", "train.samples=0",
)  # fmt: skip


def shell(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a line of bash in which `heedful` is the command line under test."""
    line = line.replace("heedful", f"{shlex.quote(sys.executable)} -m heedful", 1)
    whole = ["bash", "-c", f"set -o pipefail; {line}"]
    return subprocess.run(whole, cwd=folder, capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full here")
@pytest.mark.parametrize("words", ["show numbers", "recipes", "--help", "figure"])
def test_write_error_is_one_line_and_exit_code_74(tmp_path: Path, words: str) -> None:
    done = shell(f"heedful {words} > /dev/full", tmp_path)
    assert done.returncode == 74
    assert done.stderr == "error: cannot write the output: No space left on device\n"


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_are_no_error(tmp_path: Path, closed: str) -> None:
    done = shell(f"heedful recipes {closed}", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert ("numbers" in done.stdout) is (">&- 2" not in closed and closed != ">&-")


def test_run_continues_when_its_output_is_closed(tmp_path: Path) -> None:
    done = shell(f"heedful train numbers {' '.join(TINY)} --run run | head -n 1", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("\n") == 1
    assert (tmp_path / "run" / "results.json").is_file()
    if os.path.exists("/dev/full"):
        done = shell(f"heedful train numbers {' '.join(TINY)} --run run > /dev/full", tmp_path)
        assert done.returncode == 74
        assert "but the run is complete and saved" in done.stderr
        assert "Traceback" not in done.stderr


def test_ctrl_c_during_import_has_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    script = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    script += "from heedful.__main__ import main; main()"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


LONG = "model={kind: gpt, context: 16384}"


@pytest.mark.parametrize(
    ("changes", "where", "sizes", "advice"),
    [
        ([], "batch_tokens", "batches of 2,048 tokens, in rows of up to 128 tokens", "lower train.batch_tokens"),
        (
            [LONG, "train.batch_tokens=65536"],
            "batch_tokens",
            "batches of 65,536 tokens, in rows of up to 16,384 tokens",
            "lower train.batch_tokens(.|\n)*shorter rows(.|\n)*model.window",
        ),
        (
            [LONG, "train.batch_tokens=16384"],
            "batch_tokens",
            "batches of 16,384 tokens, in rows of up to 16,384 tokens",
            "a batch is one row already",
        ),
    ],
)
def test_memory_error_has_the_sizes_of_batches_and_rows(
    changes: list[str], where: str, sizes: str, advice: str
) -> None:
    error = memory_error(load_recipe("gpt-prose", changes), "no memory left")
    assert (error.where, error.found, error.exit_code) == (f"train.{where}", f"no memory left\n{sizes}", EXIT_MEMORY)
    assert re.match(advice, error.todo or "") and ("shorter rows" in str(error.todo)) == bool(changes)


def test_out_of_memory_has_its_own_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = load_recipe("prose")
    with pytest.raises(UserError, match="not enough memory") as raised, memory_errors(recipe, tmp_path):
        torch.empty(10**15)
    assert raised.value.exit_code == EXIT_MEMORY and raised.value.where == "train.batch_tokens"
    with pytest.raises(RuntimeError, match="shapes"), memory_errors(recipe, tmp_path):
        raise RuntimeError("shapes do not fit")

    def app() -> None:
        torch.empty(10**15)

    monkeypatch.setattr(cli, "app", app)
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert left.value.code == EXIT_MEMORY
    assert capsys.readouterr().err.startswith("error: out of memory")
    assert lacks_memory(MemoryError()) and not lacks_memory(ValueError("out of memory"))


def test_unexpected_os_error_names_its_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def app() -> None:
        raise PermissionError(13, "Permission denied", "/some/file")

    monkeypatch.setattr(cli, "app", app)
    monkeypatch.setattr(cli, "drop_output", lambda: None)
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert left.value.code == 74
    assert capsys.readouterr().err == "error: /some/file: Permission denied\n"
