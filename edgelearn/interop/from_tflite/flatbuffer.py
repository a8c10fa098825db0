"""Reads flatbuffers of strangers: every offset and length is checked before it is used.

The package `flatbuffers` believes what a file says. A vector that states four billion elements would be walked through.
Format: https://flatbuffers.dev/internals
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgelearn.errors import FormatError

NAME = 4096  # bytes of a text at most


class Buffer:
    """The bytes of a file.

    Arguments:
    - `data`: its contents.
    - `what`: the file's name, for errors.
    """

    def __init__(self, data: bytes, what: str) -> None:
        self.data, self.what = data, what
        self.budget = 4 * len(data) + 4096  # elements that are read; tables may share vectors, but not without end

    def root(self) -> Table:
        return Table(self, self.integer("<I", 0, "the first table"), "the file")

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
class Table:
    """A table; its fields are numbered as in the schema. A field that is left out has its default.

    Arguments:
    - `buffer`: the file.
    - `place`: of the table, in bytes.
    - `what`: its name, for errors.
    """

    buffer: Buffer
    place: int
    what: str

    def number(self, field: int, code: str, default: int | float = 0) -> Any:
        """A number; `code` is that of struct, such as "b" or "i"."""
        place = self._place(field)
        return default if place is None else self.buffer.number("<" + code, place, f"field {field} of {self.what}")

    def table(self, field: int, what: str) -> Table | None:
        place = self._target(field)
        return None if place is None else Table(self.buffer, place, what)

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

    def tables(self, field: int, what: str) -> list[Table]:
        """A vector of tables."""
        place = self._target(field)
        if place is None:
            return []
        size = self._length(place, 4, field)
        self.buffer.spend(size, self.what)
        places = range(place + 4, place + 4 + 4 * size, 4)
        return [Table(self.buffer, p + self.buffer.integer("<I", p, what), f"{what} {n}") for n, p in enumerate(places)]

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
