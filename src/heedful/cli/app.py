"""The command line. Torch and other heavy packages are imported only by the commands that compute."""

from __future__ import annotations

import difflib
import io
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from heedful.cli.commands import agents, images, models, recipes, runs, texts, vectors, writing
from heedful.cli.options import Command, with_options
from heedful.errors import EXIT_MEMORY, UserError, drop_output, lacks_memory, printable, shown
from heedful.files.writing import EXIT_DISK


class CommandSpec(NamedTuple):
    """The function of a command, and the arguments of an example."""

    run: Callable[..., None]
    example: str


GROUPS: dict[str, dict[str, CommandSpec]] = {
    "Train": {
        "demo": CommandSpec(runs.demo, ""),
        "recipes": CommandSpec(recipes.recipes, ""),
        "catalogue": CommandSpec(recipes.catalogue, "--swap numbers"),
        "init": CommandSpec(recipes.init, "translate my-recipe.yaml"),
        "show": CommandSpec(recipes.show, "numbers train.seed=3"),
        "check": CommandSpec(recipes.check, "numbers"),
        "train": CommandSpec(runs.train, "numbers train.budget.steps=500 --run runs/short"),
        "eval": CommandSpec(runs.evaluate, "runs/numbers --split valid"),
        "tune": CommandSpec(runs.tune, "numbers train.optimizer.lr=1e-4..1e-2 --trials 10 --jobs 2"),
        "runs": CommandSpec(runs.runs, "runs"),
        "scaling": CommandSpec(runs.scaling, "gpt-prose --sizes 2x64,3x96,4x128 --tokens 1e6,2e6,4e6"),
    },
    "Use": {
        "translate": CommandSpec(writing.translate, 'runs/numbers "twenty-one" --align'),
        "generate": CommandSpec(writing.generate, 'runs/gpt-prose "The module" --length 50 --top-k 40'),
        "interpolate": CommandSpec(
            writing.interpolate, 'runs/sentences "the old king sleeps ." "a child sees my horse ."'
        ),
        "sample": CommandSpec(writing.sample, "runs/sentences --count 5 --seed 1"),
        "chat": CommandSpec(writing.chat, "runs/trips --history utterances.txt"),
        "predict-word": CommandSpec(writing.predict_word, '"She came home from ___." --causal runs/gpt-prose'),
        "fill-mask": CommandSpec(texts.fill_mask, 'runs/bert-prose "Return the [MASK] of the file."'),
        "classify": CommandSpec(texts.classify, 'runs/sst2 "A fine film." "A dull one."'),
        "classify-tree": CommandSpec(texts.classify_tree, "runs/sentiment-trees '(2 (2 not) (2 bad))' --nodes"),
        "transfer": CommandSpec(texts.transfer, 'runs/registers "the old king will sell a boat" --style courtly'),
        "choose": CommandSpec(texts.choose, 'runs/swag "He opens the door" "and walks in." "and is green."'),
        "tag": CommandSpec(texts.tag, 'runs/conll2003 "Ada Lovelace was born in London."'),
        "answer": CommandSpec(texts.answer, 'runs/squad --passage notes.txt "Who wrote it?"'),
        "embed": CommandSpec(texts.embed, 'runs/bert-prose "a file" "a folder" --similarity'),
        "caption": CommandSpec(images.caption, "runs/captions image.png --beams 5 --picture words.png"),
        "describe": CommandSpec(images.describe, "runs/paragraphs scene.png --boxes boxes.json --picture out.png"),
        "play": CommandSpec(agents.play, "runs/cartpole-dqn --episodes 10 --picture episode.png"),
        "reconstruct": CommandSpec(images.reconstruct, "runs/digits --out grid.png"),
        "denoise": CommandSpec(images.denoise, "runs/digits-denoising --out grid.png"),
        "encode": CommandSpec(images.encode, "runs/digits --out codes.npz"),
        "predict": CommandSpec(writing.predict, "runs/numbers in.jsonl --out out.jsonl"),
        "serve": CommandSpec(models.serve, "runs/numbers --port 8000"),
    },
    "Look inside": {
        "lectures": CommandSpec(models.lectures, "beam search"),
        "lessons": CommandSpec(models.lessons, "coreference"),
        "quiz": CommandSpec(models.quiz, "--count 5 --seed 1"),
        "notebook": CommandSpec(models.notebook, "transformer"),
        "explore": CommandSpec(models.explore, "runs/numbers"),
        "summary": CommandSpec(models.summary, "numbers --depth 2"),
        "doctor": CommandSpec(models.doctor, "model.py:build causal=true"),
        "figure": CommandSpec(models.figure, "sinusoids length=50 width=128 --out sinusoids.svg"),
        "claims": CommandSpec(models.claims, ""),
    },
    "Data": {
        "tokenize": CommandSpec(runs.tokenize, "gpt-prose --out tokens"),
        "schema": CommandSpec(recipes.schema, ""),
        "word2vec": CommandSpec(vectors.word2vec, "text.txt --out vectors.bin"),
        "neighbours": CommandSpec(vectors.neighbours, "vectors.bin king queen --top 5"),
        "analogy": CommandSpec(vectors.analogy, "vectors.bin man king woman"),
        "lookup": CommandSpec(vectors.lookup, "vectors.bin king queen man --map words.png"),
    },
    "Exchange": {
        "convert": CommandSpec(models.convert, "bert-base-uncased my-bert"),
        "export": CommandSpec(models.export, "runs/numbers numbers-onnx"),
        "pull": CommandSpec(models.pull, "Helsinki-NLP/opus-mt-en-de --revision main"),
        "push": CommandSpec(models.push, "runs/bert-prose my-name/bert-prose"),
    },
}
COMMANDS = {name: spec for group in GROUPS.values() for name, spec in group.items()}
RENAMED = {"next": "predict-word", "judge": "classify-tree", "fill": "fill-mask", "vectors": "word2vec"}
TYPER_SETTINGS: dict[str, Any] = {"rich_markup_mode": None, "pretty_exceptions_enable": False}
NO_MEMORY = "out of memory; use a smaller model or smaller batches, or free some memory"


