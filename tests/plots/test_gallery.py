"""Figures for slides: each is drawn in every format and theme, and shows what the models' own code computes."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

import heedful
from generators import drain_generator, return_value
from heedful.blocks.positions import sinusoid_halves
from heedful.blocks.positions import sinusoids as interleaved
from heedful.blocks.taps import watch
from heedful.errors import UserError
from heedful.models import MODELS, config_class
from heedful.plots.gallery import EVERY, FIGURES, attention, commands, decoding, draw, masks, pronouns, settings_class
from heedful.plots.gallery.index import write_gallery
from heedful.plots.style import PALETTES, SUFFIXES, encode, read_sheet, settings, write_sheet
from heedful.training.optim import Noam
from tolerance import close

TINY_RUN = [
    "data.below=100", "data.train=40", "data.valid=2", "data.test=2", "model.width=16", "model.hidden=16",
    "train.budget.steps=2", "train.device=cpu",
]  # fmt: skip
# The smallest settings of each figure.
TINY: dict[str, dict[str, object]] = {
    "attention": {"text": "a cat"},
    "heads": {"text": "a cat", "most": 2},
    "attention-steps": {},
    "self-attention": {},
    "masks": {"length": 4},
    "three-masks": {"length": 4, "source": 2},
    "masking": {"text": "a cat sat on a mat", "examples": 1, "rows": 20},
    "bigbird": {"length": 6},
    "linformer": {"length": 5, "slots": 2, "width": 3},
    "sinusoids": {"length": 4, "width": 6},
    "waves": {"length": 9, "width": 8},
    "schedules": {"steps": 20, "warmup": 4},
    "activations": {},
    "loss-curves": {"run": "run"},
    "scaling-lines": {"widths": [2, 4], "tokens": [1024, 2048]},
    "lstm-gates": {"distance": 2, "width": 3, "steps": 2},
    "beam-tree": {"limit": 3},
    "digit-maps": {"points": 40, "epochs": 1},
    "reconstructions": {"epochs": 1},
    "filters": {"steps": 1},
    "feature-maps": {"steps": 1, "channels": 2},
    "receptive-field": {"steps": 1},
    "top-patches": {"steps": 1, "channels": 1, "count": 2},
    "saliency": {"steps": 1, "count": 1},
    "occlusion": {"steps": 1, "count": 1, "stride": 8},
    "vit-attention": {"steps": 1, "count": 1},
    "glimpses": {"steps": 1, "count": 1},
    "visual-search": {"steps": 1, "count": 1},
    "hops": {"steps": 1, "count": 1},
    "captions": {"steps": 1, "count": 1},
    "soft-hard": {"steps": 1},
    "paragraphs": {"model": str(Path(__file__).parents[1] / "golden" / "runs" / "paragraphs-paragraph_captioner")},
    "neighbours": {"steps": 1, "count": 1, "nearest": 2},
    "image-probes": {"steps": 1},
    "loss-surface": {"depth": 2, "width": 4, "training": 1, "points": 3},
    "architecture": {"model": "seq2seq"},
}
STEPS = [{"kind": "step", "step": step, "loss": loss} for step, loss in ((1, 2.0), (2, 1.5), (3, 1.25))]


@pytest.fixture(autouse=True)
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that has recorded three steps."""
    monkeypatch.chdir(tmp_path)
    Path("run").mkdir()
    Path("run", "metrics.jsonl").write_text("\n".join(map(json.dumps, STEPS)))


def images(figure: Figure) -> list[np.ndarray]:
    """The arrays that a figure shows as images, colour bars left out."""
    return [np.asarray(image.get_array()) for axes in figure.axes for image in axes.images]


def test_every_figure_is_drawn_here() -> None:
    assert list(TINY) == list(FIGURES)


ONE_FORMAT = {name: (list(SUFFIXES)[number % len(SUFFIXES)],) for number, name in enumerate(TINY)}
FORMATS = {**ONE_FORMAT, "masks": SUFFIXES, "beam-tree": SUFFIXES}  # the rest of the formats is for `make test-all`


