"""Small GPTs of `transformers`, folders of them, and a TensorFlow checkpoint with the same tensors."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from heedful.data.tokenizers.byte_pairs import Gpt2Bpe, Gpt2Tokenizer
from heedful.hub.crc32c import crc32c, mask_crc
from heedful.hub.tensorflow import MAGIC

KINDS = ("GPT2LMHeadModel", "GPT2Model", "OpenAIGPTLMHeadModel", "OpenAIGPTModel")
TEXT = "the child came home from school and the child went to the house again, and then home. " * 20


@cache
def pairs() -> Gpt2Tokenizer:
    """A GPT-2 tokenizer."""
    return Gpt2Tokenizer.train(Gpt2Bpe(vocab=290), [TEXT])


def random_gpt(kind: str = "GPT2LMHeadModel", **changes: Any) -> Any:
    """A model with random parameters, biases and norms included."""
    settings = {
        "vocab_size": 293, "n_embd": 24, "n_head": 3, "n_layer": 2, "n_positions": 32, "bos_token_id": pairs().end,
        "eos_token_id": pairs().end, "resid_pdrop": 0.2, "embd_pdrop": 0.2,
    }  # fmt: skip
    make = transformers.GPT2Config if kind.startswith("GPT2") else transformers.OpenAIGPTConfig
    model = getattr(transformers, kind)(make(**{**settings, **changes}))
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.2)
    return model.eval()


def gpt_folder(model: Any, folder: Path, **saving: Any) -> Path:
    """Save a model with `transformers`, and a tokenizer beside it."""
    model.save_pretrained(folder, **saving)
    for name in ("vocab.json", "merges.txt"):
        (folder / name).write_text(pairs().files()[name], encoding="utf-8")
    return folder


def release(model: Any, folder: Path) -> Path:
    """The same model as in GPT-2's first release: a TensorFlow checkpoint, hparams.json, and the vocabulary."""
    folder.mkdir()
    tensors: dict[str, Tensor] = {"global_step": torch.tensor(7)}
    for name, tensor in model.transformer.state_dict().items():
        *path, part = name.split(".")
        if path[0] == "h":
            path[:2] = [f"h{path[1]}"]
        norm, table = path[-1].startswith("ln_"), path[-1] in ("wte", "wpe")
        last = [] if table else ["g" if norm and part == "weight" else "w" if part == "weight" else "b"]
        tensors["/".join(["model", *path, *last])] = tensor[None] if last == ["w"] else tensor
    write_checkpoint(tensors, folder / "model.ckpt")
    config = model.config
    sizes = {"n_vocab": config.vocab_size, "n_ctx": config.n_positions, "n_embd": config.n_embd}
    text = str({**sizes, "n_head": config.n_head, "n_layer": config.n_layer}).replace("'", '"')
    (folder / "hparams.json").write_text(text)
    for name, theirs in (("encoder.json", "vocab.json"), ("vocab.bpe", "merges.txt")):
        (folder / name).write_text(pairs().files()[theirs], encoding="utf-8")
    return folder


def write_checkpoint(tensors: dict[str, Tensor], path: Path) -> None:
    """Write a TensorFlow checkpoint with one data file and an index of one block."""
    pairs, data = [(b"", field(1, 1))], b""
    for name in sorted(tensors):
        numbers = tensors[name].detach().contiguous().numpy()
        raw, dtype = numbers.tobytes(), 9 if numbers.dtype.kind == "i" else 1
        shape = b"".join(field(2, field(1, size)) for size in numbers.shape)
        crc = bytes([6 << 3 | 5]) + mask_crc(crc32c(raw)).to_bytes(4, "little")
        entry = field(1, dtype) + field(2, shape) + field(4, len(data)) + field(5, len(raw)) + crc
        pairs.append((name.encode(), entry))
        data += raw
    index, handles = b"", []
    for entries in (pairs, [], None):
        block = b"".join(
            number(0) + number(len(key)) + number(len(value)) + key + value
            for key, value in ([(pairs[-1][0], handles[0])] if entries is None else entries)
        )
        block += bytes(4) + (1).to_bytes(4, "little")  # one restart, at the beginning
        handles.append(number(len(index)) + number(len(block)))
        index += block + b"\0" + mask_crc(crc32c(block + b"\0")).to_bytes(4, "little")
    index += (handles[1] + handles[2]).ljust(40, b"\0") + MAGIC.to_bytes(8, "little")
    Path(f"{path}.index").write_bytes(index)
    Path(f"{path}.data-00000-of-00001").write_bytes(data)


def number(value: int) -> bytes:
    """A varint."""
    return bytes([value]) if value < 128 else bytes([value % 128 + 128]) + number(value // 128)


def field(tag: int, value: int | bytes) -> bytes:
    """A field of a protocol buffer message."""
    if isinstance(value, int):
        return number(tag << 3) + number(value)
    return number(tag << 3 | 2) + number(len(value)) + value
