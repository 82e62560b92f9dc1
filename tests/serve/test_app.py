"""The server: every task, completions, embeddings, errors, limits and keys, by requests over a socket."""

from __future__ import annotations

import base64
import io
import json
import random
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
import torch
from PIL import Image

from golden.library import TEXTS
from heedful.decode.settings import TextSettings
from heedful.http.api_guard import ApiGuard
from heedful.http.guard import serving
from heedful.http.policy import Policy
from heedful.serve.app import Service, application
from heedful.serve.completions import Writing
from heedful.serve.engine import Completion
from heedful.serve.mailbox import Mailbox
from heedful.serve.models import Served
from heedful.serve.requests import CompletionBody, parse_body
from heedful.serve.worker import Batcher, Job, Worker
from heedful.tasks import TASKS
from patience import until

KEYS = ("a-key-that-nobody-guesses", "another-key-for-a-program")
GREY = (np.arange(36).reshape(6, 6) % 7 * 36).astype(np.uint8)
COLOURS = (np.arange(16 * 16 * 3).reshape(16, 16, 3) % 11 * 23).astype(np.uint8)


@dataclass
class Client:
    """Requests to a server, each on a connection of its own."""

    url: str
    service: Service

    def send(self, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> tuple[int, bytes, Any]:
        """The status, the body and the headers of an answer."""
        where = urlsplit(self.url)
        connection = HTTPConnection(str(where.hostname), where.port, timeout=120)
        text = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        kind = {} if body is None else {"Content-Type": "application/json"}
        connection.request("GET" if body is None else "POST", path, text, {**kind, **(headers or {})})
        answer = connection.getresponse()
        found = answer.status, answer.read(), answer.headers
        connection.close()
        return found

    def ask(self, path: str, body: Any = None) -> Any:
        """The JSON of an answer, which must be a good one."""
        status, found, _ = self.send(path, body)
        assert status == 200, found
        return json.loads(found)

    def error(self, path: str, body: Any = None) -> tuple[int, str]:
        """The status and the message of an error."""
        status, found, _ = self.send(path, body)
        return status, json.loads(found)["error"]["message"]

    def events(self, body: Mapping[str, Any]) -> list[Any]:
        """The events of a stream, without the last one."""
        status, found, headers = self.send("/v1/completions", {**body, "stream": True})
        assert status == 200 and headers["content-type"].startswith("text/event-stream"), found
        *parts, last = [part.removeprefix(b"data: ") for part in found.split(b"\n\n") if part]
        assert last == b"[DONE]"
        return [json.loads(part) for part in parts]

    def leave(self, body: Mapping[str, Any]) -> None:
        """Send a request, read the first bytes of its answer, and leave."""
        where, text = urlsplit(self.url), json.dumps({**body, "stream": True}).encode()
        with socket.create_connection((str(where.hostname), where.port)) as wire:
            head = f"POST /v1/completions HTTP/1.1\r\nHost: {where.netloc}\r\nContent-Type: application/json\r\n"
            wire.sendall(f"{head}Content-Length: {len(text)}\r\n\r\n".encode() + text)
            assert wire.recv(12) == b"HTTP/1.1 200"


@contextmanager
def served(models: Mapping[str, Any], slots: int = 4, waiting: int = 50, seconds: float = 100, keys: Any = ()) -> Any:
    """A server of some predictors."""
    mailbox = Mailbox()
    open_models = {
        name: Served(name, predictor, slots, 4096, waiting, mailbox.deliver) for name, predictor in models.items()
    }
    worker = Worker([part for one in open_models.values() for part in one.parts])
    service = Service(open_models, worker, mailbox, seconds)
    worker.start()
    try:
        with serving(application(service), Policy(keys=keys, pause=0.0), ApiGuard) as url:
            yield Client(url, service)
    finally:
        worker.stop()


@pytest.fixture(scope="module")
def clients(golden: Callable[[str], Any]) -> Iterator[Callable[[str], Client]]:
    """Servers of recorded runs, each started once."""
    with ExitStack() as stack:
        known: dict[str, Client] = {}

        def client(name: str) -> Client:
            if name not in known:
                known[name] = stack.enter_context(served({name: golden(name)}))
            return known[name]

        yield client


@pytest.fixture
def gpt(clients: Callable[[str], Client]) -> Client:
    return clients("language_model-gpt")


def png(pixels: Any) -> str:
    """An image as base64 text."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


STORY = ["Mary moved to the garden.", "John went to the office."]
ROW = {"text": "a red bird", "weight": 0.4, "size": [0, 1], "place": "hill"}
Pair = tuple[Any, Any]  # an input in JSON, and for the predictor
# For each task, a run and inputs.
INPUTS: dict[str, tuple[str, list[Pair]]] = {
    "translation": ("translation-transformer", [({"source": "seven two"}, "seven two"), ("three", "three")]),
    "dialogue": (
        "dialogue-hred",
        [({"utterances": ["one cat", {"text": "two", "speaker": "a"}]}, ["one cat", ("a", "two")])],
    ),
    "language_model": ("language_model-gpt", [(text, text) for text in TEXTS]),
    "tree_classification": ("tree_classification-tree_lstm", [("(1 (1 the) (1 good))", "(1 (1 the) (1 good))")]),
    "pretraining": ("pretraining-bert", [(text, text) for text in TEXTS]),
    "permutation_lm": ("permutation_lm-xlnet", [({"text": text}, text) for text in TEXTS]),
    "classification": (
        "classification-classifier", [(TEXTS[0], TEXTS[0]), ({"text": TEXTS[0], "pair": TEXTS[1]}, TEXTS)]
    ),
    "text_classification": ("text_classification-conv_classifier", [(text, text) for text in TEXTS]),
    "regression": ("regression-regressor", [(text, text) for text in TEXTS]),
    "multi_label": ("multi_label-multi_label", [(text, text) for text in TEXTS]),
    "multiple_choice": (
        "multiple_choice-multiple_choice", [({"text": TEXTS[0], "choices": ["a", "b"]}, (TEXTS[0], ["a", "b"]))]
    ),
    "style_transfer": (
        "style_transfer-style_transfer", [({"text": "a stone", "style": "courtly"}, ("a stone", "courtly"))]
    ),
    "tagging": ("tagging-tagger", [(text, text) for text in TEXTS]),
    "tabular": (
        "tabular-tabular",
        [
            ({**ROW, "photo": png(GREY)}, {**ROW, "photo": Image.fromarray(GREY)}),
            ({**ROW, "photo": GREY.tolist()}, {**ROW, "photo": GREY}),
        ],
    ),
    "text_autoencoding": ("text_autoencoding-text_vae", [(text, text) for text in TEXTS]),
    "reconstruction": (
        "reconstruction-autoencoder", [({"image": (GREY[None] / 255).tolist()}, (GREY[None] / 255).astype(np.float32))]
    ),
    "image_classification": ("image_classification-lenet", [({"image": png(GREY)}, GREY), (GREY.tolist(), GREY)]),
    "paragraphs": (
        "paragraphs-paragraph_captioner",
        [({"image": png(COLOURS), "boxes": [[0, 0, 8, 8]]}, (COLOURS, [[0, 0, 8, 8]]))],
    ),
    "captioning": ("captioning-captioner", [({"image": png(COLOURS)}, COLOURS)]),
    "control": ("control-policy", [({"observation": [0.1, 0.2, 0.0, -0.1]}, [0.1, 0.2, 0.0, -0.1])]),
    "story_answering": (
        "story_answering-memory_network",
        [({"story": STORY, "question": "Where is Mary?"}, (STORY, "Where is Mary?"))],
    ),
    "answering": (
        "answering-answerer", [({"question": "what is red ?", "passage": TEXTS[0]}, ("what is red ?", TEXTS[0]))]
    ),
}  # fmt: skip


def near(one: Any, other: Any) -> bool:
    """Whether two JSON values are equal but for rounding."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(near(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(near, one, other))
    return one == pytest.approx(other, rel=1e-4, abs=1e-4) if isinstance(one, float) else one == other


@pytest.mark.parametrize("task", TASKS)
def test_every_task_predicts_as_its_predictor(task: str, clients: Callable[[str], Client]) -> None:
    run, pairs = INPUTS[task]
    client = clients(run)
    found = client.ask("/v1/predict", {"inputs": [given for given, _ in pairs]})
    (one,) = client.service.models.values()
    expected = [result and result.to_dict() for result in one.predictor.predict([plain for _, plain in pairs])]
    assert (found["model"], found["task"]) == (run, one.predictor.task)
    assert near(json.loads(json.dumps(expected)), found["predictions"])


def test_completions_are_those_of_generate(gpt: Client) -> None:
    generator = gpt.service.models["language_model-gpt"].predictor
    for settings in ({"temperature": 0}, {"seed": 3, "temperature": 0.8, "top_p": 0.9, "top_k": 20}):
        body = {"prompt": list(TEXTS), "max_tokens": 12, "n": 2, **settings}
        answer = gpt.ask("/v1/completions", body)
        alone = generator.generate(list(TEXTS), length=12, samples=2, **settings)
        assert [one["text"] for one in answer["choices"]] == [one.completion for one in alone]
        assert [one["index"] for one in answer["choices"]] == [0, 1, 2, 3]
        assert answer["usage"]["completion_tokens"] == sum(len(one.ids) for one in alone)
        pieces = [""] * 4
        for event in gpt.events(body):
            (choice,) = event["choices"]
            pieces[choice["index"]] += choice["text"]
        assert pieces == [one.completion for one in alone]


def test_stop_and_echo(gpt: Client) -> None:
    body = {"prompt": TEXTS[0], "max_tokens": 40, "seed": 1}
    whole = gpt.ask("/v1/completions", body)["choices"][0]["text"]
    stop = whole[5:8]
    answer = gpt.ask("/v1/completions", {**body, "stop": [stop, "never"], "echo": True})["choices"][0]
    assert (answer["text"], answer["finish_reason"]) == (TEXTS[0] + whole[: whole.find(stop)], "stop")
    events = gpt.events({**body, "stop": stop, "stream_options": {"include_usage": True}})
    assert "".join(event["choices"][0]["text"] for event in events[:-1]) == whole[: whole.find(stop)]
    assert events[-2]["choices"][0]["finish_reason"] == "stop" and events[-1]["usage"]["prompt_tokens"] > 5


def test_stop_sequences_that_overlap_end_a_text_wherever_its_tokens_are_cut(gpt: Client) -> None:
    engine = gpt.service.models["language_model-gpt"].engine
    assert engine is not None
    generator = engine.generator
    (alone,) = generator.generate([TEXTS[0]], length=40, seed=1)
    text = alone.completion
    stops = [text[4:9], text[6:8], text[20:22]]  # the second one ends before the first
    for size in (1, 2, 3, 40):
        request = Completion(alone.ids, TextSettings(), 40, 0, 0.0)
        one = Writing(request, engine.decoder.fresh(generator.prompt_ids(TEXTS[0])), stops, engine.end, True)
        found = ""
        for end in range(size, 40 + size, size):
            request.generated = alone.ids[:end]
            found += one.take()
        assert (found, one.text, one.ending) == (text[:6], text[:6], "stop")
        assert one.taken == len(one.pieces) < 40 and text[:8] in "".join(one.pieces)


@pytest.mark.parametrize("stop", [None, "."])
def test_log_probabilities_belong_to_the_tokens_of_the_text(gpt: Client, stop: str | None) -> None:
    body = {"prompt": list(TEXTS), "max_tokens": 30, "seed": 1, "logprobs": 0, "stop": stop}
    answer = gpt.ask("/v1/completions", body)
    generator = gpt.service.models["language_model-gpt"].predictor
    alone = generator.generate(list(TEXTS), length=30, seed=1)
    for choice, one in zip(answer["choices"], alone, strict=True):
        logs = choice["logprobs"]
        assert "".join(logs["tokens"]).startswith(choice["text"]) and one.completion.startswith(choice["text"])
        assert logs["text_offset"] == [len("".join(logs["tokens"][:at])) for at in range(len(logs["tokens"]))]
        assert len(logs["tokens"]) == len(logs["token_logprobs"]) == len(logs["text_offset"])
        if stop is None:
            assert sum(logs["token_logprobs"]) == pytest.approx(one.log_probability, rel=1e-4)
    assert answer["usage"]["completion_tokens"] == sum(len(one["logprobs"]["tokens"]) for one in answer["choices"])
    parts: dict[int, dict[str, list[Any]]] = {}
    for event in gpt.events(body):
        (choice,) = event["choices"]
        for name, values in choice["logprobs"].items():
            parts.setdefault(choice["index"], {}).setdefault(name, []).extend(values or [])
    for number, choice in enumerate(answer["choices"]):
        assert near(parts[number], {**choice["logprobs"], "top_logprobs": []})
    assert gpt.error("/v1/completions", {**body, "echo": True})[0] == 422


def test_null_is_as_good_as_nothing(gpt: Client) -> None:
    names = [name for name in CompletionBody.model_fields if name not in ("prompt", "seed", "temperature")]
    body = {"prompt": TEXTS[0], "temperature": 0}
    nothing = gpt.ask("/v1/completions", {**body, **dict.fromkeys(names)})
    assert nothing["choices"] == gpt.ask("/v1/completions", body)["choices"]
    fields = gpt.ask("/openapi.json")["paths"]["/v1/completions"]["post"]["requestBody"]["content"]
    described = fields["application/json"]["schema"]["properties"]
    assert all({"type": "null"} in described[name]["anyOf"] for name in names)


def test_embeddings(clients: Callable[[str], Client]) -> None:
    client = clients("pretraining-bert")
    encoder = client.service.models["pretraining-bert"].predictor
    answer = client.ask("/v1/embeddings", {"input": list(TEXTS)})
    vectors = torch.tensor([one["embedding"] for one in answer["data"]])
    torch.testing.assert_close(vectors, encoder.embed(list(TEXTS)))
    packed = client.ask("/v1/embeddings", {"input": TEXTS[0], "encoding_format": "base64"})["data"][0]["embedding"]
    values = base64.b64decode(packed)
    assert struct.unpack(f"<{len(values) // 4}f", values) == tuple(encoder.embed([TEXTS[0]])[0].tolist())
    assert answer["usage"]["prompt_tokens"] == sum(map(len, encoder.tokenize(list(TEXTS)).rows))


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("/v1/completions", {"promt": "a"}, 422, "did you mean prompt?"),
        ("/v1/completions", {"prompt": 3}, 422, "prompt"),
        ("/v1/completions", {"prompt": []}, 422, "1 to 2,048 texts"),
        ("/v1/completions", {"temperature": -1}, 422, "temperature"),
        ("/v1/completions", {"max_tokens": 5000}, 422, "at most 4,096"),
        ("/v1/completions", {"presence_penalty": 0.5}, 422, "not supported"),
        ("/v1/completions", {"best_of": 3}, 422, "best_of"),
        ("/v1/completions", {"prompt": ["a"] * 20, "n": 3}, 422, "at most 50 completions"),
        ("/v1/completions", {"stop": ["a"] * 5}, 422, "at most 4"),
        ("/v1/completions", {"model": "other"}, 404, "there are: language_model-gpt"),
        ("/v1/completions", [], 400, "JSON object"),
        ("/v1/completions", b'{"seed": NaN}', 400, "NaN"),
        ("/v1/completions", b'{"n": 1, "n": 2}', 400, "duplicate"),
        ("/v1/embeddings", {"input": "a"}, 422, "language_model-gpt is no encoder"),
        ("/v1/completions", {"logprobs": 2}, 422, "log-probabilities"),
        ("/v1/predict", {"inputs": None}, 422, "inputs"),
        ("/v1/predict", {"inputs": []}, 422, "inputs"),
        ("/v1/predict", {"inputs": ["a", 3]}, 422, "inputs[1]"),
        ("/v1/predict", {"inputs": [{"text": "a", "style": "b"}]}, 422, "unknown field"),
        ("/v1/chat", {}, 404, "/v1/completions"),
    ],
)
def test_wrong_requests_say_what_is_wrong(gpt: Client, path: str, body: Any, status: int, words: str) -> None:
    found, message = gpt.error(path, body)
    assert found == status and words in message


