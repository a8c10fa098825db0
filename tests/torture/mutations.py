"""Damage to files, drawn from a seed: bytes that are cut, changed, moved or repeated, and JSON of other types."""

from __future__ import annotations

import json
import re
import struct
import zlib
from collections.abc import Callable
from random import Random
from typing import Any

Damage = Callable[[bytes, Random], bytes]

DEEP = "[" * 200_000  # more than any recursive parser can nest
EXTREMES = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 1 << 40, (1 << 63) - 1,
            (1 << 64) - 1)  # fmt: skip
NUMBERS = (b"0", b"-1", b"1e999", b"NaN", b"0.5", b"65537", b"4294967296", b"1000000000000", b"9" * 5000)
ODD_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1.5, 10**12, 10**30, -(10**400), float("inf"), float("nan"), "", "x", "\ud800", "\0",
    "../../etc/passwd", "x" * 100_000, [], [[]], [None], [1, 2, 3], {}, {"x": 1}, [0] * 10_000,
)  # fmt: skip


def damage_bytes(data: bytes, rng: Random) -> bytes:
    """Apply one to three changes that know nothing of the format."""
    for _ in range(rng.choice((1, 1, 2, 3))):
        data = rng.choice(_CHANGES)(data, rng)
    return data


def damage_json(data: bytes, rng: Random) -> bytes:
    """Replace, remove or rename one value in a JSON document, also inside texts that are JSON themselves."""
    if rng.random() < 0.02:
        return rng.choice((DEEP.encode(), b"", b"null", b"[]", b"{}", b"3", b'"text"', b"\xff\xfe{}"))
    return _dump(_damage_value(json.loads(data), rng))


def damage_lines(data: bytes, rng: Random) -> bytes:
    """Damage one line of a file that has a JSON document a line."""
    lines = data.splitlines()
    place = rng.randrange(len(lines))
    lines[place] = damage_json(lines[place], rng)
    return b"".join(line + b"\n" for line in lines)


def damage_safetensors(data: bytes, rng: Random) -> bytes:
    """Damage the JSON header of a safetensors file, and leave its length right."""
    end = 8 + int.from_bytes(data[:8], "little")
    header = damage_json(data[8:end], rng)
    return len(header).to_bytes(8, "little") + header + data[end:]


def damage_png(data: bytes, rng: Random) -> bytes:
    """Damage the bytes of a chunk, and make its checksum fit."""
    out, at, chunks = bytearray(data[:8]), 8, []
    while at + 12 <= len(data):
        length = struct.unpack_from(">I", data, at)[0]
        chunks.append((data[at + 4 : at + 8], data[at + 8 : at + 8 + length]))
        at += 12 + length
    place = rng.randrange(len(chunks))
    for number, (kind, content) in enumerate(chunks):
        changed = damage_bytes(content, rng) if number == place and content else content
        out += struct.pack(">I", len(changed)) + kind + changed + struct.pack(">I", zlib.crc32(kind + changed))
    return bytes(out)


def _position(data: bytes, rng: Random) -> int:
    """Headers and directories, at the start and at the end, are hit more often than what lies between."""
    size = max(1, len(data))
    where = rng.random()
    if where < 0.5:
        return rng.randrange(min(size, 1024))
    return size - 1 - rng.randrange(min(size, 256)) if where < 0.7 else rng.randrange(size)


def _cut(data: bytes, rng: Random) -> bytes:
    return data[: _position(data, rng)]


def _flip(data: bytes, rng: Random) -> bytes:
    return _put(data, _position(data, rng), lambda byte: byte ^ (1 << rng.randrange(8)))


def _set(data: bytes, rng: Random) -> bytes:
    return _put(data, _position(data, rng), lambda byte: rng.choice((0, 0xFF, rng.randrange(256))))


def _put(data: bytes, at: int, change: Callable[[int], int]) -> bytes:
    return data[:at] + bytes([change(data[at])]) + data[at + 1 :] if data else data


def _extreme(data: bytes, rng: Random) -> bytes:
    """Write an extreme integer of 2, 4 or 8 bytes, aligned as headers are."""
    size = rng.choice((2, 4, 8))
    at = _position(data, rng) // size * size
    word = (rng.choice(EXTREMES) & ((1 << 8 * size) - 1)).to_bytes(size, rng.choice(("little", "big")))
    return data[:at] + word + data[at + size :]


def _insert(data: bytes, rng: Random) -> bytes:
    at = _position(data, rng)
    return data[:at] + rng.randbytes(rng.choice((1, 4, 100))) + data[at:]


def _remove(data: bytes, rng: Random) -> bytes:
    at = _position(data, rng)
    return data[:at] + data[at + rng.choice((1, 4, 100)) :]


def _repeat(data: bytes, rng: Random) -> bytes:
    at, size = _position(data, rng), rng.choice((8, 64, 1024))
    return data[: at + size] + data[at:]


def _move(data: bytes, rng: Random) -> bytes:
    here, there, size = _position(data, rng), _position(data, rng), rng.choice((4, 16, 64))
    return data[:there] + data[here : here + size] + data[there + size :]


def _number(data: bytes, rng: Random) -> bytes:
    """Replace a number that is written in digits."""
    found = list(re.finditer(rb"\d+", data[:65536]))
    if not found:
        return _flip(data, rng)
    match = rng.choice(found)
    return data[: match.start()] + rng.choice(NUMBERS) + data[match.end() :]


_CHANGES: tuple[Damage, ...] = (_cut, _flip, _set, _extreme, _insert, _remove, _repeat, _move, _number)


def _damage_value(value: Any, rng: Random) -> Any:
    """A copy of `value` in which one part, at any depth, is another."""
    if isinstance(value, str) and value[:1] in ("{", "["):
        try:
            return _dump(_damage_value(json.loads(value), rng)).decode()
        except ValueError:
            pass
    if not isinstance(value, dict | list) or not value or rng.random() < 0.15:
        return rng.choice(ODD_VALUES)
    key = rng.choice(list(value) if isinstance(value, dict) else range(len(value)))
    copy = value.copy()
    action = rng.random()
    if action < 0.1:
        del copy[key]
    elif action < 0.2 and isinstance(copy, dict):
        copy[rng.choice(("x", "", "__class__", "\0"))] = copy.pop(key)
    else:
        copy[key] = _damage_value(value[key], rng)
    return copy


def _dump(value: Any) -> bytes:
    return json.dumps(value).encode()