LONG = ("soft-hard", "image-probes", "captions", "lstm-gates", "visual-search", "glimpses")  # the longest


@pytest.mark.parametrize(
    ("name", "formats"),
    [pytest.param(name, FORMATS[name], marks=pytest.mark.slow if name in LONG else ()) for name in TINY]
    + [pytest.param(name, SUFFIXES, marks=pytest.mark.slow) for name in TINY if FORMATS[name] != SUFFIXES],
)
def test_figure_is_drawn_in_every_format_without_side_effects(name: str, formats: tuple[str, ...]) -> None:
    before = torch.get_rng_state()
    figure = heedful.figure(name, theme="print", **TINY[name])
    assert isinstance(figure, Figure)
    for suffix in formats:
        assert len(encode(figure, suffix, dots=40)) > 1000
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("name", ["masks", "attention-steps", "beam-tree"])
def test_theme_sets_the_colours(name: str) -> None:
    from matplotlib.colors import to_hex

    for theme, palette in PALETTES.items():
        assert to_hex(heedful.figure(name, theme=theme, **TINY[name]).get_facecolor()) == palette.paper


# ------------------------------------------------------------------ what is drawn
def test_heatmap_shows_the_models_attention_weights() -> None:
    figure = heedful.figure("attention", text="the old cat", layer=2, head=3)
    model = attention._random("the old cat", 0)
    with watch(model.model, "*.weights") as seen:
        tokens = torch.tensor(model.tokenize(["the old cat"]).rows)
        model.model(tokens)
    weights = list(seen.values())
    close(torch.from_numpy(images(figure)[0].astype(np.float32)), weights[1][0, 2])
    labels = [text.get_text() for text in figure.axes[0].get_yticklabels()]
    assert labels == ["[CLS]", "the", "old", "cat", "[SEP]"]


def test_attention_without_a_model_shows_what_a_pronoun_refers_to(monkeypatch: pytest.MonkeyPatch) -> None:
    trained = cache(lambda seed, train=pronouns.train: return_value(train(seed)))  # once for both sentences

    def train(seed: int) -> Iterator[object]:
        yield from ()
        return trained(seed)

    monkeypatch.setattr(pronouns, "train", train)
    for pronoun, noun in (("it", "bridge"), ("she", "queen")):
        figure = heedful.figure("attention", text=pronouns.SENTENCE.replace(" it ", f" {pronoun} "))
        rows, columns = (
            [text.get_text() for text in labels]
            for labels in (figure.axes[0].get_yticklabels(), figure.axes[0].get_xticklabels())
        )
        assert columns[images(figure)[0][rows.index(pronoun)].argmax()] == noun
        assert "trained" in figure.get_suptitle()


def test_text_of_other_words_is_shown_by_random_weights() -> None:
    assert "randomly" in heedful.figure("attention", text="the cat").get_suptitle()


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("vanishing-gradients", "gradient-distance"),
        ("multi-head", "heads"),
        ("t-SNE", "digit-maps or maps"),
        ("positional_encoding", "sinusoids or waves"),
        ("atention", "attention"),
    ],
)
def test_other_names_for_a_figure_suggest_it(name: str, found: str) -> None:
    with pytest.raises(UserError) as caught:
        heedful.figure(name)
    assert caught.value.todo == f"did you mean {found}?"


def test_mean_over_heads() -> None:
    one = [images(heedful.figure("attention", text="a cat", head=head))[0] for head in range(5)]
    np.testing.assert_allclose(one[0], np.mean(one[1:], axis=0), atol=1e-6)
    np.testing.assert_allclose(images(heedful.figure("heads", text="a cat")), one[1:], atol=1e-6)


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def test_worked_examples_match_the_lectures() -> None:
    found = texts(heedful.figure("attention-steps"))
    assert {"112", "96", "14", "12", "0.8808", "0.1192"} <= set(found)
    found = texts(heedful.figure("attention-steps", products=[13, 9, 9], width=1, words=["a", "b", "c"]))
    assert "0.9647" in found and found.count("0.0177") == 2
    found = texts(heedful.figure("self-attention"))
    assert {"16", "1.937", "6.683", "1.595", "7.964"} <= set(found)
    assert "1.595" not in texts(heedful.figure("self-attention", scale=True))


