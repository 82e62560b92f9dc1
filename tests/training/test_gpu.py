"""On one GPU: alone with captured steps, under torchrun with DDP and with FSDP2, a killed run resumes bit for bit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from heedful.training.checkpoint.folder import newest

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

SHORT = [
    "train.batch_tokens=2048", "train.accumulate=2", "train.budget.steps=60", "train.log_every=1", "train.threads=1",
    "train.evaluate_every=30", "train.save_every=10", "train.precision=bf16", "train.deterministic=true",
    "train.device=cuda",
]  # fmt: skip
NUMBERS = [*SHORT, "data.train=2000", "data.valid=20", "data.test=20", "tokenizer.vocab=200", "model.context=64"]
SMALL = [
    "numbers", *NUMBERS, "model.width=64", "model.heads=4", "model.hidden=128", "model.encoder_layers=2",
    "model.decoder_layers=2", "model.dropout=0.1", "train.compile=true",
]  # fmt: skip
RECURRENT = {
    "fed": ["numbers-rnn", *NUMBERS, "model.layers=2", "model.dropout=0.1"],
    "hard": ["numbers-rnn", *NUMBERS, "model.attention.choice=hard", "model.attention.feed=output"],
    "text": ["language-model", *SHORT, "model.width=32", "model.hidden=64", "model.context=32"],
}
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1"]


def command(how: str, run: Path, *more: str) -> list[str]:
    launcher, parallel = (TORCHRUN, [f"train.parallel={how}"]) if how in ("ddp", "fsdp") else ([], [])
    words = ["-m", "heedful", "train", *RECURRENT.get(how, SMALL), *parallel, *more, "--folder", str(run)]
    return [sys.executable, *launcher, *words]


def finished(how: str, run: Path, *more: str) -> dict[str, bytes]:
    """The bytes of the last checkpoint of a run, trained or resumed to its end."""
    done = subprocess.run(command(how, run, *more), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    point = newest(run, 1)[0][0]
    assert point.step == 60
    return {name: (point.path / f"{name}.safetensors").read_bytes() for name in ("model", "optimizer")}


def killed(how: str, run: Path, after: int, *more: str) -> None:
    """Start a run and kill it with its launcher after `steps` steps."""
    with subprocess.Popen(
        command(how, run, *more), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    ) as process:
        metrics = run / "metrics.jsonl"
        while process.poll() is None and not (
            metrics.exists() and metrics.read_bytes().count(b'"kind": "step"') > after
        ):
            time.sleep(0.01)
        assert process.poll() is None, "it ended before it could be killed"
        os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.parametrize("how", ["alone", "ddp", "fsdp", *RECURRENT])
def test_killed_run_resumes_bit_for_bit(tmp_path: Path, how: str) -> None:
    (tmp_path / "input.txt").write_text("To be, or not to be, that is the question.\n" * 500)
    more = [f"data.root={tmp_path}"] if how == "text" else []
    whole = finished(how, tmp_path / "whole", *more)
    again = finished(how, tmp_path / "again", *more)
    assert again == whole
    for after in (13, 37):
        killed(how, tmp_path / "broken", after, *more)
        assert newest(tmp_path / "broken", 1)[0][0].step < 60
    assert finished(how, tmp_path / "broken", *more) == whole


def test_run_moves_between_ddp_fsdp_and_one_process(tmp_path: Path) -> None:
    killed("ddp", tmp_path / "run", 13)
    killed("fsdp", tmp_path / "run", 37)
    finished("alone", tmp_path / "run")


@pytest.mark.parametrize("precision", ["fp16", "fp32"])
def test_other_precisions_train(tmp_path: Path, precision: str) -> None:
    run = tmp_path / "run"
    finished("alone", run, f"train.precision={precision}", "train.compile=false", "train.save_behind=true")
    finished("ddp", run, f"train.precision={precision}", "train.compile=false")  # already complete
