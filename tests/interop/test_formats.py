"""A file format is one file: it registers a reader."""

import importlib.util

import numpy as np
import pytest

import edgelearn as el
from edgelearn.errors import ExtensionError, FormatError
from edgelearn.interop import ModelFile, find_format, formats, read_model, safetensors, write_model
from edgelearn.models import mobilenet_v1
from edgelearn.models.language import gpt, gpt_by_steps
from edgelearn.ops import Conv2D, Dense, Flatten, RotaryEmbedding
from tests.networks import chain

PLUGIN = '''
"""Weights as lines "layer/role number number ...", behind the word WEIGHTS."""

import numpy as np

from edgelearn.interop import FileFormat, register, weights_of_a_network


def read(path, network, skip):
    rows = [line.split() for line in path.read_text().splitlines()[1:]]
    shapes = {name: p.weight.shape for name, p in network.parameters.items() if p.layer not in skip}
    return {name: np.float32(values).reshape(shapes[name]) for name, *values in rows if name in shapes}


register(FileFormat("lines", (".lines",), b"WEIGHTS", weights_of_a_network(read)))
'''


@pytest.fixture
def own_format(tmp_path, monkeypatch):
    monkeypatch.setattr(formats._formats, "_entries", {each.name: each for each in formats._formats})
    path = tmp_path / "lines_format.py"
    path.write_text(PLUGIN)
    spec = importlib.util.spec_from_file_location("lines_format", path)
    spec.loader.exec_module(importlib.util.module_from_spec(spec))


@pytest.fixture
def network():
    return mobilenet_v1((32, 32, 3), 0.25, 2)


@pytest.mark.usefixtures("own_format")
@pytest.mark.parametrize("name", ["w.lines", "W.LINES", "without_suffix"])
def test_a_format_of_ones_own(tmp_path, network, name):
    weights = network.initialize(3)
    path = tmp_path / name
    lines = [" ".join([key, *map(repr, array.ravel().tolist())]) for key, array in weights.items()]
    path.write_text("\n".join(["WEIGHTS", *lines]))
    assert find_format(path).name == "lines"
    file = read_model(path, network, skip=("dense",))
    assert file.network is network
    assert set(weights) - set(file.weights) == {"dense/kernel", "dense/bias"}
    assert all(np.array_equal(array, weights[key]) for key, array in file.weights.items())


def test_own_formats_stand_before_those_of_the_package_and_have_names_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setattr(formats._formats, "_entries", {each.name: each for each in formats._formats})

    def read(path, network, skip):
        return None

    for _ in range(2):  # as a notebook's cell that runs again
        own = formats.register(formats.FileFormat("mine", (".tflite",), b"", read))
    (tmp_path / "own.tflite").touch()
    assert find_format(tmp_path / "own.tflite") is own
    for name in ("TFLite", "NumPy archive"):
        with pytest.raises(ExtensionError, match=rf"test_formats.* can't be the format '{name}': edgelearn"):
            formats.register(formats.FileFormat(name, (".tflite",), b"", formats.weights_of_a_network(read)))
    monkeypatch.setattr(formats._writers, "_entries", {each.name: each for each in formats._writers})
    with pytest.raises(ExtensionError, match=r"edgelearn.*is it already"):
        formats.register_writer(formats.Writer("ONNX", (".onnx",), read))
    assert formats.find_writer("x.onnx").write is not read


def test_formats_of_the_package(tmp_path, network):
    starts = {"safetensors": b"", "Keras HDF5": b"\x89HDF\r\n\x1a\n", "NumPy archive": b"PK\x03\x04"}
    for number, (name, start) in enumerate(starts.items()):
        path = tmp_path / f"weights{number}{'.safetensors' * (not start)}"
        path.write_bytes(start + b"rest")
        assert find_format(path).name == name
        with pytest.raises(FormatError, match=path.name):
            read_model(path, network)


def test_weights_alone_need_a_network(tmp_path, network):
    path = tmp_path / "w.safetensors"
    weights = network.initialize(0)
    path.write_bytes(safetensors.to_bytes(weights))
    with pytest.raises(FormatError, match="network="):
        read_model(path)
    assert read_model(path, network, ("dense",)).weights.keys() == weights.keys() - {"dense/kernel", "dense/bias"}


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of Keras with NumPy 2
def test_layers_that_keras_lacks_are_named(tmp_path):
    pytest.importorskip("keras")
    network = gpt(9, 5, 2, 2, 8)
    cached, weights = gpt_by_steps(network, network.initialize(0))
    lacking = r"m\.keras: .*'block1_attention' \(CachedAttention\), 'block2_attention' .*Model.save"
    with pytest.raises(FormatError, match=lacking):
        write_model(tmp_path / "m.keras", ModelFile(cached, weights))
    turned = el.Network("turned", {"x": (4, 8), "places": (4,)})
    turned.add("turn", RotaryEmbedding(2), "x", "places")
    with pytest.raises(FormatError, match=r"'turn' turns by positions that it reads.*begin=.*Model.save"):
        write_model(tmp_path / "m.keras", ModelFile(turned, {}))
    assert not list(tmp_path.iterdir())


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of Keras with NumPy 2
@pytest.mark.parametrize("suffix", ["safetensors", "weights.h5", "keras", "onnx", "tflite"])
def test_weights_that_are_not_finite_are_reported(suffix, tmp_path):
    network = chain("small", (4, 4, 3), conv=Conv2D(5, 3), flat=Flatten(), dense=Dense(2))
    weights = network.initialize(0)
    weights["conv/kernel"][0, 0, 0, :2] = np.nan, np.inf
    path = tmp_path / f"m.{suffix}"
    write_model(path, ModelFile(network, weights))
    given = network if suffix in ("safetensors", "weights.h5") else None
    with pytest.warns(UserWarning, match=r"NaN or infinite.*/kernel', with 2 of 135") as said:
        read_model(path, given)
    assert len(said) == 1 and path.name in str(said[0].message)
    assert sum("/kernel', with 2 of 135" in note for note in el.inspect(path, given).notes) == 1
    weights["conv/kernel"][0, 0, 0, :2] = 0
    write_model(path, ModelFile(network, weights))
    assert not any("NaN" in note for note in el.inspect(path, given).notes)
