"""Write the golden files that are missing: `python tests/golden/record.py`. What is there is never written over.

To record a file again, delete it on purpose.
"""

from __future__ import annotations

import csv
import io
import json
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TESTS), str(TESTS / "hf")]
os.environ |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}  # as in `tests/conftest.py`

import numpy as np
import torch
from PIL import Image

import heedful
from golden.comparing import packed
from golden.library import LEDGERS, PACKETS, PUBLISHED, RUNS, SHOWN, ledger, packet, predictions, recipes, show_recipe

Files = dict[str, str | bytes]
SPLITS = {"train": 48, "valid": 8, "test": 8}
PLOTS = ("*.png", "*.html", "pictures", "lock")  # plots and locks, which are not recorded

# A large eps: else a gradient that is zero but for rounding moves a weight by a whole step, another one on each CPU.
TRAIN = """
train:
  seed: 7
  budget: {steps: 30}
  optimizer: {kind: adamw, lr: 2e-2, eps: 1e-4}
  schedule: {kind: cosine, warmup: 3}
  precision: fp32
  device: cpu
  threads: 1
  log_every: 1
  evaluate_every: 20
  save_every: 10
  keep: 2
  samples: 2
"""
TUNED = """
tokenizer: {kind: wordpiece, vocab: 60, lowercase: true}
model:
  kind: KIND
  encoder: {width: 8, heads: 2, layers: 1, hidden: 16, context: 32}
"""


# ------------------------------------------------------------------ texts
DIGITS = {
    "one": "eins", "two": "zwei", "three": "drei", "four": "vier", "five": "fünf", "six": "sechs", "seven": "sieben",
    "eight": "acht", "nine": "neun",
}  # fmt: skip
ANIMALS, THINGS = ("cat", "dog", "bird"), ("ball", "stone", "leaf")
QUALITIES, VERBS = ("red", "big", "small", "old"), ("sees", "takes", "likes")


class Texts:
    """Random sentences of a few words."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def digits(self) -> tuple[str, str]:
        """Some digits in two languages."""
        some = self.rng.choices(list(DIGITS), k=self.rng.randint(1, 4))
        return " ".join(some), " ".join(DIGITS[word] for word in some)

    def parts(self) -> tuple[str, str, str, str, str, str]:
        """An article with a quality and an animal, a verb, a quality and a thing."""
        pick = self.rng.choice
        return pick(("the", "a")), pick(QUALITIES), pick(ANIMALS), pick(VERBS), pick(QUALITIES), pick(THINGS)

    def sentence(self) -> str:
        """A sentence of these parts."""
        article, quality, animal, verb, other, thing = self.parts()
        return f"{article} {quality} {animal} {verb} the {other} {thing} ."


def lines(rows: list[str]) -> str:
    """Rows as the text of a file."""
    return "".join(f"{row}\n" for row in rows)


def table(rows: list[list[Any]]) -> str:
    """Rows as the text of a CSV file."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue()


def pairs(texts: Texts, split: str, size: int) -> Files:
    """A file a language."""
    found = [texts.digits() for _ in range(size)]
    return {f"{split}.en": lines([en for en, _ in found]), f"{split}.de": lines([de for _, de in found])}


def conversations(texts: Texts, split: str, size: int) -> Files:
    """Dialogues of two to five utterances, each of which repeats a word of the first."""
    rows = [[texts.sentence() for _ in range(2 + number % 4)] for number in range(size)]
    return {f"{split}.txt": lines([" __eou__ ".join([*row, row[0].split()[0]]) + " __eou__" for row in rows])}


def columns(texts: Texts, split: str, size: int) -> Files:
    """Both languages in one file."""
    return {f"{split}.tsv": lines(["\t".join(texts.digits()) for _ in range(size)])}


def prose(texts: Texts, split: str, size: int) -> Files:
    """A sentence a line."""
    return {f"{split}.txt": lines([texts.sentence() for _ in range(size)])}


