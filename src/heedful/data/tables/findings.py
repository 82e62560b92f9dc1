"""What is found in the rows of a table before training: labels, leaks, duplicates, lengths, missing values."""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Literal, NamedTuple

from heedful.data.formats.sources import SPLITS, Split
from heedful.data.tables.reading import Record, same_text, text_of
from heedful.errors import UserError, shown

MOST = 3  # examples of a finding
FEW = 0.05  # of the rows of a label, below which a similar one may be a typing mistake
UNEVEN = 10  # times as many rows, from which classes are reported as uneven
CLASSES = 100  # more labels than these are numbers, or texts
# Letters of Cyrillic and Greek that look like Latin ones.
ALIKE = str.maketrans(
    "\u0430\u0435\u043e\u0440\u0441\u0443\u0445\u0456\u0458\u0455"  # a e o p c y x i j s
    "\u0410\u0412\u0415\u041a\u041c\u041d\u041e\u0420\u0421\u0422\u0425"  # A B E K M H O P C T X
    "\u0391\u0392\u0395\u0396\u0397\u0399\u039a\u039c\u039d\u039f\u03a1\u03a4\u03a5\u03a7\u03bf",
    "aeopcyxijsABEKMHOPCTXABEZHIKMNOPTYXo",
)
WORD = re.compile(r"\w+|[^\w\s]")


Level = Literal["error", "warning"]


@dataclass(frozen=True)
class Finding:
    """What is wrong or remarkable: in how many of the rows, and where."""

    level: Level
    name: str
    message: str
    count: int
    of: int
    where: tuple[str, ...] = ()  # the first few places

    @property
    def line(self) -> str:
        """The finding as a line."""
        where = f": {', '.join(self.where)}" if self.where else ""
        return f"{self.level}: {self.message}{where}{', ...' if self.count > len(self.where) > 0 else ''}"

    @property
    def record(self) -> dict[str, object]:
        """The finding as JSON."""
        return asdict(self) | {"where": list(self.where)}


class Checked(NamedTuple):
    """What was read of some data, and what was found."""

    lines: list[str]  # what was read
    findings: list[Finding]


class Row(NamedTuple):
    """The part of a row that is looked at."""

    inputs: tuple[str, ...]
    label: str | None
    place: str
    classes: Sequence[str] = ()  # where they are not the label: labels, tags, the class of a column or of a tree

    @property
    def blank(self) -> bool:
        """Whether an input is blank."""
        return any(not text.strip() for text in self.inputs)

    @property
    def key(self) -> str:
        """The input apart from case and spaces."""
        return "\0".join(map(same_text, self.inputs))


Rows = Mapping[Split, Sequence[Row]]


def invalid_rows(errors: Iterable[UserError], split: Split, rows: Sequence[object]) -> Iterator[Finding]:
    """Rows that training would refuse, by what is wrong with them."""
    found: dict[str, list[UserError]] = {}
    for error in errors:
        found.setdefault(error.message, []).append(error)
    for message, some in found.items():
        more = {"found": some[0].found, "expected": some[0].expected, "to do": some[0].todo}
        about = "".join(f"; {name}: {text}" for name, text in more.items() if text is not None)
        text = f"{split}: {len(some):,} of {len(rows):,} rows cannot be read: {message}{about}"
        yield _finding("error", "invalid rows", text, [str(error.where) for error in some], rows)


def find(
    rows: Rows, context: int | None, classes: bool, repeats: bool = False, partial: bool = False, what: str = "rows"
) -> list[Finding]:
    """All findings, errors first.

    `context`: the most tokens that a model reads; `classes`: labels are classes; `repeats`: inputs may occur twice;
    `partial`: these are not all training rows; `what`: what a row is.
    """
    found = [*blanks(rows), *leaks(rows, what), *long_texts(rows, context)]
    found += [] if repeats else duplicates(rows, what)
    if classes:
        found += [*labels(rows, partial), *classes_of(rows.get("train", ())), *conflicts(rows, what)]
    train = rows.get("train", ())
    found += uneven(Counter(name for row in train for name in row.classes), train)
    return sorted(found, key=lambda one: one.level)


