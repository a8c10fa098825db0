"""`edgelearn convert`."""

import numpy as np
import pytest

import edgelearn as el
from edgelearn.cli import main
from edgelearn.interop.exporting.qfp import read_qfp
from edgelearn.ops import Conv2D, Dense, Flatten


@pytest.fixture
def model(tmp_path):
    network = el.Network("small", (4, 4, 2))
    network.add("conv", Conv2D(3, 3))
    network.add("flat", Flatten())
    network.add("dense", Dense(2))
    found = el.Model(network)
    found.save(tmp_path / "small.safetensors")
    return found


def test_any_format_that_is_written(model, tmp_path, capsys):
    pytest.importorskip("tflite"), pytest.importorskip("onnx")
    source = str(tmp_path / "small.safetensors")
    for name in ("small.tflite", "small.onnx", "small.qfp32", "copy.safetensors"):
        assert main(["convert", source, str(tmp_path / name)]) == 0
        assert (tmp_path / name).exists() and name in capsys.readouterr().out
    read = read_qfp(tmp_path / "small.qfp32")
    assert all(np.array_equal(read[name], array) for name, array in model.weights.items())


@pytest.mark.parametrize(("arguments", "word"), [
    (["small.safetensors", "small.safetensors"], "small.safetensors"), (["small.safetensors", "out.xyz"], "out.xyz"),
    (["small.safetensors", "out.tflite", "--int8"], "ranges"), (["none.safetensors", "out.onnx"], "none.safetensors"),
    (["small.safetensors", "out.onnx", "--inputs", "a"], "small.safetensors"),
])  # fmt: skip
def test_what_cannot_be_is_explained(model, arguments, word, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["convert", *arguments]) == 1
    assert word in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["small.safetensors"]