def test_masks_follow_their_rules() -> None:
    q, k = np.indices((6, 6))
    causal, padding, window, permuted = images(heedful.figure("masks", length=6, real=4, size=1, seed=3))
    assert (causal == (k <= q)).all() and (padding == (k < 4)).all() and (window == (abs(q - k) <= 1)).all()
    rank = np.argsort(masks.random_order(6, 3))
    assert (permuted == (rank[k] < rank[q])).all()
    left, both, permuted, content, prefix = images(heedful.figure("three-masks", length=6, source=2, seed=3))
    assert (left == (k <= q)).all() and both.all() and (permuted == (rank[k] < rank[q])).all()
    assert (content == (rank[k] <= rank[q])).all() and (prefix == ((k <= q) | (k < 2))).all()


def test_bigbirds_masks_and_their_union() -> None:
    q, k = np.indices((12, 12))
    random, window, ends, union = images(heedful.figure("bigbird", length=12, random=2, near=1, ends=2, seed=3))
    assert (window > 0).tolist() == (abs(q - k) <= 1).tolist() and (ends > 0).tolist() == ((q < 2) | (k < 2)).tolist()
    assert (random > 0).sum(1).tolist() == [0, 0, *[2] * 10], "the first two queries attend to all keys"
    assert (union > 0).tolist() == ((random > 0) | (window > 0) | (ends > 0)).tolist()
    assert {*np.unique(union)} == {0, 1, 2, 3}


def test_linformers_weights_are_n_x_k() -> None:
    shapes = [image.shape for image in images(heedful.figure("linformer", length=9, slots=3, width=5))]
    assert shapes == [(3, 9), (9, 5), (3, 5), (9, 9), (9, 3)]
    with pytest.raises(UserError, match="more slots than tokens"):
        heedful.figure("linformer", length=4, slots=5)


def test_masked_tokens_are_replaced_as_bert_says() -> None:
    ids, after, chosen = masks.masked_rows([f"w{i}" for i in range(100)], 2000, 0.15, 0)
    assert (chosen.sum(1) == 15).all() and (after == ids)[~chosen].all()
    shares = list(masks.outcomes(ids, after, chosen).values())
    np.testing.assert_allclose(shares, [0.8, 0.1, 0.1], atol=0.02)


def test_sinusoids_are_the_tables_of_models_in_both_layouts() -> None:
    first, second = images(heedful.figure("sinusoids", length=5, width=8))[:2]
    close(torch.from_numpy(first), interleaved(5, 8))
    close(torch.from_numpy(second), sinusoid_halves(5, 8))
    lines = heedful.figure("waves", length=5, width=8, dimensions=[0, 3]).axes[0].lines
    close(torch.tensor(np.array([line.get_ydata() for line in lines])).float(), interleaved(5, 8)[:, [0, 3]].T)


def test_schedules_are_those_of_recipes() -> None:
    figure = heedful.figure("schedules", steps=50, warmup=10, width=64)
    lines = {line.get_label(): line.get_ydata() for line in figure.axes[0].lines}
    assert list(lines) == ["noam", "cosine", "linear", "stepwise", "constant"]
    noam = [Noam(warmup=10, width=64).factor(step, 0.0) for step in range(1, 51)]
    np.testing.assert_allclose(lines["noam"], np.array(noam) / max(noam))
    assert lines["constant"][9:].min() == 1.0 and lines["linear"].argmax() == 9


def test_loss_curves_are_those_of_the_run() -> None:
    (line,) = heedful.figure("loss-curves", run="run").axes[0].lines
    assert (list(line.get_xdata()), list(line.get_ydata())) == ([1, 2, 3], [2.0, 1.5, 1.25])


