"""A server on loopback that answers as the Hugging Face Hub does."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "hf_correct"
LARGE = (".safetensors", ".bin", ".spm")  # kept as LFS files


def commit_of(files: dict[str, bytes]) -> str:
    return hashlib.sha1(repr(sorted(files.items())).encode()).hexdigest()


def git_name(data: bytes) -> str:
    """The hash by which git, and the hub, names a file; of a large file, its SHA-256."""
    return hashlib.sha1(f"blob {len(data)}\0".encode() + data).hexdigest()


class Hub:
    """The repositories: files by name, and how the server misbehaves."""

    def __init__(self) -> None:
        self.models: dict[str, dict[str, bytes]] = {}
        self.private: set[str] = set()
        self.gated: set[str] = set()
        self.more: dict[str, bytes] = {}  # files with odd names that the server lists
        self.elsewhere: str | None = None  # another server, to which downloads of large files are sent
        self.tokens: list[str | None] = []  # what each request has as its token
        self.lies: dict[str, bytes] = {}  # other contents than those of the commit
        self.garble: Callable[[str, bytes], bytes] = lambda path, body: body  # what becomes of an answer
        self.cuts = 0  # downloads of large files that break off
        self.requests: list[str] = []
        self.uploads: dict[str, bytes] = {}


def handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *words: Any) -> None:
            hub.requests.append(f"{self.command} {self.path}")
            hub.tokens.append(self.headers.get("Authorization"))

        def reply(self, status: int, body: bytes = b"", **headers: str) -> None:
            body = hub.garble(self.path, body)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("Content-Length", headers.pop("Length", str(len(body))))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def body(self) -> bytes:
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))

        def json(self, value: Any) -> None:
            self.reply(200, json.dumps(value).encode(), Content_Type="application/json")

        def files(self, name: str) -> dict[str, bytes] | None:
            if name in hub.gated:
                self.reply(403, b"{}", X_Error_Code="GatedRepo", X_Error_Message="Access to it is restricted")
                return None
            allowed = name not in hub.private or self.headers.get("Authorization") == f"Bearer {TOKEN}"
            if name in hub.models and allowed:
                return hub.models[name]
            self.reply(401, b"{}", X_Error_Code="RepoNotFound", X_Error_Message="Repository not found")
            return None

        def do_GET(self) -> None:
            path = self.path.split("?")[0].strip("/").split("/")
            if path[:2] == ["api", "models"]:
                self.info("/".join(path[2:4]), path[5] if len(path) > 5 else "main")
            elif len(path) > 3 and path[2] == "resolve":
                self.download("/".join(path[:2]), "/".join(path[4:]))
            else:
                self.reply(404)

        do_HEAD = do_GET  # noqa: N815

        def info(self, name: str, revision: str) -> None:
            if (files := self.files(name)) is None:
                return
            commit = commit_of(files)
            if revision not in ("main", commit):
                self.reply(404, b"{}", X_Error_Code="RevisionNotFound", X_Error_Message="no revision")
                return
            siblings: list[dict[str, Any]] = []
            for file, data in {**files, **hub.more}.items():
                blob = git_name(data) if not file.endswith(LARGE) else "0" * 40
                one: dict[str, Any] = {"rfilename": file, "size": len(data), "blobId": blob}
                if file.endswith(LARGE):
                    sha = hashlib.sha256(data).hexdigest()
                    one["lfs"] = {"sha256": sha, "size": len(data), "pointerSize": 134}
                siblings.append(one)
            about = {"sha": commit, "siblings": siblings, "tags": [], "private": name in hub.private}
            self.json({"id": name, "modelId": name, **about})

        def download(self, name: str, file: str) -> None:
            if (files := self.files(name)) is None:
                return
            if file not in files:
                self.reply(404, b"{}", X_Error_Code="EntryNotFound")
                return
            data = hub.lies.get(file, files[file])
            etag = f'"{hashlib.sha256(files[file]).hexdigest()}"'
            headers = {"ETag": etag, "X_Repo_Commit": commit_of(files), "Accept_Ranges": "bytes"}
            if hub.elsewhere is not None and file.endswith(LARGE):
                size = {"X_Linked_Size": str(len(data)), "X_Linked_ETag": etag}
                self.reply(302, Location=f"{hub.elsewhere}{self.path}", **size, **headers)
                return
            begin = 0
            if (ranges := self.headers.get("Range")) and self.command == "GET":
                begin = int(ranges.removeprefix("bytes=").split("-")[0])
                headers["Content_Range"] = f"bytes {begin}-{len(data) - 1}/{len(data)}"
            if self.command == "GET" and file.endswith(".safetensors") and hub.cuts:
                hub.cuts -= 1
                self.send_response(206 if begin else 200)
                for key, value in {**headers, "Content-Length": str(len(data) - begin)}.items():
                    self.send_header(key.replace("_", "-"), value)
                self.end_headers()
                self.wfile.write(data[begin : begin + (len(data) - begin) // 2])
                self.wfile.flush()
                self.close_connection = True
                return
            self.reply(206 if begin else 200, data[begin:], **headers)

        def do_PUT(self) -> None:
            self.body_to_upload(self.path.split("/")[-1], self.body())

        def body_to_upload(self, sha: str, data: bytes) -> None:
            hub.uploads[sha] = data
            self.reply(200)

        def do_POST(self) -> None:
            path, body = self.path.split("?")[0].strip("/").split("/"), self.body()
            if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                self.reply(401, b"{}")
            elif path == ["api", "repos", "create"]:
                given = json.loads(body)
                name = f"{given.get('organization') or 'me'}/{given['name']}"
                there = name in hub.models
                hub.models.setdefault(name, {})
                if not there and (given.get("private") or given.get("visibility") == "private"):
                    hub.private.add(name)
                made = {"url": f"http://{self.headers['Host']}/{name}", "name": name}
                self.reply(409 if there else 200, json.dumps(made).encode(), Content_Type="application/json")
            elif path[-2:-1] == ["preupload"]:
                there = hub.models["/".join(path[2:4])]
                modes = [
                    {"path": one["path"], "uploadMode": "lfs" if one["path"].endswith(LARGE) else "regular",
                     "shouldIgnore": False, "oid": git_name(there[one["path"]]) if one["path"] in there else None}
                    for one in json.loads(body)["files"]
                ]  # fmt: skip
                self.json({"files": modes})
            elif path[-1] == "batch":
                base = f"http://{self.headers['Host']}/upload"
                objects = [
                    {**one, "authenticated": True, "actions": {"upload": {"href": f"{base}/{one['oid']}"}}}
                    for one in json.loads(body)["objects"]
                ]
                self.json({"transfer": "basic", "objects": objects})
            elif path[-2:-1] == ["commit"]:
                files = dict(hub.models["/".join(path[2:4])])
                for line in body.splitlines():
                    entry = json.loads(line)
                    if entry["key"] == "file":
                        files[entry["value"]["path"]] = base64.b64decode(entry["value"]["content"])
                    elif entry["key"] == "lfsFile":
                        files[entry["value"]["path"]] = hub.uploads[entry["value"]["oid"]]
                hub.models["/".join(path[2:4])] = files
                url = f"http://{self.headers['Host']}/{'/'.join(path[2:4])}/commit/{commit_of(files)}"
                self.json({"success": True, "commitOid": commit_of(files), "commitUrl": url})
            else:
                self.reply(200, b"{}")

    return Handler


@contextmanager
def serve() -> Iterator[tuple[Hub, str]]:
    """A hub and its address."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler(hub))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub, f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
