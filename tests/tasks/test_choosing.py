"""Multiple choice: the loss, training and loading, the command line, and exchange with transformers."""

from __future__ import annotations

import csv
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers

from heedful.cli.texts import choose_command, classify_command
from heedful.data.labelled.choice_batches import encode_choices
from heedful.data.labelled.choices import Question
from heedful.data.tokenizers.wordpiece import NAMES, BertTokenizer
from heedful.errors import UserError
from heedful.hub import pretrained, write
from heedful.hub.loading import task_model
from heedful.models import build
from heedful.models.bert.config import BertConfig
from heedful.models.heads.config import MultipleChoiceConfig
from heedful.runs.load import load
from heedful.runs.recipe import load_recipe
from heedful.runs.train import train
from heedful.tasks.base import Evaluated
from heedful.tasks.multiple_choice.predictor import MultipleChoiceAnswerer, choice_loss
from tolerance import close

ENCODER = BertConfig(vocab=13, width=16, heads=2, layers=2, hidden=20, context=24, masked_words=False,
                     next_sentence=False)  # fmt: skip
TOKENIZER = BertTokenizer.from_vocab([*NAMES, *"abcdefgh"], True, "here")
QUESTIONS = [Question("a b", ("c", "d e", "f"), 1), Question("g", ("h", "a", "b c d e f"), 2)]
COLUMNS = ["", "video-id", "fold-ind", "startphrase", "sent1", "sent2", "gold-source", "ending0", "ending1", "ending2",
           "ending3", "label"]  # fmt: skip
ANIMALS = {"cat": "meows", "dog": "barks", "cow": "moos", "duck": "quacks"}


def model_of(**changes: Any) -> Any:
    torch.manual_seed(0)
    model = build(MultipleChoiceConfig(encoder=ENCODER, dropout=0.0, **changes)).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    return model


def test_loss_is_a_softmax_over_choices() -> None:
    model, batch = model_of(), encode_choices(QUESTIONS, TOKENIZER, 24).batch(np.array([1, 0]))
    found, expected = choice_loss(model, batch), torch.zeros(())
    for question in QUESTIONS:
        scores = []
        for choice in question.choices:
            a, b = TOKENIZER.ids([question.text, choice])
            ids = torch.tensor([[TOKENIZER.cls, *a, TOKENIZER.sep, *b, TOKENIZER.sep]])
            segments = torch.tensor([[0] * (len(a) + 2) + [1] * (len(b) + 1)])
            x = model.encoder.pool(model.encoder(ids, segments)[:, 0])
            scores.append(x @ model.head.weight[0] + model.head.bias)
        expected = expected + F.cross_entropy(torch.cat(scores)[None], torch.tensor([question.right]))
    close(found.total, expected)
    assert int(found.count) == 2
    nothing = choice_loss(model, encode_choices(QUESTIONS, TOKENIZER, 24).batch(np.array([], np.int64)))
    assert (float(nothing.total.detach()), int(nothing.count)) == (0, 0)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has learned which animal makes which sound, from files in SWAG's format."""
    folder, luck = tmp_path_factory.mktemp("swag"), random.Random(0)
    for name, size in (("train.csv", 160), ("val.csv", 32)):
        with (folder / name).open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(COLUMNS)
            for number in range(size):
                animal, *others = luck.sample(list(ANIMALS), 4)
                endings = ["sings", *(ANIMALS[other] for other in others)]  # learned on any machine
                luck.shuffle(endings)
                right = endings.index("sings")
                sent = f"There is a {animal}, near us."
                writer.writerow([number, "v", number, sent, sent, "It", "gold", *endings, right])
    recipe = load_recipe(
        "swag",
        [
            "start=null", "tokenizer={kind: wordpiece, vocab: 120}", f"data.root={folder}",
            "model.encoder={width: 32, heads: 2, layers: 2, hidden: 48, context: 32, dropout: 0.0}",
            "model.encoder.attention_dropout=0",
            "train.budget={steps: 160}", "train.batch_examples=16", "train.optimizer.lr=3e-3", "train.device=cpu",
            "train.schedule={kind: linear, warmup: 16}", "train.evaluate_every=80", "train.save_every=80",
            "train.samples=2",
        ],
    )  # fmt: skip
    events = list(train(recipe, folder / "run"))
    first, *_, last = [event for event in events if isinstance(event, Evaluated)]
    assert last.scores[0].name == "accuracy"
    assert last.scores[0].value > 90 and last.loss < first.loss
    assert last.samples[0][0].startswith("There is a") and "%" in last.samples[0][2]
    return folder / "run"


