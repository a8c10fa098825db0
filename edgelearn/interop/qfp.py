"""Weights as CLML's samples load them: a folder with a headerless file a tensor, and a manifest.

A tensor's file has its values in C order, little-endian, and the tensor's name with "." and "/" as "_". The manifest,
"manifest.json", lists files, shapes, dtypes and layers' inputs. Folders end in .qfp32 (float32) or .qfp16 (float16).
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

import numpy as np

from edgelearn import atomic
from edgelearn.errors import FormatError, RunError

from .formats import Written, constant_bytes, to_float16
from .safetensors import ModelFile

MANIFEST, VERSION = "manifest.json", 1


def write_qfp32(path: str | Path, file: ModelFile) -> Written:
    """Write a folder of float32 files. Raises RunError if it is there already or can't be written, FormatError if two
    names become one."""
    return _write(Path(path), file, "float32", "qfp32")


def write_qfp16(path: str | Path, file: ModelFile) -> Written:
    """Write a folder of float16 files, rounded to nearest even. Errors as `write_qfp32`, and FormatError for a value
    that float16 can't hold."""
    return _write(Path(path), file, "float16", "qfp16")


def _write(path: Path, file: ModelFile, dtype: str, suffix: str) -> Written:
    if path.exists():
        raise RunError(f"{path} is there already: remove it, or choose another name.")
    tensors: dict[str, dict] = {}
    arrays: dict[str, np.ndarray] = {}
    for name, array in file.weights.items():
        flat = f"{name.replace('/', '_').replace('.', '_')}.{suffix}"
        if flat in arrays:
            raise FormatError(f"Two tensors would be in the file '{flat}', one of them '{name}': rename that layer.")
        stored = to_float16(name, array) if dtype == "float16" else array
        arrays[flat] = stored.astype(np.dtype(dtype).newbyteorder("<"))
        tensors[name] = {"file": flat, "shape": list(array.shape), "dtype": dtype}
    manifest = {
        "format": "qfp", "version": VERSION, "byte_order": "little", "tensors": tensors,
        "network": json.loads(file.network.to_json()), **{k: json.loads(v) for k, v in file.texts().items()},
    }  # fmt: skip
    try:
        part = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
        try:
            for name, array in arrays.items():
                (part / name).write_bytes(array.tobytes())
            atomic.write_json(part / MANIFEST, manifest)
            part.rename(path)
        except BaseException:
            shutil.rmtree(part, ignore_errors=True)
            raise
    except OSError as error:
        raise RunError(f"{path} can't be written ({error.strerror}). Choose another folder.") from None
    return Written(constant_bytes(arrays.values()))


def read_qfp(path: str | Path) -> dict[str, np.ndarray]:
    """Read the tensors of a folder, by name, as float32.

    Raises FormatError, naming the place, if the manifest or a file is damaged, or leads out of the folder.
    """
    folder = Path(path)
    found: dict[str, np.ndarray] = {}
    try:
        tensors = json.loads((folder / MANIFEST).read_bytes())["tensors"]
        for name, entry in tensors.items():
            shape, dtype, file = tuple(entry["shape"]), np.dtype(entry["dtype"]).newbyteorder("<"), entry["file"]
            if Path(file).name != file or entry["dtype"] not in ("float16", "float32"):
                raise FormatError(f"{folder / MANIFEST}: '{name!s:.100}' isn't a file of this folder, or no float.")
            if any(type(n) is not int or n < 0 for n in shape):
                raise FormatError(f"{folder / MANIFEST}: '{name!s:.100}' has the shape {shape}.")
            content = (folder / file).read_bytes()
            found[name] = np.frombuffer(content, dtype).reshape(shape).astype(np.float32)
    except (OSError, KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise FormatError(f"{folder} is not a QFP folder, or is damaged ({error!s:.200}). Write it again.") from None
    return found
