"""GPT with a window and an attention sink: what a token sees, as blocks and as a cache, and what is refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from heedful.blocks.state import WindowCache, regroup, reserve
from heedful.blocks.taps import watch
from heedful.decode.search import beam, drain, greedy
from heedful.errors import UserError
from heedful.models.gpt import model as gpt
from heedful.models.gpt.config import GptConfig
from heedful.models.gpt.model import Gpt
from heedful.models.gpt.rows import RowByRow
from heedful.models.gpt.weights import config_json
from tolerance import close

VOCAB, CONTEXT, WINDOW, SINK = 19, 40, 5, 3
each_scheme = pytest.mark.parametrize("positions", ["learned", "rotary", "alibi", "none"])
DOCUMENTS = torch.tensor([[0] * 2 + [1] * 17 + [2] * 1 + [3] * 20, [0] * 40])


def model_of(**settings: Any) -> Gpt:
    torch.manual_seed(1)
    sizes: dict[str, Any] = {"vocab": VOCAB, "width": 8, "heads": 2, "layers": 2, "context": CONTEXT}
    model = Gpt(GptConfig(**sizes | {"window": WINDOW, "sink": SINK} | settings)).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.3 * torch.randn_like(weight))
    return model


def texts(rows: int = 2, length: int = CONTEXT) -> Tensor:
    return torch.randint(0, VOCAB, (rows, length), generator=torch.Generator().manual_seed(0))


# ------------------------------------------------------------------ what a token sees
@pytest.mark.parametrize("documents", [None, DOCUMENTS], ids=["texts", "documents"])
def test_token_sees_the_window_and_the_first_tokens_of_its_document(documents: Tensor | None) -> None:
    model, own = model_of(), torch.zeros(2, CONTEXT, dtype=torch.long) if documents is None else documents
    with watch(model, "blocks.0.attention.weights") as seen:
        model.read(texts(), documents)
    weights = seen["blocks.0.attention.weights"]
    for row in range(2):
        begins = {number: own[row].tolist().index(number) for number in set(own[row].tolist())}
        for q in range(CONTEXT):
            begin = begins[int(own[row, q])]
            expected = [begin <= k <= q and (q - k < WINDOW or k - begin < SINK) for k in range(CONTEXT)]
            assert [bool(x) for x in weights[row, 0, q] > 0] == expected


@each_scheme
def test_window_as_long_as_the_text_is_full_attention(positions: str) -> None:
    wide, full = (
        model_of(window=CONTEXT, sink=0, positions=positions),
        model_of(window=None, sink=0, positions=positions),
    )
    for documents in (None, DOCUMENTS):
        close(wide.read(texts(), documents), full.read(texts(), documents))
    assert not model_of(positions=positions).read(texts()).allclose(full.read(texts()), atol=1e-3)


@each_scheme
@pytest.mark.parametrize("documents", [None, DOCUMENTS], ids=["texts", "documents"])
def test_blocks_equal_the_definition_with_their_gradients(
    positions: str, documents: Tensor | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, found = model_of(positions=positions), []
    for small in (512, 0):
        monkeypatch.setattr(gpt, "SMALL", small)
        model.zero_grad()
        x = model.read(texts(), documents)
        x.square().sum().backward()
        found.append((x.detach(), [p.grad.clone() for p in model.parameters() if p.grad is not None]))
    (one, grads), (other, others) = found
    close(other, one)
    for a, b in zip(others, grads, strict=True):
        close(a, b, slack=64)


def test_long_texts_are_computed_as_blocks_unless_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[int] = []
    of = gpt.BlockSparse.of
    monkeypatch.setattr(gpt.BlockSparse, "of", lambda *args, **more: used.append(args[3]) or of(*args, **more))
    model = model_of()
    model.read(texts())
    assert used == []
    monkeypatch.setattr(gpt, "SMALL", 16)
    model.read(texts())
    model(texts()[:, :30], model.start(2, torch.device("cpu")))
    with watch(model, "blocks.0.output"):
        model.read(texts())
    model_of(normalize="sparsemax").read(texts())
    assert used == [CONTEXT, 30]


# ------------------------------------------------------------------ the cache
@each_scheme
@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("chunks", [[1] * 40, [3, 20, 1, 1, 9, 6], [39, 1]], ids=["one", "chunks", "last"])
def test_cache_gives_the_same_and_holds_only_what_is_seen(positions: str, static: bool, chunks: list[int]) -> None:
    model, tokens = model_of(positions=positions), texts()
    whole = model.tokens.logits(model.read(tokens))
    state: Any = model.start(2, torch.device("cpu"))
    parts, most = [], SINK + WINDOW - 1
    with torch.inference_mode():
        for number, some in enumerate(tokens.split(chunks, 1)):
            logits, state = model(some, state)
            parts.append(logits)
            held = min(most, sum(chunks[: number + 1]))
            if static and not number:
                state, held = reserve(state, 64), most
            assert isinstance(state, WindowCache)
            assert [layer.k.shape[2] for layer in state.layers] == [most if static else held] * 2
    close(torch.cat(parts, 1), whole)


def test_cache_without_a_window_of_others_holds_nothing() -> None:
    model, tokens = model_of(window=1, sink=0, positions="alibi"), texts()
    state: Any = model.start(2, torch.device("cpu"))
    parts = []
    for some in tokens.split([1, 2, 37], 1):
        logits, state = model(some, state)
        parts.append(logits)
        assert state.columns.shape == (2, 0)
    close(torch.cat(parts, 1), model.tokens.logits(model.read(tokens)))


def test_searches_equal_those_over_the_whole_text() -> None:
    """Greedy and beam search with the cache against the same without one: the model reads everything again."""
    model, prompt = model_of(positions="alibi"), texts(3, 9)

    def read_again(tokens: Tensor, state: tuple[Tensor]) -> tuple[Tensor, tuple[Tensor]]:
        before = torch.cat([state[0], tokens], 1)
        return model.tokens.logits(model.read(before)), (before,)

    with torch.inference_mode():
        cached = model.features(prompt[:, :-1], model.start(3, torch.device("cpu")))[1]
    limit, last = torch.full((3,), 20), prompt[:, -1:]
    for search, more in ((greedy, ()), (beam, (4, 2))):
        one = drain(search(model, cached, last, limit, 0, *more))  # type: ignore[operator]
        two = drain(search(read_again, (prompt[:, :-1],), last, limit, 0, *more))  # type: ignore[operator]
        assert one.tokens.equal(two.tokens) and one.lengths.equal(two.lengths)
        close(one.logs, two.logs)
    assert regroup(cached, torch.tensor([2, 0])).columns.equal(cached.columns[[2, 0]])


# ------------------------------------------------------------------ what is refused, and what is not chosen
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"window": 38}, "a window of 38 tokens and a sink of 3 do not fit into 40"),
        ({"window": None}, "write sink: 0"),
        ({"window": 0}, "greater than or equal to 1"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        model_of(**settings)


def test_windows_cannot_be_written_as_gpt2() -> None:
    with pytest.raises(UserError, match=r"model\.window: .* cannot express this setting") as caught:
        config_json(model_of().config)
    assert (caught.value.found, caught.value.expected) == ("5", "null: every earlier token")


def test_kernels_without_windows_are_not_chosen() -> None:
    """A model on a GPU as far as these two ask."""
    weight = SimpleNamespace(is_cuda=True, dtype=torch.float32)
    for window in (None, WINDOW):
        config = GptConfig(vocab=VOCAB, context=CONTEXT, window=window)
        model: Any = SimpleNamespace(config=config, tokens=SimpleNamespace(weight=weight), training=False)
        assert RowByRow.supports(model) is Gpt.in_one_row.fget(model) is (window is None)  # type: ignore[attr-defined]
