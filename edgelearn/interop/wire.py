"""Flatbuffers and protocol buffers of strangers: every offset and length is checked before it is used.

The package `flatbuffers` believes what a file says; a vector that states four billion elements would be walked through.
Messages of protocol buffers are read by the numbers of their fields, without a package and without generated classes.
Formats: https://flatbuffers.dev/internals, https://protobuf.dev/programming-guides/encoding
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgelearn.errors import FormatError

NAME = 4096  # bytes of a text at most


class FlatBuffer:
    """The bytes of a file.

    Arguments:
    - `data`: its contents.
    - `what`: the file's name, for errors.
    """

    def __init__(self, data: bytes, what: str) -> None:
        self.data, self.what = data, what
        self.budget = 4 * len(data) + 4096  # elements that are read; tables may share vectors, but not without end

    def root(self) -> FlatTable:
        return FlatTable(self, self.integer("<I", 0, "the first table"), "the file")

    def integer(self, code: str, place: int, what: str) -> int:
        return self.number(code, place, what)

    def number(self, code: str, place: int, what: str) -> Any:
        size = struct.calcsize(code)
        if not 0 <= place <= len(self.data) - size:
            raise self.damaged(f"{what} is said to be at byte {place:,}, and the file has {len(self.data):,}")
        return struct.unpack_from(code, self.data, place)[0]

    def spend(self, elements: int, what: str) -> None:
        self.budget -= elements
        if self.budget < 0:
            raise self.damaged(f"{what} and what was read before share bytes again and again")

    def damaged(self, reason: str) -> FormatError:
        return FormatError(f"{self.what} is damaged: {reason}. Fetch it again, or give another file.")


@dataclass(frozen=True)
class FlatTable:
    """A table; its fields are numbered as in the schema. A field that is left out has its default.

    Arguments:
    - `buffer`: the file.
    - `place`: of the table, in bytes.
    - `what`: its name, for errors.
    """

    buffer: FlatBuffer
    place: int
    what: str

    def number(self, field: int, code: str, default: int | float = 0) -> Any:
        """A number; `code` is that of struct, such as "b" or "i"."""
        place = self._place(field)
        return default if place is None else self.buffer.number("<" + code, place, f"field {field} of {self.what}")

    def table(self, field: int, what: str) -> FlatTable | None:
        place = self._target(field)
        return None if place is None else FlatTable(self.buffer, place, what)

    def text(self, field: int) -> str:
        """A text; empty if there is none."""
        place = self._target(field)
        if place is None:
            return ""
        size = self._length(place, 1, field)
        if size > NAME:
            raise self.buffer.damaged(f"field {field} of {self.what} is a text of {size:,} bytes")
        self.buffer.spend(size, self.what)
        return self.buffer.data[place + 4 : place + 4 + size].decode("utf-8", "replace")

    def array(self, field: int, dtype: str) -> np.ndarray:
        """A vector of numbers, which shares the file's memory; empty if there is none."""
        place = self._target(field)
        if place is None:
            return np.zeros(0, dtype)
        size = self._length(place, np.dtype(dtype).itemsize, field)
        return np.frombuffer(self.buffer.data, dtype, size, place + 4)

    def integers(self, field: int, code: str = "i") -> tuple[int, ...]:
        """A vector of whole numbers."""
        found = self.array(field, f"<{code}4" if code != "q" else "<i8")
        self.buffer.spend(len(found), self.what)
        return tuple(found.tolist())

    def tables(self, field: int, what: str) -> list[FlatTable]:
        """A vector of tables."""
        place = self._target(field)
        if place is None:
            return []
        size = self._length(place, 4, field)
        self.buffer.spend(size, self.what)
        places = range(place + 4, place + 4 + 4 * size, 4)
        return [
            FlatTable(self.buffer, p + self.buffer.integer("<I", p, what), f"{what} {n}") for n, p in enumerate(places)
        ]

    def _place(self, field: int) -> int | None:
        """Place of a field's value, None if it is left out."""
        buffer, what = self.buffer, f"the layout of {self.what}"
        layout = self.place - buffer.integer("<i", self.place, what)
        entry = 4 + 2 * field
        if entry + 2 > buffer.integer("<H", layout, what):
            return None
        offset = buffer.integer("<H", layout + entry, what)
        return self.place + offset if offset else None

    def _target(self, field: int) -> int | None:
        """Place of what a field points to."""
        place = self._place(field)
        if place is None:
            return None
        return place + self.buffer.integer("<I", place, f"field {field} of {self.what}")

    def _length(self, place: int, item: int, field: int) -> int:
        """Number of elements of the vector at `place`, which lie in the file."""
        what = f"field {field} of {self.what}"
        size = self.buffer.integer("<I", place, what)
        if size * item > len(self.buffer.data) - place - 4:
            raise self.buffer.damaged(f"{what} says that it has {size:,} elements, more than the file")
        return size


VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  # wire types
_FIXED = {FIXED64: 8, FIXED32: 4}


class Message:
    """A message, read on demand.

    Arguments:
    - `data`: its bytes.
    - `what`: what it is and of which file, for errors.
    """

    def __init__(self, data: memoryview, what: str) -> None:
        self.data, self.what = data, what

    def __iter__(self) -> Iterator[tuple[int, int, int | memoryview]]:
        """Yield (field, wire type, value): an int for varints, bytes for all others."""
        place = 0
        while place < len(self.data):
            key, place = self.varint(place)
            field, kind = key >> 3, key & 7
            if kind == VARINT:
                value, place = self.varint(place)
                yield field, kind, value
                continue
            if kind == BYTES:
                size, place = self.varint(place)
            elif kind in _FIXED:
                size = _FIXED[kind]
            else:
                raise self.damaged(f"byte {place:,} begins a field of the unknown type {kind}")
            if size > len(self.data) - place:
                raise self.damaged(f"field {field} says that it has {size:,} bytes of {len(self.data) - place:,}")
            yield field, kind, self.data[place : place + size]
            place += size

    def fields(self, *wanted: int) -> list[list[int | memoryview]]:
        """The values of each of the wanted fields, in order."""
        found: dict[int, list[int | memoryview]] = {field: [] for field in wanted}
        for field, _, value in self:
            if field in found:
                found[field].append(value)
        return [found[field] for field in wanted]

    def mapping(self, field: int, where: str = "") -> dict[str, Message]:
        """A map from texts to messages. `where`: what errors call it (default: this message)."""
        found, (entries,) = {}, self.fields(field)
        for value in entries:
            entry = self.message(value, where)
            keys, values = entry.fields(1, 2)
            key = entry.text(keys[-1]) if keys else ""
            if values:
                found[key] = entry.message(values[-1], where and f"{where}, '{key:.60}'")
        return found

    def messages(self, field: int) -> list[Message]:
        """The values of a field as messages."""
        (values,) = self.fields(field)
        return [self.message(value) for value in values]

    def texts(self, field: int) -> list[str]:
        """The values of a field as texts."""
        (values,) = self.fields(field)
        return [self.text(value) for value in values]

    def message(self, value: int | memoryview, what: str = "") -> Message:
        """A field's value as a message."""
        return Message(self.bytes(value), what or self.what)

    def bytes(self, value: int | memoryview) -> memoryview:
        if isinstance(value, int):
            raise self.damaged("a number stands where bytes are expected")
        return value

    def text(self, value: int | memoryview) -> str:
        return bytes(self.bytes(value)).decode("utf-8", "replace")

    def integer(self, value: int | memoryview) -> int:
        """A varint as a signed number of 64 bits."""
        if not isinstance(value, int):
            raise self.damaged("bytes stand where a number is expected")
        return value - (1 << 64) if value >> 63 else value

    def integers(self, values: list[int | memoryview]) -> list[int]:
        """A repeated varint, packed or not."""
        found = []
        for value in values:
            if isinstance(value, int):
                found.append(self.integer(value))
                continue
            packed, place = Message(value, self.what), 0
            while place < len(value):
                number, place = packed.varint(place)
                found.append(self.integer(number))
        return found

    def floats(self, values: list[int | memoryview], dtype: str = "<f4") -> np.ndarray:
        """A repeated number of fixed size, packed or not."""
        data = b"".join(bytes(self.bytes(value)) for value in values)
        if len(data) % np.dtype(dtype).itemsize:
            raise self.damaged(f"{len(data):,} bytes are no whole number of {dtype}")
        return np.frombuffer(data, dtype)

    def number(self, value: int | memoryview) -> float:
        data = self.bytes(value)
        if len(data) != 4:
            raise self.damaged(f"{len(data)} bytes are no number of 32 bits")
        return struct.unpack("<f", data)[0]

    def damaged(self, reason: str) -> FormatError:
        return FormatError(f"{self.what} is damaged: {reason}. Fetch the file again, or give another one.")

    def varints(self, count: int) -> list[int]:
        """Numbers that stand one after another at the beginning."""
        found, place = [], 0
        for _ in range(count):
            number, place = self.varint(place)
            found.append(number)
        return found

    def varint(self, place: int) -> tuple[int, int]:
        """The number at a place, without a sign, and the place after it."""
        value = 0
        for shift in range(0, 70, 7):
            if place >= len(self.data):
                break
            byte = self.data[place]
            value |= (byte & 0x7F) << shift
            place += 1
            if not byte & 0x80:
                return value & (1 << 64) - 1, place
        raise self.damaged(f"byte {place:,} ends in the middle of a number")
