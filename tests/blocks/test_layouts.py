"""Layouts: positions and masks of padded and packed sequences."""

import torch

from heedful.blocks.layouts import PackedPairs, PackedTexts, Padded, Rows, Unpadded
from heedful.blocks.masks import Ranges


def test_positions_skip_padding() -> None:
    real = torch.tensor([[False, True, True], [True, True, False]])
    assert Padded(real).at.tolist() == [[0, 0, 1], [0, 1, 1]]
    assert Padded(real).max_length(3) == 3
    assert Unpadded(torch.zeros(2, 3)).at.tolist() == [0, 1, 2]
    assert Unpadded(torch.zeros(2, 3)).mask is None


def test_rows_have_sequence_numbers_and_positions() -> None:
    rows = Rows.of(torch.tensor([2, 3]), 7)
    assert rows.number.tolist() == [0, 0, 1, 1, 1, 2, 2]
    assert rows.at.tolist() == [0, 1, 0, 1, 2, 0, 0]
    assert rows.begin.tolist() == [0, 2, 5]
    assert rows.end.tolist()[:2] == [2, 5]


def test_packed_pairs_attend_within_their_sequence() -> None:
    lengths, goals = torch.tensor([2, 3]), torch.tensor([3, 1])
    source, target = Rows.of(lengths, 7), Rows.of(goals, 6)
    layout = PackedPairs.of(lengths, goals, 7, 6, longest=3)
    for visible, queries, keys, causal in (
        (layout.mask, source, source, False),
        (layout.cross, target, source, False),
        (layout.past(1).attention_mask(6), target, target, True),
    ):
        assert isinstance(visible, Ranges)
        seen = visible.dense()
        for q, own in enumerate(queries.number.tolist()):
            for k, other in enumerate(keys.number.tolist()):
                assert bool(seen[q, k]) == (own == other < 2 and (not causal or k <= q))
                if own < 2:
                    assert bool(visible.first[k] <= q < visible.last[k]) == bool(seen[q, k])


def test_packed_targets_have_one_past() -> None:
    layout = PackedPairs.of(torch.tensor([2]), torch.tensor([3]), 3, 4, longest=3)
    past = layout.past(2)
    assert past.max_length(4) == 3
    assert past.positions(4, torch.device("cpu")).tolist() == [0, 1, 2, 0]
    assert len(past.layer_caches(4)) == 2
    assert layout.at.tolist() == [0, 1, 0]


def test_packed_texts_attend_within_their_sequence() -> None:
    layout = PackedTexts.of(torch.tensor([2, 0, 3]), 7, longest=3)
    assert layout.at.tolist() == [0, 1, 0, 1, 2, 0, 0]
    assert layout.mask.begin.tolist() == [0, 2, 2, 5]
    assert layout.mask.end.tolist() == [2, 2, 5, 5]
    seen = torch.zeros(7, 7, dtype=torch.bool)
    seen[:2, :2] = seen[2:5, 2:5] = True
    assert layout.mask.dense().equal(seen)
