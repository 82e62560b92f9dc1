"""Writing token files of text with several processes, resumable after an interruption.

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
from heedful.data.text.token_text import PARTS, PLACES, TextManifest
from heedful.data.tokenizers.lm_tokenization import LanguageTokenizer, TextCodec, codec_of, open_tokenizer
from heedful.errors import EXIT_GONE, UserError
from heedful.files.reading import entries, is_file, is_folder, read_file
from heedful.files.writing import sync_folder, write_new

SMALL = 1 << 16  # token ids that fit into two bytes
OWN = frozenset(("plan.json", "journal.jsonl", "lock", "tokens"))  # the entries of an unfinished folder

Tell = Callable[[Split, int], None]  # called with the tokens of a split so far
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
        sizes = {"ids": done.tokens * int(numbers[-1]), "documents": done.documents * int(PLACES[-1])}
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
        self._write("documents", (shard.starts + self.tokens).astype(PLACES).tobytes())
        self.tokens += len(shard.ids)

    def end(self, begins: int) -> dict[str, FileEntry]:
        """Write the final token and return the manifest entries of the files."""
        import numpy as np

        self._write("ids", np.array([begins]).astype(self.numbers).tobytes())
        self.close()
        return {path.name: hash_file(path) for path in self.paths.values()}

    def close(self) -> None:
        """Let go of the files."""
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
    learn: Callable[[], LanguageTokenizer],
    splits: Mapping[Split, Callable[[], DocumentStream]],
    jobs: int,
    tell: Tell = lambda split, tokens: None,
    say: Say = lambda text: None,
) -> TextManifest:
    """Write the documents of each split into a new folder, which appears whole or not at all.

    The plan determines everything that is written, besides the text itself: work from another plan is dropped.
    """
    require_new(folder)
    todo = "free some space and run the same command again to continue, or name another folder"
    work = folder.with_name(folder.name + ".unfinished")
    try:
        with writing_errors(folder, todo), _held(work):
            _begin(work, json.dumps(plan, indent=2, sort_keys=True) + "\n", say)
            try:
                manifest = _build(work, learn, splits, jobs, tell, say)
            except ChangedTextError as changed:
                say(f"starts over: {changed}")
                _clear(work)
                _begin(work, json.dumps(plan, indent=2, sort_keys=True) + "\n", say)
                manifest = _build(work, learn, splits, jobs, tell, say)
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
def _held(work: Path) -> Iterator[None]:
    """Lock the unfinished folder for this process."""
    work.mkdir(parents=True, exist_ok=True)
    inside = [*entries(work), *(entries(work / "tokens") if is_folder(work / "tokens") else [])]
    links = [path.name for path in inside if path.is_symlink()]  # nothing is written through one
    if strange := [*links, *sorted(set(os.listdir(work)) - OWN)]:
        raise UserError(
            "this folder holds something other than unfinished token files", where=str(work), found=strange[0],
            todo="move it away, or name another folder",
        )  # fmt: skip
    with open(work / "lock", "a", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                "another process is writing these token files", where=str(work), todo="wait until it ends"
            ) from None
        yield


def _begin(work: Path, plan: str, say: Say) -> None:
    """Make sure that existing work was started with this plan."""
    path = work / "plan.json"
    if is_file(path):
        if read_file(path).decode(errors="replace") == plan:
            return
        say("starts over: the recipe or the text files have changed since the last run")
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
    learn: Callable[[], LanguageTokenizer],
    splits: Mapping[Split, Callable[[], DocumentStream]],
    jobs: int,
    tell: Tell,
    say: Say,
) -> TextManifest:
    tokens = work / "tokens"
    tokenizer = _tokenizer(tokens / "tokenizer.json", learn)
    numbers: Literal["<u2", "<u4"] = "<u2" if tokenizer.vocab <= SMALL else "<u4"
    codec = codec_of(tokenizer)
    entries = _journal(work / "journal.jsonl")
    if entries:
        say(f"goes on after {sum(entry.amounts.tokens for entry in entries):,} tokens that are there")
    files, amounts = {"tokenizer.json": hash_file(tokens / "tokenizer.json")}, {}
    with open(work / "journal.jsonl", "a", encoding="utf-8") as journal:
        for split, documents in splits.items():
            done = [entry for entry in entries if entry.split == split]
            total = sum((entry.amounts for entry in done), TextCounts())
            growing = SplitWriter(tokens, split, numbers, total)
            try:
                todo = _undone(shards(passages(documents(), codec.split_point)), done)
                for text, shard in _encoded(todo, tokenizer, codec, jobs):
                    growing.add(shard)
                    entry = Entry(split=split, text=text, amounts=shard.amounts)
                    journal.write(json.dumps(entry.model_dump()) + "\n")
                    journal.flush()
                    os.fsync(journal.fileno())
                    total += shard.amounts
                    tell(split, total.tokens)
                require_text(split, total.tokens)
                files |= growing.end(codec.start_id)
            finally:
                growing.close()
            amounts[split] = total
    manifest = TextManifest(
        format=1, kind="text", vocab=tokenizer.vocab, numbers=numbers, splits=amounts, files=files
    )  # fmt: skip
    (tokens / "manifest.json").unlink(missing_ok=True)
    write_manifest(tokens, manifest)
    sync_folder(tokens)
    return manifest


def _tokenizer(path: Path, learn: Callable[[], LanguageTokenizer]) -> LanguageTokenizer:
    """The tokenizer, trained once and stored."""
    if not is_file(path):
        learned = learn()
        part = path.with_name("tokenizer.json.part")
        part.unlink(missing_ok=True)
        write_new(part, learned.json.encode())
        os.rename(part, path)
    return open_tokenizer(read_file(path).decode(), str(path))


def _journal(path: Path) -> list[Entry]:
    """The shards that are there, and a journal that ends with the last of them."""
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


def _undone(found: Iterable[list[Passage]], done: Sequence[Entry]) -> Iterator[tuple[str, list[Passage]]]:
    """The shards that are not done yet, each with the hash of its text; the others must be unchanged."""
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


def _encoded(
    todo: Iterable[tuple[str, list[Passage]]], tokenizer: LanguageTokenizer, codec: TextCodec, jobs: int
) -> Iterator[tuple[str, Shard]]:
    """Shards as ids, in their order; few of them are in memory at a time."""
    if jobs == 1:
        yield from ((name, encode_passages(some, codec)) for name, some in todo)
        return
    waiting: deque[tuple[str, Future[Shard]]] = deque()
    with ProcessPoolExecutor(jobs, get_context("spawn"), _hired, (tokenizer.json,)) as pool:
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


_own: list[TextCodec] = []  # how this process writes texts as ids, if it is one of several


def _hired(tokenizer: str) -> None:
    """Initialize a worker process: one thread, and exit when the parent does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _own.append(codec_of(open_tokenizer(tokenizer, "tokenizer.json")))
    threading.Thread(target=_leave_with_parent, daemon=True).start()


def _leave_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _work(some: list[Passage]) -> Shard:
    return encode_passages(some, _own[0])


def cpu_cores() -> int:
    """How many CPU cores there are."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
