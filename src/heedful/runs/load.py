"""Loading predictors from run folders, model folders and Hugging Face folders; writing model folders."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import FunctionType, MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar, overload

import torch
from torch import Tensor, nn

from heedful.config import Config, parse
from heedful.errors import UserError, shown
from heedful.files.json import read_json
from heedful.files.reading import exists, is_file, is_folder, require_folder
from heedful.hub.dense import DenseLayers, split_tensors
from heedful.hub.folder import is_external
from heedful.hub.loading import no_tokenizer_error, pretrained, task_model
from heedful.hub.model_folder import read_model, write_model
from heedful.hub.sentence_transformers import SentenceConfig
from heedful.models import build, config_class
from heedful.models.heads.config import HeadConfig
from heedful.models.own import OwnModel
from heedful.models.unset import Unset
from heedful.runs.artifacts import artifact_texts, hashes, load_artifacts, open_artifacts, places
from heedful.runs.own import builder, require_named
from heedful.runs.recipe import recipe_in, shipped
from heedful.tasks import TASKS, task_class, task_of
from heedful.tasks.base import TINY, AnyTask
from heedful.tasks.predictor import device_of
from heedful.tasks.recipe_parts import Recipe
from heedful.training.checkpoint.choice import by_name, checkpoint_path, split_checkpoint
from heedful.training.checkpoint.folder import is_saved
from heedful.training.checkpoint.loading import load_weights
from heedful.training.checkpoint.manifest import read_manifest
from heedful.training.checkpoint.ties import require_own_model
from heedful.training.checkpoint.weights import load_strictly, require_fit

if TYPE_CHECKING:
    from heedful.tasks.answering.predictor import QuestionAnswerer
    from heedful.tasks.captioning.predictor import ImageCaptioner
    from heedful.tasks.classification.numbers import MultiRegressor
    from heedful.tasks.classification.predictor import TextClassifier, TextRegressor
    from heedful.tasks.control.predictor import Agent
    from heedful.tasks.dialogue.predictor import DialogueModel
    from heedful.tasks.image_classification.predictor import ImageClassifier
    from heedful.tasks.language_model.bidirectional import BidirectionalLanguageModel
    from heedful.tasks.language_model.predictor import TextGenerator
    from heedful.tasks.multi_label.predictor import MultiLabelClassifier
    from heedful.tasks.multiple_choice.predictor import MultipleChoiceAnswerer
    from heedful.tasks.paragraphs.predictor import ImageDescriber
    from heedful.tasks.pretraining.predictor import TextEncoder
    from heedful.tasks.reconstruction.predictor import ImageAutoencoder
    from heedful.tasks.story_answering.predictor import StoryAnswerer
    from heedful.tasks.style_transfer.predictor import TextStyleTransfer
    from heedful.tasks.tabular.predictor import TablePredictor
    from heedful.tasks.tagging.predictor import TokenTagger
    from heedful.tasks.text_autoencoding.predictor import SentenceAutoencoder
    from heedful.tasks.translation.predictor import Translator
    from heedful.tasks.tree_classification.predictor import TreeClassifier

AnyPredictor: TypeAlias = (
    "Translator | TextGenerator | BidirectionalLanguageModel | TextEncoder | TextClassifier | TextRegressor | "
    "MultiRegressor | MultiLabelClassifier | "
    "TokenTagger | QuestionAnswerer | MultipleChoiceAnswerer | ImageAutoencoder | ImageClassifier | ImageCaptioner | "
    "ImageDescriber | TablePredictor | TreeClassifier | SentenceAutoencoder | TextStyleTransfer | Agent | "
    "StoryAnswerer | DialogueModel"
)
K = TypeVar("K")


@overload
def load(
    path: str | Path, device: str | None = None, checkpoint: str | int | None = None, model: OwnModel | None = None
) -> AnyPredictor: ...


@overload
def load(
    path: str | Path,
    kind: type[K],
    device: str | None = None,
    checkpoint: str | int | None = None,
    model: OwnModel | None = None,
) -> K: ...


def load(  # type: ignore[misc]  # `device` comes second, or after a class
    path: str | Path,
    kind: type[object] | str | None = None,
    device: str | int | None = None,
    checkpoint: str | int | None = None,
    model: OwnModel | None = None,
) -> object:
    """A predictor from a run (its final model, else its newest checkpoint), a model folder or a Hugging Face folder.

    Its class depends on the task, such as `Translator` or `TextGenerator`; `load(path, TextGenerator)` is typed, and
    refuses a folder of another kind. `device` is cpu or cuda; None: a GPU if there is one. `checkpoint`
    chooses one of a run's: best, last, average or the number of a step. `model` is the user's own module, or the
    function that builds it, for a run that trained it.

        >>> generator = heedful.load("runs/gpt", heedful.TextGenerator)
    """
    if not isinstance(kind, type) and kind is not None:  # load(path, device, checkpoint)
        kind, device, checkpoint = None, kind, checkpoint if device is None else device
    predictor = _load(Path(path), device_of(None if device is None else str(device)), checkpoint, model)
    if kind is not None and not isinstance(predictor, kind):
        name = type(predictor).__name__
        raise UserError(
            f"this folder does not hold a {kind.__name__}", where=str(path), found=f"a {name}",
            todo=f"load it with heedful.load or heedful.{name}.load",
        )  # fmt: skip
    return predictor


def _load(path: Path, device: torch.device, checkpoint: str | int | None, model: OwnModel | None) -> object:
    found = opened(checkpoint_path(path, checkpoint))
    own = "" if isinstance(found, Path) else found.own
    if not (own and isinstance(model, FunctionType)):  # a function's model can be checked only after it is built
        require_named(own, model, str(path), "heedful.load(path, model=...)")
    if isinstance(found, Path):
        return _published(found, device)
    built = _built(found.config, found.tensors, found.file, model)
    predictor = found.task.predictor(built, found.config, found.vocabulary, found.decode, device, found.notes)
    return _with_dense(predictor, found.dense)


class Opened(NamedTuple):
    """The verified contents of a run folder or a model folder."""

    task: type[AnyTask]
    config: Any
    decode: Any
    vocabulary: Any
    tensors: dict[str, Tensor]
    file: Path
    recipe: Mapping[str, Any]  # settings it was trained with, if known
    notes: tuple[str, ...] = ()
    own: str = ""  # the class name of the user's own model
    dense: Mapping[str, Tensor] = MappingProxyType({})  # tensors of Dense layers on a text's vector


def opened(path: Path) -> Opened | Path:
    """Open a run, a checkpoint or a model folder; returns the path of a Hugging Face folder unchanged."""
    folder, which = split_checkpoint(path)
    require_run_folder(folder)
    portable = folder / "model" if is_folder(folder / "model") else folder
    if which is None and is_external(folder):
        return folder
    if which is None and (portable != folder or is_file(folder / "config.json")):
        if portable != folder and is_file(folder / "recipe.yaml"):
            require_own_model(portable, folder, read_recipe(folder).model_dump(mode="json"))
        task, config, decode, vocabulary, tensors, own, dense = _portable(portable)
        about = read_manifest(portable).about if is_file(portable / "manifest.json") else {}
        recipe = about.get("recipe") or {}
        file = portable / "model.safetensors"
        return Opened(task, config, decode, vocabulary, tensors, file, recipe, own=own, dense=dense)
    described = task_of(read_recipe(folder))
    if not is_saved(folder):
        begun = any(exists(folder / name) for name in described.artifacts)
        raise UserError(
            "this run has no checkpoint yet" if begun else "this run has not started",
            where=str(folder),
            todo="continue training with the same command, then try again",
        )
    task, vocabulary, recipe = type(described), load_artifacts(described, folder), described.recipe
    settings = recipe.model_dump(mode="json")
    found = load_weights(folder, which, settings, recipe.train)
    found.require_artifacts(hashes(described, vocabulary), places(described, folder))
    config = task.fitted(recipe.model, vocabulary, f"{folder / 'recipe.yaml'}: model")
    return Opened(
        task, config, described.decode, vocabulary, found.tensors, found.file, settings, found.notes, recipe.own_model
    )


def _built(config: Any, tensors: dict[str, Tensor], weights: Path, own: OwnModel | None = None) -> nn.Module:
    """Build the model of a config, or the user's own, with weights from a file."""
    if own is not None:
        model = builder(own)(config)
        load_strictly(model, tensors, weights)
        return model
    with torch.device("meta"):  # no memory is allocated before the weights are known to fit
        require_fit(build(config), tensors, weights)
    with Unset():
        model = build(config)
    model.load_state_dict(tensors)
    return model


