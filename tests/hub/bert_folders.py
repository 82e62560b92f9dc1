"""Small BERTs of `transformers`, and folders of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers

PIECES = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    *"abcdefghij",
    *("##" + letter for letter in "abcdefghij"),
    *".,!?",
]
HEADS = (
    "BertModel",
    "BertForPreTraining",
    "BertForMaskedLM",
    "BertForNextSentencePrediction",
    "BertForSequenceClassification",
    "BertForTokenClassification",
    "BertForQuestionAnswering",
)


def random_bert(kind: str = "BertModel", **changes: Any) -> Any:
    """A model with random parameters, biases and norms included."""
    settings: dict[str, Any] = {
        "vocab_size": len(PIECES), "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3,
        "intermediate_size": 40, "max_position_embeddings": 32, "type_vocab_size": 2, "num_labels": 3,
        "hidden_dropout_prob": 0.2,
    }  # fmt: skip
    if kind == "BertForQuestionAnswering":
        changes = {"num_labels": 2}
    model = getattr(transformers, kind)(transformers.BertConfig(**{**settings, **changes}))
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.2)
    return model.eval()


def save_folder(model: Any, folder: Path, **saving: Any) -> Path:
    """Save a model with `transformers`, and a vocabulary beside it."""
    model.save_pretrained(folder, **saving)
    (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in PIECES))
    return folder


def change(folder: Path, **settings: Any) -> Path:
    """Change settings of a folder's config.json; None removes one."""
    file = folder / "config.json"
    known = {**json.loads(file.read_text()), **settings}
    file.write_text(json.dumps({key: value for key, value in known.items() if value is not None}))
    return folder


def batch(rows: int = 3, length: int = 11) -> dict[str, torch.Tensor]:
    """Ids with segments; the first row is padded."""
    ids = torch.randint(5, len(PIECES), (rows, length))
    mask = torch.ones_like(ids)
    mask[0, length // 2 :] = 0
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.randint(0, 2, (rows, length))}
