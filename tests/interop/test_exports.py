"""Exported models, run by the formats' own runtimes, against the engine."""

import json
import zipfile

import numpy as np
import pytest
from converted_networks import (
    enlarged,
    every_kind_of_padding,
    heads,
    of_the_last_axis,
    over_steps,
    overwritten,
    rearranged,
    recurrent,
    reference,
)

import edgelearn as el
from edgelearn import ops
from edgelearn.errors import DataError, FormatError, RunError
from edgelearn.interop import ModelFile, find_writer, qfp, write_model
from edgelearn.interop.exporting import inference_graph
from edgelearn.interop.formats import read_model
from edgelearn.ops.elementwise import Activation
from edgelearn.train.state import calibrate
from tests.networks import chain

INT8 = el.Precision(weights=ops.Format(8, symmetric=True), activations=ops.Format(8))


def with_uneven_strides() -> el.Network:
    network = chain(
        "uneven", (9, 12, 3), conv=ops.Conv2D(8, (3, 2), (2, 1), "same", (1, 1)), relu=ops.ReLU(),
        dilated=ops.DepthwiseConv2D(3, dilation_rate=(1, 2), padding="same", use_bias=False),
        bn=ops.BatchNormalization(), relu6=ops.ReLU(6), strided=ops.DepthwiseConv2D(3, (1, 2), "same"),
    )  # fmt: skip
    network.add("bn_alone", ops.BatchNormalization(), "relu6")
    network.add("pooled", ops.AveragePooling2D(2, (1, 2), "same"))
    network.add("both", ops.Concatenate(), "strided", "pooled")
    network.add("zeros", ops.ZeroPadding2D(((0, 1), (0, 0))))
    network.add("squares", ops.SpaceToDepth(2))
    network.add("max", ops.MaxPooling2D(2, 1))
    network.add("flat", ops.Flatten())
    network.add("dense", ops.Dense(4))
    return network


def pointwise() -> el.Network:
    """Activations, arithmetic, normalizations, and a gate as in squeeze-and-excite."""
    network = el.Network("pointwise", (4, 5, 8))
    network.add("depthwise", ops.DepthwiseConv2D(3, 1, "same", depth_multiplier=2))
    network.add("bn", ops.BatchNormalization())
    for name, op in {
        "hard_swish": ops.HardSwish(), "leaky": ops.LeakyReLU(0.2), "elu": ops.ELU(), "gelu": ops.GELU(),
        "tanh": ops.Tanh(), "elu_half": ops.ELU(0.5), "selu": ops.SELU(), "clip": ops.Clip(-0.5, 0.7),
        "layer_norm": ops.LayerNormalization(), "group_norm": ops.GroupNormalization(groups=4),
        "prelu": ops.PReLU((1, 2)), "scale": ops.Scale(), "relu4": ops.ReLU(0.4), "rescaling": ops.Rescaling(2.0, -0.3),
    }.items():  # fmt: skip
        network.add(name, op)
    network.add("squeeze", ops.Mean((1, 2)))
    network.add("excite", ops.HardSigmoid())
    network.add("gate", ops.Multiply(), "rescaling", "excite")
    network.add("difference", ops.Subtract(), "gate", "scale")
    network.add("pool", ops.GlobalAveragePooling2D())
    return network


def transposed() -> el.Network:
    """Every padding of transposed convolutions, and normalization over channels."""
    network = el.Network("transposed", (4, 3, 4))
    network.add("same", ops.Conv2DTranspose(6, 3, 2, "same"))
    network.add("response", ops.LocalResponseNormalization(3, 0.2, 0.6, 1.5, average=True))
    network.add("valid", ops.Conv2DTranspose(4, (2, 3), (1, 2), use_bias=False))
    network.add("grouped", ops.Conv2DTranspose(6, 3, 2, ((1, 1), (0, 2)), (1, 0), groups=2))
    network.add("dilated", ops.Conv2DTranspose(3, 2, 1, dilation_rate=(2, 1)))
    network.add("sparse", ops.Conv2DTranspose(2, 1, 3))
    network.add("sum", ops.LocalResponseNormalization(5, 0.1))
    network.add("even", ops.LocalResponseNormalization(4, 0.2, 0.6, 1.5))
    return network