@pytest.mark.slow
def test_without_a_run_one_is_trained() -> None:
    train, valid = heedful.figure("loss-curves", epochs=2).axes[0].lines
    assert train.get_ydata()[-1] < train.get_ydata()[0] and len(valid.get_ydata()) >= 1


def test_gates_are_those_that_compute_the_cell() -> None:
    from heedful.lectures import recall
    from heedful.plots.gallery.recurrent import gate_values

    trial = recall.trial("LSTM", 3, recall.Settings(width=4))
    values = gate_values(trial.net, trial.sentences(1)[0][0])
    assert {name: tuple(value.shape) for name, value in values.items()} == dict.fromkeys(values, (5, 4))
    assert all(values[name].min() > 0 and values[name].max() < 1 for name in ("forget", "write", "reveal"))


def test_beam_tree_matches_exhaustive_search() -> None:
    words, logs = decoding.table_of(decoding.TEXTS)
    end = words.index("<end>")

    def sentences(before: int, log: float, path: tuple[int, ...]) -> Iterator[tuple[float, tuple[int, ...]]]:
        if path and path[-1] == end:
            yield log / len(path), path
        elif len(path) < 8:
            for word, more in enumerate(logs[before].tolist()):
                if more > -math.inf:
                    yield from sentences(word, log + more, (*path, word))

    best = sorted(sentences(len(words), 0.0, ()), reverse=True)[:2]
    nodes, paths = decoding.search_tree(logs, 2, 2, 8, 1.0)
    found = [path[:length] for path, length in zip(paths.tokens[0].tolist(), paths.lengths[0].tolist(), strict=True)]
    assert [" ".join(words[token] for token in path) for path in found] == [
        "the poor don't have any money <end>", "the poor are destitute <end>",
    ]  # fmt: skip
    assert [tuple(path) for path in found] == [path for _, path in best]
    assert paths.scores[0].tolist() == pytest.approx([score for score, _ in best])
    assert all(math.isfinite(node.log) for node in nodes)


def test_beam_tree_of_a_model(tmp_path: Path) -> None:
    run = heedful.load_recipe("numbers", TINY_RUN)
    translator = heedful.fit(run, tmp_path / "run-of-numbers")
    figure = heedful.figure("beam-tree", model="run-of-numbers", text="twenty-one", beams=2, top=1, limit=4)
    best = translator.search(["twenty-one"], beams=2, top=1)[0][0]  # type: ignore[attr-defined]
    shown = [text.partition("\n")[0] for text in texts(figure)]
    assert "twenty-one" in figure.get_suptitle() and "start" in shown
    assert translator.tokenizer.pieces(best.ids)[:1][0] in shown  # type: ignore[attr-defined]
    with pytest.raises(UserError, match="model needs text"):
        heedful.figure("beam-tree", model="run-of-numbers")


@pytest.mark.parametrize("kind", MODELS)
def test_diagram_has_every_parameter_of_any_model(kind: str) -> None:
    from heedful.plots.gallery.diagram import boxes

    rows = heedful.summary(config_class(kind).tiny())
    assert sum(box.times * box.row.parameters for box in boxes(rows)) == rows.parameters
    if kind == "bert":
        texts_of_bert = texts(heedful.figure("architecture", model=kind))
        assert texts_of_bert[0] == "segments"  # it has no output: at the bottom, without an arrow
        assert {"reads pooler", "reads blocks"} <= set(texts_of_bert)
    if kind in ("transformer", "gpt"):
        figure = heedful.figure("architecture", model=kind)
        assert any("× 2" in text for text in texts(figure)) and f"{rows.parameters:,}" in figure.get_suptitle()