def blanks(rows: Rows) -> Iterator[Finding]:
    """Texts that are blank."""
    for split, some in rows.items():
        if empty := [row.place for row in some if row.blank]:
            yield _finding(
                "warning", "blank", f"{split}: {len(empty):,} of {len(some):,} rows have a blank text", empty, some
            )


def duplicates(rows: Rows, what: str = "rows") -> Iterator[Finding]:
    """Rows of one part with the same input."""
    for split, some in rows.items():
        exact, similar = repeated([row.inputs for row in some]), repeated([row.key for row in some])
        if similar:
            apart = f", {len(similar) - len(exact):,} of them only apart from case and spaces"
            text = f"{split}: {len(similar):,} of {len(some):,} {what} repeat the input of an earlier one"
            more = apart if len(similar) > len(exact) else ""
            yield _finding("warning", "duplicates", text + more, [some[number].place for number in similar], some)


def repeated(keys: Sequence[object]) -> list[int]:
    """The numbers of those that occurred before."""
    seen, found = set[object](), list[int]()
    for number, key in enumerate(keys):
        if key in seen:
            found.append(number)
        seen.add(key)
    return found


def leaks(rows: Rows, what: str = "rows") -> Iterator[Finding]:
    """Rows of one part whose input is in another, earlier one."""
    given = [split for split in SPLITS if split in rows]
    for number, split in enumerate(given):
        for other in given[:number]:
            exact = {row.inputs: row.place for row in reversed(rows[other])}
            similar = {row.key: row.place for row in reversed(rows[other])}
            found = [row for row in rows[split] if row.key in similar and not row.blank]
            if found:
                same = sum(row.inputs in exact for row in found)
                text = f"{len(found):,} of {len(rows[split]):,} {what} of {split} are also in {other}"
                apart = "" if same == len(found) else f", {len(found) - same:,} of them apart from case and spaces"
                where = [f"{row.place} = {similar[row.key]}" for row in found]
                yield _finding("warning", "leak", text + apart, where, rows[split])


def long_texts(rows: Rows, context: int | None) -> Iterator[Finding]:
    """Texts with more words than the model reads tokens."""
    for split, some in rows.items():
        if context is None:
            return
        sizes = [sum(len(WORD.findall(text)) for text in row.inputs) for row in some]
        long = [row.place for row, size in zip(some, sizes, strict=True) if size > context]
        if long:
            text = (
                f"{split}: at least {len(long):,} of {len(some):,} texts are longer than the {context:,} tokens that "
            )
            yield _finding(
                "warning", "long", f"{text}the model reads (the longest has {max(sizes):,} words)", long, some
            )


def labels(rows: Rows, partial: bool) -> Iterator[Finding]:
    """Labels that are missing, unknown to the training rows, or alone; of a part of the rows these are warnings."""
    level: Level = "warning" if partial else "error"
    for split, some in rows.items():
        if missing := [row.place for row in some if not row.label and not row.blank]:
            text = f"{split}: {len(missing):,} of {len(some):,} rows have no label"
            yield _finding("error", "missing label", text, missing, some)
    train = rows.get("train", ())
    known = {label for row in train if (label := row.label)}
    for split, some in rows.items():
        others = [row for row in some if row.label and row.label not in known]
        if split != "train" and known and others:
            label = others[0].label or ""
            close = [] if label.isdecimal() else difflib.get_close_matches(label, sorted(known), n=1, cutoff=0.6)
            near = f", which is close to {shown(close[0])}" if close else ""
            text = (
                f"{split}: {len(others):,} of {len(some):,} rows have a label that no training row has: {shown(label)}"
            )
            yield _finding(level, "unknown label", text + near, [row.place for row in others], some)
    if len(known) == 1:
        yield _finding(level, "one class", f"train: there is only one class, {shown(min(known))}", [], train)


