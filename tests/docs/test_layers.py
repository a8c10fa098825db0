"""The table of Keras's and PyTorch's layers names what there is."""

import re

import edgelearn.graph
import edgelearn.ops

from .pages import ROOT


def rows() -> list[list[str]]:
    lines = (ROOT / "docs" / "reference" / "layers.md").read_text("utf-8").splitlines()
    table = [line for line in lines if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table]


def test_every_layer_that_is_named_is_there():
    for _, _, here in rows():
        for name in re.findall(r"`([A-Z]\w+|add_split)", here):
            assert hasattr(edgelearn.ops, name) or hasattr(edgelearn.graph, name), name


def test_nine_in_ten_are_here():
    missing = [keras for keras, _, here in rows() if here.startswith("not here")]
    assert 0 < len(missing) <= len(rows()) / 10
