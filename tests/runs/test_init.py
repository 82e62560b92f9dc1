"""`heedful init` for every task, from scratch and from a trained folder."""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import heedful
from data.test_table_tasks import ROWS, write_rows
from heedful.errors import UserError
from heedful.runs.init import OF_TASK, init_recipe, table_of
from heedful.runs.recipe import check_recipe, check_rows, recipe_in
from heedful.runs.train import Finished, Step, train
from heedful.tasks import TASKS, task_class, task_of

GOLDEN = Path(__file__).parents[1] / "golden" / "runs"
FINETUNED = ("classification", "multi_label", "regression", "multiple_choice", "tagging", "answering")
LONG = ("text", "source", "target", "passage", "story", "paragraph", "caption")  # columns that vary from row to row
RUN_OF = {path.name.partition("-")[0]: path for path in sorted(GOLDEN.iterdir())}


def test_every_task_has_a_template_and_a_run() -> None:
    assert OF_TASK.keys() == TASKS.keys() == RUN_OF.keys()


@pytest.mark.parametrize("task", TASKS)
def test_recipe_from_scratch_is_of_the_task(task: str, tmp_path: Path) -> None:
    file, schema, _ = init_recipe(task, tmp_path)
    recipe = recipe_in(file)
    assert recipe.task.kind in (task, "classification") and schema.is_file()
    assert recipe.start is None and recipe.size > 0
    assert task_class(recipe.task.kind, recipe.model.kind) in (task_class(task), task_class(task, recipe.model.kind))


@pytest.mark.parametrize("task", [task for task in TASKS if table_of(task)])
def test_recipe_for_a_table_reads_its_columns(task: str, tmp_path: Path) -> None:
    """Columns with the usual names, among others, in a recipe that parses."""
    names = table_of(task).columns.names
    data = tmp_path / "rows.csv"
    row = {"id": "1", **dict.fromkeys(names.values(), "0.5"), "remarks": "a longer text, which is not read"}
    data.write_text(f"{','.join(row)}\n" + ",".join(f'"{value}"' for value in row.values()) + "\n")
    file, _, found = init_recipe(task, tmp_path, data=data)
    recipe = recipe_in(file)
    assert found.keys() >= names.keys() and recipe.data.kind == "table" and recipe.data.columns.names == names
    assert recipe.data.train == str(data) and recipe.data.test == 0.1


def rows_of(task: str, folder: Path) -> Path:
    """A table of 60 rows that fits a task, with images of 20 x 30 pixels beside it."""
    found = [
        {name: f"{value} {n}." if name in LONG and isinstance(value, str) else value for name, value in row.items()}
        for n, row in enumerate(row for _ in range(3) for row in ROWS[task][:20])
    ]
    for n, row in enumerate(found):
        if "tokens" in row:
            row["tokens"] = [*row["tokens"][:-1], f"word{n}"]
        elif "tree" in row:
            row["tree"] = f"(3 (2 word{n}) (1 bad))"
        elif "image" in row:
            Image.effect_noise((30, 20), 50).save(folder / row["image"])
    return write_rows(folder, found, "csv")


@pytest.mark.parametrize("task", ["captioning", "image_classification", "paragraphs", "reconstruction"])
def test_images_of_a_table_have_the_size_that_the_model_reads(task: str, tmp_path: Path) -> None:
    recipe = recipe_in(init_recipe(task, tmp_path, data=rows_of(task, tmp_path))[0])
    model = recipe.model.model_dump()
    model = model.get("encoder", model) if task in ("captioning", "paragraphs") else model
    expected = tuple(model["input"]) if task == "reconstruction" else (model["channels"], *model["size"])
    assert (recipe.data.channels, *recipe.data.size) == expected


