"""The names of GPT's and GPT-2's tensors: ours, Hugging Face's, and those of GPT-2's first release for TensorFlow."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from torch import Tensor

from heedful.hub.rules import Rule, Table, Twin
from heedful.models.gpt.config import GptConfig

EMBEDDINGS = {"pre": ("wte", "wpe"), "post": ("tokens_embed", "positions_embed")}  # GPT-2 and GPT
DENSE = {  # of a block; matrices lie on their side in both
    "attention.qkv": "attn.c_attn",
    "attention.out": "attn.c_proj",
    "mlp.up": "mlp.c_fc",
    "mlp.down": "mlp.c_proj",
}
NORMS = {"add1.norm": "ln_1", "add2.norm": "ln_2"}
BUFFERS = ("attn.bias", "attn.masked_bias")  # the triangle of who sees whom, which is computed here
MEMORY = re.compile(r".+/Adam(_1)?|global_step|beta[12]_power")


def table(config: GptConfig) -> Table:
    """Hugging Face's names, as a model with an output has them: all else below `transformer.`."""
    words, places = EMBEDDINGS[config.norm]
    rules = [
        Rule("tokens.weight", (f"transformer.{words}.weight",)),
        Rule("positions.table", (f"transformer.{places}.weight",)),
    ]
    spare = ["transformer.position_ids"]
    for index in range(config.layers):
        ours, theirs = f"blocks.{index}", f"transformer.h.{index}"
        for own, other in DENSE.items():
            rules.append(Rule(f"{ours}.{own}.weight", (f"{theirs}.{other}.weight",), True))
            rules.append(Rule(f"{ours}.{own}.bias", (f"{theirs}.{other}.bias",)))
        for own, other in NORMS.items():
            rules += _both(f"{ours}.{own}", f"{theirs}.{other}")
        spare += [f"{theirs}.{name}" for name in BUFFERS]
    if config.norm == "pre":
        rules += _both("norm", "transformer.ln_f")
    return Table(tuple(rules), (Twin("lm_head.weight", f"transformer.{words}.weight"),), tuple(spare))


def _both(ours: str, theirs: str) -> list[Rule]:
    return [Rule(f"{ours}.{part}", (f"{theirs}.{part}",)) for part in ("weight", "bias")]


def canonical(names: Iterable[str]) -> dict[str, str]:
    """The table's name of each name in a file: models without an output are saved without `transformer.`."""
    given = list(names)
    bare = not any(name.startswith("transformer.") for name in given)
    return {name: f"transformer.{name}" if bare and not name.startswith("lm_head.") else name for name in given}


def original(config: GptConfig, names: Iterable[str]) -> Table:
    """The names in a checkpoint of GPT-2's first release; what its optimizer remembers is passed over."""
    rules = [Rule("tokens.weight", ("model/wte",)), Rule("positions.table", ("model/wpe",))]
    for index in range(config.layers):
        ours, theirs = f"blocks.{index}", f"model/h{index}"
        for own, other in DENSE.items():
            path = f"{theirs}/{other.replace('.', '/')}"
            rules += [Rule(f"{ours}.{own}.weight", (f"{path}/w",), True), Rule(f"{ours}.{own}.bias", (f"{path}/b",))]
        for own, other in NORMS.items():
            rules += _gain(f"{ours}.{own}", f"{theirs}/{other}")
    rules += _gain("norm", "model/ln_f")
    return Table(tuple(rules), spare=tuple(name for name in names if MEMORY.fullmatch(name)))


def _gain(ours: str, theirs: str) -> list[Rule]:
    return [Rule(f"{ours}.weight", (f"{theirs}/g",)), Rule(f"{ours}.bias", (f"{theirs}/b",))]


def flat(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of that release, whose matrices are stored as convolutions over one place, (1, D, E)."""
    return {
        name: tensor[0] if name.endswith("/w") and tensor.dim() == 3 and len(tensor) == 1 else tensor
        for name, tensor in tensors.items()
    }
