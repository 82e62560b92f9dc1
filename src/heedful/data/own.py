"""Examples from Python instead of files, in the plain form of each task."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Self

from pydantic import Field, PrivateAttr, model_validator

from heedful.config import Config, FieldError
from heedful.data.dialogues.sources import Dialogues, Utterance, collect_dialogues, utterance
from heedful.data.formats.conll import CHUNK, Sentence, Sentences, iob2, require_tag
from heedful.data.formats.sources import SPLITS, Examples, Pair, Split, no_data
from heedful.data.formats.squad import Answer, Question, Questions
from heedful.data.formats.tables import Item, Items
from heedful.data.labelled import choices as multiple_choice
from heedful.data.located import located
from heedful.data.modules import module_examples, module_problems
from heedful.data.text.documents import Prose
from heedful.data.text.files import Text, collect
from heedful.data.text.sentences import SentenceText
from heedful.data.tokenizers.base import replace_surrogates
from heedful.data.trees.treebank import MOST_CLASSES, Trees, parse_tree
from heedful.errors import UserError, shown

if TYPE_CHECKING:
    from heedful.data.images.captions import CaptionedImages
    from heedful.data.images.sources import Images


class Dataset(NamedTuple):
    """Your own examples for `heedful.train(recipe, run, data=...)`, in the form of the recipe's task."""

    train: Iterable[object]
    valid: Iterable[object]
    test: Iterable[object] | None = None


Collect = Callable[[Iterable[object], Split], Any]


class OwnData(Config):
    """Examples from Python; a run stores their SHA-256, not the examples."""

    kind: Literal["own", "module"] = "own"
    path: Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$", max_length=200)] | None = Field(
        None,
        exclude_if=lambda path: path is None,
        description="of `kind: module`: your class or function, as mydata:Reviews; it is called with the name of a "
        "split, train, valid or test, and returns examples",
    )
    test: Literal[True] | None = Field(None, description="whether there are examples for the test scores; null: none")
    _splits: dict[Split, Any] = PrivateAttr(default_factory=dict)
    _collect: list[Collect] = PrivateAttr(default_factory=list)  # of the task, once it is known

    @model_validator(mode="after")
    def _has_path(self) -> Self:
        if (self.path is None) == (self.kind == "module"):
            raise FieldError("kind: module needs a path, such as mydata:Reviews, and kind: own has none", "path")
        return self

    @classmethod
    def of(cls, splits: Mapping[Split, Any]) -> Self:
        """The settings of these examples."""
        data = cls(test=True if "test" in splits else None)
        data._splits.update(splits)
        return data

    @property
    def valid(self) -> bool:
        """There are always validation examples."""
        return True

    def attach(self, collect: Collect) -> None:
        """Read examples of a module as a task has them."""
        self._collect[:] = [collect]

    def read(self, split: Split) -> Any:
        """The examples of a split, as the task reads them; a module is imported only now."""
        if self.path is not None and split not in self._splits and (split != "test" or self.test):
            (collect,) = self._collect
            self._splits[split] = collect(module_examples(self.path, split), split)
        if split in self._splits:
            return self._splits[split]
        raise self.problems()[0] if not self._splits else no_data(split)

    def file(self, split: Split) -> str:
        """The name of a split in errors."""
        return f"data.{split}"

    def problems(self, splits: Sequence[Split] = SPLITS) -> list[UserError]:
        """An error if no examples were given, or if there is no such module."""
        if self.path is not None:
            return module_problems(self.path)
        if self._splits:
            return []
        return [
            UserError(
                "the examples of this recipe come from Python", where="data", found="kind: own, and no examples",
                todo="pass them: heedful.train(recipe, run, data=heedful.Dataset(train=..., valid=...))",
            )
        ]  # fmt: skip


def pairs(examples: Iterable[object], split: Split) -> Examples:
    """(source, target) texts."""
    rows = [Pair(*_texts(row, where, 2)) for where, row in located(examples, split)]
    found = [row for row in rows if row.source.strip() and row.target.strip()]
    return Examples(_require_examples(found, split, "(source, target)"), len(rows) - len(found))


