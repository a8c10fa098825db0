"""Read JSON that somebody else may have written: its size, nesting and types are checked before anything uses it.

A description is a type: a dataclass (no other keys), a `TypedDict` (other keys stay as they are), a list, tuple or dict
of described values, `Literal`, a union, `Any`, or one of bool, int, float, `Finite`, str and None.

>>> read(path, DeviceKind)
>>> parse(line, Row)
"""

from __future__ import annotations

import json
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from math import isfinite
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Any,
    Literal,
    NewType,
    NotRequired,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

T = TypeVar("T")
Finite = NewType("Finite", float)  # as a description: neither infinite nor NaN

LARGEST_FILE = 64 << 20  # bytes
LARGEST_INT = (1 << 64) - 1  # a seed
DEEPEST = 64  # values inside each other


class RecordError(ValueError):
    """JSON that doesn't fit its description; the message names the place in it and the fault."""


def read(path: str | Path, kind: type[T], largest: int = LARGEST_FILE) -> T:
    """Read a JSON file as a value of type `kind`.

    Arguments:
    - `path`: the file.
    - `kind`: the description.
    - `largest`: bytes that the file may have (default 64 MiB).

    Raises OSError if it can't be read, RecordError if it is too large, is no JSON or doesn't fit the description.
    """
    with Path(path).open("rb") as file:
        data = file.read(largest + 1)
    if len(data) > largest:
        raise RecordError(f"it is larger than {largest:,} bytes")
    return parse(data, kind)


def parse(text: str | bytes, kind: type[T]) -> T:
    """Return the value of type `kind` that a JSON text describes. Raises RecordError like `read`."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise RecordError(f"it is nested more than {DEEPEST} deep") from None
    except ValueError as error:  # no JSON, no UTF-8, or a number of thousands of digits
        raise RecordError(f"it is no JSON: {error!s:.200}") from None
    return convert(value, kind)


def convert(value: Any, kind: type[T]) -> T:
    """Return `value`, as `json.loads` gives it, as a value of type `kind`. Raises RecordError if it doesn't fit."""
    return _convert(value, kind, "", 0)


def _convert(value: Any, kind: Any, place: str, depth: int) -> Any:
    if depth > DEEPEST:
        raise RecordError(f"it is nested more than {DEEPEST} deep")
    origin = get_origin(kind)
    if kind is Any:
        return _plain(value, place, depth)
    if origin in (Union, UnionType):
        return _any_of(value, get_args(kind), place, depth)
    if origin is Literal:
        if value in get_args(kind) and not isinstance(value, dict | list):
            return value
        raise _wrong(value, " or ".join(map(repr, get_args(kind))), place)
    if is_dataclass(kind) or is_typeddict(kind):
        return _object(value, kind, place, depth)
    if kind is dict or origin in (dict, Mapping):
        return _mapping(value, get_args(kind) or (str, Any), place, depth)
    if kind in (list, tuple) or origin in (list, tuple, Sequence):
        return _sequence(value, kind, place, depth)
    return _scalar(value, kind, place)


def _any_of(value: Any, kinds: Sequence[Any], place: str, depth: int) -> Any:
    faults = []
    for kind in sorted(kinds, key=lambda kind: kind is float):  # 3 stays an int where both fit
        try:
            return _convert(value, kind, place, depth)
        except RecordError as error:
            if kind is not NoneType:
                faults.append(error)
    raise faults[0] if len(faults) == 1 else _wrong(value, " or ".join(map(_name, kinds)), place)


def _object(value: Any, kind: Any, place: str, depth: int) -> Any:
    """A dataclass or a TypedDict."""
    if not isinstance(value, dict):
        raise _wrong(value, "an object", place)
    hints, required = _fields(kind)
    if missing := sorted(required - value.keys()):
        raise RecordError(f"{_at(place)}{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing")
    found = {name: _convert(part, hints.get(name, Any), _join(place, name), depth + 1) for name, part in value.items()}
    if is_typeddict(kind):
        return found
    if others := found.keys() - hints.keys():
        raise RecordError(f"{_at(place)}nothing is known of {min(others)!r:.100}")
    try:
        return kind(**found)
    except (ValueError, TypeError, ArithmeticError) as error:
        raise RecordError(f"{_at(place)}{error}") from None


