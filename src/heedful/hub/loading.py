"""Load pretrained models from folders, Heedful's or external, with every tensor accounted for."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from heedful.config import parse
from heedful.data.images.image_spec import ImageSpec
from heedful.data.tokenizers.base import MAX_FILE, Tokenizer
from heedful.data.tokenizers.byte_pairs import END
from heedful.data.tokenizers.encoders import folder_tokenizer, open_encoder_tokenizer, tokenizer_class
from heedful.data.tokenizers.gpt1_bpe import Gpt1Tokenizer
from heedful.data.tokenizers.lm_tokenization import open_tokenizer
from heedful.data.tokenizers.multilingual import open_translation_tokenizer
from heedful.data.tokenizers.sentence_pieces import SentencePieceTokenizer
from heedful.decode.settings import DecodeConfig
from heedful.errors import AGAIN, UserError
from heedful.files.folders import has_file, read_settings, read_text
from heedful.files.reading import is_folder, require_folder
from heedful.files.yaml import load_yaml
from heedful.hub import rules as convert
from heedful.hub.dense import PREFIX, DenseLayers, read_dense, split_tensors
from heedful.hub.folder import (
    exchange_for,
    find_release,
    is_external,
    locate_model,
    model_names,
    no_model_error,
    read_config,
    read_kind,
)
from heedful.hub.gpt_tokenizers import find_tokenizer
from heedful.hub.image_folders import find_image_folder
from heedful.hub.image_models import read_image_model
from heedful.hub.model_folder import read_model
from heedful.hub.rules import LedgerLine
from heedful.hub.safetensors import read_safetensors
from heedful.hub.sentence_transformers import DenseConfig, Poolings, SentenceConfig, read_sentence_config
from heedful.hub.tensorflow import find_checkpoint, read_checkpoint
from heedful.hub.translation_folders import read_generation
from heedful.hub.word_vocabularies import find_words
from heedful.models import build, config_class, kinds_of
from heedful.models.exchange import Exchange, PublishedConfig, Table, head_in, validate_config
from heedful.models.roles import Role
from heedful.training.checkpoint.choice import split_checkpoint
from heedful.training.checkpoint.loading import LoadedWeights, load_weights
from heedful.training.checkpoint.tensors import require_finite
from heedful.training.checkpoint.ties import require_own_model
from heedful.training.checkpoint.weights import require_fit
from heedful.training.configs import TrainConfig

Weights = Callable[[Path], tuple[dict[str, Tensor], Path]]  # returns tensors and the file that they were read from
TASKS: dict[str, str] = {  # by role
    "encoder": "pretraining",
    "causal": "language_model",
    "seq2seq": "translation",
    "image_encoder": "image_classification",
}
OPEN: dict[str, Callable[[str, str], Any]] = {  # the reader of tokenizer.json, by role
    "encoder": open_encoder_tokenizer,
    "causal": open_tokenizer,
    "seq2seq": open_translation_tokenizer,
}
IMAGES = "images.json"
HEADS: dict[str, str] = {  # task by head
    "classifier": "classification",
    "regressor": "regression",
    "multi_label": "multi_label",
    "multiple_choice": "multiple_choice",
    "tagger": "tagging",
    "answerer": "answering",
}
OUTPUTS = {"answerer": 2, "multiple_choice": 1}  # outputs of heads without labels


class Head(NamedTuple):
    """The output layer of a fine-tuned model, on top of its encoder."""

    kind: str
    labels: tuple[str, ...]  # names of the outputs
    tensors: dict[str, Tensor]  # weight and bias
    where: str = ""  # the file with the labels


class Pretrained(NamedTuple):
    """A pretrained model with everything its folder specifies."""

    config: Any  # of an encoder, with the pre-training heads that the folder has
    tokenizer: Any  # None if the folder has none
    tensors: dict[str, Tensor]  # by their names in Heedful's model
    ledger: tuple[LedgerLine, ...]
    head: Head | None = None
    pooling: Poolings | None = None  # how token vectors are pooled, where the folder specifies it
    dense: tuple[DenseConfig, ...] = ()  # layers on the pooled vector
    dense_tensors: Mapping[str, Tensor] = MappingProxyType({})  # of these layers, by their names in `DenseLayers`
    normalize: bool = False
    longest: int | None = None  # maximum tokens per text, where the folder specifies it
    lowercase: bool = False  # whether a text is lowercased before tokenization
    prompt: str = ""  # put before each text that is embedded
    notes: tuple[str, ...] = ()  # for the user
    word_ends: Gpt1Tokenizer | None = None  # GPT-1's tokenizer, which is only converted, not used
    starts: bool = False  # whether texts start with the start token of documents
    decode: DecodeConfig = DecodeConfig()  # how a translator searches

    @property
    def writes(self) -> bool:
        """Whether it is a language model; otherwise it is an encoder, has a head, or is what the next two say."""
        return bool(self.config.role == "causal") and self.head is None

    @property
    def translates(self) -> bool:
        """Whether it is a translator."""
        return bool(self.config.role == "seq2seq")

    @property
    def sees(self) -> bool:
        """Whether it is an image model."""
        return bool(self.config.role == "image_encoder")

    @property
    def below_head(self) -> dict[str, Tensor]:
        """The tensors below the head of a task: of embeddings that are not tied, those of the input."""
        tensors = dict(self.tensors)
        if "tokens.input" in tensors:
            tensors["tokens.weight"] = tensors.pop("tokens.input")
        return tensors

    @property
    def sentences(self) -> SentenceConfig:
        """The settings of sentence embeddings."""
        return SentenceConfig(**{name: getattr(self, name) for name in SentenceConfig.model_fields})


def pretrained(
    folder: Path, weights: Weights = read_safetensors, role: Role | tuple[Role, ...] | None = None
) -> Pretrained:
    """Load the model in a folder, Heedful's or external; with `role`, it must have that role, or one of several."""
    roles = role if isinstance(role, tuple) else () if role is None else (role,)
    if role in (None, "image_encoder") and (images := _images(folder, weights)) is not None:
        return images
    require_folder(locate_model(folder), f"a folder with a trained {model_names(*roles)} in it")
    if not is_external(folder):
        return _own(folder, roles)
    own = locate_model(folder)
    if (sentences := read_sentence_config(own)) is not None:
        model = _hugging_face(sentences.encoder, weights, roles)
        tensors, lines = read_dense(sentences, model.config.width, weights)
        found = {name: value for name, value in sentences.settings if value is not None}
        return model._replace(dense_tensors=tensors, ledger=model.ledger + lines, **found)
    if has_file(own, "config.json"):
        return _hugging_face(own, weights, roles)
    if (released := find_release(own, roles)) is not None and (name := find_checkpoint(own)) is not None:
        return _first_release(own, name, *released)
    raise no_model_error(folder)


