"""Read weights from a pickle with an interpreter that can create tensors and nothing else. Runs as its own process.

    python -I -S pickled.py < pytorch_model.bin > model.safetensors
    python -I -S pickled.py vocabulary < vocab.bin > vocabulary.json

A pickle is a program for a small stack machine. This interpreter knows part of its opcodes: what a program calls
is looked up in a table of five names, none of which executes code; everything else is refused. It imports only
the standard library, limits its own memory and time, and can open no file or connection once it has started.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import json
import mmap
import struct
import sys
import zipfile
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any, NamedTuple

TYPES: dict[str, tuple[str, int, Any]] = {  # storage type -> dtype in safetensors, bytes per element, `struct` letter
    "FloatStorage": ("F32", 4, "f"),
    "HalfStorage": ("F16", 2, "H"),
    "BFloat16Storage": ("BF16", 2, "H"),
    "DoubleStorage": ("F64", 8, "d"),
    "LongStorage": ("I64", 8, "q"),
    "IntStorage": ("I32", 4, "i"),
    "ShortStorage": ("I16", 2, "h"),
    "CharStorage": ("I8", 1, "b"),
    "ByteStorage": ("U8", 1, "B"),
    "BoolStorage": ("BOOL", 1, "B"),
}
MAGIC = 0x1950A86A20F9469CFC6C
VERSION = 1001
MAX_TENSORS = 100_000
MOST_STEPS = 20_000_000
MAX_RANK = 8
DAMAGE = (zipfile.BadZipFile, KeyError, ValueError, OSError, NotImplementedError, EOFError)  # raised by a damaged file
REFUSED = 3  # exit code when a file is refused with a reason


class RefusedError(Exception):
    """A file is refused; the message is the reason."""


class Name(NamedTuple):
    """A global in a pickle program, which is never imported."""

    module: str
    name: str


class Storage(NamedTuple):
    """A contiguous array of one dtype in the file."""

    kind: str
    key: str
    length: int


class Tensor(NamedTuple):
    """A strided view of a storage."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def parse_storage(found: Any) -> Storage:
    """Parse a reference to a storage."""
    if not isinstance(found, tuple) or len(found) not in (5, 6) or found[0] != "storage":
        raise RefusedError("it names a storage in an unknown way")
    kind, key, count = found[1], found[2], found[4]
    if not isinstance(kind, Name) or kind.module != "torch" or kind.name not in TYPES:
        raise RefusedError(f"it has a storage of an unknown type, {kind!r:.80}")
    if (
        not isinstance(key, str)
        or not isinstance(count, int)
        or count < 0
        or (len(found) == 6 and found[5] is not None)
    ):
        raise RefusedError("it describes a storage in an unknown way")
    return Storage(kind.name, key, count)


def build_tensor(storage: Any, offset: Any, shape: Any, strides: Any, *_: Any) -> Tensor:
    """Create a tensor; `requires_grad` is ignored."""
    sizes = (shape, strides)
    if not isinstance(storage, Storage) or not all(isinstance(size, tuple) and len(size) <= MAX_RANK for size in sizes):
        raise RefusedError("it creates a tensor in an unknown way")
    if len(shape) != len(strides) or not all(isinstance(n, int) and 0 <= n < 2**48 for n in (offset, *shape, *strides)):
        raise RefusedError("it creates a tensor of an impossible shape")
    last = offset + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    if 0 not in shape and last >= storage.length:
        raise RefusedError("it creates a tensor that exceeds its storage")
    return Tensor(storage, offset, shape, strides)


def build_parameter(tensor: Any, *_: Any) -> Tensor:
    """Create a parameter, which is its tensor."""
    if not isinstance(tensor, Tensor):
        raise RefusedError("it creates a parameter from something that is not a tensor")
    return tensor


