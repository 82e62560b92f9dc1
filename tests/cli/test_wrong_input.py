"""Wrong input from the first table to the last score: one message each, which says what to type, and no traceback."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., tuple[int, str, str]]
RUN = Path(__file__).parents[1] / "golden" / "runs" / "text_classification-conv_classifier"
FILES = {
    "new.csv": b"text,label\na red cat,cat\na dog,dog\n",
    "other.tsv": b"sentence\tlabel\na red cat\tcat\na dog\tdog\n",
    "latin.csv": "text,label\na café,cat\na dog,dog\n".encode("latin-1"),
    "utf16.csv": "text,label\na red cat,cat\n".encode("utf-16"),
    "header.csv": b"text,label\n",
    "labels.csv": b"text,label\na red cat,horse\n",
    "unclosed.csv": b'text,label\n"a red cat,cat\na dog,dog\n',
    "ids.csv": b"text,label\n" + b"".join(b"a cat,%d\n" % number for number in range(200)),
    "sheet.xlsx": b"PK\3\4\xff\xfe",
    "broken.parquet": b"PAR1",
    "broken.csv.gz": b"not gzip",
}


@pytest.fixture
def here(heedful: Run, tmp_path: Path) -> Run:
    """The command line in a folder with these files and a trained run."""
    shutil.copytree(RUN, tmp_path / "run")
    (tmp_path / "folder").mkdir()
    for name, content in FILES.items():
        (tmp_path / name).write_bytes(content)
    return heedful


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("init classify --data sheet.xlsx", "save it as CSV"),
        ("init classify --data folder", "this is a folder"),
        ("init classify --data header.csv", "there are no rows"),
        ("init classify --data latin.csv", "data.encoding=cp1252"),
        ("init classify --data broken.csv.gz", "this gzip file is damaged"),
        ("init classify --data new.csv data.encodin=cp1252", "did you mean encoding"),
        ("init classify --data new.csv train.seed=1", "only settings of the data"),
        ("init classify data.encoding=cp1252", "name them: --data PATH"),
        ("init translate --data new.csv", "not clear which column is the source"),
        ("init classify --from folder", "there is no model in this folder"),
        ("init classify nowhere/x.yaml", "nowhere: there is no such folder"),
        ("check new.csv", "heedful init classify --data new.csv"),
        ("train new.csv", "heedful init classify --data new.csv"),
        ("tune new.csv train.seed=0,1", "heedful init classify --data new.csv"),
        ("predict run sheet.xlsx", "save it as CSV"),
        ("predict run utf16.csv", "iconv -f UTF-16"),
        ("predict run unclosed.csv", "unclosed quote"),
        ("predict run broken.parquet", "not a Parquet file"),
        ("predict run other.tsv", "--field NAME"),
        ("predict run new.csv data.encodin=cp1252", "did you mean data.encoding"),
        ("predict run new.csv -o new.csv --force", "overwrite its source"),
        ("eval run data.test=other.tsv", "set data.text"),
        ("eval run data.test=labels.csv", "unknown label"),
        ("eval run data.test", "only the data can be changed"),
        ("eval run data.tests=new.csv", "did you mean data.test"),
        ("eval run model.width=8", "only the data can be changed"),
        ("runs diff run", "a difference is between two runs"),
        ("runs compare run nowhere", "this is not a run"),
    ],
)
def test_wrong_input_is_explained(command: str, message: str, here: Run) -> None:
    code, out, err = here(*command.split())
    assert code == 2 and message in err, out + err


def test_check_finds_a_label_of_its_own_for_each_row(here: Run) -> None:
    assert here("init", "classify", "--data", "ids.csv")[0] == 0
    code, out, _ = here("check", "classify.yaml")
    assert code == 2 and "200 of the 200 first rows have different labels in the column 'label'" in out


def test_files_of_another_format_and_encoding_are_read_where_the_run_is_not(here: Run, tmp_path: Path) -> None:
    """The run's own data are elsewhere, and it was trained on JSON lines."""
    shutil.rmtree(tmp_path / "run" / "data")
    csv, tsv = (
        here("eval", "run", "data.test=new.csv"),
        here("eval", "run", "data.test=other.tsv", "data.text=sentence"),
    )
    assert csv[0] == tsv[0] == 0 and csv[1] == tsv[1] and "texts:2" in csv[1]
    assert here("predict", "run", "latin.csv", "data.encoding=cp1252", "-o", "out.csv")[0] == 0
    assert "a café,cat," in (tmp_path / "out.csv").read_text(encoding="utf-8")
