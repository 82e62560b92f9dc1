"""Every shape comment of the blocks, the models and the search is compared with a tensor, on all-distinct sizes."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import heedful
from heedful.blocks.attention import KV, MultiHead, attend
from heedful.blocks.layouts import Packed, Padded, Whole
from heedful.blocks.losses import cross_entropy, projected_cross_entropy
from heedful.blocks.masks import causal
from heedful.blocks.scores import Additive, General, Location, cosine, dot, scaled_dot
from heedful.blocks.state import ahead, reserve
from heedful.decode.rules import AtLeast, Never, NoRepeat, Temperature, TopK, TopP
from heedful.decode.search import beam, drain, greedy, largest, sample
from heedful.models.configs import TransformerConfig
from heedful.models.transformer import Transformer
from heedful.shapes import check, statements

SOURCE = Path(heedful.__file__).parent
FILES = [path for part in ("blocks", "models", "decode") for path in sorted((SOURCE / part).glob("*.py"))]
GPU = ("look_back", "in_ranges")  # kernels that a test without a device cannot reach

B, S, T, D, H, K, F, V = 2, 7, 5, 30, 3, 10, 13, 17


def scores() -> None:
    q, k, v = torch.randn(B, H, T, K), torch.randn(B, H, S, K), torch.randn(B, H, S, 11)
    for score in (dot, cosine, General(K, K), Additive(K, K, F), Location(K, S)):
        attend(q, k, v, causal(S - T), score=score)
    scaled_dot(q, k)
    attend(torch.randn(B * 4, H, T, K), k, v)
    KV(k, k, torch.zeros(B, S, dtype=torch.long), torch.tensor(S)).gathered()
    block = MultiHead(D, H)
    block(torch.randn(B, T, D), block.remember(torch.randn(B, S, D)))


def models() -> None:
    source, target = torch.randint(0, V, (B, S)), torch.randint(0, V, (B, T))
    real = torch.arange(S) < torch.tensor([[S], [4]])
    for positions in ("sinusoid", "sinusoid_halves", "learned", "none", "rotary", "alibi"):
        config = TransformerConfig(
            vocab=V, width=D, heads=H, encoder_layers=1, decoder_layers=1, hidden=F, context=40, positions=positions
        )
        model = Transformer(config).eval()
        model(target, model.start(source, Whole(source)))
        with torch.inference_mode():
            _, state = model(target, model.start(source, Padded(real)))
            model(target[:, :1], reserve(reserve(state, 9), 12))
            model(target[:, :1], ahead(state, 1))
        layout = Packed.of(torch.tensor([4, 2]), torch.tensor([1, 3]), S, T, longest=4)
        model(target[:1], model.start(source[:1], layout))


def losses() -> None:
    x, weight = torch.randn(B * T, D, requires_grad=True), torch.randn(V, D, requires_grad=True)
    targets = torch.randint(0, V, (B * T,))
    cross_entropy(x @ weight.mT, targets)
    projected_cross_entropy(x, weight, targets).total.backward()


def searches() -> None:
    rows, width, room, vocab = 3, 2, 7, 11
    prefix, limit = torch.zeros(rows, 1, dtype=torch.long), torch.tensor([room, 5, room])
    rules = (AtLeast(2, 0), Never((3,)), NoRepeat(3), Temperature(0.9), TopK(9), TopP(0.9))

    def decoder(tokens: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(*tokens.shape, vocab), state

    state = torch.zeros(rows, 5)
    drain(beam(decoder, state, prefix, limit, 0, beams=width, rules=rules))
    drain(greedy(decoder, state, prefix, limit, 0, rules=rules))
    drain(sample(decoder, state, prefix, limit, 0, seeds=range(rows), rules=rules))
    largest(torch.randn(rows, 3001), 2)


RUNS: dict[str, list[Callable[[], None]]] = {
    "attention.py": [scores, models],
    "scores.py": [scores, models],
    "losses.py": [losses],
    "rules.py": [searches],
    "search.py": [searches],
}
SIZES: dict[str, dict[str, tuple[int, ...]]] = {
    "transformer.py": {"B": (B, 1), "S": (S,), "T": (T, S, 1), "D": (D,), "V": (V,)},
    "embedding.py": {"B": (B, 1), "T": (T, S, 1), "D": (D,), "V": (V,)},
    "losses.py": {"N": (B * T,), "D": (D,), "V": (V,)},
    "rules.py": {"R": (3, 6), "V": (11,), "L": (7,)},
}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_comments_are_true_and_reached(path: Path) -> None:
    def run() -> None:
        for part in RUNS.get(path.name, [models]):
            part()

    known = statements(path)
    if not known:
        return
    seen = check(path, run, SIZES.get(path.name))
    wrong = [f"line {o.line}: says ({o.claimed}), is {o.found}" for o in seen if not o.fits]
    assert wrong == []
    text = path.read_text(encoding="utf-8").splitlines()
    lines = {s.last for (name, _), group in known.items() if name not in GPU for s in group}
    lines -= {line for line in lines if any(f"= {name}(" in text[line - 1] for name in GPU)}
    assert sorted(lines - {o.line for o in seen}) == [], "these lines were not reached"
