"""The process behind `foreign.open_arrays`: opens HDF5 files and archives of strangers, and sends what they hold.

    python foreign_worker.py

It imports nothing of edgelearn, so it starts in the time that h5py takes. Requests are lines of JSON on standard input.
Files of torch.save are read without PyTorch, and without running their code: since PyTorch 1.6 they are archives of a
pickle and of storages, before that rows of pickles and storages.

Answers go to standard output in frames: a tag (b"J" for JSON, b"D" for bytes of an array), a length, and the contents.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import sys
import threading
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from math import prod
from pathlib import Path
from typing import IO, Any, ClassVar, NamedTuple

import numpy as np

SLAB = 1 << 24  # bytes of an array that are read at once
IDLE = 30  # seconds without a request after which the process ends
OBJECTS = 50_000  # groups, data sets and archive members of a file
TEXT = 1 << 25  # bytes of attributes and texts of a file
ATTRIBUTES = ("layer_names", "weight_names", "model_config", "keras_version", "backend", "vocabulary", "name")
NUMBERS = "fiub"  # kinds of NumPy types that are sent


class Refused(Exception):
    """A file that is not read, and why."""


class Contents:
    """An open file: a description of its arrays, its texts, and a way to read an array in pieces.

    Arguments:
    - `limit`: bytes that all arrays may take together.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.opened = ExitStack()
        self.arrays: dict[str, dict[str, Any]] = {}
        self.texts: dict[str, Any] = {}
        self._readers: dict[str, Callable[[], Iterator[bytes]]] = {}
        self._room_for_texts = TEXT
        self._objects = 0

    def count(self, what: str) -> None:
        self._objects += 1
        if self._objects > OBJECTS:
            raise Refused(f"it has more than {OBJECTS:,} objects, at '{what:.200}'")
        if len(what) > 1000:
            raise Refused(f"a name of {len(what):,} characters begins with '{what:.60}'")

    def add_array(
        self, name: str, shape: tuple[int, ...], dtype: np.dtype, read: Callable[[], Iterator[bytes]], **more: Any
    ) -> None:
        self.count(name)
        if dtype.hasobject:
            raise Refused(f"'{name:.200}' holds Python objects or texts, not plain arrays")
        size = prod(map(int, shape)) * dtype.itemsize
        if size > self.limit or len(shape) > 32:
            raise Refused(
                f"'{name:.200}' says that it has shape {tuple(shape)} of {dtype}, {size:,} bytes; the arrays of a file "
                f"of this size may take {self.limit:,} more"
            )
        self.limit -= size
        self.arrays[name] = {"shape": [int(n) for n in shape], "dtype": dtype.str, **more}
        if dtype.kind in NUMBERS:
            self._readers[name] = read

    def take_text(self, size: int, what: str) -> None:
        """Count `size` bytes of text before they are read."""
        self._room_for_texts -= size
        if size < 0 or self._room_for_texts < 0:
            raise Refused(f"'{what:.200}' and the texts before it take more than {TEXT:,} bytes")

    def read(self, name: str) -> Iterator[bytes]:
        return self._readers[name]()

    def describe(self) -> dict[str, Any]:
        return {"arrays": self.arrays, "texts": self.texts}


def open_hdf5(source: Any, contents: Contents, size: int) -> None:
    """Describe all groups and data sets that hard links reach."""
    import h5py

    file = contents.opened.enter_context(h5py.File(source, "r", locking=False))
    seen: set[Any] = set()
    waiting: list[tuple[str, Any]] = [("", file["/"])]
    while waiting:
        path, group = waiting.pop()
        contents.count(path)
        where = h5py.h5o.get_info(group.id)
        if (where.fileno, where.addr) in seen:
            raise Refused(f"'{path:.200}' is a group that has another name as well: links run in a circle")
        seen.add((where.fileno, where.addr))
        _add_attributes(path, group, contents)
        for name in group:
            below = f"{path}/{name}" if path else name
            link = group.get(name, getlink=True)
            if not isinstance(link, h5py.HardLink):
                kind = "another file" if isinstance(link, h5py.ExternalLink) else "another place"
                raise Refused(f"'{below:.200}' is a link to {kind} ({link.path!s:.200})")
            item = group[name]
            if isinstance(item, h5py.Group):
                waiting.append((below, item))
            elif isinstance(item, h5py.Dataset):
                _add_dataset(below, item, contents, size)


