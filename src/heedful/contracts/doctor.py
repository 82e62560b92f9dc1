"""The contract suite on any model: `heedful.doctor` and `heedful doctor`."""

from __future__ import annotations

import copy
import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from heedful.config import parse
from heedful.contracts.behaviour import FUNCTION_CHECKS, check_finite, check_inputs
from heedful.contracts.comparison import Comparison, Loaded
from heedful.contracts.foreign import foreign_subjects
from heedful.contracts.huggingface import in_transformers
from heedful.contracts.positions import POSITION_CHECKS
from heedful.contracts.precision import check_device, check_dtype
from heedful.contracts.refusals import RefusedError
from heedful.contracts.report import Finding, Report
from heedful.contracts.roles import role_subjects
from heedful.contracts.rows import ROW_CHECKS
from heedful.contracts.settings import CallConfig
from heedful.contracts.sources import Source, build_module, called, find_code
from heedful.contracts.subject import copied
from heedful.contracts.texts import Codec, check_tokenizer, codec_of
from heedful.contracts.weights import check_gradient, check_save
from heedful.errors import UserError
from heedful.files.reading import is_folder
from heedful.hub.folder import is_external, locate_model
from heedful.models import build
from heedful.models.own import Plain, own_class
from heedful.models.roles import ModelConfig
from heedful.runs.load import load
from heedful.tasks.predictor import Predictor

Check = Callable[[str, Loaded], Finding]
COMPARISONS: dict[str, Comparison] = {**FUNCTION_CHECKS, **ROW_CHECKS, **POSITION_CHECKS}
WHOLE: dict[str, Check] = {
    "finite": check_finite, "inputs": check_inputs, "dtype": check_dtype, "device": check_device,
    "gradient": check_gradient, "save": check_save, "tokenizer": check_tokenizer,
}  # fmt: skip
FIRST = ("finite", *FUNCTION_CHECKS, "inputs")
CHECKS = (*FIRST, *(name for name in (*COMPARISONS, *WHOLE) if name not in FIRST))
HALVES = {torch.float16, torch.bfloat16}
NEEDED = ("finite", *FUNCTION_CHECKS)  # what fails them is no function, whose outputs could be compared


def doctor(
    model: Source | str | Path,
    settings: Sequence[str] | CallConfig = (),
    *,
    only: Sequence[str] = (),
    example: Mapping[str, Tensor] | None = None,
    transformers: bool = False,
    on: Callable[[str], object] = lambda check: None,
) -> Report:
    """Check the contracts of a model: batches, padding, causality, caches, precision, gradients, files, its tokenizer.

    `model` is a module, a function that builds one, `module:function`, or a folder: a run, a model, or one of Hugging
    Face, with `transformers=True` in that package instead of ours. `settings` say how a module is called where its
    signature does not, as `["causal=true", "vocab=100"]`; `example` gives other arguments, of which the first row is
    used. `only` names the checks; `on` is called with the name of each before it runs.

        >>> heedful.doctor(torch.nn.LSTM(8, 8, batch_first=True)).failed
    """
    chosen = require_checks(only)
    call = settings if isinstance(settings, CallConfig) else parse(CallConfig, {}, overrides=list(settings))
    loaded = open_model(model, call, example or {}, transformers)
    with evaluation(loaded.module), torch.random.fork_rng(devices=[]):
        findings = dict[str, Finding]()
        for name in (*NEEDED, *(name for name in CHECKS if name not in NEEDED)):
            if name in chosen or name in NEEDED:
                on(name)
                findings[name] = examine(name, loaded, findings)
    parameters = sum(weight.numel() for weight in loaded.module.parameters())
    shown = tuple(findings[name] for name in CHECKS if name in chosen)
    return Report(loaded.name, loaded.called, parameters, shown)


def examine(name: str, loaded: Loaded, before: Mapping[str, Finding]) -> Finding:
    """One check; a comparison of outputs only makes sense if they depend on the input alone."""
    broken = [one for one in NEEDED if one in before and before[one].verdict == "failed"]
    if broken and name != "tokenizer" and (name != "gradient" or broken == ["finite"]):
        about = COMPARISONS[name].about if name in COMPARISONS else "outputs are compared"
        return Finding(name, about, "not applicable", f"outputs cannot be compared: see {broken[0]}")
    try:
        return COMPARISONS[name].run(name, loaded) if name in COMPARISONS else WHOLE[name](name, loaded)
    except RefusedError as error:
        return Finding(
            name, COMPARISONS[name].about if name in COMPARISONS else name, "failed", f"the model {error}",
            cause="it fails on some inputs", advice="see where the error is raised",
        )  # fmt: skip