class CommandGroup(TyperGroup):
    """All commands; each is built on first use."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = LazyCommands()  # type: ignore[assignment]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands by group with their docstrings, without building them."""
        widest = max(map(len, COMMANDS))
        for group, commands in GROUPS.items():
            with formatter.section(group):
                formatter.write_dl([(name.ljust(widest), short_help(spec)) for name, spec in commands.items()])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find a command; an old name works with a note, and an unknown one is an error with a suggestion."""
        name, *rest = args
        if name in RENAMED:
            name = RENAMED[args[0]]
            typer.echo(f"note: `heedful {args[0]}` is now called `heedful {name}`", err=True)
        elif name not in COMMANDS and not name.startswith("-") and not ctx.resilient_parsing:
            close = difflib.get_close_matches(name, [*COMMANDS, *RENAMED], n=1)
            raise UserError(
                f"there is no command {shown(name)}",
                todo=f"did you mean `heedful {RENAMED.get(close[0], close[0])}`?" if close else "see `heedful --help`",
            )
        return super().resolve_command(ctx, [name, *rest])


def short_help(spec: CommandSpec) -> str:
    """The first sentence of a command's docstring."""
    return TyperCommand("", help=spec.run.__doc__).get_short_help_str(limit=1000)


def example(name: str) -> str:
    """An example of a command."""
    return f"heedful {name} {COMMANDS[name].example}".rstrip()


class LazyCommands(Mapping[str, Any]):
    """Typer's commands by name, each built when it is looked up."""

    def __getitem__(self, name: str) -> Any:
        single = typer.Typer(add_completion=False, **TYPER_SETTINGS)
        single.command(name, cls=Command, epilog=f"\b\nExample: {example(name)}")(
            with_options(name, COMMANDS[name].run)
        )
        return typer.main.get_command(single)

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


app = typer.Typer(
    name="heedful",
    cls=CommandGroup,
    help="Train, evaluate and explore the models of the attention era.",
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    **TYPER_SETTINGS,
)


def _version(requested: bool) -> None:
    if requested:
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
    """Run the command line: exit code 2 for a user error, 130 when interrupted."""
    # Idle OpenMP threads that spin take cores from the busy ones; this must be set before torch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # lost connections are reported by Heedful
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a character that the terminal cannot show is no error
    try:
        try:
            app()
        finally:
            sys.stdout.flush()  # so that an error is raised here, not when Python exits
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


def _open_closed_streams() -> None:
    """Open /dev/null for each standard stream that was closed when the program was started."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)
            if descriptor != number:
                os.dup2(descriptor, number)
                os.close(descriptor)
            setattr(sys, name, os.fdopen(number, "r" if number == 0 else "w"))
