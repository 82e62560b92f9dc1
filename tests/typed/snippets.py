"""Typical code of users with the types that a type checker must infer; `test_snippets.py` checks and runs it.

Each function gets the folder of the golden runs, and an empty folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import assert_type

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

import heedful
from heedful.plots.figures import curves, heatmap

TEXT, OTHER = "the red cat sees a small ball .", "a big dog takes the old stone ."
TINY = [
    "data.train=100", "data.valid=5", "data.test=5", "tokenizer.vocab=90", "model.width=8", "model.heads=2",
    "model.hidden=8", "train.budget.steps=2", "train.device=cpu",
]  # fmt: skip


def load_any(runs: Path, folder: Path) -> None:
    predictor = heedful.load(runs / "language_model-gpt", "cpu")
    assert_type(predictor, heedful.AnyPredictor)
    assert_type(predictor.notes, tuple[str, ...])
    assert_type(predictor.device, torch.device)


def load_and_narrow(runs: Path, folder: Path) -> None:
    predictor = heedful.load(runs / "language_model-gpt", device="cpu")
    assert isinstance(predictor, heedful.TextGenerator)
    assert_type(predictor, heedful.TextGenerator)


def load_typed(runs: Path, folder: Path) -> None:
    assert_type(heedful.load(runs / "language_model-gpt", heedful.TextGenerator, "cpu"), heedful.TextGenerator)


def load_by_class(runs: Path, folder: Path) -> None:
    generator = heedful.TextGenerator.load(runs / "language_model-gpt", device="cpu", checkpoint="last")
    assert_type(generator, heedful.TextGenerator)


def translate(runs: Path, folder: Path) -> None:
    translator = heedful.Translator.load(runs / "translation-transformer", "cpu")
    assert_type(translator.translate(["seven two"]), list[str])
    assert_type(translator.predict(["seven two"]), list[heedful.Translation])


def align(runs: Path, folder: Path) -> None:
    translator = heedful.Translator.load(runs / "translation-transformer", "cpu")
    (best,) = translator.predict(["seven two"])
    assert_type(translator.align("seven two", best), heedful.Alignment)


def search(runs: Path, folder: Path) -> None:
    translator = heedful.Translator.load(runs / "translation-seq2seq", "cpu")
    assert_type(translator.search(["seven two"], beams=3, top=2), list[list[heedful.Translation]])
    assert_type(translator.sample(["seven two"], temperature=0.8, top_k=5, seed=1), list[list[heedful.Translation]])


def generate(runs: Path, folder: Path) -> None:
    generator = heedful.TextGenerator.load(runs / "language_model-gpt", "cpu")
    (found,) = generator.generate(["the red"], length=4, temperature=0.0)
    assert_type(found, heedful.GeneratedText)
    assert_type(found.completion, str)
    assert_type(found.to_dict(), dict[str, object])


def stream(runs: Path, folder: Path) -> None:
    generator = heedful.TextGenerator.load(runs / "language_model-rnn_lm", "cpu")
    for piece in generator.stream("the red", length=4, seed=3):
        assert_type(piece, str)


def perplexity(runs: Path, folder: Path) -> None:
    generator = heedful.TextGenerator.load(runs / "language_model-gpt", "cpu")
    assert_type(generator.perplexity(TEXT), float)
    assert_type(generator.evaluate([TEXT, OTHER]), heedful.Evaluation)


def embed(runs: Path, folder: Path) -> None:
    encoder = heedful.TextEncoder.load(runs / "pretraining-bert", "cpu")
    assert_type(encoder.embed([TEXT, OTHER]), Tensor)
    assert_type(encoder.predict([TEXT])[0].vector, Tensor)


def embed_tokens(runs: Path, folder: Path) -> None:
    encoder = heedful.TextEncoder.load(runs / "pretraining-roberta", "cpu")
    assert_type(encoder.vectors([TEXT]), list[heedful.TokenEmbeddings])
    assert_type(encoder.layers([TEXT])[0].pieces, list[str])


def fill_masks(runs: Path, folder: Path) -> None:
    encoder = heedful.TextEncoder.load(runs / "pretraining-bert", "cpu")
    found = encoder.fill("the [MASK] cat [MASK]", top=2)
    assert_type(found, heedful.MaskPredictions)
    assert_type(found.predictions[0][0], heedful.TokenPrediction)
    assert_type(found.joint[0], heedful.JointPrediction)
    assert_type(found.dependence, float | None)


def next_sentence(runs: Path, folder: Path) -> None:
    assert_type(heedful.TextEncoder.load(runs / "pretraining-bert", "cpu").follows(TEXT, OTHER), float)


def contextual_vectors(runs: Path, folder: Path) -> None:
    model = heedful.BidirectionalLanguageModel.load(runs / "language_model-elmo", "cpu")
    assert_type(model.predict([TEXT])[0].values, Tensor)


def classify(runs: Path, folder: Path) -> None:
    classifier = heedful.TextClassifier.load(runs / "classification-classifier", "cpu")
    (found,) = classifier.classify([TEXT])
    assert_type(found, heedful.Classification)
    assert_type(found.label, str)
    assert_type(found.probabilities, dict[str, float])


def regress(runs: Path, folder: Path) -> None:
    regressor = heedful.TextRegressor.load(runs / "regression-regressor", "cpu")
    assert_type(regressor.predict([(TEXT, OTHER)])[0].value, float)


def tag(runs: Path, folder: Path) -> None:
    tagger = heedful.TokenTagger.load(runs / "tagging-tagger", "cpu")
    (found,) = tagger.tag([TEXT])
    assert_type(found, heedful.TaggedText)
    assert_type(found.entities, tuple[heedful.Entity, ...])


def answer(runs: Path, folder: Path) -> None:
    answerer = heedful.QuestionAnswerer.load(runs / "answering-answerer", "cpu")
    assert_type(answerer.answer([("who ?", TEXT)], top=2), list[list[heedful.Answer]])
    assert_type(answerer.predict([("who ?", TEXT)]), list[heedful.Answer | None])


def answer_stories(runs: Path, folder: Path) -> None:
    answerer = heedful.StoryAnswerer.load(runs / "story_answering-memory_network", "cpu")
    found = answerer.answer(["Mary moved to the garden."], "Where is Mary?")
    assert_type(found, heedful.StoryAnswer)
    assert_type(found.weights, list[list[float]])
    assert_type(answerer.predict([("Mary left.", "Where is Mary?")]), list[heedful.StoryAnswer])


def choose(runs: Path, folder: Path) -> None:
    answerer = heedful.MultipleChoiceAnswerer.load(runs / "multiple_choice-multiple_choice", "cpu")
    assert_type(answerer.choose(TEXT, [TEXT, OTHER]), heedful.Choice)


def reconstruct(runs: Path, folder: Path) -> None:
    autoencoder = heedful.ImageAutoencoder.load(runs / "reconstruction-autoencoder", "cpu")
    images = np.zeros((2, 1, 6, 6), np.float32)
    assert autoencoder.reconstruct(images).shape == images.shape
    assert_type(autoencoder.predict(images), list[heedful.Reconstruction])


def classify_trees(runs: Path, folder: Path) -> None:
    classifier = heedful.TreeClassifier.load(runs / "tree_classification-tree_lstm", "cpu")
    assert_type(classifier.classify(["(1 (1 not) (1 bad))"]), list[heedful.TreeClassification])


def evaluate(runs: Path, folder: Path) -> None:
    translator = heedful.Translator.load(runs / "translation-transformer", "cpu")
    found = translator.evaluate([("three", "3"), ("seven two", "72")])
    assert_type(found, heedful.Evaluation)
    assert_type(found.scores, dict[str, float])
    assert_type(found.loss, float | None)


def save_and_load(runs: Path, folder: Path) -> None:
    classifier = heedful.TextClassifier.load(runs / "text_classification-conv_classifier", "cpu")
    classifier.save(folder / "model")
    again = heedful.TextClassifier.load(folder / "model", "cpu").to("cpu")
    assert_type(again, heedful.TextClassifier)
    assert again.predict([TEXT]) == classifier.predict([TEXT])


def any_text_predictor(runs: Path, folder: Path) -> None:
    def first(predictor: heedful.Predictor[str, heedful.GeneratedText, str], texts: Sequence[str]) -> str:
        return predictor.predict(texts)[0].text

    assert_type(first(heedful.TextGenerator.load(runs / "language_model-gpt", "cpu"), ["the"]), str)


def train_and_load(runs: Path, folder: Path) -> None:
    steps = 0
    for event in heedful.train(heedful.load_recipe("numbers", TINY), folder / "run"):
        steps += type(event).__name__ == "Step"
    assert steps == 2
    assert_type(heedful.load(folder / "run", heedful.Translator), heedful.Translator)


def fit_with_a_callback(runs: Path, folder: Path) -> None:
    seen: list[str] = []
    predictor = heedful.fit(
        heedful.load_recipe("numbers", TINY), folder / "run", on=lambda event: seen.append(str(event))
    )
    assert_type(predictor, heedful.AnyPredictor)
    assert seen and isinstance(predictor, heedful.Translator)


def watch_attention(runs: Path, folder: Path) -> None:
    translator = heedful.Translator.load(runs / "translation-transformer", "cpu")
    assert_type(translator.model, nn.Module)
    with heedful.watch(translator.model, "*.weights") as seen:
        translator.translate(["three"])
    assert_type(seen["decoder.0.cross.weights"], Tensor)


def attend_by_hand(runs: Path, folder: Path) -> None:
    q, k, v = torch.randn(3, 8), torch.randn(5, 8), torch.randn(5, 4)
    assert_type(heedful.attend(q, k, v), Tensor)
    assert_type(heedful.attend(q, k, v, normalize=heedful.sparsemax), Tensor)
    assert_type(heedful.attend(q, k, v, normalize="entmax15"), Tensor)
    assert heedful.attend(q, k, v, mask=torch.ones(3, 5, dtype=torch.bool), normalize=heedful.entmax15).shape == (3, 4)


def multi_head(runs: Path, folder: Path) -> None:
    heads, x = heedful.MultiHead(8, 2), torch.randn(1, 3, 8)
    assert heads(x).shape == heads(x, torch.randn(1, 5, 8)).shape == (1, 3, 8)
    cache = heads.keys_values(x[:, :1])
    assert_type(cache.append(heads.keys_values(x[:, 1:2])).k, Tensor)


def plot_weights(runs: Path, folder: Path) -> None:
    translator = heedful.Translator.load(runs / "translation-transformer", "cpu")
    found = translator.align("seven two", translator.predict(["seven two"])[0])
    figure = heatmap(found.weights, found.target, found.source, "Attention")
    assert_type(figure, Figure)
    figure.savefig(folder / "attention.png")


def plot_curves(runs: Path, folder: Path) -> None:
    assert_type(curves({"loss": ([1, 2, 3], [3.0, 2.0, 1.5])}, x_label="step"), Figure)


def principal_components(runs: Path, folder: Path) -> None:
    x = np.random.default_rng(0).normal(size=(20, 5))
    assert np.asarray(heedful.PCA(2).fit_transform(x)).shape == (20, 2)
