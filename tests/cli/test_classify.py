"""The command `classify`, and other commands on classifiers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml

from heedful.runs.recipe import load_recipe
from heedful.runs.train import train
from heedful.tasks import task_of
from heedful.tasks.base import Evaluated
from heedful.training.metrics import f1, matthews

TINY = [
    "data.train=400", "data.valid=10", "data.test=10", "data.languages=[de, en]", "tokenizer.vocab=90",
    "model.encoder={width: 16, heads: 2, layers: 1, hidden: 24, context: 16}", "train.device=cpu",
    "train.budget.epochs=3", "train.optimizer.lr=1e-2", "train.schedule.warmup=5",
]  # fmt: skip
RIGHT = np.array([0] * 9 + [1])
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("languages") / "run"
    list(train(load_recipe("number-languages", TINY), folder))
    return folder


def test_classify_reads_arguments_and_lines_alike(run: Path, heedful: Run) -> None:
    texts = ["vierhundertzwölf", "", "ninety-nine thousand four hundred", "  ", "drei"]
    code, out, _ = heedful("classify", run, "-", stdin="\n".join(texts).encode())
    assert code == 0
    lines = out.split("\n")[:-1]
    assert [line.split()[:1] for line in lines] == [["de"], [], ["en"], [], ["de"]]
    assert heedful("classify", run, *texts)[1] == out
    assert lines[0].endswith("%  vierhundertzwölf")


def test_file_name_instead_of_a_text_is_rejected(
    run: Path, heedful: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("valid.csv").write_text("drei\n")
    code, out, err = heedful("classify", run, "valid.csv")
    assert (code, out) == (2, "")
    assert "valid.csv: this is a file name, not a text" in err and "- < valid.csv" in err
    assert heedful("classify", run, "-", stdin=Path("valid.csv").read_bytes())[0] == 0
    for text in ("other.csv", "x" * 5000 + ".csv", "drei. vier", "/root/no.csv", "a\0.csv"):
        assert heedful("classify", run, text)[0] == 0


def test_model_that_predicts_only_one_class_is_noted() -> None:
    for recipe in (load_recipe("number-languages", TINY), load_recipe("number-languages-conv")):
        said = [
            task_of(recipe).remarks(Evaluated(1, "test", 0.3, (f1(found, RIGHT, "ab"), matthews(found, RIGHT)), (), 0))
            for found in (np.zeros(10, np.int64), RIGHT)
        ]
        assert [len(remarks) for remarks in said] == [1, 0]
        assert "predict the most frequent class for every text" in said[0][0]


def test_json_has_the_probability_of_every_label(run: Path, heedful: Run) -> None:
    code, out, err = heedful("classify", run, "four", "neun " * 40, "--json")
    short, long = map(json.loads, out.splitlines())
    assert (code, short["text"], short["label"]) == (0, "four", "en")
    assert set(short["probabilities"]) == {"de", "en"}
    assert short["probability"] == short["probabilities"]["en"] > 0.5
    assert short["cut"] == 0 < long["cut"]
    assert err == "note: texts truncated to 16 tokens: 1\n"


def test_pairs_are_two_arguments_or_a_line_with_a_tab(run: Path, heedful: Run) -> None:
    given = heedful("classify", run, "--pair", "four", "five", "six", "one", "--json")[1]
    assert [(output["text"], output["pair"]) for output in map(json.loads, given.splitlines())] == [
        ("four", "five"), ("six", "one"),
    ]  # fmt: skip
    assert heedful("classify", run, "-", "--pair", "--json", stdin=b"four\tfive\nsix\tone\n")[1] == given
    code, _, err = heedful("classify", run, "--pair", "four")
    assert code == 2 and "a pair has two texts" in err
    code, _, err = heedful("classify", run, "-", "--pair", stdin=b"four\tfive\nsix\n")
    assert code == 2 and "stdin:2: this is not a pair of texts" in err


def test_usage_errors_say_what_to_do(run: Path, heedful: Run, tmp_path: Path) -> None:
    code, _, err = heedful("classify", run)
    assert code == 2 and "there is no text to read" in err
    code, _, err = heedful("translate", run, "one")
    assert code == 2 and "this model classifies texts" in err and "`heedful classify`" in err
    code, _, err = heedful("classify", tmp_path / "none", "one")
    assert code == 2 and "there is no such folder" in err and "train it" not in err
    code, _, err = heedful("classify", "runs/number-languages-conv", "one")
    assert code == 2 and "train it: heedful train number-languages-conv" in err


def test_eval_scores_a_classifier(run: Path, heedful: Run) -> None:
    code, out, _ = heedful("eval", run)
    assert code == 0 and out.startswith("test: loss ") and "matthews" in out
    stored = json.loads((run / "results.json").read_text())["scores"]
    assert json.loads(heedful("eval", run, "--json")[1])["scores"] == stored


def test_eval_scores_other_data(run: Path, heedful: Run) -> None:
    scored = json.loads(heedful("eval", run, "data.test=3", "--json")[1])
    assert scored["scores"]["accuracy"]["signature"] == "texts:3"
    code, _, err = heedful("eval", run, "train.seed=3")
    assert code == 2 and "only the data can be changed" in err


def test_predict_reads_every_file_format(run: Path, heedful: Run, tmp_path: Path) -> None:
    files = {
        "in.csv": "id,text\n1,four\n2,\n3,neun\n", "in.tsv": "text\tid\nfour\t1\n\t2\nneun\t3\n",
        "in.txt": "four\n\nneun\n", "in.jsonl": '{"text": "four"}\n\n{"text": " "}\n{"text": "neun"}\n',
    }  # fmt: skip
    labels = [json.loads(line)["label"] for line in heedful("classify", run, "four", "neun", "--json")[1].splitlines()]
    for name, text in files.items():
        (tmp_path / name).write_text(text)
        code, out, err = heedful("predict", run, tmp_path / name, "-o", tmp_path / f"{name}.out.jsonl", "--batch", 2)
        assert (code, out) == (0, "") and "wrote 2 predictions" in err and "without a prediction: 1" in err
        rows = [json.loads(line) for line in (tmp_path / f"{name}.out.jsonl").read_text().splitlines()]
        found = [row["prediction"] for row in rows]
        assert found[1] is None and [found[0], found[2]] == labels, name
        assert [row["text"].strip() for row in rows] == ["four", "", "neun"]
    assert rows[0].keys() == {"text", "prediction", "probability", "cut"}


def test_predict_reads_the_column_of_the_training_data_and_writes_to_stdout(
    run: Path, heedful: Run, tmp_path: Path
) -> None:
    other = shutil.copytree(run, tmp_path / "other")
    recipe = yaml.safe_load((other / "recipe.yaml").read_text())
    recipe["data"] = {"kind": "csv", "train": "a", "valid": "a", "text": "the text", "label": "y"}
    (other / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    (tmp_path / "in.csv").write_text("the text,text\nfour,neun\n")
    code, out, err = heedful("predict", other, tmp_path / "in.csv")
    assert code == 0 and "wrote 1 predictions to stdout" in err
    assert json.loads(out)["prediction"] == "en"  # of four, not of neun
    assert json.loads(heedful("predict", run, tmp_path / "in.csv")[1])["prediction"] == "de"


def test_predict_reads_pairs_and_reports_missing_fields(run: Path, heedful: Run, tmp_path: Path) -> None:
    source = tmp_path / "in.csv"
    source.write_text("a,b\nfour,five\n")
    words = ("predict", run, source, "-o", tmp_path / "out.jsonl")
    assert heedful(*words, "--field", "a", "--field", "b", "--probabilities")[0] == 0
    found = json.loads((tmp_path / "out.jsonl").read_text())
    right = json.loads(heedful("classify", run, "--pair", "four", "five", "--json")[1])
    assert {name: found[f"probability_{name}"] for name in right["probabilities"]} == right["probabilities"]
    code, _, err = heedful(*words, "--force")
    assert code == 2 and "in.csv:2: there is no field 'text'" in err and "--field NAME" in err
    code, _, err = heedful(*words, "--force", "--field", "a", "--beams", 2)
    assert code == 2 and "without a beam search" in err