def residual() -> el.Network:
    """Every op that is written in integers."""
    network = chain(
        "residual", (8, 8, 3), stem=ops.Conv2D(8, 3, 2, "same", use_bias=False), stem_bn=ops.BatchNormalization(),
        stem_relu=ops.ReLU(6), depthwise=ops.DepthwiseConv2D(3, padding="same", use_bias=False),
        depthwise_bn=ops.BatchNormalization(), project=ops.Conv2D(8, 1, padding=((1, 0), (0, 1))),
        crop=ops.MaxPooling2D(2, 1),
    )  # fmt: skip
    network.add("sum", ops.Add(), "crop", "stem_relu")
    network.add("sum_relu", ops.ReLU())
    network.add("mean", ops.AveragePooling2D(2, 1, "same"))
    network.add("both", ops.Concatenate(), "mean", "stem_relu")
    network.add("more", ops.PadChannels(1, 3))
    network.add("max", ops.MaxPooling2D(2))
    network.add("pool", ops.GlobalAveragePooling2D())
    network.add("hidden", ops.Dense(8))
    network.add("hidden_relu", ops.ReLU())
    network.add("dense", ops.Dense(4))
    network.add("softmax", ops.Softmax())
    return network


def chosen() -> el.Network:
    """Attention, values that a comparison chooses, operands of other ranks, and padding by the edge."""
    network = el.Network("chosen", (4, 5, 6))
    rows = network.add("rows", ops.Reshape((20, 6)))
    network.add("keys", ops.Transpose((2, 1)))
    network.add("scores", ops.MatMul(), rows, "keys")
    network.add("attention", ops.LogSoftmax())
    mixed = network.add("mixed", ops.MatMul(), "attention", rows)
    network.add("limit", ops.Constant((1, 6)), rows)
    network.add("above", ops.Greater(), mixed, "limit")
    network.add("picked", ops.Where(), "above", mixed, rows)
    network.add("image", ops.Reshape((4, 5, 6)))
    network.add("wide", ops.Transpose((1, 3, 2)))
    network.add("product", ops.MatMul(), "wide", "image")
    network.add("mean", ops.Mean(1))
    network.add("below", ops.Less(), "mean", "product")
    network.add("repeated", ops.BroadcastTo((4, 6, 6)), "mean")
    network.add("all", ops.Add(), "below", "repeated", "product")
    return network


NETWORKS = {
    "chosen": chosen,
    "over steps": over_steps,
    "recurrent": recurrent,
    "heads": heads,
    "padded": every_kind_of_padding,
    "last axis": of_the_last_axis,
    "shortcut": overwritten,
    "uneven": with_uneven_strides,
    "mobilenet_v1": lambda: el.models.mobilenet_v1((32, 32, 3), 0.25, 5),
    "mobilenet_v2": lambda: el.models.mobilenet_v2((32, 32, 3), 0.35, 5),
    "rearranged": lambda: rearranged("reflect"),  # ONNX knows no symmetric padding
    "enlarged": enlarged,
    "pointwise": pointwise,
    "transposed": transposed,
    "mobilenet_v3": lambda: el.models.mobilenet_v3_small((32, 32, 3), classes=5),
    "bcresnet": lambda: el.models.bcresnet((40, 21, 1), classes=4, softmax=False),
}


def run_tflite(path, x):
    """The outputs; those of int8 and inputs of int8 by the scale and the zero point that the file says."""
    litert = pytest.importorskip("ai_edge_litert.interpreter")
    runner = litert.Interpreter(str(path))
    runner.resize_tensor_input(runner.get_input_details()[0]["index"], x.shape)
    runner.allocate_tensors()
    (given,), (made,) = runner.get_input_details(), runner.get_output_details()
    if given["dtype"] == np.int8:
        scale, zero = given["quantization"]
        x = np.clip(np.rint(x / scale) + zero, -128, 127).astype(np.int8)
    runner.set_tensor(given["index"], x)
    runner.invoke()
    y, (scale, zero) = runner.get_tensor(made["index"]), made["quantization"]
    return (y.astype(np.float32) - zero) * np.float32(scale) if y.dtype == np.int8 else y


