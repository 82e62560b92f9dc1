"""Trained encoders from folders, ours or of others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from heedful.config import parse
from heedful.data.tokenizers.base import LARGEST
from heedful.data.tokenizers.lm_tokenization import LanguageTokenizer
from heedful.data.tokenizers.wordpieces import WordPieces
from heedful.errors import UserError
from heedful.files.reading import require_folder
from heedful.files.yaml import load_yaml
from heedful.hub import bert
from heedful.hub import rules as convert
from heedful.hub.configs import HeadKind, checked, config_of, described, home, original, unknown
from heedful.hub.files import AGAIN, has, read_settings, read_text
from heedful.hub.model_folder import read_model
from heedful.hub.rules import Line, Table
from heedful.hub.safetensors import PICKLES, safetensors_in
from heedful.hub.sentences import SentenceConfig, sentences_in
from heedful.hub.tensorflow import checkpoint_in, read_checkpoint
from heedful.hub.vocabularies import tokenizer_in
from heedful.models.bert.config import BertConfig
from heedful.models.bert.model import Bert
from heedful.models.gpt.config import GptConfig
from heedful.models.heads.config import (
    AnswererConfig,
    ClassifierConfig,
    HeadConfig,
    MultipleChoiceConfig,
    RegressorConfig,
    TaggerConfig,
)
from heedful.training.checkpoint.choice import picked
from heedful.training.checkpoint.chosen import Chosen, chosen
from heedful.training.checkpoint.tensors import require_finite
from heedful.training.checkpoint.ties import require_own_model
from heedful.training.checkpoint.weights import require_fit
from heedful.training.configs import TrainConfig

Weights = Callable[[Path], tuple[dict[str, Tensor], Path]]  # how they are read, and from which file
MODELS: dict[HeadKind, tuple[str, type[HeadConfig]]] = {  # the task and the settings of each
    "classifier": ("classification", ClassifierConfig),
    "regressor": ("regression", RegressorConfig),
    "multiple_choice": ("multiple_choice", MultipleChoiceConfig),
    "tagger": ("tagging", TaggerConfig),
    "answerer": ("answering", AnswererConfig),
}


class Head(NamedTuple):
    """What a fine-tuned folder has on top of its encoder."""

    kind: HeadKind
    labels: tuple[str, ...]  # what its outputs are called
    tensors: dict[str, Tensor]  # weight and bias
    where: str = ""  # the file that names the outputs


class Pretrained(NamedTuple):
    """A trained encoder with all that its folder tells."""

    config: BertConfig  # with those heads of the pre-training that are there
    tokenizer: WordPieces | None
    tensors: dict[str, Tensor]  # by their names in our model
    ledger: tuple[Line, ...]
    head: Head | None = None
    pooling: Literal["mean", "first"] | None = None  # how a text's vector is made, where the folder says so
    normalize: bool = False
    longest: int | None = None  # tokens of a text that are read, where the folder says so
    lowercase: bool = False  # whether a text is made lower case before the tokenizer reads it
    prompt: str = ""  # what is put before each text that a vector is made of
    notes: tuple[str, ...] = ()  # what whoever loads it should know

    @property
    def sentences(self) -> SentenceConfig:
        """How one vector is made of a text."""
        return SentenceConfig(**{name: getattr(self, name) for name in SentenceConfig.model_fields})


def foreign(folder: Path) -> bool:
    """Whether a folder holds a model that others wrote."""
    own = home(folder)
    if has(own, "config.json"):
        return "task" not in read_settings(own, "config.json")
    return any(has(own, name) for name in ("modules.json", "bert_config.json", "hparams.json", *PICKLES))


def pretrained(folder: Path, weights: Weights = safetensors_in) -> Pretrained:
    """The encoder in a folder of ours or of others, every tensor of it accounted for."""
    require_folder(home(folder), "a folder with a trained BERT in it")
    if not foreign(folder):
        return _own(folder)
    own = home(folder)
    if (sentences := sentences_in(own)) is not None:
        encoder, told = sentences
        found = _hugging_face(encoder, weights)
        return found._replace(**{"longest": found.longest, **told.model_dump(exclude_none=True)})
    if has(own, "config.json"):
        return _hugging_face(own, weights)
    if has(own, "bert_config.json") and (name := checkpoint_in(own)) is not None:
        return _tensorflow(own, name)
    raise unknown(folder)


def _hugging_face(folder: Path, weights: Weights) -> Pretrained:
    """The encoder in a folder of Hugging Face's make, with those heads that its tensors tell of."""
    where = folder / "config.json"
    config, head, labels, named = described(read_settings(folder, "config.json"), where)
    given, file = weights(folder)
    called = bert.canonical(given)
    names = set(called.values())
    config, head = _as_found(config, head, named, names)
    tensors, ledger = _fitted(given, called, bert.table(config, head), config, file)
    return _with_head(config, head, labels, tensors, ledger, folder, where)