def build_mapping(pairs: Any = ()) -> dict[Any, Any]:
    """Create a mapping."""
    if not isinstance(pairs, (list, tuple)) or not all(
        isinstance(pair, (list, tuple)) and len(pair) == 2 for pair in pairs
    ):
        raise RefusedError("it creates a mapping in an unknown way")
    return {require_key(key): value for key, value in pairs}


def build_counts(counts: Any = ()) -> dict[Any, Any]:
    """Create a mapping of counts, of another mapping."""
    return build_mapping(list(counts.items()) if isinstance(counts, dict) else counts)


CALLS: dict[Name, Callable[..., Any]] = {
    Name("collections", "OrderedDict"): build_mapping,
    Name("collections", "Counter"): build_counts,
    Name("torch._utils", "_rebuild_tensor"): build_tensor,
    Name("torch._utils", "_rebuild_tensor_v2"): build_tensor,
    Name("torch._utils", "_rebuild_parameter"): build_parameter,
}


def require_key(key: Any) -> str | int:
    """Refuse a key that is not a string or an integer."""
    if not isinstance(key, (str, int)):
        raise RefusedError("it has a mapping with an unsupported key")
    return key


class Machine:
    """The stack machine that executes a pickle program."""

    def __init__(self, data: memoryview, at: int = 0) -> None:
        self.data, self.at = data, at
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def run(self) -> Any:
        """Execute the program and return its value."""
        for _ in range(MOST_STEPS):
            code = self.take(1)[0]
            if code == ord("."):
                return self.pop()
            step = STEPS.get(code)
            if step is None:
                raise RefusedError(f"it uses the instruction 0x{code:02x}, which no weights need")
            step(self)
        raise RefusedError("its program is too long")

    def take(self, count: int) -> memoryview:
        """The next bytes of the program."""
        if count > len(self.data) - self.at:
            raise RefusedError("it ends too early")
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self, size: int, signed: bool = False) -> int:
        """The next integer of `size` bytes."""
        return int.from_bytes(self.take(size), "little", signed=signed)

    def line(self) -> str:
        """The text up to the end of the line."""
        for end in range(self.at, min(self.at + 1000, len(self.data))):
            if self.data[end] == 10:
                text = self.take(end - self.at)
                self.take(1)
                return str(text, "utf-8")
        raise RefusedError("it has a line that is too long")

    def pop(self) -> Any:
        """Pop the top of the stack."""
        if len(self.stack) <= (self.marks[-1] if self.marks else 0):
            raise RefusedError("its program pops from an empty stack")
        return self.stack.pop()

    def above(self) -> list[Any]:
        """Pop everything above the last mark."""
        if not self.marks:
            raise RefusedError("its program pops from an empty stack")
        mark = self.marks.pop()
        found = self.stack[mark:]
        del self.stack[mark:]
        return found

    def top(self, kind: type) -> Any:
        """The top of the stack, which must be of this type; it is not popped."""
        if len(self.stack) <= (self.marks[-1] if self.marks else 0) or type(self.stack[-1]) is not kind:
            raise RefusedError("its program appends to something that is not a container")
        return self.stack[-1]

    def text(self, size: int) -> None:
        """Push the next `size` bytes as text."""
        self.stack.append(str(self.take(size), "utf-8"))

    def put(self, place: int) -> None:
        """Store the top of the stack in the memo."""
        value = self.pop()
        self.memo[place] = value
        self.stack.append(value)

    def get(self, place: int) -> None:
        """Push a memo entry."""
        if place not in self.memo:
            raise RefusedError("its program reads an unset memo entry")
        self.stack.append(self.memo[place])

    def tuple_of(self, count: int) -> None:
        """Pop `count` values and push them as a tuple."""
        self.stack.append(tuple(self.pop() for _ in range(count))[::-1])

    def call(self) -> None:
        """Call an allowed function."""
        arguments, called = self.pop(), self.pop()
        maker = CALLS.get(called) if isinstance(called, Name) else None
        if maker is None:
            raise RefusedError(f"it wants to call {'.'.join(called) if isinstance(called, Name) else 'something':.200}")
        if not isinstance(arguments, tuple) or len(arguments) > 8:
            raise RefusedError("it calls in an unknown way")
        try:
            self.stack.append(maker(*arguments))
        except TypeError as error:
            raise RefusedError("it calls in an unknown way") from error

    def push_name(self) -> None:
        """Push the global whose module and name are on the stack."""
        name, module = self.pop(), self.pop()
        if not isinstance(name, str) or not isinstance(module, str):
            raise RefusedError("it names a global in an unknown way")
        self.stack.append(Name(module, name))

    def set_items(self, pairs: Sequence[Any]) -> None:
        """Add keys and values, in turn, to the mapping on top."""
        found = self.top(dict)
        if len(pairs) % 2:
            raise RefusedError("it has a key without a value")
        found.update(zip(map(require_key, pairs[::2]), pairs[1::2], strict=True))

    def set_one(self) -> None:
        """Add one key and value to the mapping below them."""
        value, key = self.pop(), self.pop()
        self.set_items([key, value])

    def append(self) -> None:
        """Append the top of the stack to the list below it."""
        value = self.pop()
        self.top(list).append(value)

    def extend(self) -> None:
        """Append everything above the mark to the list below it."""
        values = self.above()
        self.top(list).extend(values)

    def forget_state(self) -> None:
        """Skip the state of a mapping (module versions), which is not needed for weights."""
        self.pop()
        self.top(dict)


