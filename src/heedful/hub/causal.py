"""Trained GPTs from folders, ours or of others: `pretrained_causal(folder)`.

What only their settings tell, `causal_configs.config_in(folder)` does without torch.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from heedful.data.tokenizers.base import LARGEST
from heedful.data.tokenizers.byte_pairs import END, MERGES, VOCABS, BytePairs, plain_token
from heedful.data.tokenizers.gpt1_bpe import WordEnds
from heedful.data.tokenizers.lm_tokenization import LanguageTokenizer, open_tokenizer
from heedful.errors import UserError, shown
from heedful.files.reading import is_folder, require_folder
from heedful.hub import gpt
from heedful.hub import rules as convert
from heedful.hub.causal_configs import HPARAMS, causal, config_in, described, original
from heedful.hub.configs import home, unknown
from heedful.hub.files import AGAIN, has, read_settings, read_text
from heedful.hub.loading import Pretrained, Weights, Whole, foreign, own_files, pretrained, whole
from heedful.hub.rules import Line, Table
from heedful.hub.safetensors import safetensors_in
from heedful.hub.tensorflow import checkpoint_in, read_checkpoint
from heedful.hub.vocabularies import BACKEND, CONFIG, added_in, content, settings_in, template, with_roles
from heedful.models.gpt.config import GptConfig
from heedful.models.gpt.model import Gpt
from heedful.training.checkpoint.tensors import require_finite
from heedful.training.checkpoint.weights import require_fit

KINDS = ("GPT2Tokenizer", "OpenAIGPTTokenizer")
PUBLISHED = "name the folder of a GPT-2 as it was published"


class Causal(NamedTuple):
    """A trained GPT with all that its folder tells."""

    config: GptConfig
    tokenizer: LanguageTokenizer | None
    tensors: dict[str, Tensor]  # by their names in our model
    ledger: tuple[Line, ...]
    notes: tuple[str, ...] = ()  # what whoever loads it should know
    word_ends: WordEnds | None = None  # the tokenizer of the first GPT, which goes from folder to folder only
    starts: bool = False  # whether texts are read after the token that documents begin with


def pretrained_causal(folder: Path, weights: Weights = safetensors_in) -> Causal:
    """The GPT in a folder of ours or of others, every tensor of it accounted for."""
    require_folder(home(folder), "a folder with a trained GPT in it")
    if not foreign(folder):
        return _own(folder)
    own = home(folder)
    if has(own, "config.json"):
        return _hugging_face(own, weights)
    if has(own, HPARAMS) and (name := checkpoint_in(own)) is not None:
        return _tensorflow(own, name)
    raise unknown(folder)


def of_any_kind(folder: Path, weights: Weights = safetensors_in) -> Pretrained | Causal:
    """The model in a folder: a GPT, or else an encoder."""
    gpt_there = is_folder(home(folder)) and causal(folder)
    return pretrained_causal(folder, weights) if gpt_there else pretrained(folder, weights)


def whole_of(found: Pretrained | Causal) -> Whole:
    """The model as a folder of ours has it."""
    if isinstance(found, Causal):
        return Whole("language_model", found.config, found.tensors, ())
    return whole(found)


def no_tokenizer(found: Pretrained | Causal, folder: Path) -> UserError:
    """The error of a model that cannot read texts."""
    if isinstance(found, Causal) and found.word_ends is not None:
        return UserError(
            "the first GPT cannot write texts here: its pieces have none that a text begins with", where=str(folder),
            expected="a GPT-2, or a GPT that was trained here",
            todo=f"heedful convert {shlex.quote(str(folder))} NEW_FOLDER --to hf writes it anew",
        )  # fmt: skip
    named = (
        "tokenizer.json, or vocab.json and merges.txt" if isinstance(found, Causal) else "tokenizer.json or vocab.txt"
    )
    return UserError(
        "there is no tokenizer in this folder", where=str(folder), expected=named,
        todo="put the file there that the model was trained with",
    )  # fmt: skip


def _hugging_face(folder: Path, weights: Weights) -> Causal:
    """The GPT in a folder of Hugging Face's make."""
    where = folder / "config.json"
    config, _, ties, notes = described(read_settings(folder, "config.json"), where)
    given, file = weights(folder)
    called = gpt.canonical(given)
    if not ties and "lm_head.weight" not in called.values():
        raise UserError(
            "the output has weights of its own, which are not there", where=f"{where}: tie_word_embeddings",
            found="false, and no lm_head.weight in the weights", expected="lm_head.weight, the same as the embedding",
            todo=AGAIN,
        )  # fmt: skip
    tensors, ledger = _fitted(given, called, gpt.table(config), config, file)
    return _with_tokenizer(Causal(config, None, tensors, ledger, notes), folder)


