"""`heedful serve` beside its own offline speed, beside `transformers` and `sentence-transformers`, and under attack.

    python benchmarks/serve.py generate         # on a GPU: GPT-2 (124M, bf16), 64 streams of mixed lengths; or a FOLDER
    python benchmarks/serve.py embed FOLDER     # on a CPU: a folder of sentence-transformers, such as MiniLM-L6
    python benchmarks/serve.py load             # 256 clients, a fifth malformed or leaving early; SIGKILL, restart

`--quick` takes a tiny model and few requests, on any machine. Servers and contenders have processes of their own, one
at a time; the clients are in this one, which does not import torch.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
STREAMS = 64
PRECISIONS = (), ("--precision", "bf16"), ("--precision", "int8")
GOALS = {"offline": 0.9, "transformers": 5.0, "sentence-transformers": 2.0}

MAKE = """
import random, sys, torch
from heedful.data.tokenizers.byte_pairs import Gpt2Bpe, Gpt2Tokenizer
from heedful.models import build
from heedful.models.gpt.config import SIZES, GptConfig
from heedful.tasks.language_model.predictor import TextGenerator
folder, tiny = sys.argv[1], sys.argv[2] == "tiny"
rng = random.Random(0)
letters, count = "etaoinshrdlucmfwypvbgkqjxz", 300 if tiny else 60_000
words = ["".join(rng.choices(letters, k=rng.randint(3, 12))) for _ in range(count)]
vocab = 400 if tiny else 50_257
tokenizer = Gpt2Tokenizer.train(Gpt2Bpe(vocab=vocab), (" ".join(rng.sample(words, len(words))) for _ in range(3)))
small = GptConfig(vocab=tokenizer.vocab, width=64, heads=2, layers=2, context=512)
torch.manual_seed(0)
model = build(small if tiny else SIZES["gpt2"].model_copy(update={"vocab": tokenizer.vocab}))
TextGenerator(model, tokenizer, torch.device("cpu")).save(folder)
"""
OFFLINE = """
import json, sys, time, torch, heedful
folder, half, requests = sys.argv[1], sys.argv[2] == "bf16", json.loads(sys.stdin.read())
generator = heedful.load(folder)
if half:
    generator.bfloat16()
found = {}
for name, temperature in (("greedy", 0.0), ("sampled", 1.0)):
    seconds = []
    for turn in range(4):
        start = time.perf_counter()
        texts = generator.generate(requests["prompts"], length=requests["length"], temperature=temperature, seed=turn)
        seconds.append(time.perf_counter() - start)
    tokens = sum(len(text.ids) for text in texts)
    found[name] = tokens / sorted(seconds[1:])[1]
print(json.dumps(found))
"""
PEER = """
import sys, torch, uvicorn
from fastapi import FastAPI
from transformers import GPT2Config, GPT2LMHeadModel
from heedful.tasks.language_model.predictor import TextGenerator
folder, port, half = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "bf16"
device = "cuda" if torch.cuda.is_available() else "cpu"
ours = TextGenerator.load(folder, "cpu")
c = ours.model.config
config = GPT2Config(vocab_size=c.vocab, n_positions=c.context, n_embd=c.width, n_layer=c.layers, n_head=c.heads)
model = GPT2LMHeadModel(config).to(device, torch.bfloat16 if half else torch.float32).eval()
app = FastAPI()

def work(body):
    ids = torch.tensor([ours.prompt_ids(body["prompt"])], device=device)
    new = dict(max_new_tokens=body["max_tokens"], min_new_tokens=body["max_tokens"], pad_token_id=0)
    with torch.inference_mode():
        found = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, **new)[0, ids.shape[1]:]
    return {"text": ours.codec.decode(found.tolist()), "usage": {"completion_tokens": len(found)}}

@app.post("/v1/completions")
async def complete(body: dict):
    return work(body)  # in the main thread, where it is faster than in another one

@app.get("/healthz")
async def healthz():
    return "ok"

work({"prompt": "a b", "max_tokens": 64})
uvicorn.run(app, port=port, log_level="warning")
"""
SENTENCES = """
import sys, threading, torch, uvicorn
from fastapi import FastAPI
from fastapi.concurrency import run_in_threadpool
from sentence_transformers import SentenceTransformer
model = SentenceTransformer(sys.argv[1], device="cpu")
lock, app = threading.Lock(), FastAPI()

