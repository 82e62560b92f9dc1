"""Only regular files are read, nothing blocks on a pipe, and denied access is a clear error."""

from __future__ import annotations

import errno
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import heedful
from heedful.cli import app as cli
from heedful.errors import UserError
from heedful.files.reading import entries, exists, is_file, is_folder, open_file, read_file, require_folder

SOURCE = Path(heedful.__file__).parent


@pytest.fixture
def private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder without read permission: by its mode, and where that does not apply, by a patched system call."""
    folder = tmp_path / "private"
    (folder / "below").mkdir(parents=True)
    folder.chmod(0)
    if os.access(folder, os.R_OK):  # root may read everything

        def refused(real: Callable[..., Any], itself: bool) -> Callable[..., Any]:
            def call(path: Any = ".", *given: Any, **named: Any) -> Any:
                place = os.fspath(path) if not isinstance(path, int) else ""
                if place.startswith(f"{folder}{os.sep}") or (itself and place == str(folder)):
                    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
                return real(path, *given, **named)

            return call

        for name in ("stat", "lstat", "open", "mkdir"):
            monkeypatch.setattr(os, name, refused(getattr(os, name), itself=False))
        for name in ("listdir", "scandir"):
            monkeypatch.setattr(os, name, refused(getattr(os, name), itself=True))
    yield folder
    monkeypatch.undo()
    folder.chmod(0o700)


def test_regular_file_is_read_within_its_limit(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    (tmp_path / "link").symlink_to("file")
    assert read_file(tmp_path / "file") == read_file(tmp_path / "link", 5) == b"12345"
    with pytest.raises(OSError, match="5 bytes, but at most 4 are expected"):
        read_file(tmp_path / "file", 4)
    with pytest.raises(OSError, match="it is a link"):
        read_file(tmp_path / "link", follow=False)


@pytest.mark.parametrize(
    ("name", "kind"), [("pipe", "a named pipe"), ("folder", "a folder"), ("/dev/zero", "a device")]
)
def test_other_file_types_are_rejected_without_blocking(tmp_path: Path, name: str, kind: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match=f"it is {kind}, not a regular file"):
        open_file(tmp_path / name)
    (tmp_path / "link").symlink_to(name)
    with pytest.raises(OSError, match=kind):
        open_file(tmp_path / "link")


@pytest.mark.parametrize("name", ["nothing", "file/below", "x" * 300, "a\0b", "loop"])
def test_impossible_paths_do_not_exist(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    assert not (is_file(tmp_path / name) or is_folder(tmp_path / name) or exists(tmp_path / name))
    with pytest.raises(OSError):
        open_file(tmp_path / name)


def test_denied_permission_is_a_clear_error(private: Path) -> None:
    for ask in (is_file, is_folder, exists, lambda path: require_folder(path, "a run")):
        with pytest.raises(UserError, match="this path cannot be accessed") as raised:
            ask(private / "below")
        assert raised.value.found == "Permission denied"
    with pytest.raises(UserError, match="this path cannot be accessed"):
        entries(private)


@pytest.mark.parametrize(
    "words",
    [
        ("translate", "{}/below", "a"),
        ("translate", "{}", "a"),
        ("explore", "{}/below", "--no-browser"),
        ("convert", "{}/below", "{}/../new"),
        ("convert", "{}/../new", "{}/below"),
        ("embed", "{}/below", "a"),
        ("generate", "{}", "a"),
        ("train", "bert-sst2", "start.folder={}/below", "--run", "{}/../run"),
        ("train", "numbers", "--run", "{}/below"),
        ("train", "numbers", "--run", "{}/below/run"),
        ("train", "{}/below/recipe.yaml"),
        ("predict", "{}/below", "in.jsonl", "-o", "out.jsonl"),
        ("reconstruct", "{}/below", "-o", "grid.png"),
        ("encode", "{}/../run", "-o", "{}/below/codes.npy"),
        ("figure", "recall", "--out", "{}/below/a.png"),
        ("eval", "{}/below"),
        ("neighbours", "{}/below/vectors.txt", "king"),
        ("word2vec", "{}/below/text", "-o", "{}/../out.txt"),
        ("init", "translate", "{}/below"),
        ("runs", "{}/below"),
        ("scaling", "gpt-prose", "--sizes", "2x64", "--tokens", "1e6", "-o", "{}/below"),
    ],
    ids=" ".join,
)
def test_no_command_has_a_traceback_below_an_unreadable_folder(
    private: Path, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(private.parent)
    monkeypatch.setattr(sys, "argv", ["heedful", *(word.format(private) for word in words)])
    with pytest.raises(SystemExit) as left:
        cli.main()
    output = capsys.readouterr()
    assert left.value.code in (2, 74), output.err
    assert "Traceback" not in output.err and "error: " in output.err.lower()


def test_runs_notes_an_unreadable_folder(
    private: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = private.parent / "mine"
    (mine / "checkpoints").mkdir(parents=True)
    (mine / "recipe.yaml").write_text("task: {kind: translation}\n")
    monkeypatch.setattr(sys, "argv", ["heedful", "runs", str(private.parent)])
    with pytest.raises(SystemExit) as left:
        cli.main()
    output = capsys.readouterr()
    assert left.value.code in (None, 0)
    assert "mine" in output.out
    assert f"note: skipped {private}: Permission denied" in output.err


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (("config.json", "pytorch_model.bin"), ("convert", "{}", "{}/../new")),
        (("config.json", "model.safetensors"), ("embed", "{}", "a")),
        (("config.json",), ("generate", "{}", "a")),
        (("recipe.yaml",), ("eval", "{}")),
        (("recipe.yaml", "metrics.jsonl"), ("runs", "{}")),
        (("x.png",), ("train", "mnist-autoencoder", "data={{kind: image_folder, root: {}, train: ., valid: .}}")),
        (("a.jsonl",), ("predict", "{}", "{}/a.jsonl", "-o", "{}/b.jsonl")),
        (("a.txt",), ("neighbours", "{}/a.txt", "king")),
    ],
    ids=lambda value: " ".join(value),
)
def test_named_pipes_do_not_block(
    tmp_path: Path,
    files: tuple[str, ...],
    words: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in files[:-1]:
        settings = '{"model_type": "bert", "architectures": ["BertModel"]}' if "json" in name else "a: b"
        (folder / name).write_text(settings)
    os.mkfifo(folder / files[-1])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["heedful", *(word.format(folder) for word in words)])
    former = signal.signal(signal.SIGALRM, fail_on_timeout)
    signal.alarm(120)
    try:
        with pytest.raises(SystemExit) as left:
            cli.main()
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, former)
    output = capsys.readouterr()
    assert "Traceback" not in output.err
    assert left.value.code == (0 if words[0] == "runs" else 2), output.err


def fail_on_timeout(*_: object) -> None:
    raise AssertionError("waited for a pipe")


# Only heedful.files.reading opens files and inspects paths; the modules listed here read Heedful's own
# files or those of the system.
ELSEWHERE = {
    "shapes.py", "explore/server/page.py", "explore/views/source.py", "training/distributed/heartbeat.py",
    "training/environment.py",
    "runs/recipe.py", "runs/init.py", "data/embedded.py", "lectures/notebooks/__init__.py",
}  # fmt: skip
READS = re.compile(
    r"""\.read_(text|bytes)\(|(?<![\w.])open\([^)]*"rb"|\.open\("rb"|Image\.open\(path|\.(is_file|is_dir|exists)\(\)"""
)


def test_only_the_reading_module_opens_files() -> None:
    names = {path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py")} - ELSEWHERE - {"reading.py"}
    lines = ((name, enumerate((SOURCE / name).read_text(encoding="utf-8").split("\n"), 1)) for name in sorted(names))
    found = [f"{name}:{number}: {line}" for name, some in lines for number, line in some if READS.search(line)]
    assert found == []
