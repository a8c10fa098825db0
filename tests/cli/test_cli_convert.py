"""`edgelearn convert`."""

import json

import numpy as np
import pytest

import edgelearn as el
from edgelearn.cli import main
from edgelearn.interop import import_graph
from edgelearn.interop.qfp import read_qfp
from edgelearn.ops import Conv2D, Dense, Flatten
from tests.networks import chain


@pytest.fixture
def model(tmp_path):
    network = chain("small", (4, 4, 2), conv=Conv2D(3, 3), flat=Flatten(), dense=Dense(2))
    found = el.Model(network)
    found.save(tmp_path / "small.safetensors")
    return found


def test_any_format_that_is_written(model, tmp_path, said):
    pytest.importorskip("tflite"), pytest.importorskip("onnx")
    source = str(tmp_path / "small.safetensors")
    for name in ("small.tflite", "small.onnx", "small.qfp32", "copy.safetensors"):
        assert name in said("convert", source, tmp_path / name) and (tmp_path / name).exists()
    read = read_qfp(tmp_path / "small.qfp32")
    assert all(np.array_equal(read[name], array) for name, array in model.weights.items())


def test_constants_of_a_file(tmp_path, said, refused):
    onnx = pytest.importorskip("onnx")
    text = """<ir_version: 8, opset_import: ["" : 17]>
    small (float[n, 4] x, int64 rate, bool large) => (float[n, 4] y) {
      factor = Cast<to = 1>(rate)
      y = If(large) <then_branch = a () => (float[n, 4] z) { z = Mul(x, factor) },
                     else_branch = b () => (float[n, 4] z) { z = Relu(x) }>
    }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "a.onnx")
    source, out = str(tmp_path / "a.onnx"), str(tmp_path / "b.onnx")
    refused("rate", "convert", source, out)
    refused("sr=16000", "convert", source, out, "--constants", "rate")
    said("convert", source, out, "--constants", "rate=3", "large=true")
    x = np.float32([[1, -2, 3, 0]])
    assert np.array_equal(el.load(out).predict(x), 3 * x)
    assert "ReLU" in said("inspect", source, "--constants", "rate=3", "large=false")


def test_integers_by_pictures(tmp_path, refused):
    pytest.importorskip("tflite")
    from PIL import Image

    network = chain("pictures", (8, 8, 3), conv=Conv2D(4, 3, use_bias=False), flat=Flatten(), dense=Dense(2))
    el.Model(network).save(tmp_path / "m.safetensors")
    source, out, folder = (str(tmp_path / name) for name in ("m.safetensors", "m.tflite", "pictures"))
    arguments = ["convert", source, out, "--int8", "--images", folder]
    (tmp_path / "pictures" / "a").mkdir(parents=True)
    refused("pictures", *arguments, "--pixels", "unit")
    for number in range(3):
        pixels = np.random.default_rng(number).integers(0, 256, (10, 12, 3), np.uint8)
        Image.fromarray(pixels).save(tmp_path / "pictures" / "a" / f"{number}.png")
    refused("--pixels", *arguments)
    assert main([*arguments, "--pixels", "unit", "--examples", "2"]) == 0
    assert "int8" in {info.quantization.dtype for info in import_graph(out).graph.tensors.values() if info.quantization}


def test_types_and_what_stays_in_float32_are_printed(model, tmp_path, capsys, said, refused):
    pytest.importorskip("tflite")
    source, out, examples = (str(tmp_path / name) for name in ("small.safetensors", "m.tflite", "x.npy"))
    np.save(examples, np.random.default_rng(0).standard_normal((20, 4, 4, 2)).astype(np.float32))
    lines = said("convert", source, out, "--full-integer", "--calibration", examples, "--examples", "7")
    assert f"{(tmp_path / 'm.tflite').stat().st_size:,} bytes" in lines and "int8 78, int32 28" in lines
    assert main(["convert", source, out, "--float16", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["types"]["float16"] == 2 * model.network.count()
    np.save(examples, np.zeros((20, 4, 4), np.float32))
    refused("(n, 4, 4, 2)", "convert", source, out, "--int8", "--calibration", examples)
    refused(".npy", "convert", source, out, "--int8", "--calibration", source)


def test_the_first_hundred_examples_give_the_ranges(model, tmp_path, said):
    pytest.importorskip("tflite")
    source, out, examples = (tmp_path / name for name in ("small.safetensors", "m.tflite", "x.npy"))
    x = np.random.default_rng(0).standard_normal((101, 4, 4, 2)).astype(np.float32)
    x[100] *= 50
    np.save(examples, x)
    files = []
    for words in ([], ["--examples", "100"], ["--examples", "101"]):
        said("convert", source, out, "--int8", "--calibration", examples, *words)
        files.append(out.read_bytes())
    assert files[0] == files[1] != files[2]
