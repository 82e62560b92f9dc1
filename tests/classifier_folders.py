"""Small classifiers of `transformers` by family, folders of them, and texts."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from heedful.data.labelled.batches import encode_texts
from heedful.data.tokenizers.tokenizer import WordPiece
from heedful.data.tokenizers.wordpiece import BertTokenizer

WORDS = ["the", "red", "cat", "sees", "a", "big", "dog", "and", "runs", "home", "to", "old", "stone"]
TOKENIZER = BertTokenizer.train(WordPiece(vocab=60), [" ".join(WORDS)])
TEXTS = [" ".join(WORDS[:5]), "a dog", ("a red dog", "the cat"), " ".join(WORDS * 2)]
FAMILIES: dict[str, dict[str, Any]] = {
    "Bert": {},
    "DistilBert": {},
    "Albert": {"embedding_size": 12},
    "BigBird": {"attention_type": "original_full"},
}


def folder(path: Path, family: str, rng: random.Random, problem: str | None, outputs: int, **named: Any) -> Any:
    """A random model of `transformers`, and a folder of it with a vocabulary."""
    heads = rng.randint(1, 4)
    width, layers, hidden = heads * 2 * rng.randint(2, 7), rng.randint(1, 3), rng.randint(5, 60)
    names = {"dim": width, "n_layers": layers, "n_heads": heads, "hidden_dim": hidden}
    usual = {
        "hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads, "intermediate_size": hidden,
    }  # fmt: skip
    config = getattr(transformers, f"{family}Config")(
        vocab_size=TOKENIZER.vocab, max_position_embeddings=32, problem_type=problem, num_labels=outputs,
        **(names if family == "DistilBert" else usual), **FAMILIES[family], **named,
    )  # fmt: skip
    model = getattr(transformers, f"{family}ForSequenceClassification")(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.3)
    model.save_pretrained(path)
    (path / "tokenizer.json").write_text(TOKENIZER.json, encoding="utf-8")
    return model


def theirs_on(model: Any, family: str) -> torch.Tensor:
    """Their logits (N, C) for the texts."""
    batch = encode_texts(
        [(text, None) if isinstance(text, str) else text for text in TEXTS], np.zeros(len(TEXTS), int), TOKENIZER, 32
    ).batch(np.arange(len(TEXTS)))
    real = (torch.arange(batch.ids.shape[1]) < batch.lengths[:, None]).long()
    segments = {} if family == "DistilBert" else {"token_type_ids": batch.segments}
    with torch.no_grad():
        found: torch.Tensor = model(batch.ids, attention_mask=real, **segments).logits
    return found
