from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from heedful.config import render
from heedful.errors import UserError
from heedful.models import kinds_of
from heedful.runs.init import init_recipe
from heedful.runs.recipe import (
    RECIPES,
    check_recipe,
    describe_size,
    find_recipe,
    load_recipe,
    recipe_in,
    schema_text,
    shipped,
    summary,
)
from heedful.tasks import TASKS, recipe_class
from heedful.tasks.recipe_parts import with_article

TEMPLATES = sorted((RECIPES / "templates").glob("*.yaml"))


@pytest.mark.parametrize("path", [*shipped().values(), *TEMPLATES], ids=lambda path: path.stem)
def test_shipped_recipes_are_valid_and_render_to_themselves(path: Path, tmp_path: Path) -> None:
    recipe = load_recipe(str(path))
    written = tmp_path / "recipe.yaml"
    written.write_text(render(recipe), encoding="utf-8")
    assert recipe_in(written) == recipe
    assert len(summary(path)) > 20


@pytest.mark.parametrize("path", [*shipped().values(), *TEMPLATES], ids=lambda path: path.stem)
def test_shipped_numbers_are_numbers_in_every_yaml_reader(path: Path) -> None:
    # YAML in an editor knows neither 20_000 nor our other extensions, and would mark it as an error.
    assert not [line for line in path.read_text().splitlines() if "_0" in line.split("#")[0]]


def test_demo_recipe_has_its_measured_settings() -> None:
    recipe = load_recipe("numbers")
    model = recipe.model
    assert (model.norm, model.width, model.heads, model.hidden, model.dropout) == ("pre", 96, 4, 384, 0.0)
    assert (model.encoder_layers, model.decoder_layers) == (2, 2)
    assert recipe.data.train == 20_000
    assert recipe.train.optimizer.lr == 3e-3


def test_file_is_preferred_to_a_shipped_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "numbers").mkdir()  # a run folder of that name does not hide the recipe
    assert find_recipe("numbers") == shipped()["numbers"]
    (tmp_path / "numbers").rmdir()
    (tmp_path / "numbers").write_text("task: {}")
    assert find_recipe("numbers") == Path("numbers")


def test_mistyped_name_gets_a_suggestion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text("")
    with pytest.raises(UserError, match="did you mean numbers"):
        find_recipe("nubmers")
    with pytest.raises(UserError, match=r"did you mean mine\.yaml"):
        find_recipe("mone.yaml")
    with pytest.raises(UserError, match="heedful init"):
        find_recipe("x" * 5000)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["train.average=3"], "write train.keep: 3"),
        (["train.keep=1"], "greater than or equal to 2"),
        (["train.budget={}"], "at least one of steps, tokens, epochs, minutes"),
        (["model.vocab=100"], "leave model.vocab out"),
        (["decode.max_length=999"], "write model.context: 999"),
        (["train.sede=1"], "did you mean train.seed"),
        (["train.schedule.kind=cosin"], "did you mean cosine"),
        (["train.compile=yes"], "true or false"),
        (["train.clip=0"], "greater than 0"),
        (["task.kind=translate"], "did you mean translation"),
    ],
)
def test_invalid_combinations_are_rejected_with_advice(overrides: list[str], message: str) -> None:
    with pytest.raises(UserError) as caught:
        load_recipe("numbers", overrides)
    assert message in str(caught.value)


def test_defaults_are_checked_against_given_values() -> None:
    with pytest.raises(UserError, match=r"model\.heads: a width of 90"):
        load_recipe("numbers", ["model={width: 90}"])  # 8 heads by default


def test_check_names_every_missing_file(tmp_path: Path) -> None:
    recipe = load_recipe("multi30k", [f"data.root={json.dumps(str(tmp_path))}"])
    with pytest.raises(UserError) as caught:
        check_recipe(recipe)
    assert len(caught.value.problems) == 6
    with pytest.raises(UserError) as caught:
        check_recipe(recipe, ["test"])
    assert len(caught.value.problems) == 2
    check_recipe(load_recipe("numbers"))


def test_init_writes_recipe_that_checks_and_its_schema(tmp_path: Path) -> None:
    recipe, schema, _ = init_recipe("translate", tmp_path)
    assert recipe == tmp_path / "translate.yaml"
    assert recipe.read_text().splitlines()[0] == "# yaml-language-server: $schema=translate.schema.json"
    assert schema.read_text() == schema_text()
    assert load_recipe(str(recipe)).data.kind == "parallel"


