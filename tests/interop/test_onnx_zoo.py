"""Graphs spelled as public models are: old opsets, constants in odd places, open batches."""

import numpy as np
import pytest

from edgelearn.errors import UnsupportedError
from edgelearn.interop import import_graph, read_model

onnx = pytest.importorskip("onnx")
helper, numpy_helper = onnx.helper, onnx.numpy_helper

RNG = np.random.default_rng(3)


def draw(*shape):
    return RNG.normal(0, 0.5, shape).astype(np.float32)


NORM = ["g", "n", "n", "var"]
ARRAYS = {
    "stem": draw(8, 3, 3, 3), "k": draw(8, 8, 3, 3), "point": draw(8, 8, 1, 1), "half": draw(4, 8, 1, 1), "n": draw(8),
    "four": draw(4), "point4": draw(4, 4, 1, 1), "dw4": draw(4, 1, 3, 3),
    "g": 1 + draw(8), "var": 1 + abs(draw(8)), "dw": draw(8, 1, 3, 3), "classes": draw(5, 8), "columns": draw(8, 5),
    "five": draw(5), "classifier": draw(5, 8, 1, 1), "zero": np.float32(0), "six": np.float32(6),
    "groups": np.array([-1, 2, 4, 6, 6]), "joined": np.array([-1, 8, 6, 6]), "rows": np.array([0, -1]),
    "nought": np.array(0), "front": np.array([0]), "minus": np.array([-1]), "last two": np.array([2, 3]),
    "grey": np.float32(128), "side": np.array([0, 0, 1, 1, 0, 0, 1, 1]), "scales": np.float32([1, 1, 2, 2]),
    "cntk": draw(8, 5), "cntk shape": np.array([8, 5]), "flat": np.array([1, 8]), "ratio": np.float32(0.5),
    "no": np.array(False), "parts": np.array([4, 4]), "mapped": draw(1, 8, 1, 1), "empty": np.zeros(0, np.float32),
}  # fmt: skip


def conv(x, y, kernel="k", **more):
    """A convolution that keeps the size."""
    pads = [1, 1, 1, 1] if ARRAYS[kernel].shape[-1] == 3 else [0, 0, 0, 0]
    return ("Conv", [x, kernel], [y], {"kernel_shape": ARRAYS[kernel].shape[2:], "pads": pads, **more})


STEM = conv("x", "s", "stem", strides=[2, 2])  # to 8 channels of 6 x 6
END = [("GlobalAveragePool", ["e"], ["p"], {}), ("Flatten", ["p"], ["f"], {}),
       ("Gemm", ["f", "classes", "five"], ["y"], {"transB": 1, "alpha": 0.5, "beta": 2.0})]  # fmt: skip
