"""Settings of BERT as others write them, and as ours; readable without torch.

Only the keys below are read. Those that would change what is computed are refused by name where they do; the rest,
such as how a text is to be generated, say nothing about an encoder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from pydantic import ValidationError

from heedful.config import Config, parse
from heedful.errors import UserError, shown
from heedful.files.reading import is_folder, require_folder
from heedful.files.yaml import load_yaml
from heedful.hub.files import AGAIN, has, read_settings, wrong
from heedful.hub.sentences import sentences_in
from heedful.models.bert.config import BertConfig
from heedful.training.checkpoint.choice import picked

AnyConfig = TypeVar("AnyConfig", bound=Config)
HeadKind = Literal["classifier", "regressor", "multiple_choice", "tagger", "answerer"]
SIZES = {  # their key, ours, the least and the most
    "vocab_size": ("vocab", 5, 10_000_000),
    "hidden_size": ("width", 1, 65_536),
    "num_hidden_layers": ("layers", 1, 1000),
    "num_attention_heads": ("heads", 1, 1024),
    "intermediate_size": ("hidden", 1, 1_048_576),
    "max_position_embeddings": ("context", 4, 1_048_576),
    "type_vocab_size": ("segments", 1, 1000),
}
SHARES = {"hidden_dropout_prob": "dropout", "attention_probs_dropout_prob": "attention_dropout"}
ACTIVATIONS: dict[str, Literal["gelu", "gelu_tanh", "relu", "swish"]] = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "swish",
    "swish": "swish",
}
THEIRS = {"gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh", "relu": "relu", "swish": "silu"}
# What a model of each name has on top of its encoder: pooler, masked words, next sentence, and a head of its own.
ARCHITECTURES: dict[str, tuple[bool, bool, bool, HeadKind | None]] = {
    "BertModel": (True, False, False, None),
    "BertForPreTraining": (True, True, True, None),
    "BertForMaskedLM": (False, True, False, None),
    "BertForNextSentencePrediction": (True, False, True, None),
    "BertForSequenceClassification": (True, False, False, "classifier"),
    "BertForMultipleChoice": (True, False, False, "multiple_choice"),
    "BertForTokenClassification": (False, False, False, "tagger"),
    "BertForQuestionAnswering": (False, False, False, "answerer"),
}
# Settings that change what is computed, with the values under which they do not.
HARMLESS: dict[str, tuple[Any, ...]] = {
    "is_decoder": (False, None),
    "add_cross_attention": (False, None),
    "is_encoder_decoder": (False, None),
    "position_embedding_type": ("absolute", None),
    "pruned_heads": ({}, None),
    "quantization_config": (None,),
    "auto_map": (None,),
    "embedding_size": (None,),
}
MOST_LABELS = 100_000


class Described(NamedTuple):
    """What a config file of others says: the encoder with its heads, what is on top, and the names of its outputs."""

    config: BertConfig
    head: HeadKind | None
    labels: tuple[str, ...]
    named: bool  # whether the file says which of the heads there are


def config_of(folder: Path) -> BertConfig:
    """The encoder in a folder, ours or of others, by its config files alone."""
    own = home(folder)
    require_folder(own, "a folder with a trained BERT in it")
    if (sentences := sentences_in(own)) is not None:
        own = sentences[0]
    if has(own, "config.json"):
        settings = read_settings(own, "config.json")
        if "task" in settings:
            return _ours(settings.get("model"), own / "config.json")
        return described(settings, own / "config.json").config
    if has(own, "recipe.yaml"):
        return _ours(load_yaml(own / "recipe.yaml")[0].get("model"), own / "recipe.yaml")
    if has(own, "bert_config.json"):
        return original(read_settings(own, "bert_config.json"), own / "bert_config.json")
    raise unknown(folder)


def own_model(folder: Path) -> Mapping[str, Any]:
    """The settings of the model in a run or a model of ours, as they are written; none if the folder is not ours."""
    own = home(folder)
    if has(own, "config.json"):
        settings = read_settings(own, "config.json")
    elif has(own, "recipe.yaml"):
        settings = load_yaml(own / "recipe.yaml")[0]
    else:
        return {}
    model = settings.get("model")
    return model if "task" in settings and isinstance(model, dict) else {}


def home(folder: Path) -> Path:
    """Where the files of a model are: in the folder itself, or in `model` below it, as in a run."""
    run, which = picked(folder)
    if which is not None:
        return run  # whose checkpoint is meant, not its final model
    below = folder / "model"
    return below if is_folder(below) and (has(folder, "recipe.yaml") or not has(folder, "config.json")) else folder


def unknown(folder: Path) -> UserError:
    """The error of a folder in which no model is found."""
    return UserError(
        "there is no model in this folder", where=str(folder),
        expected="config.json and model.safetensors, or bert_config.json and bert_model.ckpt.*, or hparams.json and "
        "model.ckpt.*, or a run of ours",
        todo="name the folder that holds these files",
    )  # fmt: skip


def _ours(model: Any, where: Path) -> BertConfig:
    """The encoder among a model's settings, as a folder of ours has them."""
    group = model.get("encoder", model) if isinstance(model, dict) else None
    if not isinstance(group, dict) or group.get("kind", "bert") != "bert":
        kind = group.get("kind") if isinstance(group, dict) else None
        raise UserError(
            "this model has no BERT in it", where=str(where), found=shown(kind), expected="a model of kind bert"
        )
    return parse(BertConfig, group, file=where)


def original(settings: Mapping[str, Any], where: Path) -> BertConfig:
    """The settings beside an original TensorFlow checkpoint, which has both heads of the pre-training."""
    return described({**settings, "architectures": ["BertForPreTraining"]}, where).config


