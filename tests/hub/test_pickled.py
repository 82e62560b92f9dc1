"""External pickles: weights are read exactly, and nothing else is. 200 attacks, none of which runs."""

from __future__ import annotations

import io
import pickle
import struct
import subprocess
import sys
import zipfile
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from bert_folders import random_bert, save_folder

from heedful.errors import UserError
from heedful.hub import pickle_reader, pretrained
from heedful.hub.pickle_reader import MAGIC, RefusedError, to_safetensors
from heedful.hub.unpickling import read_any_weights, read_pickle
from heedful.training.checkpoint.tensors import unpack
from patience import LONG


def read(data: bytes) -> dict[str, torch.Tensor]:
    """Read a file with the pickle reader, in this process."""
    return unpack(b"".join(to_safetensors(memoryview(data))), Path("some.bin"))


def save_bytes(value: Any, zipped: bool = True) -> bytes:
    file = io.BytesIO()
    torch.save(value, file, _use_new_zipfile_serialization=zipped)
    return file.getvalue()


WHOLE = torch.randn(5, 6, 7)
TENSORS = {
    "whole": WHOLE,
    "turned": WHOLE.transpose(0, 2),
    "some": WHOLE[1:4, ::2, 3],
    "wide": WHOLE[0, 0].expand(4, 7),
    "half": WHOLE.half().mT,
    "brain": WHOLE.bfloat16(),
    "double": WHOLE.double(),
    "numbers": torch.arange(4),
    "flags": torch.tensor([True, False]),
    "none": torch.empty(0, 3),
    "one": torch.tensor(2.5),
    "parameter": torch.nn.Parameter(WHOLE[0]),
}


@pytest.mark.parametrize("zipped", [True, False])
def test_tensors_of_every_dtype_are_read_bit_for_bit(zipped: bool) -> None:
    for value in (TENSORS, OrderedDict(TENSORS), {"state_dict": TENSORS, "epoch": 3}):
        found = read(save_bytes(value, zipped))
        assert found.keys() == TENSORS.keys()
        assert all(
            torch.equal(found[name], value) and found[name].dtype == value.dtype for name, value in TENSORS.items()
        )


@pytest.mark.parametrize("zipped", [True, False])
def test_pickle_is_read_by_the_restricted_process(zipped: bool, tmp_path: Path) -> None:
    model = random_bert("BertForPreTraining")
    folder = save_folder(model, tmp_path / "old")
    expected = pretrained(folder).tensors
    (folder / "model.safetensors").unlink()
    torch.save(model.state_dict(), folder / "pytorch_model.bin", _use_new_zipfile_serialization=zipped)
    found = pretrained(folder, read_any_weights)
    assert all(torch.equal(found.tensors[name], value) for name, value in expected.items())
    assert {line.source for line in found.ledger} == set(model.state_dict())


GADGETS = """
os:system posix:system subprocess:Popen subprocess:check_output builtins:eval builtins:exec builtins:open
builtins:getattr builtins:__import__ __builtin__:eval importlib:import_module runpy:run_path pty:spawn
shutil:rmtree pathlib:Path torch:load torch.hub:load torch._utils:_rebuild_tensor_v3
torch.storage:_load_from_bytes operator:attrgetter functools:partial codecs:decode marshal:loads pickle:loads
_pickle:loads ctypes:CDLL socket:socket webbrowser:open collections:defaultdict
collections:OrderedDict.__init__ torch._utils:_rebuild_parameter.__globals__ numpy:fromfile torch:FloatStorage
"""


def text(word: str) -> bytes:
    raw = word.encode()
    return b"X" + struct.pack("<I", len(raw)) + raw


def programs(mark: Path) -> Iterator[tuple[str, bytes]]:
    """Programs that would create a file if they ran, in every way that a pickle can call."""
    argument = text(f"touch {mark}")
    for module, name in (gadget.split(":") for gadget in GADGETS.split()):
        call = f"c{module}\n{name}\n".encode()
        stacked = text(module) + text(name) + b"\x93"
        yield f"{module}.{name} called", b"\x80\x02" + call + argument + b"\x85R."
        yield f"{module}.{name} called by its spelling", b"\x80\x04" + stacked + argument + b"\x85R."
        yield f"{module}.{name} as a class", b"\x80\x02" + call + argument + b"\x85\x81."
        yield f"{module}.{name} by INST", b"\x80\x02(" + argument + f"i{module}\n{name}\n.".encode()
        yield f"{module}.{name} by OBJ", b"\x80\x02(" + call + argument + b"o."
        yield f"{module}.{name} among weights", b"\x80\x02}" + text("a") + call + argument + b"\x85Rs."
        yield f"{module}.{name} by an extension", b"\x80\x02\x82\x01" + argument + b"\x85R."


def in_zip(program: bytes, numbers: bytes | None = None) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data.pkl", program)
        if numbers is not None:
            archive.writestr("archive/data/0", numbers)
    return file.getvalue()


def in_stream(program: bytes) -> bytes:
    parts = (MAGIC, 1001, {"little_endian": True})
    return b"".join(pickle.dumps(part, 2) for part in parts) + program + pickle.dumps([], 2)


def test_no_malicious_pickle_runs_code(tmp_path: Path) -> None:
    mark, count = tmp_path / "mark", 0
    for name, program in programs(mark):
        for wrapped in (program, in_zip(program), in_stream(program)):
            with pytest.raises(RefusedError, match=r"it wants to call|it uses the instruction"):
                read(wrapped)
            assert not mark.exists(), name
            count += 1
    assert count >= 200


