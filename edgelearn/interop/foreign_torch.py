"""Files of torch.save, read by the process of `foreign_worker` without PyTorch, and without running their code.

Since PyTorch 1.6 they are archives of a pickle and of storages, before that rows of pickles and storages.
"""

from __future__ import annotations

import io
import pickle
import struct
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from math import prod
from typing import IO, Any, ClassVar, NamedTuple

import numpy as np

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
    found = [name for name, value in loaded.items() if isinstance(value, dict) and tensors(value)]
    if not found and tensors(loaded):
        return loaded
    if len(found) != 1:
        has = f"several state dicts: {', '.join(map(str, found))}" if found else "no tensors by name"
        raise ValueError(f"it has {has}; save one by itself, torch.save(module.state_dict(), path)")
    return loaded[found[0]]


def tensors(state: dict[Any, Any]) -> dict[str, Tensor]:
    """Tensors by name, in the order of the file."""
    return {name: one for name, one in state.items() if isinstance(name, str) and isinstance(one, Tensor)}


def texts(state: dict[Any, Any]) -> dict[str, str]:
    """Return the metadata that edgelearn's export wrote beside the tensors."""
    about = getattr(state, "_metadata", {})
    found = about.get("edgelearn", {}) if isinstance(about, dict) else {}
    return {str(key): str(value) for key, value in found.items()}


def reading(name: str, tensor: Tensor, storage: Storages) -> tuple[np.dtype, Callable[[], Iterator[bytes]]]:
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
