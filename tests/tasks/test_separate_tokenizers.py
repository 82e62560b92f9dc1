"""Translation with a tokenizer for each side: training, resuming, files, export, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

import heedful
from heedful.data.pairs.batches import encode_pairs
from heedful.data.tokenizers.multilingual import open_translation_tokenizer
from heedful.data.tokenizers.separate import SeparateTokenizers
from heedful.data.tokenizers.tokenizer import Characters, TokenizerConfig, TrainedTokenizer, WholeWords
from heedful.errors import UserError
from heedful.export.write import export
from heedful.runs.recipe import recipe_of
from heedful.runs.train import Started, Step, train

pytestmark = pytest.mark.usefixtures("no_loss_curve")

RECIPE = """
task: {kind: translation}
data: {kind: number_words, train: 60, valid: 4, test: 4, below: 100}
tokenizer: {kind: characters}
source_tokenizer: {kind: words, vocab: 100}
model: {kind: transformer, width: 8, heads: 2, encoder_layers: 1, decoder_layers: 1, hidden: 16, context: 64}
train: {budget: {steps: 4}, schedule: {kind: constant}, batch_tokens: 128, evaluate_every: 2, save_every: 2, threads: 1}
decode: {beams: 1, max_length: 6}
"""
SOURCES, TARGETS = ["two red houses", "one house"], ["zwei rote Häuser", "ein Haus"]
KINDS: list[TokenizerConfig] = [Characters(), WholeWords(vocab=50)]


@pytest.mark.parametrize("source", KINDS)
@pytest.mark.parametrize("target", KINDS)
def test_each_side_is_encoded_by_its_own_tokenizer(source: TokenizerConfig, target: TokenizerConfig) -> None:
    both = SeparateTokenizers.learn(source, target, SOURCES, TARGETS)
    of_source, of_target = TrainedTokenizer.train(source, SOURCES), TrainedTokenizer.train(target, TARGETS)
    assert both.ids(SOURCES) == of_source.ids(SOURCES) == [one.ids for one in both.encode_batch(SOURCES)]
    assert both.target_ids(TARGETS) == of_target.ids(TARGETS)
    assert [both.decode(ids) for ids in both.target_ids(TARGETS)] == TARGETS
    assert (both.source_vocab, both.vocab) == (of_source.vocab, of_target.vocab)
    assert (both.source_names, both.token_names) == (of_source.token_names, of_target.token_names)
    again = open_translation_tokenizer(both.json, "tokenizer.json")
    assert isinstance(again, SeparateTokenizers) and again.json == both.json
    with pytest.raises(UserError):
        open_translation_tokenizer('{"source": {}}', "tokenizer.json")


def test_a_run_is_trained_resumed_loaded_and_saved(tmp_path: Path) -> None:
    given, at = recipe_of(RECIPE, "recipe.yaml"), [0]
    list(train(given, tmp_path / "whole"))
    for event in train(given, tmp_path / "stopped", lambda: at[0] >= 2):
        at[0] = event.step if isinstance(event, Started | Step) else at[0]
    list(train(given, tmp_path / "stopped"))
    names = ("tokenizer.json", "config.json", "model.safetensors")
    whole, stopped = (
        [(tmp_path / run / "model" / name).read_bytes() for name in names] for run in ("whole", "stopped")
    )
    assert whole == stopped
    translator = heedful.load(tmp_path / "whole", heedful.Translator, "cpu")
    tokenizer, config = translator.tokenizer, translator.model.config
    assert (config.source_vocab, config.vocab) == (tokenizer.source_vocab, tokenizer.vocab)
    assert len(translator.model.source_tokens.weight) == tokenizer.source_vocab != tokenizer.vocab
    (best,), *_ = translator.search(["forty-two"], beams=1, top=1)
    assert translator.align("forty-two", best).source == [
        *tokenizer.source_pieces(tokenizer.ids(["forty-two"])[0]),
        "<eos>",
    ]
    translator.save(tmp_path / "saved")
    texts = ["one", "forty-two"]
    assert heedful.load(tmp_path / "saved", heedful.Translator, "cpu").translate(texts) == translator.translate(texts)
    pairs = given.data.read("valid").pairs
    encoded = encode_pairs(pairs, tokenizer, 64)
    assert max(map(max, tokenizer.target_ids([pair.target for pair in pairs]))) < tokenizer.vocab
    assert len(encoded) == len(pairs)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["onnx", "ctranslate2"])
def test_a_run_is_exported(form: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime" if form == "onnx" else form)
    list(train(recipe_of(RECIPE, "recipe.yaml"), tmp_path / "run"))
    found = export(heedful.load(tmp_path / "run", heedful.Translator, "cpu"), tmp_path / form, form)
    assert all(file.difference < 1e-4 for file in found)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("kind: transformer, width: 8, heads: 2, encoder_layers: 1, decoder_layers: 1, hidden: 16", "kind: seq2seq",
         "this model has one embedding for both sides"),
        ("kind: number_words", "kind: parallel_numbers", "each is source and target"),
    ],
)  # fmt: skip
def test_where_there_is_one_vocabulary_it_is_refused(before: str, after: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        recipe_of(RECIPE.replace(before, after), "recipe.yaml")
