"""Claims about recurrent networks shown by figures, checked on the experiment behind each figure."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from generators import return_value
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
    found = return_value(
        gradient_distance.study(gradient_distance.Settings(singular=(0.5, 1.0, 1.5), distance=30, hidden=8))
    )
    for value, norms in found.small.items():
        assert norms == pytest.approx([value**k for k in range(1, 31)], rel=1e-4)
    assert found.small[0.5][-1] < 1e-9
    assert found.small[1.5][-1] > 1e5


@pytest.mark.claim("J2")
def test_gradients_vanish_below_one_and_tanh_may_saturate_above() -> None:
    found = return_value(
        gradient_distance.study(gradient_distance.Settings(singular=(0.5, 1.5), distance=30, hidden=8))
    )
    for value, norms in found.large.items():
        assert all(norm <= value**k * (1 + 1e-9) for k, norm in enumerate(norms, 1))  # the bound
    assert found.large[1.5][-1] < 1e-2 * found.small[1.5][-1]


# ------------------------------------------------------------------ J7
def test_open_forget_gate_keeps_the_gradient() -> None:
    found = return_value(cell_gradient.study(cell_gradient.Settings(biases=(0.0, 1.0, 5.0), distance=40, hidden=16)))
    shut, half, wide = (found.cell[bias][-1] for bias in (0.0, 1.0, 5.0))
    assert shut < half < wide
    assert wide > 0.5
    assert found.plain[-1] < 1e-3


# ------------------------------------------------------------------ J4, A18
@pytest.fixture(scope="module")
def recall_result() -> recall.Recalled:
    """Models of equal width and training steps, at short and long distances to the queried word."""
    return return_value(recall.study(recall.Settings(distances=(2, 15, 40), width=32, steps=250, lr=1e-2)))


@pytest.mark.claim("J4")
def test_elman_rnn_does_not_learn_long_dependencies(recall_result: recall.Recalled) -> None:
    near, further, far = recall_result.right["plain RNN"]
    assert near > 0.95
    assert max(further, far) < 2.5 / recall.KEYS  # about chance level


@pytest.mark.claim("J4")
def test_lstm_learns_longer_dependencies(recall_result: recall.Recalled) -> None:
    plain, lstm = (recall_result.right[name][1] for name in ("plain RNN", "LSTM"))
    assert lstm > plain + 0.3


@pytest.mark.claim("A18")
def test_attention_learns_any_distance(recall_result: recall.Recalled) -> None:
    near, _, far = recall_result.right["LSTM with attention"]
    assert min(near, far) > 0.95
    assert far > recall_result.right["LSTM"][2] + 0.3


@pytest.fixture(scope="module")
def reversal_model() -> Writer:
    """A model with attention trained to reverse short strings."""
    one = writer(ATTENTION, 32, True, 5, 0)
    for _ in learn(one.net, one.loss, 450, 1e-2):
        pass
    return one


@pytest.mark.claim("A18")
def test_attention_keeps_one_vector_per_word(reversal_model: Writer) -> None:
    """The decoder's memory grows with the source, and each step reads another part of it."""
    plain = writer(None, 32, True, 5, 0).net
    sizes: dict[Seq2Seq, list[int]] = {plain: [], reversal_model.net: []}
    for net, found in sizes.items():
        for words in (2, 5, 20):
            state = net.start(torch.zeros(1, words, dtype=torch.long))
            source = 0 if state.source.value is None else state.source.value.kv.v.numel()
            found.append(source + sum(part.numel() for layer in state.layers for part in layer))
    assert len(set(sizes[plain])) == 1  # one global representation, however long the source is
    one = sizes[reversal_model.net][0] - 2 * 32
    assert sizes[reversal_model.net] == [one + words * 32 for words in (2, 5, 20)]  # one more vector per word

    source = torch.tensor([[1, 5, 2, 8]])
    with watch(reversal_model.net, "decoder.attention.context") as seen:
        reversal_model.net.read(source, reversal_model.target(source)[:, :-1])
    contexts = seen["decoder.attention.context"].flatten(0, -2)[:4]
    assert float((torch.cdist(contexts, contexts) + 9 * torch.eye(4)).min()) > 0.1


