"""The tagger and the answerer: one layer on an encoder, with padded and packed batches."""

from itertools import product
from typing import Any, get_args

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from heedful.blocks.features import FEATURES
from heedful.blocks.taps import taps, watch
from heedful.data.labelled.sequences import Sequences, pack_sequences, pad_sequences
from heedful.models import build
from heedful.models.bert.config import BertConfig
from heedful.models.heads.answerer import Answerer
from heedful.models.heads.config import AnswererConfig, BiLSTMReader, DenseReader, Feature, TaggerConfig
from heedful.models.heads.tagger import Tagger
from heedful.tasks.reading import layout_of
from tolerance import close

VOCAB, LABELS = 31, ("O", "B-A", "I-A")
ENCODER = BertConfig(vocab=VOCAB, width=24, heads=2, layers=5, hidden=20, context=16, pooler=False,
                     masked_words=False, next_sentence=False)  # fmt: skip
FROZEN = ("first", "second_to_last")
READERS = {"linear": DenseReader(), "bilstm": BiLSTMReader(hidden=10)}


def tagger(features: Feature = "last", reader: str = "linear", **settings: Any) -> TaggerConfig:
    frozen = {"freeze": True} if features in FROZEN else {}
    return TaggerConfig(encoder=ENCODER, labels=LABELS, features=features, reader=READERS[reader], **frozen | settings)


CONFIGS = [tagger(features, reader) for features, reader in product(get_args(Feature), READERS)]
every_tagger = pytest.mark.parametrize("config", CONFIGS, ids=lambda c: f"{c.features}-{c.reader.kind}")
every_model = pytest.mark.parametrize("config", [*CONFIGS, AnswererConfig(encoder=ENCODER)],
                                      ids=lambda c: f"{c.kind}-{getattr(c, 'features', '')}")  # fmt: skip


def rows(*lengths: int) -> list[tuple[list[int], list[int]]]:
    return [(torch.randint(5, VOCAB, (n,)).tolist(), [0] * (n // 2) + [1] * (n - n // 2)) for n in lengths]


def outputs(model: Any, some: Sequences) -> Tensor:
    """The outputs for all tokens but the first two of each sequence, concatenated."""
    begins, sizes = some.begins, some.lengths - 2
    if isinstance(model, Answerer):
        found = model(some.ids, some.segments, layout_of(some), begins + 2, sizes, int(sizes.max()))
        return torch.cat([each[:size] for each, size in zip(found, sizes.tolist(), strict=True)])
    words = torch.cat([begin + 2 + torch.arange(size) for begin, size in zip(begins, sizes.tolist(), strict=True)])
    logits: Tensor = model(some.ids, some.segments, layout_of(some), words)
    return logits


def prepared(config: Any) -> Any:
    model = build(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    return model


@every_model
def test_parameter_count_matches_the_built_model(config: Any) -> None:
    assert config.parameters(VOCAB) == sum(weight.numel() for weight in build(config).parameters())


@every_model
def test_padded_batch_equals_single_texts(config: Any) -> None:
    model, some = prepared(config), rows(9, 4, 12)
    together = outputs(model, pad_sequences(some, 0, 16))
    alone = torch.cat([outputs(model, pad_sequences([one], 0)) for one in some])
    close(together, alone)


@pytest.mark.parametrize("config", [tagger(), AnswererConfig(encoder=ENCODER)], ids=lambda c: c.kind)
def test_packed_equals_padded(config: Any) -> None:
    model, some = prepared(config), rows(9, 4, 12)
    found = pack_sequences(some, 0, 40, 3, 16)
    close(outputs(model, found), outputs(model, pad_sequences(some, 0)))


@every_model
def test_watching_does_not_change_the_output(config: Any) -> None:
    model, some = prepared(config), pad_sequences(rows(9, 4), 0)
    fast = outputs(model, some)
    with watch(model) as seen:
        close(outputs(model, some), fast)
    assert set(seen) == set(taps(model))


@every_model
def test_every_trainable_parameter_gets_a_gradient(config: Any) -> None:
    model = prepared(config).train()
    some = pad_sequences(rows(16, 16, 9), 0)
    (outputs(model, some).square()).sum().backward()
    frozen = config.freeze
    for name, weight in model.named_parameters():
        learns = not (frozen and name.startswith("encoder."))
        assert weight.requires_grad is learns
        assert (weight.grad is not None and bool(weight.grad.any())) is learns, name


def test_frozen_encoder_has_no_dropout() -> None:
    some = pad_sequences(rows(9, 4), 0)
    for freeze in (True, False):
        model = Tagger(tagger(freeze=freeze, dropout=0.0)).train()
        one, two = outputs(model, some), outputs(model, some)
        assert one.equal(two) is freeze
        assert model.encoder.training is not freeze and model.training
        assert Answerer(AnswererConfig(encoder=ENCODER, freeze=freeze)).train().encoder.training is not freeze


def test_features_match_their_definitions() -> None:
    layers = [torch.randn(2, 3, 4) for _ in range(6)]  # the embeddings, and five blocks
    found = {name: make(layers) for name, make in FEATURES.items()}
    assert set(found) == set(get_args(Feature))
    assert found["first"].equal(layers[0]) and found["last"].equal(layers[5])
    assert found["second_to_last"].equal(layers[4])
    torch.testing.assert_close(found["sum_last_four"], layers[2] + layers[3] + layers[4] + layers[5])
    assert found["concat_last_four"].equal(torch.cat(layers[2:], -1))
    torch.testing.assert_close(found["sum_all"], layers[1] + layers[2] + layers[3] + layers[4] + layers[5])


@every_tagger
def test_head_reads_the_chosen_features(config: TaggerConfig) -> None:
    model, some = prepared(config), pad_sequences(rows(9, 9), 0)
    with watch(model.encoder, "embedded") as low, watch(model.encoder, "blocks.*.output") as high:
        found = outputs(model, some)
    one, two, three, four, five = high.values()
    x = {
        "first": low["embedded"],
        "last": five,
        "second_to_last": four,
        "sum_last_four": two + three + four + five,
        "concat_last_four": torch.cat([two, three, four, five], -1),
        "sum_all": one + two + three + four + five,
    }[config.features]
    x = x if model.reader is None else model.reader(x)[0]
    close(found, (x @ model.head.weight.T + model.head.bias)[:, 2:].flatten(0, 1), slack=512)


def test_missing_layers_and_frozen_blocks_are_rejected() -> None:
    small = ENCODER.model_copy(update={"layers": 3})
    for features in ("sum_last_four", "concat_last_four"):
        with pytest.raises(ValidationError, match="needs four blocks, and the encoder has 3"):
            TaggerConfig(encoder=small, features=features)
    for features in FROZEN:
        with pytest.raises(ValidationError, match="write freeze: true"):
            TaggerConfig(encoder=ENCODER, features=features)
    with pytest.raises(ValidationError, match="more than once"):
        TaggerConfig(encoder=ENCODER, labels=("O", "O"))


def test_only_the_linear_head_supports_packing() -> None:
    assert [config.packs for config in CONFIGS] == [config.reader.kind == "linear" for config in CONFIGS]


def test_empty_passage_does_not_affect_others() -> None:
    model, some = Answerer(AnswererConfig(encoder=ENCODER)), pad_sequences(rows(9, 4), 0)
    found = model(some.ids, some.segments, layout_of(some), some.begins, torch.tensor([5, 0]), 5)
    assert bool(found.softmax(1).isfinite().all())
    found[0].sum().backward()
    assert all(bool(weight.grad.isfinite().all()) for weight in model.parameters() if weight.grad is not None)