def run_onnx(path, x):
    runtime, onnx = pytest.importorskip("onnxruntime"), pytest.importorskip("onnx")
    onnx.checker.check_model(str(path), full_check=True)
    options = runtime.SessionOptions()
    options.add_session_config_entry("session.x64quantprecision", "1")  # sums of two products saturate without VNNI
    session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return session.run(None, {"input": x})[0]


RUNTIMES = {"tflite": run_tflite, "onnx": run_onnx}
SINGLE = {  # come back as one layer
    ops.ELU, ops.GELU, ops.HardSwish, ops.LeakyReLU, ops.PReLU, ops.Conv2DTranspose, ops.LocalResponseNormalization,
}  # fmt: skip
each_runtime = pytest.mark.parametrize("suffix", RUNTIMES)


def varied(network: el.Network) -> dict[str, np.ndarray]:
    """Weights whose biases and statistics aren't 0 and 1."""
    rng = np.random.default_rng(1)
    weights = network.initialize(0)
    return {n: a + 0.1 * rng.random(a.shape, np.float32) if a.ndim < 3 else a for n, a in weights.items()}


@each_runtime
@pytest.mark.parametrize("name", NETWORKS)
def test_float32_gives_the_reference(name, suffix, tmp_path):
    network = NETWORKS[name]()
    weights = varied(network)
    x = np.random.default_rng(0).standard_normal((3, *network.input_shape)).astype(np.float32)
    path = tmp_path / f"model.{suffix}"
    write_model(path, ModelFile(network, weights))
    outputs = RUNTIMES[suffix](path, x)
    expected = reference(network, {n: a.astype(float) for n, a in weights.items()}, x.astype(float), "moving")
    assert outputs.dtype == np.float32 and outputs.shape == expected.shape
    assert np.abs(outputs - expected).max() <= 1e-5 * max(1, np.abs(expected).max())


def test_symmetric_padding_is_written_where_the_format_has_it(tmp_path):
    network = rearranged("symmetric")
    file, x = ModelFile(network, varied(network)), np.random.default_rng(0).standard_normal((3, 5, 6, 4), np.float32)
    write_model(tmp_path / "m.tflite", file)
    expected = reference(network, file.weights, x.astype(float), "moving")
    assert np.abs(run_tflite(tmp_path / "m.tflite", x) - expected).max() <= 1e-5 * np.abs(expected).max()
    with pytest.raises(FormatError, match="ONNX has no symmetric padding"):
        write_model(tmp_path / "m.onnx", file)


@each_runtime
@pytest.mark.parametrize("name", ["pointwise", "transposed", "last axis"])
def test_what_is_exported_can_be_imported(name, suffix, tmp_path):
    network = NETWORKS[name]()
    weights = varied(network)
    x = np.random.default_rng(0).standard_normal((2, *network.input_shape)).astype(np.float32)
    write_model(tmp_path / f"model.{suffix}", ModelFile(network, weights))
    file = read_model(tmp_path / f"model.{suffix}")
    found, expected = (
        reference(n, {key: a.astype(float) for key, a in w.items()}, x.astype(float), "moving")
        for n, w in ((file.network, file.weights), (network, weights))
    )
    assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()
    assert {type(n.op) for n in network.nodes.values()} & SINGLE <= {type(n.op) for n in file.network.nodes.values()}


@each_runtime
def test_float32_gives_the_engines_outputs(suffix, tmp_path):
    model = el.Model(overwritten(), varied(overwritten()))
    x = np.random.default_rng(0).standard_normal((3, 4, 4, 4)).astype(np.float32)
    model.export(tmp_path / f"model.{suffix}")
    assert np.abs(RUNTIMES[suffix](tmp_path / f"model.{suffix}", x) - model.predict(x)).max() < 1e-5


