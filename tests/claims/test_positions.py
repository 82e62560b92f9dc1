"""Rows D of the claim sheet: sinusoids, their plots, and the choice of positions."""

import math

import numpy as np
import pytest
import torch

from heedful.blocks.positions import FixedPositions, LearnedPositions, NoPositions, sinusoid_halves, sinusoids
from heedful.models.gpt.config import GptConfig
from heedful.models.gpt.model import Gpt
from heedful.models.transformer.config import TransformerConfig
from heedful.models.transformer.model import Transformer
from heedful.plots.figures import curves, heatmap
from tolerance import close, near


@pytest.mark.claim("D1")
def test_sinusoid_formula_and_shift_as_rotation() -> None:
    length, width = 50, 16
    table = sinusoids(length, width)
    for i in range(length):
        for j in range(width // 2):
            angle = i / 10000 ** (2 * j / width)
            assert float(table[i, 2 * j]) == near(math.sin(angle), 16)
            assert float(table[i, 2 * j + 1]) == near(math.cos(angle), 16)
    assert float(table.abs().max()) <= 1
    for j in range(width // 2):
        angle = 7 / 10000 ** (2 * j / width)
        turn = torch.tensor([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]])
        pairs = table[:, 2 * j : 2 * j + 2]
        close(pairs[:-7] @ turn.T, pairs[7:])
    x = torch.randn(2, 3, width)
    torch.testing.assert_close(FixedPositions(table)(x, torch.arange(3)), x + table[:3])
    with pytest.raises(ValueError, match="even"):
        sinusoids(length, 15)


@pytest.mark.claim("X1")
def test_exponent_is_divided_by_the_width() -> None:
    table = sinusoids(100, 16)
    assert float(table[99, 3]) == near(math.cos(99 / 10000 ** (2 / 16)), 16)
    misprint = math.cos(99 / 10000 ** (2 * 16))  # every column but the first would be constant
    assert misprint == 1.0
    assert bool((table[:, 1::2].std(0) > 1e-6).all())


@pytest.mark.claim("D2")
def test_heatmap_of_20_positions_by_512_columns() -> None:
    table = sinusoids(20, 512)
    assert table.shape == (20, 512)
    (image,) = heatmap(table, low=-1, high=1).axes[0].images
    assert image.get_array().shape == (20, 512) and image.get_clim() == (-1, 1)
    close(torch.from_numpy(np.ma.getdata(image.get_array())).float(), table)


@pytest.mark.claim("D3")
def test_concatenated_layout_has_256_sines_then_256_cosines() -> None:
    halves, interleaved = sinusoid_halves(20, 512), sinusoids(20, 512)
    assert halves[:, :256].equal(interleaved[:, 0::2])
    assert halves[:, 256:].equal(interleaved[:, 1::2])
    assert halves[0].tolist() == [0.0] * 256 + [1.0] * 256
    assert halves.sort(1).values.equal(interleaved.sort(1).values)
    assert not halves.equal(interleaved)


@pytest.mark.claim("X8")
def test_position_layout_changes_the_output() -> None:
    tokens, layouts = torch.arange(1, 6)[None], {"sinusoid": sinusoids, "sinusoid_halves": sinusoid_halves}
    logits = []
    for kind, table in layouts.items():
        gpt = Gpt(
            GptConfig.model_validate(
                {"vocab": 9, "width": 8, "heads": 2, "layers": 1, "context": 40} | {"positions": kind}
            )
        )
        torch.manual_seed(1)  # both layouts accept the same weights
        model = Transformer(tiny(kind)).eval()
        for positions in (gpt.positions, model.positions):
            close(positions(torch.zeros(1, 5, 8), torch.arange(3, 8))[0], table(40, 8)[3:8])
        logits.append(model(tokens, model.start(tokens))[0])
    assert (logits[0] - logits[1]).abs().max() > 0.05


@pytest.mark.claim("D4")
def test_columns_differ_in_frequency_and_phase() -> None:
    table = sinusoids(100, 20).numpy()
    columns = {f"column {j}": (np.arange(100), table[:, j]) for j in (4, 5, 6, 7)}
    lines = curves(columns, "Sinusoids", "position", "value").axes[0].lines
    assert [line.get_label() for line in lines] == list(columns) and len({line.get_color() for line in lines}) == 4
    assert all((line.get_ydata() == y).all() for line, (_, y) in zip(lines, columns.values(), strict=True))

    def crossings(j: int) -> int:
        return int((np.diff(np.sign(table[1:, j])) != 0).sum())

    assert abs(crossings(4) - crossings(5)) <= 1  # one wave is a quarter period earlier
    assert min(crossings(4), crossings(5)) > max(crossings(6), crossings(7))
    assert (table[0, 4], table[0, 5]) == (0, 1)  # the same frequency, a quarter period apart


@pytest.mark.claim("D5")
@pytest.mark.parametrize(("kind", "trained"), [("sinusoid", 0), ("learned", 40 * 8), ("none", 0)])
def test_positions_are_fixed_learned_or_absent(kind: str, trained: int) -> None:
    model = Transformer(tiny(kind))
    assert isinstance(
        model.positions, {"sinusoid": FixedPositions, "learned": LearnedPositions, "none": NoPositions}[kind]
    )
    assert sum(p.numel() for p in model.positions.parameters()) == trained
    tokens = torch.tensor([[3, 4, 5]])
    at, later = torch.arange(3), torch.arange(3) + 7
    model.eval()
    assert model.embed(tokens, at).equal(model.embed(tokens, later)) == (kind == "none")


@pytest.mark.claim("D7")
def test_position_and_distance_are_decodable() -> None:
    length = 120
    table = sinusoids(length, 64).double()
    known = torch.cat([table, torch.ones(length, 1)], 1)
    number = torch.arange(length, dtype=torch.float64)[:, None]
    held_out = torch.arange(length) % 5 == 2
    probe = torch.linalg.lstsq(known[~held_out], number[~held_out], rcond=1e-9, driver="gelsd").solution
    assert float((known[held_out] @ probe - number[held_out]).abs().max()) < 0.5  # rounds to the correct position
    products = table @ table.T
    for distance in range(length):
        band = products.diagonal(distance)
        close(band, band[:1].expand_as(band), slack=128, dtype=torch.float32)
    assert bool((products.diagonal() > products.triu(1).amax(1)).all())


def tiny(positions: str) -> TransformerConfig:
    sizes = {"vocab": 9, "width": 8, "heads": 2, "encoder_layers": 1, "decoder_layers": 1, "hidden": 8, "context": 40}
    return TransformerConfig.model_validate(sizes | {"positions": positions})
