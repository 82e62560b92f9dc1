"""Small Marian models of `transformers`, and folders of them with SentencePiece vocabularies."""

from __future__ import annotations

import io
import json
import random
from functools import cache
from pathlib import Path
from typing import Any

import sentencepiece
import torch
import transformers

SOURCE = [
    "the child came home from school",
    "the house is near the school, and the child is at home",
    "a home, a house!",
]
TARGET = ["das Kind kam aus der Schule nach Hause", "das Haus ist bei der Schule, und das Kind ist daheim", "ein Haus!"]
LANGUAGES = [">>deu<<", ">>fra<<"]


@cache
def spm(side: int) -> bytes:
    """A SentencePiece model of a language."""
    file = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([SOURCE, TARGET][side] * 20), model_writer=file, vocab_size=60, hard_vocab_limit=False,
        normalization_rule_name="nmt_nfkc", character_coverage=0.98, minloglevel=2,
    )  # fmt: skip
    return file.getvalue()


@cache
def vocabulary() -> dict[str, int]:
    """The ids of both sides: `</s> <unk>`, the pieces, the languages, `<pad>`."""
    names = ["</s>", "<unk>"]
    for side in range(2):
        model = sentencepiece.SentencePieceProcessor(model_proto=spm(side))
        pieces = [model.id_to_piece(number) for number in range(3, model.get_piece_size())]
        names += [piece for piece in pieces if piece not in names and piece != "z"]
    return {name: number for number, name in enumerate([*names, *LANGUAGES, "<pad>"])}


@cache
def own_vocabulary(side: int) -> dict[str, int]:
    """The ids of one side alone: `</s> <unk>`, the pieces, for the source the languages, `<pad>`."""
    model = sentencepiece.SentencePieceProcessor(model_proto=spm(side))
    pieces = [model.id_to_piece(number) for number in range(3, model.get_piece_size())]
    known = [piece for piece in reversed(pieces) if piece not in set("zHKSo")]  # others are unknown
    names = ["</s>", "<unk>", *known, *LANGUAGES[: 2 - 2 * side]]
    return {name: number for number, name in enumerate([*names, "<pad>"])}


def two_vocabularies(untied: bool = False) -> dict[str, Any]:
    """The settings of a model with a vocabulary and an embedding for each side, and maybe one for the logits."""
    count = len(own_vocabulary(1))
    return {
        "share_encoder_decoder_embeddings": False, "tie_word_embeddings": not untied,
        "vocab_size": len(own_vocabulary(0)), "decoder_vocab_size": count,
        "pad_token_id": count - 1, "decoder_start_token_id": count - 1,
    }  # fmt: skip


def random_settings(rng: random.Random) -> dict[str, Any]:
    heads, act = rng.randint(1, 4), ("swish", "relu", "gelu", "silu", "gelu_new", "quick_gelu", "tanh", "mish")
    both = {"attention_heads": heads, "ffn_dim": rng.randint(4, 60)}
    return {
        "d_model": heads * 2 * rng.randint(1, 9), "encoder_layers": rng.randint(1, 3),
        "decoder_layers": rng.randint(1, 3),
        **{f"{side}_{key}": value for side in ("encoder", "decoder") for key, value in both.items()},
        "activation_function": rng.choice(act), "max_position_embeddings": rng.randint(60, 90),
        "dropout": rng.choice([0.0, 0.1]), "scale_embedding": rng.random() < 0.6,
    }  # fmt: skip


def random_marian(bias: float = 1.0, **changes: Any) -> Any:
    """A model with random parameters, biases and norms included, which ends its translations soon."""
    count = len(vocabulary())
    settings: dict[str, Any] = {
        "vocab_size": count, "d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2,
        "decoder_attention_heads": 2, "encoder_ffn_dim": 20, "decoder_ffn_dim": 20, "max_position_embeddings": 40,
        "activation_function": "swish", "scale_embedding": True, "pad_token_id": count - 1,
        "decoder_start_token_id": count - 1, "eos_token_id": 0, "forced_eos_token_id": 0,
    }  # fmt: skip
    model = transformers.MarianMTModel(transformers.MarianConfig(**{**settings, **changes}))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "embed_positions" not in name:
                weight.add_(torch.randn_like(weight) * 0.3)
        model.final_logits_bias.normal_().mul_(bias)
        model.final_logits_bias[0, 0] += 2.0
    generation = model.generation_config
    generation.bad_words_ids, generation.renormalize_logits = [[model.config.pad_token_id]], True
    generation.num_beams, generation.max_length = 4, 30
    return model.eval()


def marian_folder(model: Any, folder: Path) -> Path:
    """Save a model with `transformers`, and its vocabulary, or the two of them, beside it."""
    model.save_pretrained(folder)
    for side, name in enumerate(("source.spm", "target.spm")):
        (folder / name).write_bytes(spm(side))
    separate = not model.config.share_encoder_decoder_embeddings
    (folder / "vocab.json").write_text(json.dumps(own_vocabulary(0) if separate else vocabulary()))
    if separate:
        (folder / "target_vocab.json").write_text(json.dumps(own_vocabulary(1)))
    settings = {
        "tokenizer_class": "MarianTokenizer",
        "source_lang": "eng",
        "target_lang": "deu",
        "model_max_length": 40,
        **({"separate_vocabs": True} if separate else {}),
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder
