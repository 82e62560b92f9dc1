"""Maps of images: their points, neighbour accuracy, and the plot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE
from sklearn.model_selection import LeaveOneOut, cross_val_score
from sklearn.neighbors import KNeighborsClassifier

from generators import return_value
from heedful import load, load_recipe, train
from heedful.cli.figure import figure_command
from heedful.data.embedded import Digits
from heedful.errors import UserError
from heedful.lectures.maps import Settings, images_of, maps, neighbour_accuracy, study, tsne

DENSE = "{kind: dense, width: 4, activation: linear}"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Barely trained autoencoders with codes of four and two dimensions, and a translation run."""
    root, steps = tmp_path_factory.mktemp("runs"), "train.budget={steps: 3}"
    for width in (4, 2):
        layers = f"model.encoder=[{DENSE.replace('4', str(width))}]"
        list(train(load_recipe("digits", [layers, steps, "data.test=60"]), root / str(width)))
    small = ["data.train=40", "data.valid=5", "data.test=5", "tokenizer.vocab=90", "model.width=16", "model.heads=2"]
    list(train(load_recipe("numbers", [*small, "model.hidden=32", steps]), root / "numbers"))
    return {path.name: str(path) for path in root.iterdir()}


@pytest.mark.parametrize(("k", "points"), [(1, 90), (10, 90), (10, 8)])
def test_neighbour_accuracy_matches_scikit_learn(k: int, points: int) -> None:
    r = np.random.default_rng(0)
    labels = r.integers(0, 3, points)
    points_2d = r.normal(size=(points, 2)) + labels[:, None]
    classifier = KNeighborsClassifier(min(k, points - 1))
    expected = cross_val_score(classifier, points_2d, labels, cv=LeaveOneOut()).mean()
    assert neighbour_accuracy(points_2d, labels, k) == pytest.approx(expected)
    assert 0.2 < expected < 1


def test_coinciding_points() -> None:
    assert 0 <= neighbour_accuracy(np.zeros((20, 2)), np.arange(20) % 2, 10) <= 1


def test_map_is_deterministic_and_works_with_few_points() -> None:
    X = load_digits().data[:60]
    assert (tsne(X, 30.0, 0) == tsne(X, 30.0, 0)).all()
    assert tsne(X[:3], 30.0, 0).shape == (3, 2)


def test_perplexity_and_seed_are_passed_to_tsne() -> None:
    X = load_digits().data[:60]
    for perplexity, seed in ((4.0, 0), (15.0, 1), (50.0, 0)):
        near = min(perplexity, 59 / 3)  # the limit of scikit-learn
        first = PCA(2, random_state=seed).fit_transform(X).astype(np.float32)
        right = TSNE(perplexity=near, init=first / first[:, 0].std() * 1e-4, random_state=seed).fit_transform(X)
        assert (tsne(X, perplexity, seed) == right).all()
    found = return_value(maps(lambda: X, None, X, np.arange(60) % 10, "0123456789", Settings(perplexity=4.0, seed=2)))
    assert all((one.points == tsne(X, 4.0, 2)).all() for one in found.maps)


def test_map_time_is_codes_plus_tsne(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]

    def wait(seconds: float, found: Any) -> Any:
        clock[0] += seconds
        return found

    X = load_digits().data[:20]
    monkeypatch.setattr("heedful.lectures.maps.time.perf_counter", lambda: clock[0])
    monkeypatch.setattr("heedful.lectures.maps.tsne", lambda vectors, *_: wait(len(vectors[0]), vectors[:, :2]))
    monkeypatch.setattr("heedful.lectures.maps.neighbour_accuracy", lambda *_: wait(1000, 0.5))
    study_steps = maps(
        lambda: wait(7, X[:, :5]),
        lambda: wait(3, X[:, :2]),
        X,
        np.arange(20),
        "0123456789",
        Settings(),
    )
    found = return_value(study_steps)
    assert [one.seconds for one in found.maps] == [7 + 5, 3, 64]
    assert [row[-1] for row in found.table().rows] == [12, 3, 64]


def test_maps_of_a_run(runs: dict[str, str], tmp_path: Path) -> None:
    found = return_value(study(Settings(model=runs["4"], beside=runs["2"], points=50, neighbours=5)))
    assert [(one.name, one.numbers) for one in found.maps] == [
        ("t-SNE of the codes", 4),
        ("codes of two dimensions", 2),
        ("t-SNE of the pixels", 64),
    ]
    images = Digits(test=60).read("test")
    assert images.labels is not None
    assert found.labels.tolist() == images.labels[:50].tolist()
    assert found.names == images.names
    assert (found.maps[1].points == load(runs["2"]).encode(images.pixels[:50])).all()
    for one in found.maps:
        assert one.points.shape == (50, 2)
        assert one.right == neighbour_accuracy(one.points, found.labels, 5)
        assert one.seconds > 0
    assert found.table().columns == ("map", "numbers", "right by 5 neighbours", "seconds")
    alone = return_value(study(Settings(model=runs["4"], points=50)))
    assert [one.name for one in alone.maps] == ["t-SNE of the codes", "t-SNE of the pixels"]


def test_maps_command_requires_a_run(runs: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figure_command("maps", [runs["4"], "points=20"], tmp_path / "a.png", True)
    output = json.loads(capsys.readouterr().out)
    assert output["settings"]["model"] == runs["4"]
    assert [row[1] for row in output["rows"]] == [4, 64]
    assert (tmp_path / "a.png").is_file()
    with pytest.raises(UserError):
        figure_command("maps", ["points=20", runs["4"]], tmp_path / "b.png", True)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "needs a trained autoencoder"),
        ({"model": "numbers"}, "is no autoencoder"),
        ({"model": "4", "beside": "numbers"}, "is no autoencoder"),
        ({"model": "4", "beside": "4"}, "the codes of this run do not have two dimensions"),
        ({"model": "/nowhere"}, "there is no such folder"),
    ],
)
def test_map_reports_missing_inputs(runs: dict[str, str], settings: dict[str, str], message: str) -> None:
    named = {key: runs.get(value, value) for key, value in settings.items()}
    with pytest.raises(UserError, match=message):
        return_value(study(Settings(**named)))


def test_images_without_labels_are_rejected(runs: dict[str, str], tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((5, 8, 8), np.uint8))
    recipe = Path(runs["4"], "recipe.yaml").read_text(encoding="utf-8").splitlines()
    begin = next(n for n, line in enumerate(recipe) if line.startswith("data:"))
    end = next(n for n in range(begin + 1, len(recipe)) if not recipe[n].startswith(" "))
    data = [f"data: {{kind: array, root: {tmp_path}, train: {{file: a.npy}}, test: {{file: a.npy}}}}"]
    (tmp_path / "recipe.yaml").write_text("\n".join([*recipe[:begin], *data, *recipe[end:]]), encoding="utf-8")
    with pytest.raises(UserError, match="have no labels"):
        images_of(str(tmp_path), 100)


def test_maps_of_arrays() -> None:
    X, y = load_digits(return_X_y=True)
    X, y = X[:60], y[:60]
    found = return_value(maps(lambda: X[:, :5], lambda: X[:, 10:12], X, y, "0123456789", Settings()))
    assert [one.numbers for one in found.maps] == [5, 2, 64]
