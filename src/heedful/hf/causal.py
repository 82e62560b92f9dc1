"""Trained GPTs from folders, ours or of others: `pretrained_causal(folder)`.

What only their settings tell, `causal_configs.config_in(folder)` does without torch.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from heedful.data.bytepairs import END, MERGES, VOCABS, BytePairs
from heedful.data.scripts import LanguageTokenizer, open_tokenizer
from heedful.data.tokenizers import LARGEST
from heedful.data.wordends import WordEnds
from heedful.errors import UserError
from heedful.hf import convert, gpt
from heedful.hf.causal_configs import HPARAMS, causal, config_in, described, original
from heedful.hf.configs import home, unknown
from heedful.hf.convert import Line, Table
from heedful.hf.files import AGAIN, has, read_settings, read_text
from heedful.hf.loading import Pretrained, Weights, Whole, foreign, own_files, pretrained, whole
from heedful.hf.tensorflow import checkpoint_in, read_checkpoint
from heedful.hf.weights import safetensors_in
from heedful.models.configs.gpt import GptConfig
from heedful.models.gpt import Gpt
from heedful.reading import is_folder, require_folder
from heedful.training.tensors import require_finite
from heedful.training.weights import require_fit


class Causal(NamedTuple):
    """A trained GPT with all that its folder tells."""

    config: GptConfig
    tokenizer: LanguageTokenizer | None
    tensors: dict[str, Tensor]  # by their names in our model
    ledger: tuple[Line, ...]
    notes: tuple[str, ...] = ()  # what whoever loads it should know
    word_ends: WordEnds | None = None  # the tokenizer of the first GPT, which goes from folder to folder only


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
    tokenizer = tokenizer_in(folder, found.config)
    if isinstance(tokenizer, WordEnds):
        return found._replace(word_ends=tokenizer)
    return found._replace(tokenizer=tokenizer)


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
    return Causal(config, tokenizer, found.tensors, ledger)


def tokenizer_in(folder: Path, config: GptConfig) -> BytePairs | WordEnds | None:
    """The tokenizer beside a model of others, if there is one: tokenizer.json, or the pieces with their merges.

    A GPT-2 has byte pairs; a GPT has its own kind, unless there is a piece that ends documents.
    """
    name = next((name for name in ("tokenizer.json", *VOCABS) if has(folder, name)), None)
    if name is None:
        return None
    text = read_text(folder, name, LARGEST)
    kind: type[BytePairs | WordEnds] = BytePairs if config.norm == "pre" or json.dumps(END) in text else WordEnds
    if name == "tokenizer.json":
        found = kind(text, str(folder / name))
    else:
        merges = next((name for name in MERGES if has(folder, name)), None)
        if merges is None:
            raise UserError(
                "the tokenizer lacks its merges", where=str(folder), found=f"{name} alone",
                expected=" or ".join(MERGES) + " beside it", todo=AGAIN,
            )  # fmt: skip
        _require_plain(folder)
        found = kind.of_texts(text, read_text(folder, merges, LARGEST), str(folder / name), str(folder / merges))
    if found.vocab > (config.vocab or 0):
        raise UserError(
            "the model and its tokenizer do not belong together", where=str(folder / name),
            found=f"{found.vocab:,} pieces", expected=f"at most {config.vocab:,}, the vocabulary of the model",
            todo=AGAIN,
        )  # fmt: skip
    return found


def _require_plain(folder: Path) -> None:
    """Refuse a tokenizer that is told to put a space before each text, for it gives other ids."""
    name = "tokenizer_config.json"
    if has(folder, name) and read_settings(folder, name).get("add_prefix_space") not in (False, None):
        raise UserError(
            "a space before each text is not supported", where=f"{folder / name}: add_prefix_space", found="true",
            expected="false", todo="name the folder of a GPT-2 as it was published",
        )  # fmt: skip
