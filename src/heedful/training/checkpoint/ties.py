"""What ties the files of a run folder together: a checkpoint and a model say which run and settings they are of."""

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
from heedful.training.checkpoint.ownership import Changes, changes, refused, to_branch

GROUPS = ("task", "tokenizer", "model")  # of a recipe, without which weights mean nothing


def run_name(run: Path, checkpoint: Checkpoint | None) -> str:
    """The name that a run was given at random when it began, which its checkpoints carry."""
    name = name_in(run) or checkpoint.manifest.about.get("run") if checkpoint else None
    return name if isinstance(name, str) else secrets.token_hex(8)


def name_in(run: Path) -> str | None:
    """The same as the folder has it, if it does: a run of an older version has none."""
    try:
        found = read_json(read_file(run / "env.json").decode())
    except (OSError, ValueError):
        return None
    name = found.get("run") if isinstance(found, dict) else None
    return name if isinstance(name, str) else None


def require_of_run(made: Path, about: Mapping[str, Any], name: str | None, todo: str) -> None:
    """Refuse a checkpoint or a model that another run made; one of an older version does not say."""
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
    """The settings of a recipe that are others than those a checkpoint or a model was made with, if they may be."""
    then = about.get("recipe")
    if not isinstance(then, dict):
        return {}  # as an older version wrote it
    changed = changes({name: then.get(name) for name in settings}, settings)
    if found := refused(changed, may_differ, f"in {made.name}"):
        raise UserError(
            f"this is not the recipe that {made.name} was made with",
            where=str(run / "recipe.yaml"),
            found=found,
            expected="the same values as before",
            todo=f"restore the former values\n{to_branch(run)}",
        )
    return changed


def require_own_model(model: Path, run: Path, recipe: Mapping[str, Any]) -> None:
    """Refuse the final model of another run, or of another recipe, where a run's own should be."""
    try:
        about = read_manifest(model).about
    except DamageError:
        return  # which is reported when it is read
    todo = "train again with the same command, which writes it again, or choose --checkpoint last"
    require_of_run(model, about, name_in(run), todo)
    require_made_with(model, about, parts(recipe), run)


def require_contents(
    checkpoint: Checkpoint, found: Mapping[str, str], places: Mapping[str, str], todo: str = ""
) -> None:
    """Refuse files with other contents than those that a checkpoint was made with; `places` names them."""
    about = checkpoint.manifest.about
    for name, where in places.items():
        if about.get(name, found[name]) != found[name]:  # a run of an older version may not have noted it
            raise UserError(
                "this is not what the run started with",
                where=where,
                found=f"contents of SHA-256 {found[name][:16]}...",
                expected=f"contents of SHA-256 {about[name][:16]}..., as in {checkpoint.path.name}",
                todo=todo or "restore the former file, or start over with another --run",
            )


def require_carry(checkpoint: Checkpoint, wanted: bool) -> None:
    """Refuse a checkpoint that has not what the model takes along from step to step, or has it for no use."""
    if (there := "carry.safetensors" in checkpoint.manifest.files) != wanted:
        raise UserError(
            "this run cannot resume with another memory than it started with",
            where=str(checkpoint.path / "carry.safetensors"),
            found="there is one" if there else "there is none",
            expected="what the recipe's model takes along from step to step" if wanted else "none, as the recipe says",
            todo="resume with the recipe that the run started with, or start over with another --run",
        )


def parts(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Those groups of a recipe without which weights mean nothing."""
    return {name: recipe.get(name) for name in GROUPS}