def work(body):
    texts = [body["input"]] if isinstance(body["input"], str) else body["input"]
    with lock:
        found = model.encode(texts, normalize_embeddings=True).tolist()
    return {"data": [{"index": at, "embedding": vector} for at, vector in enumerate(found)]}

@app.post("/v1/embeddings")
async def embed(body: dict):
    return await run_in_threadpool(work, body)

@app.get("/healthz")
async def healthz():
    return "ok"

work({"input": ["a"]})
uvicorn.run(app, port=int(sys.argv[2]), log_level="warning")
"""


# ------------------------------------------------------------------ servers
def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as wire:
        wire.bind(("127.0.0.1", 0))
        return int(wire.getsockname()[1])


@contextmanager
def server(command: Sequence[str], port: int, patience: float = 300.0) -> Iterator[subprocess.Popen[bytes]]:
    """A server process that is ready; it is stopped in the end."""
    process = subprocess.Popen([sys.executable, *command], stdout=subprocess.DEVNULL)
    try:
        end = time.monotonic() + patience
        while asyncio.run(status_of(port)) != 200:
            if process.poll() is not None or time.monotonic() > end:
                raise SystemExit(f"the server did not start: {' '.join(command)[:200]}")
            time.sleep(0.2)
        yield process
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def heedful(folder: Path, port: int, *options: str) -> list[str]:
    """The command of our server."""
    return ["-m", "heedful", "serve", str(folder), "--port", str(port), *options]


async def status_of(port: int) -> int:
    """The status of /healthz; 0 without an answer."""
    try:
        return (await ask(port, "/healthz")).status
    except OSError:
        return 0


# ------------------------------------------------------------------ clients
@dataclass(frozen=True)
class Reply:
    """An answer, whether all of it arrived, and the seconds until its first byte and its last."""

    status: int
    body: bytes
    complete: bool
    first: float
    seconds: float


Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def connect(port: int) -> Connection:
    """A connection to a server of this machine."""
    return await asyncio.open_connection("127.0.0.1", port, limit=2**24)


async def ask(port: int, path: str, body: object = None, raw: bytes | None = None, leave: float | None = None) -> Reply:
    """Send a request on a connection of its own; `leave` closes it after that many seconds."""
    start = time.perf_counter()
    reader, writer = await connect(port)
    try:
        writer.write(raw if raw is not None else request(port, path, body))
        if leave is not None:
            await asyncio.sleep(leave)
            return Reply(0, b"", False, 0.0, 0.0)
        return await answer(reader, start)
    finally:
        writer.close()


async def answer(reader: asyncio.StreamReader, start: float) -> Reply:
    """The answer to a request that was sent at this time."""
    head = await reader.readuntil(b"\r\n\r\n")
    first = time.perf_counter() - start
    status, fields = int(head.split()[1]), head.lower()
    if b"transfer-encoding: chunked" in fields:
        found, complete = await chunks(reader)
    else:
        length = int(fields.partition(b"content-length: ")[2].split(b"\r\n")[0] or 0)
        try:
            found, complete = await reader.readexactly(length), True
        except asyncio.IncompleteReadError as error:
            found, complete = error.partial, False
    return Reply(status, found, complete, first, time.perf_counter() - start)


async def chunks(reader: asyncio.StreamReader) -> tuple[bytes, bool]:
    """A chunked body, and whether it has its end."""
    parts: list[bytes] = []
    try:
        while size := int(await reader.readuntil(b"\r\n"), 16):
            parts.append((await reader.readexactly(size + 2))[:-2])
        await reader.readexactly(2)
    except (asyncio.IncompleteReadError, ConnectionError, ValueError):
        return b"".join(parts), False
    return b"".join(parts), True


def request(port: int, path: str, body: object = None, last: bool = True) -> bytes:
    """A well-formed request, the last one of its connection or not."""
    text = b"" if body is None else json.dumps(body).encode()
    lines = [f"{'GET' if body is None else 'POST'} {path} HTTP/1.1", f"Host: 127.0.0.1:{port}"]
    lines += ["Connection: close"] * last
    lines += [] if body is None else ["Content-Type: application/json", f"Content-Length: {len(text)}"]
    return "\r\n".join([*lines, "", ""]).encode() + text


def streamed(reply: Reply) -> tuple[str, int]:
    """The text and the number of tokens of a stream."""
    lines = [line[6:] for line in reply.body.split(b"\n\n") if line.startswith(b"data: ")]
    if reply.status != 200 or not reply.complete or not lines or lines[-1] != b"[DONE]":
        raise SystemExit(f"a stream is not complete: {reply.status} {reply.body[-300:]!r}")
    events = [json.loads(line) for line in lines[:-1]]
    text = "".join(event["choices"][0]["text"] for event in events if event["choices"])
    return text, events[-1]["usage"]["completion_tokens"]


# ------------------------------------------------------------------ streams on a GPU
def bodies(count: int, quick: bool, seed: int = 0) -> list[dict[str, Any]]:
    """Requests with prompts of 8 to 120 words and mixed lengths, 256 tokens on average."""
    rng = random.Random(seed)
    scale = 8 if quick else 1
    found = []
    for number in range(count):
        words = ["".join(rng.choices("etaoinshrd", k=rng.randint(2, 5))) for _ in range(rng.randint(4, 32))]
        length = rng.randint(64, 448) // scale
        found.append({"prompt": " ".join(words), "max_tokens": length, "seed": number, "temperature": 0.0})
    return found


async def crowd(port: int, requests: Sequence[dict[str, Any]], users: int, stream: bool) -> dict[str, Any]:
    """Users with a connection each who send a request when the last is answered: tokens per second until all are sent.

    Of streams, the tokens are those that the server counts while all users are busy.
    """
    left, texts, ends, firsts = iter(enumerate(requests)), dict[int, str](), list[float](), list[float]()
    busy: list[tuple[Counter[str], float]] = []  # when the last request was sent, and what was counted until then
    tokens = 0

    async def user() -> None:
        nonlocal tokens
        reader, writer = await connect(port)
        for number, body in left:
            if stream and number == len(requests) - 1:
                busy.append((await counted(port), time.perf_counter()))
            more = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
            writer.write(request(port, "/v1/completions", {**body, **more}, last=False))
            reply = await answer(reader, time.perf_counter())
            if stream:
                text, count = streamed(reply)
            else:
                found = json.loads(reply.body)
                text, count = found.get("text", ""), found["usage"]["completion_tokens"]
            texts[number] = text
            tokens += count
            ends.append(time.perf_counter())
            firsts.append(reply.first)
        writer.close()

    before, start = await counted(port) if stream else Counter[str](), time.perf_counter()
    await asyncio.gather(*(user() for _ in range(users)))
    firsts.sort()
    found = {
        "tokens": tokens, "seconds": ends[-1] - start, "tokens_per_second": tokens / (ends[-1] - start),
        "first_token_p50": firsts[len(firsts) // 2], "first_token_p99": firsts[int(0.99 * (len(firsts) - 1))],
        "texts": texts,
    }  # fmt: skip
    if busy and users > 1:
        end = busy[0][1]
        done = {name: busy[0][0][name] - before[name] for name in ("generated_tokens", "steps", "step_rows")}
        found["tokens_per_second"] = done["generated_tokens"] / (end - start)
        found["rows_of_a_step"] = done["step_rows"] / done["steps"]
        found["ms_of_a_step"] = 1000 * (end - start) / done["steps"]
    return found


async def counted(port: int) -> Counter[str]:
    """What a server has counted."""
    lines = (await ask(port, "/metrics")).body.decode().splitlines()
    found = Counter[str]()
    for line in lines:
        name, value = line.rsplit(" ", 1)
        if name.startswith("heedful_") and "_total{" in name:
            found[name.removeprefix("heedful_").partition("_total{")[0]] += int(float(value))
    return found


def generate(folder: Path | None, quick: bool, rounds: int) -> dict[str, Any]:
    """GPT-2: streams beside offline batches and a loop around `transformers.generate`."""
    precision = "fp32" if quick else "bf16"
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        path = folder or Path(scratch) / "gpt2"
        if folder is None:
            run([sys.executable, "-c", MAKE, str(path), "tiny" if quick else "gpt2"])
            print("model written", flush=True)
        requests = bodies(STREAMS * rounds, quick)
        length = round(sum(body["max_tokens"] for body in requests) / len(requests))
        given = json.dumps({"prompts": [body["prompt"] for body in requests[:STREAMS]], "length": length})
        offline = run([sys.executable, "-c", OFFLINE, str(path), precision], given)
        found["offline"] = json.loads(offline.splitlines()[-1])
        print("offline", found["offline"], flush=True)
        for name, row in streams(path, precision, requests).items():
            found[name] = row | {"of_offline": row["tokens_per_second"] / found["offline"][name]}
            print(name, found[name], flush=True)
        found["transformers"] = peer(path, precision, requests[: 6 if quick else 8])
        found["times_transformers"] = found["greedy"]["tokens_per_second"] / found["transformers"]["tokens_per_second"]
        print("transformers", found["transformers"], f"{found['times_transformers']:.1f} x", flush=True)
    found["goals"] = {
        "of offline": (found["greedy"]["of_offline"], GOALS["offline"]),
        "times transformers": (found["times_transformers"], GOALS["transformers"]),
    }
    return found


def streams(path: Path, precision: str, requests: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Our server: the speed of all streams together and of one, and how many texts are the same in both."""
    port, found, apart = free_port(), dict[str, dict[str, Any]](), len(requests) // 12
    with server(heedful(path, port, "--slots", str(STREAMS), "--precision", precision), port):
        asyncio.run(crowd(port, requests[: 2 * STREAMS], STREAMS, True))  # warm-up
        for name, temperature in (("greedy", 0.0), ("sampled", 1.0)):
            some = [{**body, "temperature": temperature} for body in requests]
            turns = [asyncio.run(crowd(port, some, STREAMS, True)) for _ in range(3)]
            together = sorted(turns, key=lambda turn: turn["tokens_per_second"])[1]
            alone = asyncio.run(crowd(port, some[::apart][:12], 1, True))
            same = [together["texts"][at * apart] == text for at, text in alone["texts"].items()]
            found[name] = {key: value for key, value in together.items() if key != "texts"} | {
                "of_all_turns": [round(turn["tokens_per_second"]) for turn in turns],
                "same_as_alone": f"{sum(same)} of {len(same)}",
                "one_stream": alone["tokens_per_second"],
            }
    return found