PIECES = [
    b"null",
    b"-1",
    b"1e999",
    b"NaN",
    b'"\\ud800"',
    b"[" * 3000,
    b"9" * 400,
    b"\xff",
    b"{}",
    b"[]",
    b'"a"',
    b"\x00",
    b"true",
]
BODIES: dict[str, Any] = {
    "/v1/completions": {"prompt": "a", "max_tokens": 2, "temperature": 0.5, "n": 1, "stop": ["b"], "stream": False},
    "/v1/embeddings": {"input": ["a"], "encoding_format": "float"},
    "/v1/predict": {"inputs": ["a", "b"]},
}


def send_hostile(client: Client, seed: int) -> int:
    """The status for a request with faults."""
    chance = random.Random(seed)
    path = chance.choice([*BODIES])
    body = bytearray(json.dumps(BODIES[path]).encode())
    for _ in range(chance.randint(1, 3)):
        place = chance.randrange(len(body) + 1)
        match chance.randrange(4):
            case 0:
                body[place : place + chance.randint(0, 4)] = chance.choice(PIECES)
            case 1:
                del body[place : place + chance.randint(1, 10)]
            case 2:
                values = re.search(rb': ("[^"]*"|[\d.]+|\[[^]]*\])', bytes(body))
                begin, end = values.span(1) if values else (place, place)
                body[begin:end] = chance.choice(PIECES)
            case _:
                body = body[:place]
    headers = chance.choice(
        [{}, {}, {"Content-Type": "text/plain"}, {"Content-Type": "application/json; charset=utf-16"}]
    )
    status, answer, _ = client.send(path + chance.choice(["", "", "", "?a=b", "/x", "%00"]), bytes(body), headers)
    if answer:
        text = answer.decode()
        assert "Traceback" not in text and 'File "' not in text
    return status


