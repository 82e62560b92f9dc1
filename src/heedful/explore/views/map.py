"""A map of vectors: tokens in their sentences, whole sentences, one word wherever it stands, words alone, or codes.

N points, T tokens, D width, P layers.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor
from torch.nn.functional import normalize, pad

from heedful.blocks.taps import taps
from heedful.data.images.sources import Images, scale_pixels
from heedful.errors import UserError, shown
from heedful.explore import inspect
from heedful.explore.capabilities import Pools, Reconstructs, Spells, part_of
from heedful.explore.inspect import Given
from heedful.explore.packets import diverged, pack
from heedful.explore.views import Named, Request
from heedful.lectures.contexts import SENTENCES, WORD
from heedful.lectures.occurrences import flat
from heedful.runs.load import read_recipe
from heedful.tasks.pretraining.predictor import feature

if TYPE_CHECKING:
    from heedful.explore.subjects import Explorer, Subject

TITLE = "Embedding map"
ABOUT = "Embeddings in two dimensions, by PCA or t-SNE: similar vectors lie close together."
MOST = 1000  # points
FEW = 500  # words of a table, or images
LINES = 6  # of a run's own, to begin with
MANY = 300  # points of which a file holds what is near in every layer
FEWER = 100  # points of which a file holds every layer by t-SNE
LEAST = 4  # points for t-SNE
COMPARED = 64  # points that are compared in every layer
SIDE = 32  # pixels of a small image
PERPLEXITY = 30.0  # neighbours that t-SNE keeps near, about
SPELLED = re.compile(r"\w+(?:['’-]\w+)*")
JOINED = ("sum_last_four", "concat_last_four", "sum_all")

READ = ("tokens", "sentences", "word")  # what is mapped of lines
Of = Literal["tokens", "sentences", "word", "table", "codes"]


class Mapped(Named):
    """What of a model is mapped: of texts, a line each, or of its own words or images."""

    of: Of
    lines: tuple[Annotated[str, Field(max_length=2000)], ...] = Field((), max_length=64)
    word: str | None = Field(None, max_length=100)  # the one whose occurrences are mapped


class Layer(Mapped):
    """One layer of it."""

    layer: str = Field(max_length=40)


@dataclass(frozen=True)
class Line:
    """A text as it was read: its tokens, the characters that each covers, and its vectors (T, D) by layer."""

    text: str
    pieces: list[str]
    spans: list[tuple[int, int] | None]  # None: not of the text
    layers: dict[str, Tensor]

    @property
    def own(self) -> list[int]:
        """Which tokens are of the text."""
        return [place for place, span in enumerate(self.spans) if span is not None]

    def words(self) -> Iterator[tuple[str, list[int]]]:
        """Its words, in small letters, and the tokens that each is made of."""
        for found in SPELLED.finditer(self.text):
            begin, end = found.span()
            over = [at for at, span in enumerate(self.spans) if span and max(span[0], begin) < min(span[1], end)]
            if over:
                yield found[0].casefold(), over


@dataclass(frozen=True)
class Cloud:
    """Points that can be mapped: how each is called, its group, and the vectors (N, D) of each layer."""

    names: list[str]
    groups: list[int]  # the number of a line, or of a class
    layers: dict[str, Tensor]
    words: dict[str, int]  # those that the lines have more than once, and how often
    word: str | None = None  # the one that is mapped
    titles: tuple[str, ...] = ()  # of the groups, where they are classes
    pictures: NDArray[np.uint8] | None = None  # (N, Y, X, C)

    @cached_property
    def size(self) -> int:
        return sum(each.nbytes for each in self.layers.values()) + (
            0 if self.pictures is None else self.pictures.nbytes
        )

    @cached_property
    def flat(self) -> dict[str, tuple[Tensor, float]]:
        """Each layer in its two directions of most spread, (N, 2), and the share of it that they hold.

        The map of the last layer is as `studies.occurrences` has it; every other is turned to lie like the one after.
        """
        own = [name for name in self.layers if name not in JOINED]
        maps: dict[str, tuple[Tensor, float]] = {}
        for before, name in zip([None, *own[:0:-1]], own[::-1], strict=True):
            maps[name] = mapped(self.layers[name], None if before is None else maps[before][0])
        for name in set(self.layers) - set(own):
            maps[name] = mapped(self.layers[name], maps[self.last][0])
        return {name: maps[name] for name in self.layers}

    @property
    def last(self) -> str:
        """The last layer that is not joined of several."""
        return [name for name in self.layers if name not in JOINED][-1]

    def layer(self, name: str) -> Tensor:
        """The vectors of a layer."""
        if name not in self.layers:
            expected = ", ".join(self.layers)
            raise UserError("there is no such layer", where="layer", found=shown(name), expected=expected)
        return self.layers[name]


# ------------------------------------------------------------------ what is asked
def fits(subject: Subject) -> bool:
    return subject.broken is None and bool(offered(subject))


def begin(explorer: Explorer, asked: Named) -> bytes:
    """What can be mapped, and the lines to begin with."""
    subject = explorer.subject(asked.model)
    return pack({"of": offered(subject), "lines": first_lines(subject)})


def points(explorer: Explorer, asked: Mapped) -> bytes:
    """The points of each layer's map (P, N, 2), the share of the spread that it holds (P,), and small images."""
    found = cloud(explorer.subject(asked.model), asked)
    maps = found.flat.values()
    told = {
        "names": found.names, "groups": found.groups, "titles": found.titles, "words": found.words, "word": found.word,
        "layers": list(found.layers), "last": found.last,
    }  # fmt: skip
    pictures = {} if found.pictures is None else {"pictures": found.pictures}
    held = torch.tensor([held for _, held in maps])
    return pack(told, points=torch.stack([at for at, _ in maps]), held=held, **pictures)


