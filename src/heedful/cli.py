"""The command line. Torch and the other heavy packages are imported only by the verbs that compute."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import Annotated, Literal

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
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")]
RunOption = Annotated[
    Path | None,
    typer.Option(
        "--run",
        "--folder",
        metavar="DIR",
        help="The run's folder, else runs/NAME; torchrun lets only --folder through.",
    ),
]
Beams = Annotated[int | None, typer.Option(min=1, max=1000, help="Hypotheses kept; else as the recipe says.")]
Json = Annotated[bool, typer.Option("--json", help="Write JSON, one object a line.")]
Batch = Annotated[int, typer.Option(min=1, max=100_000, help="Lines translated together.")]


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
    template: Annotated[str, typer.Argument(metavar="TASK", help="translate, language-model or trees.")],
    path: Annotated[Path | None, typer.Argument(metavar="PATH", help="The file to write; else TASK.yaml.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Write even where a file is in the way.")] = False,
) -> None:
    """Write a commented recipe to start from. The schema beside it lets an editor complete it."""
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
    """Look for mistakes in a recipe. The files that it names are looked for too; nothing is trained."""
    from heedful.recipe import check_recipe, find_recipe, load_recipe, told_size, with_article

    checked = load_recipe(recipe, overrides or [])
    check_recipe(checked)
    typer.echo(f"{find_recipe(recipe)}: no mistakes; {with_article(checked.model.kind)} of {told_size(checked)}")


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


@app.command()
def train(recipe: RecipeName, overrides: Overrides = None, run: RunOption = None) -> None:
    """Train a recipe, or go on with its run. Ctrl-C stops it and loses nothing; the same command goes on."""
    from heedful.commands.train import train_verb

    train_verb(recipe, overrides or [], run)


@app.command("eval")
def evaluate(
    run: RunFolder,
    split: Annotated[Literal["test", "valid"], typer.Option(help="Which part of the recipe's data.")] = "test",
    beams: Beams = None,
    as_json: Json = False,
) -> None:
    """Score a trained model on its data. The scores come with their signatures, and samples."""
    from heedful.commands.evaluate import eval_verb

    eval_verb(run, split, beams, as_json)


@app.command()
def translate(
    run: RunFolder,
    texts: Annotated[list[str] | None, typer.Argument(metavar="TEXT", help="Texts, or - for lines of stdin.")] = None,
    beams: Beams = None,
    top: Annotated[int, typer.Option(min=1, max=1000, help="Best translations shown, with their scores.")] = 1,
    align: Annotated[bool, typer.Option("--align", help="Show where the model looked for each piece.")] = False,
    align_to: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw that into a PNG file.")] = None,
    as_json: Json = False,
    sample: Annotated[bool, typer.Option("--sample", help="Draw a translation by chance.")] = False,
    temperature: Annotated[float, typer.Option(min=0.01, max=100, help="Over 1 more daring, under 1 less.")] = 1.0,
    top_k: Annotated[int | None, typer.Option(min=1, help="Draw from the k likeliest tokens.")] = None,
    top_p: Annotated[float | None, typer.Option(min=1e-6, max=1, help="Draw from this share of likelihood.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Which chance.")] = 0,
    batch: Batch = 64,
) -> None:
    """Translate texts, or lines that are piped in. Lines stay in order, and empty ones stay empty."""
    from heedful.commands.translate import Sampling, translate_verb

    sampling = Sampling(temperature, top_k, top_p, seed)
    if not sample and sampling != Sampling(1.0, None, None, 0):
        raise UserError(
            "--temperature, --top-k, --top-p and --seed are about chance", todo="add --sample, or leave them out"
        )
    translate_verb(run, texts or [], beams, top, sampling if sample else None, as_json, align, align_to, batch)


@app.command()
def generate(
    run: RunFolder,
    prompts: Annotated[
        list[str] | None, typer.Argument(metavar="PROMPT", help="Texts to go on with, or - for lines of stdin.")
    ] = None,
    length: Annotated[int | None, typer.Option(min=1, max=1_000_000, help="Tokens written; else as trained.")] = None,
    temperature: Annotated[
        float | None, typer.Option(min=0.01, max=100, help="Over 1 more daring, under 1 less.")
    ] = None,
    top_k: Annotated[int | None, typer.Option(min=1, help="Draw from the k likeliest tokens.")] = None,
    top_p: Annotated[float | None, typer.Option(min=1e-6, max=1, help="Draw from this share of likelihood.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Which chance.")] = 0,
    as_json: Json = False,
) -> None:
    """Go on with texts. A language model draws token after token by chance; without a prompt it begins a line."""
    from heedful.commands.generate import generate_verb

    generate_verb(run, prompts or [], length, temperature, top_k, top_p, seed, as_json)


@app.command()
def judge(
    run: RunFolder,
    trees: Annotated[list[str] | None, typer.Argument(metavar="TREE", help="Trees, or - for lines of stdin.")] = None,
    nodes: Annotated[bool, typer.Option("--nodes", help="Show what is said of every part.")] = False,
    as_json: Json = False,
) -> None:
    """Say the class of trees, as (2 (2 not) (2 bad)). Their labels are not read, and may be any word."""
    from heedful.commands.judge import judge_verb

    judge_verb(run, trees or [], nodes, as_json)


@app.command()
def predict(
    run: RunFolder,
    source: Annotated[Path, typer.Argument(metavar="IN.JSONL", help="A file with one JSON object a line.")],
    to: Annotated[Path, typer.Option("--output", "-o", metavar="OUT.JSONL", help="The file to write.")],
    field: Annotated[str, typer.Option(help="The key that holds the text.")] = "source",
    beams: Beams = None,
    force: Annotated[bool, typer.Option("--force", help="Write even where a file is in the way.")] = False,
    batch: Batch = 64,
) -> None:
    """Translate a file of JSON lines. Every object gets a "prediction"."""
    from heedful.commands.translate import predict_verb

    predict_verb(run, source, to, field, beams, force, batch)


@app.command()
def runs(folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where to look.")] = Path("runs")) -> None:
    """List the runs below a folder. Says how far each is, and how good."""
    from heedful.commands.runs import runs_verb

    runs_verb(folder)


@app.command()
def figure(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Which one; without it, all are listed.")] = None,
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings to change, such as seed=3.")
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="The PNG file to write; else NAME.png.")] = None,
    as_json: Json = False,
) -> None:
    """Draw what the lectures show. Each figure is computed or trained on the spot, and prints its numbers."""
    if name is None:
        from heedful.studies import FIGURES

        for one, (_, about) in FIGURES.items():
            typer.echo(f"{one:<20} {about}")
        return
    from heedful.commands.figure import figure_verb

    figure_verb(name, overrides or [], out, as_json)


@app.command()
def claims() -> None:
    """Print the claim sheet, in Markdown. It says what the lectures claim, and which test proves it here."""
    from heedful.claims import render, sheet

    typer.echo(render(sheet()), nl=False)


@app.command()
def demo(run: RunOption = None) -> None:
    """Train a small model in a minute. It turns English number words into German ones, and shows where it looks."""
    from heedful.demo import demo_verb

    demo_verb(run or Path("runs/demo"))


def main() -> None:
    """Run the command line: exit code 2 for a mistake of the user's, 130 when interrupted."""
    # Idle OpenMP threads that spin take the cores from the busy ones; it must be said before torch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # what torch warns of when a connection ends is said by us
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal that lacks a letter is no reason to fail
    try:
        app()
    except UserError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