def _add_attributes(path: str, group: Any, contents: Contents) -> None:
    import h5py

    for name in group.attrs:
        if name.rstrip("0123456789") not in ATTRIBUTES:
            continue
        attribute = h5py.h5a.open(group.id, name.encode())
        what = f"{path}@{name}"
        contents.count(what)
        kind = attribute.dtype
        if prod(attribute.shape) == 0:  # h5py writes an empty list as numbers
            contents.texts[what] = []
            continue
        if not h5py.check_string_dtype(kind):
            continue
        contents.take_text(prod(attribute.shape) * kind.itemsize, what)
        value = np.asarray(group.attrs[name]).ravel().tolist()
        texts = [text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text) for text in value]
        contents.take_text(sum(map(len, texts)), what)
        contents.texts[what] = texts


def _add_dataset(name: str, data: Any, contents: Contents, size: int) -> None:
    if data.external:
        raise Refused(f"'{name:.200}' keeps its values in another file ({data.external[0][0]!s:.200})")
    if data.is_virtual:
        raise Refused(f"'{name:.200}' is put together of other files")
    shape = data.shape
    if shape is None:
        return
    if data.id.get_storage_size() > size:
        raise Refused(f"'{name:.200}' says that it takes {data.id.get_storage_size():,} bytes of a file of {size:,}")
    if data.chunks and prod(data.chunks) * data.dtype.itemsize > max(contents.limit, 0):
        raise Refused(f"'{name:.200}' has chunks of shape {data.chunks}, more than a file of this size may need")

    def read() -> Iterator[bytes]:
        if not shape or not prod(shape):
            yield np.asarray(data[()]).tobytes()
            return
        rows = max(1, SLAB // max(1, prod(shape[1:]) * data.dtype.itemsize))
        for begin in range(0, shape[0], rows):
            yield data[begin : begin + rows].tobytes()

    contents.add_array(name, shape, data.dtype, read)


def open_npz(file: Any, contents: Contents, size: int) -> None:
    """Describe the arrays of an .npz archive."""
    archive = _archive(file, contents)
    for info in archive.infolist():
        name = info.filename.removesuffix(".npy")
        with archive.open(info) as member:
            shape, fortran, dtype = _npy_header(member)
            begin = member.tell()

        def read(info: zipfile.ZipInfo = info, begin: int = begin, left: int = prod(shape) * dtype.itemsize):
            with archive.open(info) as member:
                member.read(begin)
                while left:
                    piece = member.read(min(left, SLAB))
                    if not piece:
                        raise Refused(f"'{info.filename:.200}' ends {left:,} bytes early")
                    left -= len(piece)
                    yield piece
                member.read(1)  # at the end the checksum is compared

        contents.add_array(name, shape, dtype, read, fortran=fortran)


def _npy_header(member: Any) -> tuple[tuple[int, ...], bool, np.dtype]:
    version = np.lib.format.read_magic(member)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(member)
    return np.lib.format.read_array_header_2_0(member)


def open_keras(file: Any, contents: Contents, size: int) -> None:
    """Describe a .keras archive: the texts config.json and metadata.json, and the arrays of model.weights.h5."""
    archive = _archive(file, contents)
    members = {info.filename: info for info in archive.infolist()}
    for name in ("config.json", "metadata.json"):
        if name in members:
            contents.take_text(members[name].file_size, name)
            contents.texts[name] = _whole(archive, members[name]).decode("utf-8")
    if "config.json" not in members or "model.weights.h5" not in members:
        raise Refused("it lacks config.json or model.weights.h5")
    image = _whole(archive, members["model.weights.h5"])
    open_hdf5(io.BytesIO(image), contents, len(image))


def open_torch(path: str, contents: Contents, size: int) -> None:
    """Describe the tensors of a state dict that torch.save wrote."""
    archive = _archive(path, contents) if zipfile.is_zipfile(path) else None
    members = {info.filename: info for info in archive.infolist()} if archive else {}

    def member(name: str) -> bytes:
        contents.take_text(members[name].file_size * (not name.partition("/")[2].startswith("data/")), name)
        return _whole(archive, members[name])  # type: ignore[arg-type]  there are no members without an archive

    if archive:
        found, storage = read_archive(members, member)
    else:
        found, storage = read_pickles(contents.opened.enter_context(Path(path).open("rb")))  # noqa: SIM115
    contents.texts = state_dict_texts(found)
    for name, tensor in state_dict_tensors(found).items():
        dtype, read = tensor_reader(name, tensor, storage)
        contents.add_array(name, tensor.shape, dtype, read)


MAGIC = 0x1950A86A20F9469CFC6C  # the first pickle of a file of PyTorch before 1.6
BFLOAT16 = "bfloat16"  # NumPy has none: the upper half of a float32
STORAGES = {
    "FloatStorage": "<f4", "DoubleStorage": "<f8", "HalfStorage": "<f2", "BFloat16Storage": BFLOAT16,
    "LongStorage": "<i8", "IntStorage": "<i4", "ShortStorage": "<i2", "CharStorage": "|i1", "ByteStorage": "|u1",
    "BoolStorage": "|b1",
}  # fmt: skip

Storages = Callable[[str, int], bytes]  # bytes of a storage, by its key, as many as are wanted


class Tensor(NamedTuple):
    """A view of a storage."""

    storage: tuple[str, str, int]  # type, key, number of values
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class Opaque:
    """Stands for an object of any class that isn't known: nothing of it is kept, none of its code is run."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __setstate__(self, _: Any) -> None:
        pass


def _tensor(storage: Any, offset: int, shape: Any, strides: Any, *_: Any) -> Tensor:
    return Tensor(storage, offset, tuple(shape), tuple(strides))


class Unpickler(pickle.Unpickler):
    """Reads tensors, dictionaries and plain values. It finds no function or class but those of `find_class`."""

    KNOWN: ClassVar[dict[tuple[str, str], Any]] = {
        ("collections", "OrderedDict"): OrderedDict,
        ("torch._utils", "_rebuild_tensor_v2"): _tensor,
        ("torch._utils", "_rebuild_parameter"): lambda tensor, *_: tensor,
    }

    def __init__(self, file: Any) -> None:
        super().__init__(file)
        self.storages: dict[str, str] = {}  # types by key

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and name in STORAGES:
            return STORAGES[name]
        return self.KNOWN.get((module, name)) or type(f"{module}.{name}"[:200], (Opaque,), {})

    def persistent_load(self, pid: Any) -> tuple[str, str, int]:
        _, kind, key, _, count, *view = pid
        if not isinstance(kind, str) or any(view):
            raise ValueError("it has tensors of a type that isn't known")
        self.storages[str(key)] = kind
        return kind, str(key), int(count)


def read_archive(members: Mapping[str, Any], member: Callable[[str], bytes]) -> tuple[dict[Any, Any], Storages]:
    """The state dict and the storages of a file of PyTorch 1.6 and later. `member`: contents of a member by name."""
    name = next((name for name in members if name.count("/") == 1 and name.endswith("/data.pkl")), None)
    if name is None:
        raise ValueError("it lacks data.pkl")
    root = name.removesuffix("data.pkl")
    if f"{root}byteorder" in members and member(f"{root}byteorder") != b"little":
        raise ValueError("its numbers are big-endian")
    loaded = Unpickler(io.BytesIO(member(name))).load()
    return _state_dict(loaded), lambda key, _: member(f"{root}data/{key}")


def read_pickles(file: IO[bytes]) -> tuple[dict[Any, Any], Storages]:
    """The state dict and the storages of a file of PyTorch before 1.6."""
    if Unpickler(file).load() != MAGIC:
        raise ValueError("it doesn't begin as one")
    readers = [Unpickler(file) for _ in range(4)]  # of version, machine, object and keys of storages
    _, _, loaded, keys = (reader.load() for reader in readers)
    places, at = {}, file.tell()
    for key in keys:
        file.seek(at)
        (count,) = struct.unpack("<q", file.read(8))
        places[key] = at + 8
        at += 8 + count * _stored(readers[2].storages[key]).itemsize

    def storage(key: str, size: int) -> bytes:
        file.seek(places[key])
        return file.read(size)

    return _state_dict(loaded), storage


def _state_dict(loaded: Any) -> dict[Any, Any]:
    """The state dict itself, or the only one in a checkpoint, which has it among other entries."""
    if not isinstance(loaded, dict):
        raise ValueError(
            f"it holds an object of {type(loaded).__name__}, whose code isn't run: save the weights alone, "
            "torch.save(module.state_dict(), path)"
        )
    found = [name for name, value in loaded.items() if isinstance(value, dict) and state_dict_tensors(value)]
    if not found and state_dict_tensors(loaded):
        return loaded
    if len(found) != 1:
        has = f"several state dicts: {', '.join(map(str, found))}" if found else "no tensors by name"
        raise ValueError(f"it has {has}; save one by itself, torch.save(module.state_dict(), path)")
    return loaded[found[0]]


def state_dict_tensors(state: dict[Any, Any]) -> dict[str, Tensor]:
    """Tensors by name, in the order of the file."""
    return {name: one for name, one in state.items() if isinstance(name, str) and isinstance(one, Tensor)}


def state_dict_texts(state: dict[Any, Any]) -> dict[str, str]:
    """Return the metadata that edgelearn's export wrote beside the tensors."""
    about = getattr(state, "_metadata", {})
    found = about.get("edgelearn", {}) if isinstance(about, dict) else {}
    return {str(key): str(value) for key, value in found.items()}


def tensor_reader(name: str, tensor: Tensor, storage: Storages) -> tuple[np.dtype, Callable[[], Iterator[bytes]]]:
    """NumPy's type of a tensor, and a function that reads its values in order."""
    (kind, key, count), offset, shape, strides = tensor
    stored = _stored(kind)
    last = offset + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
    if min(offset, count, *shape, *strides) < 0 or (prod(shape) and last >= count):
        raise ValueError(f"'{name:.200}' reaches past its {count:,} values")

    def read() -> Iterator[bytes]:
        data = storage(key, count * stored.itemsize)
        if len(data) < count * stored.itemsize:
            raise ValueError(f"'{name:.200}' ends early")
        values = np.frombuffer(data, stored, count)[offset:]
        array = np.lib.stride_tricks.as_strided(values, shape, [stride * stored.itemsize for stride in strides])
        yield ((array.astype("<u4") << 16) if kind == BFLOAT16 else np.ascontiguousarray(array)).tobytes()

    return np.dtype("<f4") if kind == BFLOAT16 else stored, read


def _stored(kind: str) -> np.dtype:
    return np.dtype("<u2" if kind == BFLOAT16 else kind)


def _archive(file: Any, contents: Contents) -> zipfile.ZipFile:
    archive = contents.opened.enter_context(zipfile.ZipFile(file))
    for info in archive.infolist():
        contents.count(info.filename)
        if info.file_size > contents.limit:
            raise Refused(
                f"'{info.filename:.200}' says that it unpacks to {info.file_size:,} bytes; an archive of this size may "
                f"unpack to {contents.limit:,}"
            )
        if info.flag_bits & 1:
            raise Refused(f"'{info.filename:.200}' is encrypted")
    return archive


def _whole(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    """Read a member, whose size was checked; zipfile stops at that size and compares the checksum."""
    with archive.open(info) as member:
        return member.read(info.file_size + 1)


OPENERS: dict[str, Callable[[Any, Contents, int], None]] = {
    "hdf5": open_hdf5,
    "npz": open_npz,
    "keras": open_keras,
    "torch": open_torch,
}


def limit_memory(more: int) -> None:
    """Allow `more` bytes beyond what the process has now. On Linux alone; elsewhere the parent watches."""
    try:
        import resource

        with open("/proc/self/statm") as file:
            now = int(file.read().split()[0]) * resource.getpagesize()
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (now + more, hard))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    except (ImportError, OSError, ValueError):
        pass


def main() -> None:
    """Serve until standard input ends, or nothing has been asked for a while."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)

    def send(tag: bytes, body: bytes) -> None:
        answers.write(tag + struct.pack("<Q", len(body)) + body)
        answers.flush()

    contents = Contents(0)
    while True:
        ends = threading.Timer(IDLE, os._exit, (0,))
        ends.daemon = True
        ends.start()
        line = sys.stdin.buffer.readline()
        ends.cancel()
        if not line:
            os._exit(0)
        request = json.loads(line)
        try:
            if "read" in request:
                for name in request["read"]:
                    for piece in contents.read(name):
                        send(b"D", piece)
                continue
            contents.opened.close()
            contents = Contents(request.get("limit", 0))
            if "open" in request:
                limit_memory(request["memory"])
                OPENERS[request["kind"]](request["open"], contents, os.path.getsize(request["open"]))
            send(b"J", json.dumps(contents.describe()).encode())
        except Exception as error:  # libraries raise anything for damaged files
            contents.opened.close()
            send(b"J", json.dumps({"error": _reason(error)}).encode())


def _reason(error: Exception) -> str:
    if isinstance(error, MemoryError):
        return "it needs more memory than a file of this size may take"
    return f"{(str(error).splitlines() or [''])[0] or type(error).__name__:.500}"


if __name__ == "__main__":
    main()