def _push(value: Any) -> Callable[[Machine], None]:
    return lambda machine: machine.stack.append(value)


STEPS: dict[int, Callable[[Machine], Any]] = {
    0x80: lambda m: m.take(1),  # protocol
    0x95: lambda m: m.take(8),  # frame length
    ord("}"): lambda m: m.stack.append({}),
    ord("]"): lambda m: m.stack.append([]),
    ord(")"): _push(()),
    ord("N"): _push(None),
    0x88: _push(True),
    0x89: _push(False),
    ord("("): lambda m: m.marks.append(len(m.stack)),
    ord("t"): lambda m: m.stack.append(tuple(m.above())),
    0x85: lambda m: m.tuple_of(1),
    0x86: lambda m: m.tuple_of(2),
    0x87: lambda m: m.tuple_of(3),
    ord("X"): lambda m: m.text(m.number(4)),
    0x8C: lambda m: m.text(m.number(1)),
    ord("U"): lambda m: m.text(m.number(1)),
    ord("T"): lambda m: m.text(m.number(4)),
    ord("J"): lambda m: m.stack.append(m.number(4, signed=True)),
    ord("K"): lambda m: m.stack.append(m.number(1)),
    ord("M"): lambda m: m.stack.append(m.number(2)),
    0x8A: lambda m: m.stack.append(m.number(m.number(1), signed=True)),
    ord("G"): lambda m: m.stack.append(struct.unpack(">d", m.take(8))[0]),
    ord("q"): lambda m: m.put(m.number(1)),
    ord("r"): lambda m: m.put(m.number(4)),
    0x94: lambda m: m.put(len(m.memo)),
    ord("h"): lambda m: m.get(m.number(1)),
    ord("j"): lambda m: m.get(m.number(4)),
    ord("c"): lambda m: m.stack.append(Name(m.line(), m.line())),
    0x93: Machine.push_name,
    ord("Q"): lambda m: m.stack.append(parse_storage(m.pop())),
    ord("R"): Machine.call,
    ord("b"): Machine.forget_state,
    ord("s"): Machine.set_one,
    ord("u"): lambda m: m.set_items(m.above()),
    ord("a"): Machine.append,
    ord("e"): Machine.extend,
}


