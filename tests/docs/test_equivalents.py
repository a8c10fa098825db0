"""Every name in the tables of Keras's and PyTorch's names and layers by what is here exists."""

import inspect
import re

import pytest

import edgelearn as el
from edgelearn import errors, graph, ops, train

from .pages import ROOT

ROWS = [
    [cell.strip() for cell in line.strip("| \n").split(" | ")]
    for line in (ROOT / "docs" / "guides" / "equivalents.md").read_text().splitlines()
    if line.startswith("|") and not line.startswith(("|---", "| Keras"))
]
ROOMS = (ops, graph, el.metrics, train, errors, el)
ARGUMENTS = set(inspect.signature(el.Model.fit).parameters)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_names_exist(row):
    for name, arguments in re.findall(r"`(\w+)(?:\(([^`]*)\))?`", row[-1]):
        found = next((getattr(room, name) for room in ROOMS if hasattr(room, name)), None)
        assert found is not None or name in ARGUMENTS or name in ("fit",), name
        for argument in filter(None, re.split(r", *", arguments)):
            assert argument in inspect.signature(found).parameters, argument


def test_nine_in_ten_are_here():
    assert len(ROWS) > 80
    found = sum(not row[-1].startswith("—") for row in ROWS)
    assert found >= 0.9 * len(ROWS)
    page = (ROOT / "docs" / "guides" / "equivalents.md").read_text()
    assert f"Of {len(ROWS)} rows, {found} have a counterpart here ({found / len(ROWS):.0%})" in page


def layers() -> list[list[str]]:
    lines = (ROOT / "docs" / "reference" / "layers.md").read_text("utf-8").splitlines()
    table = [line for line in lines if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table]


def test_every_layer_that_is_named_is_there():
    for _, _, here in layers():
        for name in re.findall(r"`([A-Z]\w+|add_split)", here):
            assert hasattr(ops, name) or hasattr(graph, name), name


def test_nine_in_ten_layers_are_here():
    missing = [keras for keras, _, here in layers() if here.startswith("not here")]
    assert 0 < len(missing) <= len(layers()) / 10