@pytest.mark.claim("A18")
def test_attention_weights_match_the_input_dependence(reversal_model: Writer) -> None:
    """Interpretability: the output changes with the word of highest weight, and hardly with others."""
    source, _ = reversal_model.strings(200, 4)

    def output_words(source: Tensor) -> Tensor:
        x = reversal_model.net.read(source, reversal_model.target(source)[:, :-1])
        return reversal_model.net.tokens.logits(x)[:, :4].argmax(-1)

    with watch(reversal_model.net, reversal_model.net.alignment) as seen:
        before = output_words(source)
    attended = seen[reversal_model.net.alignment][:, 0, :4].argmax(-1)  # (B, T)
    assert float((before == source.gather(1, attended)).float().mean()) > 0.9
    attended_changes, other_changes = [], []
    for position in range(4):
        other = source.clone()
        other[:, position] = (other[:, position] + 3) % len(LETTERS)
        changed = output_words(other) != before
        attended_changes.append(changed[attended == position])
        other_changes.append(changed[attended != position])
    assert float(torch.cat(attended_changes).float().mean()) > 0.9
    assert float(torch.cat(other_changes).float().mean()) < 0.1


# ------------------------------------------------------------------ B1
@pytest.mark.claim("B1")
def test_accuracy_falls_with_length_only_without_attention() -> None:
    found = return_value(length.study(length.Settings(longest=10, beyond=10, width=32, steps=700, lr=1e-2)))
    plain, with_attention = found.exact["without attention"], found.exact["with attention"]
    assert min(plain[0], with_attention[0]) > 0.95  # one letter is easy for both
    fall, fall_with_attention = plain[0] - plain[-1], with_attention[0] - with_attention[-1]
    assert fall > fall_with_attention + 0.3


# ------------------------------------------------------------------ B5
@pytest.mark.claim("B5")
def test_alignment_is_diagonal_for_copying_and_antidiagonal_for_reversal() -> None:
    found = return_value(alignment.study(alignment.Settings(longest=7, shown=7, width=32, steps=900, lr=1e-2)))
    order = torch.arange(7)
    for task, expected in {"copied": order, "reversed": order.flip(0)}.items():
        one = found.maps[task]
        assert one.target == (one.source if task == "copied" else one.source[::-1])
        torch.testing.assert_close(one.weights.sum(-1), torch.ones(7))
        assert one.weights.argmax(-1).equal(expected)


# ------------------------------------------------------------------ J12
VOCAB, LENGTHS = 11, (5, 9, 30)


def depth(y: Tensor) -> int:
    """The number of sequential operations: the longest path of the autograd graph."""
    waiting, depths = [y.grad_fn], dict[Any, int]()
    while waiting:
        node = waiting[-1]
        before = [one for one, _ in node.next_functions if one is not None] if node is not None else []
        if missing := [one for one in before if one not in depths]:
            waiting += missing
            continue
        depths[node] = 1 + max((depths[one] for one in before), default=0)
        waiting.pop()
    return depths[y.grad_fn]


def input_dependence(y: Tensor, x: Tensor) -> list[int]:
    """The input steps that a result depends on."""
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
    assert len(set(fixed)) == 1  # independent of the length
    each = {(two - one) / (b - a) for one, two, a, b in zip(growing, growing[1:], LENGTHS, LENGTHS[1:], strict=False)}
    assert len(each) == 1 and each.pop() >= 1  # a constant number of steps per word


@pytest.mark.claim("J12")
def test_filter_sees_its_window_and_rnn_state_all_previous_words() -> None:
    size, position = 3, 7
    filters, recurrent = Filters(6, 4, size).double(), Layer("rnn", 6, 5).double()
    x = torch.randn(1, 12, 6, dtype=torch.float64, requires_grad=True)
    answers = filters.slide(x.mT).mT  # (B, P, F); the first sees only the first word
    assert input_dependence(answers[:, position], x) == list(range(position - size + 1, position + 1))
    states, _ = recurrent(x)
    assert input_dependence(states[:, position], x) == list(range(position + 1))
