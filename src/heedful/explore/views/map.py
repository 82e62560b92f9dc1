"""A map of vectors: a classifier's own texts or images, tokens in context, whole texts, one word in several contexts,
token embeddings, or codes of images.

N points, T tokens, D width, P layers, V vocabulary.
"""

from __future__ import annotations

import json
import math
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
from heedful.data.batch import IGNORE_INDEX
from heedful.data.images.sources import scale_pixels
from heedful.data.labelled.batches import encode_texts
from heedful.data.labelled.sequences import Sequences
from heedful.errors import UserError, shown
from heedful.explore import inspect, labelled_sample
from heedful.explore.capabilities import HasPieces, part_of
from heedful.explore.inspect import TextInput
from heedful.explore.labelled_sample import labelled_samples
from heedful.explore.packets import not_finite, pack
from heedful.explore.views import Call, ModelRequest, image, require_index
from heedful.hub.pooling import pool
from heedful.lectures.contexts import SENTENCES, WORD
from heedful.lectures.occurrences import principal_components
from heedful.models.heads.head import Head
from heedful.runs.images import test_images
from heedful.tasks.base import Example
from heedful.tasks.classification.predictor import TextClassifier
from heedful.tasks.pretraining.predictor import TextEncoder, feature
from heedful.tasks.reading import layout_of
from heedful.tasks.reconstruction.predictor import ImageAutoencoder

if TYPE_CHECKING:
    from heedful.explore.subjects import Subject

TITLE = "Embedding map"
ABOUT = "Embeddings in two dimensions, by PCA or t-SNE: similar vectors lie close together."
MOST = 1000  # tokens of texts, and points whose cosines are all sent at once
TABLE = 5000  # token embeddings
IMAGES = 2000
VALUES = 60_000_000  # of the images of a classifier, of which there are at least `LEAST_IMAGES`
LEAST_IMAGES = 100
FLAT = 3072  # values of an image up to which the map of its pixels is computed, too
BENT = 2000  # points for t-SNE
CHUNK = 100  # texts of the data that are encoded at a time
BATCH_TOKENS = 8192
LINES = 6  # of a run's own data, by default
MANY = 300  # points up to which a file holds the neighbours in every layer
FEWER = 100  # points up to which a file holds every layer by t-SNE
LEAST = 4  # points for t-SNE
COMPARED = 64  # points that are compared in every layer
SIDE = 32  # pixels of a thumbnail
PERPLEXITY = 30.0  # of t-SNE
WORDS = re.compile(r"\w+(?:['’-]\w+)*")
JOINED = ("sum_last_four", "concat_last_four", "sum_all")

READ = ("tokens", "sentences", "word")  # kinds of points that need texts
Of = Literal["data", "tokens", "sentences", "word", "table", "codes"]


class MapRequest(ModelRequest):
    """The kind of points, and the texts that they are from, one per line."""

    of: Of
    lines: tuple[Annotated[str, Field(max_length=2000)], ...] = Field((), max_length=64)
    word: str | None = Field(None, max_length=100)  # whose occurrences are the points


class LayerRequest(MapRequest):
    """One layer of it."""

    layer: str = Field(max_length=40)


class NearRequest(LayerRequest):
    """One point of it."""

    point: int = Field(ge=0, le=100_000)


class StartRequest(ModelRequest):
    """Texts of the data from one on."""

    start: int = Field(0, ge=0, le=labelled_sample.MOST)


@dataclass(frozen=True)
class Line:
    """A text: its tokens, the characters that each covers, and its vectors (T, D) by layer."""

    text: str
    pieces: list[str]
    spans: list[tuple[int, int] | None]  # None: a special token
    layers: dict[str, Tensor]

    @property
    def own(self) -> list[int]:
        """The positions of tokens that are not special."""
        return [place for place, span in enumerate(self.spans) if span is not None]

    def words(self) -> Iterator[tuple[str, list[int]]]:
        """Its words in lower case, and the positions of their tokens."""
        for found in WORDS.finditer(self.text):
            begin, end = found.span()
            over = [at for at, span in enumerate(self.spans) if span and max(span[0], begin) < min(span[1], end)]
            if over:
                yield found[0].casefold(), over