def test_trained_model_chooses_among_any_number_of_texts(run: Path) -> None:
    answerer = load(run)
    assert isinstance(answerer, MultipleChoiceAnswerer)
    for place, animal in enumerate(ANIMALS):
        endings = [*list(ANIMALS.values())[:place], "sings", *list(ANIMALS.values())[place:]]
        found = answerer.choose(f"There is a {animal}, near us.", [f"It {one}" for one in endings])
        assert found.choice == "It sings" and found.index == place
        assert sum(found.probabilities) == pytest.approx(1) and found.probability == max(found.probabilities)
    few = answerer.choose("There is a cow, near us.", ["It barks", "It sings"])
    assert (few.index, len(few.probabilities), few.cut) == (1, 2, 0)
    assert answerer.choose("There is a cow. " * 20, ["It barks", "It moos"]).cut > 0
    with pytest.raises(ValueError, match="at least two choices"):
        answerer.choose("There is a cow.", ["It moos"])


def test_command_line_lists_the_most_likely_first(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["It barks", "It sings", "It quacks"]
    choose_command(run, "There is a cow, near us.", given, as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3 and lines[0].endswith("%  It sings")
    choose_command(run, "There is a cow, near us.", given, as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert (found["index"], found["choice"], len(found["probabilities"])) == (1, "It sings", 3)
    with pytest.raises(UserError, match="too few choices"):
        choose_command(run, "There is a cow.", ["It moos"], as_json=False)
    with pytest.raises(UserError, match="chooses continuations"):
        classify_command(run, ["a text"], pair=False, as_json=False)


def test_packed_rows_are_rejected() -> None:
    with pytest.raises(UserError, match="write batching: padded"):
        load_recipe("swag", ["train.batching=packed"])


def test_exported_folder_has_the_same_scores_in_transformers(run: Path, tmp_path: Path) -> None:
    found = pretrained(run)
    assert found.head is not None and found.head.kind == "multiple_choice"
    write(tmp_path / "theirs", found)
    theirs = transformers.BertForMultipleChoice.from_pretrained(tmp_path / "theirs").eval()
    words = transformers.BertTokenizerFast.from_pretrained(tmp_path / "theirs")
    text, choices = "There is a duck, near us.", ["It barks", "It quacks", "It moos"]
    given = words([text] * 3, choices, return_tensors="pt", padding=True)
    with torch.no_grad():
        logits = theirs(**{name: value[None] for name, value in given.items()}).logits[0]
    close(load(run).choose(text, choices).probabilities, logits.softmax(0), dtype=torch.float32)

    again = pretrained(tmp_path / "theirs")
    task, config, tensors, unused = task_model(again)
    assert (task, config.kind, unused) == ("multiple_choice", "multiple_choice", ())
    model = build(config)
    model.load_state_dict(tensors)
    assert load(tmp_path / "theirs").choose(text, choices) == load(run).choose(text, choices)


def test_folder_of_transformers_is_loaded(tmp_path: Path) -> None:
    torch.manual_seed(1)
    config = transformers.BertConfig(vocab_size=13, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
                                     intermediate_size=20, max_position_embeddings=24)  # fmt: skip
    theirs = transformers.BertForMultipleChoice(config).eval()
    theirs.save_pretrained(tmp_path)
    (tmp_path / "vocab.txt").write_text("\n".join([*NAMES, *"abcdefgh"]) + "\n")
    ids = torch.tensor([[[2, 5, 6, 3, 7, 3], [2, 5, 6, 3, 9, 3]]])
    segments = torch.tensor([0, 0, 0, 0, 1, 1]).expand_as(ids)
    with torch.no_grad():
        expected = theirs(input_ids=ids, token_type_ids=segments).logits[0].softmax(0)
    close(load(tmp_path).choose("a b", ["c", "e"]).probabilities, expected, dtype=torch.float32)