@pytest.mark.parametrize(("first", "count"), [(0, 150), pytest.param(1000, 3000, marks=pytest.mark.slow)])
def test_hostile_requests_are_answered_or_refused(gpt: Client, first: int, count: int) -> None:
    before = gpt.ask("/v1/completions", {"prompt": "a", "max_tokens": 3, "seed": 1})["choices"]
    statuses = {send_hostile(gpt, seed) for seed in range(first, first + count)}
    assert {400, 422} <= statuses <= {200, 400, 404, 405, 413, 415, 422}
    assert gpt.ask("/v1/completions", {"prompt": "a", "max_tokens": 3, "seed": 1})["choices"] == before


def test_images_are_in_the_request_and_not_in_files(clients: Callable[[str], Client]) -> None:
    for run, row in (("image_classification-lenet", {}), ("tabular-tabular", ROW)):
        field = "photo" if row else "image"
        for value in ("/etc/passwd", "test0.png", png(GREY)[:60], "", "aaaa", {"a": 1}, [["a"]], [], [[1e300]]):
            status, message = clients(run).error("/v1/predict", {"inputs": [{**row, field: value}]})
            assert status == 422 and message.startswith("inputs[0]"), value


def test_full_queue_and_deadline(golden: Callable[[str], Any]) -> None:
    with served({"gpt": golden("language_model-gpt")}, slots=1, waiting=2) as client:
        worker = client.service.worker
        worker.stop()  # nothing is computed from now on
        engine = client.service.models["gpt"].engine
        assert engine is not None
        engine.submit([Completion(engine.generator.prompt_ids("a"), TextSettings(), 5, 0, time.monotonic() + 100)])
        status, message = client.error("/v1/completions", {"timeout": 0.2, "n": 2})
        assert status == 503 and "too many" in message
        assert client.send("/v1/completions", {"n": 2})[2]["retry-after"] == "1"
        status, message = client.error("/v1/predict", {"inputs": ["a"], "timeout": 0.2})
        assert (status, message) == (504, "the request took too long")
        assert client.send("/healthz")[0] == 503  # the worker has ended