def _tensorflow(folder: Path, name: str) -> Pretrained:
    """The encoder in an original checkpoint of TensorFlow, with those heads that its tensors tell of."""
    where = folder / "bert_config.json"
    config = original(read_settings(folder, where.name), where)
    given = read_checkpoint(folder, name)
    config, head = bert.parts_of_original(config, given)
    table = bert.original(config, head, given)
    file = folder / f"{name}.index"
    require_finite(given, str(file), AGAIN)
    tensors, ledger = _fitted(given, {name: name for name in given}, table, config, file)
    return _with_head(config, head, (), tensors, ledger, folder, where)


def _with_head(
    config: BertConfig,
    head: HeadKind | None,
    labels: tuple[str, ...],
    tensors: dict[str, Tensor],
    ledger: tuple[Line, ...],
    folder: Path,
    where: Path,
) -> Pretrained:
    """An encoder and what is on top of it, apart, with the tokenizer beside them."""
    own = {name.removeprefix("head."): tensors.pop(name) for name in ("head.weight", "head.bias") if name in tensors}
    if head == "classifier" and len(own["bias"]) == 1:
        head = "regressor"
    top = None if head is None else Head(head, _named(labels, len(own["bias"]), head, where), own, str(where))
    tokenizer, longest, notes = tokenizer_in(folder, config.vocab or 0)
    longest = None if longest is None or longest >= config.context else longest
    return Pretrained(config, tokenizer, tensors, ledger, top, longest=longest, notes=notes)


def _as_found(
    config: BertConfig, head: HeadKind | None, named: bool, names: set[str]
) -> tuple[BertConfig, HeadKind | None]:
    """The parts that the tensors tell of; which of two heads of one name it is, the file says, else the pooler."""
    pooler = "bert.pooler.dense.weight" in names
    follows = any(name.startswith("cls.seq_relationship.") for name in names)
    found = config.model_copy(
        update={
            "pooler": pooler or follows or (config.pooler and named and head is not None),
            "masked_words": any(name.startswith("cls.predictions.") for name in names),
            "next_sentence": follows,
        }
    )
    if head is None and not named:
        if "classifier.weight" in names:
            return found, "classifier" if pooler else "tagger"
        if "qa_outputs.weight" in names:
            return found, "answerer"
    return found, head


def _fitted(
    given: dict[str, Tensor],
    called: dict[str, str],
    table: Table,
    config: BertConfig,
    file: Path,
) -> tuple[dict[str, Tensor], tuple[Line, ...]]:
    """Our tensors of theirs, each of the shape that it has in our model."""
    needed = {name for rule in table.rules for name in rule.theirs}
    shapes: dict[str, tuple[int, ...]] = {}
    if needed <= set(called.values()):  # a config may ask for a model of any size: it is not laid out in vain
        with torch.device("meta"):
            shapes = {name: tuple(tensor.shape) for name, tensor in Bert(config).state_dict().items()}
        for rule in (rule for rule in table.rules if rule.ours == "head.bias"):
            bias = next(given[name] for name, known in called.items() if known in rule.theirs)
            shapes |= {"head.weight": (bias.numel(), config.width), "head.bias": (bias.numel(),)}
    return convert.read(given, called, table, shapes, file)


def _named(labels: tuple[str, ...], count: int, head: HeadKind, where: Path) -> tuple[str, ...]:
    """What the outputs of a head are called, if as many names are given; those that only count are made anew."""
    if (wanted := {"answerer": 2, "regressor": 1, "multiple_choice": 1}.get(head, count)) != count:
        raise UserError(
            "this head has another number of outputs",
            where=str(where),
            found=str(count),
            expected=str(wanted),
            todo=AGAIN,
        )
    if head in ("answerer", "regressor", "multiple_choice"):
        return ()
    if len(labels) == count:
        return labels
    if any(label != f"LABEL_{index}" for index, label in enumerate(labels)):
        raise UserError(
            "there are more or fewer labels than outputs", where=f"{where}: id2label", found=f"{len(labels):,} labels",
            expected=f"{count:,}, the rows of the head's weight", todo=AGAIN,
        )  # fmt: skip
    return tuple(f"LABEL_{index}" for index in range(count))