def tsne(explorer: Explorer, asked: Layer) -> bytes:
    """The points (N, 2) of a layer by t-SNE, turned to lie like the other map."""
    from heedful.lectures import maps

    found = cloud(explorer.subject(asked.model), asked)
    vectors = found.layer(asked.layer)
    if len(vectors) < LEAST:
        raise UserError("there are too few points for t-SNE", found=str(len(vectors)), expected=f"{LEAST} or more")
    made = torch.from_numpy(maps.tsne(vectors.numpy(), PERPLEXITY, 0)).float()
    return pack({}, points=turned(made - made.mean(0), found.flat[asked.layer][0]))


def cosines(explorer: Explorer, asked: Layer) -> bytes:
    """The cosine of each point's vector with every other (N, N)."""
    return pack({}, cosines=alike(cloud(explorer.subject(asked.model), asked).layer(asked.layer)))


def contexts(explorer: Explorer, asked: Mapped) -> bytes:
    """The cosine of each point's vector with every other in all layers that are not joined (P, N, N)."""
    found = cloud(explorer.subject(asked.model), asked)
    if len(found.names) > COMPARED:
        raise UserError(
            "these are too many to compare in every layer", found=str(len(found.names)), expected=f"at most {COMPARED}"
        )
    own = [name for name in found.layers if name not in JOINED]
    return pack({"layers": own}, cosines=torch.stack([alike(found.layers[name]) for name in own]))


