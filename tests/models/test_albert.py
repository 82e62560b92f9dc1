"""ALBERT: one layer is BERT's, shared layers have one gradient and taps of their own, and are stored once."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from heedful.blocks.shared import SharedLayers, group
from heedful.blocks.taps import watch
from heedful.data.text.pretraining import FOLLOWS, UNRELATED, EncodedDocuments, PairRules, encode_documents
from heedful.data.tokenizers.tokenizer import WordPiece
from heedful.data.tokenizers.wordpiece import BertTokenizer
from heedful.errors import UserError
from heedful.models import build
from heedful.models.albert.config import AlbertConfig
from heedful.models.bert.config import BertConfig
from heedful.runs.recipe import load_recipe
from tolerance import close

SIZES: dict[str, Any] = {"vocab": 23, "width": 16, "heads": 2, "hidden": 20, "context": 16}
IDS = torch.arange(1, 15).view(2, 7)
SEGMENTS = (torch.arange(7) > 3).long().repeat(2, 1)


def albert(**more: Any) -> Any:
    torch.manual_seed(1)
    model = build(AlbertConfig(**{**SIZES, "embedding": 6, **more})).double().eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    return model


@pytest.mark.claim("G7")
def test_one_layer_is_bert_with_factorized_embeddings() -> None:
    model = albert(layers=1)
    bert: Any = build(BertConfig(**SIZES, layers=1, activation="gelu_tanh", dropout=0.0, attention_dropout=0.0))
    bert = bert.double().eval()
    shared = model.state_dict()
    factors = {"tokens.weight", "positions.table", "segments"}
    same = {name: shared[name] for name in bert.state_dict() if name.startswith(("blocks.", "pooler."))}
    assert same.keys() == {name for name in bert.state_dict() if name.startswith(("blocks.", "pooler."))}
    bert.load_state_dict(same, strict=False)
    # V x E times E x D in place of V x D; ALBERT normalizes what is narrow, BERT what is wide.
    narrow = model.norm(model.tokens(IDS) + model.positions.table[:7] + model.segments[SEGMENTS])
    wide = narrow @ model.widen.weight.T + model.widen.bias
    close(model(IDS, SEGMENTS), bert.blocks[0](wide))
    close(model.pool(wide[:, 0]), bert.pool(wide[:, 0]))
    assert all(shared[name].shape[1] == 6 and bert.state_dict()[name].shape[1] == 16 for name in factors)


@pytest.mark.claim("G7")
def test_gradient_of_shared_layers_is_the_sum_over_layers() -> None:
    one, apart = albert(layers=3), albert(layers=3, shared_groups=3)
    block = {name.removeprefix("blocks.0."): value for name, value in one.state_dict().items() if "blocks.0." in name}
    rest = {name: value for name, value in one.state_dict().items() if "blocks." not in name}
    apart.load_state_dict(
        rest | {f"blocks.{layer}.{name}": value for layer in range(3) for name, value in block.items()}
    )
    close(one(IDS, SEGMENTS), apart(IDS, SEGMENTS))
    for model in (one, apart):
        (model(IDS, SEGMENTS) * torch.arange(16)).sum().backward()
    weights, others = dict(one.named_parameters()), dict(apart.named_parameters())
    assert not any(name.startswith(("blocks.1.", "blocks.2.")) for name in weights)
    for name in block:
        close(weights[f"blocks.0.{name}"].grad, sum(others[f"blocks.{layer}.{name}"].grad for layer in range(3)))


@pytest.mark.parametrize(("layers", "groups"), [(1, 1), (5, 1), (4, 2), (5, 3), (3, 3)])
def test_groups_of_layers_are_as_published_and_stored_once(layers: int, groups: int) -> None:
    model = albert(layers=layers, shared_groups=groups)
    expected = [int(layer / (layers / groups)) for layer in range(layers)]
    assert [group(layer, layers, groups) for layer in range(layers)] == expected
    assert [expected.index(each) for each in expected] == model.blocks.first
    state = model.state_dict()
    assert {name.split(".")[1] for name in state if name.startswith("blocks.")} == {
        str(one) for one in model.blocks.first
    }
    assert sum(value.numel() for value in state.values()) == model.config.parameters(23)
    again = albert(layers=layers, shared_groups=groups, sentence_order=False)
    with torch.no_grad():
        for weight in again.parameters():
            weight.zero_()
    again.load_state_dict({name: value for name, value in state.items() if "sentence_order" not in name})
    assert torch.equal(again(IDS), model(IDS)) and torch.equal(deepcopy(model)(IDS), model(IDS))
    if groups < layers:
        with pytest.raises(RuntimeError, match="Missing key"):
            again.load_state_dict({name: value for name, value in state.items() if "mlp.up.weight" not in name})


def test_every_layer_has_its_own_taps() -> None:
    model = albert(layers=4)
    with watch(model, "blocks.*.output") as seen:
        model(IDS)
    assert list(seen) == [f"blocks.{layer}.output" for layer in range(4)]
    for (name, value), expected in zip(seen.items(), model.layers(IDS)[1:], strict=True):
        close(value, expected, msg=name)

    def none(name: str, x: Tensor) -> Tensor:
        return torch.zeros_like(x)

    with watch(model, "blocks.2.attention.weights", none) as seen:
        changed = model.layers(IDS)
    assert torch.equal(changed[2], model.layers(IDS)[2]) and not torch.equal(changed[3], model.layers(IDS)[3])
    assert isinstance(model.blocks, SharedLayers)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["model.shared_groups=9"], "at most 4"),
        (["model.pooler=false"], "sentence_order reads what the pooler gives"),
        (["model.next_sentence=true"], "model.next_sentence"),
        (["model.embedding=0"], "model.embedding"),
    ],
)
def test_wrong_settings_are_rejected(settings: list[str], words: str) -> None:
    with pytest.raises(UserError, match=words):
        load_recipe("albert-prose", settings)


# ------------------------------------------------------------------ sentence order
WORDS = [f"w{number}" for number in range(40)]
TOKENIZER = BertTokenizer.train(WordPiece(vocab=200), [" ".join(WORDS)])


def encoded(documents: list[list[str]], **more: Any) -> EncodedDocuments:
    return encode_documents(documents, TOKENIZER, 16, PairRules(swapped=True, **more))


@pytest.mark.claim("G7")
def test_pairs_are_two_neighbours_in_order_or_swapped() -> None:
    documents = [WORDS[:9], WORDS[10:17], WORDS[20:39]]
    found, swapped = encoded(documents), 0
    text = found.ids.tolist()
    for epoch in range(20):
        cells = np.arange(found.cells)
        spans, built = found.spans(3, epoch, cells), found.build(3, epoch, cells)
        for row in range(len(cells)):
            a, b = ((int(side[0][row]), int(side[1][row])) for side in (spans.a, spans.b))
            first, second = (b, a) if spans.unrelated[row] else (a, b)
            assert first[0] < first[1] <= second[0] < second[1]
            starts = [int(found.sentences[number]) for number in found.documents]
            assert sum(first[0] < start < second[1] for start in starts) == 0  # both are of one document
            ids, size = built.ids[row].tolist(), a[1] - a[0]
            assert ids[1 : size + 1] == text[slice(*a)] and ids[size + 2 : size + 2 + b[1] - b[0]] == text[slice(*b)]
            assert int(built.unrelated[row]) == (UNRELATED if first == b else FOLLOWS)
            swapped += int(spans.unrelated[row])
        assert built.lengths.max() <= 16
    assert 0.35 < swapped / (20 * found.cells) < 0.65
    assert not encoded(documents, unrelated=0.0).build(3, 0, np.arange(found.cells)).unrelated.any()


def test_one_document_is_enough_and_a_sentence_alone_is_cut_in_two() -> None:
    found = encoded([[" ".join(WORDS[:6])], [" ".join(WORDS[6:12])]])
    spans = found.spans(0, 0, np.arange(found.cells))
    assert (spans.a[1] > spans.a[0]).all() and (spans.b[1] > spans.b[0]).all()
    encoded([WORDS])
    with pytest.raises(UserError, match="too little text"):
        encode_documents([WORDS], TOKENIZER, 16, PairRules())
