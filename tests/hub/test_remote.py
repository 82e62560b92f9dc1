"""`heedful pull` and `heedful push` against a hub on loopback; and that nothing else opens a connection."""

from __future__ import annotations

import ast
import contextlib
import errno
import json
import random
import re
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from bert_folders import random_bert, save_folder
from fake_hub import TOKEN, Hub, commit_of, serve
from huggingface_hub import constants
from marian_folders import SOURCE, marian_folder, random_marian

import heedful
from heedful.cli.app import main
from heedful.errors import UserError
from heedful.hub.remote import pull, require_hub

NAME = "org/tiny-bert"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    with serve() as (found, address):
        monkeypatch.setenv("HF_ENDPOINT", address)
        monkeypatch.setattr(constants, "ENDPOINT", address)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", address + "/{repo_id}/resolve/{revision}/{filename}"
        )
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
        monkeypatch.delenv("HF_TOKEN", raising=False)
        folder = save_folder(random_bert(), tmp_path / "theirs")
        files = {path.name: path.read_bytes() for path in folder.iterdir()}
        files |= {
            "README.md": b"text",
            "code.py": b"import os",
            "pytorch_model.bin": b"pickle",
            "onnx/config.json": b"{}",
        }
        found.models[NAME] = files
        yield found


def run(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    monkeypatch.setattr(sys, "argv", ["heedful", *map(str, words)])
    try:
        main()
    except SystemExit as left:
        return int(left.code or 0)
    return 0


def test_pull_takes_the_files_of_one_commit_and_records_it(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "pulled"
    assert run(monkeypatch, "pull", NAME, target, "--json") == 0
    found, commit = json.loads(capsys.readouterr().out), commit_of(hub.models[NAME])
    assert (found[0] if isinstance(found, list) else found)["commit"] == commit
    assert {path.name for path in target.iterdir()} == {"config.json", "model.safetensors", "vocab.txt", "source.json"}
    about = json.loads((target / "source.json").read_text())
    assert about["commit"] == commit and about["files"].keys() == {"config.json", "model.safetensors", "vocab.txt"}
    assert all((target / name).read_bytes() == hub.models[NAME][name] for name in about["files"])
    assert all("/resolve/" not in line or commit in line for line in hub.requests)  # never a branch, which may move
    assert heedful.load(target, "cpu").embed(["a bad cab"]).shape[0] == 1
    assert run(monkeypatch, "pull", NAME, target) == 2 and "already exists" in capsys.readouterr().err
    assert not list(tmp_path.glob(".pulled*"))


def test_interrupted_download_continues(hub: Hub, tmp_path: Path) -> None:
    hub.cuts = 1
    with contextlib.suppress(UserError):  # the package itself tries again
        pull(NAME, tmp_path / "pulled")
    if not (tmp_path / "pulled").exists():
        pull(NAME, tmp_path / "pulled")
    assert (tmp_path / "pulled" / "model.safetensors").read_bytes() == hub.models[NAME]["model.safetensors"]
    assert sum(line.startswith("GET") and line.endswith("model.safetensors") for line in hub.requests) == 2


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_file_with_another_hash_is_refused(hub: Hub, tmp_path: Path, name: str) -> None:
    true = hub.models[NAME][name]
    hub.lies[name] = true[:-1] + bytes([true[-1] ^ 1])
    with pytest.raises(UserError, match="differs from that of the commit") as refused:
        pull(NAME, tmp_path / "pulled")
    assert name in str(refused.value) and not (tmp_path / "pulled").exists()
    hub.lies.clear()
    before = len(hub.requests)
    pull(NAME, tmp_path / "pulled")  # the wrong file alone is downloaded again
    assert (tmp_path / "pulled" / name).read_bytes() == true
    wrong = hub.requests[before:]
    assert sum(line.startswith("GET") and "/resolve/" in line and line.endswith(name) for line in wrong) == 1


def test_repository_with_a_pickle_alone_is_refused_and_convert_is_offered(hub: Hub, tmp_path: Path) -> None:
    del hub.models[NAME]["model.safetensors"]
    with pytest.raises(UserError, match=rf"a pickle, which could run code[\s\S]*hf download {NAME} --revision") as one:
        pull(NAME, tmp_path / "pulled")
    assert commit_of(hub.models[NAME]) in str(one.value) and "heedful convert FOLDER" in str(one.value)
    assert not any("/resolve/" in line for line in hub.requests)
    hub.models[NAME] = {"README.md": b""}
    with pytest.raises(UserError, match="no weights"):
        pull(NAME, tmp_path / "pulled")


def test_private_repository_needs_a_token_which_is_never_shown(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.private.add(NAME)
    assert run(monkeypatch, "pull", NAME, tmp_path / "pulled") == 2
    assert "no such repository, or it is private" in (shown := capsys.readouterr().err) and "HF_TOKEN" in shown
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert run(monkeypatch, "pull", NAME, tmp_path / "pulled") == 0
    assert TOKEN not in "".join(capsys.readouterr())
    assert TOKEN not in (tmp_path / "pulled" / "source.json").read_text()


def test_pickle_of_a_module_is_refused_before_anything_is_downloaded(hub: Hub, tmp_path: Path) -> None:
    hub.models[NAME]["2_Dense/pytorch_model.bin"] = b"pickle"
    with pytest.raises(UserError, match=r"a pickle, which could run code[\s\S]*2_Dense/pytorch_model.bin"):
        pull(NAME, tmp_path / "pulled")
    assert not any("/resolve/" in line for line in hub.requests)
    hub.models[NAME]["2_Dense/model.safetensors"] = b"weights"
    assert "2_Dense/model.safetensors" in {file.name for file in pull(NAME, tmp_path / "pulled").files}


def test_model_in_a_folder_of_an_older_sentence_transformer_is_pulled(hub: Hub, tmp_path: Path) -> None:
    files = hub.models[NAME]
    hub.models[NAME] = {f"0_Transformer/{name}": files[name] for name in ("config.json", "model.safetensors")}
    pull(NAME, tmp_path / "pulled")
    assert (tmp_path / "pulled" / "0_Transformer" / "model.safetensors").is_file()


ODD_NAMES = (
    "../evil.json", "1_Pooling/../../evil.json", "/evil.json", "C:evil.json", "a\\evil.json", "evil.json\n",
)  # fmt: skip


def test_files_with_odd_names_are_left_alone(hub: Hub, tmp_path: Path) -> None:
    hub.more = dict.fromkeys([*ODD_NAMES, "source.json"], b"{}")
    (tmp_path / "below").mkdir()
    found = pull(NAME, tmp_path / "below" / "pulled")
    assert {file.name for file in found.files} == {"config.json", "model.safetensors", "vocab.txt"}
    assert not list(tmp_path.rglob("*evil*"))


def test_token_is_not_sent_to_where_downloads_are_redirected(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with serve() as (other, address):
        other.models, hub.elsewhere = hub.models, address
        pull(NAME, tmp_path / "pulled")
    assert any("model.safetensors" in line for line in other.requests) and set(other.tokens) == {None}
    assert f"Bearer {TOKEN}" in hub.tokens
    assert (tmp_path / "pulled" / "model.safetensors").read_bytes() == hub.models[NAME]["model.safetensors"]


def test_another_hub_that_gets_the_token_is_named(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "pull", NAME, tmp_path / "one") == 0
    assert "token" not in capsys.readouterr().err
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert run(monkeypatch, "pull", NAME, tmp_path / "two") == 0
    assert f"HF_ENDPOINT is {constants.ENDPOINT}, and your token is sent there, unenc" in capsys.readouterr().err
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_IMPLICIT_TOKEN", True)
    before = len(hub.tokens)
    assert run(monkeypatch, "pull", NAME, tmp_path / "three") == 0
    assert "token" not in capsys.readouterr().err and set(hub.tokens[before:]) == {None}


def test_conditions_of_a_gated_repository_are_named(hub: Hub, tmp_path: Path) -> None:
    hub.gated.add(NAME)
    with pytest.raises(UserError, match=r"accepted its conditions[\s\S]*HF_TOKEN"):
        pull(NAME, tmp_path / "pulled")


def test_folder_that_cannot_be_written_is_no_trouble_with_the_connection(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*words: Any, **more: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", full)
    with pytest.raises(UserError, match=r"cannot write the model[\s\S]*No space left[\s\S]*free some space"):
        pull(NAME, tmp_path / "pulled")


@pytest.mark.parametrize("name", ["bert", "a/b/c", "../x/y", "a/..", "https://x/y", "a b/c", "a/b.git", ""])
def test_invalid_names_are_refused_before_any_request(name: str, hub: Hub) -> None:
    with pytest.raises(UserError, match="not the name of a repository"):
        require_hub(name)
    assert not hub.requests


@pytest.mark.parametrize("name", ["a--b/c", "a/b--c", "a-/b", "a/b."])
def test_names_that_the_hub_does_not_allow_are_refused(name: str, hub: Hub, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"not the name of a repository|no such repository"):
        pull(name, tmp_path / "pulled")


def test_missing_revision_and_dead_hub_are_one_clear_error(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match="no such revision"):
        pull(NAME, tmp_path / "pulled", "v9")
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(UserError, match="connection to the hub failed"):
        pull(NAME, tmp_path / "pulled")


def damaged(path: str, body: bytes, seed: int) -> bytes:
    """An answer about a model with faults."""
    chance = random.Random(seed)
    if not path.startswith("/api/models") or not body:
        return body
    changed = bytearray(body)
    place = chance.randrange(len(body))
    match chance.randrange(4):
        case 0:
            changed = changed[:place]
        case 1:
            changed[place : place + 1] = bytes([chance.randrange(256)])
        case 2:
            pieces = (b"null", b"[]", b"{}", b"-1", b'"../../x"', b"1e999", b'"\\u0000"')
            values = list(re.finditer(rb'("[^"]*"|\d+|\[[^]]*\])(?=[,}])', body))
            begin, end = chance.choice(values).span(1)
            changed[begin:end] = chance.choice(pieces)
        case _:
            changed = bytearray(chance.choice([b"", b"null", b"[]", b"<html>", b"\xff", b"[" * 3000]))
    return bytes(changed)


@pytest.mark.parametrize(("first", "count"), [(0, 40), pytest.param(1000, 600, marks=pytest.mark.slow)])
def test_damaged_answers_of_the_hub_are_one_message_or_make_no_difference(
    hub: Hub, tmp_path: Path, first: int, count: int
) -> None:
    refused, folder = 0, tmp_path / "deep" / "inside"
    folder.mkdir(parents=True)
    expected = {name: data for name, data in hub.models[NAME].items() if name in ("model.safetensors", "config.json")}
    for seed in range(first, first + count):
        hub.garble = lambda path, body, seed=seed: damaged(path, body, seed)  # type: ignore[misc]
        target, message = folder / f"model-{seed}", ""
        try:
            pull(NAME, target)
        except UserError as error:
            message = str(error)
        if message:
            refused += 1
            assert len(message) < 5000 and not target.exists()
            continue
        found = {name: (target / name).read_bytes() for name in expected if (target / name).exists()}
        assert "model.safetensors" in found and found.items() <= expected.items()
    assert refused > 0
    assert [path for path in tmp_path.rglob("x") if path.is_file()] == []


def test_push_and_pull_give_the_same_model(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    folder = marian_folder(random_marian(max_position_embeddings=60), tmp_path / "opus")
    assert run(monkeypatch, "push", folder, "org/mine") == 2
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert run(monkeypatch, "push", folder, "org/mine") == 0
    assert "org/mine" in hub.private and hub.models["org/mine"].keys() >= {"model.safetensors", "source.spm"}
    assert run(monkeypatch, "pull", "org/mine", tmp_path / "again") == 0
    texts = [heedful.load(place, "cpu").translate(SOURCE) for place in (folder, tmp_path / "again")]
    assert texts[0] == texts[1]


def test_pushing_again_changes_what_differs_and_names_what_is_left(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(0)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    folder, commits = save_folder(random_bert(), tmp_path / "bert"), []
    for _ in range(2):
        assert run(monkeypatch, "push", folder, "org/mine", "--json") == 0
        found = json.loads(capsys.readouterr().out)
        commits.append((found[0] if isinstance(found, list) else found)["commit"])
    assert commits[0] == commits[1] == commit_of(hub.models["org/mine"])
    other = marian_folder(random_marian(), tmp_path / "opus")
    assert run(monkeypatch, "push", other, "org/mine") == 0
    note = capsys.readouterr().err.split("note: the repository has other files")[1]
    assert "tokenizer.json" in note and "vocab.txt" in note and "model.safetensors" not in note


def test_push_leaves_a_public_repository_alone_unless_asked(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    folder, before = save_folder(random_bert(), tmp_path / "bert"), dict(hub.models[NAME])
    assert run(monkeypatch, "push", folder, NAME) == 2
    assert "can be seen by all" in (shown := capsys.readouterr().err) and "--public" in shown
    assert hub.models[NAME] == before
    assert run(monkeypatch, "push", folder, NAME, "--public", "--json") == 0
    assert '"private": false' in capsys.readouterr().out.replace('":false', '": false')
    hub.private.add(NAME)
    assert run(monkeypatch, "push", folder, NAME, "--public", "--json") == 0  # which stays as it is
    assert '"private": true' in capsys.readouterr().out.replace('":true', '": true')


def test_nothing_else_opens_a_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Any, *words: Any) -> None:
        raise AssertionError(f"a connection to {words}")

    for name in ("connect", "connect_ex", "sendto"):
        monkeypatch.setattr(socket.socket, name, refuse)
    folder = marian_folder(random_marian(), tmp_path / "opus")
    assert run(monkeypatch, "convert", folder, tmp_path / "ours") == 0
    assert run(monkeypatch, "translate", tmp_path / "ours", SOURCE[0]) == 0
    assert run(monkeypatch, "embed", save_folder(random_bert(), tmp_path / "bert"), "a bad cab") == 0


def test_one_file_alone_imports_the_package() -> None:
    root = Path(heedful.__file__).parent
    users = set()
    for file in (one for one in root.rglob("*.py") if "huggingface_hub" in one.read_text(encoding="utf-8")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
            names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            users |= {file.name for name in names if name.split(".")[0] == "huggingface_hub"}
    assert users == {"remote.py"}
