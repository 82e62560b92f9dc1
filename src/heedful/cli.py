"""The command line. Torch and the other heavy packages are imported only by the verbs that compute."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from heedful.errors import UserError

app = typer.Typer(
    name="heedful",
    help="Train, check and look into the models of the attention era.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

RecipeName = Annotated[str, typer.Argument(metavar="RECIPE", help="A YAML file, or the name of a shipped recipe.")]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings to change, such as train.seed=3.")
]


def _version(wanted: bool) -> None:
    if wanted:
        from heedful import __version__

        typer.echo(f"heedful {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say the version.")
    ] = False,
) -> None:
    """Train, check and look into the models of the attention era."""


@app.command()
def init(
    template: Annotated[str, typer.Argument(metavar="TASK", help="What the recipe is for: translate.")],
    path: Annotated[Path | None, typer.Argument(metavar="PATH", help="The file to write; else TASK.yaml.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Write even where a file is in the way.")] = False,
) -> None:
    """Write a commented recipe to start from, and its schema, with which an editor completes it."""
    from heedful.recipe import init_recipe

    recipe, schema = init_recipe(template, path or Path(f"{template}.yaml"), force=force)
    typer.echo(f"wrote {recipe} and {schema}")
    typer.echo(f"next: edit {recipe}, then `heedful check {recipe}` and `heedful train {recipe}`")


@app.command()
def show(recipe: RecipeName, overrides: Overrides = None) -> None:
    """Print a recipe in full, defaults and overrides included."""
    from heedful.config import render
    from heedful.recipe import load_recipe

    typer.echo(render(load_recipe(recipe, overrides or [])), nl=False)


@app.command()
def check(recipe: RecipeName, overrides: Overrides = None) -> None:
    """Look for mistakes in a recipe and for the files that it names, without training."""
    from heedful.recipe import check_recipe, find_recipe, load_recipe

    checked = load_recipe(recipe, overrides or [])
    check_recipe(checked)
    size = checked.model.parameters(checked.model.vocab or checked.tokenizer.vocab)
    typer.echo(
        f"{find_recipe(recipe)}: no mistakes; a {checked.model.kind} of about {size / 1e6:,.1f} million parameters"
    )


@app.command()
def schema() -> None:
    """Print the JSON Schema of recipes, for editors."""
    from heedful.recipe import schema_text

    typer.echo(schema_text(), nl=False)


@app.command()
def recipes() -> None:
    """List the recipes that come with Heedful."""
    from heedful.recipe import shipped, summary

    for name, path in shipped().items():
        typer.echo(f"{name:<20} {summary(path)}")


def main() -> None:
    """Run the command line: exit code 2 for a mistake of the user's, 130 when interrupted."""
    # Idle OpenMP threads that spin take the cores from the busy ones; it must be said before torch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        app()
    except UserError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
