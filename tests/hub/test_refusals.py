"""What stays refused of published folders: each says that it is not supported, where it stands, and what to do."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bert_folders import change, random_bert, save_folder
from gpt_folders import gpt_folder, pairs, random_gpt
from marian_folders import marian_folder, random_marian, two_vocabularies

from heedful.errors import UserError
from heedful.hub import pretrained
from heedful.hub.folder import exchanges, find_exchange
from heedful.hub.image_folders import find_image_exchange, image_exchanges
from heedful.hub.sentence_transformers import SentenceConfig, sentence_files
from heedful.models.exchange import ENCODER_HARMLESS, refuse

Edit = Callable[[Path], Any]


def config(**settings: Any) -> Edit:
    return lambda folder: change(folder, **settings)


def tokenizer(**settings: Any) -> Edit:
    return lambda folder: (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def part(name: str, value: Any) -> Edit:
    """Another part of the tokenizer.json that is equivalent to the files of a folder."""

    def edit(folder: Path) -> None:
        whole = pretrained(folder).tokenizer.json
        (folder / "tokenizer.json").write_text(json.dumps(json.loads(whole) | {name: value}))

    return edit


def modules(*kinds: str, **pooling: Any) -> Edit:
    """A sentence-transformers folder with these modules after the encoder."""

    def edit(folder: Path) -> None:
        for name, text in sentence_files(24, SentenceConfig(pooling="mean"), 16).items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(text)
        listed = [
            {"type": f"sentence_transformers.models.{kind}", "path": f"{place}_{kind}" if place else ""}
            for place, kind in enumerate(("Transformer", *kinds))
        ]
        (folder / "modules.json").write_text(json.dumps(listed))
        if pooling:
            (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))

    return edit


FOLDERS: dict[str, Callable[[Path], Path]] = {
    "bert": lambda folder: save_folder(random_bert(), folder),
    "classifier": lambda folder: save_folder(random_bert("BertForSequenceClassification"), folder),
    "gpt2": lambda folder: gpt_folder(random_gpt(), folder),
    "gpt2 classifier": lambda folder: gpt_folder(
        random_gpt("GPT2ForSequenceClassification", num_labels=3, pad_token_id=pairs().end), folder
    ),
    "marian": lambda folder: marian_folder(random_marian(), folder),
    "marian, two vocabularies": lambda folder: marian_folder(random_marian(**two_vocabularies()), folder),
}
REFUSED: list[tuple[str, Edit, str]] = [  # a folder, what is changed, and what the error names
    ("bert", config(model_type="llama"), "model_type"),
    ("bert", config(architectures=["BertLMHeadModel"]), "architectures"),
    ("bert", config(hidden_act="gelu_10"), "hidden_act"),
    ("bert", config(is_decoder=True), "is_decoder"),
    ("bert", config(add_cross_attention=True), "add_cross_attention"),
    ("bert", config(position_embedding_type="relative_key"), "position_embedding_type"),
    ("bert", config(pruned_heads={"0": [1]}), "pruned_heads"),
    ("bert", config(quantization_config={"bits": 8}), "quantization_config"),
    ("bert", config(auto_map={"AutoModel": "code.Model"}), "auto_map"),
    ("bert", tokenizer(tokenizer_class="LlamaTokenizer"), "tokenizer_class"),
    ("bert", tokenizer(cls_token="[unused1]"), "cls_token"),
    ("bert", tokenizer(truncation_side="left"), "truncation_side"),
    ("bert", tokenizer(split_special_tokens=True), "split_special_tokens"),
    ("bert", modules("Dense", "Pooling"), "Dense"),
    ("bert", modules("Pooling", "Normalize", "Dense"), "Normalize"),
    ("bert", modules("Pooling", "LayerNorm"), "LayerNorm"),
    ("bert", modules("Pooling", pooling_mode="lasttoken"), "lasttoken"),
    ("bert", modules("Pooling", pooling_mode=["mean", "lasttoken"]), "lasttoken"),
    ("classifier", config(problem_type="ranking"), "problem_type"),
    ("bert", part("normalizer", {"type": "Lowercase"}), "normalizer of type 'Lowercase'"),
    ("bert", part("pre_tokenizer", {"type": "Whitespace"}), "pre_tokenizer of type 'Whitespace'"),
    ("gpt2", part("normalizer", {"type": "Lowercase"}), "normalizer of type 'Lowercase'"),
    ("gpt2", config(architectures=["GPT2DoubleHeadsModel"]), "architectures"),
    ("gpt2", config(activation_function="gelu_10"), "activation_function"),
    ("gpt2", config(add_cross_attention=True), "add_cross_attention"),
    ("gpt2", config(scale_attn_weights=False, scale_attn_by_inverse_layer_idx=True), "scale_attn_weights"),
    ("gpt2", tokenizer(tokenizer_class="LlamaTokenizer"), "tokenizer_class"),
    ("gpt2", tokenizer(add_prefix_space=True), "add_prefix_space"),
    ("gpt2 classifier", tokenizer(add_bos_token=True), "start token"),
    ("marian", config(tie_word_embeddings=False), "tie_word_embeddings"),
    ("marian", config(activation_function="gelu_10"), "activation_function"),
    ("marian", config(decoder_ffn_dim=24), "decoder_ffn_dim"),
    ("marian", tokenizer(separate_vocabs=True), "separate_vocabs"),
    ("marian, two vocabularies", tokenizer(separate_vocabs=False), "separate_vocabs"),
    ("marian, two vocabularies", config(vocab_size=12), "vocab_size"),
]  # fmt: skip


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("published")
    return {name: make(place / name) for name, make in FOLDERS.items()}


@pytest.mark.parametrize(("name", "edit", "words"), REFUSED, ids=[f"{name}: {words}" for name, _, words in REFUSED])
def test_what_is_refused_says_so_and_why(
    name: str, edit: Edit, words: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(folders[name], tmp_path / "folder")
    pretrained(folder)  # it is the change that is refused
    edit(folder)
    with pytest.raises(UserError) as raised:
        pretrained(folder)
    message = str(raised.value)
    assert "not supported: " in message and words in message and str(folder) in message
    assert raised.value.todo


@pytest.mark.parametrize("kind", [*exchanges(), *image_exchanges()])
def test_each_setting_that_is_refused_has_a_reason(kind: str) -> None:
    module: Any = find_exchange(kind) or find_image_exchange(kind)
    for key in {**vars(module).get("HARMLESS", {}), **ENCODER_HARMLESS}:
        with pytest.raises(UserError) as raised:
            refuse({key: "odd"}, vars(module).get("HARMLESS", {}) | ENCODER_HARMLESS, Path("config.json"), "do this")
        assert str(raised.value).startswith(f"config.json: {key}: not supported: ") and len(str(raised.value)) > 60