def documents(texts: Texts, split: str, size: int) -> Files:
    """Four sentences a document."""
    return {f"{split}.txt": "\n".join(lines([texts.sentence() for _ in range(4)]) for _ in range(max(4, size // 4)))}


def classes(texts: Texts, split: str, size: int) -> Files:
    """Sentences by their animals."""
    found = [texts.sentence() for _ in range(size)]
    return {f"{split}.tsv": lines(["text\tlabel", *(f"{text}\t{text.split()[2]}" for text in found)])}


def objects(texts: Texts, split: str, size: int) -> Files:
    """The same as JSON lines."""
    found = [texts.sentence() for _ in range(size)]
    return {f"{split}.jsonl": lines([json.dumps({"text": text, "label": text.split()[2]}) for text in found])}


def numbers(texts: Texts, split: str, size: int) -> Files:
    """Two sentences, and the share of positions where they have the same word."""
    rows: list[list[Any]] = [["one", "other", "score"]]
    for _ in range(size):
        one, other = texts.sentence(), texts.sentence()
        rows.append([one, other, sum(a == b for a, b in zip(one.split(), other.split(), strict=True)) / 8])
    return {f"{split}.csv": table(rows)}


def choices(texts: Texts, split: str, size: int) -> Files:
    """A sentence, and three statements about its animal."""
    rows: list[list[Any]] = [["sent1", "first", "second", "third", "label"]]
    for _ in range(size):
        article, quality, animal, verb, other, thing = texts.parts()
        right = texts.rng.randrange(3)
        statements = [f"the {texts.rng.choice(THINGS)} is {texts.rng.choice(QUALITIES)} ." for _ in range(3)]
        statements[right] = f"the {animal} is {quality} ."
        rows.append([f"{article} {quality} {animal} {verb} the {other} {thing} .", *statements, right])
    return {f"{split}.csv": table(rows)}


def tags(texts: Texts, split: str, size: int) -> Files:
    """Animals with their quality, and things."""
    rows = []
    for _ in range(size):
        article, quality, animal, verb, other, thing = texts.parts()
        rows += [f"{article} O", f"{quality} B-ANIMAL", f"{animal} I-ANIMAL", f"{verb} O", "the O"]
        rows += [f"{other} O", f"{thing} B-THING", ". O", ""]
    return {f"{split}.txt": lines(rows)}


def questions(texts: Texts, split: str, size: int) -> Files:
    """Questions about what an animal sees, and the answer spans."""
    rows = []
    for _ in range(size):
        passage = texts.sentence()
        words = passage.split()
        answer = " ".join(words[4:7])
        asked = {"question": f"what is it that the {words[2]} {words[3]} ?", "passage": passage, "answer": answer}
        rows.append(json.dumps({**asked, "start": passage.index(answer)}))
    return {f"{split}.jsonl": lines(rows)}


def trees(texts: Texts, split: str, size: int) -> Files:
    """Good and bad, turned by a word before it."""
    rows = []
    for _ in range(size):
        good, turned = texts.rng.randrange(2), texts.rng.randrange(2)
        word, before = ("bad", "good")[good], ("very", "not")[turned]
        rows.append(f"({2 * (good ^ turned)} (1 {before}) ({2 * good} (1 {texts.rng.choice(THINGS)}) (1 {word})))")
    return {f"{split}.txt": lines(rows)}


def images(texts: Texts, split: str, size: int) -> Files:
    """Random bytes, with a bright row or column."""
    pixels = np.array([texts.rng.randrange(60) for _ in range(size * 36)], np.uint8).reshape(size, 6, 6)
    for number in range(size):
        position = texts.rng.randrange(6)
        pixels[number][position if number % 2 else slice(None), slice(None) if number % 2 else position] = 230
    out = io.BytesIO()
    np.save(out, pixels)
    return {f"{split}.npy": out.getvalue()}


def labelled_images(texts: Texts, split: str, size: int) -> Files:
    """The same with their classes: a bright column or a bright row."""
    out = io.BytesIO()
    np.save(out, np.arange(size) % 2)
    return {**images(texts, split, size), f"{split}-labels.npy": out.getvalue()}


def rows(texts: Texts, split: str, size: int) -> Files:
    """Rows of a sentence, numbers of which some are missing, a class and an image; the label is what they say."""
    found: Files = {}
    for number in range(3):
        out = io.BytesIO()
        pixels = np.array([texts.rng.randrange(80) for _ in range(36)], np.uint8).reshape(6, 6) + 80 * np.uint8(number)
        Image.fromarray(pixels).save(out, "PNG")
        found[f"{split}{number}.png"] = out.getvalue()
    records = []
    for _ in range(size):
        sentence, weight, place = texts.sentence(), round(texts.rng.uniform(-5, 5), 2), texts.rng.randrange(3)
        row = {"text": sentence, "weight": None if weight > 4 else weight, "size": [place, -weight]}
        row |= {"place": ("hill", "lake", "wood")[place], "photo": f"{split}{place}.png"}
        records.append({**row, "label": sentence.split()[2] if weight > 0 else "none"})
    return {**found, f"{split}.jsonl": lines(list(map(json.dumps, records)))}


def nothing(texts: Texts, split: str, size: int) -> Files:
    """No files: the data are drawn."""
    return {}


# ------------------------------------------------------------------ recipes
TEXT_FILES = "[{kind: text, files: [SPLIT.txt], between: blank_lines}]"


def files(kind: str, ending: str, more: str = "") -> str:
    """The data of a recipe that has a file a split."""
    each = ", ".join(f"{split}: {split}.{ending}" for split in SPLITS)
    return f"data: {{kind: {kind}, root: data, {each}{more}}}\n"


def per_split(form: str) -> str:
    """The same, with `form` for each split."""
    return ", ".join(f"{split}: {form.replace('SPLIT', split)}" for split in SPLITS)


RunSpec = tuple[str, Callable[[Texts, str, int], Files]]


def pretraining(task: str, tokenizer: str, model: str, sizes: str = "heads: 2, hidden: 16") -> RunSpec:
    """An encoder of two layers, pre-trained on documents."""
    recipe = f"""task: {{{task}}}
data: {{kind: documents, root: data, {per_split(TEXT_FILES)}}}
tokenizer: {{{tokenizer}}}
model: {{{model}, width: 8, {sizes}, layers: 2, context: 32}}
"""
    return recipe + TRAIN + "  batch_tokens: 128\n", documents


def dialogue_model(model: str) -> RunSpec:
    """A model of dialogues, which are split into parts of four utterances."""
    recipe = f"""
task: {{kind: dialogue, longest: 20, utterances: 4}}
tokenizer: {{kind: words, vocab: 60}}
model:
  {model}
  context: 32
  dropout: 0.1
decode: {{beams: 2, max_length: 12}}
"""
    return files("dailydialog", "txt") + recipe + TRAIN + "  batch_tokens: 256\n", conversations


def image_model(model: str) -> RunSpec:
    """An image model, trained on images of 6 x 6."""
    recipe = f"""task: {{kind: image_classification}}
data: {{kind: array, root: data, {per_split("{file: SPLIT.npy, labels: SPLIT-labels.npy}")}}}
model: {{{model}, channels: 1, size: [6, 6]}}
"""
    return recipe + TRAIN.replace("lr: 2e-2", "lr: 5e-3") + "  batch_examples: 12\n", labelled_images


STORIES = "data: {kind: generated_stories, facts: 2, every: 3, questions: 2, train: 24, valid: 6, test: 6}\n"

TRAINED: dict[str, RunSpec] = {
    "translation-transformer": (
        f"data: {{kind: parallel, root: data, {per_split('{source: SPLIT.en, target: SPLIT.de}')}}}"
        """
tokenizer: {kind: bpe, vocab: 270}
model: {kind: transformer, width: 8, heads: 2, encoder_layers: 1, decoder_layers: 1, hidden: 16, context: 32}
decode: {beams: 3}
"""
        + TRAIN
        + "  batch_tokens: 96\n  average: 2\n",
        pairs,
    ),
    "translation-seq2seq": (
        files("tsv", "tsv")
        + """
tokenizer: {kind: wordpiece, vocab: 50}
model:
  kind: seq2seq
  width: 8
  encoder: {kind: recurrent, cell: lstm, layers: 1, hidden: 8}
  cell: gru
  layers: 1
  hidden: 8
  attention: {score: additive, feed: input}
  context: 32
decode: {beams: 2, length_penalty: 0.6}
"""
        + TRAIN
        + "  batch_tokens: 96\n  accumulate: 2\n",
        columns,
    ),
    "language_model-gpt": (
        "task: {kind: language_model, stride: 8}\n"
        + files("text", "txt")
        + """
tokenizer: {kind: byte_pairs, vocab: 290}
model: {kind: gpt, width: 8, heads: 2, layers: 2, hidden: 16, context: 16}
decode: {length: 12}
"""
        + TRAIN
        + "  batch_tokens: 64\n",
        prose,
    ),
    "language_model-rnn_lm": (
        "task: {kind: language_model}\n"
        + files("text", "txt")
        + """
tokenizer: {kind: characters, vocab: 40}
model: {kind: rnn_lm, width: 8, cell: lstm, layers: 1, hidden: 12, context: 16, dropout: 0.2}
decode: {length: 12}
"""
        + TRAIN
        + "  batch_tokens: 128\n",
        prose,
    ),
    "language_model-transformer_xl": (
        "task: {kind: language_model, carry: true}\n"
        f"data: {{kind: documents, root: data, {per_split(TEXT_FILES)}}}"
        """
tokenizer: {kind: byte_pairs, vocab: 290}
model:
  kind: transformer_xl
  width: 8
  heads: 2
  layers: 2
  hidden: 16
  context: 16
  memory: 20
  cutoffs: [40, 100]
  divisor: 2
decode: {length: 12}
"""
        + TRAIN
        + "  batch_tokens: 64\n",
        documents,
    ),
    "language_model-elmo": (
        "task: {kind: language_model}\n"
        + files("text", "txt")
        + """
tokenizer: {kind: words, vocab: 40}
model: {kind: elmo, width: 8, layers: 2, hidden: 8, context: 12}
"""
        + TRAIN
        + "  batch_tokens: 96\n",
        prose,
    ),
    "pretraining-bert": pretraining(
        "kind: pretraining", "kind: wordpiece, vocab: 60, lowercase: true", "kind: bert"
    ),
    "pretraining-roberta": pretraining(
        "kind: pretraining, unrelated: 0", "kind: roberta_pairs, vocab: 290", "kind: roberta"
    ),
    "pretraining-xlnet": pretraining(
        "kind: pretraining", "kind: xlnet_unigram, vocab: 60", "kind: xlnet"
    ),
    "pretraining-xlm_roberta": pretraining(
        "kind: pretraining, unrelated: 0, full_sentences: true", "kind: xlm_unigram, vocab: 60", "kind: xlm_roberta"
    ),
    "pretraining-albert": pretraining(
        "kind: pretraining, whole_words: true", "kind: albert_unigram, vocab: 60", "kind: albert, embedding: 6"
    ),
    "pretraining-distilbert": pretraining(
        "kind: pretraining, unrelated: 0", "kind: wordpiece, vocab: 60, lowercase: true", "kind: distilbert"
    ),
    "pretraining-linformer": pretraining(
        "kind: pretraining, unrelated: 0",
        "kind: wordpiece, vocab: 60, lowercase: true",
        "kind: linformer, slots: 8, next_sentence: false",
    ),
    "pretraining-bigbird": pretraining(
        "kind: pretraining", "kind: bigbird_unigram, vocab: 60", "kind: bigbird, block: 2, random_blocks: 1"
    ),
    "pretraining-rnn_encoder": pretraining(
        "kind: pretraining", "kind: wordpiece, vocab: 60, lowercase: true", "kind: rnn_encoder", "cell: lstm"
    ),
    "pretraining-conv_encoder": pretraining(
        "kind: pretraining", "kind: wordpiece, vocab: 60, lowercase: true", "kind: conv_encoder", "size: 3"
    ),
    "permutation_lm-xlnet": pretraining(
        "kind: permutation_lm, one_in: 3, longest_span: 2, memory: 16", "kind: xlnet_unigram, vocab: 60", "kind: xlnet"
    ),
    "classification-classifier": (
        "task: {kind: classification, label_smoothing: 0.05}\n"
        + files("tsv", "tsv", ", text: text, label: label")
        + TUNED.replace("KIND", "classifier")
        + TRAIN
        + "  batch_examples: 8\n",
        classes,
    ),
    "text_classification-conv_classifier": (
        "task: {kind: text_classification}\n"
        + files("jsonl", "jsonl", ", text: text, label: label")
        + """
tokenizer: {kind: words}
model: {kind: conv_classifier, width: 8, sizes: [2, 3], filters: 4, context: 32}
"""
        + TRAIN
        + "  batch_examples: 8\n",
        objects,
    ),
    "text_classification-rnn_classifier": (
        "task: {kind: text_classification}\n"
        + files("jsonl", "jsonl", ", text: text, label: label")
        + """
tokenizer: {kind: words}
model: {kind: rnn_classifier, width: 8, hidden: 8, context: 32}
"""
        + TRAIN
        + "  batch_examples: 8\n",
        objects,
    ),
    "text_classification-transformer_classifier": (
        "task: {kind: text_classification}\n"
        + files("jsonl", "jsonl", ", text: text, label: label")
        + """
tokenizer: {kind: words}
model: {kind: transformer_classifier, width: 8, heads: 2, layers: 1, hidden: 16, context: 32}
"""
        + TRAIN
        + "  batch_examples: 8\n",
        objects,
    ),
    "regression-regressor": (
        "task: {kind: regression}\n"
        + files("csv", "csv", ", text: one, pair: other, label: score")
        + TUNED.replace("KIND", "regressor")
        + TRAIN.replace("cosine, warmup", "linear, warmup")
        + "  batch_examples: 8\n",
        numbers,
    ),
    "multi_label-multi_label": (
        "task: {kind: multi_label}\n"
        + files("jsonl", "jsonl", ", text: text, label: label")
        + TUNED.replace("KIND", "multi_label")
        + TRAIN
        + "  batch_examples: 8\n",
        objects,
    ),
    "multiple_choice-multiple_choice": (
        "task: {kind: multiple_choice}\n"
        + files("choices", "csv", ", begin: null, choices: [first, second, third]")
        + TUNED.replace("KIND", "multiple_choice")
        + TRAIN
        + "  batch_examples: 4\n",
        choices,
    ),
    "tagging-tagger": (
        "task: {kind: tagging}\n"
        + files("conll", "txt")
        + TUNED.replace("KIND", "tagger")
        + "  reader: {kind: bilstm, hidden: 8, layers: 1}\n"
        + TRAIN
        + "  batch_examples: 8\n",
        tags,
    ),
    "answering-answerer": (
        "task: {kind: answering}\n"
        + files("jsonl", "jsonl")
        + TUNED.replace("KIND", "answerer")
        + TRAIN
        + "  batch_examples: 8\ndecode: {stride: 4, question: 12, longest: 6}\n",
        questions,
    ),
    "tree_classification-tree_lstm": (
        "task: {kind: tree_classification}\n"
        + files("trees", "txt", ", classes: 3")
        + "model: {kind: tree_lstm, width: 8, hidden: 8, classes: 3, dropout: 0.1}\n"
        + TRAIN.replace("kind: cosine", "kind: constant")
        + "  batch_tokens: 40\n",
        trees,
    ),
    "reconstruction-autoencoder": (
        "task: {kind: reconstruction, noise: 0.2}\n"
        f"data: {{kind: array, root: data, {per_split('{file: SPLIT.npy}')}}}"
        """
model:
  kind: autoencoder
  input: [1, 6, 6]
  encoder: [{kind: conv, filters: 4}, {kind: max_pool}, {kind: flatten}, {kind: dense, width: 5}]
  decoder:
    - {kind: dense, width: 36}
    - {kind: reshape, shape: [4, 3, 3]}
    - {kind: upsample}
    - {kind: conv, filters: 1, activation: sigmoid}
"""
        + TRAIN.replace("{kind: adamw, lr: 2e-2, eps: 1e-4}", "{kind: rmsprop, lr: 1e-2, eps: 1e-4}")
        + "  batch_examples: 8\n",
        images,
    ),
    "tabular-tabular": (
        "task: {kind: tabular, predict: label}\n"
        + files("jsonl", "jsonl")
        + """
columns:
  text: {kind: text, tokenizer: {kind: words, vocab: 40}, longest: 12}
  weight: {kind: number, missing: replace}
  photo: {kind: image, channels: 1}
model:
  kind: tabular
  text: {kind: recurrent, width: 6, cell: gru, hidden: 5}
  image: {kind: lenet, padding: 5, filters: [2, 3]}
  width: 6
  hidden: [12]
"""
        + TRAIN
        + "  batch_examples: 12\n",
        rows,
    ),
    "image_classification-lenet": (
        "task: {kind: image_classification, label_smoothing: 0.1, class_weights: balanced}\n"
        f"data: {{kind: array, root: data, {per_split('{file: SPLIT.npy, labels: SPLIT-labels.npy}')}}}"
        """
augment: {crop: 1, flip: 0.5, brightness: 0.2, erase: 0.3, mixup: 0.2, cutmix: 1.0}
model: {kind: lenet, size: [6, 6], padding: 5, filters: [3, 4], hidden: [6, 5]}
"""
        + TRAIN
        + "  batch_examples: 9\n",
        labelled_images,
    ),
    "image_classification-alexnet": image_model(
        "kind: alexnet, filters: [3, 4, 4, 3, 3], kernel: 3, stride: 1, padding: 6, grid: 1, hidden: 6, dropout: 0.1"
    ),
    "image_classification-vgg": image_model(
        "kind: vgg, depths: [1, 2], filters: [3, 4], norm: batch, grid: 1, hidden: 6, dropout: 0.1"
    ),
    "image_classification-googlenet": image_model(
        "kind: googlenet, stem: small, stem_filters: [3, 3, 4], stages: [[[2, 2, 3, 1, 2, 1]], [[2, 2, 3, 1, 2, 2]]], "
        "sides: [1], side_filters: 2, side_hidden: 5"
    ),
    "image_classification-resnet": image_model(
        "kind: resnet, block: bottleneck, depths: [2, 1], widths: [8, 12], stem: small, stem_width: 4"
    ),
    "image_classification-recurrent_attention": image_model(
        "kind: recurrent_attention, glimpses: 3, patch: 2, scales: 2, hidden: 6, width: 8"
    ),
    "image_classification-vit": image_model(
        "kind: vit, patch: 2, width: 8, heads: 2, layers: 2, hidden: 12, dropout: 0.1, distillation: head"
    ),
    "text_autoencoding-text_vae": (
        """task: {kind: text_autoencoding, word_dropout: 0.2, free_bits: 0.1, anneal: {kind: linear, steps: 8}}
data: {kind: grammar, train: 60, valid: 10, test: 10}
tokenizer: {kind: words, vocab: 100}
model:
  kind: text_vae
  width: 8
  cell: gru
  hidden: 10
  connector: {kind: stochastic, units: 4}
  context: 24
  dropout: 0.1
decode: {beams: 2}
"""
        + TRAIN
        + "  batch_tokens: 256\n  accumulate: 2\n",
    ),
    "style_transfer-style_transfer": (
        """
task: {kind: style_transfer, ready: 10, discriminator: {optimizer: {kind: sgd, lr: 0.05}, clip: 0.5}}
data: {kind: registers, train: 24, valid: 6, test: 6}
model:
  kind: style_transfer
  width: 6
  cell: lstm
  hidden: 8
  discriminator: {width: 4, sizes: [2, 3], filters: 3}
  context: 24
  dropout: 0.1
"""
        + TRAIN
        + "  batch_examples: 6\n",
    ),
    "control-policy": (
        """task: {kind: control, lanes: 3, agent: {kind: actor_critic, steps: 4}}
data: {kind: cartpole, limit: 40, valid: 3, test: 4}
model: {kind: policy, hidden: [5], critic: [4]}
"""
        + TRAIN,
        nothing,
    ),
    "control-q_network": (
        """task:
  kind: control
  lanes: 3
  agent: {kind: dqn, batch: 12, buffer: 60, warmup: 18, epsilon_steps: 10, target_every: 7}
data: {kind: gridworld, rows: 2, columns: 3, limit: 12, valid: 3, test: 4}
model: {kind: q_network, hidden: [5]}
"""
        + TRAIN,
    ),
    "story_answering-memory_network": (
        f"task: {{kind: story_answering}}\n{STORIES}"
        "model: {kind: memory_network, width: 8, hops: 2, memory: 6}\n" + TRAIN + "  batch_examples: 12\n",
        nothing,
    ),
    "story_answering-bag_of_words": (
        f"task: {{kind: story_answering}}\n{STORIES}"
        "model: {kind: bag_of_words, width: 8}\n" + TRAIN + "  batch_examples: 12\n",
        nothing,
    ),
    "dialogue-hred": dialogue_model(
        """kind: hred
  width: 8
  encoder: {kind: recurrent, cell: lstm, layers: 1, hidden: 6}
  turns: {cell: lstm, hidden: 10}
  layers: 1
  hidden: 8
  attention: {score: additive, feed: output}"""
    ),
    "dialogue-seq2seq": dialogue_model(
        """kind: seq2seq
  width: 8
  encoder: {kind: recurrent, cell: gru, layers: 1, hidden: 8}
  layers: 1
  hidden: 8"""
    ),
    "dialogue-transformer": dialogue_model(
        """kind: transformer
  width: 8
  heads: 2
  encoder_layers: 1
  decoder_layers: 1
  hidden: 16"""
    ),
    "paragraphs-paragraph_captioner": (
        """task: {kind: paragraphs}
data: {kind: scenes, train: 24, valid: 6, test: 6, size: [16, 16], objects: [1, 2]}
tokenizer: {kind: bpe, vocab: 300}
model:
  kind: paragraph_captioner
  encoder: {kind: lenet, channels: 3, size: [16, 16], padding: 4, filters: [3, 4]}
  grid: 2
  memory: 10
  width: 8
  cell: lstm
  hidden: 12
  context: 40
  dropout: 0.1
decode: {beams: 2, sentences: 4}
"""
        + TRAIN
        + "  batch_examples: 8\n",
        nothing,
    ),
    "captioning-captioner": (
        """
task: {kind: captioning, per_image: 2}
data: {kind: scenes, train: 24, valid: 6, test: 6, size: [16, 16], objects: [1, 2]}
tokenizer: {kind: wordpiece, vocab: 120}
model:
  kind: captioner
  encoder: {kind: vgg, size: [16, 16], depths: [1, 1], filters: [3, 4], norm: batch}
  positions: learned
  decoder: {kind: recurrent, width: 8, hidden: 8, attention: {kind: hard, score: additive}}
  context: 32
  dropout: 0.1
decode: {beams: 2}
"""
        + TRAIN
        + "  batch_examples: 6\n",
        nothing,
    ),
}  # fmt: skip


def record_run(name: str) -> None:
    """Train a run beside its data, and keep what a run folder needs."""
    text, make = TRAINED[name]
    with tempfile.TemporaryDirectory() as work:
        run = Path(work) / name
        (run / "data").mkdir(parents=True)
        texts = Texts(len(name))
        for split, size in SPLITS.items():
            for file, contents in make(texts, split, size).items():
                whole = contents.encode() if isinstance(contents, str) else contents
                (run / "data" / file).write_bytes(whole)
        (Path(work) / "asked.yaml").write_text(text)
        with chdir(run):
            for _ in heedful.train(heedful.load_recipe("../asked.yaml"), "made"):
                pass
            for part in Path("made").iterdir():
                shutil.move(part, part.name)
            Path("made").rmdir()
        for pattern in PLOTS:
            for file in run.glob(pattern):
                shutil.rmtree(file) if file.is_dir() else file.unlink()
        shutil.copytree(run, RUNS / name, dirs_exist_ok=True)


def record_predictions(name: str) -> None:
    """Record the predictions of a trained run."""
    recipe = heedful.load_recipe(str(RUNS / name / "recipe.yaml"))
    predicted = predictions(heedful.load(RUNS / name, device="cpu"), recipe.task.kind, recipe.model.kind)
    write(RUNS / name / "predictions.json", json.dumps(predicted, ensure_ascii=False, indent=None))


# ------------------------------------------------------------------ published folders
BERTS = {
    "bert": "BertModel",
    "bert-pickled": "BertModel",
    "bert-pretraining": "BertForPreTraining",
    "bert-masked": "BertForMaskedLM",
    "bert-next": "BertForNextSentencePrediction",
    "bert-classes": "BertForSequenceClassification",
    "bert-number": "BertForSequenceClassification",
    "bert-tags": "BertForTokenClassification",
    "bert-answers": "BertForQuestionAnswering",
}
GPTS = {
    "gpt2": "GPT2LMHeadModel",
    "gpt2-bare": "GPT2Model",
    "gpt2-release": "GPT2LMHeadModel",
    "gpt": "OpenAIGPTLMHeadModel",
    "gpt-bare": "OpenAIGPTModel",
}
SMALL = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 12}
SMALL_GPT = {"n_embd": 8, "n_head": 2, "n_layer": 1, "n_positions": 16}


def record_published(name: str) -> None:
    """Record a folder in a published format, with the same values on every machine."""
    from bert_folders import random_bert, save_folder
    from gpt_folders import gpt_folder, random_gpt, release

    if name in BERTS:
        more = {"num_labels": 1, "problem_type": "regression"} if name == "bert-number" else {}
        model = random_bert(BERTS[name], **SMALL, max_position_embeddings=16, **more)
    else:
        model = random_gpt(GPTS[name], **SMALL_GPT)
    rng = np.random.RandomState(len(name))
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.from_numpy(rng.randint(-256, 256, tuple(weight.shape)) / 512))
    with tempfile.TemporaryDirectory() as folder:
        make: Callable[..., Path] = save_folder if name in BERTS else release if name == "gpt2-release" else gpt_folder
        make(model, Path(folder) / name)
        if name == "bert-pickled":
            (Path(folder) / name / "model.safetensors").unlink()
            torch.save(model.state_dict(), Path(folder) / name / "pytorch_model.bin")
        shutil.copytree(Path(folder) / name, PUBLISHED / name)


def record_ledger(name: str) -> None:
    """Record the conversion of a published folder."""
    with tempfile.TemporaryDirectory() as folder:
        write(LEDGERS / f"{name}.json", json.dumps(ledger(PUBLISHED / name, Path(folder)), indent=1))


# ------------------------------------------------------------------ packets
GPT, RNN, TRANSLATOR, ENCODER = (
    "language_model-gpt", "language_model-rnn_lm", "translation-transformer", "pretraining-bert",
)  # fmt: skip
PAIR, TEXT = {"text": "seven two", "other": "sieben zwei"}, {"text": "the red cat sees a ball ."}
CROSS = "decoder.*.cross.weights"
ASKED: dict[str, tuple[str, str, dict[str, Any]]] = {  # view.call: run, and the rest of the question
    "home.model": (TRANSLATOR, "model", {}),
    "home.flow": (GPT, "flow", TEXT),
    "heads.tokens": (TRANSLATOR, "tokens", PAIR),
    "heads.layer": (TRANSLATOR, "layer", {**PAIR, "look": CROSS, "layer": 0}),
    "grid.wall": (GPT, "wall", TEXT),
    "blocks.mask": ("pretraining-bigbird", "mask", {"length": 16, "padded": 4, "head": 1}),
    "blocks.weights": ("pretraining-bigbird", "weights", {**TEXT, "layer": 0, "head": 1}),
    "alignment.steps": (TRANSLATOR, "steps", PAIR),
    "alignment.weights": ("translation-seq2seq", "weights", PAIR),
    "steps.head": (TRANSLATOR, "head", {**PAIR, "look": CROSS, "layer": 0, "head": 1}),
    "beam.tree": (TRANSLATOR, "tree", {"text": "seven two", "k": 3, "limit": 6}),
    "next.logits": (GPT, "logits", TEXT),
    "next.luck": (GPT, "luck", {"seed": 3}),
    "fill.guess": (ENCODER, "guess", {**TEXT, "hidden": [3]}),
    "classifier.rows": ("classification-classifier", "rows", {}),
    "classifier.saliency": ("classification-classifier", "saliency", {**TEXT, "label": 1}),
    "lens.words": (GPT, "words", TEXT),
    "map.points": (GPT, "points", {"of": "tokens", "lines": [TEXT["text"], "a big dog likes the old stone ."]}),
    "ablation.says": (TRANSLATOR, "says", {**PAIR, "off": [[0, 0, 0]]}),
    "recurrent.layers": (RNN, "layers", TEXT),
    "recurrent.gradient": (RNN, "gradient", TEXT),
    "reconstruct.rows": ("reconstruction-autoencoder", "rows", {"noise": 0.1, "seed": 1}),
    "reconstruct.code": ("reconstruction-autoencoder", "code", {"image": 2}),
    "image.classes": ("image_classification-lenet", "classes", {"image": 1}),
    "image.maps": ("image_classification-lenet", "maps", {"image": 1, "layer": 1}),
    "image.pixels": ("image_classification-lenet", "pixels", {"image": 1, "method": "integrated gradients"}),
    "caption.captions": ("captioning-captioner", "captions", {"image": 1, "beams": 2}),
    "caption.search": ("captioning-captioner", "search", {"image": 1, "beams": 2}),
    "paragraph.description": ("paragraphs-paragraph_captioner", "description", {"image": 2}),
    "glimpses.path": ("image_classification-recurrent_attention", "path", {"image": 1}),
    "hops.answer": ("story_answering-memory_network", "answer", {"number": 3}),
    "dialogue.reply": ("dialogue-hred", "reply", {"history": TEXT["text"] + "\n" + "a big dog likes the old stone ."}),
    "agent.episode": ("control-policy", "episode", {"forced": [[3, 1], [5, 0]]}),
    "positions.own": (GPT, "own", {}),
    "positions.mask": (GPT, "mask", {"kind": "local", "size": 6}),
    "run.about": (GPT, "about", {}),
    "run.metrics": (TRANSLATOR, "metrics", {}),
    "source.lines": (GPT, "lines", TEXT),
}  # fmt: skip
NAMELESS = ("next.luck", "positions.mask")  # questions about no model


def record_packet(name: str) -> None:
    """The answer to a question of a view."""
    run, call, question = ASKED[name]
    view = name.partition(".")[0]
    question = question if name in NAMELESS else {"model": run, **question}
    with chdir(RUNS / run):  # where the run's data are
        words, arrays = packet(RUNS / run, view, call, question)
    asked = {"run": run, "view": view, "call": call, "question": question}
    whole = {**asked, "words": words, "arrays": {key: packed(array) for key, array in arrays.items()}}
    write(PACKETS / f"{name}.json", json.dumps(whole, ensure_ascii=False))


# ------------------------------------------------------------------ all of it
def write(path: Path, text: str) -> None:
    """A file that ends with the end of a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text.rstrip("\n") + "\n", encoding="utf-8")


def record_recipe(name: str) -> None:
    """What `heedful show` prints of a recipe."""
    with tempfile.TemporaryDirectory() as folder:
        write(SHOWN / f"{name}.yaml", show_recipe(name, Path(folder)))


def missing(path: Path) -> bool:
    """Whether a file must be recorded; prints its path if so."""
    if not path.exists():
        print(path.relative_to(TESTS), flush=True)
    return not path.exists()


def main() -> None:
    """Record what is missing."""
    torch.set_num_threads(1)
    for name in sorted(recipes()):
        if missing(SHOWN / f"{name}.yaml"):
            record_recipe(name)
    for name in TRAINED:
        if missing(RUNS / name / "recipe.yaml"):
            record_run(name)
        if missing(RUNS / name / "predictions.json"):
            record_predictions(name)
    for name in (*BERTS, *GPTS):
        if missing(PUBLISHED / name):
            record_published(name)
        if missing(LEDGERS / f"{name}.json"):
            record_ledger(name)
    for name in ASKED:
        if missing(PACKETS / f"{name}.json"):
            record_packet(name)


if __name__ == "__main__":
    main()
