"""`heedful serve` beside its own offline speed, beside `transformers` and `sentence-transformers`, and under attack.

    python benchmarks/serve.py generate         # on a GPU: GPT-2 (124M, bf16), 64 streams of mixed lengths
    python benchmarks/serve.py embed FOLDER     # on a CPU: a folder of sentence-transformers, such as MiniLM-L6
    python benchmarks/serve.py load             # 256 clients, a fifth malformed or leaving early; SIGKILL, restart

`--quick` takes a tiny model and few requests, on any machine. Servers and contenders have processes of their own, one
at a time; the clients are in this one, which does not import torch.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
STREAMS = 64
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
import sys, threading, torch, uvicorn
from fastapi import FastAPI
from fastapi.concurrency import run_in_threadpool
from transformers import GPT2Config, GPT2LMHeadModel
from heedful.tasks.language_model.predictor import TextGenerator
folder, port, half = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "bf16"
device = "cuda" if torch.cuda.is_available() else "cpu"
ours = TextGenerator.load(folder, "cpu")
c = ours.model.config
config = GPT2Config(vocab_size=c.vocab, n_positions=c.context, n_embd=c.width, n_layer=c.layers, n_head=c.heads)
model = GPT2LMHeadModel(config).to(device, torch.bfloat16 if half else torch.float32).eval()
lock, app = threading.Lock(), FastAPI()

def work(body):
    ids = torch.tensor([ours.prompt_ids(body["prompt"])], device=device)
    new = dict(max_new_tokens=body["max_tokens"], min_new_tokens=body["max_tokens"], pad_token_id=0)
    with lock, torch.inference_mode():
        found = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, **new)[0, ids.shape[1]:]
    return {"text": ours.codec.decode(found.tolist()), "usage": {"completion_tokens": len(found)}}

@app.post("/v1/completions")
async def complete(body: dict):
    return await run_in_threadpool(work, body)

@app.get("/healthz")
async def healthz():
    return "ok"

work({"prompt": "a b", "max_tokens": 4})
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


async def ask(port: int, path: str, body: object = None, raw: bytes | None = None, leave: float | None = None) -> Reply:
    """Send a request on a connection of its own; `leave` closes it after that many seconds."""
    start = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**24)
    try:
        writer.write(raw if raw is not None else request(port, path, body))
        if leave is not None:
            await asyncio.sleep(leave)
            return Reply(0, b"", False, 0.0, 0.0)
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
    finally:
        writer.close()


async def chunks(reader: asyncio.StreamReader) -> tuple[bytes, bool]:
    """A chunked body, and whether it has its end."""
    parts: list[bytes] = []
    try:
        while size := int(await reader.readuntil(b"\r\n"), 16):
            parts.append((await reader.readexactly(size + 2))[:-2])
    except (asyncio.IncompleteReadError, ConnectionError, ValueError):
        return b"".join(parts), False
    return b"".join(parts), True


def request(port: int, path: str, body: object = None) -> bytes:
    """A well-formed request."""
    text = b"" if body is None else json.dumps(body).encode()
    lines = [f"{'GET' if body is None else 'POST'} {path} HTTP/1.1", f"Host: 127.0.0.1:{port}", "Connection: close"]
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
    """Users who each send a request when the last is answered: tokens per second while all of them are busy."""
    left, texts, arrived, firsts = iter(enumerate(requests)), {}, list[tuple[float, int]](), list[float]()

    async def user() -> None:
        for number, body in left:
            more = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
            reply = await ask(port, "/v1/completions", {**body, **more})
            if stream:
                text, tokens = streamed(reply)
            else:
                answer = json.loads(reply.body)
                text, tokens = answer.get("text", ""), answer["usage"]["completion_tokens"]
            texts[number] = text
            arrived.append((time.perf_counter(), tokens))
            firsts.append(reply.first)

    start = time.perf_counter()
    await asyncio.gather(*(user() for _ in range(users)))
    end = arrived[len(arrived) - users][0] if len(arrived) > users else arrived[-1][0]  # then users run out of requests
    seconds = end - start
    tokens = sum(count for at, count in arrived if at <= end)
    running = sum(count for _, count in arrived) - tokens  # of requests that were running then: about half of them
    firsts.sort()
    return {
        "tokens_per_second": (tokens + running / 2) / seconds, "all_tokens": tokens + running,
        "all_seconds": arrived[-1][0] - start, "seconds": seconds,
        "first_token_p50": firsts[len(firsts) // 2], "first_token_p99": firsts[int(0.99 * (len(firsts) - 1))],
        "texts": texts,
    }  # fmt: skip


def generate(quick: bool, rounds: int) -> dict[str, Any]:
    """GPT-2: streams beside offline batches and a loop around `transformers.generate`."""
    half = [] if quick else ["--bf16"]
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        path, precision = Path(folder) / "gpt2", "bf16" if half else "fp32"
        run([sys.executable, "-c", MAKE, str(path), "tiny" if quick else "gpt2"])
        print("model written", flush=True)
        requests = bodies(STREAMS * rounds, quick)
        length = round(sum(body["max_tokens"] for body in requests) / len(requests))
        given = json.dumps({"prompts": [body["prompt"] for body in requests[:STREAMS]], "length": length})
        offline = run([sys.executable, "-c", OFFLINE, str(path), precision], given)
        found["offline"] = json.loads(offline.splitlines()[-1])
        print("offline", found["offline"], flush=True)
        port = free_port()
        with server(heedful(path, port, "--slots", str(STREAMS), *half), port):
            asyncio.run(crowd(port, requests[:STREAMS], STREAMS, True))  # warm-up
            for name, temperature in (("greedy", 0.0), ("sampled", 1.0)):
                some = [{**body, "temperature": temperature} for body in requests]
                together = asyncio.run(crowd(port, some, STREAMS, True))
                alone = asyncio.run(crowd(port, some[:: len(some) // 12][:12], 1, True))
                same = [together["texts"][at * (len(some) // 12)] == text for at, text in alone["texts"].items()]
                found[name] = {key: value for key, value in together.items() if key != "texts"}
                found[name] |= {
                    "same_as_alone": f"{sum(same)} of {len(same)}",
                    "one_stream": alone["tokens_per_second"],
                }
                found[name]["of_offline"] = together["tokens_per_second"] / found["offline"][name]
                print(name, found[name], flush=True)
        port = free_port()
        with server(["-c", PEER, str(path), str(port), precision], port):
            peer = asyncio.run(crowd(port, requests[:6] if quick else requests[:24], STREAMS, False))
            tokens = peer["all_tokens"] / peer["all_seconds"]
            found["transformers"] = {"tokens_per_second": tokens, "requests": len(peer["texts"])}
            found["times_transformers"] = found["greedy"]["tokens_per_second"] / tokens
            print("transformers", found["transformers"], f"{found['times_transformers']:.1f} x", flush=True)
    found["goals"] = {
        "of offline": (found["greedy"]["of_offline"], GOALS["offline"]),
        "times transformers": (found["times_transformers"], GOALS["transformers"]),
    }
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
    parser.add_argument("--rounds", type=int, default=8, help="requests of each stream")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rounds = 2 if args.quick else args.rounds
    found = {"what": args.what, "quick": args.quick, "command": " ".join(sys.argv), **machine()}
    found |= generate(args.quick, rounds)
    out = args.out or RESULTS / f"serve-{args.what}{'-quick' if args.quick else ''}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {out}")


if __name__ == "__main__":
    main()
