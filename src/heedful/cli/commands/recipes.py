"""Commands for recipes: write, show and check them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from heedful.cli.complete import part_kinds, recipe_names, templates
from heedful.cli.options import Json, Overrides, RecipeName
from heedful.cli.output import print_table
from heedful.errors import printable


def init(
    template: Annotated[
        str,
        typer.Argument(
            metavar="TASK",
            autocompletion=templates,
            help="A template (translate, gpt, classify, table ...), or the kind of a task.",
        ),
    ],
    path: Annotated[
        Path | None, typer.Argument(metavar="PATH", help="The file to write; by default TASK.yaml.")
    ] = None,
    overrides: Overrides = None,
    start: Annotated[
        Path | None,
        typer.Option("--from", metavar="FOLDER", help="A run of the task, or an encoder to fine-tune, to start from."),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data",
            metavar="PATH",
            help="Your data: a table, whose columns are guessed from its first rows, a folder of images, or text.",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
) -> None:
    """Write a commented recipe to start from, with a schema for your editor."""
    from heedful.runs.init import init_recipe

    if path is not None and "=" in str(path):  # the first override stands where a path could
        overrides, path = [str(path), *(overrides or [])], None
    target, given = path or Path(f"{template}.yaml"), overrides or []
    recipe, schema, found = init_recipe(template, target, start=start, data=data, overrides=given, force=force)
    typer.echo(f"wrote {recipe} and {schema}")
    if found:
        columns = {setting: [name] if isinstance(name, str) else name for setting, name in found.items() if name}
        shown = [f"{setting} is {' and '.join(map(repr, names))}" for setting, names in columns.items()]
        typer.echo(printable("columns: " + ", ".join(shown)))
    first = "" if data else f"edit {recipe}, then "
    typer.echo(f"next: {first}`heedful check {recipe}` and `heedful train {recipe}`")


def show(recipe: RecipeName, overrides: Overrides = None) -> None:
    """Print a recipe in full, with defaults and overrides; for an autoencoder, also a table of its layers."""
    from heedful.config import render
    from heedful.runs.recipe import load_recipe

    complete = load_recipe(recipe, overrides or [])
    typer.echo(render(complete), nl=False)
    typer.echo("".join(f"# {line}\n" for line in complete.comments), nl=False)


def check(
    recipe: RecipeName,
    overrides: Overrides = None,
    every: Annotated[bool, typer.Option("--all", help="Read all rows of the data, not only the first 10,000.")] = False,
    as_json: Json = False,
) -> None:
    """Check a recipe and its data for mistakes; nothing is trained. Errors end with status 2, warnings with 0."""
    from heedful.runs.recipe import check_recipe, check_rows, describe_size, find_recipe, load_recipe
    from heedful.tasks.recipe_parts import with_article

    loaded = load_recipe(recipe, overrides or [])
    check_recipe(loaded)
    model, path = loaded.model.kind, str(find_recipe(recipe))
    record = {"recipe": path, "task": loaded.task.kind, "model": model, "parameters": loaded.size}
    notes = loaded.data_notes()
    record |= {"notes": notes} if notes else {}
    checked = check_rows(loaded, every)
    if checked.lines:
        record |= {"read": checked.lines, "findings": [finding.record for finding in checked.findings]}
    errors = [finding for finding in checked.findings if finding.level == "error"]
    begin = f"{len(errors)} mistake{'s' * (len(errors) != 1)} in the data" if errors else "no mistakes"
    findings = [finding.line for finding in checked.findings]
    text = [f"{path}: {begin}; {with_article(model)} of {describe_size(loaded)}", *notes, *checked.lines, *findings]
    print_table(text, [record], as_json)
    if errors:
        raise typer.Exit(2)


def schema() -> None:
    """Print the JSON Schema of recipes, for editors."""
    from heedful.runs.recipe import schema_text

    typer.echo(schema_text(), nl=False)


def recipes(as_json: Json = False) -> None:
    """List the recipes that come with Heedful."""
    from heedful.runs.recipe import shipped, summary

    summaries = {name: summary(path) for name, path in shipped().items()}
    records = ({"recipe": name, "about": about} for name, about in summaries.items())
    print_table((f"{name:<20} {about}" for name, about in summaries.items()), records, as_json)


def catalogue(
    kind: Annotated[
        str | None,
        typer.Argument(
            metavar="KIND", help="Encoder, decoder, loss, optimizer ...; all by default.", autocompletion=part_kinds
        ),
    ] = None,
    overrides: Overrides = None,
    swap: Annotated[
        str | None,
        typer.Option(
            metavar="RECIPE", help="List what could stand for each part of a recipe.", autocompletion=recipe_names
        ),
    ] = None,
    key: Annotated[str | None, typer.Option(metavar="KEY", help="Only the part at this key of the recipe.")] = None,
    stack: Annotated[bool, typer.Option("--stack", help="Print the layers, from applications to parts.")] = False,
    as_json: Json = False,
) -> None:
    """List every part of the library: what it takes and gives, the recipe key that selects it, and who uses it."""
    from heedful.cli.catalogue import catalogue_command, stack_command, swaps_command

    if swap is not None:
        if kind is not None and "=" in kind:  # the first override stands where a kind could
            overrides, kind = [kind, *(overrides or [])], None
        swaps_command(swap, overrides or [], kind, key, as_json)
    elif stack:
        stack_command(as_json)
    else:
        catalogue_command(kind, as_json)
