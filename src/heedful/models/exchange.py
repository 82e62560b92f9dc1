"""Reading and writing published model folders: what the `weights.py` of a model declares; does not import torch.

One table of tensors serves both directions, and each model has one reader and one writer of settings. `hub` finds a
model by the `model_type` of its config.json, and does what is the same for all models.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeVar

from pydantic import ValidationError

from heedful.config import Config
from heedful.errors import AGAIN, UserError, shown, wrong
from heedful.models.sizes import Activation

if TYPE_CHECKING:
    from torch import Tensor

    from heedful.models.roles import ImageEncoderConfig

AnyConfig = TypeVar("AnyConfig", bound=Config)
MOST_LABELS = 100_000
# Shared by BERT-like encoders in Hugging Face's files.
ENCODER_SIZES = {  # their key: our key, minimum, maximum
    "vocab_size": ("vocab", 5, 10_000_000),
    "hidden_size": ("width", 1, 65_536),
    "num_hidden_layers": ("layers", 1, 1000),
    "num_attention_heads": ("heads", 1, 1024),
    "intermediate_size": ("hidden", 1, 1_048_576),
    "max_position_embeddings": ("context", 4, 1_048_576),
    "type_vocab_size": ("segments", 1, 1000),
}
ENCODER_DEFAULTS: dict[str, Any] = {  # of transformers, for what a config.json leaves out
    "vocab_size": 30_522,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
}
# Settings that would change the computation, with their supported values.
ENCODER_HARMLESS: dict[str, tuple[Any, ...]] = {
    "is_decoder": (False, None),
    "add_cross_attention": (False, None),
    "is_encoder_decoder": (False, None),
    "position_embedding_type": ("absolute", None),
    "pruned_heads": ({}, None),
    "quantization_config": (None,),
    "auto_map": (None,),
}
REASONS = {  # of the settings that are refused, in words
    "adaptive": "an output without clusters of tokens",
    "add_cross_attention": "blocks that also attend to another text",
    "add_final_layer_norm": "a norm after the last block",
    "attn_type": "another kind of attention",
    "auto_map": "code of its own, which is never run",
    "bi_data": "batches whose second half is read backwards",
    "downsample_in_bottleneck": "a stride in the first convolution of a bottleneck",
    "downsample_in_first_stage": "a stride in the first stage",
    "ext_len": "a longer context than the segment and its memory",
    "hidden_act": "an activation other than ReLU in a ResNet",
    "inner_group_num": "several blocks in each group of shared ones",
    "is_decoder": "an encoder in which tokens see the earlier ones alone",
    "is_encoder_decoder": "this kind of model as an encoder and decoder",
    "normalize_before": "a translator with its norms before each part",
    "normalize_embedding": "a translator with a norm after its embedding",
    "pad_token_id": "another <pad>, from which positions are counted",
    "position_embedding_type": "positions relative to each other",
    "proj_share_all_but_first": "an output with projections of its own",
    "pruned_heads": "blocks from which heads were removed",
    "qkv_bias": "queries, keys and values without biases",
    "quantization_config": "quantized weights",
    "rescale_embeddings": "embeddings that are multiplied by the root of the width",
    "same_length": "a window of earlier tokens in an XLNet",
    "sample_softmax": "an output that samples tokens",
    "static_position_embeddings": "a translator with learned positions",
    "summary_proj_to_labels": "a classifier without the layer before its last",
    "summary_type": "a vector of a text other than that of its last token",
    "summary_use_proj": "a classifier without the layer before its last",
    "tie_weight": "an output layer of its own",
    "tie_word_embeddings": "an output layer of its own",
    "untie_r": "biases of positions that all blocks share",
    "use_bias": "queries, keys and values without biases",
    "use_mask_token": "a vector in place of masked patches",
}
DROPOUTS = {"hidden_dropout_prob": "dropout", "attention_probs_dropout_prob": "attention_dropout"}
ACTIVATION_KEY = "hidden_act"
ACTIVATIONS: dict[str, Activation] = {
    **dict.fromkeys(("gelu", "gelu_python"), "gelu"),
    # The same function in several programs, up to rounding.
    **dict.fromkeys(("gelu_new", "gelu_pytorch_tanh", "gelu_python_tanh", "gelu_fast", "gelu_accurate"), "gelu_tanh"),
    "quick_gelu": "quick_gelu",
    "relu": "relu",
    **dict.fromkeys(("silu", "swish"), "swish"),
    "mish": "mish",
    "tanh": "tanh",
}
ACTIVATION_NAMES: dict[Activation, str] = {
    "gelu": "gelu",
    "gelu_tanh": "gelu_pytorch_tanh",
    "quick_gelu": "quick_gelu",
    "relu": "relu",
    "swish": "silu",
    "mish": "mish",
    "tanh": "tanh",
}
LAYER = {  # of a block, without .weight and .bias
    "attention.out": "attention.output.dense",
    "add1.norm": "attention.output.LayerNorm",
    "mlp.up": "intermediate.dense",
    "mlp.down": "output.dense",
    "add2.norm": "output.LayerNorm",
}
EMBEDDING = "embeddings.word_embeddings.weight"  # of an encoder, after its prefix
PROBLEMS = {  # of a layer on the pooled vector: our head, and `problem_type`
    "classifier": "single_label_classification",
    "regressor": "regression",
    "multi_label": "multi_label_classification",
}
QKV = ("query", "key", "value")
SELF = tuple(f"attention.self.{name}" for name in QKV)  # of a block


class Rule(NamedTuple):
    """How one of our tensors is stored in published files: one tensor or several to stack, maybe transposed."""

    ours: str
    theirs: tuple[str, ...]
    transposed: bool = False
    heads: int = 0  # of theirs, whose last dimension is split into this many; 0: it is not
    inner: tuple[int, ...] = ()  # the dimensions of theirs that are the last one of ours; (): the same as ours
    rows: tuple[int, ...] = ()  # the row of theirs that each row of ours is; (): the same
    flat: bool = False  # whether theirs has one dimension more, of size 1, before those of ours
    counter: bool = False  # whether it counts batches: a whole number, which some files lack
    instead: tuple[str, ...] = ()  # the names that it may have in other files, the first that is there
    copy: str | None = None  # another name under which it is written too, and not read

    @property
    def operation(self) -> str:
        """The conversion, as the ledger records it."""
        if self.inner:
            return "flattened"
        if self.rows:
            return "rows in another order"
        stacked = f"one of {len(self.theirs)} stacked" if len(self.theirs) > 1 else "as it is"
        if not self.transposed:
            return stacked
        return f"turned, {stacked}" if len(self.theirs) > 1 else "turned"

    def shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of each of theirs, given the shape of ours."""
        one = (shape[0] // len(self.theirs), *shape[1:]) if len(self.theirs) > 1 else tuple(shape)
        one = one[::-1] if self.transposed else one
        one = (*one[:-1], *self.inner) if self.inner else one
        one = (max(self.rows) + 1, *one[1:]) if self.rows else one
        one = (1, *one) if self.flat else one
        return (*one[:-1], self.heads, one[-1] // self.heads) if self.heads else one


def weight_and_bias(ours: str, theirs: str) -> list[Rule]:
    """The rules of a layer's weight and bias."""
    return [Rule(f"{ours}.{part}", (f"{theirs}.{part}",)) for part in ("weight", "bias")]


def norm_rules(ours: str, theirs: str) -> list[Rule]:
    """The rules of a batch norm: its weights, its running statistics, and the number of batches they are of."""
    running = [Rule(f"{ours}.{part}", (f"{theirs}.{part}",)) for part in ("running_mean", "running_var")]
    count = Rule(f"{ours}.num_batches_tracked", (f"{theirs}.num_batches_tracked",), counter=True)
    return [*weight_and_bias(ours, theirs), *running, count]


def encoder_rules(prefix: str, layers: int) -> list[Rule]:
    """The embeddings and blocks of a BERT-like encoder, whose names in the files start with the prefix."""
    rules = embedding_rules(prefix)
    for index in range(layers):
        rules += block_rules(f"blocks.{index}", f"{prefix}encoder.layer.{index}")
    return rules


def embedding_rules(prefix: str) -> list[Rule]:
    """The embeddings of tokens, positions and segments, and their norm."""
    return [
        Rule("tokens.weight", (f"{prefix}{EMBEDDING}",)),
        Rule("positions.table", (f"{prefix}embeddings.position_embeddings.weight",)),
        Rule("segments", (f"{prefix}embeddings.token_type_embeddings.weight",)),
        *weight_and_bias("norm", f"{prefix}embeddings.LayerNorm"),
    ]


def block_rules(ours: str, theirs: str, qkv: tuple[str, ...] = SELF, layer: Mapping[str, str] = LAYER) -> list[Rule]:
    """One block, with the names of its queries, keys and values, and of its other parts."""
    rules = []
    for part in ("weight", "bias"):
        rules.append(Rule(f"{ours}.attention.qkv.{part}", tuple(f"{theirs}.{name}.{part}" for name in qkv)))
    for own, other in layer.items():
        rules += weight_and_bias(f"{ours}.{own}", f"{theirs}.{other}")
    return rules


def word_rules(dense: str, norm: str) -> list[Rule]:
    """The head that predicts masked tokens, without its last layer."""
    return weight_and_bias("masked_words.dense", dense) + weight_and_bias("masked_words.norm", norm)


def logit_rules(output: str, layer: str, table: str, bias: str | None = None) -> tuple[list[Rule], list[Twin]]:
    """The last layer of a head that predicts tokens: its matrix is that of the embeddings, `table`, or its own.

    `bias` is the name of its bias where the two are tied, and in older files also where they are not. `transformers`
    has a parameter of that name in both cases, which it misses in a file without it.
    """
    ours, weight, its = "masked_words.bias", f"{layer}.weight", f"{layer}.bias"
    if output == "untied":
        older = (bias,) if bias else ()
        return [Rule("masked_words.weight", (weight,)), Rule(ours, (its,), instead=older, copy=bias)], []
    other = [] if bias is None else [Twin(its, bias)]
    return [Rule(ours, (bias or its,))], [Twin(weight, table), *other]


def output_of(published: PublishedConfig, words: bool, names: Collection[str], weight: str, where: Path) -> str:
    """Whether the matrix of the logits, `weight`, is tied to the embedding; if it is not, the file must have it."""
    if published.ties or not words:
        return "tied"
    if weight not in names:
        raise UserError(
            "the weights of the output layer are missing", where=f"{where}: tie_word_embeddings",
            found=f"false, and no {weight} in the weights", expected=weight,
            todo="name a folder with the output layer; if it is that of the embedding, set tie_word_embeddings to true",
        )  # fmt: skip
    return "untied"


def output_settings(output: str) -> dict[str, Any]:
    """The settings of a config.json about the matrix of the logits; none where it is tied, as usual."""
    return {} if output == "tied" else {"tie_word_embeddings": False}


def ties_in(settings: Mapping[str, Any], where: Path) -> bool:
    """Whether the matrix of the logits is that of the embeddings."""
    return bool_setting(settings, "tie_word_embeddings", True, where)


def head_rules(head: str | None) -> list[Rule]:
    """The layer that a task adds to an encoder."""
    return [] if head is None else weight_and_bias("head", "qa_outputs" if head == "answerer" else "classifier")


def add_prefix(names: Iterable[str], prefix: str, inner: tuple[str, ...]) -> dict[str, str]:
    """Names with the prefix of the encoder; in the file of an encoder alone, those that start with `inner` lack it."""
    given = list(names)
    bare = not any(name.startswith(prefix) for name in given)
    return {name: prefix + name if bare and name.startswith(inner) else name for name in given}


class Twin(NamedTuple):
    """A tensor of theirs that is tied to another one, and may be missing."""

    name: str
    of: str


class Table(NamedTuple):
    """The names of all tensors of one model."""

    rules: tuple[Rule, ...]
    twins: tuple[Twin, ...] = ()
    spare: tuple[str, ...] = ()  # optional tensors that are not weights, and are ignored
    unused: tuple[str, ...] = ()  # optional weights of parts that our model does not have


class PublishedConfig(NamedTuple):
    """A published config.json: the model with its heads, the head of a task, and the names of its outputs."""

    config: Any
    head: str | None = None  # the kind of head that a task has added
    labels: tuple[str, ...] = ()
    named: bool = True  # whether the file names the architecture
    ties: bool = True  # whether the output layer, if there is one, is tied to the embedding
    notes: tuple[str, ...] = ()  # shown to the user when it is loaded


def infer_head(published: PublishedConfig, names: set[str], pools: bool) -> str | None:
    """The head of a task; if the file does not name its architecture, the one for which there are tensors."""
    if published.head is not None or published.named:
        return published.head
    if "classifier.weight" in names:
        return "classifier" if pools else "tagger"
    return "answerer" if "qa_outputs.weight" in names else None


class Exchange(Protocol):
    """The contents of a `weights.py`."""

    TITLE: str  # the model's name in a sentence
    MODEL_TYPES: tuple[str, ...]  # as config.json names it
    RELEASE: tuple[str, str] | None  # settings and weights of its first release, where it is read; else no more below
    PREFIX: str  # what names of tensors begin with, and is left out where all of them do; else empty

    def read_config(self, settings: Mapping[str, Any], where: Path) -> PublishedConfig:
        """The settings of a config.json, checked; an error names the invalid one."""

    def config_json(
        self, config: Any, head: str | None = None, labels: Sequence[str] = (), pad: int = 0, end: int | None = None
    ) -> dict[str, Any]:
        """The config.json of a model with this config and head; `pad` and `end`, of a text, are token ids."""

    def table(self, config: Any, head: str | None = None) -> Table:
        """The names of all tensors of a model with this head."""

    def canonical(self, names: Iterable[str]) -> dict[str, str]:
        """The table's name of each name in a file."""

    def match_tensors(self, published: PublishedConfig, names: set[str], where: Path) -> PublishedConfig:
        """The config with the parts for which there are tensors."""

    def release_config(self, settings: Mapping[str, Any], where: Path) -> PublishedConfig:
        """The settings of a checkpoint of the original release."""

    def release_tensors(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """The tensors of that checkpoint, in the form of the table."""

    def release_table(self, published: PublishedConfig, names: Iterable[str]) -> tuple[PublishedConfig, Table]:
        """The config with the parts of that checkpoint, and the names of its tensors."""


Layout = Literal["transformers", "timm", "torchvision"]  # whose tensor names a file has


class ImageExchange(Protocol):
    """The contents of the `weights.py` of an image model."""

    TITLE: str  # the model's name in a sentence
    MODEL_TYPES: tuple[str, ...]  # as a config.json of transformers names it; (): that library has no such model
    ARCHITECTURES: Mapping[Layout, Mapping[str, ImageEncoderConfig]]  # by their names in timm and in torchvision
    USUAL: Mapping[Layout, Preprocessing]  # of published weights that come without settings

    def canonical(self, names: Iterable[str]) -> dict[str, str]:
        """The name in the tables of each name in a file."""

    def tables(self, config: Any) -> dict[Layout, Table]:
        """The names of all tensors in the layouts that there are; without classes, those below the last layer."""

    def match_tensors(self, config: Any, names: set[str]) -> Any:
        """The config with the parts for which there are tensors."""


class TransformersImageExchange(ImageExchange, Protocol):
    """What a `weights.py` of an image model also has where its MODEL_TYPES name models of transformers."""

    def read_config(self, settings: Mapping[str, Any], where: Path) -> PublishedConfig:
        """The settings of a config.json of transformers, checked; an error names the invalid one."""

    def config_json(self, config: Any, labels: Sequence[str]) -> dict[str, Any]:
        """The config.json of a model with this config, for transformers."""


class Preprocessing(NamedTuple):
    """How published weights expect images: normalized by mean and deviation, resized, and cropped at the centre."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    shorter: int | None  # pixels to which the shorter side is resized before the centre is cropped; None: no crop
    resample: Literal["nearest", "bilinear", "bicubic", "lanczos"]
    size: tuple[int, int] | None = None  # rows and columns of the result; None: those of the model


IMAGENET = Preprocessing((0.485, 0.456, 0.406), (0.229, 0.224, 0.225), 256, "bilinear")
HALVES = Preprocessing((0.5, 0.5, 0.5), (0.5, 0.5, 0.5), 256, "bilinear")


def image_labels(settings: Mapping[str, Any], where: Path) -> tuple[str, ...]:
    """The names of the classes; ImageNet has two cranes, of which the second is named with its number."""
    found = settings.get("id2label")
    if isinstance(found, dict):
        names = [found.get(str(index)) for index in range(len(found))]
        if all(isinstance(name, str) for name in names):
            twice = {name: f"{name} ({index})" for index, name in enumerate(names) if name in names[:index]}
            first = {name: names.index(name) for name in twice}
            found = {
                str(index): twice[name] if name in twice and first[name] != index else name
                for index, name in enumerate(names)
            }
    return labels_in({**settings, "id2label": found}, where)


def class_count(settings: Mapping[str, Any], where: Path) -> int:
    """The number of classes of an image model according to the file."""
    counted = "num_labels" in settings
    count = int_setting(settings, "num_labels", 1, MOST_LABELS, where) if counted else len(
        image_labels(settings, where)
    )  # fmt: skip
    if count == 1:
        raise UserError(
            "not supported: an image model that predicts a number", found="one output",
            where=f"{where}: {'num_labels' if counted else 'id2label'}", expected="two classes or more",
            todo="choose the folder of a classifier, or start from its encoder in a recipe",
        )  # fmt: skip
    return count or 2


def validate_config(
    make: Callable[..., AnyConfig], settings: Mapping[str, Any], keys: Mapping[str, str], where: str | Path
) -> AnyConfig:
    """A config from published settings; an error names the key in the file, if there is one."""
    try:
        return make(**settings)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        key = next((keys[str(name)] for name in problem["loc"] if name in keys), None)
        raise UserError(
            "these settings describe no valid model" if key is None else f"invalid value for {key}",
            where=str(where) if key is None else f"{where}: {key}",
            found=None if isinstance(problem["input"], dict) else shown(problem["input"]),
            expected=problem["msg"].removeprefix("Value error, ").removeprefix("Input should be "),
            todo=AGAIN,
        ) from error


def refuse(settings: Mapping[str, Any], harmless: Mapping[str, tuple[Any, ...]], where: Path, todo: str) -> None:
    """Refuse settings with which the published model would compute something else than ours."""
    for key, values in harmless.items():
        if settings.get(key) not in values:
            raise UserError(
                f"not supported: {REASONS[key]}", where=f"{where}: {key}", found=shown(settings[key]),
                expected=shown(values[0]), todo=todo,
            )  # fmt: skip


def unsupported(where: Path, key: str, found: object, known: Iterable[str]) -> UserError:
    """The error for a published setting that is not supported."""
    return UserError(
        f"not supported: {key} {shown(found)}", where=f"{where}: {key}", expected="one of " + ", ".join(known),
        todo="choose the folder of a model that has one of these",
    )  # fmt: skip


def unwritable(title: str, name: str, found: str, expected: str) -> UserError:
    """The error for a setting of ours that a published config.json cannot express."""
    return UserError(
        f"Hugging Face's {title} cannot express this setting", where=f"model.{name}", found=found, expected=expected,
        todo="keep this model as it is: `heedful.load` reads it",
    )  # fmt: skip


def no_format(title: str) -> UserError:
    """The error for a model that transformers does not have."""
    return UserError(
        f"transformers has no {title}", expected="the tensor names of torchvision",
        todo="write these: --to torchvision",
    )  # fmt: skip


def refuse_attention(config: Config, title: str) -> None:
    """Refuse to write a model with attention scores or weights that published models do not have."""
    settings = config.model_dump()
    for name, usual in (("score", "scaled_dot"), ("normalize", "softmax")):  # not every model has both
        if settings.get(name, usual) != usual:
            raise unwritable(title, name, settings[name], usual)


def fill_in(settings: Mapping[str, Any], usual: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The settings with the defaults of transformers for those that are left out, and a note that names them."""
    left = [f"{key} {value}" for key, value in usual.items() if key not in settings]
    notes = (f"config.json leaves out settings, and the defaults of transformers are used: {', '.join(left)}",)
    return {**usual, **settings}, notes if left else ()


def int_setting(settings: Mapping[str, Any], key: str, least: int, most: int, where: Path) -> int:
    found = settings.get(key)
    if key not in settings:
        raise wrong(where, key, None, f"a whole number from {least:,} to {most:,}, but it is missing")
    if not isinstance(found, int) or isinstance(found, bool) or not least <= found <= most:
        raise wrong(where, key, found, f"a whole number from {least:,} to {most:,}")
    return found


def float_setting(settings: Mapping[str, Any], key: str, usual: float, where: Path) -> float:
    found = settings.get(key, usual)
    if not isinstance(found, (int, float)) or isinstance(found, bool) or not 0 <= found < 1:
        raise wrong(where, key, found, "a number from 0 to 1")
    return float(found)


def bool_setting(settings: Mapping[str, Any], key: str, usual: bool, where: Path) -> bool:
    found = settings.get(key)
    if not isinstance(found, bool | None):
        raise wrong(where, key, found, "true or false")
    return usual if found is None else found


def architecture_in(settings: Mapping[str, Any], known: Collection[str], where: Path) -> str | None:
    """The architecture that the file names, if it names one."""
    found = settings.get("architectures")
    if found is None or found == []:
        return None
    if not isinstance(found, list) or len(found) != 1 or not isinstance(found[0], str) or found[0] not in known:
        raise unsupported(where, "architectures", found, known)
    return found[0]


def _count(settings: Mapping[str, Any], where: Path) -> int:
    """The number of outputs according to the file."""
    if "num_labels" in settings:
        return int_setting(settings, "num_labels", 1, MOST_LABELS, where)
    return len(labels_in(settings, where)) or 2


def labels_in(settings: Mapping[str, Any], where: Path) -> tuple[str, ...]:
    """The names of the outputs, in their order; none where the file has none."""
    found = settings.get("id2label")
    if found is None:
        return ()
    names = [found.get(str(index)) for index in range(len(found))] if isinstance(found, dict) else [None]
    if len(names) > MOST_LABELS or not all(isinstance(name, str) for name in names) or len(set(names)) != len(names):
        raise wrong(where, "id2label", found, 'names by number, {"0": "no", "1": "yes"}, each once')
    return tuple(map(str, names))


def encoder_settings(
    settings: Mapping[str, Any],
    sizes: Mapping[str, tuple[str, int, int]],
    where: Path,
    dropouts: Mapping[str, str] = DROPOUTS,
    activation: str = ACTIVATION_KEY,
) -> dict[str, Any]:
    """The settings of a BERT-like encoder, with our names."""
    found: dict[str, Any] = {
        ours: int_setting(settings, key, least, most, where) for key, (ours, least, most) in sizes.items()
    }
    found |= {ours: float_setting(settings, key, 0.1, where) for key, ours in dropouts.items()}
    act = settings.get(activation, "gelu")
    if not isinstance(act, str) or act not in ACTIVATIONS:
        raise unsupported(where, activation, act, ACTIVATIONS)
    found["activation"] = ACTIVATIONS[act]
    found["norm_eps"] = float_setting(settings, "layer_norm_eps", 1e-12, where)
    if found["width"] % found["heads"]:
        keys = encoder_keys(sizes)
        raise wrong(where, keys["heads"], found["heads"], f"a divisor of {keys['width']}, {found['width']:,}")
    return found


def encoder_keys(sizes: Mapping[str, tuple[str, int, int]], dropouts: Mapping[str, str] = DROPOUTS) -> dict[str, str]:
    """Their key for each of our settings."""
    return {ours: key for key, (ours, _, _) in sizes.items()} | {ours: key for key, ours in dropouts.items()}


def encoder_json(
    config: Any,
    title: str,
    model_type: str,
    architecture: str,
    sizes: Mapping[str, tuple[str, int, int]],
    dropouts: Mapping[str, str] = DROPOUTS,
    activation: str = ACTIVATION_KEY,
) -> dict[str, Any]:
    """The config.json of a BERT-like encoder."""
    refuse_attention(config, title)
    settings: dict[str, Any] = {"architectures": [architecture], "model_type": model_type}
    settings |= {theirs: getattr(config, ours) for ours, theirs in encoder_keys(sizes, dropouts).items()}
    return settings | {
        activation: ACTIVATION_NAMES[config.activation],
        "layer_norm_eps": config.norm_eps,
        "initializer_range": 0.02,
        "dtype": "float32",
    }


def head_in(settings: Mapping[str, Any], head: str | None, where: Path) -> str | None:
    """The kind of head; a classifier with a single output is a regressor, unless it has labels."""
    if head != "classifier":
        return head
    problem = settings.get("problem_type")
    if problem not in (None, *PROBLEMS.values()):
        raise unsupported(where, "problem_type", problem, PROBLEMS.values())
    if problem == PROBLEMS["multi_label"]:
        return "multi_label"
    return "regressor" if problem == PROBLEMS["regressor"] or _count(settings, where) == 1 else head


def published_head(head: str | None) -> str | None:
    """The head in whose published form ours is: one class, several labels and numbers differ in their loss alone."""
    return "classifier" if head in PROBLEMS else head


def label_settings(head: str | None, labels: Sequence[str]) -> dict[str, Any]:
    """The settings of a config.json about the outputs of a head."""
    named = head in ("regressor", "multi_label")  # of the others, it is the usual one
    settings: dict[str, Any] = {"problem_type": PROBLEMS[str(head)]} if named else {}
    labels = labels or (("LABEL_0",) if head == "regressor" else ())
    if not labels:
        return settings
    return settings | {
        "id2label": {str(index): label for index, label in enumerate(labels)},
        "label2id": {label: index for index, label in enumerate(labels)},
    }