def _tensorflow(folder: Path, name: str) -> Causal:
    """The GPT-2 in a checkpoint of its first release."""
    config = original(read_settings(folder, HPARAMS), folder / HPARAMS)
    given, file = gpt.flat(read_checkpoint(folder, name)), folder / f"{name}.index"
    require_finite(given, str(file), AGAIN)
    tensors, ledger = _fitted(given, {name: name for name in given}, gpt.original(config, given), config, file)
    return _with_tokenizer(Causal(config, None, tensors, ledger), folder)


def _with_tokenizer(found: Causal, folder: Path) -> Causal:
    """A model with what stands beside it in its folder."""
    tokenizer, starts = tokenizer_in(folder, found.config)
    if isinstance(tokenizer, WordEnds):
        return found._replace(word_ends=tokenizer)
    return found._replace(tokenizer=tokenizer, starts=starts)


def _fitted(
    given: dict[str, Tensor], called: dict[str, str], table: Table, config: GptConfig, file: Path
) -> tuple[dict[str, Tensor], tuple[Line, ...]]:
    """Our tensors of theirs, each of the shape that it has in our model."""
    needed = {name for rule in table.rules for name in rule.theirs}
    shapes: dict[str, tuple[int, ...]] = {}
    if needed <= set(called.values()):  # a config may ask for a model of any size: it is not laid out in vain
        with torch.device("meta"):
            shapes = {name: tuple(tensor.shape) for name, tensor in Gpt(config).state_dict().items()}
    return convert.read(given, called, table, shapes, file)


def _own(folder: Path) -> Causal:
    """The GPT in a run or a model of ours: the final model, else the newest checkpoint."""
    config, found = config_in(folder), own_files(folder)
    tokenizer = open_tokenizer(found.tokenizer, str(found.folder / "tokenizer.json"))
    found.require(tokenizer)
    config = config.model_copy(update={"vocab": config.vocab or tokenizer.vocab})
    with torch.device("meta"):
        require_fit(Gpt(config), found.tensors, found.file)
    ledger = tuple(Line(name, name, "as it is", tensor) for name, tensor in found.tensors.items())
    decode = found.settings.get("decode")
    starts = not isinstance(decode, dict) or decode.get("start_token") is not False
    return Causal(config, tokenizer, found.tensors, ledger, starts=starts)