def wanted(explorer: Explorer, state: Mapping[str, Any]) -> Sequence[Request]:
    """The map that is shown with all its layers, and what each point is like in them."""
    subject = explorer.subject(state["model"])
    kinds = offered(subject)
    of = state.get("of") if state.get("of") in kinds else kinds[0]
    asked: dict[str, Any] = {"model": subject.name, "of": of}
    if of in READ:
        said = str(state["lines"]).split("\n") if state.get("lines") is not None else first_lines(subject)
        asked["lines"] = [line.strip() for line in said if line.strip()]
    if of == "word" and state.get("word") is not None:
        asked["word"] = state["word"]
    found = cloud(subject, Mapped(**{**asked, "lines": tuple(asked.get("lines", ()))}))
    now = state.get("at") if state.get("at") in found.layers else found.last
    count = len(found.names)
    layers = list(found.layers) if count <= MANY else [now]
    bent = [] if state.get("way") != "tsne" or count < LEAST else layers if count <= FEWER else [now]
    return [
        Request("map", "begin", {"model": subject.name}),
        Request("map", "points", asked),
        *(Request("map", "cosines", {**asked, "layer": layer}) for layer in layers),
        *(Request("map", "tsne", {**asked, "layer": layer}) for layer in bent),
        *([Request("map", "contexts", asked)] if of == "word" and len(found.names) <= COMPARED else []),
    ]


# ------------------------------------------------------------------ what can be mapped
def offered(subject: Subject) -> list[str]:
    """What of a subject can be mapped, by what its model can do."""
    found = ["tokens", "sentences", "word"] if reads_in_layers(subject) else []
    if table(subject) is not None and isinstance(subject.predictor.tokenizer, Spells):
        found.append("table")
    if subject.is_run and isinstance(subject.predictor, Reconstructs):
        found.append("codes")
    return found


def reads_in_layers(subject: Subject) -> bool:
    """Whether the model leaves vectors of a text's tokens after each of its layers."""
    predictor = subject.predictor
    if not inspect.reads(predictor):
        return False
    return (
        inspect.encoder_in(predictor) is not None
        or inspect.listens(predictor)
        or any(map(numbered, taps(subject.model)))
    )


def numbered(tap: str) -> bool:
    """Whether a tap is that of what one of several layers leaves."""
    parts = tap.split(".")
    return ("output" in parts or "outputs" in parts) and any(part.isdecimal() for part in parts)


def table(subject: Subject) -> Tensor | None:
    """The vector of each word of the vocabulary by itself (V, D), where the model has a table of them."""
    models = [model for model in (subject.model, part_of(subject.model, "encoder")) if model is not None]
    tables = [tokens for model in models if (tokens := part_of(model, "tokens")) is not None]
    weight = part_of(tables[0], "weight") if tables else None
    return None if weight is None else weight.detach()


def first_lines(subject: Subject) -> list[str]:
    """The lines to begin with: the lectures' sentences for whoever knows English, or some of a run's own."""
    from heedful.explore.samples import ENGLISH, best_known

    if not reads_in_layers(subject):
        return []
    shown = subject.shown
    if shown.named is None and best_known(subject.predictor) == ENGLISH:
        return list(SENTENCES)
    return [one.text for one in shown.examples[:LINES]]


def chosen_word(words: Mapping[str, int]) -> str:
    """The word whose occurrences are compared where nobody says: the lectures' one, or the longest."""
    return WORD if WORD in words or not words else max(words, key=len)


def cloud(subject: Subject, asked: Mapped) -> Cloud:
    """The points that are asked for; the last few clouds are kept."""
    if asked.of not in offered(subject):
        raise UserError("there is no such map of this model", where="of", found=asked.of)
    makers = {"table": words_alone, "codes": codes}
    key = json.dumps(["map", asked.of, asked.lines, asked.word])
    return subject.kept(key, lambda: finite(makers.get(asked.of, of_lines)(subject, asked)))


def finite(found: Cloud) -> Cloud:
    """Refuse vectors that cannot be points."""
    if not all(bool(vectors.isfinite().all()) for vectors in found.layers.values()):
        raise diverged()
    return found


def of_lines(subject: Subject, asked: Mapped) -> Cloud:
    """Tokens, whole lines, or one word, as they are read in their lines."""
    lines = read_lines(subject, asked.lines)
    counts = Counter(word for line in lines for word, _ in line.words())
    words = {word: count for word, count in counts.items() if count > 1}
    word = (asked.word or chosen_word(words)).casefold() if asked.of == "word" else None
    picked = {"sentences": whole_lines, "word": occurrences}.get(asked.of, every_token)(subject, lines, word)
    if not picked:
        raise nothing(None if word is None else shown(word))
    groups, names, vectors = zip(*picked, strict=True)
    layers = {name: torch.stack([each[name] for each in vectors]).float() for name in vectors[0]}
    return Cloud(list(names), list(groups), layers, words, word)


