"""Commands that need no torch, exit codes, and options generated from settings."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest
from annotated_types import Le

from heedful import __version__
from heedful.cli import app as cli
from heedful.cli.commands.writing import generate
from heedful.cli.options import with_options
from heedful.decode.settings import TextSettings
from heedful.errors import UserError
from heedful.runs.recipe import load_recipe
from patience import LONG


def heedful(*words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "heedful", *words], capture_output=True, text=True, cwd=cwd, timeout=LONG
    )


def main(monkeypatch: pytest.MonkeyPatch, *words: str) -> int | str | None:
    """Run the command line in this process and return its exit code."""
    monkeypatch.setattr(sys, "argv", ["heedful", *words])
    with pytest.raises(SystemExit) as left:
        cli.main()
    return left.value.code


@pytest.mark.parametrize(
    "words", [("--version",), ("show", "numbers"), ("check", "numbers"), ("schema",), ("recipes",)]
)
def test_light_commands_run_without_torch(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    assert main(monkeypatch, *words) == 0
    output = capsys.readouterr()
    assert output.out
    assert output.err == ""


def test_version(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    main(monkeypatch, "--version")
    assert capsys.readouterr().out == f"heedful {__version__}\n"


def test_show_applies_overrides(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(monkeypatch, "show", "numbers", "train.seed=31", "train.optimizer.lr=1e-4") == 0
    out = capsys.readouterr().out
    assert "  seed: 31\n" in out
    assert "lr: 0.0001\n" in out


def test_show_prints_a_valid_recipe(tmp_path: Path) -> None:
    first = heedful("show", "numbers").stdout
    assert first.startswith("task:\n")
    (tmp_path / "shown.yaml").write_text(first)
    assert heedful("show", "shown.yaml", cwd=tmp_path).stdout == first


def test_recipe_errors_have_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("train:\n  sede: 3\n")
    done = heedful("check", "bad.yaml", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "bad.yaml:2:3: train.sede is an unknown key" in done.stderr
    assert "Traceback" not in done.stderr


def test_init_then_check(tmp_path: Path) -> None:
    assert heedful("init", "translate", cwd=tmp_path).returncode == 0
    done = heedful("check", "translate.yaml", cwd=tmp_path)
    assert done.returncode == 2  # the recipe is valid, but its files do not exist yet
    assert "4 files" in done.stderr
    assert heedful("init", "translate", cwd=tmp_path).returncode == 2


def test_usage_errors_exit_with_two() -> None:
    assert heedful("nosuchverb").returncode == 2
    assert heedful("show").returncode == 2


def test_exit_codes_of_errors_and_interrupts(monkeypatch: pytest.MonkeyPatch) -> None:
    def full() -> None:
        raise UserError("the disk is full", exit_code=74)

    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("heedful.runs.recipe.schema_text", full)
    assert main(monkeypatch, "schema") == 74
    monkeypatch.setattr("heedful.runs.recipe.schema_text", interrupted)
    assert main(monkeypatch, "schema") == 130


def test_openmp_wait_policy_is_passive_unless_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    main(monkeypatch, "--version")
    assert os.environ["OMP_WAIT_POLICY"] == "ACTIVE"
    monkeypatch.delenv("OMP_WAIT_POLICY")
    main(monkeypatch, "--version")
    assert os.environ["OMP_WAIT_POLICY"] == "PASSIVE"


@pytest.mark.parametrize("name", ["mnist-dense", "digits-denoising"])
def test_show_lists_the_layers_of_an_autoencoder_as_comments(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(monkeypatch, "show", name) == 0
    out = capsys.readouterr().out
    path = tmp_path / "shown.yaml"
    path.write_text(out)
    recipe = load_recipe(name)
    assert load_recipe(str(path)) == recipe
    table = [line.removeprefix("# ") for line in out.splitlines() if line.startswith("#")]
    assert "\n".join(table) == str(recipe.model.summary())
    assert out.splitlines()[-1] == "# Non-trainable parameters: 0"
    assert main(monkeypatch, "show", str(path)) == 0
    assert capsys.readouterr().out == out


def test_only_autoencoders_have_a_layer_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(monkeypatch, "show", "numbers") == 0
    assert "#" not in capsys.readouterr().out


def test_logged_epochs_become_sparser() -> None:
    from heedful.cli.display import is_round

    logged = [epoch for epoch in range(1, 1001) if is_round(epoch)]
    assert logged == [*range(1, 10), *range(10, 100, 10), *range(100, 1001, 100)]


def test_generation_settings_are_options_with_the_same_bounds() -> None:
    options = inspect.signature(with_options("generate", generate)).parameters
    for name, field in TextSettings.model_fields.items():
        (option,) = options[name].annotation.__metadata__
        assert option.max == next((limit.le for limit in field.metadata if isinstance(limit, Le)), None), name
        assert option.help.endswith(".") and options[name].default in (None, field.default)
    assert [options[name].default for name in ("temperature", "seed")] == [None, 0]
    assert [options[name].annotation.__metadata__[0].min for name in ("length", "top_p")] == [1, 1e-6]