def find_weights(found: Any) -> dict[str, Tensor]:
    """The named tensors in the program's value, which may be nested under `state_dict`."""
    if isinstance(found, dict) and isinstance(found.get("state_dict"), dict):
        found = found["state_dict"]
    if not isinstance(found, dict) or not found:
        raise RefusedError("it has no named tensors")
    if len(found) > MAX_TENSORS:
        raise RefusedError(f"it has more than {MAX_TENSORS:,} tensors")
    for name, value in found.items():
        if not isinstance(value, Tensor) or not isinstance(name, str):
            raise RefusedError(f"it has something that is not a tensor, {name!r:.80}")
    return found


def from_zip(data: memoryview) -> tuple[dict[str, Tensor], dict[str, memoryview]]:
    """The tensors and storages in the current format of torch.save: an uncompressed zip archive."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        program, member = zip_program(archive, len(data))
        tensors = find_weights(Machine(program).run())
        storages = {storage.key: member(f"data/{storage.key}") for storage in needed_storages(tensors, len(data))}
    return tensors, storages


def zip_program(archive: zipfile.ZipFile, size: int) -> tuple[memoryview, Callable[[str], memoryview]]:
    """The pickle program of an archive of `size` bytes, and a function that reads another member."""
    names = archive.namelist()
    program = [name for name in names if name.count("/") == 1 and name.endswith("/data.pkl")]
    if len(program) != 1:
        raise RefusedError("it is an archive without weights, or with code in it")
    root = program[0].removesuffix("data.pkl")

    def member(name: str) -> memoryview:
        info = archive.getinfo(root + name)
        if info.compress_type != zipfile.ZIP_STORED or info.file_size > size or names.count(root + name) > 1:
            raise RefusedError("it is an archive of an unsupported kind")
        return memoryview(archive.read(info))

    if f"{root}byteorder" in names and bytes(member("byteorder")) != b"little":
        raise RefusedError("it is not little-endian")
    return member("data.pkl"), member


def from_stream(data: memoryview) -> tuple[dict[str, Tensor], dict[str, memoryview]]:
    """Like `from_zip`, for the older format: five pickle programs, then the storages."""
    machine = Machine(data)
    if machine.run() != MAGIC:
        raise RefusedError("it is a pickle, but not of weights")
    version, system, found, keys = (_next(machine) for _ in range(4))
    if version != VERSION or not isinstance(system, dict) or system.get("little_endian") is not True:
        raise RefusedError("it was written by an unknown version or machine")
    tensors = find_weights(found)
    by_key = {storage.key: storage for storage in needed_storages(tensors, len(data))}
    if not isinstance(keys, list) or sorted(map(str, keys)) != sorted(by_key):
        raise RefusedError("its storages are not the ones that its tensors need")
    storages: dict[str, memoryview] = {}
    for key in keys:
        if machine.number(8) != by_key[key].length:
            raise RefusedError("a storage has the wrong length for its tensors")
        storages[key] = machine.take(by_key[key].length * TYPES[by_key[key].kind][1])
    if machine.at != len(data):
        raise RefusedError("there is data after its last storage")
    return tensors, storages


def _next(machine: Machine) -> Any:
    """Execute the next program, with an empty stack and memo."""
    machine.stack, machine.marks, machine.memo = [], [], {}
    return machine.run()


def needed_storages(tensors: dict[str, Tensor], room: int) -> list[Storage]:
    """The storages of the tensors, each once; together they must not be larger than the file."""
    found: dict[str, Storage] = {}
    for tensor in tensors.values():
        if found.setdefault(tensor.storage.key, tensor.storage) != tensor.storage:
            raise RefusedError("it describes one storage in two ways")
    if sum(storage.length * TYPES[storage.kind][1] for storage in found.values()) > room:
        raise RefusedError("its storages are larger than the file")
    sizes = (_count(tensor.shape) * TYPES[tensor.storage.kind][1] for tensor in tensors.values())
    if sum(sizes) > 4 * room:
        raise RefusedError("its tensors are far larger than the file")
    return list(found.values())


def _count(shape: Sequence[int]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def rows(tensor: Tensor, storage: memoryview) -> Iterator[memoryview | bytes]:
    """The bytes of a tensor in row-major order, in pieces."""
    _, size, letter = TYPES[tensor.storage.kind]
    if len(storage) != tensor.storage.length * size:
        raise RefusedError("a storage has the wrong length for its tensors")
    if 0 in tensor.shape:
        return
    step = 1
    for length, stride in zip(reversed(tensor.shape), reversed(tensor.strides), strict=True):
        if length > 1 and stride != step:
            break
        step *= length
    else:
        yield storage[tensor.offset * size : (tensor.offset + step) * size]
        return
    numbers = storage.cast(letter)
    *outer, last = zip(tensor.shape, tensor.strides, strict=True)
    for places in product(*(range(0, length * stride, stride) if stride else [0] * length for length, stride in outer)):
        begin = tensor.offset + sum(places)
        if last[1]:
            yield bytes(numbers[begin : begin + (last[0] - 1) * last[1] + 1 : last[1]])
        else:
            yield bytes(numbers[begin : begin + 1]) * last[0]


def limit_resources(size: int) -> None:
    """Limit the memory, CPU time and open files of this process to what it needs."""
    try:
        import resource
    except ImportError:  # not available on this system
        return
    codecs.lookup("cp437")  # the encoding of archive member names, which Python loads from a file
    memory = 300 * 2**20 + 6 * size
    for what, most in (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_CPU, 60 + size // 2**23),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, 3),
    ):
        with contextlib.suppress(ValueError, OSError):  # the limit is already lower
            resource.setrlimit(what, (most, most))


def to_safetensors(data: memoryview) -> Iterator[memoryview | bytes]:
    """The bytes of a safetensors file with the tensors of a pickle, in pieces."""
    if bytes(data[:2]) == b"PK":
        tensors, storages = from_zip(data)
    elif bytes(data[:1]) == b"\x80":
        tensors, storages = from_stream(data)
    else:
        raise RefusedError("it is not a file of weights in a format of torch.save")
    header, end = {}, 0
    for name, tensor in tensors.items():
        kind, size, _ = TYPES[tensor.storage.kind]
        begin, end = end, end + _count(tensor.shape) * size
        header[name] = {"dtype": kind, "shape": tensor.shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for tensor in tensors.values():
        yield from rows(tensor, storages[tensor.storage.key])


def to_vocabulary(data: memoryview) -> Iterator[bytes]:
    """The words of a pickled vocabulary in the order of their ids, and its settings, as JSON."""
    if bytes(data[:2]) == b"PK":
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            found = Machine(zip_program(archive, len(data))[0]).run()
    else:
        machine = Machine(data)
        found = machine.run()
        if found == MAGIC:
            _, _, found = (_next(machine) for _ in range(3))  # after the version and the machine that wrote it
    words = found.get("idx2sym") if isinstance(found, dict) else None
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise RefusedError("it has no list of words, idx2sym")
    settings = {name: found.get(name) for name in ("lower_case", "delimiter")}
    if not all(value is None or isinstance(value, (str, bool)) for value in settings.values()):
        raise RefusedError("it has unknown settings")
    yield json.dumps({"words": words, **settings, "lower_case": settings["lower_case"] or False}).encode()


def main() -> int:
    """Read stdin, a regular file, and write stdout; the reason for a refusal goes to stderr."""
    read = to_vocabulary if sys.argv[1:] == ["vocabulary"] else to_safetensors
    try:
        data = memoryview(mmap.mmap(0, 0, prot=mmap.PROT_READ))
        limit_resources(len(data))
        for piece in read(data):
            sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
    except RefusedError as error:
        sys.stderr.write(str(error))
    except MemoryError:
        sys.stderr.write("it needs far more memory than its size allows")
    except DAMAGE as error:
        sys.stderr.write(f"it is damaged: {type(error).__name__}: {error!s:.200}")
    else:
        return 0
    return REFUSED


if __name__ == "__main__":
    sys.exit(main())
