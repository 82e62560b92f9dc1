from __future__ import annotations

import json
from pathlib import Path

import pytest

from heedful.config import load_yaml, parse, render
from heedful.errors import UserError
from heedful.recipe import (
    RECIPES,
    Recipe,
    check_recipe,
    find_recipe,
    init_recipe,
    load_recipe,
    schema_text,
    shipped,
    summary,
)

TEMPLATES = sorted((RECIPES / "templates").glob("*.yaml"))


@pytest.mark.parametrize("path", [*shipped().values(), *TEMPLATES], ids=lambda path: path.stem)
def test_every_shipped_recipe_is_right_and_renders_to_itself(path: Path, tmp_path: Path) -> None:
    recipe = load_recipe(str(path))
    written = tmp_path / "recipe.yaml"
    written.write_text(render(recipe), encoding="utf-8")
    data, marks = load_yaml(written)
    assert parse(Recipe, data, marks, (), written) == recipe
    assert len(summary(path)) > 20


@pytest.mark.parametrize("path", [*shipped().values(), *TEMPLATES], ids=lambda path: path.stem)
def test_shipped_numbers_are_numbers_to_every_yaml_reader(path: Path) -> None:
    # An editor's YAML knows neither 20_000 nor our other kindnesses, and would underline it.
    assert not [line for line in path.read_text().splitlines() if "_0" in line.split("#")[0]]


def test_the_demo_recipe_has_the_settings_it_was_measured_with() -> None:
    recipe = load_recipe("numbers")
    model = recipe.model
    assert (model.norm, model.width, model.heads, model.hidden, model.dropout) == ("pre", 96, 4, 384, 0.0)
    assert (model.encoder_layers, model.decoder_layers) == (2, 2)
    assert recipe.data.train == 20_000
    assert recipe.train.optimizer.lr == 3e-3


def test_a_file_comes_before_a_shipped_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "numbers").mkdir()  # a run folder of that name does not hide the recipe
    assert find_recipe("numbers") == shipped()["numbers"]
    (tmp_path / "numbers").rmdir()
    (tmp_path / "numbers").write_text("task: {}")
    assert find_recipe("numbers") == Path("numbers")


def test_a_mistyped_name_is_answered_with_a_near_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text("")
    with pytest.raises(UserError, match="did you mean numbers"):
        find_recipe("nubmers")
    with pytest.raises(UserError, match=r"did you mean mine\.yaml"):
        find_recipe("mone.yaml")
    with pytest.raises(UserError, match="heedful init"):
        find_recipe("x" * 5000)


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["train.average=3"], "write train.keep: 3"),
        (["train.keep=1"], "greater than or equal to 2"),
        (["train.budget={}"], "at least one of steps, tokens, minutes"),
        (["model.vocab=100"], "leave model.vocab out"),
        (["decode.max_length=999"], "write model.context: 999"),
        (["train.sede=1"], "did you mean train.seed"),
        (["train.schedule.kind=cosin"], "did you mean cosine"),
        (["train.compile=yes"], "true or false"),
        (["train.clip=0"], "greater than 0"),
        (["task.kind=translate"], "did you mean translation"),
    ],
)
def test_combinations_that_cannot_work_are_refused_with_advice(overrides: list[str], told: str) -> None:
    with pytest.raises(UserError) as caught:
        load_recipe("numbers", overrides)
    assert told in str(caught.value)


def test_defaults_are_checked_against_what_is_given() -> None:
    with pytest.raises(UserError, match=r"model\.heads: a width of 90"):
        load_recipe("numbers", ["model={width: 90}"])  # 8 heads by default


def test_check_names_every_missing_file(tmp_path: Path) -> None:
    recipe = load_recipe("multi30k", [f"data.root={json.dumps(str(tmp_path))}"])
    with pytest.raises(UserError) as caught:
        check_recipe(recipe)
    assert len(caught.value.problems) == 6
    check_recipe(load_recipe("numbers"))


def test_init_writes_a_recipe_that_checks_and_its_schema(tmp_path: Path) -> None:
    recipe, schema = init_recipe("translate", tmp_path)
    assert recipe == tmp_path / "translate.yaml"
    assert recipe.read_text().splitlines()[0] == "# yaml-language-server: $schema=translate.schema.json"
    assert schema.read_text() == schema_text()
    assert load_recipe(str(recipe)).data.kind == "parallel"


@pytest.mark.parametrize("name", ["mine.yaml", "mine.schema.json"])
def test_init_never_overwrites_unasked(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("precious")
    with pytest.raises(UserError, match="in the way"):
        init_recipe("translate", tmp_path / "mine.yaml")
    assert [file.name for file in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "precious"
    init_recipe("translate", tmp_path / "mine.yaml", force=True)
    assert (tmp_path / name).read_text() != "precious"


def test_init_into_nowhere_and_for_nothing_known(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot write"):
        init_recipe("translate", tmp_path / "none" / "x.yaml")
    with pytest.raises(UserError, match="did you mean translate"):
        init_recipe("translation", tmp_path)


def test_schema_describes_every_setting() -> None:
    schema = json.loads(schema_text())
    bare = [
        f"{group}.{name}"
        for group, body in schema["$defs"].items()
        for name, field in body["properties"].items()
        if name != "kind" and "description" not in field and "$ref" not in field
    ]
    assert bare == []