@pytest.fixture(scope="module")
def trained():
    """A model with ranges, examples, and what the engine predicts with integers."""
    model = el.Model(residual(), seed=0).compile(el.SGD(0.05), precision=INT8)
    x = np.random.default_rng(0).standard_normal((24, 8, 8, 3)).astype(np.float32)
    model.fit(x, np.arange(24) % 4, 8, 2)
    return model, x, model.predict(x)


@each_runtime
def test_int8_gives_what_training_simulated(trained, suffix, tmp_path):
    model, x, expected = trained
    path = tmp_path / f"model.{suffix}"
    model.export(path, int8=True)
    outputs = RUNTIMES[suffix](path, x)
    assert np.abs(outputs - expected).max() < 0.01
    assert path.stat().st_size > 0


@each_runtime
def test_int8_is_read_again(trained, suffix, tmp_path):
    model, x, expected = trained
    model.export(tmp_path / f"model.{suffix}", int8=True)
    again = read_model(tmp_path / f"model.{suffix}")  # in float32: nothing saturates where a ReLU was
    weights = {name: array.astype(float) for name, array in again.weights.items()}
    assert np.abs(reference(again.network, weights, x.astype(float), "moving") - expected).max() < 0.01


def test_int8_computes_with_integers(trained, tmp_path):
    tflite = pytest.importorskip("tflite")
    model, *_ = trained
    path = tmp_path / "model.tflite"
    model.export(path, int8=True)
    graph = tflite.Model.GetRootAs(path.read_bytes()).Subgraphs(0)
    types = {}
    for i in range(graph.TensorsLength()):
        types[graph.Tensors(i).Name().decode()] = graph.Tensors(i).Type()
    integers = {name for name, kind in types.items() if kind == tflite.TensorType.INT8}
    assert {"stem/kernel", "depthwise/kernel", "project/kernel", "hidden/kernel"} <= {
        name.replace("stem_relu", "stem").replace("depthwise_bn", "depthwise").replace("hidden_relu", "hidden")
        for name in integers
    }
    assert types["dense/kernel"] == tflite.TensorType.INT8  # the network's output has no range, and stays float32
    assert types["dense/bias"] == tflite.TensorType.FLOAT32


def test_kernels_trained_with_one_range_keep_their_integers(trained):
    model, *_ = trained
    graph = inference_graph(model.network, model.weights, model.range_records())
    (kernel,) = (o.inputs[1] for o in graph.operations if o.kind == "conv" and "stem" in o.output.name)
    weights = model.weights["stem/kernel"]
    expected = np.rint(weights / (np.abs(weights).max() / 127))
    integers = kernel.quantization.encode(kernel.array).astype(float)
    assert np.abs(np.abs(integers) - np.abs(expected)).max() <= 1
    assert (np.abs(integers) == np.abs(expected)).mean() > 0.99


@each_runtime
def test_int8_by_calibration(trained, suffix, tmp_path):
    model, x, _ = trained
    plain = el.Model(model.network, model.weights)
    path = tmp_path / f"model.{suffix}"
    plain.export(path, x, int8=True)
    exact = plain.predict(x)
    assert np.abs(RUNTIMES[suffix](path, x) - exact).max() < 0.02 * np.abs(exact).max() + 0.005
    trained = {name for name in model.range_records() if name.endswith("/activations")}
    assert set(calibrate(plain, x)) == trained | {"dense/activations"}  # the logits
    narrow = calibrate(plain, x[:1])["input/activations"]
    assert (narrow[3], narrow[4]) == (x[:1].min(), x[:1].max())
    for examples, options, error in ((x[:0], {"int8": True}, DataError), (x, {}, FormatError)):
        with pytest.raises(error):
            plain.export(path, examples, **options)


