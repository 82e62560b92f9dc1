"""Claims about BERT's two pre-training tasks and their data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.linear_model import LogisticRegression

from heedful.blocks.layouts import Padded
from heedful.data.masking import MaskingVocab, apply_masking
from heedful.data.order import random_bits_at
from heedful.data.text.pretraining import FOLLOWS, UNRELATED, PairRules, encode_documents, tokenize_documents
from heedful.data.text.pretraining_batches import PairExample, PretrainingBatches, batches_in_order, example_batch
from heedful.data.text.token_documents import write_tokens
from heedful.data.tokenizers.tokenizer import WordPiece
from heedful.data.tokenizers.wordpiece import BertTokenizer
from heedful.models import build
from heedful.models.bert.config import BertConfig
from heedful.runs.recipe import load_recipe, recipe_in, recipe_of, shipped
from heedful.tasks.pretraining.loss import pretraining_loss
from heedful.tasks.pretraining.task import PretrainingTask
from heedful.tasks.reading import layout_of

FIRST = "calculus is a branch of math"
SECOND = "it was developed by newton and leibniz"
PANDA = "panda is native to south central china"
TOKENIZER = BertTokenizer.train(WordPiece(vocab=300, lowercase=True), [FIRST, SECOND, PANDA] * 9)
TRUE, FALSE = PairExample(FIRST, SECOND, True, ["branch", "was"]), PairExample(FIRST, PANDA, False, ["south"])
CONFIG = BertConfig(vocab=TOKENIZER.vocab, width=16, heads=2, layers=2, hidden=32, context=32, dropout=0.0,
                    attention_dropout=0.0)  # fmt: skip
RNG = np.random.default_rng(0)
TEXT = "the a cat dog bird sat ran flew on under over mat log sky it was old new red"
WORDS = TEXT.split()
DOCUMENTS = [[" ".join(RNG.choice(WORDS, 9)) for _ in range(30)] for _ in range(60)]
PIECES = BertTokenizer.train(WordPiece(vocab=90), map(" ".join, DOCUMENTS))
ENCODED = encode_documents(DOCUMENTS, PIECES, 100, PairRules())


def bert(**changes: Any) -> Any:
    torch.manual_seed(0)
    return build(CONFIG.model_copy(update=changes))


def pieces_text(ids: torch.Tensor) -> str:
    return " ".join(TOKENIZER.pieces([number for number in ids.tolist() if number != TOKENIZER.pad]))


@pytest.mark.claim("F4")
def test_loss_covers_only_the_15_percent_masked_tokens() -> None:
    found = ENCODED.build(0, 0, np.arange(ENCODED.cells))
    assert found.hidden.sum() / found.lengths.sum() == pytest.approx(0.15, abs=0.003)
    model, batch = bert(next_sentence=False), example_batch([FALSE], TOKENIZER)
    p = model.words(model(batch.ids, batch.segments, Padded(batch.sequences.real))[0, batch.places]).softmax(-1)
    e = F.one_hot(batch.targets, TOKENIZER.vocab)
    loss = pretraining_loss(model, batch)
    assert float(loss.total / loss.count) == pytest.approx(float(-(e * p.log()).sum()), rel=1e-5)


@pytest.mark.claim("F5")
def test_80_10_10_masking() -> None:
    counts, tokens = np.zeros(3), 0
    for epoch in range(10):
        found = ENCODED.build(0, epoch, np.arange(ENCODED.cells))
        shown, ids = found.shown[found.hidden], found.ids[found.hidden]
        masked, kept = shown == ENCODED.marks.mask, shown == ids
        counts += (masked.sum(), (~masked & ~kept).sum(), kept.sum())
        tokens += int(found.lengths.sum())
        assert not ENCODED.marks.special[ids].any()
        assert not ENCODED.marks.special[shown[~masked]].any()
    # One in V of the random replacements equals the original token.
    assert counts / tokens == pytest.approx([0.12, 0.015, 0.015], abs=0.0015)


@pytest.mark.claim("F6")
def test_half_of_the_pairs_are_from_different_documents() -> None:
    cells = np.arange(ENCODED.cells)
    spans = [ENCODED.spans(0, epoch, cells) for epoch in range(10)]
    share = np.mean([one.unrelated.mean() for one in spans])
    assert share == pytest.approx(0.5, abs=4 * 0.5 / np.sqrt(10 * len(cells)))
    begins = ENCODED.sentences[ENCODED.documents]
    for one in spans:
        first, second = (np.searchsorted(begins, side[0], side="right") for side in (one.a, one.b))
        assert ((first != second) == one.unrelated).all()
    model, batch = bert(), example_batch([TRUE, FALSE], TOKENIZER)
    x = model(batch.ids, batch.segments, Padded(batch.sequences.real))
    f = model.follows(x[:, 0]).softmax(-1)[:, FOLLOWS]  # a binary classifier on the first token
    assert ((f > 0) & (f < 1)).all()


@pytest.mark.claim("F7")
def test_cls_sep_layout_and_sum_of_three_embeddings() -> None:
    a, b = TOKENIZER.ids([FIRST, SECOND])
    ids, segments = TOKENIZER.pair(a, b)
    assert ids == [TOKENIZER.cls, *a, TOKENIZER.sep, *b, TOKENIZER.sep]
    assert segments == [0] * (len(a) + 2) + [1] * (len(b) + 1)
    assert TOKENIZER.pair(a) == (ids[: len(a) + 2], [0] * (len(a) + 2))
    model = bert()
    tokens, kinds = torch.tensor([ids]), torch.tensor([segments])
    summed = model.tokens(tokens) + model.positions.table[: len(ids)] + model.segments[kinds]
    torch.testing.assert_close(model.layers(tokens, kinds)[0], model.norm(summed))


@pytest.mark.claim("X7")
def test_last_sep_is_optional() -> None:
    a, b = TOKENIZER.ids([FIRST, SECOND])
    assert TOKENIZER.pair(a, b)[0] == [*TOKENIZER.pair(a, b, last_sep=False)[0], TOKENIZER.sep]
    assert len(TOKENIZER.pair(a, b, last_sep=False)[1]) == len(a) + len(b) + 2
    assert [pieces_text(row) for row in example_batch([TRUE, FALSE], TOKENIZER, last_sep=False).ids] == [
        "[CLS] calculus is a [MASK] of math [SEP] it [MASK] developed by newton and leibniz",
        "[CLS] calculus is a branch of math [SEP] panda is native to [MASK] central china",
    ]  # as printed in that lecture

    cells = np.arange(40)
    for last_sep in (True, False):
        recipe: Any = load_recipe("bert-prose", [f"task.last_sep={str(last_sep).lower()}"])
        rules = PretrainingTask(recipe).rules
        found = encode_documents(DOCUMENTS, PIECES, 100, rules).build(0, 0, cells)
        ends = found.ids[cells, found.lengths - 1]
        assert ((ends == PIECES.sep) == last_sep).all()
        assert ((found.ids == PIECES.sep).sum(1) == 1 + last_sep).all()
        assert found.lengths.max() == 100  # the whole context is used
        assert (found.segments.sum(1) + (found.segments == 0).argmin(1) == found.lengths).all()
    assert load_recipe("bert-prose").task.last_sep  # type: ignore[union-attr]


@pytest.mark.claim("F8")
def test_targets_of_the_lecture_example() -> None:
    batch = example_batch([TRUE, FALSE], TOKENIZER)
    assert pieces_text(batch.ids[0]) == (
        "[CLS] calculus is a [MASK] of math [SEP] it [MASK] developed by newton and leibniz [SEP]"
    )
    assert pieces_text(batch.ids[1]) == (
        "[CLS] calculus is a branch of math [SEP] panda is native to [MASK] central china [SEP]"
    )
    assert batch.follows.tolist() == [FOLLOWS, UNRELATED]  # true, false
    assert TOKENIZER.pieces(batch.targets.tolist()) == ["branch", "was", "south"]
    rows = batch.places // batch.ids.shape[1]
    assert rows.tolist() == [0, 0, 1]


def losses(model: Any, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Reference implementation: the loss of each pair and of each masked token."""
    x = model(batch.ids, batch.segments, Padded(batch.sequences.real))
    one = F.cross_entropy(model.follows(x[:, 0]), batch.follows, reduction="none")
    return one, F.cross_entropy(model.words(x.flatten(0, 1)[batch.places]), batch.targets, reduction="none")