@pytest.mark.parametrize("name", ["mine.yaml", "mine.schema.json"])
def test_init_does_not_overwrite_without_force(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("precious")
    with pytest.raises(UserError, match="this file exists"):
        init_recipe("translate", tmp_path / "mine.yaml")
    assert [file.name for file in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "precious"
    init_recipe("translate", tmp_path / "mine.yaml", force=True)
    assert (tmp_path / name).read_text() != "precious"


def test_init_rejects_missing_folders_and_unknown_templates(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such folder"):
        init_recipe("translate", tmp_path / "none" / "x.yaml")
    with pytest.raises(UserError, match="did you mean translate"):
        init_recipe("translat", tmp_path)


def test_schema_describes_every_setting() -> None:
    schema = json.loads(schema_text())
    bare = [
        f"{group}.{name}"
        for group, body in schema["$defs"].items()
        for name, field in body["properties"].items()
        if name != "kind" and "description" not in field and "$ref" not in field
    ]
    assert bare == []


# ------------------------------------------------------------------ several tasks and models
SEQ2SEQ = "model={kind: seq2seq}"


@pytest.mark.parametrize(
    ("name", "overrides", "where", "message"),
    [
        ("numbers", [SEQ2SEQ, "train.batching=packed"], "override train.batching", "write batching: padded"),
        ("language-model", ["train.batching=packed"], "override train.batching", "this rnn_lm cannot read"),
        (
            "numbers",
            ["model={kind: seq2seq, attention: {choice: hard}}", "train.compile=true"],
            "override train.compile",
            "write compile: false",
        ),
        ("numbers", ["model=3"], "override model", "a group of settings"),
        ("numbers", ["model.kind=seq2sec"], "override model.kind", "did you mean seq2seq"),
        ("numbers", ["task.kind=language_modle"], "override task.kind", "did you mean language_model"),
        ("numbers", ["task.kind=3"], "override task.kind", "one of answering, captioning, classification"),
        ("numbers", ["task=3"], "override task", "a group of settings"),
        ("language-model", ["model.kind=transformer"], "override model.kind", "one of elmo, gpt, rnn_lm"),
        ("language-model", ["data.kind=parallel"], "override data.kind", "one of documents, library_prose"),
        ("language-model", ["tokenizer=null"], None, "text needs a tokenizer"),
        ("language-model", ["data={kind: tokens, folder: x}"], None, "have their own tokenizer"),
        ("language-model", ["task.stride=3"], "override task.stride", "only a gpt"),
        ("gpt-prose", ["task.stride=129"], "override task.stride", "128 tokens"),
        ("gpt-prose", ["model={kind: elmo}"], None, "an elmo reads lines"),
        ("gpt-prose", ["tokenizer=null", "start.folder=nowhere"], None, "there is no such folder"),
        ("gpt-prose", ["data={kind: text, train: []}"], None, "an empty list"),
        ("language-model", ["model.vocab=20"], None, "leave model.vocab out"),
        ("language-model", ["decode.top_p=2"], "override decode.top_p", "less than or equal to 1"),
    ],
)
def test_mistakes_of_any_task_are_reported_at_their_field(
    name: str, overrides: list[str], where: str | None, message: str
) -> None:
    with pytest.raises(UserError) as caught:
        load_recipe(name, overrides)
    assert message in str(caught.value)
    assert where is None or caught.value.where == where


def test_mistake_in_file_is_reported_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    text = render(load_recipe("numbers", [SEQ2SEQ]))
    path.write_text(text.replace("batching: auto", "batching: packed"))
    with pytest.raises(UserError, match="cannot read packed batches") as caught:
        load_recipe(str(path))
    line = next(number for number, line in enumerate(path.read_text().splitlines(), 1) if "batching" in line)
    assert str(caught.value.where).startswith(f"{path}:{line}:")
    path.write_text(text.replace("kind: translation", "kind: translatoin"))
    with pytest.raises(UserError, match="did you mean translation") as caught:
        load_recipe(str(path))
    assert str(caught.value.where).startswith(f"{path}:2:")


def test_omitted_kinds_have_defaults(tmp_path: Path) -> None:
    path = tmp_path / "old.yaml"
    path.write_text(
        "data: {kind: number_words}\ntokenizer: {kind: bpe}\nmodel: {width: 64}\ntrain: {budget: {steps: 1}}\n"
    )
    recipe = load_recipe(str(path))
    assert (recipe.task.kind, recipe.model.kind, recipe.model.width) == ("translation", "transformer", 64)
    text = "data: {kind: text, train: x}\ntokenizer: {kind: words}\nmodel: {width: 64}\ntrain: {budget: {steps: 1}}\n"
    path.write_text("task: {kind: language_model}\n" + text)
    recipe = load_recipe(str(path))
    assert (recipe.model.kind, recipe.model.width, recipe.decode.length) == ("rnn_lm", 64, 200)
    assert recipe.size == recipe.model.parameters(recipe.tokenizer.vocab)


def test_every_problem_is_reported_at_once_whatever_task() -> None:
    with pytest.raises(UserError) as caught:
        load_recipe("language-model", ["train.sede=1", "nonsense", "tokenizer.kind=letters"])
    assert len(caught.value.problems) == 3


def test_schema_requires_each_tasks_settings() -> None:
    whole = schema = json.loads(schema_text())
    found = {}
    while "if" in schema:
        asked = schema["if"]["properties"]
        kinds = [asked[group]["properties"]["kind"] for group in asked]
        name = "/".join(kind.get("const", ", ".join(kind.get("enum", ()))) for kind in kinds)
        found[name] = schema["then"]["$ref"]
        schema = {**schema["else"]}
    found["translation"] = schema["$ref"]
    words = found.pop("classification/" + ", ".join(kinds_of("word_classifier")))
    assert words == found["text_classification"]
    assert found == {kind: f"#/$defs/{cls.__name__}" for kind in TASKS for cls in (recipe_class(kind),)}
    for ref in found.values():
        assert ref.removeprefix("#/$defs/") in whole["$defs"]


def test_init_template_for_language_models(tmp_path: Path) -> None:
    recipe, _, _ = init_recipe("language-model", tmp_path)
    assert load_recipe(str(recipe)).task.kind == "language_model"


def test_init_template_for_trees(tmp_path: Path) -> None:
    recipe, _, _ = init_recipe("trees", tmp_path)
    assert load_recipe(str(recipe)).task.kind == "tree_classification"


def test_settings_known_only_from_data_are_not_guessed() -> None:
    recipe = load_recipe("sentiment-trees", ["tokenizer.known=10000000"])
    assert recipe.size == recipe.model.parameters(0) < 1_000_000
    assert describe_size(recipe) == "about 0.3 million parameters, and 100 for each word"
    assert describe_size(load_recipe("sentiment-trees", ["model.vocab=10000"])) == "about 1.3 million parameters"
    with pytest.raises(UserError, match=r"invalid value for tokenizer\.known"):
        load_recipe("sentiment-trees", ["tokenizer.known=10000001"])


def test_error_messages_use_the_right_article() -> None:
    kinds = ("rnn_lm", "elmo", "seq2seq", "transformer", "tree_lstm")
    assert [with_article(kind).split()[0] for kind in kinds] == ["an", "an", "a", "a", "a"]


def test_errors_for_recipe_parts_list_the_choices() -> None:
    wrong = {
        "model.heads=4": None,  # not "did you mean model.heads?"
        "model.attention.span=monotonic": (
            "write {kind: monotonic}, or the override model.attention.span.kind=monotonic"
        ),
        "model=seq2seq": "write {kind: seq2seq}, or the override model.kind=seq2seq",
        "model.encoder.kind=transformer": (
            "write the whole group: 'model.encoder={kind: transformer, layers: 1, hidden: 128}'"
        ),
    }
    for text, todo in wrong.items():
        with pytest.raises(UserError) as caught:
            load_recipe("numbers-rnn", [text])
        assert (caught.value.todo, caught.value.problems) == (todo, ())
    load_recipe("numbers-rnn", ["model.encoder={kind: transformer, layers: 1, hidden: 128}"])


# ------------------------------------------------------------------ autoencoders
@pytest.mark.parametrize(
    ("overrides", "where", "message"),
    [
        (["model.decoder.1={kind: conv, filters: 3}"], "override model.decoder.1", "put `kind: reshape` before it"),
        (
            ["model.decoder.1.width=63"],
            "digits.yaml:10:",
            "model.decoder: the decoder ends with a vector of 63, but the input is a vector",
        ),
        (
            ["train.batch_examples=null"],
            "override train.batch_examples",
            "the number of images per batch is needed; write 128, for example",
        ),
        (
            ["model.input=[2, 2]"],
            "override model.input",
            "[784], or an image of channels, rows and columns, [1, 28, 28]",
        ),
        (
            ["model.input=[1, 8, 8]"],
            "digits.yaml:8:",
            "model.encoder.0: a dense layer takes a vector",
        ),
        (["model.encoder.0.kind=dens"], "override model.encoder.0.kind", "did you mean dense"),
        (["model.encoder.0.width=0"], "override model.encoder.0.width", "greater than or equal to 1"),
        (["task.clip=[1.0, 0.0]"], "override task.clip", "write clip: [0.0, 1.0]"),
        (["task.clip=[0.5, 0.5]"], "override task.clip", "write clip: [0.0, 1.0]"),
        (["task.noise=-1"], "override task.noise", "greater than or equal to 0"),
        (["train.optimizer.kind=rmsprob"], "override train.optimizer.kind", "did you mean rmsprop"),
        (["train.optimizer.rho=1.0"], "override train.optimizer.rho", "less than 1"),
        (["train.optimizer.eps_place=before_root"], "override train.optimizer.eps_place", "did you mean"),
        (["train.optimizer.betas=[0.9, 0.9]"], "override train.optimizer.betas", "betas"),
        (["model.kind=bert"], "override model.kind", "autoencoder"),
        (["train.batching=packed"], "override train.batching", "write batching: padded"),
    ],
)
def test_mistakes_in_autoencoder_are_reported_at_their_field(overrides: list[str], where: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        load_recipe("digits", overrides)
    assert message in str(caught.value)
    assert where in str(caught.value.where)


def test_even_kernel_with_same_padding_is_rejected_with_both_fixes() -> None:
    with pytest.raises(UserError, match=r"model\.encoder\.2: .* write an odd size, or padding: valid") as caught:
        load_recipe("digits-denoising", ["model.encoder.2.size=4"])
    assert "digits-denoising.yaml:10:" in str(caught.value.where)


def test_optimizer_without_kind_is_adamw() -> None:
    recipe = load_recipe("numbers", ["train.optimizer={lr: 0.01}"])
    assert (recipe.train.optimizer.kind, recipe.train.optimizer.lr) == ("adamw", 0.01)
    assert load_recipe("digits", ["train.optimizer={kind: adamw}"]).train.optimizer.kind == "adamw"
    assert load_recipe("digits").train.optimizer.eps_place == "after_root"


@pytest.mark.parametrize(
    ("name", "size"), [("mnist-dense", 161_804), ("mnist-conv", 1_185), ("mnist-denoising", 28_353)]
)
def test_parameter_counts_of_the_lectures_autoencoders(name: str, size: int) -> None:
    recipe = load_recipe(name)
    assert recipe.size == size
    assert f"{size:,} parameters" in summary(shipped()[name])


TRAIN = {"budget": {"steps": 3}, "batch_tokens": 99}
TABLE = {"kind": "csv", "train": "a.csv", "text": "text"}
SEVERAL: dict[str, tuple[dict[str, Any], list[str]]] = {
    **{
        kind: (
            {"task": {"kind": kind}, "data": data, "train": TRAIN},
            [f"data.{missing} is missing", "tokenizer: without `start`", "model.encoder: without `start`"],
        )
        for kind, data, missing in (
            ("classification", TABLE | {"label": "label"}, "valid"),
            ("regression", TABLE | {"label": "label"}, "valid"),
            ("tagging", {"kind": "conll", "train": "a.txt"}, "valid"),
            ("answering", {"kind": "squad", "train": "a.json"}, "valid"),
        )
    },
    "translation": (
        {
            "data": {"kind": "tsv", "train": "a.tsv"}, "tokenizer": {"kind": "wordpiece", "vocab": 90}, "train": TRAIN,
            "model": {"vocab": 20, "context": 8}, "decode": {"max_length": 9},
        },
        ["data.valid is missing", "the settings: model.vocab is 20", "the settings: decode.max_length is 9"],
    ),
    "language_model": (
        {
            "task": {"kind": "language_model", "stride": 9}, "data": {"kind": "text", "train": "a.txt"},
            "model": {"kind": "rnn_lm"}, "train": TRAIN,
        },
        ["tokenizer: text needs a tokenizer", "task.stride: only a gpt"],
    ),
    "text_classification": (
        {
            "task": {"kind": "text_classification"}, "data": TABLE | {"label": "label"}, "train": TRAIN,
            "model": {"freeze": True},
        },
        ["data.valid is missing", "model.freeze: randomly initialized vectors"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SEVERAL)
def test_all_problems_are_reported_at_once(name: str, tmp_path: Path) -> None:
    settings, said = SEVERAL[name]
    (tmp_path / "mine.yaml").write_text(json.dumps(settings))
    with pytest.raises(UserError) as error:
        load_recipe(str(tmp_path / "mine.yaml"))
    messages = [problem.message for problem in error.value.problems]
    assert all(any(one.startswith(start) for one in messages) for start in said), messages
    assert len(messages) == len(set(messages))
