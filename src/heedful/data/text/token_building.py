"""Write token files of text with several processes; an interrupted command can be resumed.

Until it is complete, everything is in a folder of its own, whose journal records after each shard how much of the files
is valid. Resuming reads the text from its beginning, checks that it is the same, and continues from there.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from heedful.config import Config
from heedful.data.formats.sources import Split
from heedful.data.text.files import DocumentStream
from heedful.data.text.text_stream import Passage, Shard, TextCounts, encode_passages, passages, shards
from heedful.data.text.token_documents import (
    FileEntry,
    hash_file,
    require_new,
    require_text,
    write_manifest,
    writing_errors,
)
from heedful.data.text.token_text import PARTS, STARTS, TextManifest
from heedful.data.tokenizers.lm_tokenization import LanguageTokenizer, TextCodec, codec_of, open_tokenizer
from heedful.errors import EXIT_GONE, UserError
from heedful.files.reading import entries, is_file, is_folder, read_file
from heedful.files.writing import sync_folder, write_new

SMALL = 1 << 16  # token ids that fit into two bytes
OWN = frozenset(("plan.json", "journal.jsonl", "lock", "tokens"))  # the entries of an unfinished folder

Progress = Callable[[Split, int], None]  # called with the number of tokens of a split so far
Say = Callable[[str], None]


class Entry(Config):
    """A journal entry of a shard: the hash of its text, and its counts."""

    split: Split
    text: str
    amounts: TextCounts


class ChangedTextError(Exception):
    """The text has changed since the last run."""


class SplitWriter:
    """The growing files of a split, truncated to what the journal records as valid."""

    def __init__(self, folder: Path, split: Split, numbers: str, done: TextCounts) -> None:
        self.numbers = numbers
        self.paths = {part: folder / f"{split}.{part}" for part in PARTS}
        sizes = {"ids": done.tokens * int(numbers[-1]), "documents": done.documents * int(STARTS[-1])}
        for part, path in self.paths.items():
            path.touch()
            if path.stat().st_size < sizes[part]:
                raise ChangedTextError(f"{path.name} is shorter than its journal says")
            os.truncate(path, sizes[part])
        self.files = {part: path.open("ab") for part, path in self.paths.items()}
        self.tokens = done.tokens

    def add(self, shard: Shard) -> None:
        """Write a shard and sync it to disk."""
        self._write("ids", shard.ids.astype(self.numbers).tobytes())
        self._write("documents", (shard.starts + self.tokens).astype(STARTS).tobytes())
        self.tokens += len(shard.ids)

    def end(self, begins: int) -> dict[str, FileEntry]:
        """Write the final token and return the manifest entries of the files."""
        import numpy as np

        self._write("ids", np.array([begins]).astype(self.numbers).tobytes())
        self.close()
        return {path.name: hash_file(path) for path in self.paths.values()}

    def close(self) -> None:
        """Close the files."""
        for file in self.files.values():
            file.close()

    def _write(self, part: str, data: bytes) -> None:
        file = self.files[part]
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def build_tokens(
    folder: Path,
    plan: Mapping[str, Any],
    train: Callable[[], LanguageTokenizer],
    splits: Mapping[Split, Callable[[], DocumentStream]],
    jobs: int,
    progress: Progress = lambda split, tokens: None,
    say: Say = lambda text: None,
) -> TextManifest:
    """Write the token files of each split into a new folder atomically; the tokenizer is trained by `train` if needed.

    The plan is everything besides the text that determines the files: unfinished work of another plan is deleted.
    """
    require_new(folder)
    todo = "free some space and run the same command again to continue, or name another folder"
    work = folder.with_name(folder.name + ".unfinished")
    try:
        with writing_errors(folder, todo), _lock(work):
            _prepare(work, json.dumps(plan, indent=2, sort_keys=True) + "\n", say)
            try:
                manifest = _build(work, train, splits, jobs, progress, say)
            except ChangedTextError as changed:
                say(f"starting over: {changed}")
                _clear(work)
                _prepare(work, json.dumps(plan, indent=2, sort_keys=True) + "\n", say)
                manifest = _build(work, train, splits, jobs, progress, say)
            os.rename(work / "tokens", folder)
            sync_folder(folder.parent)
            shutil.rmtree(work, ignore_errors=True)
    except BrokenProcessPool:
        raise UserError(
            "a tokenization process has died", where="--jobs", found="it was killed, perhaps for running out of memory",
            todo="run the same command again to continue; fewer --jobs need less memory", exit_code=EXIT_GONE,
        ) from None  # fmt: skip
    return manifest


@contextmanager
def _lock(work: Path) -> Iterator[None]:
    """Lock the unfinished folder for this process."""
    work.mkdir(parents=True, exist_ok=True)
    inside = [*entries(work), *(entries(work / "tokens") if is_folder(work / "tokens") else [])]
    links = [path.name for path in inside if path.is_symlink()]  # nothing is written through links
    if strange := [*links, *sorted(set(os.listdir(work)) - OWN)]:
        raise UserError(
            "this folder contains other files than unfinished token files", where=str(work), found=strange[0],
            todo="move them away, or name another folder",
        )  # fmt: skip
    with open(work / "lock", "a", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                "another process is writing these token files", where=str(work), todo="wait until it ends"
            ) from None
        yield


def _prepare(work: Path, plan: str, say: Say) -> None:
    """Create the unfinished folder; work of another plan is deleted."""
    path = work / "plan.json"
    if is_file(path):
        if read_file(path).decode(errors="replace") == plan:
            return
        say("starting over: the recipe or the text files have changed since the last run")
    _clear(work)
    (work / "tokens").mkdir()
    write_new(path, plan.encode())


def _clear(work: Path) -> None:
    """Remove unfinished work; the plan goes first, so that a partial removal is never resumed."""
    for name in ("plan.json", "journal.jsonl"):
        (work / name).unlink(missing_ok=True)
    shutil.rmtree(work / "tokens", ignore_errors=True)


def _build(
    work: Path,
    train: Callable[[], LanguageTokenizer],
    splits: Mapping[Split, Callable[[], DocumentStream]],
    jobs: int,
    progress: Progress,
    say: Say,
) -> TextManifest:
    tokens = work / "tokens"
    tokenizer = _tokenizer(tokens / "tokenizer.json", train)
    numbers: Literal["<u2", "<u4"] = "<u2" if tokenizer.vocab <= SMALL else "<u4"
    codec = codec_of(tokenizer)
    entries = _journal(work / "journal.jsonl")
    if entries:
        say(f"resuming after {sum(entry.amounts.tokens for entry in entries):,} tokens")
    files, amounts = {"tokenizer.json": hash_file(tokens / "tokenizer.json")}, {}
    with open(work / "journal.jsonl", "a", encoding="utf-8") as journal:
        for split, documents in splits.items():
            done = [entry for entry in entries if entry.split == split]
            total = sum((entry.amounts for entry in done), TextCounts())
            writer = SplitWriter(tokens, split, numbers, total)
            try:
                remaining = _remaining(shards(passages(documents(), codec.split_point)), done)
                for text, shard in _encode_shards(remaining, tokenizer, codec, jobs):
                    writer.add(shard)
                    entry = Entry(split=split, text=text, amounts=shard.amounts)
                    journal.write(json.dumps(entry.model_dump()) + "\n")
                    journal.flush()
                    os.fsync(journal.fileno())
                    total += shard.amounts
                    progress(split, total.tokens)
                require_text(split, total.tokens)
                files |= writer.end(codec.start_id)
            finally:
                writer.close()
            amounts[split] = total
    manifest = TextManifest(
        format=1, kind="text", vocab=tokenizer.vocab, numbers=numbers, splits=amounts, files=files
    )  # fmt: skip
    (tokens / "manifest.json").unlink(missing_ok=True)
    write_manifest(tokens, manifest)
    sync_folder(tokens)
    return manifest


def _tokenizer(path: Path, train: Callable[[], LanguageTokenizer]) -> LanguageTokenizer:
    """The tokenizer, trained once and stored."""
    if not is_file(path):
        learned = train()
        part = path.with_name("tokenizer.json.part")
        part.unlink(missing_ok=True)
        write_new(part, learned.json.encode())
        os.rename(part, path)
    return open_tokenizer(read_file(path).decode(), str(path))


def _journal(path: Path) -> list[Entry]:
    """The completed shards; an incomplete last line of the journal is removed."""
    found: list[Entry] = []
    good = 0
    if not is_file(path):
        return found
    for line in read_file(path).splitlines(keepends=True):
        try:
            found.append(Entry(**json.loads(line)))
        except (ValueError, TypeError, ValidationError):
            break
        if not line.endswith(b"\n"):
            found.pop()
            break
        good += len(line)
    os.truncate(path, good)
    return found


def _remaining(found: Iterable[list[Passage]], done: Sequence[Entry]) -> Iterator[tuple[str, list[Passage]]]:
    """The remaining shards, each with the hash of its text; the text of completed ones must be unchanged."""
    number = -1
    for number, some in enumerate(found):
        name = text_hash(some)
        if number >= len(done):
            yield name, some
        elif name != done[number].text:
            raise ChangedTextError("the text has changed since the last run")
    if number + 1 < len(done):
        raise ChangedTextError("the text has become shorter since the last run")


def text_hash(some: Sequence[Passage]) -> str:
    """A SHA-256 over passages."""
    digest = hashlib.sha256()
    for passage in some:
        data = passage.text.encode(errors="surrogatepass")
        digest.update(f"{len(data)} {passage.begins:d} ".encode() + data)
    return digest.hexdigest()


def _encode_shards(
    todo: Iterable[tuple[str, list[Passage]]], tokenizer: LanguageTokenizer, codec: TextCodec, jobs: int
) -> Iterator[tuple[str, Shard]]:
    """Encode shards in order; few of them are in memory at a time."""
    if jobs == 1:
        yield from ((name, encode_passages(some, codec)) for name, some in todo)
        return
    waiting: deque[tuple[str, Future[Shard]]] = deque()
    with ProcessPoolExecutor(jobs, get_context("spawn"), _initialize_worker, (tokenizer.json,)) as pool:
        try:
            for name, some in todo:
                waiting.append((name, pool.submit(_work, some)))
                if len(waiting) > jobs:
                    first, shard = waiting.popleft()
                    yield first, shard.result()
            while waiting:
                first, shard = waiting.popleft()
                yield first, shard.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


_codec: list[TextCodec] = []  # of a worker process


def _initialize_worker(tokenizer: str) -> None:
    """Initialize a worker process: one thread, and exit when the parent does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _codec.append(codec_of(open_tokenizer(tokenizer, "tokenizer.json")))
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _work(some: list[Passage]) -> Shard:
    return encode_passages(some, _codec[0])


def cpu_cores() -> int:
    """The number of CPU cores."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