@dataclass(frozen=True)
class Texts:
    """Some texts or images of the data: their vectors (N, D) by layer, and the predicted classes (N,)."""

    layers: dict[str, Tensor]
    predicted: Tensor

    @property
    def size(self) -> int:
        return sum(each.nbytes for each in self.layers.values())


@dataclass(frozen=True)
class Cloud:
    """The points of a map: their names, groups and vectors (N, D) by layer."""

    names: list[str]
    groups: list[int]  # the line or the class of each
    layers: dict[str, Tensor]
    words: dict[str, int]  # the counts of words that occur more than once
    word: str | None = None  # whose occurrences are the points
    titles: tuple[str, ...] = ()  # the names of classes
    pictures: NDArray[np.uint8] | None = None  # (N, Y, X, C)
    predicted: tuple[int, ...] | None = None  # the class that a classifier predicts for each
    images: tuple[int, ...] = ()  # the test image of each

    @cached_property
    def size(self) -> int:
        return sum(each.nbytes for each in self.layers.values()) + (
            0 if self.pictures is None else self.pictures.nbytes
        )

    @cached_property
    def flat(self) -> dict[str, tuple[Tensor, float]]:
        """The first two principal components of each layer, (N, 2), and the explained variance.

        The last layer is as in `lectures.occurrences`; every other is rotated to match the next one.
        """
        maps: dict[str, tuple[Tensor, float]] = {}
        for before, name in zip([None, *self.single[:0:-1]], self.single[::-1], strict=True):
            maps[name] = project(self.layers[name], None if before is None else maps[before][0])
        for name in set(self.layers) - set(self.single):
            maps[name] = project(self.layers[name], maps[self.single[-1]][0])
        return {name: maps[name] for name in self.layers}

    @property
    def single(self) -> list[str]:
        """The layers that are not combined of several."""
        return [name for name in self.layers if name not in JOINED]

    def layer(self, name: str) -> Tensor:
        """The vectors of a layer, which must exist."""
        if name not in self.layers:
            expected = ", ".join(self.layers)
            raise UserError("there is no such layer", where="layer", found=shown(name), expected=expected)
        return self.layers[name]


# ------------------------------------------------------------------ calls
def fits(subject: Subject) -> bool:
    return subject.broken is None and bool(offered(subject))


def begin(subject: Subject, request: ModelRequest) -> bytes:
    """The kinds of points that a model has, the default lines, and how many texts or images of the data there are."""
    kinds = offered(subject)
    texts = 0 if "data" not in kinds else len(own_images(subject) if has_images(subject) else examples_of(subject))
    found = {"of": kinds, "lines": default_lines(subject), "texts": texts, "chunk": CHUNK}
    return pack({**found, "what": "images" if has_images(subject) else "texts"})


def encode(subject: Subject, request: StartRequest) -> bytes:
    """Encode some texts of the data, which are then cached."""
    if "data" not in offered(subject):
        raise no_points("data")
    return pack({"count": len(encoded(subject, request.start).predicted)})


def points(subject: Subject, request: MapRequest) -> bytes:
    """The points of each layer (P, N, 2), their explained variance (P,), and thumbnails of images."""
    found = cloud(subject, request)
    maps = found.flat.values()
    header = {
        "names": found.names, "groups": found.groups, "titles": found.titles, "words": found.words, "word": found.word,
        "layers": list(found.layers), "last": found.single[-1],
    }  # fmt: skip
    header |= {} if found.predicted is None else {"predicted": found.predicted}
    header |= {} if not found.images else {"images": found.images}
    pictures = {} if found.pictures is None else {"pictures": found.pictures}
    held = torch.tensor([held for _, held in maps])
    return pack(header, points=torch.stack([at for at, _ in maps]), held=held, **pictures)