ZOO = {
    "ResNet 50 v1, opset 7": (7, [
        STEM, ("BatchNormalization", ["s", *NORM], ["b"], {"epsilon": 1e-5, "momentum": 0.9, "spatial": 1}),
        ("Relu", ["b"], ["r"], {}),
        ("MaxPool", ["r"], ["m"], {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
        conv("m", "c"), ("BatchNormalization", ["c", *NORM], ["d"], {}), ("Sum", ["d", "m"], ["z"], {}),
        ("Relu", ["z"], ["e"], {}), *END]),
    "MobileNet V2, opset 10": (10, [
        STEM, ("Clip", ["s"], ["a"], {"min": 0.0, "max": 6.0}), conv("a", "d", "dw", group=8),
        ("Add", ["d", "a"], ["e"], {}), ("GlobalAveragePool", ["e"], ["p"], {}), ("Shape", ["p"], ["sh"], {}),
        ("Gather", ["sh", "nought"], ["n0"], {"axis": 0}), ("Unsqueeze", ["n0"], ["n1"], {"axes": [0]}),
        ("Concat", ["n1", "minus"], ["to"], {"axis": 0}), ("Reshape", ["p", "to"], ["f"], {}),
        ("Gemm", ["f", "classes", "five"], ["y"], {"transB": 1})]),
    "MobileNet V2, opset 12": (12, [
        STEM, ("Clip", ["s", "zero", "six"], ["a"], {}), conv("a", "e", "dw", group=8), *END]),
    "ShuffleNet V2, opset 10": (10, [
        STEM, ("Split", ["s"], ["l", "r0"], {"axis": 1, "split": [4, 4]}),
        ("Conv", ["r0", "point4"], ["r1"], {}), conv("r1", "r", "dw4", group=4),
        ("Concat", ["l", "r"], ["c"], {"axis": 1}), ("Reshape", ["c", "groups"], ["g0"], {}),
        ("Transpose", ["g0"], ["t"], {"perm": [0, 2, 1, 3, 4]}), ("Reshape", ["t", "joined"], ["e"], {}),
        ("ReduceMean", ["e"], ["f"], {"axes": [2, 3], "keepdims": 0}),
        ("Gemm", ["f", "classes", "five"], ["y"], {"transB": 1})]),
    "SqueezeNet 1.0, opset 8": (8, [
        STEM, ("Relu", ["s"], ["r"], {}), conv("r", "l", "point"), conv("r", "h"),
        ("Concat", ["l", "h"], ["c"], {"axis": 1}), ("Dropout", ["c"], ["d", "mask"], {"ratio": 0.5}),
        ("Slice", ["d"], ["q"], {"axes": [1], "starts": [0], "ends": [8]}),
        ("Conv", ["q", "classifier", "five"], ["v"], {"pads": [1, 1, 1, 1]}),
        ("GlobalAveragePool", ["v"], ["p"], {}), ("Softmax", ["p"], ["y"], {})]),
    "GoogLeNet, opset 9": (9, [
        STEM, ("LRN", ["s"], ["n0"], {"size": 5, "alpha": 1e-4, "beta": 0.75, "bias": 1.0}),
        ("MaxPool", ["n0"], ["m"], {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [0, 0, 2, 2]}),
        ("AveragePool", ["m"], ["e"], {"kernel_shape": [2, 2]}), *END]),
    "MNIST of CNTK, opset 8": (8, [
        ("Conv", ["x", "stem"], ["c"], {"auto_pad": "SAME_UPPER", "strides": [2, 2], "dilations": [1, 1]}),
        ("Add", ["c", "mapped"], ["a"], {}), ("Relu", ["a"], ["r"], {}),
        ("MaxPool", ["r"], ["m"], {"kernel_shape": [6, 6], "strides": [6, 6], "auto_pad": "NOTSET",
                                   "pads": [0, 0, 0, 0]}),
        ("Reshape", ["m", "flat"], ["f"], {}), ("Reshape", ["cntk", "cntk shape"], ["w"], {}),
        ("MatMul", ["f", "w"], ["z"], {}), ("Add", ["z", "five"], ["y"], {})]),
    "emotions, opset 8": (8, [
        ("Sub", ["x", "grey"], ["u"], {}), ("Div", ["u", "grey"], ["v"], {}),
        ("Conv", ["v", "stem"], ["e"], {"auto_pad": "SAME_LOWER", "strides": [2, 2]}), *END]),
    "Upsample, opset 9": (9, [STEM, ("Upsample", ["s", "scales"], ["e"], {"mode": "nearest"}), *END]),
    "Upsample, opset 7": (7, [STEM, ("Upsample", ["s"], ["e"], {"scales": [1.0, 1.0, 2.0, 2.0]}), *END]),
    "Resize, opset 11": (11, [
        STEM, ("Resize", ["s", "empty", "scales"], ["e"],
               {"mode": "linear", "coordinate_transformation_mode": "pytorch_half_pixel"}), *END]),
    "Pad before a convolution, opset 2": (9, [
        STEM, ("Pad", ["s"], ["q"], {"pads": [0, 0, 1, 1, 0, 0, 1, 1], "mode": "constant", "value": 0.0}),
        ("Conv", ["q", "k"], ["e"], {}), *END]),
    "squeezed by attribute": (11, [
        STEM, ("GlobalAveragePool", ["s"], ["p"], {}), ("Squeeze", ["p"], ["f"], {"axes": [2, 3]}),
        ("MatMul", ["f", "columns"], ["z"], {}), ("Add", ["five", "z"], ["y"], {})]),
    "squeezed by input, opset 18": (18, [
        STEM, ("ReduceMean", ["s", "last two"], ["p"], {"keepdims": 1}), ("Squeeze", ["p", "last two"], ["f"], {}),
        ("Dropout", ["f", "ratio", "no"], ["d"], {}), ("Split", ["d", "parts"], ["l", "r"], {"axis": -1}),
        ("Concat", ["l", "r"], ["c"], {"axis": 1}), ("MatMul", ["c", "columns"], ["y"], {})]),
    "weights behind Identity and Transpose": (13, [
        ("Identity", ["stem"], ["w"], {}), ("Conv", ["x", "w"], ["s"], {}), ("GlobalMaxPool", ["s"], ["p"], {}),
        ("Flatten", ["p"], ["f"], {"axis": -3}), ("Transpose", ["classes"], ["t"], {"perm": [1, 0]}),
        ("MatMul", ["f", "t"], ["y"], {})]),
}  # fmt: skip


def proto(opset, nodes, batch="N", as_inputs=True, as_nodes=False):
    """A model whose weights are initializers, which old files list as inputs too, or Constant nodes."""
    used = sorted({name for _, inputs, _, _ in nodes for name in inputs} & set(ARRAYS))
    tensors = {name: numpy_helper.from_array(np.asarray(ARRAYS[name]), name) for name in used}
    made = [helper.make_node(kind, inputs, outputs, **more) for kind, inputs, outputs, more in nodes]
    if as_nodes:
        made = [helper.make_node("Constant", [], [n], value=t) for n, t in tensors.items()] + made
    inputs = [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [batch, 3, 12, 12])]
    if as_inputs and not as_nodes:
        inputs += [helper.make_tensor_value_info(n, t.data_type, list(t.dims)) for n, t in tensors.items()]
    end = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    graph = helper.make_graph(made, "zoo", inputs, [end], [] if as_nodes else list(tensors.values()))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=3 if opset < 9 else 8)