Point = tuple[int, str, dict[str, Tensor]]  # the number of its line, its name, and its vector by layer


def every_token(subject: Subject, lines: Sequence[Line], word: str | None) -> list[Point]:
    """A point for each token of the lines."""
    return [
        (number, line.pieces[place], {name: x[place] for name, x in line.layers.items()})
        for number, line in enumerate(lines)
        for place in line.own
    ]


def whole_lines(subject: Subject, lines: Sequence[Line], word: str | None) -> list[Point]:
    """A point for each line."""
    return [(number, line.text, pooled(subject, line)) for number, line in enumerate(lines)]


def occurrences(subject: Subject, lines: Sequence[Line], word: str | None) -> list[Point]:
    """A point for each place where a word stands; of several pieces, their mean."""
    return [
        (number, line.text, {name: x[over].mean(0) for name, x in line.layers.items()})
        for number, line in enumerate(lines)
        for found, over in line.words()
        if found == word
    ]


def nothing(word: str | None = None) -> UserError:
    """The error of lines in which there is nothing to map."""
    if word is None:
        return UserError("there is nothing to map", todo="write some words")
    return UserError("none of the lines has this word", where="word", found=word)


def read_lines(subject: Subject, lines: Sequence[str]) -> list[Line]:
    """Each line as the model reads it."""
    count = sum(map(len, subject.predictor.tokenizer.ids(lines)))
    if count == 0:
        raise nothing()
    if count > MOST:
        raise UserError("these are too many tokens for a map", found=f"{count:,}", expected=f"at most {MOST:,}")
    with torch.inference_mode():
        return [read_line(subject, line) for line in lines]


def read_line(subject: Subject, text: str) -> Line:
    """A line with what each layer leaves of its tokens; of a translator, what its encoder does."""
    predictor = subject.predictor
    reading = inspect.reading(predictor, Given(text=text, other="" if inspect.translates(predictor) else None))
    tokens = next(iter(reading.sides.values()))
    ids = [token.id for token in tokens]
    row = torch.tensor([ids], device=predictor.device)
    alone = table(subject)
    layers = {} if alone is None else {"table": alone[ids]}
    if (encoder := inspect.encoder_in(predictor)) is not None:
        embedded, *blocks = [x[0] for x in encoder.layers(row)]
        layers["embedded"] = embedded
    elif inspect.listens(predictor):
        _, *blocks = subject.model.layers(row)[0]  # the first is the table's
    else:
        first = replace(reading, passes=reading.passes[:1])
        blocks = [x for name, x in inspect.trace(subject.model, first, "*output*").values.items() if numbered(name)]
    layers |= {str(number): x for number, x in enumerate(blocks, 1)}
    every = [blocks[0], *blocks]  # what is joined has no part in what stands before the first block
    layers |= {name: feature(name, every) for name in JOINED if len(blocks) > (3 if name.endswith("four") else 1)}
    return Line(text, [token.piece for token in tokens], spans(predictor, text, ids), {
        name: x.detach().float().cpu() for name, x in layers.items()
    })  # fmt: skip


def spans(predictor: Any, text: str, ids: list[int]) -> list[tuple[int, int] | None]:
    """The characters of a text that each token covers; None for those that were put around it."""
    found = predictor.tokenizer.encode(text)
    count = len(found.ids)
    for start in range(len(ids) - count + 1):
        if ids[start : start + count] == found.ids:
            return [None] * start + list(found.offsets) + [None] * (len(ids) - start - count)
    return [(0, 0)] * len(ids)  # a text with gaps