def tsne(subject: Subject, request: LayerRequest) -> bytes:
    """The points (N, 2) of a layer by t-SNE, rotated to match the principal components."""
    from heedful.lectures import maps

    found = cloud(subject, request)
    vectors = found.layer(request.layer)
    if len(vectors) < LEAST:
        raise UserError("there are too few points for t-SNE", found=str(len(vectors)), expected=f"{LEAST} or more")
    if len(vectors) > BENT:
        raise UserError("there are too many points for t-SNE", found=f"{len(vectors):,}", expected=f"at most {BENT:,}")
    made = torch.from_numpy(maps.tsne(vectors.numpy(), PERPLEXITY, 0)).float()
    return pack({}, points=rotated(made - made.mean(0), found.flat[request.layer][0]))


def cosines(subject: Subject, request: LayerRequest) -> bytes:
    """The cosine similarity of every pair of points (N, N)."""
    vectors = cloud(subject, request).layer(request.layer)
    if len(vectors) > MOST:
        expected = f"at most {MOST:,}"
        raise UserError("there are too many points for all pairs", found=f"{len(vectors):,}", expected=expected)
    return pack({}, cosines=similarities(vectors))


def near(subject: Subject, request: NearRequest) -> bytes:
    """The cosine similarity of one point with every other (N,)."""
    unit = normalize(cloud(subject, request).layer(request.layer).double(), dim=-1)
    require_index("point", request.point, len(unit))
    return pack({}, cosines=(unit @ unit[request.point]).float())


def contexts(subject: Subject, request: MapRequest) -> bytes:
    """The cosine similarity of every pair of points in each layer (P, N, N)."""
    found = cloud(subject, request)
    if (count := len(found.names)) > COMPARED:
        expected = f"at most {COMPARED}"
        raise UserError("there are too many points to compare every layer", found=str(count), expected=expected)
    every = [similarities(found.layers[name]) for name in found.single]
    return pack({"layers": found.single}, cosines=torch.stack(every))


def calls(subject: Subject, state: Mapping[str, Any]) -> Sequence[Call]:
    """The map of a state with its layers, and the neighbours of each point."""
    kinds = offered(subject)
    of = state.get("of") if state.get("of") in kinds else kinds[0]
    settings: dict[str, Any] = {"model": subject.name, "of": of}
    if of in READ:
        lines = str(state["lines"]).split("\n") if state.get("lines") is not None else default_lines(subject)
        settings["lines"] = [line.strip() for line in lines if line.strip()]
    if of == "word" and state.get("word") is not None:
        settings["word"] = state["word"]
    found = cloud(subject, MapRequest(**{**settings, "lines": tuple(settings.get("lines", ()))}))
    now = state.get("at") if state.get("at") in found.layers else found.single[-1]
    count = len(found.names)
    layers = list(found.layers) if count <= MANY else [now]
    bent = [] if state.get("way") != "tsne" or not LEAST <= count <= BENT else layers if count <= FEWER else [now]
    return [
        Call("map", "begin", {"model": subject.name}),
        Call("map", "points", settings),
        *(Call("map", "cosines", {**settings, "layer": layer}) for layer in layers if count <= MOST),
        *(Call("map", "tsne", {**settings, "layer": layer}) for layer in bent),
        *([Call("map", "contexts", settings)] if of == "word" and count <= COMPARED else []),
    ]


# ------------------------------------------------------------------ points
def offered(subject: Subject) -> list[str]:
    """The kinds of points that a model has."""
    found = ["data"] if has_data(subject) or has_images(subject) else []
    found += READ if has_layers(subject) else []
    if table(subject) is not None and isinstance(subject.predictor.tokenizer, HasPieces):
        found.append("table")
    if subject.is_run and isinstance(subject.predictor, ImageAutoencoder):
        found.append("codes")
    return found