def _images(folder: Path, weights: Weights) -> Pretrained | None:
    """Load an image model, Heedful's or published, if there is one in the folder."""
    if is_folder(folder) and not is_external(folder):
        return _own_images(folder) if read_kind(folder) in kinds_of("image_encoder") else None
    if (found := find_image_folder(locate_model(folder))) is None:
        return None
    config, spec, tensors, ledger, notes = read_image_model(found, weights)
    return Pretrained(config, spec, tensors, ledger, notes=notes)


def _own_images(folder: Path) -> Pretrained:
    """Load an image model from a run or model folder of Heedful."""
    config: Any = read_config(folder, "image_encoder")
    files = read_own_files(folder, IMAGES)
    refuse_own_model(files.settings, folder)
    spec = ImageSpec.parse(files.tokenizer, str(files.folder / IMAGES))
    if files.checkpoint is not None:
        where = str(files.folder / IMAGES)
        files.checkpoint.require_artifacts({"tokenizer": spec.sha256}, {"tokenizer": where})
    config = config.model_copy(update={"classes": len(spec.names)})
    with torch.device("meta"):
        require_fit(build(config), files.tensors, files.file)
    ledger = tuple(LedgerLine(name, name, "as it is", tensor) for name, tensor in files.tensors.items())
    return Pretrained(config, spec, files.tensors, ledger)


