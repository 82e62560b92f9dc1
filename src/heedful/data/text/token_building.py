"""Token files of running text while they are made: by several processes at once, and going on after a stop.

Until it is complete, everything lies in a folder of its own, whose journal says after each shard how far the files
are good. Whoever goes on reads the text from its beginning, makes sure that it is the same, and takes up there.
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
from heedful.data.text.files import Running
from heedful.data.text.text_stream import Amounts, Passage, Shard, encode_passages, passages, shards
from heedful.data.text.token_documents import (
    File,
    file_of,
    require_new,
    require_text,
    write_manifest,
    writing_errors,
)
from heedful.data.text.token_text import PARTS, PLACES, TextManifest
from heedful.data.tokenizers.lm_tokenization import LanguageTokenizer, Script, open_tokenizer, script_of
from heedful.errors import EXIT_GONE, UserError
from heedful.files.reading import entries, is_file, is_folder, read_file
from heedful.files.writing import sync_folder, write_new

SMALL = 1 << 16  # tokens that two bytes can tell apart
OWN = frozenset(("plan.json", "journal.jsonl", "lock", "tokens"))  # all that a folder has that is being made

Tell = Callable[[Split, int], None]  # hears the tokens of a split so far
Say = Callable[[str], None]


class Entry(Config):
    """What the journal says of a shard: which text it is, and how much."""

    split: Split
    text: str
    amounts: Amounts


class ChangedTextError(Exception):
    """The text is not the one that was begun with."""


class Growing:
    """The files of a split while they grow, cut to what the journal says that is good."""

    def __init__(self, folder: Path, split: Split, numbers: str, done: Amounts) -> None:
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
        """Write a shard, and see it onto the disk."""
        self._write("ids", shard.ids.astype(self.numbers).tobytes())
        self._write("documents", (shard.starts + self.tokens).astype(PLACES).tobytes())
        self.tokens += len(shard.ids)

    def end(self, begins: int) -> dict[str, File]:
        """Write the token that ends a text, and say what the files are."""
        import numpy as np

        self._write("ids", np.array([begins]).astype(self.numbers).tobytes())
        self.close()
        return {path.name: file_of(path) for path in self.paths.values()}

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
    splits: Mapping[Split, Callable[[], Running]],
    jobs: int,
    tell: Tell = lambda split, tokens: None,
    say: Say = lambda text: None,
) -> TextManifest:
    """Write the documents of each split into a new folder, which appears whole or not at all.

    The plan is all that decides what is written, apart from the text itself: what was begun by another one is dropped.
    """
    require_new(folder)
    todo = "free some space and give the same command again, which goes on from here, or name another folder"
    work = folder.with_name(folder.name + ".unfinished")
    try:
        with writing_errors(folder, todo), _held(work):
            _begin(work, json.dumps(plan, indent=2, sort_keys=True) + "\n", say)
            try:
                manifest = _build(work, learn, splits, jobs, tell, say)
            except ChangedTextError as changed:
                say(f"begins anew: {changed}")
                _clear(work)
                _begin(work, json.dumps(plan, indent=2, sort_keys=True) + "\n", say)
                manifest = _build(work, learn, splits, jobs, tell, say)
            os.rename(work / "tokens", folder)
            sync_folder(folder.parent)
            shutil.rmtree(work, ignore_errors=True)
    except BrokenProcessPool:
        raise UserError(
            "a process that makes tokens is missing", where="--jobs", found="it was killed, for want of memory perhaps",
            todo="give the same command again, which goes on from here; fewer --jobs need less memory",
            exit_code=EXIT_GONE,
        ) from None  # fmt: skip
    return manifest


@contextmanager
def _held(work: Path) -> Iterator[None]:
    """The folder that is being made, for this process alone."""
    work.mkdir(parents=True, exist_ok=True)
    inside = [*entries(work), *(entries(work / "tokens") if is_folder(work / "tokens") else [])]
    links = [path.name for path in inside if path.is_symlink()]  # nothing is written through one
    if strange := [*links, *sorted(set(os.listdir(work)) - OWN)]:
        raise UserError(
            "this folder holds something else than unfinished token files", where=str(work), found=strange[0],
            todo="move it away, or name another folder",
        )  # fmt: skip
    with open(work / "lock", "a", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                "another process makes these token files", where=str(work), todo="wait until it ends"
            ) from None
        yield


def _begin(work: Path, plan: str, say: Say) -> None:
    """See to it that what is there was begun by this plan."""
    path = work / "plan.json"
    if is_file(path):
        if read_file(path).decode(errors="replace") == plan:
            return
        say("begins anew: the recipe or the files of text have changed since the last time")
    _clear(work)
    (work / "tokens").mkdir()
    write_new(path, plan.encode())


def _clear(work: Path) -> None:
    """Remove what was begun; the plan goes first, so that what is left half removed is never taken up."""
    for name in ("plan.json", "journal.jsonl"):
        (work / name).unlink(missing_ok=True)
    shutil.rmtree(work / "tokens", ignore_errors=True)


def _build(
    work: Path,
    learn: Callable[[], LanguageTokenizer],
    splits: Mapping[Split, Callable[[], Running]],
    jobs: int,
    tell: Tell,
    say: Say,
) -> TextManifest:
    tokens = work / "tokens"
    tokenizer = _tokenizer(tokens / "tokenizer.json", learn)
    numbers: Literal["<u2", "<u4"] = "<u2" if tokenizer.vocab <= SMALL else "<u4"
    script = script_of(tokenizer)
    entries = _journal(work / "journal.jsonl")
    if entries:
        say(f"goes on after {sum(entry.amounts.tokens for entry in entries):,} tokens that are there")
    files, amounts = {"tokenizer.json": file_of(tokens / "tokenizer.json")}, {}
    with open(work / "journal.jsonl", "a", encoding="utf-8") as journal:
        for split, documents in splits.items():
            done = [entry for entry in entries if entry.split == split]
            total = sum((entry.amounts for entry in done), Amounts())
            growing = Growing(tokens, split, numbers, total)
            try:
                todo = _undone(shards(passages(documents(), script.cut)), done)
                for text, shard in _encoded(todo, tokenizer, script, jobs):
                    growing.add(shard)
                    entry = Entry(split=split, text=text, amounts=shard.amounts)
                    journal.write(json.dumps(entry.model_dump()) + "\n")
                    journal.flush()
                    os.fsync(journal.fileno())
                    total += shard.amounts
                    tell(split, total.tokens)
                require_text(split, total.tokens)
                files |= growing.end(script.begins)
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
    """The tokenizer, learned once and kept."""
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
    """The shards that are not there yet, each with the name of its text; those that are must be of the same text."""
    number = -1
    for number, some in enumerate(found):
        name = text_name(some)
        if number >= len(done):
            yield name, some
        elif name != done[number].text:
            raise ChangedTextError("the text has changed since the last time")
    if number + 1 < len(done):
        raise ChangedTextError("the text has become shorter since the last time")


def text_name(some: Sequence[Passage]) -> str:
    """What tells the text of some passages from any other."""
    digest = hashlib.sha256()
    for passage in some:
        data = passage.text.encode(errors="surrogatepass")
        digest.update(f"{len(data)} {passage.begins:d} ".encode() + data)
    return digest.hexdigest()


def _encoded(
    todo: Iterable[tuple[str, list[Passage]]], tokenizer: LanguageTokenizer, script: Script, jobs: int
) -> Iterator[tuple[str, Shard]]:
    """Shards as ids, in their order; few of them are in memory at a time."""
    if jobs == 1:
        yield from ((name, encode_passages(some, script)) for name, some in todo)
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


_own: list[Script] = []  # how this process writes texts as ids, if it is one of several


def _hired(tokenizer: str) -> None:
    """Make a process ready to work: alone on its core, until the one that hired it is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _own.append(script_of(open_tokenizer(tokenizer, "tokenizer.json")))
    threading.Thread(target=_leave_with_parent, daemon=True).start()


def _leave_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _work(some: list[Passage]) -> Shard:
    return encode_passages(some, _own[0])


def cores() -> int:
    """How many CPU cores there are."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
