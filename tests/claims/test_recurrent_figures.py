"""Rows about recurrent networks that a figure shows: each is checked on the study behind the figure."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from generators import returned
from heedful.blocks.recurrent import Layer
from heedful.blocks.taps import watch
from heedful.lectures import alignment, cell_gradient, gradient_distance, length, recall
from heedful.lectures.learning import learn
from heedful.lectures.strings import ATTENTION, LETTERS, Writer, writer
from heedful.models.conv_classifier.config import ConvClassifierConfig
from heedful.models.conv_classifier.model import ConvClassifier, Filters
from heedful.models.rnn_lm.config import RnnLMConfig
from heedful.models.rnn_lm.model import RnnLM
from heedful.models.seq2seq.model import Seq2Seq


# ------------------------------------------------------------------ J2
@pytest.mark.claim("J2")
def test_gradients_explode_above_singular_value_one_and_vanish_below() -> None:
    found = returned(
        gradient_distance.study(gradient_distance.Settings(singular=(0.5, 1.0, 1.5), distance=30, hidden=8))
    )
    for value, norms in found.small.items():
        assert norms == pytest.approx([value**k for k in range(1, 31)], rel=1e-4)
    assert found.small[0.5][-1] < 1e-9
    assert found.small[1.5][-1] > 1e5


@pytest.mark.claim("J2")
def test_gradients_vanish_below_one_and_tanh_may_saturate_above() -> None:
    found = returned(gradient_distance.study(gradient_distance.Settings(singular=(0.5, 1.5), distance=30, hidden=8)))
    for value, norms in found.large.items():
        assert all(norm <= value**k * (1 + 1e-9) for k, norm in enumerate(norms, 1))  # the bound
    assert found.large[1.5][-1] < 1e-2 * found.small[1.5][-1]


# ------------------------------------------------------------------ J7
def test_open_forget_gate_keeps_the_gradient() -> None:
    found = returned(cell_gradient.study(cell_gradient.Settings(biases=(0.0, 1.0, 5.0), distance=40, hidden=16)))
    shut, half, wide = (found.cell[bias][-1] for bias in (0.0, 1.0, 5.0))
    assert shut < half < wide
    assert wide > 0.5
    assert found.plain[-1] < 1e-3


# ------------------------------------------------------------------ J4, A18
@pytest.fixture(scope="module")
def recalled() -> recall.Recalled:
    """Nets of one width, trained for as many steps, near and far from the word that they are asked for."""
    return returned(recall.study(recall.Settings(distances=(2, 15, 40), width=32, steps=250, lr=1e-2)))


@pytest.mark.claim("J4")
def test_elman_rnn_does_not_learn_long_dependencies(recalled: recall.Recalled) -> None:
    near, further, far = recalled.right["plain RNN"]
    assert near > 0.95
    assert max(further, far) < 2.5 / recall.KEYS  # about as good as guessing


@pytest.mark.claim("J4")
def test_lstm_learns_longer_dependencies(recalled: recall.Recalled) -> None:
    plain, lstm = (recalled.right[name][1] for name in ("plain RNN", "LSTM"))
    assert lstm > plain + 0.3


@pytest.mark.claim("A18")
def test_attention_learns_any_distance(recalled: recall.Recalled) -> None:
    near, _, far = recalled.right["LSTM with attention"]
    assert min(near, far) > 0.95
    assert far > recalled.right["LSTM"][2] + 0.3


@pytest.fixture(scope="module")
def reverser() -> Writer:
    """A net with attention that has learned to write short strings backwards."""
    one = writer(ATTENTION, 32, True, 5, 0)
    for _ in learn(one.net, one.loss, 450, 1e-2):
        pass
    return one


@pytest.mark.claim("A18")
def test_attention_keeps_one_vector_per_word(reverser: Writer) -> None:
    """Fine-grained: what the decoder can read grows with the source, and each step reads another part of it."""
    plain = writer(None, 32, True, 5, 0).net
    sizes: dict[Seq2Seq, list[int]] = {plain: [], reverser.net: []}
    for net, found in sizes.items():
        for words in (2, 5, 20):
            state = net.start(torch.zeros(1, words, dtype=torch.long))
            source = 0 if state.source.value is None else state.source.value.kv.v.numel()
            found.append(source + sum(part.numel() for layer in state.layers for part in layer))
    assert len(set(sizes[plain])) == 1  # one global representation, however long the source is
    one = sizes[reverser.net][0] - 2 * 32
    assert sizes[reverser.net] == [one + words * 32 for words in (2, 5, 20)]  # a vector for each word besides

    source = torch.tensor([[1, 5, 2, 8]])
    with watch(reverser.net, "decoder.attention.context") as seen:
        reverser.net.read(source, reverser.target(source)[:, :-1])
    contexts = seen["decoder.attention.context"].flatten(0, -2)[:4]
    assert float((torch.cdist(contexts, contexts) + 9 * torch.eye(4)).min()) > 0.1


@pytest.mark.claim("A18")
def test_attention_weights_match_the_input_dependence(reverser: Writer) -> None:
    """Interpretability: to change the word that is looked at most changes what is written, others hardly do."""
    source, _ = reverser.strings(200, 4)

    def written(source: Tensor) -> Tensor:
        return reverser.net.tokens.logits(reverser.net.read(source, reverser.target(source)[:, :-1]))[:, :4].argmax(-1)

    with watch(reverser.net, reverser.net.alignment) as seen:
        before = written(source)
    looks = seen[reverser.net.alignment][:, 0, :4].argmax(-1)  # (B, T)
    assert float((before == source.gather(1, looks)).float().mean()) > 0.9
    named, others = [], []
    for place in range(4):
        other = source.clone()
        other[:, place] = (other[:, place] + 3) % len(LETTERS)
        changed = written(other) != before
        named.append(changed[looks == place])
        others.append(changed[looks != place])
    assert float(torch.cat(named).float().mean()) > 0.9
    assert float(torch.cat(others).float().mean()) < 0.1


# ------------------------------------------------------------------ B1
@pytest.mark.claim("B1")
def test_accuracy_falls_with_length_only_without_attention() -> None:
    found = returned(length.study(length.Settings(longest=10, beyond=10, width=32, steps=700, lr=1e-2)))
    plain, attentive = found.exact["without attention"], found.exact["with attention"]
    assert min(plain[0], attentive[0]) > 0.95  # one letter is easy for both
    fall, attentive_fall = plain[0] - plain[-1], attentive[0] - attentive[-1]
    assert fall > attentive_fall + 0.3


# ------------------------------------------------------------------ B5
@pytest.mark.claim("B5")
def test_alignment_is_diagonal_for_copying_and_antidiagonal_for_reversal() -> None:
    found = returned(alignment.study(alignment.Settings(longest=7, shown=7, width=32, steps=900, lr=1e-2)))
    order = torch.arange(7)
    for task, expected in {"copied": order, "reversed": order.flip(0)}.items():
        one = found.maps[task]
        assert one.target == (one.source if task == "copied" else one.source[::-1])
        torch.testing.assert_close(one.weights.sum(-1), torch.ones(7))
        assert one.weights.argmax(-1).equal(expected)


# ------------------------------------------------------------------ J12
VOCAB, LENGTHS = 11, (5, 9, 30)


def depth(y: Tensor) -> int:
    """How many operations follow one another from the inputs to a result: the longest path of its graph."""
    waiting, depths = [y.grad_fn], dict[Any, int]()
    while waiting:
        node = waiting[-1]
        before = [one for one, _ in node.next_functions if one is not None] if node is not None else []
        if lacking := [one for one in before if one not in depths]:
            waiting += lacking
            continue
        depths[node] = 1 + max((depths[one] for one in before), default=0)
        waiting.pop()
    return depths[y.grad_fn]


def reach(y: Tensor, x: Tensor) -> list[int]:
    """The steps that a result depends on."""
    (gradient,) = torch.autograd.grad(y.sum(), x, retain_graph=True)
    return (gradient[0] != 0).any(-1).nonzero()[:, 0].tolist()


@pytest.mark.claim("J12")
def test_convnet_depth_is_fixed_and_rnn_depth_grows_with_length() -> None:
    convolutions = ConvClassifier(
        ConvClassifierConfig(vocab=VOCAB, labels=("no", "yes"), width=6, sizes=(2, 3), filters=4, dropout=0.0)
    )
    recurrent = RnnLM(RnnLMConfig(vocab=VOCAB, width=6, hidden=5, layers=2, cell="rnn", dropout=0.0))
    fixed, growing = [], []
    for words in LENGTHS:
        text = torch.randint(0, VOCAB, (1, words))
        fixed.append(depth(convolutions(text)))
        with watch(recurrent, "*.cell.hidden") as seen:
            logits, _ = recurrent(text, recurrent.start(1, torch.device("cpu")))
        growing.append(depth(logits))
        assert [len(found) for found in seen.all.values()] == [words] * 2
    assert len(set(fixed)) == 1  # whatever the length of the text
    each = {(two - one) / (b - a) for one, two, a, b in zip(growing, growing[1:], LENGTHS, LENGTHS[1:], strict=False)}
    assert len(each) == 1 and each.pop() >= 1  # each word takes as many steps more


@pytest.mark.claim("J12")
def test_filter_sees_its_window_and_rnn_state_all_previous_words() -> None:
    size, place = 3, 7
    filters, recurrent = Filters(6, 4, size).double(), Layer("rnn", 6, 5).double()
    x = torch.randn(1, 12, 6, dtype=torch.float64, requires_grad=True)
    answers = filters.slide(x.mT).mT  # (B, P, F), the first of which sees only the first word
    assert reach(answers[:, place], x) == list(range(place - size + 1, place + 1))
    states, _ = recurrent(x)
    assert reach(states[:, place], x) == list(range(place + 1))