def read(path, file):
    path.write_bytes(file.SerializeToString())
    return read_model(path)


def infer(file, x):
    found = {"input": np.float64(x.transpose(0, 2, 3, 1))}
    for node in file.network.nodes.values():
        own = {
            p.role: np.float64(file.weights[p.name]) for p in file.network.parameters.values() if p.layer == node.name
        }
        found[node.name] = node.op.reference_forward([found[name] for name in node.inputs], own)
    return found[file.network.output.name]


@pytest.mark.parametrize("as_nodes", [False, True], ids=["initializers", "constants"])
@pytest.mark.parametrize("name", ZOO)
def test_against_onnxruntime(name, as_nodes, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    onnxruntime.set_default_logger_severity(3)
    opset, nodes = ZOO[name]
    batch = 1 if "CNTK" in name else "N"
    model = proto(opset, nodes, batch, as_nodes=as_nodes)
    x = draw(1 if batch == 1 else 2, 3, 12, 12)
    (expected,) = onnxruntime.InferenceSession(model.SerializeToString()).run(["y"], {"x": x})
    y = infer(read(tmp_path / "zoo.onnx", model), x)
    assert np.allclose(y.reshape(expected.shape), expected, rtol=1e-4, atol=1e-5)


def test_what_opsets_before_7_had(tmp_path):
    """Broadcast by an axis, Reshape, Pad and Upsample by attributes; Concat over channels."""
    model = proto(6, [
        conv("x", "s", "stem", strides=[2, 2]), ("Add", ["s", "n"], ["a"], {"broadcast": 1, "axis": 1}),
        ("Pad", ["a"], ["q"], {"paddings": [0, 0, 1, 0, 0, 0, 0, 1]}), ("Concat", ["q", "q"], ["c"], {}),
        ("Upsample", ["c"], ["u"], {"height_scale": 2.0, "width_scale": 2.0}),
        ("ImageScaler", ["u"], ["v"], {"scale": 2.0, "bias": [1.0] * 16}),
        ("Reshape", ["v"], ["y"], {"shape": [0, -1]})])  # fmt: skip
    x = draw(2, 3, 12, 12)
    y = infer(read(tmp_path / "old.onnx", model), x)
    plain = proto(9, [conv("x", "s", "stem", strides=[2, 2]), ("Flatten", ["s"], ["y"], {})])
    s = infer(read(tmp_path / "plain.onnx", plain), x).reshape(2, 8, 6, 6) + ARRAYS["n"][:, None, None]
    s = np.pad(s, ((0, 0), (0, 0), (1, 0), (0, 1)))
    s = np.concatenate([s, s], 1).repeat(2, 2).repeat(2, 3) * 2 + 1
    assert np.allclose(y, s.reshape(2, -1), rtol=1e-5, atol=1e-5)


def test_pixels_are_scaled_before_channels_are_first(tmp_path):
    """As tf2onnx writes Keras's Rescaling: the input has channels last."""
    model = proto(17, [("Mul", ["x", "grey"], ["m"], {}), ("Sub", ["m", "six"], ["u"], {}),
                       ("Transpose", ["u"], ["t"], {"perm": [0, 3, 1, 2]}),
                       ("GlobalAveragePool", ["t"], ["p"], {}), ("Flatten", ["p"], ["y"], {})])  # fmt: skip
    for dimension, size in zip(model.graph.input[0].type.tensor_type.shape.dim[1:], (5, 4, 3), strict=True):
        dimension.dim_value = size
    file = read(tmp_path / "m.onnx", model)
    assert file.network.input_shape == (5, 4, 3)
    x = draw(2, 3, 5, 4)
    assert np.allclose(infer(file, x), x.mean((2, 3)) * 128 - 6, atol=1e-4)


def test_statistics_of_pixels_are_refused(tmp_path):
    model = proto(7, [STEM, ("BatchNormalization", ["s", *NORM], ["y"], {"spatial": 0})])
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    assert [problem.kind for problem in import_graph(tmp_path / "m.onnx").problems] == ["BatchNormalization"]
    with pytest.raises(UnsupportedError):
        read_model(tmp_path / "m.onnx")