@pytest.mark.claim("F9")
def test_objective_is_the_sum_of_both_losses() -> None:
    """As published, the losses of the masked tokens come in as their mean."""
    model = bert()
    for pairs in ([TRUE], [FALSE], [TRUE, FALSE]):
        batch = example_batch(pairs, TOKENIZER)
        one, others = losses(model, batch)
        loss = pretraining_loss(model, batch)
        assert float(loss.total / loss.count) == pytest.approx(float(one.mean() + others.mean()), rel=1e-5)
    before = float(loss.total)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    (loss.total / loss.count).backward()
    assert all(weight.grad is not None for weight in model.parameters())
    optimizer.step()
    assert float(pretraining_loss(model, batch).total) < before


@pytest.mark.claim("F9")
def test_sum_of_three_losses_as_in_the_lecture() -> None:
    recipe: Any = load_recipe("bert-prose", ["task.objective=sum", "train.compile=false"])
    model = bert()
    loss_of = PretrainingTask(recipe).loss_of(model, False)
    batch = example_batch([TRUE], TOKENIZER)
    (one,), (two, three) = losses(model, batch)
    loss = loss_of(batch)
    assert float(loss.total / loss.count) == pytest.approx(float(one + two + three), rel=1e-5)
    batch = example_batch([TRUE, FALSE], TOKENIZER)  # of several pairs, the mean of their sums
    pairs, words = losses(model, batch)
    loss = loss_of(batch)
    assert float(loss.total / loss.count) == pytest.approx(float(pairs.sum() + words.sum()) / 2, rel=1e-5)
    assert load_recipe("bert-prose").task.objective == "means"  # type: ignore[union-attr]


