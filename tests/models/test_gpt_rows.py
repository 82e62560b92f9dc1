"""GPT-2 row by row against the readable model, where there is a GPU to run it."""

from typing import Any

import pytest
import torch

from heedful.decode.graphs import Graphs
from heedful.decode.search import beam, drain, greedy
from heedful.models.gpt.config import GptConfig
from heedful.models.gpt.model import Gpt
from heedful.models.gpt.rows import RowByRow
from tolerance import close

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="kernels run on a GPU")

ERROR = {torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float16: 3e-3}
TEXTS = [[1, 5, 7, 9, 200], [3], [4] * 20 + [7, 8], [6] * 150, *([n, n + 1] for n in range(40))]


def model(dtype: torch.dtype, **changes: Any) -> Gpt:
    torch.manual_seed(0)
    found = Gpt(GptConfig(vocab=1003, width=192, heads=3, layers=3, context=400, **changes))
    for name, weight in found.named_parameters():
        weight.data.mul_(3) if weight.dim() == 2 else weight.data.normal_(1.0 if "norm.weight" in name else 0.0, 0.2)
    return found.cuda().to(dtype).eval()


def run_plain(name: str, function: Any, inputs: Any) -> Any:
    return function(*inputs)


@pytest.mark.parametrize("dtype", ERROR, ids=str)
@pytest.mark.parametrize("positions", ["learned", "none"])
def test_logits_match_the_model(dtype: torch.dtype, positions: str) -> None:
    whole = model(dtype, positions=positions)
    rows = RowByRow(whole)
    with torch.inference_mode():
        state, tokens = rows.begin(TEXTS, 160, 1, run_plain)
        first, state = rows(tokens, state)
        chosen = first[:, -1].argmax(-1, keepdim=True)
        second, _ = rows(chosen, state)
        for place, text in enumerate(TEXTS):
            ids = torch.tensor([[*text, int(chosen[place])]], device="cuda")
            truth = whole.double().tokens.logits(whole.read(ids))[0, -2:]
            found = torch.stack([first[place, 0], second[place, 0]])
            assert float((found.double() - truth).abs().max()) <= ERROR[dtype] * float(truth.abs().max())
            whole.to(dtype)


@pytest.mark.parametrize("dtype", ERROR, ids=str)
def test_batch_and_single_text_are_bit_identical(dtype: torch.dtype) -> None:
    rows = RowByRow(model(dtype))

    def three(texts: list[list[int]]) -> torch.Tensor:
        with torch.inference_mode():
            state, tokens = rows.begin(texts, 160, 1, run_plain)
            found = []
            for _ in range(3):
                logits, state = rows(tokens, state)
                tokens = logits[:, -1].argmax(-1, keepdim=True)
                found.append(logits)
        return torch.cat(found, 1)

    together = three(TEXTS)
    for place in (0, 1, 2, 3, 20, 43):
        assert torch.equal(three([TEXTS[place]])[0], together[place])


@pytest.mark.parametrize("beams", [1, 4])
def test_searches_match_the_model(beams: int) -> None:
    whole, limit = model(torch.float32), torch.tensor([12, 12, 12])
    graphs = Graphs(whole)
    rows = RowByRow(whole)
    for run in (run_plain, graphs.run, graphs.run):
        with torch.inference_mode():
            state, tokens = rows.begin(TEXTS[:3], 40, beams, run)
        captured = None if run is run_plain else graphs
        if beams == 1:
            found = drain(greedy(rows, state, tokens, limit, 77, graphs=captured))
        else:
            found = drain(beam(rows, state, tokens, limit, 77, beams, 2, graphs=captured))
        for place, text in enumerate(TEXTS[:3]):
            ids = torch.tensor([text], device="cuda")
            with torch.inference_mode():
                past = whole.start(1, ids.device)
                past = whole.features(ids[:, :-1], past)[1] if len(text) > 1 else past
            search = (whole, past, ids[:, -1:], limit[:1], 77)
            truth = drain(greedy(*search) if beams == 1 else beam(*search, beams, 2))
            assert torch.equal(found.tokens[place], truth.tokens[0])
            assert torch.allclose(found.logs[place], truth.logs[0], atol=1e-3)


def test_finished_text_at_the_context_limit_does_not_affect_others() -> None:
    whole = model(torch.float32)
    whole.config = whole.config.model_copy(update={"context": 24})
    rows, limit = RowByRow(whole), torch.tensor([3, 20, 24])
    texts = [[4] * 21, [3, 5, 7, 9, 11], [6]]
    with torch.inference_mode():
        state, tokens = rows.begin(texts, 24, 1, run_plain)
        assert state.cache.value.shape[4] == 24
        found = drain(greedy(rows, state, tokens, limit, -1))
        for place, text in enumerate(texts):
            state, tokens = rows.begin([text], 24, 1, run_plain)
            alone = drain(greedy(rows, state, tokens, limit[place : place + 1], -1))
            length = int(limit[place])
            assert torch.equal(found.tokens[place, 0, :length], alone.tokens[0, 0, :length])


@pytest.mark.parametrize("vocab", [65, 1000, 50_257])
def test_most_likely_token_and_its_log_probability(vocab: int) -> None:
    from heedful.blocks.kernels.argmax import argmax_with_log_prob

    logits = 5 * torch.randn(5, vocab, device="cuda")
    logits[1] = 0.0
    logits[2, vocab // 3 :] = -torch.inf
    logits[3, 7] = logits[3, 9] = logits[3].max() + 1
    tokens, logs = argmax_with_log_prob(logits)
    assert tokens[:, 0].tolist() == logits.cpu().argmax(-1).tolist()
    close(logs, logits.double().log_softmax(-1).gather(1, tokens).float())
