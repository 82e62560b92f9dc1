"""The commands that compute, on a model trained in a second: output and errors."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from heedful.cli import app as cli
from heedful.errors import UserError
from heedful.files import writing as files
from heedful.runs.evaluate import results
from patience import LONG

TINY = (
    "data.train=300", "data.valid=10", "data.test=20", "tokenizer.vocab=90", "model.width=16", "model.heads=2",
    "model.hidden=32", "model.context=40", "model.encoder_layers=1", "model.decoder_layers=1", "train.budget.steps=20",
    "train.batch_tokens=256", "train.log_every=5", "train.evaluate_every=10", "train.save_every=10",
)  # fmt: skip
OTHERS = ("model.context=40", *(word for word in TINY if not word.startswith(("data.", "model.context"))))

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, trained by `python -m heedful`."""
    folder = tmp_path_factory.mktemp("cli")
    done = subprocess.run(
        [sys.executable, "-m", "heedful", "train", "numbers", *TINY], cwd=folder, capture_output=True, text=True,
        timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    (folder / "log").write_text(done.stdout)
    return folder / "runs" / "numbers"


@pytest.fixture
def texts(tmp_path: Path) -> list[str]:
    """Overrides that train on parallel files written by the test."""
    for split in ("train", "valid", "test"):
        (tmp_path / f"{split}.en").write_text("one\ntwo\nthree\n" * 5)
        (tmp_path / f"{split}.de").write_text("eins\nzwei\ndrei\n" * 5)
    return [f"data.root={tmp_path}", *OTHERS]


def parse_numbers(lines: str, word: str) -> list[float]:
    return [float(line.split(word)[1].split()[0]) for line in lines.splitlines() if word in line]


# ------------------------------------------------------------------ train
def test_train_reports_progress_and_results(run: Path) -> None:
    log = (run.parent.parent / "log").read_text()
    for expected in (
        " pairs, 90 tokens, 7,072 parameters, on cpu with 1 thread",
        "step 1  loss ",
        "step 10  valid: loss ",
        "step 20  valid: loss ",
        "nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:",
        "run folder  runs/numbers",
        "loss curve  runs/numbers/loss.png",
        "report      runs/numbers/report.html",
        "heedful translate runs/numbers '",
    ):
        assert expected in log
    assert "\x1b" not in log
    assert (run / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert log.count("  loss ") <= 4  # a log gets few lines: the first step, the last, and one in five seconds


def test_training_a_complete_run_does_nothing(run: Path, heedful: Run) -> None:
    results = (run / "results.json").read_bytes()
    metrics = (run / "metrics.jsonl").read_bytes()
    code, out, _ = heedful("train", "numbers", *TINY, "--run", run)
    assert code == 0
    assert "resuming at step 20\n" in out
    assert "this run is already complete" in out
    assert f"{json.loads(results)['scores']['chrf']['value']:.2f}" in out
    assert (run / "results.json").read_bytes() == results
    assert (run / "metrics.jsonl").read_bytes() == metrics


def test_run_folder_of_another_recipe_is_rejected(run: Path, heedful: Run) -> None:
    before = sorted(run.rglob("*"))
    code, _, err = heedful("train", "numbers", *TINY, "train.seed=3", "--run", run)
    assert code == 2
    assert "this folder belongs to a run of another recipe" in err
    assert "train.seed: 0 in the folder, 3 now" in err
    assert sorted(run.rglob("*")) == before


def test_folder_that_is_no_run_is_rejected(tmp_path: Path, heedful: Run) -> None:
    (tmp_path / "letters.txt").write_text("dear")
    code, _, err = heedful("train", "numbers", *TINY, "--run", tmp_path)
    assert code == 2
    assert "this folder is not a run" in err
    assert [path.name for path in tmp_path.iterdir()] == ["letters.txt"]


def test_recipe_errors_are_reported_before_anything_is_written(tmp_path: Path, heedful: Run) -> None:
    code, _, err = heedful("train", "numbers", "train.sede=3", "model.widht=4", "--run", tmp_path / "run")
    assert code == 2
    assert "train.sede is an unknown key" in err
    assert "model.width" in err  # what was meant
    assert not (tmp_path / "run").exists()


def bad_files(tmp_path: Path) -> list[tuple[str, bytes | None, str, str]]:
    return [
        ("train.en", None, "there is no such file", "train.en"),
        ("valid.de", b"", "this file is empty", "valid.de"),
        ("train.de", b"eins\nzwei\n", "unequal numbers of lines", "15 lines in"),
        ("train.en", b"one\ntw\xff\n" + b"three\n" * 13, "this is not UTF-8", "train.en:2:3"),
        ("train.de", b"o\x00ne\n" * 15, "this is not text", "train.de:1:2"),
        ("train.en", b"one " * 30_000 + b"\n" + b"x\n" * 14, "this line is too long", "train.en:1"),
        ("valid.en", b"one " * 50 * 15 + b"\n" + b"\n" * 14, "no pair is left", "40 tokens"),
    ]


@pytest.mark.parametrize("case", range(7))
def test_invalid_data_is_reported_with_line_and_column(
    tmp_path: Path, texts: list[str], heedful: Run, case: int
) -> None:
    name, content, message, place = bad_files(tmp_path)[case]
    (tmp_path / name).unlink()
    if content is not None:
        (tmp_path / name).write_bytes(content)
    code, _, err = heedful("train", "transformer-base", *texts, *HARMLESS, "--run", tmp_path / "run")
    assert code == 2
    assert message in err
    assert place in err


# The shipped recipe for files of one's own, made small enough for a test.
HARMLESS = (
    "tokenizer.kind=bpe", "tokenizer.vocab=300", "train.schedule.width=16", "train.schedule.warmup=5",
    "train.compile=false", "train.keep=2", "train.average=1", "train.clip=1.0", "train.budget.steps=2",
)  # fmt: skip


def test_odd_unicode_and_too_long_lines_are_skipped_and_counted(tmp_path: Path, texts: list[str], heedful: Run) -> None:
    odd = "a\u202eb\u2028c \U0001f600 e\u0301 \ufeff"
    (tmp_path / "train.en").write_text("\n".join(["one"] * 12 + [odd, "", "w " * 60]) + "\n")
    (tmp_path / "test.en").write_text("\n".join(["one"] * 14 + ["w " * 60]) + "\n")
    code, out, _ = heedful("train", "transformer-base", *texts, *HARMLESS, "--run", tmp_path / "run")
    assert code == 0
    assert "note: pairs longer than the model's context, left out: 1" in out
    assert "note: pairs with a blank side, left out: 1" in out
    assert "1 sources exceed the model's context; their translations are empty" in out


def test_full_disk_keeps_the_last_checkpoint_and_the_run_resumes(
    tmp_path: Path, heedful: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    saves = 0
    commit = files.sync_folder

    def full(path: Path) -> None:
        nonlocal saves
        if path.name.startswith("step-00000020"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        saves += 1
        commit(path)

    with monkeypatch.context() as patch:
        patch.setattr(files, "sync_folder", full)
        code, _, err = heedful("train", "numbers", *TINY, "--run", tmp_path / "run")
    assert code == files.EXIT_DISK
    assert saves
    assert "cannot save the checkpoint of step 20" in err
    assert "free some space, then run the same command again" in err
    assert [path.name for path in (tmp_path / "run" / "checkpoints").glob("step-????????")] == ["step-00000010"]
    code, out, _ = heedful("train", "numbers", *TINY, "--run", tmp_path / "run")
    assert code == 0
    assert "resuming at step 10" in out


def test_unwritable_folder_is_reported(tmp_path: Path, heedful: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(files, "make_folder", refuse)
    code, _, err = heedful("train", "numbers", *TINY, "--run", tmp_path / "run")
    assert code == files.EXIT_DISK
    assert "Permission denied" in err
    assert "make the folder writable" in err


def test_file_instead_of_the_parent_folder_is_reported(tmp_path: Path, heedful: Run) -> None:
    (tmp_path / "runs").write_text("")
    code, _, err = heedful("train", "numbers", *TINY, "--run", tmp_path / "runs" / "mine")
    assert code == 2
    assert f"{tmp_path / 'runs'} is a file" in err
    assert "bytes free" not in err


@pytest.mark.parametrize(
    ("sent", "code"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow)]
)
def test_stopped_run_is_saved_and_resumes(tmp_path: Path, heedful: Run, sent: int, code: int) -> None:
    words = [*(word for word in TINY if "steps" not in word and "_every" not in word), "train.log_every=1"]
    folder = tmp_path / "run"
    process = subprocess.Popen(
        [sys.executable, "-m", "heedful", "train", "numbers", *words, "train.budget.steps=99999", "--run", str(folder)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("step 1 "):
            break
    process.send_signal(sent)
    out, err = process.communicate(timeout=LONG)
    assert process.returncode == code, err
    assert "the step is finished and saved first" in err
    assert "the same command resumes" in out
    (saved,) = (folder / "checkpoints").iterdir()
    step = int(saved.name.removeprefix("step-"))
    assert 0 < step < 99999
    if sent == signal.SIGINT:
        from heedful.runs.recipe import load_recipe
        from heedful.runs.train import Started, train

        recipe = load_recipe("numbers", [*words, "train.budget.steps=99999"])
        events = train(recipe, folder)
        assert next(event.step for event in events if isinstance(event, Started)) == step
        events.close()  # type: ignore[attr-defined]


def test_interrupted_run_reports_whether_it_can_resume(
    tmp_path: Path, heedful: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("heedful.cli.train.train", stopped)
    code, out, _ = heedful("train", "numbers", *TINY, "--run", tmp_path / "run")
    assert code == 130
    assert "the same command starts over, since nothing was saved yet" in out
    (tmp_path / "run" / "checkpoints" / "step-00000010").mkdir(parents=True)
    assert (
        "the same command resumes from the last checkpoint"
        in heedful("train", "numbers", *TINY, "--run", tmp_path / "run")[1]
    )


def test_second_signal_stops_at_once() -> None:
    from heedful.cli.train import Stopper

    stopper = Stopper()
    with pytest.raises(KeyboardInterrupt):
        stopper.handle(signal.SIGINT, None)  # no step is running that could be lost
    stopper.patient = True
    stopper.handle(signal.SIGINT, None)
    assert stopper()
    with pytest.raises(KeyboardInterrupt):
        stopper.handle(signal.SIGINT, None)


def test_out_of_memory_is_a_clear_error(tmp_path: Path, heedful: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    def greedy(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3 GiB")

    monkeypatch.setattr("heedful.cli.train.train", greedy)
    code, _, err = heedful("train", "numbers", *TINY, "--run", tmp_path / "run")
    assert code == 71
    assert "lower train.batch_tokens" in err


# ------------------------------------------------------------------ eval
def test_eval_reproduces_the_test_scores(run: Path, heedful: Run) -> None:
    stored = json.loads((run / "results.json").read_text())
    code, out, _ = heedful("eval", run, "--json")
    assert code == 0
    printed = json.loads(out)
    assert printed["scores"] == stored["scores"]
    assert printed["loss"] == stored["loss"]
    code, out, _ = heedful("eval", run, "--split", "valid", "--beams", 2)
    assert code == 0
    assert out.startswith("valid: loss ")
    assert parse_numbers(out, "chrf")


# ------------------------------------------------------------------ translate
def test_translations_do_not_depend_on_the_batch(run: Path, heedful: Run) -> None:
    sources = ["one", "two hundred", "", "three", "  ", "ninety-nine thousand four hundred"]
    code, out, _ = heedful("translate", run, "-", "--batch", 2, stdin="\n".join(sources).encode())
    assert code == 0
    lines = out.split("\n")[:-1]
    assert len(lines) == len(sources)
    assert [bool(line) for line in lines] == [bool(source.strip()) for source in sources]
    piped = heedful("translate", run, stdin=b"\xef\xbb\xbf" + "\r\n".join(sources).encode())[1]
    assert piped == out
    given = heedful("translate", run, *(source for source in sources if source.strip()))[1]
    assert given.split("\n")[:-1] == [line for line in lines if line]


def test_translate_as_json_with_alignment(run: Path, heedful: Run) -> None:
    code, out, _ = heedful("translate", run, "one hundred", "two", "--json", "--top", 3, "--align")
    assert code == 0
    for line, source in zip(out.splitlines(), ["one hundred", "two"], strict=True):
        printed = json.loads(line)
        assert printed["source"] == source
        assert set(printed) == {"source", "translations", "alignment"}
        scores = [one["score"] for one in printed["translations"]]
        assert scores == sorted(scores, reverse=True)
        assert len(scores) == 3
        rows = printed["alignment"]["weights"]
        assert len(rows) == len(printed["alignment"]["target"])
        assert all(abs(sum(row) - 1) < 1e-3 and len(row) == len(printed["alignment"]["source"]) for row in rows)


def test_translate_shows_and_draws_an_alignment(run: Path, heedful: Run, tmp_path: Path) -> None:
    code, out, _ = heedful("translate", run, "one hundred", "--align", "--align-to", tmp_path / "a.png")
    assert code == 0
    pieces = out.split("\n")[2].split()
    assert "".join(pieces) == "onehundred<eos>"
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_samples_depend_on_the_seed_and_not_on_the_batch(run: Path, heedful: Run) -> None:
    def sample_text(seed: int, batch: int) -> str:
        return heedful(
            "translate",
            run,
            "-",
            "--sample",
            "--top-k",
            20,
            "--seed",
            seed,
            "--batch",
            batch,
            stdin=b"one\n\ntwo\nsix\n",
        )[1]

    assert sample_text(1, 1) == sample_text(1, 3)
    assert sample_text(1, 3) != sample_text(2, 3)


@pytest.mark.parametrize(
    ("stdin", "where", "message"),
    [
        (b"one\ntwo\n" + b"one " * 40 + b"\nthree\n", "stdin:3", "too long for the model"),
        (b"one\ntwo\nthr\xffee\n", "stdin:3:4", "this is not UTF-8"),
    ],
)
def test_lines_before_an_invalid_one_are_translated(
    run: Path, heedful: Run, stdin: bytes, where: str, message: str
) -> None:
    code, out, err = heedful("translate", run, "-", stdin=stdin)
    assert code == 2
    assert out == heedful("translate", run, "one", "two")[1]
    assert where in err
    assert message in err
    if "long" in message:
        assert "81 tokens" in err
        assert "at most 40" in err


def test_translate_accepts_any_text(run: Path, heedful: Run) -> None:
    code, out, _ = heedful("translate", run, "\U0001f600 \u202e<eos>\x1b[2J", "\udcff", "a\nb")
    assert code == 0
    assert len(out.splitlines()) == 3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["one", "--seed", 3], "add --sample"),
        (["one", "--beams", 2, "--top", 3], "2 beams cannot give 3 translations"),
        (["one", "--sample", "--beams", 2], "cannot be combined with --beams or --top"),
        (["one", "two", "--align-to", "a.png"], "draws a single text"),
        (["one", "--align-to", "a.gif"], "a name that ends in .png"),
        (["one", "--align-to", "nowhere/a.png"], "nowhere: there is no such folder"),
        (["one", "--align-to", f"{__file__}/a.png"], f"{__file__} is a file"),
        (["one", "--align-to", "/"], "this is a folder"),
        (["one", "--beams", 0], "--beams"),
        (["one", "--sample", "--top-p", 1.5], "--top-p"),
    ],
)
def test_contradicting_options_are_rejected(run: Path, heedful: Run, words: list[object], message: str) -> None:
    code, out, err = heedful("translate", run, *words)
    assert code == 2
    assert message in err
    assert out == ""


@pytest.mark.parametrize("command", [("translate", "x"), ("eval",), ("predict", "in.jsonl", "-o", "out.jsonl")])
def test_missing_run_is_reported(tmp_path: Path, heedful: Run, command: tuple[str, ...]) -> None:
    (tmp_path / "in.jsonl").write_text('{"source": "x"}\n')
    words = [tmp_path / word if word.endswith("jsonl") else word for word in command[1:]]
    code, _, err = heedful(command[0], tmp_path / "none", *words)
    assert code == 2
    assert "there is no such folder" in err
    code, _, err = heedful(command[0], tmp_path, *words)
    assert code == 2
    assert "this folder is not a run" in err


@pytest.mark.parametrize("command", [("translate", "x"), ("eval",)])
def test_run_without_a_checkpoint_is_reported(
    tmp_path: Path, texts: list[str], heedful: Run, command: tuple[str, ...]
) -> None:
    (tmp_path / "train.de").write_text("eins\n")
    assert heedful("train", "transformer-base", *texts, *HARMLESS, "--run", tmp_path / "run")[0] == 2
    code, _, err = heedful(command[0], tmp_path / "run", *command[1:])
    assert code == 2
    assert "this run has not started" in err


def test_without_a_test_set_eval_suggests_the_validation_set(tmp_path: Path, texts: list[str], heedful: Run) -> None:
    words = [*texts, *HARMLESS, "data.test=null"]
    assert heedful("train", "transformer-base", *words, "--run", tmp_path / "run")[0] == 0
    code, _, err = heedful("eval", tmp_path / "run")
    assert code == 2
    assert "this run has no test set" in err
    assert f"heedful eval {tmp_path / 'run'} --split valid" in err
    assert heedful("eval", tmp_path / "run", "--split", "valid")[0] == 0


# ------------------------------------------------------------------ predict
def test_predict_adds_a_prediction_to_each_row(run: Path, heedful: Run, tmp_path: Path) -> None:
    rows = [{"id": 1, "text": "one"}, {"text": "", "more": [None]}, {"text": "two hundred", "ä": "ö"}]
    source, to = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    code, _, err = heedful("predict", run, source, "-o", to, "--field", "text", "--batch", 2)
    assert code == 0
    assert "wrote 2 predictions" in err and "without a prediction: 1" in err
    found = [json.loads(line) for line in to.read_text().splitlines()]
    assert [{key: row[key] for key in row if key not in ("prediction", "log_probability")} for row in found] == rows
    one, two = heedful("translate", run, "one", "two hundred")[1].splitlines()
    assert [row["prediction"] for row in found] == [one, None, two]

    code, _, err = heedful("predict", run, source, "-o", tmp_path / "nowhere" / "out.jsonl", "--field", "text")
    assert code == 2
    assert "there is no such folder" in err

    to.write_text("mine")
    code, _, err = heedful("predict", run, source, "-o", to, "--field", "text")
    assert code == 2
    assert "--force" in err
    assert to.read_text() == "mine"
    assert heedful("predict", run, source, "-o", to, "--field", "text", "--force")[0] == 0
    assert len(to.read_text().splitlines()) == 3


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"source" "x"}', "in.jsonl:2:11: this is not JSON"),
        ("[1]", "in.jsonl:2: this line is not a JSON object"),
        ('{"other": "x"}', "in.jsonl:2: there is no field 'source'"),
        ('{"source": {"a": 3}}', "in.jsonl:2: the value of 'source' is not a string"),
        (json.dumps({"source": "one " * 40}), "in.jsonl:2: this text is too long for the model"),
    ],
)
def test_predict_reports_an_invalid_line_and_writes_no_file(
    run: Path, heedful: Run, tmp_path: Path, line: str, message: str
) -> None:
    (tmp_path / "in.jsonl").write_text('{"source": "one"}\n' + line + "\n")
    code, _, err = heedful("predict", run, tmp_path / "in.jsonl", "-o", tmp_path / "out.jsonl")
    assert code == 2
    assert message in err
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


# ------------------------------------------------------------------ runs, claims
def test_runs_lists_runs_with_their_scores(
    run: Path, heedful: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, _ = heedful("runs", run.parent)
    assert code == 0
    (line,) = (line for line in out.splitlines() if line.startswith("numbers"))
    assert "translation transformer number_words" in line
    assert " 20 " in line and " 100% " in line
    chrf = json.loads((run / "results.json").read_text())["scores"]["chrf"]["value"]
    assert f"chrf {chrf:.1f}" in line
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "recipe.yaml").write_text("{")
    (tmp_path / "broken" / "metrics.jsonl").write_text('{"kind": "st')
    assert "(no readable recipe)" in heedful("runs", tmp_path)[1]
    monkeypatch.chdir(tmp_path / "broken")
    assert "heedful demo" in heedful("runs")[1]
    assert heedful("runs", "nosuch")[0] == 2


def test_claims_prints_the_claim_sheet(heedful: Run) -> None:
    from heedful.lectures.claims import render, sheet

    assert heedful("claims")[1] == render(sheet())


# ------------------------------------------------------------------ language models
@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of a language model, and the output of its training."""
    folder = tmp_path_factory.mktemp("written")
    (folder / "input.txt").write_text("Shall I compare thee\nto a summer's day?\n\nThou art more lovely\n" * 30)
    (folder / "test.txt").write_text("Shall I compare\nthee to a day?\n")
    words = (
        "data.test=test.txt", "tokenizer.vocab=60", "model.width=12", "model.hidden=16", "model.layers=1",
        "model.context=16", "train.budget.steps=20", "train.batch_tokens=256", "train.evaluate_every=10",
        "train.save_every=10", "decode.length=40",
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as log:
        patch.chdir(folder)
        patch.setattr(sys, "argv", ["heedful", "train", "language-model", *words])
        with pytest.raises(SystemExit) as left:
            cli.main()
    assert not left.value.code
    (folder / "log").write_text(log.getvalue())
    return folder / "runs" / "language-model"


def test_training_a_language_model_reports_tokens_of_text(written: Path) -> None:
    log = (written.parent.parent / "log").read_text()
    for expected in (
        " tokens of text, 25 different tokens, ",
        "step 20  valid: loss ",
        "evaluating the test set",
        "  perplexity          ",
        "  bits_per_character  ",
        "|unknown:0|characters:31",
        "  prompt     Shall I compare",
        "heedful generate runs/language-model 'Shall I compare'",
    ):
        assert expected in log
    assert "pairs" not in log
    assert "translat" not in log


def test_generate_continues_prompts(written: Path, heedful: Run) -> None:
    code, out, err = heedful("generate", written, "Shall I", "Thou", "--length", 30, "--seed", 3)
    assert (code, err) == (0, "")
    assert out.startswith("Shall I")
    assert "\nThou" in out
    assert heedful("generate", written, "Shall I", "Thou", "--length", 30, "--seed", 3)[1] == out
    assert heedful("generate", written, "Shall I", "Thou", "--length", 30, "--seed", 4)[1] != out
    code, out, _ = heedful("generate", written, "a\nb", "--json", "--top-k", 1)
    printed = json.loads(out)
    assert printed["text"] == "a\nb" + printed["added"]
    assert len(printed["added"]) == 40  # as long as the recipe says
    assert printed == json.loads(heedful("generate", written, "a\nb", "--json", "--top-k", 1, "--seed", 9)[1])
    code, out, _ = heedful("generate", written, "--length", 5, stdin=b"")
    assert code == 0
    assert len(out) == 6


def test_generate_continues_lines_of_stdin(written: Path, heedful: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts, words = ["Shall I", "", "Thou", "to a", "lovely"], ("--json", "--length", 8, "--seed", 3)
    given = [json.loads(line) for line in heedful("generate", written, *prompts, *words)[1].splitlines()]
    assert [printed["prompt"] for printed in given] == prompts
    monkeypatch.setattr("heedful.cli.generate.BATCH_SIZE", 2)
    for dash in (["-"], []):
        code, out, err = heedful("generate", written, *dash, *words, stdin="\n".join(prompts).encode())
        assert (code, err) == (0, "")
        printed = [json.loads(line) for line in out.splitlines()]
        assert [(one["prompt"], one["added"]) for one in printed] == [(one["prompt"], one["added"]) for one in given]
    assert heedful("generate", written, "-", stdin=b"")[:2] == (0, "")
    code, out, err = heedful("generate", written, "-", *words, stdin=b"Shall I\nTh\xff\n")
    assert (code, len(out.splitlines())) == (2, 1)
    assert "stdin:2:3: this is not UTF-8" in err


def test_eval_reproduces_the_scores_of_a_language_model(written: Path, heedful: Run, monkeypatch: Any) -> None:
    monkeypatch.chdir(written.parent.parent)
    stored = json.loads((written / "results.json").read_text())
    code, out, _ = heedful("eval", written, "--json")
    assert code == 0
    printed = json.loads(out)
    assert printed["scores"] == stored["scores"]
    assert "beams" not in printed
    code, _, err = heedful("eval", written, "--beams", 4)
    assert code == 2
    assert "without a beam search" in err


def test_model_of_another_task_names_the_right_command(run: Path, written: Path, heedful: Run) -> None:
    code, _, err = heedful("generate", run, "one")
    assert code == 2
    assert "this model translates" in err
    assert "use `heedful translate`" in err
    code, _, err = heedful("translate", written, "one")
    assert code == 2
    assert "this model generates text" in err
    assert "use `heedful generate`" in err


def test_predict_continues_prompts(written: Path, heedful: Run, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"prompt": "the "}\n{"text": "a "}\n')
    assert heedful("predict", written, tmp_path / "in.jsonl", "-o", tmp_path / "out.jsonl")[0] == 0
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert all(isinstance(row["prediction"], str) and row["prediction"] for row in rows)


# ------------------------------------------------------------------ what stands in the files of a run
def test_unicode_line_separators_do_not_end_a_line(heedful: Run, tmp_path: Path) -> None:
    signs = "\u2028\u2029\x85\x0c"
    for split in ("train", "valid", "test"):
        (tmp_path / f"{split}.tsv").write_text(f"one{signs}two\teins{signs}zwei\nthree\tdrei\n" * 5, encoding="utf-8")
    data = {"kind": "tsv", "root": str(tmp_path), **{split: f"{split}.tsv" for split in ("train", "valid", "test")}}
    words = ("train", "numbers", f"data={json.dumps(data)}", *OTHERS, "--run", tmp_path / "run")
    for _ in range(2):  # the second time, results are read from disk
        code, out, err = heedful(*words)
        assert (code, err) == (0, "")
        assert "no report" not in out
    assert heedful("runs", tmp_path)[2] == ""


def test_broken_metric_lines_are_counted_when_listed_and_resumed(run: Path, heedful: Run, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    shutil.copytree(run, mine)
    with (mine / "metrics.jsonl").open("ab") as file:
        file.write(b'{"kind": "evaluated", "split": "test", "step": 20, "scores": {"x": {"value": ' + b"9" * 400)
        file.write(b"}}}\nnull\n" + b"[" * 100_000 + b"\n")
    code, out, err = heedful("runs", tmp_path)
    assert code == 0
    assert "mine" in out
    assert "metrics.jsonl: 3 lines are not valid events and were skipped" in err
    code, out, _ = heedful("train", "numbers", *TINY, "--run", mine)
    assert code == 0
    assert "note: " in out and "metrics.jsonl: 3 lines are not valid events and were skipped" in out
    assert heedful("runs", tmp_path)[2] == ""


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "[]", "{}", '{"scores": 1}', '{"scores": {"bleu": {"value": "x", "signature": ""}}}']
)
def test_edited_results_are_reported_and_recomputed(run: Path, heedful: Run, tmp_path: Path, text: str) -> None:
    shutil.copytree(run, tmp_path / "mine")
    data = json.loads((run / "results.json").read_text())
    found = json.loads(text) if len(text) < 1000 else None
    whole = json.dumps({**data, **found}) if isinstance(found, dict) and found else text
    (tmp_path / "mine" / "results.json").write_text(whole)
    with pytest.raises(UserError, match=r"results\.json: the test scores cannot be read"):
        results(tmp_path / "mine")
    code, _, _ = heedful("train", "numbers", *TINY, "--run", tmp_path / "mine")
    assert code == 0
    assert (tmp_path / "mine" / "results.json").read_bytes() == (run / "results.json").read_bytes()