def scaled() -> el.Network:
    """Every op that is written in integers as more than one operation, or as a convolution of single pixels."""
    network = chain(
        "scaled", (12, 8, 3), pixels=ops.Rescaling(1 / 127.5, -1), conv=ops.Conv2D(8, 3, 2, "same"),
        swish=ops.HardSwish(), bn=ops.BatchNormalization(), silu=ops.SiLU(),
        bands=ops.SubSpectralNormalization(sub_bands=3), sigmoid=ops.Sigmoid(),
    )  # fmt: skip
    network.add("tanh", ops.Tanh(), "bands")
    network.add("sum", ops.Add(), "sigmoid", "tanh", "swish")
    network.add("leaky", ops.LeakyReLU(0.2))
    network.add("squeeze", ops.Mean((1, 2)))
    network.add("excite", ops.HardSigmoid(0.5, 0.3))
    network.add("gate", ops.Multiply(), "leaky", "excite")
    network.add("pool", ops.GlobalAveragePooling2D())
    network.add("dropout", ops.Dropout(0.3))
    network.add("scale", ops.Scale())
    network.add("hidden", ops.Dense(48))
    network.add("elu", ops.ELU())
    network.add("dropout_again", ops.Dropout(0.3))
    network.add("dense", ops.Dense(40))
    network.add("softmax", ops.Softmax())
    return network


@pytest.fixture(scope="module")
def pixels():
    """A model of pixels, examples, and what it predicts."""
    network = scaled()
    model = el.Model(network, varied(network))
    x = np.random.default_rng(0).integers(0, 256, (24, 12, 8, 3)).astype(np.float32)
    return model, x, model.predict(x)


def tflite_graph(path):
    """Operators of a TFLite file by name, and the types of all its tensors."""
    tflite = pytest.importorskip("tflite")
    file = tflite.Model.GetRootAs(path.read_bytes())
    graph = file.Subgraphs(0)
    names = {number: name for name, number in vars(tflite.BuiltinOperator).items() if isinstance(number, int)}
    codes = [file.OperatorCodes(i).BuiltinCode() for i in range(file.OperatorCodesLength())]
    kinds = [names[codes[graph.Operators(i).OpcodeIndex()]] for i in range(graph.OperatorsLength())]
    types = {number: name for name, number in vars(tflite.TensorType).items() if isinstance(number, int)}
    return kinds, {types[graph.Tensors(i).Type()] for i in range(graph.TensorsLength())}


def test_all_layers_are_int8_and_none_is_left_between_floats(pixels, tmp_path):
    model, x, expected = pixels
    path = tmp_path / "model.tflite"
    written = model.export(path, x, int8=True)
    kinds, _ = tflite_graph(path)
    assert (kinds.count("QUANTIZE"), kinds.count("DEQUANTIZE")) == (1, 1)  # the input and the output
    assert (kinds[0], kinds[-1]) == ("QUANTIZE", "DEQUANTIZE") and not written.float32
    assert set(written.types) == {"int8", "int32"} and written.bytes == path.stat().st_size
    assert np.abs(run_tflite(path, x) - expected).max() < 0.01
    (softmax,) = (o for o in inference_graph(model.network, model.weights, calibrate(model, x)).operations
                  if o.kind == "quantize" and o.inputs[0].name.startswith("softmax"))  # fmt: skip
    quantization = softmax.attributes["quantization"]
    assert (float(quantization.scale), quantization.zero) == (1 / 256, -128)


def test_full_integer_has_no_float_tensor(pixels, tmp_path):
    model, x, expected = pixels
    path = tmp_path / "model.tflite"
    model.export(path, x, full_integer=True)
    kinds, types = tflite_graph(path)
    assert types <= {"INT8", "INT32"} and not {"QUANTIZE", "DEQUANTIZE"} & set(kinds)
    assert np.abs(run_tflite(path, x) - expected).max() < 0.01
    again = read_model(path)
    assert again.network.input_shape == model.network.input_shape
    weights = {name: array.astype(float) for name, array in again.weights.items()}
    assert np.abs(reference(again.network, weights, x.astype(float), "moving") - expected).max() < 0.005