def tokenizer_in(folder: Path, config: GptConfig) -> tuple[BytePairs | WordEnds | None, bool]:
    """The tokenizer beside a model of others, if there is one: tokenizer.json, or the pieces with their merges.

    A GPT-2 has byte pairs; a GPT has its own kind, unless there is a piece that ends documents. Besides, whether the
    tokenizer puts `<|endoftext|>` before each text.
    """
    name = next((name for name in ("tokenizer.json", *VOCABS) if has(folder, name)), None)
    if name is None:
        return None, False
    text = read_text(folder, name, LARGEST)
    settings, where = settings_in(folder), folder / CONFIG
    _refuse(folder, settings)
    kind: type[BytePairs | WordEnds] = BytePairs if config.norm == "pre" or json.dumps(END) in text else WordEnds
    data: dict[str, Any] = {}
    if name == "tokenizer.json":
        found = kind(text, str(folder / name))
        data = json.loads(text)
    else:
        merges = next((name for name in MERGES if has(folder, name)), None)
        if merges is None:
            raise UserError(
                "the tokenizer lacks its merges", where=str(folder), found=f"{name} alone",
                expected=" or ".join(MERGES) + " beside it", todo=AGAIN,
            )  # fmt: skip
        found = kind.of_texts(text, read_text(folder, merges, LARGEST), str(folder / name), str(folder / merges))
    found = found.adding(_more(found, folder, settings, data), str(where))
    if found.vocab > (config.vocab or 0):
        raise UserError(
            "the model and its tokenizer do not belong together", where=str(folder / name),
            found=f"{found.vocab:,} pieces", expected=f"at most {config.vocab:,}, the vocabulary of the model",
            todo=AGAIN,
        )  # fmt: skip
    return found, isinstance(found, BytePairs) and _starts(settings, data, where)


def _more(found: BytePairs | WordEnds, folder: Path, settings: dict[str, Any], data: dict[str, Any]) -> dict[str, int]:
    """The special tokens that only the files beside a tokenizer name, by their ids."""
    vocab = {piece: number for number, piece in enumerate(found.pieces(range(found.vocab)))}
    special = set(found.pieces(found.special))
    more = with_roles(added_in(folder, settings, data), vocab, settings, folder / CONFIG)
    fresh = {number: token for number, token in more.items() if token.content not in special}
    if odd := next((token for token in fresh.values() if not plain_token(token._asdict())), None):
        raise UserError(
            "an added token of this kind is not supported", where=str(folder / CONFIG), found=shown(odd._asdict()),
            expected="a special token without spaces, found as it is written", todo=PUBLISHED,
        )  # fmt: skip
    return {token.content: number for number, token in sorted(fresh.items())}


def _starts(settings: dict[str, Any], data: dict[str, Any], where: Path) -> bool:
    """Whether a tokenizer puts `<|endoftext|>` before each text: a tokenizer.json says so itself."""
    layout = data.get("post_processor")
    kind = layout.get("type") if isinstance(layout, dict) else layout
    if kind == "TemplateProcessing":
        around = template(data["post_processor"].get("single"))[0]
    elif data:
        around = ["A"] if kind in (None, "ByteLevel") else [str(kind), "A"]
    else:
        bos, eos = (
            [content(settings.get(f"{name}_token", END), f"{name}_token", where) or END]
            if settings.get(f"add_{name}_token") is True else []
            for name in ("bos", "eos")
        )  # fmt: skip
        around = [*bos, "A", *eos]
    if around not in (["A"], [END, "A"]):
        raise UserError(
            "this tokenizer puts other tokens around texts", where=str(where), found=shown(around),
            expected=f"nothing, or {END} before each", todo=PUBLISHED,
        )  # fmt: skip
    return around[0] == END


def _refuse(folder: Path, settings: dict[str, Any]) -> None:
    """Refuse what would give texts other ids than here."""
    where, kind = folder / CONFIG, str(settings.get("tokenizer_class") or KINDS[0]).removesuffix("Fast")
    if kind not in (*KINDS, *BACKEND):
        raise UserError(
            "tokenizers of this kind are not read", where=f"{where}: tokenizer_class",
            found=shown(settings["tokenizer_class"]), expected=" or ".join(KINDS), todo=PUBLISHED,
        )  # fmt: skip
    if settings.get("add_prefix_space") not in (False, None):
        raise UserError(
            "a space before each text is not supported", where=f"{where}: add_prefix_space",
            found=shown(settings["add_prefix_space"]), expected="false", todo=PUBLISHED,
        )  # fmt: skip
    if settings.get("split_special_tokens") not in (False, None):
        raise UserError(
            "split_special_tokens is not supported", where=f"{where}: split_special_tokens",
            found=shown(settings["split_special_tokens"]), expected="false", todo=PUBLISHED,
        )  # fmt: skip