@pytest.mark.parametrize(("zipped", "which"), [(True, 0), (False, 4), (True, 10)])
def test_attacks_on_the_reader_are_rejected_with_a_reason(zipped: bool, which: int, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    name, program = list(programs(mark))[7 * which]
    (tmp_path / "x.bin").write_bytes(in_zip(program) if zipped else in_stream(program))
    with pytest.raises(UserError, match="it wants to call") as raised:
        read_pickle(tmp_path, "x.bin")
    assert name.split(" ")[0] in str(raised.value)
    assert "weights_only" not in str(raised.value)
    assert not mark.exists()


def storage(count: int, shape: bytes, strides: bytes, kind: str = "FloatStorage", offset: bytes = b"K\x00") -> bytes:
    """A program that creates one tensor over a storage."""
    number = b"\x8a\x08" + struct.pack("<q", count)
    persistent = b"(" + text("storage") + f"ctorch\n{kind}\n".encode() + text("0") + text("cpu") + number + b"tQ"
    made = b"ctorch._utils\n_rebuild_tensor_v2\n(" + persistent + offset + shape + strides + b"\x89}tR"
    return b"\x80\x02}" + text("a") + made + b"s."


HUGE = b"J\xff\xff\xff\x7f"


@pytest.mark.parametrize(
    "program",
    [
        storage(2**60, HUGE + b"\x85", b"K\x01\x85"),
        storage(4, HUGE + HUGE + b"\x86", b"K\x00K\x00\x86"),
        storage(4, b"K\x05\x85", b"K\x01\x85"),
        storage(4, b"K\x02\x85", b"K\x01\x85", offset=b"K\x03"),
        storage(4, b"J\xff\xff\xff\xff\x85", b"K\x01\x85"),
        storage(4, b"K\x02\x85", b"K\x01K\x01\x86"),
        storage(4, b"K\x02\x85", b"K\x01\x85", kind="UntypedStorage"),
        storage(-4, b"K\x02\x85", b"K\x01\x85"),
        b"\x80\x02" + b"(" * 20_000 + b".",
        b"\x80\x02" + b"]" + b"\x85" * 20_000 + b".",
        b"\x80\x02}" + text("a") + b"}ss.",
        b"\x80\x02h\x07.",
        b"\x80\x02.",
        b"\x80\x02X\xff\xff\xff\xff.",
        b"\x80\x02]q\x00h\x00a.",
        b"\x80\x02}}}s.",
        b"\x80\x02}K\x01K\x02s.",
        b"\x80\x02\x8a\xff.",
        b"\x80",
    ],
)
def test_invalid_pickle_programs_are_rejected(program: bytes) -> None:
    for wrapped in (program, in_zip(program), in_stream(program)):
        with pytest.raises((RefusedError, KeyError, UnicodeDecodeError)):
            read(wrapped)


def test_tensor_must_lie_within_its_storage() -> None:
    numbers = struct.pack("<4f", 1, 2, 3, 4)
    assert read(in_zip(storage(4, b"K\x02\x85", b"K\x02\x85", offset=b"K\x01"), numbers))["a"].tolist() == [2, 4]
    for program in (
        storage(4, b"K\x05\x85", b"K\x01\x85"),
        storage(4, b"K\x02\x85", b"K\x02\x85", offset=b"K\x02"),
        storage(4, b"K\x02\x85", b"K\x04\x85"),
        storage(4, b"J\x00\x00\x00\x10\x85", b"K\x00\x85"),
        storage(5, b"K\x05\x85", b"K\x01\x85"),
        storage(2, b"K\x02\x85", b"K\x01\x85"),
    ):
        with pytest.raises(RefusedError, match=r"exceeds its storage|far larger|wrong length"):
            read(in_zip(program, numbers))


def test_archives_of_other_kinds_are_rejected(tmp_path: Path) -> None:
    whole = save_bytes({"a": torch.ones(1000)})
    squeezed = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(whole)) as old, zipfile.ZipFile(squeezed, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    for data in (
        squeezed.getvalue(),
        whole[: len(whole) // 2],
        b"PK",
        b"",
        b"\x1f\x8b gz",
        b"archive.tar",
    ):
        (tmp_path / "x.bin").write_bytes(data)
        with pytest.raises(UserError, match="cannot be read safely"):
            read_pickle(tmp_path, "x.bin")


def test_flipped_bits_are_rejected_or_change_values_only() -> None:
    for zipped in (True, False):
        whole = save_bytes({"a": torch.ones(20), "b": torch.ones(3, 4)}, zipped)
        for place in range(0, len(whole), 7):
            broken = bytearray(whole)
            broken[place] ^= 1 << place % 8
            try:
                read(bytes(broken))
            except (RefusedError, UserError, *pickle_reader.DAMAGE):
                continue


@pytest.mark.skipif(sys.platform != "linux", reason="these limits are those of Linux")
def test_reader_has_no_file_access_and_little_memory() -> None:
    script = f"""
import runpy, socket, sys
limit = runpy.run_path({pickle_reader.__file__!r})["limit_resources"]
limit(0)
refused = 0
for attempt in (lambda: open("/etc/passwd"), lambda: open("/tmp/x", "w"), socket.socket, lambda: bytearray(2**30)):
    try:
        attempt()
    except (OSError, MemoryError):
        refused += 1
sys.stdout.write(str(refused))
"""
    done = subprocess.run([sys.executable, "-I", "-c", script], capture_output=True, text=True, timeout=LONG)
    assert done.stdout == "4", done.stderr
