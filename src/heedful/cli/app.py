"""The command line. Torch and the other heavy packages are imported only by the verbs that compute."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from heedful.cli.options import with_options
from heedful.cli.verbs import images, models, recipes, runs, texts, vectors, writing
from heedful.errors import EXIT_MEMORY, UserError, drop_output, lacks_memory, printable
from heedful.files.writing import EXIT_DISK

VERBS: dict[str, Callable[..., None]] = {
    "init": recipes.init,
    "show": recipes.show,
    "check": recipes.check,
    "schema": recipes.schema,
    "recipes": recipes.recipes,
    "train": runs.train,
    "tokenize": runs.tokenize,
    "eval": runs.evaluate,
    "translate": writing.translate,
    "generate": writing.generate,
    "judge": texts.judge,
    "classify": texts.classify,
    "choose": texts.choose,
    "tag": texts.tag,
    "answer": texts.answer,
    "embed": texts.embed,
    "fill": texts.fill,
    "next": writing.next_word,
    "reconstruct": images.reconstruct,
    "denoise": images.denoise,
    "encode": images.encode,
    "predict": writing.predict,
    "convert": models.convert,
    "runs": runs.runs,
    "figure": models.figure,
    "scaling": runs.scaling,
    "vectors": vectors.vectors,
    "neighbours": vectors.neighbours,
    "analogy": vectors.analogy,
    "lookup": vectors.lookup,
    "explore": models.explore,
    "claims": models.claims,
    "demo": runs.demo,
}
LOOK: dict[str, Any] = {"rich_markup_mode": None, "pretty_exceptions_enable": False}
NO_MEMORY = "there is not enough memory for this; take a smaller model or smaller batches, or free some memory"


class Verbs(TyperGroup):
    """All verbs; each is built when it is asked for, since a program needs one of them."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = Built()  # type: ignore[assignment]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the verbs by what their functions say, which needs no options."""
        limit = formatter.width - 6 - max(map(len, VERBS))
        with formatter.section("Commands"):
            formatter.write_dl(
                [
                    (name, TyperCommand(name, help=verb.__doc__).get_short_help_str(limit))
                    for name, verb in VERBS.items()
                ]
            )


class Built(Mapping[str, Any]):
    """The verbs as typer has them."""

    def __getitem__(self, name: str) -> Any:
        alone = typer.Typer(add_completion=False, **LOOK)
        alone.command(name)(with_options(name, VERBS[name]))
        return typer.main.get_command(alone)

    def __iter__(self) -> Iterator[str]:
        return iter(VERBS)

    def __len__(self) -> int:
        return len(VERBS)


app = typer.Typer(
    name="heedful",
    cls=Verbs,
    help="Train, check and look into the models of the attention era.",
    no_args_is_help=True,
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
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say the version.")
    ] = False,
) -> None:
    """Train, check and look into the models of the attention era."""


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
