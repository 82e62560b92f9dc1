"""Question answering data: SQuAD's JSON and JSON lines."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from heedful.data.formats.squad import Answer, JsonQuestions, Squad
from heedful.errors import UserError

SQUAD = Path(os.environ.get("HEEDFUL_DATA", "../shared/data"), "squad-v1.1")
PASSAGE = "Ada Lovelace was born in London in 1815."


def squad_file(**changes: Any) -> dict[str, Any]:
    answers = [{"text": "London", "answer_start": 25}, {"text": "in London", "answer_start": 22}]
    question = {"id": "q7", "question": "Where was Ada born?", "answers": answers} | changes
    return {"version": "1.1", "data": [{"title": "Ada", "paragraphs": [{"context": PASSAGE, "qas": [question]}]}]}


def read(tmp_path: Path, data: Any) -> list[Any]:
    (tmp_path / "train.json").write_text(data if isinstance(data, str) else json.dumps(data, indent=1))
    return Squad(root=str(tmp_path), train="train.json", valid="train.json").read("train").questions


def problem(tmp_path: Path, data: Any) -> UserError:
    with pytest.raises(UserError) as error:
        read(tmp_path, data)
    return error.value


def test_questions_are_read_with_all_their_answers(tmp_path: Path) -> None:
    (question,) = read(tmp_path, squad_file())
    assert question == ("q7", "Where was Ada born?", PASSAGE, (Answer("London", 25), Answer("in London", 22)))


@pytest.mark.parametrize(("count", "passages"), [(1, 3), (2, 2), (3, 1), (None, 1)])
def test_paragraphs_are_joined_with_their_answers(tmp_path: Path, count: int | None, passages: int) -> None:
    data = squad_file()
    paragraph = data["data"][0]["paragraphs"][0]
    data["data"][0]["paragraphs"] = [{**paragraph, "context": PASSAGE + " " * place} for place in range(3)]
    (tmp_path / "a.json").write_text(json.dumps(data))
    files = Squad(root=str(tmp_path), train="a.json", valid="a.json", paragraphs=count)
    found = files.read("train").questions
    assert len(found) == 3 and len({one.passage for one in found}) == passages
    assert max(one.passage.count("\n") for one in found) == (count or 3) - 1
    for one in found:
        assert [one.passage[answer.start :][: len(answer.text)] for answer in one.answers] == ["London", "in London"]
    assert len({(one.passage, one.answers) for one in found}) == 3


@pytest.mark.parametrize(
    ("answer", "found", "expected", "todo"),
    [
        ({"text": "London", "answer_start": 24}, "' Londo' at character 24", "'London'", "it occurs at character 25"),
        (
            {"text": "Paris", "answer_start": 25},
            "'Londo' at character 25",
            "'Paris'",
            "it does not occur in the passage",
        ),
        ({"text": "1815.", "answer_start": 99}, "'' at character 99", "'1815.'", "it occurs at character 35"),
        ({"text": "", "answer_start": 3}, "' ' at character 3", "''", "it does not occur in the passage"),
    ],
)
def test_answer_outside_the_passage_is_reported(
    tmp_path: Path, answer: dict[str, Any], found: str, expected: str, todo: str
) -> None:
    error = problem(tmp_path, squad_file(answers=[answer]))
    assert error.where == f"{tmp_path}/train.json: article 1 (Ada), paragraph 1, question q7"
    assert (error.found, error.expected, error.todo) == (found, expected, todo)


def test_unanswerable_questions_of_squad_2_are_rejected(tmp_path: Path) -> None:
    error = problem(tmp_path, squad_file(is_impossible=True, answers=[]))
    assert "question q7" in str(error.where) and "is_impossible" in str(error.found)
    assert len(read(tmp_path, squad_file(is_impossible=False))) == 1


def test_question_without_an_answer_is_rejected(tmp_path: Path) -> None:
    assert problem(tmp_path, squad_file(answers=[])).message == "this question has no answer"


DAMAGES: list[Callable[[dict[str, Any]], Any]] = [
    lambda data: {"data": "x"},
    lambda data: [data],
    lambda data: {"data": [{"paragraphs": [{"qas": []}]}]},
    lambda data: {"data": [{"paragraphs": {}}]},
    lambda data: {"data": [{"paragraphs": [{"context": 3, "qas": []}]}]},
    lambda data: squad_file(question=None),
    lambda data: squad_file(id=None),
    lambda data: squad_file(answers=[{"text": "London", "answer_start": "25"}]),
    lambda data: squad_file(answers=[{"text": "London", "answer_start": -15}]),
    lambda data: squad_file(answers=[{"text": "London", "answer_start": True}]),
    lambda data: squad_file(answers=["London"]),
    lambda data: {"data": []},
    lambda data: json.dumps(data)[:-20],
    lambda data: '{"question": "a"}\n{"question": "b"}\n',
    lambda data: "[" * 100_000,
]


@pytest.mark.parametrize("damage", DAMAGES, ids=range(len(DAMAGES)))
def test_other_json_files_are_reported(tmp_path: Path, damage: Callable[[dict[str, Any]], Any]) -> None:
    assert str(problem(tmp_path, damage(squad_file())).where).startswith(f"{tmp_path}/train.json")


def test_json_lines_are_read(tmp_path: Path) -> None:
    row = {"question": "Where?", "passage": PASSAGE, "answer": "London", "start": 25}
    (tmp_path / "a.jsonl").write_text(json.dumps(row) + "\n\n")
    found = JsonQuestions(root=str(tmp_path), train="a.jsonl", valid="a.jsonl").read("train")
    assert found.questions == [("1", "Where?", PASSAGE, (Answer("London", 25),))]
    assert found.skipped == 1
    (tmp_path / "a.jsonl").write_text(json.dumps(row | {"start": 26}) + "\n")
    with pytest.raises(UserError) as error:
        JsonQuestions(root=str(tmp_path), train="a.jsonl", valid="a.jsonl").read("train")
    assert error.value.where == f"{tmp_path}/a.jsonl:1" and error.value.todo == "it occurs at character 25"


@pytest.mark.skipif(not SQUAD.is_dir(), reason=f"no files of SQuAD in {SQUAD}; set HEEDFUL_DATA")
def test_published_files_have_the_published_counts() -> None:
    files = Squad(root=str(SQUAD), train="train-subset-v1.1.json.gz", valid="dev-v1.1.json.gz")
    found = files.read("valid").questions
    assert len(found) == 10570 and len({question.name for question in found}) == 10570
    assert len({question.passage for question in found}) == 2067
    assert len(files.read("train").questions) == 10571
    articles = files.model_copy(update={"paragraphs": None}).read("valid").questions
    assert len(articles) == 10570 and len({question.passage for question in articles}) == 48
