"""What several verbs take, and options that are made from generation settings."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from heedful.errors import UserError


def recipe_names(incomplete: str) -> list[str]:
    """The recipes that a word may become: shipped ones and YAML files nearby."""
    from heedful.runs.recipe import shipped

    return [name for name in (*shipped(), *map(str, sorted(Path().glob("*.yaml")))) if name.startswith(incomplete)]


def _run_path(text: str) -> Path:
    if not text:
        raise UserError("--run is empty", expected="the folder of a run", todo="name one, or leave --run out")
    return Path(text)


RecipeName = Annotated[
    str,
    typer.Argument(metavar="RECIPE", help="A YAML file, or the name of a shipped recipe.", autocompletion=recipe_names),
]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings to change, such as train.seed=3.")
]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")]
EncoderFolder = Annotated[
    Path, typer.Argument(metavar="RUN", help="The folder of a run or of a model, ours or of Hugging Face's make.")
]
RunOption = Annotated[
    Path | None,
    typer.Option(
        "--run",
        "--folder",
        metavar="DIR",
        parser=_run_path,
        help="The run's folder, else runs/NAME; torchrun lets only --folder through.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Write JSON, one object a line.")]
Batch = Annotated[int, typer.Option(min=1, max=100_000, help="Lines translated together.")]
Which = Annotated[
    str | None,
    typer.Option("--checkpoint", metavar="NAME|STEP", help="best, last, average or a step; else the final model."),
]


class Offer(NamedTuple):
    """Fields of a class of generation settings that a verb offers as options, and the parameter that they precede."""

    settings: str
    names: tuple[str, ...]
    before: str
    default: bool = False  # else an option that nobody gives is None, and the model's own setting holds


BEAMS = ("beams",)
SAMPLING = ("temperature", "top_k", "top_p")
RULES = ("beams", "length_penalty", "repetition_penalty", "no_repeat", "at_least")
OFFERS: dict[str, tuple[Offer, ...]] = {
    "eval": (Offer("TranslationSettings", BEAMS, before="stride"),),
    "translate": (
        Offer("TranslationSettings", BEAMS, before="top"),
        Offer("TranslationSettings", (*SAMPLING, "seed"), before="batch", default=True),
    ),
    "predict": (Offer("TranslationSettings", BEAMS, before="force"),),
    "generate": (
        Offer("TextSettings", ("length", *SAMPLING), before="greedy"),
        Offer("TextSettings", ("seed", "samples"), before="greedy", default=True),
        Offer("TextSettings", RULES, before="special"),
        Offer("TextSettings", ("start_token",), before="bf16"),
    ),
    "predict-word": (Offer("TextSettings", ("start_token",), before="as_json"),),
}


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
        place = [one.name for one in given].index(offer.before)
        given[place:place] = [_option(offer, name) for name in offer.names]

    @wraps(verb)
    def run(**values: Any) -> None:
        verb(**values)

    run.__signature__ = whole.replace(parameters=given)  # type: ignore[attr-defined]
    return run


def _option(offer: Offer, name: str) -> inspect.Parameter:
    """One field of a class of settings as an option: its type, bounds, help and default."""
    from heedful.decode import settings

    field = vars(settings)[offer.settings].model_fields[name]
    offered = next((one for one in field.metadata if isinstance(one, settings.Offered)), settings.Offered())
    bounds: dict[str, Any] = {key: value for one in field.metadata for key, value in _bound(one)}
    if offered.least is not None:
        bounds["min"] = offered.least
    words = field.description.partition("; null:")[0]
    told = offered.help or f"{words[0].upper()}{words[1:]}."
    kind = field.annotation if offer.default else field.annotation | None
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=field.default if offer.default else None,
        annotation=Annotated[kind, typer.Option(help=told, **bounds)],
    )  # fmt: skip


def _bound(limit: object) -> list[tuple[str, Any]]:
    """A limit of a field in the words of the command line."""
    from annotated_types import Ge, Le

    return [("min", limit.ge)] if isinstance(limit, Ge) else [("max", limit.le)] if isinstance(limit, Le) else []