def described(settings: Mapping[str, Any], where: Path) -> Described:
    """The settings of a config file of others, each checked and named if it is not right."""
    _refuse_others(settings, where)
    found: dict[str, Any] = {
        ours: whole(settings, key, least, most, where) for key, (ours, least, most) in SIZES.items()
    }
    found |= {ours: real(settings, key, 0.1, where) for key, ours in SHARES.items()}
    act = settings.get("hidden_act", "gelu")
    if not isinstance(act, str) or act not in ACTIVATIONS:
        raise unsupported(where, "hidden_act", act, ACTIVATIONS)
    found["activation"] = ACTIVATIONS[act]
    found["norm_eps"] = real(settings, "layer_norm_eps", 1e-12, where)
    if found["width"] % found["heads"]:
        raise wrong(where, "num_attention_heads", found["heads"], f"a divisor of hidden_size, {found['width']:,}")
    named = _architecture(settings, where)
    pooler, words, next_sentence, head = ARCHITECTURES[named or "BertModel"]
    found |= {"pooler": pooler, "masked_words": words, "next_sentence": next_sentence}
    keys = {ours: key for key, (ours, _, _) in SIZES.items()}
    config = checked(BertConfig, found, keys | {ours: key for key, ours in SHARES.items()}, where)
    if head == "classifier" and (settings.get("problem_type") == "regression" or _count(settings, where) == 1):
        head = "regressor"
    if head == "classifier" and settings.get("problem_type") == "multi_label_classification":
        raise UserError(
            "several classes at once are not supported", where=f"{where}: problem_type",
            found=shown(settings["problem_type"]), expected="a head that tells one class, or a number",
        )  # fmt: skip
    return Described(config, head, _labels(settings, where), named is not None)


def checked(
    make: Callable[..., AnyConfig], settings: Mapping[str, Any], keys: Mapping[str, str], where: str | Path
) -> AnyConfig:
    """A config of ours made of a file of others; what it does not allow is told by the key there, where it has one."""
    try:
        return make(**settings)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        key = next((keys[str(name)] for name in problem["loc"] if name in keys), None)
        raise UserError(
            "these settings make no model" if key is None else f"{key} is not right",
            where=str(where) if key is None else f"{where}: {key}",
            found=None if isinstance(problem["input"], dict) else shown(problem["input"]),
            expected=problem["msg"].removeprefix("Value error, ").removeprefix("Input should be "),
            todo=AGAIN,
        ) from error


def refuse(settings: Mapping[str, Any], harmless: Mapping[str, tuple[Any, ...]], where: Path, todo: str) -> None:
    """Refuse a setting that would make a model compute something else than here."""
    for key, values in harmless.items():
        if settings.get(key) not in values:
            code = key == "auto_map"
            raise UserError(
                "this model is computed by code of its own, which is never run" if code else f"{key} is not supported",
                where=f"{where}: {key}", found=shown(settings[key]), expected=shown(values[0]), todo=todo,
            )  # fmt: skip


def _refuse_others(settings: Mapping[str, Any], where: Path) -> None:
    """Refuse models that are not BERT, and settings that would make it compute something else."""
    kind = settings.get("model_type", "bert")
    if kind != "bert":
        raise UserError(
            "models of this kind are not read", where=str(where), found=f"model_type {shown(kind)}",
            expected="model_type 'bert', or 'gpt2' and 'openai-gpt' where a language model is wanted",
            todo="name the folder of one of these",
        )  # fmt: skip
    refuse(settings, HARMLESS, where, "name the folder of a BERT as it was published")


def unsupported(where: Path, key: str, found: object, known: Iterable[str]) -> UserError:
    """The error of a setting that others have and that is not computed here."""
    return UserError(
        f"not supported: {key} {shown(found)}", where=f"{where}: {key}", expected="one of " + ", ".join(known),
        todo="name the folder of a model that has one of these",
    )  # fmt: skip


def whole(settings: Mapping[str, Any], key: str, least: int, most: int, where: Path) -> int:
    found = settings.get(key)
    if key not in settings:
        raise wrong(where, key, None, f"a whole number from {least:,} to {most:,}, but it is missing")
    if not isinstance(found, int) or isinstance(found, bool) or not least <= found <= most:
        raise wrong(where, key, found, f"a whole number from {least:,} to {most:,}")
    return found


def real(settings: Mapping[str, Any], key: str, usual: float, where: Path) -> float:
    found = settings.get(key, usual)
    if not isinstance(found, (int, float)) or isinstance(found, bool) or not 0 <= found < 1:
        raise wrong(where, key, found, "a number from 0 to 1")
    return float(found)


def _architecture(settings: Mapping[str, Any], where: Path) -> str | None:
    """Which of the known models the file says it is, if it says."""
    found = settings.get("architectures")
    if found is None or found == []:
        return None
    if not isinstance(found, list) or len(found) != 1 or not isinstance(found[0], str) or found[0] not in ARCHITECTURES:
        raise unsupported(where, "architectures", found, ARCHITECTURES)
    return found[0]


def _count(settings: Mapping[str, Any], where: Path) -> int:
    """How many outputs the file says there are."""
    if "num_labels" in settings:
        return whole(settings, "num_labels", 1, MOST_LABELS, where)
    return len(_labels(settings, where)) or 2


def _labels(settings: Mapping[str, Any], where: Path) -> tuple[str, ...]:
    """What the outputs are called, in their order; none where the file does not say."""
    found = settings.get("id2label")
    if found is None:
        return ()
    names = [found.get(str(index)) for index in range(len(found))] if isinstance(found, dict) else [None]
    if len(names) > MOST_LABELS or not all(isinstance(name, str) for name in names) or len(set(names)) != len(names):
        raise wrong(where, "id2label", found, 'names by number, {"0": "no", "1": "yes"}, each once')
    return tuple(map(str, names))
