"""Arguments that several commands share, options generated from settings classes, and old names of options."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterator
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand

from heedful.cli.complete import checkpoints, recipe_names, run_folders, settings
from heedful.errors import UserError, shown


def _run_path(text: str) -> Path:
    if not text:
        raise UserError("--run is empty", expected="the folder of a run", todo="name one, or leave --run out")
    return Path(text)


RecipeName = Annotated[
    str,
    typer.Argument(metavar="RECIPE", help="A YAML file, or the name of a shipped recipe.", autocompletion=recipe_names),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY=VALUE", help="Settings to change, such as train.seed=3.", autocompletion=settings),
]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.", autocompletion=run_folders)]
EncoderFolder = Annotated[
    Path,
    typer.Argument(metavar="RUN", help="The folder of a run, or of a Hugging Face model.", autocompletion=run_folders),
]
Texts = Annotated[list[str] | None, typer.Argument(metavar="TEXT", help="Texts, or - for lines of stdin.")]
RunOption = Annotated[
    Path | None,
    typer.Option(
        "--run",
        "--folder",
        metavar="DIR",
        parser=_run_path,
        help="The run's folder, runs/NAME by default; under torchrun, write --folder.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")]
Dark = Annotated[bool, typer.Option("--dark", help="Draw the figure on a dark background.")]
Batch = Annotated[int, typer.Option(min=1, max=100_000, help="Texts in a batch.")]
CheckpointOption = Annotated[
    str | None,
    typer.Option(
        "--checkpoint",
        metavar="NAME|STEP",
        help="best, last, average or a step; by default the final model.",
        autocompletion=checkpoints,
    ),
]


class FieldOptions(NamedTuple):
    """Fields of a settings class that are options of a command, and the parameter they are listed before."""

    settings: str  # "module:class"
    names: tuple[str, ...]
    before: str | None = None
    default: bool = False  # an omitted option has the field's default instead of None


TRANSLATION, TEXT = "heedful.decode.settings:TranslationSettings", "heedful.decode.settings:TextSettings"
REPLY = "heedful.decode.settings:ReplySettings"
CAPTION = "heedful.decode.settings:CaptionSettings"
SENTENCE = "heedful.decode.settings:SentenceConfig"
WORD2VEC = "heedful.extras.word2vec_config:SkipGramConfig"
BEAMS = ("beams",)
SAMPLING = ("temperature", "top_k", "top_p")
RULES = ("beams", "length_penalty", "repetition_penalty", "no_repeat_ngram", "min_length")
VECTORS = ("width", "window", "negatives", "min_count", "sample", "epochs", "lr", "lowercase", "seed")
FIELD_OPTIONS: dict[str, tuple[FieldOptions, ...]] = {
    "eval": (
        FieldOptions(TRANSLATION, BEAMS, before="stride"),
        FieldOptions(TEXT, ("memory",), before="as_json"),
    ),
    "translate": (
        FieldOptions(TRANSLATION, BEAMS, before="top"),
        FieldOptions(TRANSLATION, (*SAMPLING, "seed"), before="batch", default=True),
    ),
    "chat": (
        FieldOptions(REPLY, BEAMS, before="sample"),
        FieldOptions(REPLY, (*SAMPLING, "seed"), before="as_json", default=True),
    ),
    "caption": (FieldOptions(CAPTION, BEAMS, before="top"),),
    "interpolate": (FieldOptions(SENTENCE, ("beams",), before="as_json"),),
    "sample": (FieldOptions(SENTENCE, ("beams",), before="as_json"),),
    "predict": (FieldOptions(TRANSLATION, BEAMS, before="force"),),
    "generate": (
        FieldOptions(TEXT, ("length", *SAMPLING), before="greedy"),
        FieldOptions(TEXT, ("seed", "samples"), before="greedy", default=True),
        FieldOptions(TEXT, RULES, before="special"),
        FieldOptions(TEXT, ("start_token", "memory"), before="bf16"),
    ),
    "predict-word": (FieldOptions(TEXT, ("start_token",), before="as_json"),),
    "word2vec": (FieldOptions(WORD2VEC, VECTORS, default=True),),
}
RENAMED: dict[str, dict[str, str]] = {
    "generate": {"--at-least": "--min-length", "--no-repeat": "--no-repeat-ngram"},
    "word2vec": {"--at-least": "--min-count", "--rate": "--lr", "--keep-case": "--no-lowercase"},
    "embed": {"--similar": "--similarity"},
    "reconstruct": {"--beside": "--compare", "--walk": "--interpolate"},
    "denoise": {"--given": "--noisy"},
    "predict": {"--output": "--out"},
    **{command: {"--first": "--limit"} for command in ("neighbours", "analogy", "lookup")},
}


class Command(TyperCommand):
    """A command that accepts old names of its options, and suggests a name for an unknown one."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments of the command."""
        if not ctx.resilient_parsing:
            end = args.index("--") if "--" in args else len(args)
            args = [*(self._update_name(word, ctx) for word in args[:end]), *args[end:]]
        return super().parse_args(ctx, args)

    def _update_name(self, word: str, ctx: Any) -> str:
        """Replace an old option name by the new one; an unknown name is an error."""
        name, equals, value = word.partition("=")
        params = self.get_params(ctx)
        known = [option for param in params for option in (*param.opts, *param.secondary_opts)]
        if not name.startswith("--") or name in known:
            return word
        new = RENAMED.get(str(self.name), {}).get(name)
        if new is not None:
            typer.echo(f"note: {name} is now called {new}", err=True)
            return new + equals + value
        close = difflib.get_close_matches(name, known, n=1)
        todo = f"did you mean {close[0]}?" if close else f"see `heedful {self.name} --help`"
        if not close and any(param.name == "overrides" for param in params):
            todo = "settings are written KEY=VALUE, such as train.seed=3; `heedful show RECIPE` lists them"
        raise UserError(f"`heedful {self.name}` has no option {shown(name)}", todo=todo)


def with_options(name: str, command: Callable[..., None]) -> Callable[..., None]:
    """The command with its field options in the signature; it receives their values in its **settings."""
    if name not in FIELD_OPTIONS:
        return command
    signature = inspect.signature(command, eval_str=True)
    parameters = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for parameter in signature.parameters.values()
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD
    ]
    for fields in FIELD_OPTIONS[name]:
        names = [parameter.name for parameter in parameters]
        index = names.index(fields.before) if fields.before else len(names)
        parameters[index:index] = _options(fields)

    @wraps(command)
    def run(**values: Any) -> None:
        command(**values)

    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return run


def _options(fields: FieldOptions) -> Iterator[inspect.Parameter]:
    """Options with the types, bounds, help and defaults of the fields."""
    from annotated_types import Ge, Le

    from heedful.decode.settings import OptionSpec

    module, _, cls = fields.settings.partition(":")
    for name in fields.names:
        field = getattr(import_module(module), cls).model_fields[name]
        spec = next((one for one in field.metadata if isinstance(one, OptionSpec)), OptionSpec())
        minimum: Any = next((one.ge for one in field.metadata if isinstance(one, Ge)), None)
        maximum: Any = next((one.le for one in field.metadata if isinstance(one, Le)), None)
        description = field.description.partition("; null:")[0]
        about = spec.help or f"{description[0].upper()}{description[1:]}."
        option: Any = typer.Option(help=about, min=minimum if spec.minimum is None else spec.minimum, max=maximum)
        yield inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=field.default if fields.default else None,
            annotation=Annotated[field.annotation if fields.default else field.annotation | None, option],
        )  # fmt: skip