def dialogues(examples: Iterable[object], split: Split) -> Dialogues:
    """Utterances, as texts or as (speaker, text), a list for each dialogue."""
    form, rows = "a list of utterances, each a text or (speaker, text)", list[list[Utterance]]()
    for where, row in located(examples, split):
        if isinstance(row, str) or not isinstance(row, Sequence):
            raise _example_error(where, row, form)
        rows.append([utterance(one, where) for one in row])
    return collect_dialogues(rows, f"data.{split}")


def labelled(examples: Iterable[object], split: Split) -> Items:
    """(text, label), or (text, other text, label); a label is a word or a number, or a list of them."""
    rows = list[Item]()
    for where, row in located(examples, split):
        parts = list(row) if isinstance(row, Sequence) and not isinstance(row, str) else [row]
        last = [", ".join(map(str, one)) if isinstance(one, list | tuple) else str(one) for one in parts[-1:]]
        texts = _texts([*parts[:-1], *last], where, 2, 3)
        rows.append(Item(texts[0], texts[1] if len(texts) == 3 else None, replace_surrogates(texts[-1])[0], where))
    found = [row for row in rows if not row.blank]
    return Items(_require_examples(found, split, "(text, label)"), len(rows) - len(found))


def tagged(examples: Iterable[object], split: Split) -> Sentences:
    """(words, tags), as many of one as of the other."""
    rows = list[Sentence]()
    for where, row in located(examples, split):
        two = row if isinstance(row, Sequence) and len(row) == 2 else ([], [None])
        words, tags = (tuple(part) if isinstance(part, Sequence) else () for part in two)
        if len(words) != len(tags) or not all(isinstance(word, str) for word in (*words, *tags)):
            raise _example_error(where, row, "(words, tags), two lists of as many texts")
        rows.append(Sentence(words, tuple(require_tag(tag, where) for tag in tags), where))
    found = _require_examples([row for row in rows if row.words], split, "(words, tags)")
    if any(CHUNK.fullmatch(tag) for row in found for tag in row.tags):
        found = [row._replace(tags=iob2(row.tags)) for row in found]
    return Sentences(found, len(rows) - len(found))


def questions(examples: Iterable[object], split: Split) -> Questions:
    """(question, passage, answer, start): the answer starts at that character of the passage."""
    rows = list[Question]()
    for where, row in located(examples, split):
        if not isinstance(row, Sequence) or len(row) != 4 or not isinstance(row[3], int):
            raise _example_error(where, row, "(question, passage, answer, start)")
        question, passage, answer = _texts(row[:3], where, 3)
        if passage[row[3] : row[3] + len(answer)] != answer:
            raise _example_error(where, row, "an answer that stands in the passage at its start")
        rows.append(Question(str(len(rows)), question, passage, (Answer(answer, row[3]),)))
    return Questions(_require_examples(rows, split, "(question, passage, answer, start)"), 0)


def choices(examples: Iterable[object], split: Split) -> multiple_choice.Questions:
    """(text, choices, correct): the texts of the choices, and the index of the correct one."""
    rows = list[multiple_choice.Question]()
    form = "(text, choices, index of the correct choice)"
    for where, row in located(examples, split):
        if (
            not isinstance(row, Sequence)
            or len(row) != 3
            or not isinstance(row[1], Sequence)
            or isinstance(row[1], str)
        ):
            raise _example_error(where, row, form)
        beginning, *rest = _texts([row[0], *row[1]], where, len(row[1]) + 1)
        if type(row[2]) is not int or not 0 <= row[2] < len(rest) or len(rest) < 2:
            raise _example_error(where, row, form)
        rows.append(multiple_choice.Question(beginning, tuple(rest), row[2]))
    if len({len(row.choices) for row in rows}) > 1:
        raise _example_error(
            f"data.{split}", sorted({len(row.choices) for row in rows}), "as many choices for every text"
        )
    return multiple_choice.Questions(_require_examples(rows, split, "(text, choices, correct)"))


def trees(examples: Iterable[object], split: Split) -> Trees:
    """Labelled trees as text: (2 (1 not) (3 bad))."""
    found = [parse_tree(_texts([row], where, 1)[0], where, MOST_CLASSES) for where, row in located(examples, split)]
    return Trees(_require_examples(found, split, "(label word) or (label trees)"), 0)


def text(examples: Iterable[object], split: Split) -> Text:
    """Texts, each a document of one line or several."""
    return collect(document for document in _documents(examples, split))


