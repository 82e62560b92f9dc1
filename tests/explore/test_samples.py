"""The default inputs of a model: examples of its own data for every task, or a sentence that it can read."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch.nn import Module

from heedful.data.formats.sources import Split
from heedful.errors import UserError
from heedful.explore import samples
from heedful.explore.subjects import Explorer, Subject
from heedful.runs.evaluate import results
from heedful.runs.recipe import load_recipe
from heedful.tasks import task_of
from heedful.tasks.base import Example
from heedful.tasks.classification.task import sample_text
from heedful.tasks.language_model.task import LanguageModelTask


def test_runs_open_on_their_own_test_set(run: Callable[[str], Path]) -> None:
    """Translations, prose and numbers in many languages, each with what is right of it."""
    for name, named in (("translation", "reference"), ("gpt", "text"), ("rnn", "text"), ("languages", "label")):
        subject = Subject(name, run(name))
        found = results(subject.folder)
        assert found is not None and subject.examples.target == named
        given = {f"{text.strip()}\n{right}".replace("\n", " ") for text, right, _ in found.samples}
        assert {f"{one.text}\n{one.right}".replace("\n", " ") for one in subject.examples.examples} <= given
        assert subject.sample == {"text": subject.examples.examples[0].text, "other": None}
        assert subject.sample["text"] not in (samples.ENGLISH.text, samples.ENGLISH.prompt)


def test_examples_are_read_again_after_an_evaluation(run: Callable[[str], Path], tmp_path: Path) -> None:
    """A run that is not scored yet shows its last evaluation, and before the first one some of its data."""
    folder = tmp_path / "growing"
    shutil.copytree(run("languages"), folder)
    scores = (folder / "results.json").read_text()
    (folder / "results.json").unlink()
    lines = (folder / "metrics.jsonl").read_bytes().split(b"\n")
    lines = [line for line in lines if b'"split": "test"' not in line]
    (folder / "metrics.jsonl").write_bytes(b"\n".join(lines))
    subject = Subject("growing", folder)
    evaluated = [json.loads(line) for line in lines if b'"evaluated"' in line]
    assert len(evaluated) > 0
    assert {one.text for one in subject.examples.examples} == {given for given, _, _ in evaluated[-1]["samples"]}
    (folder / "metrics.jsonl").write_bytes(b"\n".join(line for line in lines if b'"evaluated"' not in line))
    data = [item.text for item in task_of(load_recipe(str(folder / "recipe.yaml"), [])).read("test").items]
    assert {one.text for one in subject.examples.examples} == set(data[: samples.MOST])
    (folder / "results.json").write_text(scores)
    found = results(folder)
    assert found is not None
    assert {one.text for one in subject.examples.examples} == {given for given, _, _ in found.samples}


def test_run_without_its_data_has_a_default_text(
    run: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "moved"
    shutil.copytree(run("gpt"), folder)
    (folder / "results.json").unlink()
    (folder / "metrics.jsonl").write_text("")

    def gone(task: LanguageModelTask, split: Split) -> None:
        raise UserError("there is no such file")

    monkeypatch.setattr(LanguageModelTask, "read", gone)
    subject = Subject("moved", folder)
    first, *others = subject.examples.examples
    assert (first, subject.examples.target) == (Example(samples.ENGLISH.prompt, None, ""), None)
    assert [one.text for one in others] == [
        text for text in samples.ENGLISH_TOO if samples.fits(subject.predictor, text)
    ]


def test_every_task_has_examples(tmp_path: Path) -> None:
    """Questions with their passages, tagged sentences, pairs with their labels, whole sentences of documents."""
    answer = {"text": "London", "answer_start": 25}
    asked = {"id": "1", "question": "Where was Ada born?", "answers": [answer]}
    passage = "Ada Lovelace was born in London"
    squad = {"version": "1.1", "data": [{"title": "", "paragraphs": [{"context": passage, "qas": [asked]}]}]}
    (tmp_path / "asked.json").write_text(json.dumps(squad))
    (tmp_path / "tagged.txt").write_text("Ada B-PER\nsleeps O\n\n")
    (tmp_path / "pairs.tsv").write_text("one\tother\tsame\na b\tc d\tyes\n")
    here = [f"data.root={tmp_path}"]

    def first(name: str, changes: list[str], split: Split = "valid") -> Example:
        return next(iter(task_of(load_recipe(name, changes)).examples(split)))

    assert first("squad", [*here, "data.train=asked.json", "data.valid=asked.json"]) == Example(
        "Where was Ada born?", passage, "London"
    )
    assert first("conll2003", [*here, "data.train=tagged.txt", "data.valid=tagged.txt"]) == Example(
        "Ada sleeps", None, "PER Ada"
    )
    pairs = task_of(load_recipe("mrpc", [
        *here, "data.train=pairs.tsv", "data.valid=pairs.tsv", "data.test=null",
        "data.text=one", "data.pair=other", "data.label=same",
    ]))  # fmt: skip
    (found,) = pairs.examples("valid")
    assert found == Example("a b", "c d", "yes")
    assert pairs.example((sample_text("a b", "c d"), "yes", "no (51%)")) == found
    prose = first("bert-prose", [], "test")
    assert prose.other is None and "[MASK]" not in prose.text and len(prose.text) > 3


class Letters:
    """A tokenizer by words that a language knows; other words are spelled."""

    unk = -1

    def __init__(self, words: str) -> None:
        self.words = words.split()
        self.vocab = len(self.words)

    def ids(self, texts: list[str]) -> list[list[int]]:
        return [
            [number for word in text.split() for number in ([0] if word in self.words else range(len(word)))]
            for text in texts
        ]

    def pieces(self, ids: Any) -> list[str]:
        return [self.words[number] for number in ids]


@pytest.mark.parametrize("sentence", [one for some in samples.SENTENCES.values() for one in some])
def test_model_without_data_has_a_text_in_its_language(sentence: samples.Sentence) -> None:
    predictor = SimpleNamespace(tokenizer=Letters(sentence.text), model=Module(), context=None)
    assert samples.best_sentence(predictor) == sentence
    assert samples.default(predictor).text == sentence.text
    strange = SimpleNamespace(tokenizer=Letters("βου γου δου"), model=Module(), context=None)
    assert samples.best_sentence(strange) is None


def test_example_fits_the_context_of_its_model(run: Callable[[str], Path]) -> None:
    subject = Subject("gpt", run("gpt"))
    (long,) = samples.fitted(subject.predictor, [Example("some words " * 200, None, "more")])
    assert samples.fits(subject.predictor, long.text) and long.text.startswith("some words")
    subject.trace(samples.inspect.TextInput(text=long.text))


def test_page_shows_the_source_of_its_text(browse: Callable[..., Any], run: Callable[[str], Path]) -> None:
    """The true label stands beside a text of the data, and goes when another text is written."""
    browsing = browse(run("languages"))
    page = browsing.go("ablation")
    shown = browsing.explorer.subject("languages").examples.examples
    assert page.get_by_test_id("text").input_value() == shown[0].text
    assert page.get_by_test_id("origin").inner_text() == f"from this run's data; label: {shown[0].right}"
    page.get_by_test_id("another-example").click()
    page.get_by_test_id("right").get_by_text(shown[1].right, exact=True).wait_for()
    assert page.get_by_test_id("text").input_value() == shown[1].text
    page.get_by_test_id("text").fill("dreizehn")
    page.wait_for_url(lambda url: "dreizehn" in url)
    assert page.get_by_test_id("origin").count() == 0


def test_file_opens_on_the_same_example(run: Callable[[str], Path]) -> None:
    from heedful.explore.export import Export, complete_state

    explorer = Explorer([run("languages")])
    first = explorer.subject("languages").examples.examples[0]
    assert complete_state(explorer, Export(view="heads"))["text"] == first.text