def looked_up(name: str) -> tuple[el.Network, dict[str, np.ndarray]]:
    """A network with products or rows by number, and its inputs."""
    rng, rows = np.random.default_rng(0), np.float32([[4, 0, -0.0], [1, 1, 2], [3, 2, 4]])
    shapes = {
        "matrices": {"a": (5, 6), "b": (6, 4)}, "images": {"a": (3, 5, 6), "b": (3, 6, 4)}, "words": {"rows": (3,)},
        "taken": {"a": (5, 6), "rows": (3,)}, "taken images": {"a": (5, 2, 6), "rows": (3,)},
        "listed": {"a": (5, 2, 6)},
    }[name]  # fmt: skip
    network = el.Network(name, shapes if len(shapes) > 1 else shapes.popitem()[1])
    inputs = {key: rng.standard_normal((3, *shape)).astype(np.float32) for key, shape in network.inputs.items()}
    inputs |= {key: rows for key in inputs if network.inputs[key] == (3,)}
    if name in ("matrices", "images"):
        network.add("found", ops.MatMul(), "a", "b")
    elif name == "words":
        network.add("found", ops.Embedding(5, 6))
    else:
        x = network.add("x", ops.ReLU(), next(iter(inputs)))
        network.add(
            "found", ops.Take(), x, network.add("listed", ops.Constant((3,)), x) if name == "listed" else "rows"
        )
    return network, inputs


@each_runtime
@pytest.mark.parametrize("name", ["matrices", "images", "words", "taken", "taken images", "listed"])
def test_products_and_rows_by_number_leave_and_come_back(name, suffix, tmp_path):
    network, x = looked_up(name)
    weights = network.initialize(0)
    if name == "listed":
        weights["listed/value"] = np.float32([4, 0, -2])
    path = tmp_path / f"model.{suffix}"
    write_model(path, ModelFile(network, weights))
    if suffix == "onnx":
        session = pytest.importorskip("onnxruntime").InferenceSession(str(path), providers=["CPUExecutionProvider"])
        (found,) = session.run(None, x)
    else:
        runner = pytest.importorskip("ai_edge_litert.interpreter").Interpreter(str(path)).get_signature_runner()
        (found,) = runner(**x).values()
    again = read_model(path)
    given = x if len(x) > 1 else next(iter(x.values()))
    expected = el.Model(network, weights).predict(given)
    assert np.abs(found - expected).max() < 1e-6
    assert np.abs(el.Model(again.network, again.weights).predict(given) - expected).max() < 1e-6
    assert [type(n.op) for n in again.network.nodes.values()] == [type(n.op) for n in network.nodes.values()]


def test_full_integer_of_several_inputs_and_outputs(tmp_path):
    litert = pytest.importorskip("ai_edge_litert.interpreter")
    network = el.Network("several", {"left": (6,), "right": (6,)})
    network.add("dense", ops.Dense(5), "left")
    network.add("relu", ops.ReLU())
    network.add("other", ops.Dense(5), "right")
    network.add("sum", ops.Add(), "relu", "other")
    network.outputs = ("sum", "relu")
    model, rng = el.Model(network, seed=0), np.random.default_rng(0)
    x = {name: rng.standard_normal((16, 6)).astype(np.float32) for name in network.inputs}
    model.export(tmp_path / "model.tflite", x, full_integer=True)
    runner = litert.Interpreter(str(tmp_path / "model.tflite")).get_signature_runner()
    ends = runner.get_input_details(), runner.get_output_details()
    (given, made), expected = ({n: d["quantization"] for n, d in end.items()} for end in ends), model.predict(x)
    encoded = {n: np.clip(np.rint(a / given[n][0]) + given[n][1], -128, 127).astype(np.int8) for n, a in x.items()}
    found = runner(**encoded)
    for name, (scale, zero) in made.items():
        assert found[name].dtype == np.int8
        assert np.abs((found[name].astype(np.float32) - zero) * scale - expected[name]).max() < 4 * scale


def test_full_integer_says_what_stays_float(trained, tmp_path):
    model, *_ = trained  # whose logits have no range
    with pytest.raises(FormatError, match=r"'dense' \(no range of its output is known"):
        model.export(tmp_path / "model.tflite", full_integer=True)
    network = el.Network("logarithm", (4, 4, 1))
    network.add("log", ops.Log())
    with pytest.raises(FormatError, match=r"'log' \('Log' is computed in float32\)"):
        el.Model(network).export(tmp_path / "model.tflite", np.ones((2, 4, 4, 1), np.float32), full_integer=True)
    assert not list(tmp_path.iterdir())


