"""Names of commands, their help, and the start screen."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer.main

from heedful.cli.app import COMMANDS, GROUPS, RENAMED, app, example, short_help
from heedful.cli.options import RENAMED as OPTIONS
from heedful.extras.word2vec_config import SkipGramConfig
from patience import LONG

Run = Callable[..., tuple[int, str, str]]


def command(name: str) -> Any:
    """A command as typer builds it."""
    return typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_an_example_that_parses(name: str, heedful: Run) -> None:
    program, first, *words = shlex.split(example(name))
    assert (program, first) == ("heedful", name)
    command(name).make_context(name, words)
    code, out, err = heedful(name, "--help")
    assert code == 0 and err == ""
    assert f"Example: {example(name)}\n" in out


@pytest.mark.parametrize("old", RENAMED)
def test_old_command_name_still_works_with_a_note(old: str, heedful: Run) -> None:
    code, out, err = heedful(old, "--help")
    assert code == 0
    assert out == heedful(RENAMED[old], "--help")[1]
    assert err == f"note: `heedful {old}` is now called `heedful {RENAMED[old]}`\n"
    assert f"  {old} " not in heedful("--help")[1]


def test_help_lists_every_command_in_its_group(heedful: Run) -> None:
    out = heedful("--help")[1]
    for group, commands in GROUPS.items():
        listed = out.split(f"\n{group}:\n")[1].split("\n\n")[0]
        assert re.findall(r"^  (\S+)", listed, re.MULTILINE) == list(commands)
        for command in commands.values():
            assert short_help(command) in " ".join(listed.split())


@pytest.mark.parametrize(("typed", "meant"), [("trian", "train"), ("clasify", "classify"), ("juge", "classify-tree")])
def test_mistyped_command_gets_a_suggestion(typed: str, meant: str, heedful: Run) -> None:
    code, out, err = heedful(typed, "numbers")
    assert (code, out) == (2, "")
    assert f"there is no command '{typed}'" in err and f"did you mean `heedful {meant}`?" in err
    assert "heedful --help" in heedful("qqq")[2]


@pytest.mark.parametrize(("name", "old"), [(name, old) for name, names in OPTIONS.items() for old in names])
def test_old_option_name_still_works_with_a_note(name: str, old: str, heedful: Run) -> None:
    options = [name for param in command(name).params for name in (*param.opts, *param.secondary_opts)]
    assert OPTIONS[name][old] in options and old not in options
    err = heedful(name, f"{old}=x", "--help")[2]
    assert f"note: {old} is now called {OPTIONS[name][old]}\n" in err


def test_mistyped_option_gets_a_suggestion(heedful: Run) -> None:
    code, out, err = heedful("generate", "run", "--temperatur", 2)
    assert (code, out) == (2, "")
    assert "`heedful generate` has no option '--temperatur'" in err and "did you mean --temperature?" in err
    assert "KEY=VALUE" in heedful("train", "numbers", "--sede", 3)[2]
    assert "did you mean" not in heedful("translate", "run", "--", "--temperatur")[2]  # a text


def test_options_of_word2vec_are_its_settings() -> None:
    options = {param.name: param for param in command("word2vec").params}
    for name, field in SkipGramConfig.model_fields.items():
        assert options[name].default == field.default
        assert options[name].help.lower() == f"{field.description}.".lower()


def test_start_screen_shows_first_commands_and_runs(heedful: Run, tmp_path: Path) -> None:
    code, out, err = heedful()
    assert (code, err) == (0, "")
    assert "  heedful demo " in out and "Runs in" not in out
    for number in range(7):
        (tmp_path / "runs" / f"run-{number}").mkdir(parents=True)
        (tmp_path / "runs" / f"run-{number}" / "recipe.yaml").write_text("{}")
    out = heedful()[1]
    assert "Runs in runs, 5 of 7\n" in out
    assert out.count("  runs/run-") == 5
    assert "heedful explore runs/run-" in out


def test_start_screen_loads_no_heavy_package(tmp_path: Path) -> None:
    asked = "import sys, atexit; atexit.register(lambda: print({'torch', 'numpy'} & set(sys.modules))); "
    asked += "from heedful.cli.app import main; sys.argv = ['heedful']; main()"
    ran = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, cwd=tmp_path, timeout=LONG)
    assert ran.stdout.endswith("\nset()\n"), ran
