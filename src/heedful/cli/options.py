"""Arguments that several commands share, options generated from classes of settings, and old names of options."""

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
        help="The run's folder, runs/NAME by default; with torchrun write --folder.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")]
Dark = Annotated[bool, typer.Option("--dark", help="Draw the figure on a dark background.")]
Batch = Annotated[int, typer.Option(min=1, max=100_000, help="Texts in a batch.")]
Which = Annotated[
    str | None,
    typer.Option(
        "--checkpoint",
        metavar="NAME|STEP",
        help="best, last, average or a step; else the final model.",
        autocompletion=checkpoints,
    ),
]


class Offer(NamedTuple):
    """Fields of a class of settings that a verb has as options, and the parameter that they precede."""

    settings: str  # module:class
    names: tuple[str, ...]
    before: str | None = None
    default: bool = False  # whether an option that is not given has the field's default; else it is None


TRANSLATION, TEXT = "heedful.decode.settings:TranslationSettings", "heedful.decode.settings:TextSettings"
WORD2VEC = "heedful.extras.word2vec_config:SkipGramConfig"
BEAMS = ("beams",)
SAMPLING = ("temperature", "top_k", "top_p")
RULES = ("beams", "length_penalty", "repetition_penalty", "no_repeat_ngram", "min_length")
VECTORS = ("width", "window", "negatives", "min_count", "sample", "epochs", "lr", "lowercase", "seed")
OFFERS: dict[str, tuple[Offer, ...]] = {
    "eval": (Offer(TRANSLATION, BEAMS, before="stride"),),
    "translate": (
        Offer(TRANSLATION, BEAMS, before="top"),
        Offer(TRANSLATION, (*SAMPLING, "seed"), before="batch", default=True),
    ),
    "predict": (Offer(TRANSLATION, BEAMS, before="force"),),
    "generate": (
        Offer(TEXT, ("length", *SAMPLING), before="greedy"),
        Offer(TEXT, ("seed", "samples"), before="greedy", default=True),
        Offer(TEXT, RULES, before="special"),
        Offer(TEXT, ("start_token",), before="bf16"),
    ),
    "predict-word": (Offer(TEXT, ("start_token",), before="as_json"),),
    "word2vec": (Offer(WORD2VEC, VECTORS, default=True),),
}
RENAMED: dict[str, dict[str, str]] = {
    "generate": {"--at-least": "--min-length", "--no-repeat": "--no-repeat-ngram"},
    "word2vec": {"--at-least": "--min-count", "--rate": "--lr", "--keep-case": "--no-lowercase"},
    "embed": {"--similar": "--similarity"},
    "reconstruct": {"--beside": "--compare", "--walk": "--interpolate"},
    "denoise": {"--given": "--noisy"},
    "predict": {"--output": "--out"},
    **{verb: {"--first": "--limit"} for verb in ("neighbours", "analogy", "lookup")},
}


class Command(TyperCommand):
    """A verb that accepts old names of its options, and suggests the name of an unknown one."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words after the verb's name."""
        if not ctx.resilient_parsing:
            end = args.index("--") if "--" in args else len(args)
            args = [*(self._current(word, ctx) for word in args[:end]), *args[end:]]
        return super().parse_args(ctx, args)

    def _current(self, word: str, ctx: Any) -> str:
        """A word with an old name of an option replaced by the new one."""
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


def with_options(name: str, verb: Callable[..., None]) -> Callable[..., None]:
    """A verb with the settings that it offers spelled out in its signature; they come with its **settings."""
    if name not in OFFERS:
        return verb
    whole = inspect.signature(verb, eval_str=True)
    given = [
        one.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for one in whole.parameters.values()
        if one.kind is not inspect.Parameter.VAR_KEYWORD
    ]
    for offer in OFFERS[name]:
        index = [one.name for one in given].index(offer.before) if offer.before else len(given)
        given[index:index] = _options(offer)

    @wraps(verb)
    def run(**values: Any) -> None:
        verb(**values)

    run.__signature__ = whole.replace(parameters=given)  # type: ignore[attr-defined]
    return run


def _options(offer: Offer) -> Iterator[inspect.Parameter]:
    """Fields of a class of settings as options: their types, bounds, help and defaults."""
    from annotated_types import Ge, Le

    from heedful.decode.settings import Offered

    module, _, cls = offer.settings.partition(":")
    for name in offer.names:
        field = getattr(import_module(module), cls).model_fields[name]
        offered = next((one for one in field.metadata if isinstance(one, Offered)), Offered())
        least: Any = next((one.ge for one in field.metadata if isinstance(one, Ge)), None)
        most: Any = next((one.le for one in field.metadata if isinstance(one, Le)), None)
        words = field.description.partition("; null:")[0]
        about = offered.help or f"{words[0].upper()}{words[1:]}."
        option: Any = typer.Option(help=about, min=least if offered.least is None else offered.least, max=most)
        yield inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=field.default if offer.default else None,
            annotation=Annotated[field.annotation if offer.default else field.annotation | None, option],
        )  # fmt: skip