@each_runtime
def test_what_int8_leaves_in_float32_is_reported(trained, suffix, tmp_path):
    model, *_ = trained
    path = tmp_path / f"model.{suffix}"
    written = model.export(path, int8=True)
    assert list(written.float32) == ["dense", "softmax"]
    assert f"{path.stat().st_size:,} bytes" in str(written) and "dense, because" in str(written)


@each_runtime
@pytest.mark.parametrize("name", ["pointwise", "transposed", "bcresnet"])
def test_float16_weights(name, suffix, tmp_path):
    network = NETWORKS[name]()
    weights, path = varied(network), tmp_path / f"model.{suffix}"
    x = np.random.default_rng(0).standard_normal((3, *network.input_shape)).astype(np.float32)
    exact = write_model(path, ModelFile(network, weights))
    written = write_model(path, ModelFile(network, weights), float16=True)
    assert 2 * written.types["float16"] > 0.9 * exact.types["float32"] > written.types.get("float32", 0)
    outputs, again = RUNTIMES[suffix](path, x), read_model(path)
    found, expected = (
        reference(n, {key: a.astype(float) for key, a in w.items()}, x.astype(float), "moving")
        for n, w in ((again.network, again.weights), (network, weights))
    )
    assert 1e-6 < np.abs(outputs - expected).max() / np.abs(expected).max() < 0.01
    assert np.abs(found - outputs).max() < 1e-5 * np.abs(expected).max()


@each_runtime
def test_float16_refuses_what_it_cannot_hold(suffix, tmp_path):
    weights = overwritten().initialize(0) | {"dense/bias": np.float32([0, 7e4, 0])}
    with pytest.raises(FormatError, match="dense/bias"):
        write_model(tmp_path / f"model.{suffix}", ModelFile(overwritten(), weights), float16=True)
    assert not list(tmp_path.iterdir())


def test_int8_without_ranges_is_refused(tmp_path):
    with pytest.raises(FormatError, match="Precision"):
        el.Model(overwritten()).export(tmp_path / "model.tflite", int8=True)
    assert not (tmp_path / "model.tflite").exists()


def described(model: el.Model) -> el.Model:
    model.class_names, model.preprocessing = ("a", "b", "c"), {"size": 4}
    return model


def test_tflite_has_class_names_and_preprocessing(tmp_path):
    tflite = pytest.importorskip("tflite")
    path = tmp_path / "model.tflite"
    described(el.Model(overwritten())).export(path)
    file = tflite.Model.GetRootAs(path.read_bytes())
    entries = [file.Metadata(i) for i in range(file.MetadataLength())]
    found = {e.Name().decode(): file.Buffers(e.Buffer()).DataAsNumpy().tobytes() for e in entries}
    assert json.loads(found["class_names"]) == ["a", "b", "c"] and json.loads(found["preprocessing"]) == {"size": 4}
    assert found["TFLITE_METADATA"][4:8] == b"M001"
    with zipfile.ZipFile(path) as archive:
        assert archive.read("labels.txt") == b"a\nb\nc"
    assert run_tflite(path, np.zeros((1, 4, 4, 4), np.float32)).shape == (1, 3)


def test_onnx_has_class_names_and_preprocessing(tmp_path):
    onnx = pytest.importorskip("onnx")
    path = tmp_path / "model.onnx"
    described(el.Model(overwritten())).export(path)
    found = {p.key: json.loads(p.value) for p in onnx.load(path).metadata_props}
    assert found == {"class_names": ["a", "b", "c"], "preprocessing": {"size": 4}}