def topic_documents(seed: int, count: int) -> list[list[str]]:
    """Documents of six topics, each with four words of its own."""
    rng = np.random.default_rng(seed)
    words = [[2 * chr(ord("a") + 4 * topic + number) for number in range(4)] for topic in range(6)]
    return [[" ".join(rng.choice(words[number % 6], 5)) for _ in range(10)] for number in range(count)]


@pytest.mark.claim("F10")
def test_next_sentence_task_improves_sentence_pair_features() -> None:
    """Ablation: the same model, text and steps with and without the task, and a linear probe on each."""
    recipe: Any = load_recipe("bert-prose", ["model.next_sentence=false"])
    whole: Any = load_recipe("bert-prose")
    assert recipe.model_copy(update={"model": whole.model}) == whole  # one setting in a recipe as well
    pieces = BertTokenizer.train(WordPiece(vocab=80), map(" ".join, topic_documents(0, 120)))
    text, held = (
        encode_documents(topic_documents(*some), pieces, 20, PairRules(short=0.0)) for some in ((0, 120), (1, 60))
    )
    config = CONFIG.model_copy(update={"vocab": pieces.vocab, "width": 32, "hidden": 64, "context": 20})
    found = {}
    for next_sentence in (True, False):
        torch.manual_seed(0)
        model: Any = build(config.model_copy(update={"next_sentence": next_sentence}))
        batches, optimizer = PretrainingBatches(text, 0, 640), torch.optim.Adam(model.parameters(), 2e-3)
        for step in range(320):
            loss = pretraining_loss(model, batches.at(step))
            (loss.total / loss.count).backward()
            optimizer.step()
            optimizer.zero_grad()
        # The output of the last block at the first token: half of the pairs for training, half for testing.
        (batch,) = batches_in_order(held, 10**6)
        with torch.no_grad():
            x = model.eval()(batch.ids, batch.segments, layout_of(batch.sequences))
            first = x.flatten(0, 1)[batch.sequences.begins].numpy()
        half, right = len(first) // 2, batch.follows.numpy()
        probe = LogisticRegression(max_iter=1000).fit(first[:half], right[:half])
        found[next_sentence] = probe.score(first[half:], right[half:])
    assert found[True] > 0.8
    assert found[True] > found[False] + 0.15


