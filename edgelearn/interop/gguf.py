"""GGUF files, as llama.cpp reads them: metadata, and tensors in their block formats, mapped into memory.

Specification: github.com/ggml-org/ggml, docs/gguf.md. The package gguf reads them, too, but takes 8 s and 160 MB of
memory for the tokens of a file of 98 MB, more than its weights do here.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from edgelearn import atomic
from edgelearn.errors import FormatError
from edgelearn.ops.block_formats import BLOCK_BYTES, VALUES

MAGIC, VERSION, ALIGNMENT = b"GGUF", 3, 32
NUMBERS = ("<u1", "<i1", "<u2", "<i2", "<u4", "<i4", "<f4", "?", "str", "array", "<u8", "<i8", "<f8")  # kinds of values
STRING, ARRAY = 8, 9
KINDS = {0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 8: "Q8_0"}  # of tensors that are read
OTHERS = {6: "Q5_0", 7: "Q5_1", 10: "Q2_K", 11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 30: "BF16"}


@dataclass(frozen=True)
class Tensor:
    """A tensor of a file.

    Arguments:
    - `kind`: "F32", or a format of edgelearn.ops.block_formats.
    - `shape`: of its values, the last axis first in memory.
    - `array`: float32 of `shape`, or the bytes of its rows, uint8 (rows, bytes); read-only.
    """

    kind: str
    shape: tuple[int, ...]
    array: np.ndarray


@dataclass(frozen=True)
class GGUF:
    """What a file holds: `metadata` by key, `tensors` by name."""

    metadata: Mapping[str, Any]
    tensors: Mapping[str, Tensor]


class _Cursor:
    """Reads values one after the other. Raises FormatError at the end of the bytes."""

    def __init__(self, path: Path, data: np.ndarray) -> None:
        self.path, self.data, self.at = path, data, 0

    def take(self, count: int) -> np.ndarray:
        if not 0 <= count <= len(self.data) - self.at:
            raise FormatError(f"{self.path} ends before its end: the file is damaged, download it again.")
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self, dtype: str) -> Any:
        return self.take(np.dtype(dtype).itemsize).view(dtype)[0].item()

    def text(self) -> str:
        return self.take(self.number("<u8")).tobytes().decode("utf-8", "replace")

    def value(self, kind: int) -> Any:
        if kind == STRING:
            return self.text()
        if kind == ARRAY:
            of, count = self.number("<u4"), self.number("<u8")
            if of == STRING:
                return self._texts(count)
            if of < len(NUMBERS) and of != ARRAY:
                return self.take(count * np.dtype(NUMBERS[of]).itemsize).view(NUMBERS[of]).tolist()
            return [self.value(of) for _ in range(min(count, len(self.data)))]
        if kind >= len(NUMBERS):
            raise FormatError(f"{self.path} has a value of the unknown type {kind}: the file is damaged or newer.")
        return self.number(NUMBERS[kind])

    def _texts(self, count: int) -> list[str]:
        """Many texts, without an array for each."""
        found, rest, start = [], self.data.data, self.at
        for _ in range(count):
            if start + 8 > len(rest):
                self.take(len(rest))  # which raises
            stop = start + 8 + struct.unpack_from("<Q", rest, start)[0]
            found.append(bytes(rest[start + 8 : stop]).decode("utf-8", "replace"))
            start = stop
        self.take(start - self.at)
        return found


def read_gguf(path: str | Path) -> GGUF:
    """Map a file into memory and read its metadata. Tensors stay in the file until they are used.

    Raises FormatError for another file, a damaged one, or a tensor in another format than F32, F16, Q4_0, Q4_1, Q8_0.
    """
    path = Path(path)
    try:
        data = np.memmap(path, np.uint8, "r")
    except (OSError, ValueError) as error:
        raise FormatError(f"{path} can't be read ({error}). Give the path of a GGUF file.") from None
    cursor = _Cursor(path, data.view(np.ndarray))
    if cursor.take(min(4, len(data))).tobytes() != MAGIC:
        raise FormatError(f"{path} is no GGUF file: give one that llama.cpp reads.")
    if (version := cursor.number("<u4")) not in (2, VERSION):
        raise FormatError(f"{path} is GGUF of version {version}, and versions 2 and 3 are read: convert it.")
    tensors, entries = cursor.number("<u8"), cursor.number("<u8")
    metadata = {}
    for _ in range(entries):
        key = cursor.text()
        metadata[key] = cursor.value(cursor.number("<u4"))
    described = []
    for _ in range(tensors):
        name, axes = cursor.text(), cursor.number("<u4")
        shape = tuple(cursor.number("<u8") for _ in range(min(axes, 8)))
        described.append((name, shape[::-1], cursor.number("<u4"), cursor.number("<u8")))
    alignment = metadata.get("general.alignment", ALIGNMENT)
    start = -(-cursor.at // alignment) * alignment
    found = {name: _tensor(cursor, name, start + offset, shape, kind) for name, shape, kind, offset in described}
    return GGUF(metadata, found)


def _tensor(cursor: _Cursor, name: str, start: int, shape: tuple[int, ...], kind: int) -> Tensor:
    if kind not in KINDS:
        given = OTHERS.get(kind, f"type {kind}")
        raise FormatError(
            f"{cursor.path}: '{name}' is in {given}; {', '.join(KINDS.values())} are read. Give a file in one of "
            f"these, or convert it by llama.cpp's llama-quantize."
        )
    form, count = KINDS[kind], prod(shape)
    if form != "F32" and shape[-1] % VALUES:
        raise FormatError(f"{cursor.path}: '{name}' of {form} has {shape[-1]} columns, no multiple of {VALUES}.")
    cursor.at = min(start, len(cursor.data))
    if form == "F32":
        return Tensor(form, shape, cursor.take(4 * count).view("<f4").reshape(shape))
    row = shape[-1] // VALUES * BLOCK_BYTES[form]
    rows = count // max(1, shape[-1])
    return Tensor(form, shape, cursor.take(rows * row).reshape(rows, row))


def write_gguf(path: str | Path, file: GGUF) -> None:
    """Write a file of version 3, in one step. Raises RunError if it can't be written."""
    types = {name: number for number, name in KINDS.items()}
    parts = [MAGIC, struct.pack("<IQQ", VERSION, len(file.tensors), len(file.metadata))]
    for key, value in file.metadata.items():
        parts += [_text(key), _value(value)]
    offset = 0
    for name, tensor in file.tensors.items():
        shape = tensor.shape[::-1]
        numbers = struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, types[tensor.kind], offset)
        parts += [_text(name), numbers]
        offset += -(-tensor.array.nbytes // ALIGNMENT) * ALIGNMENT
    head = b"".join(parts)
    parts = [head, b"\0" * (-len(head) % ALIGNMENT)]
    for tensor in file.tensors.values():
        parts += [np.ascontiguousarray(tensor.array).tobytes(), b"\0" * (-tensor.array.nbytes % ALIGNMENT)]
    atomic.write_bytes(path, b"".join(parts))


def _text(text: str) -> bytes:
    words = text.encode()
    return struct.pack("<Q", len(words)) + words


def _value(value: Any) -> bytes:
    """A value of metadata with its type: texts, bools, ints (32 bits), floats (32 bits), and lists of one kind."""
    if isinstance(value, list | tuple):
        items = [_value(item) for item in value]
        of = items[0][:4] if items else struct.pack("<I", STRING)
        return struct.pack("<I", ARRAY) + of + struct.pack("<Q", len(items)) + b"".join(item[4:] for item in items)
    if isinstance(value, str):
        return struct.pack("<I", STRING) + _text(value)
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return struct.pack("<Ii" if value < 0 else "<II", 5 if value < 0 else 4, value)
    return struct.pack("<If", 6, value)
