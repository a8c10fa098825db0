"""Models in files: what is saved is loaded, and training goes on from there."""

import numpy as np
import pytest

import edgelearn as el
from edgelearn.errors import FormatError
from edgelearn.interop import ModelFile, safetensors
from edgelearn.ops import SGD, Adam

from .test_model_precision import INT8
from .toys import examples, same, toy_network

OPTIONS = {
    "momentum": {"optimizer": SGD(0.1, momentum=0.9)},
    "adam, moving statistics": {"optimizer": Adam(0.01), "batchnorm": "moving"},
    "int8": {"optimizer": SGD(0.1), "precision": INT8},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_saved_training_continues_with_the_same_bits(tmp_path, options):
    (x, y), path = examples(10), tmp_path / "model.safetensors"
    model = el.Model(toy_network(dropout=0.3), seed=11).compile(**options)
    model.fit(x, y, 4, 1)
    model.save(path)
    model.fit(x, y, 4, 2)
    other = el.load(path, **options)
    assert other.position.epoch == 1 and other.seed == 11 and other.batchnorm == model.batchnorm
    other.fit(x, y, 4, 2)
    assert same(other.weights, model.weights)


def test_what_goes_with_a_model(tmp_path):
    x, path = examples(3)[0], tmp_path / "model.safetensors"
    model = el.Model(toy_network(), seed=2)
    model.class_names, model.preprocessing, model.metadata = ("a", "b", "c"), {"size": 6}, {"of": [1, "note"]}
    model.save(path)
    found = el.load(path)
    assert (found.class_names, found.preprocessing, found.metadata) == (
        ("a", "b", "c"),
        {"size": 6},
        {"of": [1, "note"]},
    )
    assert found.network.to_json() == model.network.to_json()
    np.testing.assert_array_equal(found.predict(x), model.predict(x))


def test_a_state_of_another_optimizer_is_refused(tmp_path):
    path = tmp_path / "model.safetensors"
    model = el.Model(toy_network()).compile(SGD(0.1, momentum=0.9))
    model.fit(*examples(10), 4)
    model.save(path)
    with pytest.raises(FormatError, match="'first moment/"):
        el.load(path, optimizer=Adam())


def test_weights_of_a_network(tmp_path):
    path, network = tmp_path / "weights.safetensors", toy_network()
    weights = network.initialize(4)
    path.write_bytes(safetensors.to_bytes(weights))
    model = el.load(path, network, skip=("dense",), seed=5)
    fresh = network.initialize(5)
    for name, array in model.weights.items():
        assert np.array_equal(array, (fresh if name.startswith("dense/") else weights)[name])
    with pytest.raises(FormatError, match="network="):
        el.load(path)


def test_statistics_that_were_never_set_are_not_used(tmp_path):
    path, network = tmp_path / "model.safetensors", toy_network()
    fresh = el.Model(network)
    assert fresh.batchnorm == "batch"
    assert el.Model(network, network.initialize()).batchnorm == "moving"
    plain = el.Network("plain", (3,))
    plain.add("dense", el.ops.Dense(2))
    assert el.Model(plain).batchnorm == "moving"
    fresh.compile(SGD(0.1)).fit(*examples(10))
    assert fresh.compile(SGD(0.1)).batchnorm == "moving", "training has moved them"
    assigned = el.Model(network)
    assigned.weights = fresh.weights
    assert assigned.compile(SGD(0.1)).batchnorm == "moving"
    assert el.Model(network).compile(SGD(0.1), batchnorm="moving").batchnorm == "moving"
    fresh.save(path)
    assert el.load(path).batchnorm == "moving"


@pytest.mark.parametrize("entry", [{"seed": "x"}, {"seed": 1.5}, {"batchnorm": "sometimes"}, {"seed": None}])
def test_a_damaged_position_is_named(tmp_path, entry):
    path, network = tmp_path / "model.safetensors", toy_network()
    safetensors.write_model_file(path, ModelFile(network, network.initialize(), position=entry))
    with pytest.raises(FormatError, match=f"position.*{min(entry)}"):
        el.load(path)


@pytest.mark.parametrize("name", ["m.keras", "m.h5", "m.onnx", "m.tflite", "m.pt", "m"])
def test_save_writes_no_other_format_under_its_name(tmp_path, name):
    model = el.Model(toy_network())
    with pytest.raises(FormatError, match=r"'m\.safetensors'\. .*model\.export"):
        model.save(tmp_path / name)
    assert not list(tmp_path.iterdir())
