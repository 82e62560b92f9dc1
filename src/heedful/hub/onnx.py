"""Export encoders to ONNX, for batches of any size and texts of any length up to the context.

B texts, T tokens, D width, E width of a text's vector.
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
from heedful.hub.dense import DenseLayers
from heedful.hub.loading import Pretrained
from heedful.hub.pooling import pool
from heedful.models import build

NEEDED = ("onnx", "onnxscript")
INPUTS = ("input_ids", "attention_mask", "token_type_ids")  # Hugging Face's names
PAIRS = {"next_sentence": "seq_relationship_logits", "sentence_order": "sop_logits"}  # Hugging Face's names as well
MAX_BYTES = 2**31 - 1  # of one ONNX file


class Exported(nn.Module):
    """The exported module: token ids, attention mask, segments (B, T) -> all outputs of the model."""

    def __init__(self, model: Pretrained) -> None:
        super().__init__()
        self.pooling, self.normalize = model.pooling, model.normalize
        encoder: Any = build(model.config)
        encoder.load_state_dict(model.tensors)
        self.encoder, self.config = encoder, model.config
        self.dense = DenseLayers.of(model.config.width, model.sentences)
        self.dense.load_state_dict(dict(model.dense_tensors))
        self.head = None
        self.kind = None if model.head is None else model.head.kind
        if model.head is not None:
            self.head = Linear(model.config.width, len(model.head.tensors["bias"]))
            self.head.load_state_dict(model.head.tensors)

    @property
    def outputs(self) -> list[str]:
        """The names of the outputs, as in Hugging Face's models."""
        config = self.config
        names = ["last_hidden_state"]
        names += ["pooler_output"] * config.pooler + ["prediction_logits"] * config.masked_words
        names += ([PAIRS[config.pairs]] if config.pairs else []) + ["sentence_embedding"] * bool(self.pooling)
        head = ["start_logits", "end_logits"] if self.kind == "answerer" else ["logits"]
        return names + head * bool(self.kind)

    def forward(self, ids: Tensor, real: Tensor, segments: Tensor) -> tuple[Tensor, ...]:
        layout = Padded(real != 0)
        x = self.encoder(ids, segments, layout)  # (B, T, D)
        first = layout.first(x)  # (B, D)
        outputs = [x]
        if self.config.pooler:
            outputs.append(self.encoder.summarize(x, layout))  # (B, D)
        if self.config.masked_words:
            outputs.append(self.encoder.words(x))  # (B, T, V)
        if self.config.pairs:
            outputs.append(self.encoder.follows(first))  # (B, 2)
        if self.pooling is not None:
            outputs.append(self.sentence(x, first, real))  # (B, D)
        if self.head is not None and self.kind == "answerer":
            outputs += self.head(x).unbind(-1)  # (B, T) each
        elif self.head is not None:
            outputs.append(
                self.head(x if self.kind == "tagger" else self.encoder.summarize(x, layout))
            )  # (B, T, C) or (B, C)
        return tuple(outputs)

    def sentence(self, x: Tensor, first: Tensor, real: Tensor) -> Tensor:
        """One vector per text, as the folder specifies."""
        how = self.pooling if isinstance(self.pooling, tuple) else (self.pooling or "mean",)
        vector = torch.cat([first if one == "first" else pool(x, real != 0, one) for one in how], -1)  # (B, D)
        vector = self.dense(vector)  # (B, E)
        return nn.functional.normalize(vector, dim=-1) if self.normalize else vector


def require_packages() -> None:
    """Raise an error that names the missing packages, if any."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise UserError(
            "ONNX export needs packages that are not installed", found=f"no {' and no '.join(missing)}",
            todo="pip install 'heedful[onnx]'",
        )  # fmt: skip


def write_onnx(file: Path, pretrained: Pretrained) -> list[str]:
    """Write an ONNX file atomically, and return the names of its outputs."""
    require_packages()
    if reason := pretrained.config.unexported:
        raise UserError(
            "this model cannot be written as ONNX", found=reason, todo="keep it as it is: `heedful.load` reads it"
        )
    if (size := 4 * pretrained.config.parameters(pretrained.config.vocab or 0)) > MAX_BYTES:
        raise UserError(
            "this model is too large for one ONNX file", found=f"{size:,} bytes", expected=f"at most {MAX_BYTES:,}"
        )
    model = Exported(pretrained).eval()
    # Two rows, a length that is no other dimension, and padding, so that none of them is exported as a constant.
    length = min(7, pretrained.config.context)
    example = torch.ones(2, length, dtype=torch.long)
    real = example.clone()
    real[1, -1] = 0
    shape = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length", max=pretrained.config.context)}
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
