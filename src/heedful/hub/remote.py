"""Model folders from the Hugging Face Hub and to it, by the huggingface_hub package; nothing else opens a connection.

A revision is resolved to the hash of its commit first, and every file is compared with the hashes of that commit. Only
weights as safetensors, and the settings and vocabularies beside them, are downloaded.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from heedful.errors import UserError, shown
from heedful.files.folders import path_inside
from heedful.files.reading import is_file, is_folder, open_file
from heedful.files.writing import disk_errors

REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
WANTED = re.compile(  # at the top, or in the folder of a module of sentence-transformers
    r"(\d+_[A-Za-z]+/)?([\w.-]+\.safetensors|[\w.-]+\.json|vocab\.txt|merges\.txt|[\w.-]+\.(model|spm))", re.ASCII
)
PICKLE = re.compile(r"(\d+_[A-Za-z]+/)?[\w.-]+\.(bin|pt|pth|ckpt|h5|msgpack|pkl)", re.ASCII)
TOPS = ("", "0_Transformer")  # folders that the weights of the model itself may be in
ABOUT = "source.json"  # where a folder came from
MOST_FILES = 2000
UNCHECKED = (ValueError, TypeError, LookupError, AttributeError, RecursionError)  # of answers that are no JSON of a hub
USUAL = "https://huggingface.co"
DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG,
        errno.ENOTDIR, errno.EISDIR)  # fmt: skip


class RemoteFile(NamedTuple):
    """A file of a commit: its size, and its SHA-256, or the SHA-1 by which git names it."""

    name: str
    size: int
    sha256: str | None
    blob: str | None


class Pulled(NamedTuple):
    """What was downloaded: the hash of the commit, and the files."""

    commit: str
    files: tuple[RemoteFile, ...]

    @property
    def size(self) -> int:
        """The number of bytes."""
        return sum(file.size for file in self.files)


def require_hub(repository: str) -> None:
    """Refuse an invalid name of a repository, and say how to install the package if it is missing."""
    if not REPOSITORY.fullmatch(repository) or ".." in repository or repository.endswith(".git"):
        raise UserError(
            "this is not the name of a repository", found=shown(repository), expected="ORG/NAME",
            todo="copy the name from the page of the model",
        )  # fmt: skip
    if find_spec("huggingface_hub") is None:
        raise UserError(
            "this needs the package huggingface_hub", found="it is not installed", todo="pip install 'heedful[hub]'"
        )
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("HF_HUB_DISABLE_XET", "1")  # files come from one address alone
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")


def hub_note() -> str | None:
    """A note where the token goes to another hub than the usual one."""
    from huggingface_hub import constants, get_token

    if constants.ENDPOINT.rstrip("/") == USUAL or constants.HF_HUB_DISABLE_IMPLICIT_TOKEN or get_token() is None:
        return None
    open_text = "" if urlsplit(constants.ENDPOINT).scheme == "https" else ", unencrypted"
    return (
        f"HF_ENDPOINT is {constants.ENDPOINT}, and your token is sent there{open_text}; "
        "HF_HUB_DISABLE_IMPLICIT_TOKEN=1 keeps it back"
    )


def pull(
    repository: str, target: Path, revision: str = "main", progress: Callable[[RemoteFile], None] | None = None
) -> Pulled:
    """Download a model into a new folder; after an interruption, the files that are complete are kept."""
    require_hub(repository)
    from huggingface_hub import HfApi, hf_hub_download

    with disk_errors(target.absolute().parent, "write the model"):
        with hub_errors(repository):
            info = HfApi().model_info(repository, revision=revision, files_metadata=True)
        commit = str(info.sha)
        if not re.fullmatch("[0-9a-f]{40}", commit):
            raise UserError("the hub names no commit for this revision", where=repository, found=shown(info.sha))
        with hub_errors(repository):
            files = _wanted(repository, commit, info.siblings or [])
        part = target.with_name(f".{target.name}.{commit[:12]}.part")
        for file in files:
            if progress is not None:
                progress(file)
            with hub_errors(repository):
                hf_hub_download(repository, file.name, revision=commit, local_dir=part)
            path = path_inside(part, file.name)
            if (differs := _difference(path, file, repository)) is not None:
                path.unlink()  # so that it is downloaded again
                raise differs.error(
                    "a file differs from that of the commit", "try again; if it persists, do not use this repository"
                )
        shutil.rmtree(part / ".cache", ignore_errors=True)
        about = {"repository": repository, "revision": revision, "commit": commit, "files": {}}
        about["files"] = {file.name: _hashes(part / file.name)[0] for file in files}
        (part / ABOUT).write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
        part.rename(target)
    return Pulled(commit, files)


class Pushed(NamedTuple):
    """What was uploaded: the hash of the commit, other files of a model there, and whether not all can see it."""

    commit: str
    others: tuple[str, ...]
    private: bool


def push(repository: str, folder: Path, private: bool = True) -> Pushed:
    """Upload a Hugging Face folder as one commit, and compare what the hub stored."""
    require_hub(repository)
    from huggingface_hub import HfApi

    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if is_file(path))
    with disk_errors(folder, "upload the model"), hub_errors(repository):
        api = HfApi()
        api.create_repo(repository, private=private, exist_ok=True)
        if private and api.model_info(repository).private is False:
            raise UserError(
                "this repository is there already, and can be seen by all", where=repository,
                expected="a private one", todo="choose another name, or add --public",
            )  # fmt: skip
        made = api.upload_folder(
            repo_id=repository, folder_path=folder, allow_patterns=names, commit_message="Upload from Heedful"
        )
        info = api.model_info(repository, revision=made.oid, files_metadata=True)
    stored = {file.rfilename: _remote(file) for file in info.siblings or []}
    for name in names:
        if name not in stored:
            raise UserError("the hub does not list a file that was uploaded", where=f"{repository}: {name}")
        if (differs := _difference(folder / name, stored[name], repository)) is not None:
            raise differs.error("the hub stored another file than the one uploaded", "try again")
    others = tuple(name for name in stored if WANTED.fullmatch(name) and name not in names)
    return Pushed(str(made.oid), others, bool(info.private))


def _wanted(repository: str, commit: str, siblings: list[Any]) -> tuple[RemoteFile, ...]:
    """The files to download; a repository without weights as safetensors is refused."""
    names = [str(file.rfilename) for file in siblings]
    files = tuple(
        _remote(file) for file in siblings if WANTED.fullmatch(str(file.rfilename)) and file.rfilename != ABOUT
    )
    safe = {_folder_of(file.name) for file in files if file.name.endswith(".safetensors")}
    pickles = [name for name in names if PICKLE.fullmatch(name) and _folder_of(name) not in safe]
    bare = not safe & set(TOPS)
    if pickles and (bare or any("/" in name for name in pickles)):
        raise UserError(
            "the weights of this repository are a pickle, which could run code", where=repository,
            found=", ".join(pickles[:5]), expected="model.safetensors",
            todo="name a --revision with safetensors, if there is one, such as refs/pr/1; or download the files, and "
            f"convert them safely: hf download {repository} --revision {commit} --local-dir FOLDER, then "
            "heedful convert FOLDER NEW_FOLDER",
        )  # fmt: skip
    if bare:
        raise UserError(
            "this repository has no weights", where=repository, found=", ".join(names[:10]) or "no files",
            expected="model.safetensors", todo="choose the repository of a model",
        )  # fmt: skip
    if len(files) > MOST_FILES:
        raise UserError("this repository has too many files", where=repository, found=f"{len(files):,}")
    return files


def _folder_of(name: str) -> str:
    return name.rpartition("/")[0]


def _remote(file: Any) -> RemoteFile:
    """What the hub says about a file."""
    sha256 = None if file.lfs is None else str(file.lfs.sha256)
    return RemoteFile(str(file.rfilename), int(file.size or 0), sha256, file.blob_id)


class Difference(NamedTuple):
    """A file, its hash and size, and those of the commit."""

    where: str
    found: str
    expected: str

    def error(self, title: str, todo: str) -> UserError:
        """The error that names it."""
        return UserError(title, where=self.where, found=self.found, expected=self.expected, todo=todo)


def _difference(path: Path, file: RemoteFile, repository: str) -> Difference | None:
    """Where a file differs from that of the commit; None if it is the same."""
    sha256, blob = _hashes(path)
    if file.sha256 is None and file.blob is None:
        raise UserError("the hub gives no hash of a file", where=f"{repository}: {file.name}")
    found, expected = (sha256, file.sha256) if file.sha256 is not None else (blob, file.blob)
    if found == expected:
        return None
    size = path.stat().st_size
    return Difference(
        f"{repository}: {file.name}", f"hash {found}, {size:,} bytes", f"hash {expected}, {file.size:,} bytes"
    )


def _hashes(path: Path) -> tuple[str, str]:
    """The SHA-256 of a file, and the SHA-1 by which git names it."""
    whole, blob = hashlib.sha256(), hashlib.sha1(f"blob {path.stat().st_size}\0".encode(), usedforsecurity=False)
    with open_file(path) as file:
        while piece := file.read(1 << 20):
            whole.update(piece)
            blob.update(piece)
    return whole.hexdigest(), blob.hexdigest()


@contextmanager
def hub_errors(repository: str) -> Iterator[None]:
    """Problems with the hub as errors for the user, without the token."""
    from huggingface_hub import errors
    from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]  # of whichever client the package uses

    try:
        yield
    except errors.HFValidationError as error:
        raise UserError(
            "this is not the name of a repository", found=shown(repository), expected="ORG/NAME",
            todo="copy the name from the page of the model",
        ) from error  # fmt: skip
    except errors.GatedRepoError as error:
        raise UserError(
            "this repository is for those who accepted its conditions", where=repository,
            todo="accept them on its page, then set HF_TOKEN to a token that may read it, or `hf auth login`",
        ) from error  # fmt: skip
    except errors.RepositoryNotFoundError as error:
        raise UserError(
            "there is no such repository, or it is private", where=repository,
            todo="check the name; for a private one, set HF_TOKEN to a token that may read it, or `hf auth login`",
        ) from error  # fmt: skip
    except errors.RevisionNotFoundError as error:
        raise UserError(
            "there is no such revision", where=repository, todo="name a branch, a tag or a commit of this repository"
        ) from error
    except errors.OfflineModeIsEnabled as error:
        raise UserError("HF_HUB_OFFLINE forbids connections", where=repository, todo="unset HF_HUB_OFFLINE") from error
    except errors.HfHubHTTPError as error:
        denied = error.response is not None and error.response.status_code in (401, 403)
        raise UserError(
            "the hub refused the request", where=repository,
            found="" if error.response is None else f"status {error.response.status_code}",
            todo="set HF_TOKEN to a token with the rights for it" if denied else "try again later",
        ) from error  # fmt: skip
    except (HTTPError, OSError) as error:
        if isinstance(error, OSError) and error.errno in DISK:
            raise
        raise UserError(
            "the connection to the hub failed", where=repository, found=f"{type(error).__name__}: {error}"[:300],
            todo="try again: files that are complete are not sent again",
        ) from error  # fmt: skip
    except UNCHECKED as error:
        raise UserError(
            "this answer of the hub is not understood", where=repository,
            found=f"{type(error).__name__}: {error}"[:300],
            todo="is it the hub that answers, and not a proxy or a login page?",
        ) from error  # fmt: skip


def require_free(target: Path) -> None:
    """Refuse a target that is there already."""
    if os.path.lexists(target):
        raise UserError(
            "the target already exists", where=str(target), expected="a new name", todo="choose another path"
        )
    if not is_folder(target.absolute().parent):
        raise UserError("there is no such folder", where=str(target.parent), todo="create it, or choose another path")