@pytest.mark.parametrize(("suffix", "dtype"), [("qfp32", "<f4"), ("qfp16", "<f2")])
def test_qfp_is_a_file_a_tensor(suffix, dtype, tmp_path):
    model = described(el.Model(overwritten()))
    folder = tmp_path / f"model.{suffix}"
    model.export(folder)
    weights = model.weights
    content = (folder / f"conv_kernel.{suffix}").read_bytes()
    assert content == weights["conv/kernel"].astype(dtype).tobytes()
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["tensors"]["conv/kernel"]["shape"] == [3, 3, 4, 4]
    assert manifest["class_names"] == ["a", "b", "c"]
    assert el.Network.from_json(json.dumps(manifest["network"])).parameters == model.network.parameters
    read = qfp.read_qfp(folder)
    assert all(np.array_equal(read[n], a.astype(dtype).astype(np.float32)) for n, a in weights.items())
    with pytest.raises(RunError):
        model.export(folder)


@pytest.mark.parametrize(
    ("name", "text"), [("manifest.json", "[]"), ("manifest.json", '{"tensors": {"a": {"file": "../x"}}}'),
                       ("conv_bias.qfp32", "abc")],
)  # fmt: skip
def test_a_damaged_qfp_folder_is_refused(name, text, tmp_path):
    el.Model(overwritten()).export(tmp_path / "m.qfp32")
    (tmp_path / "m.qfp32" / name).write_text(text)
    with pytest.raises(FormatError, match=r"m\.qfp32"):
        qfp.read_qfp(tmp_path / "m.qfp32")


def test_qfp16_refuses_what_it_cannot_hold(tmp_path):
    model = el.Model(overwritten())
    model.weights = model.weights | {"dense/bias": np.float32([0, 7e4, 0])}
    with pytest.raises(FormatError, match="dense/bias"):
        model.export(tmp_path / "m.qfp16")


def test_safetensors_keeps_the_bits(tmp_path):
    model = described(el.Model(overwritten()))
    model.export(tmp_path / "m.safetensors")
    again = el.load(tmp_path / "m.safetensors")
    assert all(np.array_equal(again.weights[n], a) for n, a in model.weights.items())
    assert again.class_names == model.class_names


def test_a_torch_state_dict_keeps_the_bits(tmp_path):
    torch = pytest.importorskip("torch")
    model = described(el.Model(with_uneven_strides()))
    model.export(tmp_path / "m.pt")
    state = torch.load(tmp_path / "m.pt", weights_only=True)
    kernel = model.weights["conv/kernel"]
    conv = torch.nn.Conv2d(3, 8, (3, 2))
    conv.load_state_dict({"weight": state["conv.weight"], "bias": state["conv.bias"]})
    assert np.array_equal(conv.weight.detach().numpy().transpose(2, 3, 1, 0), kernel)
    assert state["strided.weight"].shape == (8, 1, 3, 3) and state["dense.weight"].shape[0] == 4
    assert np.array_equal(state["bn.running_var"], model.weights["bn/moving_variance"])
    assert json.loads(state._metadata["edgelearn"]["class_names"]) == ["a", "b", "c"]


def test_unknown_suffixes_and_options_are_named(tmp_path):
    with pytest.raises(FormatError, match=r"m\.xyz"):
        find_writer("m.xyz")
    with pytest.raises(FormatError, match="int8"):
        el.Model(overwritten()).export(tmp_path / "m.keras", int8=True)


@each_runtime
def test_an_op_of_ones_own_is_written_by_its_formula(suffix, tmp_path):
    class Cube(Activation):
        def formula(self, xp, x):
            return xp.where(x < 2, x * xp.square(x), xp.ones_like(x))

    network = el.Network("own", (2, 3, 1))
    network.add("cube", Cube())
    write_model(tmp_path / f"m.{suffix}", ModelFile(network, {}))
    x = np.float32([[[[1], [2], [-3]], [[0], [0.5], [4]]]])
    assert np.array_equal(RUNTIMES[suffix](tmp_path / f"m.{suffix}", x), np.where(x < 2, x**3, 1))


def test_ops_without_a_counterpart_are_named_all_at_once(tmp_path):
    class First(ops.SiLU):
        def reference_forward(self, inputs, weights):
            return [inputs[0] + 1]

    class Second(ops.Flatten):
        pass

    network = chain("unknown", (2, 2, 1), a=First(), b=Second())
    with pytest.raises(FormatError, match=r"First.*Second"):
        inference_graph(network, {})
    assert ModelFile(network, {}).texts() == {}