def has_data(subject: Subject) -> bool:
    """Whether it is the run of a classifier whose labelled texts can be read."""
    fit = subject.is_run and isinstance(subject.predictor, TextClassifier)
    return fit and part_of(subject.model, "head") is not None and bool(examples_of(subject))


def has_images(subject: Subject) -> bool:
    """Whether it is the run of an image classifier."""
    return subject.is_run and image.fits(subject)


def examples_of(subject: Subject) -> Sequence[Example]:
    """The labelled texts of a classifier's data."""
    return labelled_samples.of(subject).examples


def own_images(subject: Subject) -> list[int]:
    """The test images that are mapped: fewer, evenly spaced, where there are many or large ones."""
    album = image.albums.of(subject)
    with album.lock:
        count = len(album.images)
    most = min(IMAGES, max(LEAST_IMAGES, VALUES // math.prod(album.shape)))
    return [number * count // min(count, most) for number in range(min(count, most))]


def has_layers(subject: Subject) -> bool:
    """Whether the model has a vector for each token of a text after each layer."""
    predictor = subject.predictor
    if not inspect.reads_text(predictor):
        return False
    named = inspect.encoder_of(predictor) is not None or inspect.is_bidirectional_rnn(predictor)
    return named or any(map(is_layer_output, taps(subject.model)))


def is_layer_output(tap: str) -> bool:
    """Whether a tap is the output of one of several layers."""
    parts = tap.split(".")
    return ("output" in parts or "outputs" in parts) and any(part.isdecimal() for part in parts)


def table(subject: Subject) -> Tensor | None:
    """The embeddings (V, D) of the tokens that a model reads, if it has them."""
    models = [model for model in (subject.model, part_of(subject.model, "encoder")) if model is not None]
    names = ("source_tokens", "tokens")
    tables = [tokens for model in models for name in names if (tokens := part_of(model, name)) is not None]
    inner = tables[0] if tables else None
    weight = None if inner is None else part_of(inner, "input")  # an output matrix of its own has another name
    weight = part_of(inner, "weight") if weight is None and inner is not None else weight
    return None if weight is None else weight.detach()


def default_lines(subject: Subject) -> list[str]:
    """The default lines: the lectures' sentences for an English vocabulary, or some of the run's data."""
    from heedful.explore.samples import ENGLISH, best_sentence

    if not has_layers(subject):
        return []
    found = subject.examples
    if found.target is None and best_sentence(subject.predictor) == ENGLISH:
        return list(SENTENCES)
    return [one.text for one in found.examples[:LINES]]


def cloud(subject: Subject, request: MapRequest) -> Cloud:
    """The requested points, cached."""
    if request.of not in offered(subject):
        raise no_points(request.of)

    def compute() -> Cloud:
        found = {"table": embeddings, "codes": codes, "data": own_texts}.get(request.of, of_lines)(subject, request)
        if not all(bool(vectors.isfinite().all()) for vectors in found.layers.values()):
            raise not_finite()
        return found

    return subject.cached(json.dumps(["map", request.of, request.lines, request.word]), compute)


def no_points(of: str) -> UserError:
    """The error for a kind of points that a model does not have."""
    return UserError("this model has no such points", where="of", found=of)


def own_texts(subject: Subject, request: MapRequest) -> Cloud:
    """The labelled texts or images of a classifier's data."""
    labels = list(subject.predictor.labels)
    if has_images(subject):
        numbers, album = own_images(subject), image.albums.of(subject)
        with album.lock:
            known = album.images.labels
            found = [] if known is None else [album.images.names[number] for number in known[numbers]]
            pictures = thumbnails(scale_pixels(album.stored[numbers]))
        titles = tuple(labels) if found and {*found} <= {*labels} else ()
        groups = [labels.index(one) for one in found] if titles else [0] * len(numbers)
        names = [f"test image {number + 1}" for number in numbers]
        kept: dict[str, Any] = {"titles": titles, "images": tuple(numbers), "pictures": pictures}
    else:
        examples = examples_of(subject)
        names = [one.text if one.other is None else f"{one.text} ‖ {one.other}" for one in examples]
        groups, kept = [labels.index(one.right) for one in examples], {"titles": tuple(labels)}
    parts = [encoded(subject, start) for start in range(0, len(names), CHUNK)]
    layers = {name: torch.cat([part.layers[name] for part in parts]) for name in parts[0].layers}
    predicted = torch.cat([part.predicted for part in parts]).tolist()
    return Cloud(names, groups, layers, {}, predicted=tuple(predicted) if kept["titles"] else None, **kept)


def encoded(subject: Subject, start: int) -> Texts:
    """Some texts or images of the data, cached."""
    of = encode_images_of if has_images(subject) else encode_texts_of
    return subject.cached(json.dumps(["map data", start]), lambda: of(subject, start))


@torch.inference_mode()
def encode_images_of(subject: Subject, start: int) -> Texts:
    """The vectors of some test images: their pixels if they are small, and what the classifier's last layer reads."""
    album = image.albums.of(subject)
    numbers = own_images(subject)[start : start + CHUNK]
    if not numbers:
        return Texts({}, torch.zeros(0))
    pixels = scale_pixels(album.stored[numbers])  # (N, C, Y, X)
    x = album.predictor.inputs(list(pixels)).to(album.predictor.device)
    flat = {"pixels": torch.from_numpy(pixels.reshape(len(pixels), -1)).float()} if pixels[0].size <= FLAT else {}
    vectors = album.model.features(x).flatten(1).float().cpu()
    return Texts({**flat, "features": vectors}, album.model(x).argmax(-1).cpu())


@torch.inference_mode()
def encode_texts_of(subject: Subject, start: int) -> Texts:
    """The vectors of some texts: what the classifier's last layer reads, and the means over each layer's tokens."""
    predictor, model = subject.predictor, subject.model
    some = [(one.text, one.other) for one in examples_of(subject)[start : start + CHUNK]]
    texts = encode_texts(some, np.full(len(some), IGNORE_INDEX), predictor.tokenizer, predictor.context)
    found: dict[str, dict[int, Tensor]] = {}
    classes: dict[int, Tensor] = {}
    for batch in texts.in_order(BATCH_TOKENS):
        batch = batch.to(predictor.device)
        layers, logits = read_batch(model, batch.sequences)
        rows = batch.indices.tolist()
        for name, vectors in layers.items():
            found.setdefault(name, {}).update(zip(rows, vectors.float().cpu(), strict=True))
        classes.update(zip(rows, logits.argmax(-1).cpu(), strict=True))
    order = range(len(some))
    layers = {name: torch.stack([each[row] for row in order]) for name, each in found.items()}
    return Texts(layers, torch.stack([classes[row] for row in order]) if some else torch.zeros(0))


def read_batch(model: Any, texts: Sequences) -> tuple[dict[str, Tensor], Tensor]:
    """The vectors of texts (N, D) by layer, and the logits (N, C)."""
    read, layout = list[Tensor](), layout_of(texts)
    hook = model.head.register_forward_pre_hook(lambda _, given: read.append(given[0]))
    try:
        logits: Tensor = model(texts.ids, texts.segments, layout)
    finally:
        hook.remove()
    layers: dict[str, Tensor] = {}
    if isinstance(model, Head):
        real = texts.real[:, :, None]  # (N, T, 1)
        every = model.encoder.layers(texts.ids, texts.segments, layout)  # (N, T, D) each
        means = [x.masked_fill(~real, 0.0).sum(1) / real.sum(1) for x in every]
        layers = {"embedded" if number == 0 else str(number): x for number, x in enumerate(means)}
    return {**layers, "features": read[-1]}, logits


def of_lines(subject: Subject, request: MapRequest) -> Cloud:
    """Tokens, whole lines, or the occurrences of one word, by default the lectures' one or the longest."""
    lines = read_lines(subject, request.lines)
    counts = Counter(word for line in lines for word, _ in line.words())
    words = {word: count for word, count in counts.items() if count > 1}
    word = None
    if request.of == "word":
        word = (request.word or (WORD if WORD in words or not words else max(words, key=len))).casefold()
    found = [point for number, line in enumerate(lines) for point in points_of(subject, number, line, request.of, word)]
    if not found and word is not None:
        raise UserError("none of the lines has this word", where="word", found=shown(word))
    if not found:
        raise nothing_to_map()
    groups, names, vectors = zip(*found, strict=True)
    layers = {name: torch.stack([each[name] for each in vectors]).float() for name in vectors[0]}
    return Cloud(list(names), list(groups), layers, words, word)


Point = tuple[int, str, dict[str, Tensor]]  # the number of its line, its name, and its vector by layer


def points_of(subject: Subject, number: int, line: Line, of: str, word: str | None) -> list[Point]:
    """The points of a line: itself, the occurrences of a word as means over their tokens, or its tokens."""
    if of == "sentences":
        return [(number, line.text, pooled(subject, line))]
    spans = [(line.text, over) for found, over in line.words() if found == word] if of == "word" else [
        (line.pieces[place], [place]) for place in line.own
    ]  # fmt: skip
    return [(number, name, {layer: x[over].mean(0) for layer, x in line.layers.items()}) for name, over in spans]


def nothing_to_map() -> UserError:
    """The error of lines without tokens."""
    return UserError("there is nothing to map", todo="write some words")


def read_lines(subject: Subject, lines: Sequence[str]) -> list[Line]:
    """The vectors of each line."""
    count = sum(map(len, subject.predictor.tokenizer.ids(lines)))
    if count == 0:
        raise nothing_to_map()
    if count > MOST:
        raise UserError("there are too many tokens for a map", found=f"{count:,}", expected=f"at most {MOST:,}")
    with torch.inference_mode():
        return [read_line(subject, line) for line in lines]


def read_line(subject: Subject, text: str) -> Line:
    """A line with the vectors of its tokens after each layer; for a translator, of its encoder."""
    predictor = subject.predictor
    other = "" if inspect.is_translator(predictor) else None
    reading = inspect.reading(predictor, TextInput(text=text, other=other))
    tokens = next(iter(reading.sides.values()))
    ids = [token.id for token in tokens]
    row = torch.tensor([ids], device=predictor.device)
    embedding = table(subject)
    layers = {} if embedding is None else {"table": embedding[ids]}
    if (encoder := inspect.encoder_of(predictor)) is not None:
        embedded, *blocks = [x[0] for x in encoder.layers(row)]
        layers["embedded"] = embedded
    elif inspect.is_bidirectional_rnn(predictor):
        _, *blocks = subject.model.layers(row)[0]  # the first is the embedding
    else:
        first = replace(reading, passes=reading.passes[:1])
        values = inspect.trace(subject.model, first, "*output*").values
        blocks = [x for name, x in values.items() if is_layer_output(name)]
    layers |= {str(number): x for number, x in enumerate(blocks, 1)}
    every = [blocks[0], *blocks]  # combinations have no part in what comes before the first block
    layers |= {name: feature(name, every) for name in JOINED if len(blocks) > (3 if name.endswith("four") else 1)}
    return Line(text, [token.piece for token in tokens], spans(predictor, text, ids), {
        name: x.detach().float().cpu() for name, x in layers.items()
    })  # fmt: skip


def spans(predictor: Any, text: str, ids: list[int]) -> list[tuple[int, int] | None]:
    """The characters of a text that each token covers; None for special tokens."""
    found = predictor.tokenizer.encode(text)
    count = len(found.ids)
    for start in range(len(ids) - count + 1):
        if ids[start : start + count] == found.ids:
            return [None] * start + list(found.offsets) + [None] * (len(ids) - start - count)
    return [(0, 0)] * len(ids)  # a text with masks


def pooled(subject: Subject, line: Line) -> dict[str, Tensor]:
    """One vector (D,) of a line by layer, as `TextEncoder.embed` gives."""
    how = subject.predictor if isinstance(subject.predictor, TextEncoder) else None
    mode = "mean" if how is None or how.pooling is None else how.pooling
    found = {name: pool(x[None], None, mode)[0] for name, x in line.layers.items()}
    if how is not None and how.dense.config:
        last = max((name for name in found if name.isdigit()), key=int)
        found[last] = how.dense(found[last].to(how.device)).detach().cpu()
    return {name: normalize(x, dim=-1) for name, x in found.items()} if how is not None and how.normalize else found


def embeddings(subject: Subject, request: MapRequest) -> Cloud:
    """The embeddings of a vocabulary's first words, which are its most frequent ones."""
    weights = table(subject)
    assert weights is not None, "`offered` checks it"
    pieces = inspect.vocabulary_of(subject.predictor)
    whole = [number for number, piece in enumerate(pieces) if len(piece.strip()) > 2 and piece.strip().isalpha()]
    shown_ones = (whole if len(whole) >= 30 else list(range(len(pieces))))[:TABLE]
    names = [pieces[number] for number in shown_ones]
    return Cloud(names, [0] * len(names), {"table": weights[shown_ones].float().cpu()}, {})


def codes(subject: Subject, request: MapRequest) -> Cloud:
    """The test images of an autoencoder's run: their pixels and their codes."""
    try:
        images = test_images(subject.folder)
    except UserError:
        todo = "open the explorer in the folder where the run was trained"
        raise UserError("the images of this run cannot be read", todo=todo) from None
    if not len(images):
        raise UserError("this run has no test images")
    pixels = images.pixels[:IMAGES]  # (N, C, Y, X)
    vectors = {
        "pixels": torch.from_numpy(pixels.reshape(len(pixels), -1)),
        "code": torch.from_numpy(subject.predictor.encode(pixels)),
    }
    labels = [0] * len(pixels) if images.labels is None else images.labels[: len(pixels)].tolist()
    titles = images.names if images.labels is not None else ()
    names = [titles[label] if titles else str(number + 1) for number, label in enumerate(labels)]
    return Cloud(names, labels, vectors, {}, None, titles, thumbnails(pixels))


def thumbnails(pixels: NDArray[Any]) -> NDArray[np.uint8]:
    """Images (N, C, Y, X) as bytes (N, Y, X, 1 or 3), subsampled to at most `SIDE` pixels a side."""
    step = -(-max(pixels.shape[2:]) // SIDE)
    some = pixels[:, : 3 if pixels.shape[1] >= 3 else 1, ::step, ::step].transpose(0, 2, 3, 1)
    low, high = float(some.min()), float(some.max())
    return np.round(255 * (some - low) / max(high - low, 1e-12)).astype(np.uint8)


# ------------------------------------------------------------------ projections
def project(vectors: Tensor, like: Tensor | None) -> tuple[Tensor, float]:
    """The first two principal components of vectors (N, D), rotated to match others, and the explained variance."""
    points, held = principal_components(vectors)
    points = pad(points, (0, 2 - points.shape[1]))  # of one point, or of vectors of width 1
    return points if like is None else rotated(points, like), held


def rotated(given: Tensor, like: Tensor) -> Tensor:
    """Points (N, 2) rotated or reflected to be nearest to others: orthogonal Procrustes (Schönemann, 1966)."""
    left, _, right = torch.linalg.svd(given.double().T @ like.double())
    return (given.double() @ left @ right).float()


def similarities(vectors: Tensor) -> Tensor:
    """The cosine similarity of every pair of vectors (N, D), (N, N)."""
    unit = normalize(vectors.double(), dim=-1)
    return (unit @ unit.T).float()


CALLS = {
    "begin": (ModelRequest, begin), "points": (MapRequest, points), "tsne": (LayerRequest, tsne),
    "cosines": (LayerRequest, cosines), "near": (NearRequest, near), "encode": (StartRequest, encode),
    "contexts": (MapRequest, contexts),
}  # fmt: skip
