"""Reads the variables of a TensorFlow checkpoint, without TensorFlow; every checksum is compared.

The index is a table of LevelDB (NAME.index), whose entries name places in files of values (NAME.data-00000-of-00001).
Format: tensorflow/core/util/tensor_bundle, tensorflow/core/protobuf/tensor_bundle.proto,
https://github.com/google/leveldb/blob/main/doc/table_format.md
"""

from __future__ import annotations

import glob
import struct
from collections.abc import Iterator
from math import prod
from pathlib import Path

import numpy as np

from edgelearn.errors import FormatError

from .reader import TYPES, plain, read_shape
from .wire import Message

FOOTER, MAGIC = 48, 0xDB4775248B80FB57
TRAILER = 5  # bytes after a block: its compression, and its checksum


class Checkpoint:
    """The variables of a checkpoint by key.

    Arguments:
    - `prefix`: path of its files without ".index".

    Raises FormatError if the index is missing or damaged.
    """

    def __init__(self, prefix: Path) -> None:
        self.prefix, self.path = prefix, prefix.with_name(prefix.name + ".index")
        data = self._bytes(self.path, 0, None)
        end = Message(memoryview(data)[-FOOTER:], str(self.path))
        if len(data) < FOOTER or struct.unpack("<Q", end.data[-8:])[0] != MAGIC:
            raise end.damaged("its last bytes aren't those of a table")
        _, _, offset, size = end.varints(4)
        self._entries: dict[str, Message] = {}
        for _, place in _entries(self._block(data, offset, size)):
            for key, entry in _entries(self._block(data, *place.varints(2))):
                self._entries[key.decode("utf-8", "replace")] = entry
        header = self._entries.pop("", None)
        shards, ends = header.fields(1, 2) if header else ([], [])
        if not shards or any(ends):
            raise end.damaged("it has no header, or is of a machine with another order of bytes")
        self._shards = end.integer(shards[-1])
        files = prefix.parent.glob(f"{glob.escape(prefix.name)}.data-*")
        self._room = 2 * sum(file.stat().st_size for file in files)  # bytes that all variables may take

    def __contains__(self, key: str) -> bool:
        return key in self._entries

    def read(self, key: str) -> np.ndarray:
        """The values of a variable. Raises FormatError if it is damaged, or divided into slices."""
        entry = self._entries[key]
        types, shapes, *numbers, sums, slices = entry.fields(1, 2, 3, 4, 5, 6, 7)
        shard, offset, size = (entry.integer(values[-1]) if values else 0 for values in numbers)
        kind = TYPES.get(entry.integer(types[-1]) if types else 0, "")
        shape = read_shape(entry.message(shapes[-1])) if shapes else ()
        if slices:
            raise FormatError(f"{self.path}: '{key:.200}' is divided into slices. Save the model without partitions.")
        if kind in ("", "string") or shape is None or min(shape, default=0) < 0:
            raise entry.damaged(f"'{key:.200}' has the type '{kind}' and the shape {shape}")
        stored = np.dtype("<u2" if kind == "bfloat16" else kind).newbyteorder("<")
        if prod(shape) * stored.itemsize != size:
            raise entry.damaged(f"'{key:.200}' of {kind} and shape {shape} has {size:,} bytes")
        self._room -= size
        if self._room < 0:
            raise entry.damaged("variables take more bytes than its files have")
        path = self.prefix.with_name(f"{self.prefix.name}.data-{shard:05d}-of-{self._shards:05d}")
        data = self._bytes(path, offset, size)
        if not sums or _masked(data) != struct.unpack("<I", entry.bytes(sums[-1]))[0]:
            raise entry.damaged(f"the values of '{key:.200}' don't fit their checksum")
        return plain(np.frombuffer(data, stored), kind).reshape(shape)

    def _block(self, data: bytes, offset: int, size: int) -> Message:
        end = offset + size
        block = Message(memoryview(data)[offset:end], str(self.path))
        if end + TRAILER > len(data):
            raise block.damaged(f"a block ends at byte {end:,} of {len(data):,}")
        if data[end]:
            raise block.damaged("a block is compressed, which TensorFlow doesn't do")
        if _masked(data[offset : end + 1]) != struct.unpack_from("<I", data, end + 1)[0]:
            raise block.damaged(f"the block at byte {offset:,} doesn't fit its checksum")
        return block

    def _bytes(self, path: Path, offset: int, size: int | None) -> bytes:
        """`size` bytes of a file from `offset` on; all of them for None."""
        try:
            there = path.stat().st_size
            if size is not None and not 0 <= offset <= there - size <= there:
                raise FormatError(f"{path} is damaged: it has {there:,} bytes, and {offset + size:,} are needed.")
            with path.open("rb") as file:
                file.seek(offset)
                return file.read(there if size is None else size)
        except OSError as error:
            raise FormatError(f"{path} can't be read ({error.strerror}): restore the SavedModel's folder.") from None


