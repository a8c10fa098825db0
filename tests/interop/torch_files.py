"""Files as torch.save writes them, without PyTorch: tensors are NumPy arrays, and globals are names alone."""

import io
import pickle
import struct
import zipfile
from collections import OrderedDict
from pathlib import Path

import numpy as np

KINDS = {"f4": "FloatStorage", "f8": "DoubleStorage", "f2": "HalfStorage", "i8": "LongStorage"}


class Global:
    """A function or class by its name, and arguments that it is called with when it is unpickled."""

    def __init__(self, module, name, *arguments):
        self.module, self.name, self.arguments = module, name, arguments


class Storage:
    def __init__(self, kind, key, count):
        self.kind, self.key, self.count = kind, key, count


class Pickler(pickle._Pickler):
    """Writes arrays as tensors; keeps their values in `storages`."""

    dispatch = dict(pickle._Pickler.dispatch)  # noqa: RUF012

    def __init__(self, file, storages, legacy):
        super().__init__(file, 2)
        self.storages, self.legacy = storages, legacy

    def persistent_id(self, obj):
        if not isinstance(obj, Storage):
            return None
        return ("storage", Global("torch", obj.kind), obj.key, "cpu", obj.count, *([None] if self.legacy else []))

    def save_global_name(self, obj):
        self.write(b"c" + f"{obj.module}\n{obj.name}\n".encode())
        if obj.arguments:
            self.save(obj.arguments)
            self.write(b"R")

    def save_array(self, array):
        key = str(len(self.storages))
        kind = KINDS[array.dtype.str[1:]]
        dense = array.base if array.base is not None and not array.flags.c_contiguous else array
        self.storages[key] = dense.tobytes()
        steps = tuple(step // array.itemsize for step in array.strides)
        storage = Storage(kind, key, dense.size)
        self.save_global_name(
            Global("torch._utils", "_rebuild_tensor_v2", storage, 0, array.shape, steps, False, OrderedDict())
        )

    dispatch[Global] = save_global_name
    dispatch[np.ndarray] = save_array


def _pickled(value, storages, legacy=False):
    file = io.BytesIO()
    Pickler(file, storages, legacy).dump(value)
    return file.getvalue()


def torch_save(path: Path, value) -> Path:
    """Write `value` as PyTorch 1.6 and later does."""
    storages = {}
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{path.stem}/data.pkl", _pickled(value, storages))
        archive.writestr(f"{path.stem}/byteorder", "little")
        for key, data in storages.items():
            archive.writestr(f"{path.stem}/data/{key}", data)
    return path


def torch_save_before_1_6(path: Path, value) -> Path:
    storages = {}
    parts = [_pickled(one, storages, True) for one in (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}, value)]
    sizes = {key: len(data) // 4 for key, data in storages.items()}  # all float32
    parts.append(_pickled(list(storages), {}))
    parts += [struct.pack("<q", sizes[key]) + data for key, data in storages.items()]
    path.write_bytes(b"".join(parts))
    return path