@pytest.mark.claim("F11")
def test_all_targets_come_from_raw_text_files(tmp_path: Path) -> None:
    """Token files hold tokens and the starts of sentences and documents, but no labels."""
    folder, splits = tmp_path / "tokens", {"train": DOCUMENTS[:40], "valid": DOCUMENTS[40:]}
    write_tokens(folder, PIECES, {name: tokenize_documents(some, PIECES) for name, some in splits.items()})  # type: ignore[misc]
    recipe: Any = recipe_of(
        f"task: {{kind: pretraining}}\ndata: {{kind: tokens, folder: {folder}}}\n"
        "model: {kind: bert, width: 16, heads: 2, layers: 1, hidden: 16, context: 100}\n"
        "train: {budget: {steps: 1}, batch_tokens: 2000}\n",
        "here",
    )
    task = PretrainingTask(recipe)
    encoded = task.encode(task.read("train"), PIECES)
    assert isinstance(encoded.ids, np.memmap)  # memory-mapped, so the files may be of any size

    texts, words, hidden, exchanged = [" ".join(document) for document in splits["train"]], 0, 0, 0
    batches = task.batches(encoded, packed=False, even=False)
    for position in range(batches.count):
        batch = batches.at(position)
        clean = batch.ids.flatten().index_put((batch.places,), batch.targets).view_as(batch.ids)
        for row, length, follows in zip(clean.tolist(), batch.lengths.tolist(), batch.follows.tolist(), strict=True):
            middle = row.index(PIECES.sep)
            a, b = (PIECES.decode(side) for side in (row[1:middle], row[middle + 1 : length - 1]))
            # With the targets restored, both sides are the raw text; the pair's label follows from their positions.
            ours = [number for number, text in enumerate(texts) if a in text and b in text]
            assert any(a in text for text in texts) and any(b in text for text in texts)
            assert ours or follows == UNRELATED
        words, hidden = words + int(batch.lengths.sum()), hidden + len(batch.places)
        exchanged += int((batch.ids.flatten()[batch.places] != batch.targets).sum())
    assert hidden / words == pytest.approx(0.15, abs=0.01)
    assert exchanged / hidden == pytest.approx(0.9, abs=0.03)


@pytest.mark.claim("F11")
def test_recipes_for_wikipedia_books_and_token_files() -> None:
    assert recipe_in(shipped()["bert-base"]).data.kind == "tokens"
    wiki: Any = recipe_in(shipped()["bert-wiki"])
    assert {part.between for part in wiki.data.train} == {"headings", "files"}


def test_bert_is_a_denoising_autoencoder() -> None:
    """Corrupt, then reconstruct: the corruption is a plain function, and learning undoes it."""
    batch = example_batch([TRUE, FALSE], TOKENIZER)
    marks = MaskingVocab.of(TOKENIZER)
    clean = batch.ids.flatten().index_put((batch.places,), batch.targets).view_as(batch.ids)
    hidden = torch.zeros(clean.numel(), dtype=torch.bool).index_fill(0, batch.places, True).view_as(clean).numpy()
    random_bits = np.zeros(len(batch.places), dtype=np.uint64)
    noisy = apply_masking(clean.numpy().astype(np.int32), hidden, random_bits, random_bits, marks)
    assert np.array_equal(noisy, batch.ids.numpy())
    again = apply_masking(
        clean.numpy().astype(np.int32), hidden, random_bits_at(0, 0, 0, batch.places.numpy()), random_bits, marks
    )
    assert np.array_equal(again[~hidden], clean.numpy()[~hidden])
    model = bert()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(30):
        optimizer.zero_grad()
        pretraining_loss(model, batch).total.backward()
        optimizer.step()
    x = model(batch.ids, batch.segments, Padded(batch.sequences.real)).flatten(0, 1)
    rebuilt = batch.ids.flatten().index_put((batch.places,), model.words(x[batch.places]).argmax(-1))
    assert torch.equal(rebuilt.view_as(clean), clean)