def peer(path: Path, precision: str, requests: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The loop around `transformers.generate`."""
    port = free_port()
    with server(["-c", PEER, str(path), str(port), precision], port):
        found = asyncio.run(crowd(port, requests, STREAMS, False))
    return {"tokens_per_second": found["tokens_per_second"], "requests": len(requests)}


# ------------------------------------------------------------------ embeddings on a CPU
def sentences(count: int) -> list[str]:
    """Sentences of 4 to 40 words."""
    words, rng = "the a cat dog house old red small sees takes likes under over when it rains", random.Random(0)
    return [" ".join(rng.choices(words.split(), k=rng.randint(4, 40))) for _ in range(count)]


async def embed_all(port: int, texts: Sequence[str], users: int) -> tuple[list[list[float]], list[float], float]:
    """The vectors of texts, one a request, with the seconds of each request and of all."""
    left, vectors, seconds = iter(enumerate(texts)), dict[int, list[float]](), list[float]()

    async def user() -> None:
        for number, text in left:
            reply = await ask(port, "/v1/embeddings", {"input": text})
            vectors[number] = json.loads(reply.body)["data"][0]["embedding"]
            seconds.append(reply.seconds)

    start = time.perf_counter()
    await asyncio.gather(*(user() for _ in range(users)))
    return [vectors[at] for at in range(len(texts))], sorted(seconds), time.perf_counter() - start


def embed(folder: Path, quick: bool) -> dict[str, Any]:
    """Embeddings, a text a request, of 1 and of 32 users, in turns with `sentence-transformers`.

    Besides the time, the CPU time of the server is measured: it depends less on what else the machine does.
    """
    texts, found = sentences(64 if quick else 384), dict[str, Any]()
    names = ("heedful", "heedful bf16", "heedful int8", "sentence-transformers")
    peer, ports = names[-1], [free_port() for _ in names]
    commands = [heedful(folder, port, *precision) for port, precision in zip(ports, PRECISIONS, strict=False)]
    commands.append(["-c", SENTENCES, str(folder), str(ports[-1])])
    with ExitStack() as stack:
        processes = [stack.enter_context(server(*one)) for one in zip(commands, ports, strict=True)]
        for users in (1, 32):
            some = texts if users > 1 else texts[: len(texts) // 4]
            rates: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
            answers = dict[str, list[list[float]]]()
            for _ in range(1 if quick else 3):
                for name, port, process in zip(names, ports, processes, strict=True):
                    before = cpu_seconds(process.pid)
                    answers[name], _, whole = asyncio.run(embed_all(port, some, users))
                    rates[name].append((len(some) / whole, 1000 * (cpu_seconds(process.pid) - before) / len(some)))
            rows = {}
            for name, each in rates.items():
                rate, work = (sorted(values)[len(values) // 2] for values in zip(*each, strict=True))
                pairs = list(zip(answers[name], answers[peer], strict=True))
                apart = max(abs(a - b) for one, other in pairs for a, b in zip(one, other, strict=True))
                rows[name] = {"texts_per_second": rate, "cpu_ms_per_text": work, "largest_difference": apart}
                rows[name]["least_cosine"] = min(cosine(*pair) for pair in pairs)
            for row in rows.values():
                row["ratio"] = row["texts_per_second"] / rows[peer]["texts_per_second"]
                row["cpu_ratio"] = rows[peer]["cpu_ms_per_text"] / row["cpu_ms_per_text"]
            found[f"{users} users"] = rows
            print(users, "users", json.dumps(rows, indent=1), flush=True)
    for name in names[:-1]:
        found[f"goal, {name}"] = (found["32 users"][name]["ratio"], GOALS["sentence-transformers"])
    return found


def cosine(one: Sequence[float], other: Sequence[float]) -> float:
    """The cosine of the angle between two vectors."""
    return sum(a * b for a, b in zip(one, other, strict=True)) / (math.hypot(*one) * math.hypot(*other))


def cpu_seconds(process: int) -> float:
    """The CPU time of a process."""
    fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# ------------------------------------------------------------------ 256 clients
WILD = [
    b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01\x02\r\n\r\n", b"POST /v1/completions HTTP/1.1\r\n\r\n",
    b"GET /../../etc/passwd HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
]  # fmt: skip


def wild(port: int, rng: random.Random) -> bytes:
    """A malformed request."""
    post = "/v1/completions"
    well = request(port, post, {"prompt": "a"})
    bodies = [
        {"prompt": 3}, {"promt": "a"}, {"prompt": "a", "max_tokens": 10**9}, {"prompt": "a", "temperature": "hot"},
        {"model": "nobody"}, [], "text", {"prompt": ["a"] * 5000}, {"prompt": "a", "n": -1},
    ]  # fmt: skip
    kinds = [
        rng.choice(WILD), well.replace(b"127.0.0.1", b"evil.example"), well.replace(b"application/json", b"text/plain"),
        well.replace(b"POST", b"DELETE"), well.replace(b'{"prompt": "a"}', b'{"prompt": NaN}'),
        well.replace(b'{"prompt": "a"}', b"[" * 15), request(port, "/v1/nothing", {}),
        request(port, post, rng.choice(bodies)),
        request(port, post, rng.choice(bodies)), rng.randbytes(rng.randint(1, 200)) + b"\r\n\r\n",
    ]  # fmt: skip
    return rng.choice(kinds)


@dataclass
class Tally:
    """What came back."""

    statuses: Counter[int] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    wrong: int = 0
    left: int = 0
    again: int = 0  # requests that were sent again, after the server was killed or full


async def attack(port: int, asked: Sequence[dict[str, Any]], right: dict[int, str], users: int, count: int) -> Tally:
    """Users of whom a fifth send malformed requests or leave early; good answers must be right."""
    tally, rng, left = Tally(), random.Random(1), iter(range(count))

    async def user() -> None:
        for number in left:
            at = rng.randrange(len(asked))
            kind = rng.random()
            body = {**asked[at], "stream": True, "stream_options": {"include_usage": True}}
            try:
                if kind < 0.1:
                    reply = await ask(port, "", raw=wild(port, rng))
                    tally.statuses[reply.status] += 1
                    continue
                if kind < 0.2:
                    await ask(port, "/v1/completions", body, leave=rng.random() * 0.2)
                    tally.left += 1
                    continue
                while True:
                    if number % 2:
                        reply = await ask(port, "/v1/completions", body)
                        good = reply.status == 200 and reply.complete
                        text = streamed(reply)[0] if good else None
                    else:
                        reply = await ask(port, "/v1/completions", asked[at])
                        good = reply.status == 200 and reply.complete
                        text = json.loads(reply.body)["choices"][0]["text"] if good else None
                    tally.statuses[reply.status] += 1
                    if reply.status != 503:
                        break
                    tally.again += 1
                    await asyncio.sleep(1 + rng.random())
                tally.wrong += text != right[at]
                tally.seconds.append(reply.seconds)
            except (OSError, asyncio.IncompleteReadError):
                tally.statuses[-1] += 1  # closed without an answer

    await asyncio.gather(*(user() for _ in range(users)))
    return tally


async def killed(
    port: int, process: list[Any], asked: Sequence[dict[str, Any]], right: dict[int, str], users: int
) -> Tally:
    """Users whose server is killed and started again: each asks again until it has a whole answer."""
    tally = Tally()

    async def user(at: int) -> None:
        for turn in range(3):
            number = (at + turn * users) % len(asked)
            body = {**asked[number], "stream": True, "stream_options": {"include_usage": True}}
            while True:
                try:
                    reply = await ask(port, "/v1/completions", body)
                    if reply.status == 200 and reply.complete and reply.body.endswith(b"data: [DONE]\n\n"):
                        break
                except (OSError, asyncio.IncompleteReadError):
                    pass
                tally.again += 1
                await asyncio.sleep(0.3)
            tally.wrong += streamed(reply)[0] != right[number]
            tally.statuses[reply.status] += 1

    async def kill() -> None:
        while tally.statuses[200] < users // 2:  # some are answered, others are under way
            await asyncio.sleep(0.02)
        process[0].send_signal(signal.SIGKILL)
        process[0].wait()
        process[0] = subprocess.Popen(process[1], stdout=subprocess.DEVNULL)

    await asyncio.gather(kill(), *(user(at) for at in range(users)))
    return tally


def resident(process: int) -> float:
    """The memory of a process in MB."""
    status = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    return int(status.partition("VmRSS:")[2].split()[0]) / 1000


def load(quick: bool) -> dict[str, Any]:
    """256 clients of a tiny model, then SIGKILL and a restart."""
    users, count = (64, 400) if quick else (256, 6000)
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        path, port = Path(folder) / "gpt2", free_port()
        run([sys.executable, "-c", MAKE, str(path), "tiny"])
        asked = [{**body, "temperature": float(at % 2)} for at, body in enumerate(bodies(100, True))]
        command = heedful(path, port, "--waiting", str(users))
        with server(command, port) as process:
            right = asyncio.run(crowd(port, asked, 1, True))["texts"]  # each alone
            asyncio.run(attack(port, asked, right, users, count // 4))
            before = resident(process.pid)
            start = time.perf_counter()
            tally = asyncio.run(attack(port, asked, right, users, count))
            seconds = sorted(tally.seconds)
            found["attack"] = {
                "users": users, "requests": count, "seconds": time.perf_counter() - start, "wrong": tally.wrong,
                "left_early": tally.left, "sent_again": tally.again, "statuses": dict(sorted(tally.statuses.items())),
                "p50": seconds[len(seconds) // 2], "p99": seconds[int(0.99 * (len(seconds) - 1))],
                "memory_before_mb": before, "memory_after_mb": resident(process.pid),
                "alive": asyncio.run(status_of(port)) == 200,
            }  # fmt: skip
            print("attack", found["attack"], flush=True)
        holder: list[Any] = [None, [sys.executable, *command]]
        with server(command, port) as first:
            holder[0] = first
            try:
                tally = asyncio.run(killed(port, holder, asked, right, users))
            finally:
                holder[0].kill()
            found["killed"] = {"answers": tally.statuses[200], "wrong": tally.wrong, "sent_again": tally.again}
            print("killed", found["killed"], flush=True)
    return found


def run(command: Sequence[str], given: str | None = None) -> str:
    """The output of a process."""
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])
    return done.stdout


def machine() -> dict[str, Any]:
    """Where it was measured."""
    code = "import torch; print(torch.__version__, torch.cuda.get_device_name() if torch.cuda.is_available() else '')"
    return {
        "torch, gpu": run([sys.executable, "-c", code]).strip(),
        "cores": os.cpu_count(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("generate", "embed", "load"))
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int, default=16, help="requests of each stream")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rounds = 2 if args.quick else args.rounds
    found = {"what": args.what, "quick": args.quick, "command": f"python benchmarks/serve.py {args.what}", **machine()}
    if args.what == "embed" and args.folder is None:
        parser.error("embed needs the folder of an encoder")
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "generate": lambda: generate(args.folder, args.quick, rounds),
        "embed": lambda: embed(args.folder, args.quick),
        "load": lambda: load(args.quick),
    }
    found |= parts[args.what]()
    out = args.out or RESULTS / f"serve-{args.what}{'-quick' if args.quick else ''}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {out}")


if __name__ == "__main__":
    main()