def require_checks(only: Sequence[str]) -> tuple[str, ...]:
    """The names of the checks to run; an unknown one is an error."""
    for name in only:
        if name not in CHECKS:
            close = difflib.get_close_matches(name, CHECKS, n=1)
            raise UserError(
                f"there is no check {name}", where="only", expected=f"one of {', '.join(CHECKS)}",
                todo=f"did you mean {close[0]}?" if close else None,
            )  # fmt: skip
    return tuple(only) or CHECKS


@contextmanager
def evaluation(module: nn.Module) -> Iterator[None]:
    """The module in evaluation, without gradients, and afterwards as it was."""
    modes = [(one, one.training) for one in module.modules()]
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for one, training in modes:
            one.training = training


# ------------------------------------------------------------------ models
def open_model(
    model: Source | str | Path, call: CallConfig, example: Mapping[str, Tensor], transformers: bool
) -> Loaded:
    """The model with what is varied."""
    if isinstance(model, str | Path) and (":" not in str(model) or is_folder(model)):
        return open_folder(Path(model), call, example, transformers)
    if transformers:
        raise UserError("this is code, no folder of Hugging Face", where=str(model), todo="leave --in transformers out")
    source = find_code(str(model)) if isinstance(model, str | Path) else model
    module, rebuild = build_module(source)
    name = str(model) if isinstance(model, str | Path) else called(source)
    return with_subjects(name, module, call, example, rebuild)


def open_folder(folder: Path, call: CallConfig, example: Mapping[str, Tensor], transformers: bool) -> Loaded:
    """The model of a folder, ours or that of `transformers`."""
    if not is_folder(folder):
        raise UserError(
            "there is no such folder", where=str(folder),
            expected="a run, a model folder, a folder of Hugging Face, or module:function",
            todo="`heedful runs` lists the runs below a folder; code is named as file.py:function",
        )  # fmt: skip
    if transformers:
        if not is_external(folder):
            raise UserError("this is no folder of Hugging Face", where=str(folder), todo="leave --in transformers out")
        module, again, codec = in_transformers(locate_model(folder))
        return with_subjects(f"{folder} in transformers", module, call, example, again, codec)
    predictor = load(folder)
    assert isinstance(predictor, Predictor)
    return with_subjects(str(folder), predictor.model, call, example, None, codec_of(predictor.tokenizer))


def as_single(rebuild: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """The same model in float32."""
    return lambda: rebuild().float()


def with_subjects(
    name: str, module: nn.Module, call: CallConfig, example: Mapping[str, Tensor],
    rebuild: Callable[[], nn.Module] | None, codec: Codec | None = None,
) -> Loaded:  # fmt: skip
    """A model of ours by its role, any other one by its signature."""
    if {weight.dtype for weight in module.parameters()} & HALVES:  # whose rounding would hide what is looked for
        name, module = f"{name}, in float32", copy.deepcopy(module).float()
        rebuild = as_single(rebuild) if rebuild else None
    if any(weight.is_meta for weight in module.parameters()):
        raise UserError("the weights have no values: they are on the device meta", where=name, todo="load or make them")
    config = vars(module).get("config")
    if isinstance(config, ModelConfig) and not own_class(module):
        if example or call != CallConfig():
            raise UserError(
                "a model of the library is called by its role: it needs no settings and no example", where=name,
                found=f"{type(module).__name__}, a {config.kind}", todo="leave them out",
            )  # fmt: skip
        with evaluation(module):
            fresh = copied(module)
            subjects = tuple(replace(one, fresh=fresh) for one in role_subjects(module, config))
        words = tuple(f"a {config.kind}, varying {one.name}" for one in subjects)
        return Loaded(name, module, subjects, words, rebuild or (lambda: build(config)), codec)
    with evaluation(module):
        fresh = copied(module)
        subjects, words = foreign_subjects(module.module if isinstance(module, Plain) else module, call, example)
    fresh = fresh.module if isinstance(fresh, Plain) else fresh
    return Loaded(name, module, tuple(replace(one, fresh=fresh) for one in subjects), words, rebuild, codec)
