"""The graph model and its JSON Schema: every network fits, broken ones are refused by both."""

import copy
import json

import jsonschema
import pytest
from graph_schema import FILE, text
from hypothesis import given, settings
from hypothesis import strategies as st

import edgelearn as el
from edgelearn.errors import FormatError
from edgelearn.graph.network import network_schema
from edgelearn.ops import Add, Concatenate, Conv2D, Dense, Flatten, GlobalAveragePooling2D, MaxPooling2D

SCHEMA = jsonschema.Draft202012Validator(network_schema())
DEEP = {"revnet", "revnet110", "revnet164"}  # as revnet38, with more blocks
ZOO = {name: getattr(el.models, name) for name in el.models.__all__ if name not in DEEP}


def small() -> el.Network:
    network = el.Network("small", {"picture": (8, 8, 3), "place": (4,)})
    network.add("conv", Conv2D(4, 3, (1, 2), ((1, 1), (0, 1))), "picture")
    network.add("pool", MaxPooling2D(2))
    network.add("again", Add(), "pool", "pool")
    network.add("mean", GlobalAveragePooling2D())
    network.add("both", Concatenate(), "mean", "place")
    network.add("flat", Flatten())
    network.add("kind", Dense(3))
    network.add("age", Dense(1), "both")
    network.outputs = ("kind", "age")
    return network


def fits(record) -> bool:
    return SCHEMA.is_valid(record)


def test_the_file_is_the_schema():
    """If this fails: python tools/graph_schema.py"""
    jsonschema.Draft202012Validator.check_schema(network_schema())
    assert FILE.read_text() == text()


@pytest.mark.parametrize("name", ZOO)
def test_every_network_of_the_zoo_fits(name):
    network = ZOO[name]()
    written = network.to_json()
    assert fits(json.loads(written))
    again = el.Network.from_json(written)
    assert again.to_json() == written and again.parameters == network.parameters


def test_several_inputs_and_outputs_fit():
    written = small().to_json()
    assert fits(json.loads(written))
    assert el.Network.from_json(written).to_json() == written


def test_a_text_without_a_version_is_of_the_first_one():
    record = json.loads(small().to_json())
    del record["version"]
    assert el.Network.from_json(json.dumps(record)).outputs == ("kind", "age")


BREAKS = {
    "version": lambda r: r.update(version=3),
    "no layers": lambda r: r.pop("layers"),
    "name": lambda r: r.update(name=3),
    "shape": lambda r: r["inputs"].update(picture=[8, 0, 3]),
    "no input": lambda r: r.pop("inputs"),
    "slash": lambda r: r["layers"][0].update(name="a/b"),
    "setting": lambda r: r["layers"][0]["config"].update(filters="many"),
    "unknown setting": lambda r: r["layers"][0]["config"].update(colour=1),
    "no reader": lambda r: r["layers"][0].pop("inputs"),
    "trainable": lambda r: r.update(trainable=["conv"]),
    "outputs": lambda r: r.update(outputs=["kind", "kind"]),
}


@pytest.mark.parametrize("name", BREAKS)
def test_broken_texts_are_refused_by_schema_and_reader(name):
    record = json.loads(small().to_json())
    BREAKS[name](record)
    assert not fits(record)
    with pytest.raises(FormatError):
        el.Network.from_json(json.dumps(record))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 2**40) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3), max_leaves=5,
)  # fmt: skip


def places(value, path=()):
    """Every place in a JSON value."""
    yield path
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield from places(value[key], (*path, key))


RECORD = json.loads(small().to_json())
PLACES = [place for place in places(RECORD) if place]


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(PLACES), VALUES, st.booleans())
def test_what_is_read_fits_again_and_all_else_is_a_format_error(place, value, delete):
    record = copy.deepcopy(RECORD)
    parent = record
    for key in place[:-1]:
        parent = parent[key]
    if delete:
        del parent[place[-1]]
    else:
        parent[place[-1]] = value
    try:
        network = el.Network.from_json(json.dumps(record))
    except FormatError:
        return
    assert fits(json.loads(network.to_json()))