@cache
def _fields(kind: Any) -> tuple[dict[str, Any], frozenset[str]]:
    """(types by name, required names)"""
    hints = get_type_hints(kind)
    if is_typeddict(kind):
        # Under `from __future__ import annotations`, `__required_keys__` doesn't know of NotRequired.
        marked = get_type_hints(kind, include_extras=True)
        return hints, kind.__required_keys__ - {name for name in marked if get_origin(marked[name]) is NotRequired}
    own = [each for each in fields(kind) if each.init]
    required = (each.name for each in own if each.default is MISSING and each.default_factory is MISSING)
    return {each.name: hints[each.name] for each in own}, frozenset(required)


def _mapping(value: Any, kinds: tuple[Any, ...], place: str, depth: int) -> dict:
    if not isinstance(value, dict):
        raise _wrong(value, "an object", place)
    key_kind, kind = kinds
    return {
        _key(key, key_kind, place): _convert(part, kind, _join(place, key), depth + 1) for key, part in value.items()
    }


def _key(key: str, kind: Any, place: str) -> Any:
    if kind is not int:
        return key
    if not (key.isascii() and key.isdigit() and len(key) < 20):
        raise _wrong(key, "a whole number as a key", place)
    return int(key)


def _sequence(value: Any, kind: Any, place: str, depth: int) -> Any:
    if not isinstance(value, list):
        raise _wrong(value, "a list", place)
    of, kinds = tuple if tuple in (kind, get_origin(kind)) else list, get_args(kind) or (Any, ...)
    if of is list or kinds[-1] is ...:
        kinds = (kinds[0],) * len(value)
    if len(kinds) != len(value):
        raise _wrong(value, f"a list of {len(kinds)}", place)
    return of(
        _convert(part, each, f"{place}[{number}]", depth + 1)
        for number, (part, each) in enumerate(zip(value, kinds, strict=True))
    )


def _scalar(value: Any, kind: Any, place: str) -> Any:
    if kind is Finite:
        if not isfinite(value := _scalar(value, float, place)):
            raise _wrong(value, _name(Finite), place)
        return value
    if kind is float and type(value) is int:
        try:
            return float(value)
        except OverflowError:
            raise _wrong(value, "a smaller number", place) from None
    if type(value) is not kind and not (kind in (None, NoneType) and value is None):
        raise _wrong(value, _name(kind), place)
    if type(value) is int and abs(value) > LARGEST_INT:
        raise _wrong(value, "a smaller number", place)
    return value


def _plain(value: Any, place: str, depth: int) -> Any:
    """Values of any type, nested as deep as is allowed."""
    if depth > DEEPEST:
        raise RecordError(f"{_at(place[:60])}it is nested more than {DEEPEST} deep")
    if isinstance(value, dict):
        return {key: _plain(part, place, depth + 1) for key, part in value.items()}
    if isinstance(value, list):
        return [_plain(part, place, depth + 1) for part in value]
    return _scalar(value, type(value), place)


_NAMES = {
    bool: "true or false", int: "a whole number", float: "a number", Finite: "a finite number", str: "a text",
    NoneType: "null", None: "null", dict: "an object", list: "a list", tuple: "a list",
}  # fmt: skip


def _name(kind: Any) -> str:
    return _NAMES.get(kind) or _NAMES.get(get_origin(kind)) or "an object"


def _wrong(value: Any, expected: str, place: str) -> RecordError:
    return RecordError(f"{_at(place)}{reprlib.repr(value)} is not {expected}")


def _at(place: str) -> str:
    return f"{place:.200}: " if place else ""


def _join(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name