def sentences(examples: Iterable[object], split: Split) -> SentenceText:
    """Sentences as texts, each on one line."""
    rows = [" ".join(_texts([row], where, 1)[0].split()) for where, row in located(examples, split)]
    found = [row for row in rows if row]
    return SentenceText(_require_examples(found, split, "a sentence"), len(rows) - len(found))


def documents(examples: Iterable[object], split: Split) -> Prose:
    """Texts, each a document with a sentence a line."""
    return Prose([[line for line in document if line.strip()] for document in _documents(examples, split)])


def images(examples: Iterable[object], split: Split) -> Images:
    """Images (Y, X) or (C, Y, X) of one size, bytes or floats; an array of all of them is an iterable of these."""
    import numpy as np

    from heedful.data.images.sources import Images

    rows = _require_examples([np.asarray(image) for image in examples], split, "images (Y, X) or (C, Y, X)")
    shape, dtype = rows[0].shape, np.uint8 if rows[0].dtype == np.uint8 else np.float32
    for number, row in enumerate(rows):
        if row.shape != shape or row.ndim not in (2, 3) or row.dtype.kind not in "uif":
            raise _example_error(
                f"data.{split}[{number}]", row.shape, f"an image of numbers, of shape {shape} as the first"
            )
    return Images(np.stack(rows).astype(dtype).reshape(len(rows), *(1,) * (3 - len(shape)), *shape))


def labelled_images(examples: Iterable[object], split: Split) -> Images:
    """(image, label): images as above, and the name or the number of the class of each."""
    from dataclasses import replace

    import numpy as np

    rows = list(examples)
    for number, row in enumerate(rows):
        if not isinstance(row, Sequence) or len(row) != 2 or not isinstance(row[1], str | int | np.integer):
            raise _example_error(f"data.{split}[{number}]", row, "(image, label), the label a name or a number")
    pairs: Any = rows
    found = images([image for image, _ in pairs], split)
    given = {str(label) for _, label in pairs}
    names = tuple(sorted(given, key=lambda name: (int(name), "") if name.isdecimal() else (-1, name)))
    numbers = {name: number for number, name in enumerate(names)}
    return replace(found, labels=np.array([numbers[str(label)] for _, label in pairs], np.int64), names=names)


def captioned_images(examples: Iterable[object], split: Split) -> CaptionedImages:
    """(image, captions): images as above, and a caption of each or several."""
    from heedful.data.images.captions import CaptionedImages

    rows = list(examples)
    captions = []
    for number, row in enumerate(rows):
        texts = row[1] if isinstance(row, Sequence) and len(row) == 2 else None
        texts = (texts,) if isinstance(texts, str) else texts
        fine = isinstance(texts, Sequence) and len(texts) > 0
        if not fine or not all(isinstance(text, str) and text.strip() for text in texts or ()):
            raise _example_error(f"data.{split}[{number}]", row, "(image, captions), one text or a list of them")
        captions.append(tuple(texts or ()))
    pairs: Any = rows
    found = images([image for image, _ in pairs], split)
    return CaptionedImages(found.pixels, tuple(captions), tuple(f"image {number}" for number in range(len(rows))))


def _documents(examples: Iterable[object], split: Split) -> list[list[str]]:
    found = [_texts([row], where, 1)[0] for where, row in located(examples, split)]
    return [row.splitlines() for row in _require_examples([row for row in found if row.strip()], split, "texts")]


def _texts(row: object, where: str, *counts: int) -> list[str]:
    """The texts of an example; another number of them is an error."""
    texts = list(row) if isinstance(row, Sequence) and not isinstance(row, str) else [row]
    if len(texts) not in counts or not all(isinstance(part, str) for part in texts):
        raise _example_error(where, row, "a text" if counts == (1,) else f"a tuple of {counts[0]} texts")
    return [str(part) for part in texts]


def _require_examples(rows: list[Any], split: Split, form: str) -> list[Any]:
    """The examples; an error if there are none."""
    if not rows:
        raise UserError(f"there are no examples for {split}", where=f"data.{split}", expected=f"at least one: {form}")
    return rows


def _example_error(where: str, found: object, expected: str) -> UserError:
    return UserError("invalid example for the task", where=where, found=shown(found), expected=expected)
