"""The command line. Torch and the other heavy packages are imported only by the verbs that compute."""

from __future__ import annotations

import difflib
import io
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from heedful.cli.commands import images, models, recipes, runs, texts, vectors, writing
from heedful.cli.options import Command, with_options
from heedful.errors import EXIT_MEMORY, UserError, drop_output, lacks_memory, printable, shown
from heedful.files.writing import EXIT_DISK


class Verb(NamedTuple):
    """A command: the function that runs it, and what to type after its name as an example."""

    run: Callable[..., None]
    example: str


GROUPS: dict[str, dict[str, Verb]] = {
    "Train": {
        "demo": Verb(runs.demo, ""),
        "recipes": Verb(recipes.recipes, ""),
        "init": Verb(recipes.init, "translate my-recipe.yaml"),
        "show": Verb(recipes.show, "numbers train.seed=3"),
        "check": Verb(recipes.check, "numbers"),
        "train": Verb(runs.train, "numbers train.budget.steps=500 --run runs/short"),
        "eval": Verb(runs.evaluate, "runs/numbers --split valid"),
        "runs": Verb(runs.runs, "runs"),
        "scaling": Verb(runs.scaling, "gpt-prose --sizes 2x64,3x96,4x128 --tokens 1e6,2e6,4e6"),
    },
    "Use": {
        "translate": Verb(writing.translate, 'runs/numbers "twenty-one" --align'),
        "generate": Verb(writing.generate, 'runs/gpt-prose "The module" --length 50 --top-k 40'),
        "predict-word": Verb(writing.predict_word, '"She came home from ___." --causal runs/gpt-prose'),
        "fill-mask": Verb(texts.fill_mask, 'runs/bert-prose "Return the [MASK] of the file."'),
        "classify": Verb(texts.classify, 'runs/sst2 "A fine film." "A dull one."'),
        "classify-tree": Verb(texts.classify_tree, "runs/sentiment-trees '(2 (2 not) (2 bad))' --nodes"),
        "choose": Verb(texts.choose, 'runs/swag "He opens the door" "and walks in." "and is green."'),
        "tag": Verb(texts.tag, 'runs/conll2003 "Ada Lovelace was born in London."'),
        "answer": Verb(texts.answer, 'runs/squad --passage notes.txt "Who wrote it?"'),
        "embed": Verb(texts.embed, 'runs/bert-prose "a file" "a folder" --similarity'),
        "reconstruct": Verb(images.reconstruct, "runs/digits --out grid.png"),
        "denoise": Verb(images.denoise, "runs/digits-denoising --out grid.png"),
        "encode": Verb(images.encode, "runs/digits --out codes.npz"),
        "predict": Verb(writing.predict, "runs/numbers in.jsonl --out out.jsonl"),
    },
    "Look inside": {
        "explore": Verb(models.explore, "runs/numbers"),
        "figure": Verb(models.figure, "gradient-distance seed=3 --out gradients.png"),
        "claims": Verb(models.claims, ""),
    },
    "Data": {
        "tokenize": Verb(runs.tokenize, "gpt-prose --out tokens"),
        "schema": Verb(recipes.schema, ""),
        "word2vec": Verb(vectors.word2vec, "text.txt --out vectors.bin"),
        "neighbours": Verb(vectors.neighbours, "vectors.bin king queen --top 5"),
        "analogy": Verb(vectors.analogy, "vectors.bin man king woman"),
        "lookup": Verb(vectors.lookup, "vectors.bin king queen man --map words.png"),
    },
    "Exchange": {
        "convert": Verb(models.convert, "bert-base-uncased my-bert"),
    },
}
VERBS = {name: verb for group in GROUPS.values() for name, verb in group.items()}
RENAMED = {"next": "predict-word", "judge": "classify-tree", "fill": "fill-mask", "vectors": "word2vec"}
LOOK: dict[str, Any] = {"rich_markup_mode": None, "pretty_exceptions_enable": False}
NO_MEMORY = "there is not enough memory for this; take a smaller model or smaller batches, or free some memory"


class Verbs(TyperGroup):
    """All verbs; each is built when it is asked for, since a program needs one of them."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = Built()  # type: ignore[assignment]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the verbs by group, from the docstrings of their functions, which needs no options."""
        for group, verbs in GROUPS.items():
            with formatter.section(group):
                formatter.write_dl(
                    [(name.ljust(max(map(len, VERBS))), short_help(verb)) for name, verb in verbs.items()]
                )

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The verb that was typed; an old name still works and says the new one, an unknown one gets a suggestion."""
        name, *rest = args
        if name in RENAMED:
            name = RENAMED[args[0]]
            typer.echo(f"note: `heedful {args[0]}` is now called `heedful {name}`", err=True)
        elif name not in VERBS and not name.startswith("-") and not ctx.resilient_parsing:
            close = difflib.get_close_matches(name, [*VERBS, *RENAMED], n=1)
            raise UserError(
                f"there is no command {shown(name)}",
                todo=f"did you mean `heedful {RENAMED.get(close[0], close[0])}`?" if close else "see `heedful --help`",
            )
        return super().resolve_command(ctx, [name, *rest])


def short_help(verb: Verb) -> str:
    """The first sentence about a verb."""
    return TyperCommand("", help=verb.run.__doc__).get_short_help_str(limit=1000)


def example(name: str) -> str:
    """A command that uses a verb."""
    return f"heedful {name} {VERBS[name].example}".rstrip()


class Built(Mapping[str, Any]):
    """The verbs as typer has them."""

    def __getitem__(self, name: str) -> Any:
        alone = typer.Typer(add_completion=False, **LOOK)
        verb = VERBS[name]
        alone.command(name, cls=Command, epilog=f"\b\nExample: {example(name)}")(with_options(name, verb.run))
        return typer.main.get_command(alone)

    def __iter__(self) -> Iterator[str]:
        return iter(VERBS)

    def __len__(self) -> int:
        return len(VERBS)


app = typer.Typer(
    name="heedful",
    cls=Verbs,
    help="Train, evaluate and explore the models of the attention era.",
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    **LOOK,
)


def _version(wanted: bool) -> None:
    if wanted:
        from heedful import __version__

        typer.echo(f"heedful {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    ctx: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Train, evaluate and explore the models of the attention era."""
    if ctx.invoked_subcommand is None:
        from heedful.cli.start import start_screen

        typer.echo("\n".join(start_screen()))


def main() -> None:
    """Run the command line: exit code 2 for a mistake of the user's, 130 when interrupted."""
    # Idle OpenMP threads that spin take the cores from the busy ones; it must be said before torch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # what torch warns of when a connection ends is said by us
    _open_closed()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal that lacks a letter is no reason to fail
    try:
        try:
            app()
        finally:
            sys.stdout.flush()  # what cannot be written is known now, not when Python ends
    except UserError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    except (OSError, MemoryError, RuntimeError, ImportError) as error:
        if lacks_memory(error):
            typer.echo(f"error: {NO_MEMORY}", err=True)
            sys.exit(EXIT_MEMORY)
        if not isinstance(error, OSError):
            raise
        what = f"{error.filename}: " if error.filename else "cannot write the output: "
        typer.echo(f"error: {printable(what + (error.strerror or str(error)))}", err=True)
        drop_output()
        sys.exit(EXIT_DISK)


def _open_closed() -> None:
    """Give a program that was started with a closed stream one that is empty, or that takes everything."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            place = os.open(os.devnull, os.O_RDWR)
            if place != number:
                os.dup2(place, number)
                os.close(place)
            setattr(sys, name, os.fdopen(number, "r" if number == 0 else "w"))
