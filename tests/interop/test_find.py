"""Networks by a name, a file, or MODULE:FUNCTION."""

import numpy as np
import pytest

import edgelearn as el
from edgelearn.errors import ExtensionError, FormatError, PlanError, RunError
from edgelearn.graph import without_softmax_and_dropout
from edgelearn.interop import check_network_name, find_network
from edgelearn.models import named_network, network_names
from edgelearn.ops import Dense, Dropout, Softmax

NETS = """
import edgelearn as el
from edgelearn.ops import Dense

def tiny(classes=3, alpha=1.0):
    network = el.Network("tiny", (4,))
    network.add("dense", Dense(int(classes * alpha)))
    return network

def model():
    found = el.Model(tiny())
    found.preprocessing = {"mean": 0.5}
    return found

def wrong(): return 3
def needs(size): return tiny()
value = 3
"""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "nets_to_find.py").write_text(NETS)


def test_a_name():
    assert find_network("ds_cnn", classes=3, what=1).network.output.shape == (3,)
    network = el.models.ds_cnn()
    assert find_network(network).network is network


def test_a_function():
    assert find_network("nets_to_find:tiny").network.output.shape == (3,)
    assert find_network("nets_to_find.py:tiny", 2.0, classes=5, dropout=0).network.output.shape == (10,)
    found = find_network("nets_to_find:model")
    assert found.preprocessing == {"mean": 0.5} and found.weights["dense/kernel"].shape == (4, 3)


def test_a_file(tmp_path):
    model = el.Model(find_network("nets_to_find:tiny").network, seed=4)
    model.class_names, model.preprocessing = ("a", "b", "c"), {"mean": 1}
    model.save(tmp_path / "mine.safetensors")
    check_network_name("mine.safetensors")
    found = find_network("mine.safetensors")
    assert found.class_names == ("a", "b", "c") and found.preprocessing == {"mean": 1}
    assert np.array_equal(found.weights["dense/kernel"], model.weights["dense/kernel"])
    with pytest.raises(PlanError, match="width"):
        find_network("mine.safetensors", 0.5)


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("resnet19", RunError, "'resnet18'"),
        ("gone.onnx", FormatError, "gone.onnx"),
        ("nets_to_find:tinny", ExtensionError, "'tiny'"),
        ("nets_to_find:value", ExtensionError, "value"),
        ("nets_to_find:needs", ExtensionError, "'size'"),
        ("nets_to_find:wrong", ExtensionError, "3"),
        ("nets_to_find.py", FormatError, "format"),
    ],
)
def test_what_is_no_network(name, error, words):
    with pytest.raises(error, match=words):
        find_network(name)
    if name not in ("nets_to_find:needs", "nets_to_find:wrong"):
        with pytest.raises(error, match=words):
            check_network_name(name)


@pytest.mark.parametrize("name", ["ds_cnn", "mobilenet_v1", "mobilenet_v3_small", "vgg16"])
def test_without_softmax_and_dropout(name):
    expected = named_network(name, softmax=False, dropout=0.0)
    assert without_softmax_and_dropout(named_network(name)).to_json() == expected.to_json()


def test_softmax_inside_stays():
    network = el.Network("n", (4,))
    for layer, op in {
        "a": Dense(3),
        "drop": Dropout(0.5),
        "inside": Softmax(),
        "b": Dense(2),
        "end": Softmax(),
    }.items():
        network.add(layer, op)
    network.outputs = ("inside", "end")
    stripped = without_softmax_and_dropout(network.freeze("a"))
    assert list(stripped.nodes) == ["a", "inside", "b"] and stripped.outputs == ("inside", "b")
    assert stripped.trainable == {"b/kernel", "b/bias"}


def test_names():
    assert {"resnet18", "mobilenet_v1"} <= set(network_names()) and "revnet" not in network_names()
