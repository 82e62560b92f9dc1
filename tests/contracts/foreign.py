"""Correct models that are not ours, of torch and of transformers, in tiny sizes with random weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import transformers as hf
from torch import Tensor, nn

SIZES = {
    "vocab_size": 41, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24,
}  # fmt: skip


class TorchEncoder(nn.Module):
    """nn.TransformerEncoder with a mask that lets an empty row see its first key."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(31, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 24, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, tokens: Tensor, padding_mask: Tensor) -> Tensor:
        mask = padding_mask.clone()
        mask[:, 0] &= ~mask.all(1)
        return self.layers(self.embed(tokens), src_key_padding_mask=mask)


class ConvNet(nn.Module):
    """Images -> classes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.out = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Linear(8, 4)

    def forward(self, images: Tensor) -> Tensor:
        return self.out(self.norm(self.conv(images)).relu().mean((2, 3)))


def marian() -> hf.MarianModel:
    sizes = {"d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "max_position_embeddings": 64}
    return hf.MarianModel(hf.MarianConfig(vocab_size=41, pad_token_id=0, decoder_start_token_id=0, **sizes, **heads))


def gpt2() -> hf.GPT2LMHeadModel:
    return hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=41, n_embd=16, n_layer=2, n_head=2, n_positions=64))


def published(name: str, **settings: Any) -> Callable[[], nn.Module]:
    """A model of transformers with random weights."""
    config = getattr(hf, f"{name.split('For')[0].removesuffix('Model').removesuffix('MT')}Config")
    return lambda: getattr(hf, name)(config(**settings))


SMALL = SIZES | {"max_position_embeddings": 64}
GROUPED = SMALL | {"num_key_value_heads": 1}
NARROW = {"vocab_size": 41, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 24}
RARE: dict[str, Callable[[], nn.Module]] = {
    f"transformers: {name}": published(name, **settings)
    for name, settings in {
        "ElectraForPreTraining": SMALL | {"embedding_size": 8},
        "DebertaV2Model": SMALL | {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
        "MPNetModel": SMALL,
        "OPTForCausalLM": SIZES | {"ffn_dim": 24, "word_embed_proj_dim": 16},
        "BloomForCausalLM": {"vocab_size": 41, "hidden_size": 16, "n_layer": 2, "n_head": 2},
        "MistralForCausalLM": GROUPED | {"sliding_window": 6},
        "MixtralForCausalLM": GROUPED | {"num_local_experts": 3},
        "MambaForCausalLM": {"vocab_size": 41, "hidden_size": 16, "num_hidden_layers": 2, "state_size": 4},
        "T5ForConditionalGeneration": {
            "vocab_size": 41, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2,
            "decoder_start_token_id": 0,
        },
        "BartForConditionalGeneration": NARROW | {
            "encoder_attention_heads": 2, "decoder_attention_heads": 2, "decoder_ffn_dim": 24,
            "max_position_embeddings": 64,
        },
    }.items()
}  # fmt: skip

FOREIGN: dict[str, Callable[[], nn.Module]] = {
    "torch.nn.TransformerEncoder, empty rows guarded": TorchEncoder,
    "torch.nn.LSTM, two layers": lambda: nn.LSTM(8, 8, 2, batch_first=True),
    "torch.nn.GRU, bidirectional, rows second": lambda: nn.GRU(8, 8, bidirectional=True),
    "torch.nn.Transformer": lambda: nn.Transformer(16, 2, 1, 1, 24, batch_first=True),
    "a ConvNet with batch norm": ConvNet,
    "transformers: BertModel": lambda: hf.BertModel(hf.BertConfig(**SIZES)),
    "transformers: BertForSequenceClassification": lambda: hf.BertForSequenceClassification(hf.BertConfig(**SIZES)),
    "transformers: RobertaModel": lambda: hf.RobertaModel(hf.RobertaConfig(**SIZES)),
    "transformers: DistilBertModel": lambda: hf.DistilBertModel(
        hf.DistilBertConfig(vocab_size=41, dim=16, n_layers=2, n_heads=2, hidden_dim=24)
    ),
    "transformers: AlbertModel": lambda: hf.AlbertModel(hf.AlbertConfig(**SIZES, embedding_size=8)),
    "transformers: T5EncoderModel": lambda: hf.T5EncoderModel(
        hf.T5Config(vocab_size=41, d_model=16, d_kv=8, d_ff=24, num_layers=2, num_heads=2)
    ),
    "transformers: MarianModel": marian,
    "transformers: ViTModel": lambda: hf.ViTModel(
        hf.ViTConfig(
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=24,
            image_size=16,
            patch_size=4,
        )
    ),
    "transformers: ResNetModel": lambda: hf.ResNetModel(
        hf.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1])
    ),
    "transformers: LlamaForCausalLM": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**SIZES, max_position_embeddings=64)),
    **RARE,
}