def no_tokenizer_error(model: Pretrained, folder: Path) -> UserError:
    """The error for a model that has no usable tokenizer."""
    if model.word_ends is not None:
        return UserError(
            "GPT-1 cannot generate text: its vocabulary has no start token", where=str(folder),
            expected="a GPT-2, or a GPT that was trained here",
            todo=f"heedful convert {shlex.quote(str(folder))} NEW_FOLDER --to hf converts it",
        )  # fmt: skip
    if model.translates:
        return UserError(
            "there is no tokenizer in this folder", where=str(folder), expected="vocab.json, source.spm and target.spm",
            todo="add the tokenizer files that the model was trained with",
        )  # fmt: skip
    pairs, published = "tokenizer.json, or vocab.json and merges.txt", model.config.usual_tokenizer
    pairs = f"vocab.bin, vocab.pkl or vocab.txt, or {pairs}" if published == "words" else pairs
    return UserError(
        "there is no tokenizer in this folder", where=str(folder),
        expected=pairs if model.writes else tokenizer_class(published).expected,
        todo="add the tokenizer file that the model was trained with",
    )  # fmt: skip


def _hugging_face(folder: Path, weights: Weights, roles: tuple[Role, ...]) -> Pretrained:
    """Load a Hugging Face folder, with the heads that its weights include."""
    where, settings = folder / "config.json", read_settings(folder, "config.json")
    exchange = exchange_for(settings, where, roles)
    published = exchange.read_config(settings, where)
    tensors, file = weights(folder)
    names = exchange.canonical(tensors)
    published = exchange.match_tensors(published, set(names.values()), where)
    published = published._replace(
        head=head_in(settings, published.head, where)
    )  # it may be known by its tensors alone
    table = exchange.table(published.config, published.head)
    ours, ledger = _convert(tensors, names, table, published.config, file)
    return _with_head(published, ours, ledger, folder, where)


def _first_release(folder: Path, name: str, exchange: Exchange, settings: str) -> Pretrained:
    """Load the TensorFlow checkpoint of a model's first release, with the heads that its weights include."""
    where, file = folder / settings, folder / f"{name}.index"
    published = exchange.release_config(read_settings(folder, where.name), where)
    tensors = exchange.release_tensors(read_checkpoint(folder, name))
    published, table = exchange.release_table(published, tensors)
    require_finite(tensors, str(file), AGAIN)
    ours, ledger = _convert(tensors, {name: name for name in tensors}, table, published.config, file)
    return _with_head(published, ours, ledger, folder, where)


def _with_head(
    published: PublishedConfig, tensors: dict[str, Tensor], ledger: tuple[LedgerLine, ...], folder: Path, where: Path
) -> Pretrained:
    """Separate the head from the encoder, and find the tokenizer beside them."""
    config, head = published.config, published.head
    own = {name.removeprefix("head."): tensors.pop(name) for name in ("head.weight", "head.bias") if name in tensors}
    if head == "classifier" and len(own["weight"]) == 1:
        head = "regressor"
    labels = () if head is None else _output_labels(published.labels, len(own["weight"]), head, where)
    top = None if head is None else Head(head, labels, own, str(where))
    model = Pretrained(config, None, tensors, ledger, top, notes=published.notes)
    if model.translates:
        decode, notes = read_generation(folder, config.context)
        pieces = SentencePieceTokenizer.from_folder(folder, config.vocab, config.source_vocab)
        return model._replace(tokenizer=pieces, decode=decode, notes=model.notes + notes)
    if config.role == "causal":
        if config.usual_tokenizer == "words" and (words := find_words(folder, config.vocab or 0)) is not None:
            return model._replace(tokenizer=words, starts=True)  # a line begins after the end of another
        pairs, starts = find_tokenizer(folder, config.vocab or 0, config.usual_tokenizer)
        if isinstance(pairs, Gpt1Tokenizer):
            return model._replace(word_ends=pairs)
        if starts and head is not None:
            raise UserError(
                "not supported: a start token before each text, under the head of a task", where=str(folder),
                found=f"{END} before each text", expected="the tokens of the text alone",
                todo="name the folder of another model, or start from this one in a recipe",
            )  # fmt: skip
        return model._replace(tokenizer=pairs, starts=starts)
    tokenizer, longest, notes = folder_tokenizer(folder, config.usual_tokenizer, config.vocab or 0)
    longest = None if longest is None or longest >= config.context else longest
    return model._replace(tokenizer=tokenizer, longest=longest, notes=model.notes + notes)


def _convert(
    tensors: dict[str, Tensor], names: dict[str, str], table: Table, config: Any, file: Path
) -> tuple[dict[str, Tensor], tuple[LedgerLine, ...]]:
    """Convert external tensors to Heedful's, checking their shapes; `names` maps their names to the table's."""
    names = convert.newer_names(names, table)
    needed = {name for rule in table.rules for name in rule.theirs}
    shapes: dict[str, tuple[int, ...]] = {}
    if needed <= set(names.values()):
        with torch.device("meta"):
            shapes = {name: tuple(tensor.shape) for name, tensor in build(config).state_dict().items()}
        for rule in (rule for rule in table.rules if rule.ours == "head.weight"):
            weight = next(tensors[name] for name, known in names.items() if known in rule.theirs)
            outputs = weight.shape[0] if weight.dim() else 0
            shapes |= {"head.weight": (outputs, config.width), "head.bias": (outputs,)}
    return convert.read_tensors(tensors, names, table, shapes, file)


def _output_labels(labels: tuple[str, ...], count: int, head: str, where: Path) -> tuple[str, ...]:
    """The labels of a head's outputs; LABEL_0, LABEL_1, ... if the config has only such default labels."""
    if (expected := OUTPUTS.get(head, count)) != count:
        raise UserError(
            "this head has the wrong number of outputs", where=str(where), found=str(count), expected=str(expected),
            todo=AGAIN,
        )  # fmt: skip
    if head in OUTPUTS or (head == "regressor" and count == 1):
        return ()
    if len(labels) == count:
        return labels
    if any(label != f"LABEL_{index}" for index, label in enumerate(labels)):
        raise UserError(
            "the number of labels differs from the number of outputs", where=f"{where}: id2label",
            found=f"{len(labels):,} labels", expected=f"{count:,}, the rows of the head's weight", todo=AGAIN,
        )  # fmt: skip
    return tuple(f"LABEL_{index}" for index in range(count))


class OwnFiles(NamedTuple):
    """The contents of a run or model folder of Heedful: settings, weights with their file, and tokenizer."""

    folder: Path
    settings: Any
    tensors: dict[str, Tensor]
    file: Path
    tokenizer: str
    checkpoint: LoadedWeights | None = None  # if the weights are those of a checkpoint

    def require(self, tokenizer: Tokenizer) -> None:
        """Refuse a tokenizer other than the one that the checkpoint was trained with."""
        if self.checkpoint is not None:
            where = str(self.folder / "tokenizer.json")
            self.checkpoint.require_artifacts({"tokenizer": tokenizer.sha256}, {"tokenizer": where})


def read_own_files(folder: Path, artifact: str = "tokenizer.json") -> OwnFiles:
    """Read a run or model folder of Heedful: the final model, else a checkpoint; `artifact` is the tokenizer's file."""
    portable = locate_model(folder)
    if has_file(portable, "config.json"):
        if portable != folder and has_file(folder, "recipe.yaml"):
            require_own_model(portable, folder, load_yaml(folder / "recipe.yaml")[0])
        settings: Any = read_settings(portable, "config.json")
        files = read_model(portable, lambda config: [artifact])
        tensors, file, text = files.tensors, portable / "model.safetensors", files.artifacts.get(artifact)
    else:
        run, which = split_checkpoint(folder)
        settings, _ = load_yaml(run / "recipe.yaml")
        train = parse(TrainConfig, settings.get("train") or {}, file=run / "recipe.yaml")
        weights = load_weights(run, which, settings, train)
        text = read_text(run, artifact, MAX_FILE)
        return OwnFiles(run, settings, weights.tensors, weights.file, text, weights)
    if text is None:
        raise UserError("this file is missing", where=str(portable / artifact), todo="copy the whole folder")
    return OwnFiles(portable, settings, tensors, file, text)


