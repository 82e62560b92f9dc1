"""Consistency of a run folder: checkpoints and models record the run and settings they belong to."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any

from heedful.errors import UserError
from heedful.files.json import read_json
from heedful.files.reading import read_file
from heedful.training.checkpoint.folder import Checkpoint
from heedful.training.checkpoint.manifest import DamageError, read_manifest
from heedful.training.checkpoint.ownership import Changes, changes, forbidden_changes, to_branch

GROUPS = ("task", "tokenizer", "model")  # parts of a recipe that the meaning of weights depends on


def run_name(run: Path, checkpoint: Checkpoint | None) -> str:
    """The random name of a run, which its checkpoints record."""
    name = name_in(run) or checkpoint.manifest.about.get("run") if checkpoint else None
    return name if isinstance(name, str) else secrets.token_hex(8)


def name_in(run: Path) -> str | None:
    """The name in the folder; runs of older versions have none."""
    try:
        found = read_json(read_file(run / "env.json").decode())
    except (OSError, ValueError):
        return None
    name = found.get("run") if isinstance(found, dict) else None
    return name if isinstance(name, str) else None


def require_of_run(made: Path, about: Mapping[str, Any], name: str | None, todo: str) -> None:
    """Refuse a checkpoint or model of another run; older versions did not record it."""
    if name is not None and about.get("run", name) != name:
        raise UserError(
            "this was made by another run",
            where=str(made),
            found=f"run {about['run']}",
            expected=f"run {name}, which this folder is of",
            todo=todo,
        )


def require_made_with(
    made: Path, about: Mapping[str, Any], settings: Mapping[str, Any], run: Path, may_differ: Set[str] = frozenset()
) -> Changes:
    """The settings that changed since a checkpoint or model was made; refuses those that may not change."""
    then = about.get("recipe")
    if not isinstance(then, dict):
        return {}  # written by an older version
    changed = changes({name: then.get(name) for name in settings}, settings)
    if found := forbidden_changes(changed, may_differ, f"in {made.name}"):
        raise UserError(
            f"this is not the recipe that {made.name} was made with",
            where=str(run / "recipe.yaml"),
            found=found,
            expected="the same values as before",
            todo=f"restore the former values\n{to_branch(run)}",
        )
    return changed


def require_own_model(model: Path, run: Path, recipe: Mapping[str, Any]) -> None:
    """Refuse a final model that belongs to another run or recipe."""
    try:
        about = read_manifest(model).about
    except DamageError:
        return  # reported when it is read
    todo = "train again with the same command, which writes it again, or choose --checkpoint last"
    require_of_run(model, about, name_in(run), todo)
    require_made_with(model, about, parts(recipe), run)


def require_contents(
    checkpoint: Checkpoint, found: Mapping[str, str], places: Mapping[str, str], todo: str = ""
) -> None:
    """Refuse files that have changed since a checkpoint was made; `places` are their paths."""
    about = checkpoint.manifest.about
    for name, where in places.items():
        if about.get(name, found[name]) != found[name]:  # not recorded by older versions
            raise UserError(
                "this is not what the run started with",
                where=where,
                found=f"contents of SHA-256 {found[name][:16]}...",
                expected=f"contents of SHA-256 {about[name][:16]}..., as in {checkpoint.path.name}",
                todo=todo or "restore the original file, or start over with another --run",
            )


def require_carry(checkpoint: Checkpoint, wanted: bool) -> None:
    """Refuse a checkpoint without the carry that the model needs, or with one that it does not use."""
    if (there := "carry.safetensors" in checkpoint.manifest.files) != wanted:
        raise UserError(
            "the model's carry does not match this run's checkpoint",
            where=str(checkpoint.path / "carry.safetensors"),
            found="there is one" if there else "there is none",
            expected="the carry of the recipe's model" if wanted else "none, as the recipe says",
            todo="resume with the recipe that the run started with, or start over with another --run",
        )


def parts(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """The parts of a recipe that the meaning of weights depends on."""
    return {name: recipe.get(name) for name in GROUPS}