def pooled(subject: Subject, line: Line) -> dict[str, Tensor]:
    """One vector (D,) of a line by layer, as `TextEncoder.embed` gives: the mean of all tokens, or the first."""
    how = subject.predictor if isinstance(subject.predictor, Pools) else None
    first = how is not None and how.pooling == "first"
    found = {name: x[0] if first else x.mean(0) for name, x in line.layers.items()}
    return {name: normalize(x, dim=-1) for name, x in found.items()} if how is not None and how.normalize else found


def words_alone(subject: Subject, asked: Mapped) -> Cloud:
    """The first words of a vocabulary, which are its most frequent ones, as the model's table has them."""
    weights = table(subject)
    assert weights is not None, "only models with a table are asked for it"
    pieces = subject.predictor.tokenizer.pieces(range(subject.predictor.tokenizer.vocab))
    whole = [number for number, piece in enumerate(pieces) if len(piece.strip()) > 2 and piece.strip().isalpha()]
    shown_ones = (whole if len(whole) >= 30 else list(range(len(pieces))))[:FEW]
    names = [pieces[number] for number in shown_ones]
    return Cloud(names, [0] * len(names), {"table": weights[shown_ones].float().cpu()}, {})


def codes(subject: Subject, asked: Mapped) -> Cloud:
    """Images that were not trained on: their pixels, and the codes that an autoencoder makes of them."""
    images = test_images(subject)
    pixels = scale_pixels(images.pixels[:FEW])  # (N, C, Y, X)
    vectors = {
        "pixels": torch.from_numpy(pixels.reshape(len(pixels), -1)),
        "code": torch.from_numpy(subject.predictor.encode(pixels)),
    }
    labels = [0] * len(pixels) if images.labels is None else images.labels[: len(pixels)].tolist()
    titles = images.names if images.labels is not None else ()
    names = [titles[label] if titles else str(number + 1) for number, label in enumerate(labels)]
    return Cloud(names, labels, vectors, {}, None, titles, small(pixels))


def test_images(subject: Subject) -> Images:
    """The images that a run was tested on, or those of its validation."""
    try:
        data: Any = read_recipe(subject.folder).data
        found: Images = data.read("valid" if data.test is None else "test")
    except UserError:
        todo = "open the explorer in the folder where the run was trained"
        raise UserError("the images of this run cannot be read", todo=todo) from None
    if not len(found):
        raise UserError("this run has no images to show")
    return found


def small(pixels: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Images (N, C, Y, X) as bytes (N, Y, X, 1 or 3), large ones made small, so that they fit on a map."""
    step = -(-max(pixels.shape[2:]) // SIDE)
    some = pixels[:, : 3 if pixels.shape[1] >= 3 else 1, ::step, ::step].transpose(0, 2, 3, 1)
    low, high = float(some.min()), float(some.max())
    return np.round(255 * (some - low) / max(high - low, 1e-12)).astype(np.uint8)


# ------------------------------------------------------------------ numbers
def mapped(vectors: Tensor, like: Tensor | None) -> tuple[Tensor, float]:
    """Vectors (N, D) as points (N, 2) that lie like others, and the share of the spread that they hold."""
    points, held = flat(vectors)
    points = pad(points, (0, 2 - points.shape[1]))  # of one point, or of vectors of one number
    return points if like is None else turned(points, like), held


def turned(given: Tensor, like: Tensor) -> Tensor:
    """Points (N, 2) turned or mirrored such that they lie as near to others as can be (Schönemann, 1966)."""
    left, _, right = torch.linalg.svd(given.double().T @ like.double())
    return (given.double() @ left @ right).float()


def alike(vectors: Tensor) -> Tensor:
    """The cosine of each vector (N, D) with every other (N, N)."""
    unit = normalize(vectors.double(), dim=-1)
    return (unit @ unit.T).float()


CALLS = {
    "begin": (Named, begin), "points": (Mapped, points), "tsne": (Layer, tsne), "cosines": (Layer, cosines),
    "contexts": (Mapped, contexts),
}  # fmt: skip