def _own(folder: Path, roles: tuple[Role, ...]) -> Pretrained:
    """Load a run or model folder of Heedful, or the encoder of a fine-tuned model."""
    config = read_config(folder, *roles)
    files = read_own_files(folder)
    portable, settings, _, file, text, _ = files
    weights, dense = split_tensors(files.tensors)
    refuse_own_model(settings, folder)
    where = str(portable / "tokenizer.json")
    tokenizer: Any = OPEN[config.role](text, where)
    files.require(tokenizer)
    config = config.model_copy(update={"vocab": config.vocab or tokenizer.vocab})
    if isinstance(tokenizer, SentencePieceTokenizer):
        here, there = (tokenizer.vocab, tokenizer.source_vocab), (config.vocab, dict(config).get("source_vocab"))
        if here != there:
            raise UserError(
                "the model and its tokenizer.json do not belong together", where=where,
                found=_sizes(*here), expected=_sizes(*there), todo="copy the whole folder again",
            )  # fmt: skip
    model = settings["model"]
    below = "encoder." if "encoder" in model else ""
    tensors = {name.removeprefix(below): tensor for name, tensor in weights.items() if name.startswith(below)}
    with torch.device("meta"):
        require_fit(build(config), tensors, file)
    rest = {name: tensor for name, tensor in weights.items() if not name.startswith(below)}
    ledger = [LedgerLine(below + name, name, "as it is", tensor) for name, tensor in tensors.items()]
    head, longest = _own_head(model, rest, portable / "config.json")
    operation = "as it is" if head else "left out, it is no one layer"
    ledger += [LedgerLine(name, name if head else None, operation, tensor) for name, tensor in rest.items()]
    sentences, decode = settings.get("sentences"), settings.get("decode")
    more: dict[str, Any] = {"longest": longest}
    if sentences is not None:
        more = dict(parse(SentenceConfig, sentences, file=portable / "config.json"))
    with torch.device("meta"):
        layers = DenseLayers.of(config.width, SentenceConfig(**more))
    require_fit(layers, dense, file)
    ledger += [LedgerLine(PREFIX + name, PREFIX + name, "as it is", tensor) for name, tensor in dense.items()]
    starts = (
        config.role == "causal"
        and head is None
        and not (isinstance(decode, dict) and decode.get("start_token") is False)
    )
    if config.role == "seq2seq" and decode is not None:
        more["decode"] = parse(DecodeConfig, decode, file=portable / "config.json")
    return Pretrained(config, tokenizer, tensors, tuple(ledger), head, dense_tensors=dense, starts=starts, **more)


def _sizes(vocab: int, source: int | None) -> str:
    """The size of the vocabulary of a translator, or of both, in words."""
    return f"{vocab:,} tokens" if source is None else f"{source:,} tokens of the source, and {vocab:,} of the target"


def _own_head(model: dict[str, Any], rest: dict[str, Tensor], where: Path) -> tuple[Head | None, int | None]:
    """The head of a fine-tuned model of Heedful, if it is a single layer, and the maximum length of a text."""
    kind = model.get("kind")
    if kind not in HEADS:
        return None, None
    config = parse(config_class(kind), model, file=where)
    if not {"head.weight"} <= rest.keys() <= {"head.weight", "head.bias"} or model.get("features", "last") != "last":
        return None, config.longest
    known = dict(config)
    labels: tuple[str, ...] = tuple(known.get("labels") or known.get("numbers") or ())
    return Head(kind, labels, {name.removeprefix("head."): value for name, value in rest.items()}), config.longest


def refuse_own_model(settings: Any, folder: Path) -> None:
    """Refuse a model of the user's own class."""
    if own := settings.get("own_model"):
        raise UserError(
            "a model of your own class has no published format", where=str(folder), found=f"the class {own}",
            todo=f"load it in Python: heedful.load(path, model={own})",
        )  # fmt: skip


class TaskModel(NamedTuple):
    """A model for a folder of Heedful: task, settings and tensors, and the names of tensors that are not used."""

    task: str
    config: Any
    tensors: dict[str, Tensor]
    unused: tuple[str, ...]


def task_model(model: Pretrained) -> TaskModel:
    """Combine encoder and head into one model; a model without a head is unchanged."""
    if model.sees and model.config.classes is None:
        raise UserError(
            "this image model has no last layer, and so no classes", where="head.weight",
            todo="train one on your images: set start.folder in a recipe of image classification",
        )  # fmt: skip
    if model.head is None:
        return TaskModel(TASKS[model.config.role], model.config, model.tensors, ())
    kind, labels, top, where = model.head
    cls = config_class(kind)
    encoder = model.config.under_head(cls.pools, kind)
    settings: dict[str, Any] = {
        "encoder": encoder,
        "dropout": model.config.dropout,
        "labels": labels,
        "numbers": labels,
        "longest": model.longest,
    }
    settings = {name: value for name, value in settings.items() if name in cls.model_fields}
    config = validate_config(cls, settings, {"labels": "id2label", "numbers": "id2label"}, where)
    with torch.device("meta"):
        needed = build(encoder).state_dict()
    tensors = {f"encoder.{name}": value for name, value in model.below_head.items() if name in needed}
    tensors |= {f"head.{name}": value for name, value in top.items()}
    return TaskModel(HEADS[kind], config, tensors, tuple(name for name in model.tensors if name not in needed))
