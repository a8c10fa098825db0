"""JSON from strangers: what fits its description is read, all else is a RecordError that names the place."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Literal, NotRequired, TypedDict

import pytest

from edgelearn import records
from edgelearn.records import RecordError


@dataclass(frozen=True)
class Point:
    x: int
    y: float = 0.0

    def __post_init__(self):
        if self.x < 0:
            raise ValueError("x is negative")


@dataclass(frozen=True)
class Curve:
    name: str
    points: tuple[Point, ...]
    widths: dict[int, float] = field(default_factory=dict)
    kind: Literal["line", "area"] = "line"
    length: records.Finite | None = None
    note: str | None = None


class Partial(TypedDict):
    a: int
    b: NotRequired[int]


class _Needed(TypedDict):
    epoch: int


class Row(_Needed, total=False):
    loss: float | None


GOOD = {"name": "a", "points": [{"x": 1}, {"x": 2, "y": 3}], "widths": {"4": 5}, "kind": "area", "note": None}


def test_what_fits_is_read():
    found = records.parse(json.dumps(GOOD), Curve)
    assert found == Curve("a", (Point(1), Point(2, 3.0)), {4: 5.0}, "area") and type(found.points[1].y) is float
    assert records.parse('{"epoch": 1, "loss": NaN, "other": [1, {"x": "y"}]}', Row).keys() == {
        "epoch",
        "loss",
        "other",
    }
    assert records.convert({"a": 1}, Partial) == {"a": 1}
    assert records.convert([1, "x", None, 2.5, True], list[Any]) == [1, "x", None, 2.5, True]
    assert records.convert([1, "x"], tuple[int, str]) == (1, "x")
    assert type(records.convert(3, float | int)) is int and records.convert({"a": 1}, dict) == {"a": 1}


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"name": 1}, "name"),
        ({"name": None}, "name"),
        ({"points": {}}, "points"),
        ({"points": [{"x": 1}, {"x": 1.0}]}, "points[1].x"),
        ({"points": [{"x": True}]}, "points[0].x"),
        ({"points": [{"x": -1}]}, "points[0]"),
        ({"points": [{}]}, "points[0]"),
        ({"points": [{"x": 1 << 64}]}, "points[0].x"),
        ({"points": [{"x": 1, "y": 10**400}]}, "points[0].y"),
        ({"points": [{"x": 1, "z": 1}]}, "points[0]"),
        ({"widths": {"x": 1}}, "widths"),
        ({"widths": {"1": "x"}}, "widths.1"),
        ({"kind": "circle"}, "kind"),
        ({"kind": []}, "kind"),
        ({"length": "long"}, "length"),
        ({"length": float("inf")}, "length"),
        ({"length": float("nan")}, "length"),
        ({"note": 3}, "note"),
        ({"more": 3}, "more"),
    ],
)
def test_what_does_not_fit_is_named(change, place):
    with pytest.raises(RecordError) as caught:
        records.parse(json.dumps(GOOD | change), Curve)
    assert place in str(caught.value)


@pytest.mark.parametrize(
    "text", ["[" * 200_000, '{"a":' * 200_000, "[" * 80 + "]" * 80, "9" * 5000, "", "{", b"\xff", "\0"]
)
def test_what_is_no_json_or_nested_too_deep(text):
    with pytest.raises(RecordError):
        records.parse(text, Any)


def test_files_have_a_size(tmp_path):
    path = tmp_path / "file.json"
    with pytest.raises(FileNotFoundError):
        records.read(path, dict)
    path.write_text('{"a": 1}')
    assert records.read(path, dict) == {"a": 1}
    with pytest.raises(RecordError, match="7 bytes"):
        records.read(path, dict, largest=7)