def _published(folder: Path, device: torch.device) -> object:
    """The predictor of a Hugging Face folder: of a GPT, a translator, or an encoder and its head."""
    found = pretrained(folder)
    if found.tokenizer is None:
        raise no_tokenizer_error(found, folder)
    kind, config, tensors, unused = task_model(found)
    notes = found.notes + ((f"not needed of this folder: {', '.join(unused)}",) if unused else ())
    task = task_class(kind)
    decode: Any = task.decoding() if task.decoding else None
    if found.translates:
        decode = found.decode
    elif found.writes:
        decode = decode.model_copy(update={"start_token": found.starts})
    elif kind == "pretraining":
        decode = found.sentences
    predictor = task.predictor(_built(config, tensors, folder), config, found.tokenizer, decode, device, notes)
    return _with_dense(predictor, found.dense_tensors if kind == "pretraining" else {})


def _with_dense(predictor: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The predictor with the weights of its Dense layers, if there are any."""
    if tensors:
        predictor.dense.load_state_dict(tensors)
    return predictor


def _portable(folder: Path) -> tuple[type[AnyTask], Any, Any, Any, dict[str, Tensor], str, dict[str, Tensor]]:
    """The verified contents of a model folder: task, model, decoding, vocabulary, weights, own class, Dense layers."""
    where = folder / "config.json"

    def task_in(text: str) -> tuple[str, type[AnyTask]]:
        kind, model = _known(_json(text, where), "task", TASKS, where), _json(text, where).get("model")
        return kind, task_class(kind, str(model.get("kind")) if isinstance(model, dict) else None)

    found = read_model(folder, lambda text: task_in(text)[1].artifacts)
    settings, (kind, task) = _json(found.config_json, where), task_in(found.config_json)
    model = _group(settings, "model", where)
    cls: Any = config_class(_known(model, "kind", TASKS[kind].models, where))
    config: Any = parse(cls, model, file=where)
    if isinstance(config, HeadConfig) and (missing := config.missing):
        raise UserError(
            "a part of the model is missing", where=f"{where}: model.{missing[0]}", found="null",
            todo="copy the whole folder again",
        )  # fmt: skip
    decode: Any = parse(task.decoding, _group(settings, "decode", where), file=where) if task.decoding else None
    tensors, dense = split_tensors(found.tensors)
    sentences = SentenceConfig()
    if settings.get("sentences") is not None:
        decode = sentences = parse(SentenceConfig, _group(settings, "sentences", where), file=where)
    with torch.device("meta"):
        layers = DenseLayers.of(dict(config).get("width", 0), sentences)
    require_fit(layers, dense, folder / "model.safetensors")
    if missing := [name for name in task.artifacts if name not in found.artifacts]:
        raise UserError("this file is missing", where=str(folder / missing[0]), todo="copy the whole folder")
    vocabulary = open_artifacts(task, found.artifacts, folder)
    try:
        fits = task.fitted(config, vocabulary, "") == config
    except UserError:
        fits = False
    if not fits:
        raise UserError(
            f"the model and its {' and '.join(task.artifacts)} do not belong together",
            where=f"{where}: model",
            todo="copy the whole folder again",
        )
    return task, config, decode, vocabulary, tensors, str(settings.get("own_model", "")), dense


def _known(settings: dict[str, Any], name: str, known: Collection[str], where: Path) -> str:
    """The value of a setting, which must be one of `known`."""
    found = settings.get(name)
    if not isinstance(found, str) or found not in known:
        raise UserError(
            f"invalid value for {name}", where=f"{where}", found=shown(found), expected="one of " + ", ".join(known),
            todo="copy the whole folder again, or get the version of Heedful that wrote it",
        )  # fmt: skip
    return found


def require_run_folder(folder: Path) -> None:
    """Raise an error, unless the path is a folder; it names the command that trains a run of that name."""
    todo = "`heedful runs` lists the runs below a folder"
    if folder.name in shipped() and folder.parent == Path("runs"):
        todo = f"train it: heedful train {folder.name}\n{todo}"
    require_folder(folder, "a run folder or a model folder", todo)


def name_folders(folders: Sequence[Path]) -> dict[str, Path]:
    """Several runs and model folders by their names; `model`, which every run has, is called as the run."""
    for number, folder in enumerate(folders):
        require_run_folder(split_checkpoint(folder)[0])
        if folder.resolve() in [other.resolve() for other in folders[:number]]:
            raise UserError("the same folder is given twice", where=str(folder), todo="remove one of them")
    called = by_name(folders)
    if "model" in called and (above := called["model"].resolve().parent.name) not in called:
        called = {above if name == "model" else name: folder for name, folder in called.items()}
    return called


def read_recipe(folder: Path, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe of a run folder, or of a checkpoint's run, with other settings."""
    folder, _ = split_checkpoint(folder)
    file = folder / "recipe.yaml"
    if not is_file(file):
        raise UserError(
            "this folder is not a run", where=str(folder), expected="a folder with recipe.yaml in it",
            todo="`heedful runs` lists the runs below a folder",
        )  # fmt: skip
    return recipe_in(file, overrides)


def _json(text: str, where: Path) -> dict[str, Any]:
    try:
        found = read_json(text)
    except ValueError as error:
        raise UserError(
            "this is not JSON", where=f"{where}", found=str(error), todo="copy the whole folder again"
        ) from error
    if not isinstance(found, dict):
        raise UserError("this is not a model's config", where=f"{where}", todo="copy the whole folder again")
    return found


def _group(settings: dict[str, Any], name: str, where: Path) -> dict[str, Any]:
    found = settings.get(name)
    if not isinstance(found, dict):
        raise UserError(
            f"invalid value for {name}", where=str(where), found=shown(found), expected="a group of settings, {...}",
            todo="copy the whole folder again",
        )  # fmt: skip
    return found


def few_threads(model: nn.Module, device: torch.device) -> int:
    """The number of CPU threads for inference: one for a small model."""
    size = sum(weight.numel() for weight in model.parameters())
    return 1 if size < TINY and device.type == "cpu" else cores()


def cores(processes: int = 1) -> int:
    """The number of CPU cores for each of the processes that share the machine."""
    found = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return max(1, found // processes)


def write_portable(
    folder: Path, task: AnyTask, config: Config, model: nn.Module, vocabulary: Any, made: Mapping[str, Any]
) -> None:
    """Write a model folder for `load`: config.json, model.safetensors and the artifacts; `made` describes the run."""
    settings = {"task": task.recipe.task.kind, "model": config.model_dump()}
    settings |= {"decode": task.decode.model_dump()} if task.decode else {}
    settings |= {"own_model": task.recipe.own_model} if task.recipe.own_model else {}
    about = {"recipe": task.recipe.model_dump(mode="json"), **made}
    write_model(
        folder, json.dumps(settings, indent=2) + "\n", model.state_dict(), artifact_texts(task, vocabulary), about
    )
