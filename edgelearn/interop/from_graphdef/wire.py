"""Reads protocol buffers of strangers: fields by number, every length checked before it is used.

It reads the few messages that a graph needs, without a package and without classes that are generated.
Format: https://protobuf.dev/programming-guides/encoding
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np

from edgelearn.errors import FormatError

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