def test_full_queue_refuses_a_stream_before_it_begins(golden: Callable[[str], Any]) -> None:
    with served({"gpt": golden("language_model-gpt")}, waiting=2) as client:
        engine = client.service.models["gpt"].engine
        assert engine is not None
        client.service.worker.stop()
        engine.submit([Completion([1], TextSettings(), 5, 0, time.monotonic() + 100)])
        for echo in (False, True):
            body = {"prompt": "a", "n": 2, "echo": echo, "stream": True}
            assert client.send("/v1/completions", body)[0] == 503


def test_texts_that_are_longer_than_completions_may_be_are_predicted(golden: Callable[[str], Any]) -> None:
    generator = golden("language_model-gpt")
    with served({"gpt": generator}) as client:
        engine = client.service.models["gpt"].engine
        assert engine is not None
        engine.longest = generator.settings.length - 1
        (found,) = client.ask("/v1/predict", {"inputs": [TEXTS[0]]})["predictions"]
        assert engine.counts.steps == 0 and TEXTS[0] in found["prompt"]


def test_characters_of_prompts_are_limited(gpt: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heedful.serve.requests.MOST_CHARACTERS", 20)
    for path, field in (("/v1/predict", "inputs"), ("/v1/completions", "prompt")):
        status, message = gpt.error(path, {field: ["a" * 11] * 2})
        assert status == 422 and "at most 20 characters" in message


def test_failure_is_an_error_of_the_api(golden: Callable[[str], Any], capfd: pytest.CaptureFixture[str]) -> None:
    with served({"gpt": golden("language_model-gpt")}) as client:
        client.service.models["gpt"].engine.counts = None  # type: ignore[union-attr]
        assert client.error("/metrics") == (500, "internal error; the traceback is in the terminal")
    assert "AttributeError" in capfd.readouterr().err


def test_long_bodies_are_parsed_beside_other_requests(gpt: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[str] = []

    def parse(kind: Any, body: bytes) -> Any:
        used.append(threading.current_thread().name)
        return parse_body(kind, body)

    monkeypatch.setattr("heedful.serve.app.parse_body", parse)
    for count in (1, 20_000):
        gpt.send("/v1/predict", {"inputs": [{}] * count})
    assert used[0] == "heedful server" and used[1].startswith("AnyIO worker thread")


def test_late_completion_is_ended(golden: Callable[[str], Any]) -> None:
    with served({"gpt": golden("language_model-gpt")}, seconds=0.3) as client:
        body = {"prompt": "a", "max_tokens": 4096, "seed": 0, "n": 4}
        status, message = client.error("/v1/completions", body)
        assert (status, message) == (504, "the request took too long")
        engine = client.service.models["gpt"].engine
        assert engine is not None
        until(lambda: not engine.active and not engine.waiting)


def test_work_of_a_client_that_has_gone_is_stopped(golden: Callable[[str], Any]) -> None:
    with served({"gpt": golden("language_model-gpt")}) as client:
        engine = client.service.models["gpt"].engine
        assert engine is not None
        client.leave({"prompt": "a", "max_tokens": 4096, "seed": 0, "n": 3})
        until(lambda: not engine.active and not engine.waiting)
        assert engine.counts.tokens < 3 * 4096
        until(lambda: not client.service.mailbox.events)
        assert client.ask("/v1/completions", {"prompt": "a", "max_tokens": 3, "temperature": 0})["choices"][0]["text"]


def test_refused_input_does_not_hurt_others() -> None:
    seen: list[list[int]] = []
    results: dict[int, Any] = {}

    def predict(inputs: Any) -> list[int]:
        seen.append(list(inputs))
        if 13 in inputs:
            raise ValueError("unlucky")
        return [2 * one for one in inputs]

    batcher = Batcher(predict, 10)

    def job(number: int) -> Job:
        return Job([number, number], time.monotonic() + 100, lambda found: results.update({number: found}))

    for number in (1, 13, 2):
        batcher.submit(job(number))
    assert batcher.step() and not batcher.step()
    assert (results[1], results[2], str(results[13])) == ([2, 2], [4, 4], "unlucky")
    assert seen[0] == [1, 1, 13, 13, 2, 2]


def test_keys(golden: Callable[[str], Any], capfd: pytest.CaptureFixture[str]) -> None:
    with served({"gpt": golden("language_model-gpt")}, keys=KEYS) as client:

        def status(path: str, key: str | None = None, **more: str) -> int:
            headers = {} if key is None else {"Authorization": f"Bearer {key}"}
            return client.send(path, headers={**headers, **more})[0]

        assert [status("/v1/models"), status("/v1/models", "wrong"), status("/metrics"), status("/")] == [401] * 4
        assert [status("/v1/models", key) for key in KEYS] == [200, 200]
        assert status("/healthz") == 200
        assert status(f"/v1/models?key={KEYS[0]}") == 401
        assert status("/v1/models", KEYS[0], Host="service.example") == 200  # a name that the key makes safe
        body, metrics = (
            client.send("/v1/models", headers={"Authorization": f"Bearer {KEYS[0]}"})[1:],
            client.service.metrics,
        )
        assert all(key not in str(body) + metrics.text({}) for key in KEYS)
    assert all(key not in "".join(capfd.readouterr()) for key in KEYS)


def test_foreign_pages_are_refused(gpt: Client) -> None:
    for headers in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
        assert gpt.send("/v1/models", headers=headers)[0] == 403
        assert gpt.send("/v1/models", headers=headers)[1].startswith(b'{"error": {"message": ')
    status, _, headers = gpt.send("/v1/completions", b"{}", {"Content-Type": "text/plain"})
    assert status == 415 and headers["x-content-type-options"] == "nosniff"


def test_metrics_and_page(gpt: Client) -> None:
    gpt.ask("/v1/completions", {"prompt": "a", "max_tokens": 5, "temperature": 0})
    lines = gpt.send("/metrics")[1].decode().splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    assert float(values['heedful_generated_tokens_total{model="language_model-gpt"}']) >= 5
    assert float(values['heedful_requests_total{path="/v1/completions",status="200"}']) >= 1
    assert values["heedful_open_requests"] == "1"
    gpt.send("/v1/completions", {"model": "no such model"})
    gpt.send("/some/where")
    paths = set(re.findall('path="([^"]*)"', gpt.send("/metrics")[1].decode()))
    assert "other" in paths and "/v1/completions" in paths and "/some/where" not in paths
    named = {line.split()[2] for line in lines if line.startswith("# TYPE")}
    assert {re.sub(r"(_bucket|_sum|_count)?(\{.*)?$", "", name) for name in values} == named
    text = gpt.send("/")[1].decode()
    assert "POST /v1/completions" in text and "http" not in text and "<script" not in text
    body = gpt.ask("/openapi.json")["paths"]["/v1/completions"]["post"]["requestBody"]
    assert "presence_penalty" in body["content"]["application/json"]["schema"]["properties"]