# ------------------------------------------------------------------ mistakes
@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("sinusoid", {}, "did you mean sinusoids"),
        ("nothing-like-it", {}, "lists what each shows"),
        ("sinusoids", {"widht": 3}, "did you mean width"),
        ("sinusoids", {"width": 3}, "multiple of 2"),
        ("sinusoids", {"layout": "halves"}, "invalid value for layout"),
        ("attention", {"text": "a", "layer": 9}, "no such layer"),
        ("attention", {"text": "a", "head": 9}, "no such head"),
        ("attention", {"model": "nowhere"}, "no such folder"),
        ("attention-steps", {"products": [1, 2, 3]}, "every key has a word"),
        ("self-attention", {"key": [[1, 2]]}, "does not fit the inputs"),
        ("self-attention", {"inputs": [[1, 2], [3]]}, "this is no matrix"),
        ("beam-tree", {"beams": 1}, "at most k"),
        ("loss-curves", {"run": "nowhere"}, "recorded no loss"),
    ],
)
def test_mistakes_are_named(name: str, values: dict[str, object], message: str) -> None:
    with pytest.raises(UserError) as error:
        heedful.figure(name, **values)
    assert message in str(error.value)


# ------------------------------------------------------------------ style sheets
def test_style_sheet_round_trip(tmp_path: Path) -> None:
    import matplotlib
    from matplotlib.colors import to_hex

    for theme, palette in PALETTES.items():
        path = tmp_path / f"{theme}.mplstyle"
        path.write_text(write_sheet(theme))
        found, wanted = read_sheet(path), matplotlib.RcParams(settings(palette))
        assert found.keys() == wanted.keys()
        for key, value in wanted.items():
            if key.endswith("color"):
                assert to_hex(found[key]) == to_hex(value)
            elif key != "axes.prop_cycle":
                assert found[key] == value, key


def test_style_sheet_changes_fonts_colours_and_colormap(tmp_path: Path) -> None:
    path = tmp_path / "mine.mplstyle"
    path.write_text('font.size: 20 # large\nfigure.facecolor: "#ff0000"\n\n# image\nimage.cmap: viridis\n')
    figure = heedful.figure("sinusoids", style=path)
    assert figure.get_facecolor() == (1.0, 0.0, 0.0, 1.0)
    assert figure.axes[0].images[0].get_cmap().name == "viridis"
    assert figure.axes[0].title.get_size() == 20
    assert heedful.figure("sinusoids").axes[0].title.get_size() != 20


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fontsize: 3", "no setting of Matplotlib"),
        ("font.size 3", "no setting of Matplotlib"),
        ("\nfont.size: huge", "mine.mplstyle:2: invalid value for font.size"),
    ],
)
def test_invalid_style_sheet_line_is_reported(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.mplstyle"
    path.write_text(text)
    with pytest.raises(UserError) as error:
        heedful.figure("masks", style=path)
    assert message in str(error.value)
    with pytest.raises(UserError, match="no such style sheet"):
        heedful.figure("masks", style=tmp_path / "none")


# ------------------------------------------------------------------ the gallery
def test_gallery_has_every_figure_with_its_command(tmp_path: Path) -> None:
    names, changes = ["masks", "sinusoids", "pooling", "contexts"], {"masks": ["length=4"]}
    progress, path = drain_generator(write_gallery(tmp_path / "all", "dark", names, changes))
    assert path == tmp_path / "all" / "index.html"
    shares = [event.share for event in progress]
    assert shares == sorted(shares) and shares[-1] == pytest.approx(1.0)
    for index in ("index.html", "README.md"):
        text = (path.parent / index).read_text(encoding="utf-8")
        assert "heedful figure masks length=4 --theme dark" in text and "model=FOLDER" in text
        assert all(f"{name}.png" in text for name in names[:3]) and "contexts.png" not in text
    assert sorted(one.name for one in path.parent.glob("*.png")) == ["masks.png", "pooling.png", "sinusoids.png"]


def test_commands_name_every_figure_once_and_each_has_settings() -> None:
    assert [line.split()[2] for line in commands()] == list(EVERY)
    for name in EVERY:
        assert settings_class(name).model_fields
    with pytest.raises(UserError):
        draw("masks", overrides=["lenght=3"])


def test_page_of_figures_lists_every_one() -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "figures.md").read_text(encoding="utf-8")
    listed = [line.split("`")[1] for line in page.splitlines() if line.startswith("| `")]
    assert listed == list(EVERY)
