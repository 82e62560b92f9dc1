"""Commands for runs: train, evaluate and list them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from heedful.cli.complete import run_folders, settings
from heedful.cli.options import CheckpointOption, Dark, Json, Overrides, RecipeName, RunFolder, RunOption
from heedful.errors import UserError
from heedful.training.checkpoint.choice import checkpoint_path


def train(recipe: RecipeName, overrides: Overrides = None, run: RunOption = None) -> None:
    """Train a recipe, or resume its run. Ctrl-C stops it and loses nothing; the same command resumes."""
    from heedful.cli.train import train_command

    train_command(recipe, overrides or [], run)


def tokenize(
    recipe: RecipeName,
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="DIR", help="The folder to write, which must not exist yet.")
    ],
    overrides: Overrides = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, max=1024, help="Number of processes; by default one per core.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Tokenize a recipe's text once and write token files, for texts larger than memory."""
    from heedful.cli.tokenize import tokenize_command

    tokenize_command(recipe, overrides or [], out, jobs, as_json)


def evaluate(
    run: RunFolder,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Other data, such as data.test=new.csv; by default the recipe's."),
    ] = None,
    split: Annotated[Literal["test", "valid"], typer.Option(help="The split of the recipe's data.")] = "test",
    stride: Annotated[
        int | None, typer.Option(min=1, help="Tokens that a GPT predicts in each of its overlapping windows.")
    ] = None,
    as_json: Json = False,
    checkpoint: CheckpointOption = None,
    **settings: Any,
) -> None:
    """Evaluate a trained model on its data: scores with signatures, and samples."""
    from heedful.cli.evaluate import eval_command

    folder = checkpoint_path(run, checkpoint)
    eval_command(folder, split, settings["beams"], as_json, stride, settings["memory"], overrides or [])


def runs(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FOLDER]|diff RUN OTHER|compare RUN ...",
            help="The folder to search, runs by default; or two runs that differ, or several beside each other.",
            autocompletion=run_folders,
        ),
    ] = None,
    picture: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the curves of the compared runs: .png, .svg or .pdf.")
    ] = None,
    dark: Dark = False,
    as_json: Json = False,
) -> None:
    """List the runs below a folder, with their progress and scores; or compare some: `runs diff`, `runs compare`."""
    from heedful.cli.runs import runs_command

    verb, *rest = words or ["runs"]
    if picture is not None and verb != "compare":
        raise UserError("only compared runs have a picture", where="--picture", todo="heedful runs compare RUN OTHER")
    if verb in ("diff", "compare"):
        from heedful.cli.compare_runs import compare_command, diff_command

        some = [Path(word) for word in rest]
        if verb == "diff":
            diff_command(some, as_json)
        else:
            compare_command(some, picture, as_json, "dark" if dark else "light")
        return
    if rest:
        raise UserError(
            "one folder is searched at a time", where="heedful runs", found=" ".join([verb, *rest]),
            todo=f"compare runs: heedful runs compare {' '.join([verb, *rest])}",
        )  # fmt: skip
    runs_command(Path(verb), as_json)


def scaling(
    recipe: RecipeName,
    sizes: Annotated[str, typer.Option(metavar="LIST", help="Models: layers x width, such as 2x64,3x96,4x128.")],
    tokens: Annotated[str, typer.Option(metavar="LIST", help="Training tokens of each model, such as 1e6,2e6,4e6.")],
    overrides: Overrides = None,
    predict: Annotated[
        str | None, typer.Option(metavar="LIST", help="Larger runs to predict, which are not fitted: 6x192:8e6.")
    ] = None,
    train: Annotated[
        bool, typer.Option("--train/--no-train", help="Also train the predicted runs, and compare.")
    ] = True,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="DIR", help="The sweep's folder; by default runs/scaling-NAME."),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(min=1, max=1024, help="Runs in parallel; by default as cores and memory allow, or one per GPU."),
    ] = None,
    dark: Dark = False,
    as_json: Json = False,
) -> None:
    """Fit scaling laws to a sweep of runs. Trains every size on every budget; the same command resumes."""
    from heedful.cli.scaling import scaling_command

    scaling_command(
        recipe, overrides or [], sizes, tokens, predict, train, out, jobs, as_json, "dark" if dark else "light"
    )


def tune(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="RECIPE... KEY=VALUES",
            help="Recipes, then settings with lists (KEY=A,B,C), ranges (KEY=1e-5..1e-3) or seeds (train.seed=0,1,2).",
            autocompletion=settings,
        ),
    ],
    sampler: Annotated[
        Literal["grid", "random", "tpe"] | None,
        typer.Option(help="grid: all points of lists; tpe: Optuna; by default grid, or tpe if there is a range."),
    ] = None,
    trials: Annotated[
        int | None, typer.Option(min=1, max=10_000, help="Number of points; all of a grid, 20 of a range by default.")
    ] = None,
    metric: Annotated[
        str | None, typer.Option(help="The score on the validation set; by default that of the best checkpoint.")
    ] = None,
    prune: Annotated[bool, typer.Option("--prune", help="Let Optuna end bad runs early (ASHA).")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Random seed of the choice of points.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="DIR", help="The study's folder; by default runs/tune-NAME."),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(min=1, max=1024, help="Runs in parallel, of one thread each; by default one per core or GPU."),
    ] = None,
    dark: Dark = False,
    as_json: Json = False,
) -> None:
    """Train a recipe with many settings and seeds, and compare the results; the same command resumes."""
    from heedful.cli.tune import tune_command

    tune_command(words, sampler, trials, metric, prune, seed, out, jobs, as_json, "dark" if dark else "light")


def demo(run: RunOption = None) -> None:
    """Train a small translator in a minute, from English to German number words, and show its attention."""
    from heedful.cli.demo import demo_command

    demo_command(run or Path("runs/demo"))
