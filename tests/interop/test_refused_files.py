"""Files that are missing, damaged or something else are refused, whatever their format: by name, in one line."""

import io
import json
import zipfile
from collections import OrderedDict
from functools import partial
from importlib.util import find_spec

import h5py
import numpy as np
import pytest

import edgelearn as el
from edgelearn.errors import FormatError
from edgelearn.ops import Dense
from tests.torture.graphdef import field, node, shape

from .torch_files import torch_save

KINDS = {  # the words that name the format
    "safetensors": "safetensors file", "h5": "Keras HDF5", "weights.h5": "Keras HDF5", "npz": "of plain arrays",
    "keras": ".keras archive", "onnx": "ONNX", "tflite": "TFLite model|TFL3", "pb": "frozen TensorFlow graph|damaged",
    "pt": "PyTorch state dict", "xyz": "a model or weight file|no known format",
}  # fmt: skip
CONTENTS = {"missing": None, "a folder": ..., "empty": b"", "text": b"weights", "0": bytes(100), "255": b"\xff" * 100}


@pytest.fixture
def refused(tmp_path):
    """refused(name, content, words): a file of this content is refused with these words; a function makes the bytes."""
    network = el.Network("small", (3,))
    network.add("dense", Dense(2))

    def refused(name, content, words):
        path = tmp_path / name
        if content is ...:
            path.mkdir()
        elif content is not None:
            path.write_bytes(content(tmp_path) if callable(content) else content)
        with pytest.raises(FormatError, match=words) as caught:
            el.load(path, network)
        assert str(path) in str(caught.value) and "\n" not in str(caught.value)

    return refused


@pytest.mark.parametrize("content", CONTENTS)
@pytest.mark.parametrize("suffix", KINDS)
def test_files_of_another_kind(suffix, content, refused):
    if suffix == "onnx" and find_spec("onnx") is None:
        pytest.skip("onnx isn't installed")
    refused(f"file.{suffix}", CONTENTS[content], KINDS[suffix])


def hdf5(folder, fill=lambda file: None):
    with h5py.File(folder / "made.hdf5", "w") as file:
        fill(file)
    return (folder / "made.hdf5").read_bytes()


def keras(folder, **members):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, text in members.items():
            archive.writestr(name.replace("_", "."), text)
        archive.writestr("model.weights.h5", hdf5(folder))
    return content.getvalue()


def keras_of(value):
    return partial(keras, config_json=value if isinstance(value, str) else json.dumps(value))


def npz(folder, **arrays):
    content = io.BytesIO()
    np.savez(content, **arrays)
    return content.getvalue()


def cut_state(folder, length):
    state = OrderedDict({"dense.weight": np.zeros((2, 3), np.float32), "dense.bias": np.zeros(2, np.float32)})
    return torch_save(folder / "whole.pt", state).read_bytes()[:length]


BF16 = b'{"x":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]}}'
LOOP = (
    node("e", "Enter", ("x",), frame_name=field(2, b"rnn/while")) + node("x", "Placeholder")
    + node("m", "Merge", ("e", "n")) + node("n", "NextIteration", ("m",))
)  # fmt: skip
HUGE = node("c", "Const", value=field(8, field(1, 1) + field(2, shape(1 << 20, 1 << 20))))
DAMAGED = {
    "safetensors of other numbers": ("w.safetensors", len(BF16).to_bytes(8, "little") + BF16 + bytes(4), "damaged"),
    "HDF5 of something else": ("w.h5", partial(hdf5, fill=lambda file: file.create_dataset("n", (3,))), "layer_names"),
    "HDF5 with numbers for names": (
        "w.h5", partial(hdf5, fill=lambda file: file.attrs.update(layer_names=[1, 2])), "not a Keras HDF5 weight file"),
    "objects of Python": ("w.npz", partial(npz, x=np.array([{"a": 1}], object)), "plain arrays"),
    "a configuration that is nested too deep": ("m.keras", keras_of("[" * 100_000), "configuration"),
    "a class of one's own": ("m.keras", keras_of({"class_name": "Mine", "config": {}}), "Mine"),
    "layers that are numbers": (
        "m.keras", keras_of({"class_name": "Functional", "config": {"name": "m", "layers": [1]}}), "configuration"),
    "an archive without a configuration": ("m.keras", keras, "lacks"),
    "no sub-graph": ("m.tflite", (20).to_bytes(4, "little") + b"TFL3" + bytes(200), "sub-graph"),
    "offsets that lead away": ("m.tflite", b"\xff" * 4 + b"TFL3", "layout of the file"),
    "no node": ("g.pb", b"", "no node"),
    "a field that is too long": ("g.pb", b"\x0a\xff\xff\xff\xff\x0f", "field 1"),
    "a loop": ("g.pb", LOOP, "while.*'rnn/while'.*recurrent"),
    "a circle": ("g.pb", node("a", "Identity", ("b",)) + node("b", "Identity", ("a",)), "circle"),
    "an input that is missing": ("g.pb", node("a", "Relu", ("nothing",)), "nothing"),
    "a variable": ("g.pb", node("v", "VarHandleOp"), "not frozen"),
    "a constant that is too large": ("g.pb", HUGE, "1048576"),
    **{f"{length} bytes of a state dict": ("x.pt", partial(cut_state, length=length), "state dict, or is damaged")
       for length in (0, 100, 300, -30)},
}  # fmt: skip


@pytest.mark.parametrize("what", DAMAGED)
def test_damaged_files(what, refused):
    refused(*DAMAGED[what])