def _entries(block: Message) -> Iterator[tuple[bytes, Message]]:
    """(key, value) of a block; a key is written as what differs from the one before."""
    if len(block.data) < 4:
        raise block.damaged("a block has no end")
    restarts = 4 * (struct.unpack("<I", block.data[-4:])[0] + 1)
    rest, key = Message(block.data[: max(0, len(block.data) - restarts)], block.what), b""
    place = 0
    while place < len(rest.data):
        shared, place = rest.varint(place)
        added, place = rest.varint(place)
        size, place = rest.varint(place)
        if shared > len(key) or place + added + size > len(rest.data):
            raise block.damaged("an entry is longer than its block")
        key = key[:shared] + bytes(rest.data[place : place + added])
        place += added
        yield key, Message(rest.data[place : place + size], block.what)
        place += size


def _table() -> np.ndarray:
    numbers = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        numbers = (numbers >> np.uint32(1)) ^ (numbers & np.uint32(1)) * np.uint32(0x82F63B78)
    return numbers


_TABLE = _table()


def _next(sums: np.ndarray, values: np.ndarray | np.uint8) -> np.ndarray:
    """The sums with one more byte each."""
    return _TABLE[sums.astype(np.uint8) ^ values] ^ (sums >> np.uint32(8))


def _applied(matrix: np.ndarray, sums: np.ndarray) -> np.ndarray:
    """A matrix of bits times `sums`."""
    found = np.zeros_like(sums)
    for bit in range(32):
        found ^= matrix[bit] * ((sums >> np.uint32(bit)) & np.uint32(1))
    return found


def crc32c(data: bytes) -> int:
    """Checksum of Castagnoli: of pieces side by side, joined two by two."""
    values = np.frombuffer(data, np.uint8)
    pieces = 1 << max(0, len(values).bit_length() // 2)
    length = -(-max(len(values), 4) // pieces)
    padded = np.zeros(pieces * length, np.uint8)  # zeros in front change nothing
    padded[len(padded) - len(values) :] = values
    sums = np.zeros(pieces, np.uint32)
    if len(values) < 4:
        sums = np.full(1, 0xFFFFFFFF, np.uint32)
        for value in values:
            sums = _next(sums, value)
        return int(sums[0]) ^ 0xFFFFFFFF
    padded[len(padded) - len(values) :][:4] ^= 255  # the sum begins with ones
    for column in np.ascontiguousarray(padded.reshape(pieces, length).T):
        sums = _next(sums, column)
    shift = power = _next(np.uint32(1) << np.arange(32, dtype=np.uint32), np.uint8(0))  # a zero behind a piece
    for digit in bin(length)[3:]:
        power = _applied(power, power)
        power = _applied(shift, power) if digit == "1" else power
    while len(sums) > 1:
        sums = _applied(power, sums[::2]) ^ sums[1::2]
        power = _applied(power, power)
    return int(sums[0]) ^ 0xFFFFFFFF


def _masked(data: bytes) -> int:
    """The checksum as TensorFlow writes it."""
    found = crc32c(data)
    return ((found >> 15 | found << 17) + 0xA282EAD8) & 0xFFFFFFFF