def test_table_with_any_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A column is predicted from all others but the numbers of the rows; also from a trained run."""
    monkeypatch.chdir(tmp_path)
    rows = [f"{n},{n % 9},{'ab'[n % 2]},word {n % 5},{n % 9 + 0.5}" for n in range(1, 61)]
    Path("rows.csv").write_text("\n".join(["no,weight kg,zone,note,Price", *rows]) + "\n")
    for name, given, expected in (("table", [], "Price"), ("tabular", ["task.predict=weight kg"], "weight kg")):
        file, _, found = init_recipe(name, Path(), data=Path("rows.csv"), overrides=given)
        recipe = recipe_in(file, ["train.budget={steps: 2}"])
        assert found == {"predict": expected} and recipe.task.predict == expected
        assert recipe.task.leave_out == ("no",) and recipe.data.kind == "table" and not check_rows(recipe).findings
        assert isinstance(list(train(recipe, name))[-1], Finished)
    given = ["task.predict=Price", "task.leave_out=[no, note]", "data.valid=0.2"]
    recipe = recipe_in(init_recipe("table", Path("b.yaml"), data=Path("rows.csv"), overrides=given)[0])
    assert recipe.task.leave_out == ("no", "note") and recipe.data.valid == 0.2
    recipe = recipe_in(init_recipe("table", Path("c.yaml"), start=Path("tabular"), data=Path("rows.csv"))[0])
    assert recipe.task.predict == "Price" and recipe.start.folder == "tabular"


@pytest.mark.slow
@pytest.mark.parametrize("task", [task for task in TASKS if table_of(task)])
def test_recipe_for_a_table_is_without_mistakes_and_trains(
    task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heedful.runs.finish.curve", lambda run, unit: None)
    monkeypatch.setattr("heedful.runs.report.write_report", lambda *given: None)
    monkeypatch.chdir(tmp_path)
    file, _, _ = init_recipe(task, Path(), data=rows_of(task, Path()))
    check_recipe(recipe_in(file))
    assert not [one.line for one in check_rows(recipe_in(file)).findings if one.level == "error"]
    events = list(train(recipe_in(file, ["train.budget={steps: 2}"]), tmp_path / "run"))
    assert [event.step for event in events if isinstance(event, Step)] == [1, 2]
    assert isinstance(events[-1], Finished) and not events[-1].stopped


@pytest.mark.parametrize(
    ("task", "header", "given", "expected"),
    [
        ("classify", "id,Review,Verdict,when", [], {"text": "Review", "label": "Verdict"}),
        ("classify", "number,opinion,mood,day", [], {"text": "opinion", "label": "mood"}),
        ("classify", "number,opinion,mood,day", ["data.columns.label=day"], {"text": "opinion", "label": "day"}),
        ("classify", "date,opinion,mood,code", [], {"text": "opinion", "label": "mood"}),
        ("regression", "name,opinion,mood,price", [], {"text": "opinion", "label": "price"}),
        (
            "classify",
            "number,opinion,mood,day",
            ["data.columns.pair=day"],
            {"text": "opinion", "label": "mood", "pair": "day"},
        ),
    ],
)
def test_columns_are_guessed_from_names_and_first_rows(
    task: str, header: str, given: list[str], expected: dict[str, str], tmp_path: Path
) -> None:
    rows = [
        f'{n if task == "classify" else "no"},"text {n} of this, with words",{"ab"[n % 2]},{n + 0.5}' for n in range(9)
    ]
    (tmp_path / "rows.csv").write_text("\n".join([header, *rows]) + "\n")
    assert init_recipe(task, tmp_path, data=tmp_path / "rows.csv", overrides=given)[2] == expected


@pytest.mark.parametrize("task", TASKS)
def test_recipe_from_a_run_starts_with_its_weights(task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(RUN_OF[task], tmp_path / "run")
    monkeypatch.chdir(tmp_path / "run")
    kind = heedful.load_recipe("recipe.yaml").task.kind
    file, _, _ = init_recipe(kind, tmp_path / "next.yaml", start=Path("../run"))
    recipe = recipe_in(file)
    assert recipe.start.folder == "../run" and recipe.task.kind == kind
    assert recipe.model.kind == heedful.load_recipe("recipe.yaml").model.kind


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(path.name for path in GOLDEN.iterdir()))
def test_recipe_from_a_run_trains(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heedful.runs.finish.curve", lambda run, unit: None)
    monkeypatch.setattr("heedful.runs.report.write_report", lambda *given: None)
    shutil.copytree(GOLDEN / name, tmp_path / "run")
    monkeypatch.chdir(tmp_path / "run")
    kind = heedful.load_recipe("recipe.yaml").task.kind
    file, _, _ = init_recipe(kind, tmp_path / "next.yaml", start=Path("."))
    recipe = recipe_in(file, ["train.budget={steps: 1}", "train.keep=2", "train.average=1", "train.use=last"])
    steps = [event for event in train(recipe, tmp_path / "next") if isinstance(event, Step)]
    assert [step.step for step in steps] == [1]


def test_an_encoder_of_another_task_is_fine_tuned(tmp_path: Path) -> None:
    folder = GOLDEN / "pretraining-bert"
    for task in FINETUNED:
        assert recipe_in(init_recipe(task, tmp_path / f"{task}.yaml", start=folder)[0]).start.folder == str(folder)


def test_mistakes(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no template named clasify") as error:
        init_recipe("clasify", tmp_path)
    assert error.value.todo == "did you mean classify?"
    with pytest.raises(UserError, match="no such folder"):
        init_recipe("tag", tmp_path, start=tmp_path / "nosuch")
    with pytest.raises(UserError, match="starts from a run of that task") as error:
        init_recipe("translation", tmp_path, start=GOLDEN / "pretraining-bert")
    assert "a run of pretraining" in str(error.value.found)
    data = tmp_path / "rows.csv"
    data.write_text("a,b,c\nx,y,z\nx,y,z\nxx,yy,zz\n")
    for name, file, columns, message, todo in (
        ("classify", data, [], "not clear which column is the label", "data.columns.label=NAME"),
        ("classify", data, ["data.columns.label=verdict"], "there is no column 'verdict'", "set data.columns.label"),
        ("classify", data, ["data.columns.lable=b"], "columns.lable is an unknown key", None),
        ("classify", data, ["train.seed=1"], "only settings of the data", "edit the recipe"),
        ("classify", None, ["data.columns.label=b"], "settings of your data", "--data PATH"),
        ("table", data, [], "not clear which column is to be predicted", "task.predict=NAME"),
        ("table", data, ["task.predict=d"], "there is no column 'd'", "task.predict"),
        ("table", data, ["train.seed=1"], "only settings of the data", "edit the recipe"),
        ("control", data, [], "does not read its examples from columns", "without --data"),
        ("classify", tmp_path / "no.csv", [], "no such file", None),
        ("classify", tmp_path, [], "folder", None),
    ):
        with pytest.raises(UserError, match=message) as error:
            init_recipe(name, tmp_path, data=file, overrides=columns)
        assert todo is None or todo in str(error.value.todo)
    init_recipe("trees", tmp_path)
    with pytest.raises(UserError, match="this file exists"):
        init_recipe("trees", tmp_path)


def pictures(folder: Path, count: int) -> Path:
    """A folder of images of 20 x 30 pixels."""
    folder.mkdir(parents=True)
    for number in range(count):
        Image.effect_noise((30, 20), 50 + number).save(folder / f"{number}.png")
    return folder


@pytest.mark.parametrize("task", ["image_classification", "reconstruction"])
def test_recipe_for_a_folder_of_images_is_without_mistakes_and_trains(
    task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_loss_curve: None
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, count in (("cat", 12), ("dog", 10)):
        pictures(Path("photos", name), count)
    for data in (Path("photos"), Path(shutil.make_archive("photos", "zip", "photos")).relative_to(tmp_path)):
        file, _, found = init_recipe(task, Path(f"{data.suffix}recipe.yaml"), data=data, overrides=["data.valid=0.2"])
        recipe = recipe_in(file, ["train.budget={steps: 1}"])
        check_recipe(recipe)
        assert found == {} and (recipe.data.train, recipe.data.valid, recipe.data.test) == (str(data), 0.2, 0.1)
        assert check_rows(recipe).lines[0].startswith(f"train: 16 images of {data}: 9 'cat', 7 'dog'"), task
    assert isinstance(list(train(recipe, "run"))[-1], Finished)


def test_folders_of_splits_are_found_by_their_names(tmp_path: Path) -> None:
    for split in ("train", "Val", "val"):
        pictures(tmp_path / "photos" / split / "cat", 2)
    recipe = recipe_in(init_recipe("image_classification", tmp_path, data=tmp_path / "photos")[0])
    assert (recipe.data.root, recipe.data.train, recipe.data.valid) == (str(tmp_path / "photos"), "train", "val")
    assert recipe.data.test == 0.1  # held out of the training images


def lines_of(read: Any) -> Iterable[str]:
    """The lines or sentences of some text that was read."""
    for name in ("texts", "lines", "sentences"):
        if hasattr(read, name):
            found: Iterable[str] = getattr(read, name)
            return found
    raise AssertionError(type(read))


@pytest.mark.parametrize("task", ["gpt", "language-model", "pretrain", "permutation_lm", "text_autoencoding"])
@pytest.mark.parametrize("folder", [False, True])
def test_recipe_for_running_text_reads_it(task: str, folder: bool, tmp_path: Path) -> None:
    texts = [f"The cat number {number} sees a dog.\nIt runs.\n" for number in range(40)]
    data = tmp_path / "corpus"
    if folder:
        data.mkdir()
        for number, text in enumerate(texts):
            (data / f"{number}.txt").write_text(text)
    else:
        data = tmp_path / "corpus.txt.gz"
        data.write_bytes(gzip.compress("\n".join(texts).encode()))
    recipe = recipe_in(init_recipe(task, tmp_path, data=data)[0])
    check_recipe(recipe)
    task_itself: Any = task_of(recipe)
    found = {split: task_itself.read(split) for split in ("train", "valid")}
    texts = {split: list(lines_of(one)) for split, one in found.items()}
    assert len(texts["train"]) > len(texts["valid"]) > 0
    assert "The cat number 0 sees a dog." in texts["train"]


def test_data_that_a_task_cannot_read_are_refused(tmp_path: Path) -> None:
    folder = pictures(tmp_path / "photos" / "cat", 2)
    (tmp_path / "corpus.txt").write_text("A cat.")
    for task, data, message in (
        ("image_classification", tmp_path / "fotos", "no such file or folder"),
        ("classify", folder, "this is a folder"),
        ("gpt", tmp_path / "none.txt", "no such file or folder"),
        ("image_classification", tmp_path / "none.zip", "there is no such"),
        ("image_classification", tmp_path / "corpus.txt", "this is no table"),
    ):
        with pytest.raises(UserError, match=message):
            init_recipe(task, tmp_path / f"{task}.yaml", data=data)
        assert not (tmp_path / f"{task}.yaml").exists()
    with pytest.raises(UserError, match="only settings of the data"):
        init_recipe("image_classification", tmp_path / "r.yaml", data=folder, overrides=["train.seed=1"])