def classes_of(train: Sequence[Row]) -> Iterator[Finding]:
    """Training labels that are similar to others, or much rarer."""
    counts = Counter(row.label for row in train if row.label)
    if not 1 < len(counts) <= CLASSES:
        return
    similar = dict(typos(counts))
    for rare, usual in similar.items():
        places = [row.place for row in train if row.label == rare]
        form = ascii if rare.casefold() != usual.casefold() and look_of(rare) == look_of(usual) else shown
        text = f"train: the label {form(rare)} of {len(places):,} rows may be {form(usual)}, as of {counts[usual]:,}"
        yield _finding("warning", "similar labels", text, places, train)
    for finding in uneven({name: count for name, count in counts.items() if name not in similar}, train):
        yield replace(finding, message=f"{finding.message}; accuracy says little, see task.metric: f1")


def uneven(counts: Mapping[str, int], train: Sequence[Row]) -> Iterator[Finding]:
    """Training classes of which one is much more frequent than another."""
    if not 1 < len(counts) <= CLASSES:
        return
    least, *_, most = sorted(counts, key=lambda name: counts[name])
    if counts[most] >= UNEVEN * counts[least]:
        text = f"{counts[most]:,} are {shown(most)}, {counts[least]:,} are {shown(least)}"
        yield _finding("warning", "uneven", f"train: classes are uneven: {text}", [], train)


def typos(counts: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """Rare labels that differ little from a frequent one: they look alike, or differ in one letter of four or more."""
    looks = {label: look_of(label) for label in counts}
    for rare in counts:
        for usual in counts:
            alike = looks[rare] == looks[usual] and (counts[rare], rare) < (counts[usual], usual)
            if alike or (counts[rare] <= FEW * counts[usual] and distance_one(rare, usual)):
                yield rare, usual
                break


def look_of(label: str) -> str:
    """What a label looks like: apart from case, spaces, invisible characters, and the alphabet of a letter."""
    visible = "".join(char for char in unicodedata.normalize("NFKC", label) if unicodedata.category(char) != "Cf")
    return " ".join(visible.translate(ALIKE).split()).casefold()


def distance_one(one: str, other: str) -> bool:
    """Whether two words of four letters or more differ by a letter that is changed, left out, added, or swapped."""
    short, long = sorted((one, other), key=len)
    if len(short) < 4 or len(long) - len(short) > 1 or any(char.isdigit() for char in one + other):
        return False
    begin = next((n for n, (a, b) in enumerate(zip(short, long, strict=False)) if a != b), len(short))
    if len(short) < len(long):
        return short[begin:] == long[begin + 1 :]
    rest, other_rest = short[begin + 1 :], long[begin + 1 :]
    swapped = short[begin : begin + 2] == long[begin : begin + 2][::-1] and rest[1:] == other_rest[1:]
    return rest == other_rest or swapped


def conflicts(rows: Rows, what: str = "rows") -> Iterator[Finding]:
    """The same input with different labels."""
    seen: dict[str, Row] = {}
    found, count = list[str](), 0
    for some in rows.values():
        for row in some:
            count += 1
            first = seen.setdefault(row.key, row)
            if first.label != row.label and not row.blank:
                found.append(f"{first.place} {shown(first.label)}, {row.place} {shown(row.label)}")
    if found:
        text = f"{len(found):,} of {count:,} {what} have another label than an earlier one with the same input"
        yield Finding("warning", "conflicts", text, len(found), count, tuple(found[:MOST]))


def columns(records: Sequence[Record], split: Split, read: Iterable[str]) -> Iterator[Finding]:
    """Columns with missing values, apart from those of the task, and columns with a single value."""
    names = [name for name in dict.fromkeys(name for row, _ in records for name in row) if name not in set(read)]
    for name in names:
        texts = [text_of(row.get(name)).strip() for row, _ in records]
        missing = [place for text, (_, place) in zip(texts, records, strict=True) if not text]
        if missing:
            text = f"{split}: {len(missing):,} of {len(records):,} values of the column {shown(name)} are missing"
            yield _finding("warning", "missing values", text, missing, records)
        elif len(records) > 1 and len(set(texts)) == 1:
            text = f"{split}: all {len(records):,} values of the column {shown(name)} are {shown(texts[0])}"
            yield _finding("warning", "constant column", text, [], records)


def _finding(level: Level, name: str, text: str, places: Sequence[str], rows: Sequence[object]) -> Finding:
    return Finding(level, name, text, len(places), len(rows), tuple(places[:MOST]))