class OwnFiles(NamedTuple):
    """What a run or a model of ours holds: its settings, its weights with their file, and its tokenizer."""

    folder: Path
    settings: Any
    tensors: dict[str, Tensor]
    file: Path
    tokenizer: str
    chosen: Chosen | None = None  # where they are a checkpoint's

    def require(self, tokenizer: WordPieces | LanguageTokenizer) -> None:
        """Refuse a tokenizer that a checkpoint was not trained with."""
        if self.chosen is not None:
            self.chosen.require_vocabulary(tokenizer.sha256, self.folder / "tokenizer.json")


def own_files(folder: Path) -> OwnFiles:
    """What a run or a model of ours holds: the final model, else the newest checkpoint."""
    portable = home(folder)
    if has(portable, "config.json"):
        if portable != folder and has(folder, "recipe.yaml"):
            require_own_model(portable, folder, load_yaml(folder / "recipe.yaml")[0])
        settings: Any = read_settings(portable, "config.json")
        found = read_model(portable)
        given, file, text = found.tensors, portable / "model.safetensors", found.tokenizer_json
    else:
        run, which = picked(folder)
        settings, _ = load_yaml(run / "recipe.yaml")
        train = parse(TrainConfig, settings.get("train") or {}, file=run / "recipe.yaml")
        weights = chosen(run, which, settings, train)
        text = read_text(run, "tokenizer.json", LARGEST)
        return OwnFiles(run, settings, weights.tensors, weights.file, text, weights)
    if text is None:
        raise UserError(
            "the tokenizer is missing", where=str(portable / "tokenizer.json"), todo="copy the whole folder"
        )
    return OwnFiles(portable, settings, given, file, text)


def _own(folder: Path) -> Pretrained:
    """The encoder in a run or a model of ours."""
    config = config_of(folder)
    found = own_files(folder)
    portable, settings, given, file, text, _ = found
    tokenizer = WordPieces(text, str(portable / "tokenizer.json"))
    found.require(tokenizer)
    config = config.model_copy(update={"vocab": config.vocab or tokenizer.vocab})
    model = settings["model"]
    below = "encoder." if "encoder" in model else ""
    tensors = {name.removeprefix(below): tensor for name, tensor in given.items() if name.startswith(below)}
    with torch.device("meta"):
        require_fit(Bert(config), tensors, file)
    rest = {name: tensor for name, tensor in given.items() if not name.startswith(below)}
    ledger = [Line(below + name, name, "as it is", tensor) for name, tensor in tensors.items()]
    head, longest = _own_head(model, rest, portable / "config.json")
    fate = "as it is" if head else "left out, it is no one layer"
    ledger += [Line(name, name if head else None, fate, tensor) for name, tensor in rest.items()]
    said = settings.get("sentences")
    told = {"longest": longest} if said is None else dict(parse(SentenceConfig, said, file=portable / "config.json"))
    return Pretrained(config, tokenizer, tensors, tuple(ledger), head, **told)


def _own_head(model: dict[str, Any], rest: dict[str, Tensor], where: Path) -> tuple[Head | None, int | None]:
    """What a fine-tuned model of ours has on top of its encoder, if that is one layer, and how much it reads."""
    kind = next((kind for kind in MODELS if kind == model.get("kind")), None)
    if kind is None:
        return None, None
    config = parse(MODELS[kind][1], model, file=where)
    if rest.keys() != {"head.weight", "head.bias"} or model.get("features", "last") != "last":
        return None, config.longest
    labels: tuple[str, ...] = tuple(config.model_dump().get("labels") or ())
    return Head(kind, labels, {name.removeprefix("head."): value for name, value in rest.items()}), config.longest


class Whole(NamedTuple):
    """A model as a folder of ours has it: task, settings, all tensors; and which of theirs it has no use for."""

    task: str
    config: BertConfig | HeadConfig | GptConfig
    tensors: dict[str, Tensor]
    unused: tuple[str, ...]


def whole(found: Pretrained) -> Whole:
    """The model that an encoder and its head make together."""
    if found.head is None:
        return Whole("pretraining", found.config, found.tensors, ())
    kind, labels, top, where = found.head
    task, make = MODELS[kind]
    parts = {"pooler": make.pools, "masked_words": False, "next_sentence": False}
    settings: dict[str, Any] = {
        "encoder": found.config.model_copy(update=parts),
        "dropout": found.config.dropout,
        "labels": labels,
        "longest": found.longest,
    }
    settings = {name: value for name, value in settings.items() if name in make.model_fields}
    config = checked(make, settings, {"labels": "id2label"}, where)
    left = ("masked_words.", "next_sentence.", *(() if make.pools else ("pooler.",)))
    tensors = {f"encoder.{name}": value for name, value in found.tensors.items() if not name.startswith(left)}
    tensors |= {f"head.{name}": value for name, value in top.items()}
    return Whole(task, config, tensors, tuple(name for name in found.tensors if name.startswith(left)))
