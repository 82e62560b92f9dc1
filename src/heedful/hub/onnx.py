"""Trained encoders as ONNX files, for any number of texts of any length up to the context.

B texts, T tokens, D width.
"""

from __future__ import annotations

import logging
import warnings
from contextlib import redirect_stdout
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from heedful.blocks.layouts import Padded
from heedful.blocks.linear import Linear
from heedful.errors import UserError
from heedful.files import writing as files
from heedful.hub.loading import Pretrained
from heedful.models import build

NEEDED = ("onnx", "onnxscript")
INPUTS = ("input_ids", "attention_mask", "token_type_ids")  # Hugging Face's names
LARGEST = 2**31 - 1  # bytes that one such file can hold


class Exported(nn.Module):
    """Token ids, attention mask, segments (B, T) -> all outputs of the folder's model."""

    def __init__(self, found: Pretrained) -> None:
        super().__init__()
        self.pooling, self.normalize = found.pooling, found.normalize
        encoder: Any = build(found.config)
        encoder.load_state_dict(found.tensors)
        self.encoder, self.config = encoder, found.config
        self.head = None
        self.kind = None if found.head is None else found.head.kind
        if found.head is not None:
            self.head = Linear(found.config.width, len(found.head.tensors["bias"]))
            self.head.load_state_dict(found.head.tensors)

    @property
    def outputs(self) -> list[str]:
        """The names of the outputs, as in Hugging Face's models."""
        config = self.config
        names = ["last_hidden_state"]
        names += ["pooler_output"] * config.pooler + ["prediction_logits"] * config.masked_words
        names += ["seq_relationship_logits"] * config.next_sentence + ["sentence_embedding"] * bool(self.pooling)
        head = ["start_logits", "end_logits"] if self.kind == "answerer" else ["logits"]
        return names + head * bool(self.kind)

    def forward(self, ids: Tensor, real: Tensor, segments: Tensor) -> tuple[Tensor, ...]:
        layout = Padded(real != 0)
        x = self.encoder(ids, segments, layout)  # (B, T, D)
        first = layout.first(x)  # (B, D)
        told = [x]
        if self.config.pooler:
            told.append(self.encoder.pool(first))  # (B, D)
        if self.config.masked_words:
            told.append(self.encoder.words(x))  # (B, T, V)
        if self.config.next_sentence:
            told.append(self.encoder.follows(first))  # (B, 2)
        if self.pooling is not None:
            told.append(self.sentence(x, first, real))  # (B, D)
        if self.head is not None and self.kind == "answerer":
            told += self.head(x).unbind(-1)  # (B, T) each
        elif self.head is not None:
            told.append(self.head(x if self.kind == "tagger" else self.encoder.pool(first)))  # (B, T, C) or (B, C)
        return tuple(told)

    def sentence(self, x: Tensor, first: Tensor, real: Tensor) -> Tensor:
        """One vector per text, pooled as the folder specifies."""
        weight = real.to(x.dtype)[:, :, None]  # (B, T, 1)
        vector = first if self.pooling == "first" else (x * weight).sum(1) / weight.sum(1).clamp(min=1e-9)  # (B, D)
        return nn.functional.normalize(vector, dim=-1) if self.normalize else vector


def require_packages() -> None:
    """Raise an error naming the packages to install, if any that an export needs are missing."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise UserError(
            "ONNX export needs packages that are not installed", found=f"no {' and no '.join(missing)}",
            todo="pip install 'heedful[onnx]'",
        )  # fmt: skip


def write_onnx(file: Path, found: Pretrained) -> list[str]:
    """Write an ONNX file, which appears whole or not at all, and return the names of its outputs."""
    require_packages()
    if (size := 4 * found.config.parameters(found.config.vocab or 0)) > LARGEST:
        raise UserError(
            "this model is too large for one ONNX file", found=f"{size:,} bytes", expected=f"at most {LARGEST:,}"
        )
    model = Exported(found).eval()
    # Two rows, a length unlike any other size, and real padding, so that none of them is exported as a constant.
    length = min(7, found.config.context)
    example = torch.ones(2, length, dtype=torch.long)
    real = example.clone()
    real[1, -1] = 0
    rows, places = torch.export.Dim("batch"), torch.export.Dim("length", max=found.config.context)
    shape = {0: rows, 1: places}
    with warnings.catch_warnings(), redirect_stdout(StringIO()):
        warnings.simplefilter("ignore")
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        program = torch.onnx.export(
            model, (example, real, torch.zeros_like(example)), dynamo=True, input_names=list(INPUTS),
            output_names=model.outputs, dynamic_shapes=(shape, shape, shape), verbose=False,
        )  # fmt: skip
    assert program is not None
    files.write_atomic(file, program.model_proto.SerializeToString())
    return model.outputs
