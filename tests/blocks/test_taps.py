"""Taps cost nothing until they have a hook."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from heedful.blocks.attention import MultiHead
from heedful.blocks.masks import causal
from heedful.blocks.taps import Tap, tapped, taps, watch


class Two(nn.Module):
    """x -> one(x) * 2 -> two."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = Tap(), Tap()

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.one(x) * 2)


def test_idle_tap_returns_the_same_tensor() -> None:
    x = torch.randn(3)
    assert Tap()(x) is x
    assert list(Tap().parameters()) == []
    assert Tap().state_dict() == {}


def test_idle_taps_leave_no_trace_in_a_compiled_graph() -> None:
    graphs: list[torch.fx.GraphModule] = []

    def keep(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    model, x = Two(), torch.randn(3)
    torch._dynamo.reset()
    assert torch.compile(model, backend=keep, fullgraph=True)(x).equal(2 * x)
    (graph,) = graphs
    assert [node.name for node in graph.graph.nodes if node.op.startswith("call")] == ["mul"]


def test_attention_with_idle_taps_compiles_to_one_graph() -> None:
    block, x = MultiHead(8, 2), torch.randn(2, 3, 8)
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: block(x, block.keys_values(x), causal()), backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), block(x, block.keys_values(x), causal()))


def test_watching_records_every_call_by_module_path() -> None:
    model, x = nn.ModuleDict({"inner": Two()}), torch.randn(3)
    with watch(model) as seen:
        model["inner"](x)
        model["inner"](x + 1)
    assert set(seen) == {"inner.one", "inner.two"}
    assert seen["inner.one"].equal(x + 1)
    assert [v.tolist() for v in seen.all["inner.two"]] == [(2 * x).tolist(), (2 * (x + 1)).tolist()]
    assert not tapped(*taps(model).values())


def test_pattern_selects_taps_and_an_unknown_one_is_rejected() -> None:
    model = Two()
    with watch(model, "tw*") as seen:
        assert tapped(model.two)
        assert not tapped(model.one, None)
        model(torch.ones(1))
    assert set(seen) == {"two"}
    with pytest.raises(ValueError, match="no tap matches 'three'; taps here: one, two"), watch(model, "three"):
        pass


def test_edit_replaces_the_value() -> None:
    model = Two()
    with watch(model, "one", edit=lambda name, x: torch.zeros_like(x)) as seen:
        assert model(torch.ones(2)).tolist() == [0, 0]
    assert seen["one"].tolist() == [0, 0]
    assert model(torch.ones(2)).tolist() == [2, 2]


def test_head_is_ablated_by_editing_its_weights() -> None:
    block, x = MultiHead(8, 2, output=False), torch.randn(1, 3, 8)

    def without_first(name: str, weights: Tensor) -> Tensor:
        return weights * torch.tensor([0.0, 1.0])[:, None, None]

    plain = block(x, block.keys_values(x))
    with watch(block, "weights", edit=without_first):
        edited = block(x, block.keys_values(x))
    assert bool((edited[..., :4] == 0).all())
    torch.testing.assert_close(edited[..., 4:], plain[..., 4:])


def test_hooks_are_removed_after_an_exception_and_nested_watches_restore() -> None:
    model = Two()
    with pytest.raises(RuntimeError, match="on purpose"), watch(model):
        raise RuntimeError("on purpose")
    assert not tapped(model.one, model.two)
    with watch(model, "one") as outer:
        with watch(model, "one") as inner:
            model(torch.ones(1))
        model(torch.full((1,), 3.0))
    assert [value.tolist() for value in outer.all["one"]] == [[1], [3]]
    assert [value.tolist() for value in inner.all["one"]] == [[1]]


def test_edits_of_nested_watches_follow_one_another() -> None:
    model = Two()
    with (
        watch(model, "one", edit=lambda name, x: x + 1) as outer,
        watch(model, "*") as seen,
        watch(model, "*", edit=lambda name, x: x * 10) as inner,
    ):
        assert model(torch.ones(1)).tolist() == [400]
    assert [each["one"].tolist() for each in (outer, seen, inner)] == [[2], [2], [20]]
    assert seen["two"].tolist() == [40] and inner["two"].tolist() == [400]


def test_recorded_tensors_have_no_graph() -> None:
    with watch(model := Two()) as seen:
        model(torch.ones(1, requires_grad=True))
    assert not seen["two"].requires_grad
