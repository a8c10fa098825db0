"""ONNX files against onnxruntime: operators, graphs as public models spell them, and damaged or hostile files."""

import json

import numpy as np
import pytest
from imported import channels_last, infer

import edgelearn as el
from edgelearn.errors import FormatError, UnsupportedError
from edgelearn.interop import find_format, import_graph, read_model
from edgelearn.interop.read_onnx import HANDLERS

onnx = pytest.importorskip("onnx")
helper, numpy_helper = onnx.helper, onnx.numpy_helper

RNG = np.random.default_rng(7)
IMAGE = (2, 6, 9, 7)


def draw(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def model(nodes, constants=None, shape=IMAGE, opset=17, outputs=("y",), batch="N", style=""):
    """A model from "x" to `outputs`; a node is (kind, inputs, outputs, attributes).

    `style`: weights are initializers, which old files list as "inputs", too, or are "constants" among the nodes.
    """
    stored = [numpy_helper.from_array(np.asarray(array), name) for name, array in (constants or {}).items()]
    made = [helper.make_node(kind, inputs, out, name=f"{kind}_{n}", **attributes)
            for n, (kind, inputs, out, attributes) in enumerate(nodes)]  # fmt: skip
    info = [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [batch, *shape[1:]])]
    if style == "inputs":
        info += [helper.make_tensor_value_info(t.name, t.data_type, list(t.dims)) for t in stored]
    if style == "constants":
        made, stored = [helper.make_node("Constant", [], [t.name], value=t) for t in stored] + made, []
    ends = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in outputs]
    graph = helper.make_graph(made, "small", info, ends, stored)
    ir_version = 3 if style == "inputs" and opset < 9 else 8
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version)


def save(tmp_path, proto, name="model.onnx"):
    path = tmp_path / name
    path.write_bytes(proto.SerializeToString())
    return path


SMALL = {"k3": draw(6, 6, 3, 3), "dw": draw(6, 1, 3, 3), "b": draw(6), "one": np.float32(1), "per": draw(6, 1, 1)}
CASES = {
    "conv": [("Conv", ["x", "k3", "b"], ["y"], {"pads": [1, 1, 1, 1], "strides": [2, 1]})],
    "conv auto_pad": [("Conv", ["x", "k3"], ["y"], {"auto_pad": "SAME_UPPER", "strides": [2, 2]})],
    "conv dilated": [("Conv", ["x", "k3"], ["y"], {"dilations": [2, 2], "pads": [2, 1, 2, 3]})],
    "least": [("ReduceMin", ["x"], ["y"], {"axes": [2, 3], "keepdims": 0})],
    "length": [("ReduceL2", ["x"], ["y"], {"axes": [1]})],
    "squares": [("ReduceSumSquare", ["x"], ["a"], {"axes": [3]}), ("ReduceL1", ["a"], ["y"], {"axes": [1]})],
    "depthwise": [("Conv", ["x", "dw"], ["y"], {"group": 6, "pads": [1, 1, 1, 1]})],
    "grouped": [("Conv", ["x", "kg"], ["y"], {"group": 3})],
    "pad and conv": [("Pad", ["x", "pads"], ["p"], {}), ("Conv", ["p", "k3"], ["y"], {})],
    "max pool": [("MaxPool", ["x"], ["y"], {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]})],
    "max pool ceil": [("MaxPool", ["x"], ["y"], {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1})],
    "average pool": [("AveragePool", ["x"], ["y"], {"kernel_shape": [2, 3], "strides": [2, 2], "pads": [0, 1, 0, 1]})],
    "average with padding": [("AveragePool", ["x"], ["y"], {"kernel_shape": [3, 3], "strides": [2, 2],
                                                            "pads": [1, 1, 1, 1], "count_include_pad": 1})],
    "average of the whole image": [("AveragePool", ["x"], ["y"], {"kernel_shape": [9, 7]})],
    "global average": [("GlobalAveragePool", ["x"], ["y"], {})],
    "global maximum": [("GlobalMaxPool", ["x"], ["y"], {})],
    "mean over height": [("ReduceMean", ["x"], ["y"], {"axes": [2], "keepdims": 1})],
    "mean over channels": [("ReduceMean", ["x"], ["y"], {"axes": [1], "keepdims": 0})],
    "maximum over width": [("ReduceMax", ["x"], ["y"], {"axes": [-1], "keepdims": 1})],
    "batch normalization": [("BatchNormalization", ["x", "b", "b", "b", "var"], ["y"], {"epsilon": 1e-3})],
    "layer normalization": [("LayerNormalization", ["x", "last", "last"], ["y"], {"axis": -1})],
    "layer normalization of images": [("LayerNormalization", ["x", "whole", "whole"], ["y"], {"axis": 1})],
    "normalization of channels last": [("Transpose", ["x"], ["t"], {"perm": [0, 2, 3, 1]}),
                                       ("LayerNormalization", ["t", "b", "b"], ["l"], {}),
                                       ("Transpose", ["l"], ["y"], {"perm": [0, 3, 1, 2]})],
    "instance normalization": [("InstanceNormalization", ["x", "b", "b"], ["y"], {})],
    "split normalization": [("Mul", ["x", "per"], ["m"], {}), ("Add", ["m", "per"], ["y"], {})],
    "numbers in a row": [("Mul", ["x", "half"], ["m"], {}), ("Add", ["m", "three"], ["a"], {}),
                         ("Relu", ["a"], ["r"], {}), ("Mul", ["r", "six"], ["s"], {}),
                         ("Mul", ["s", "half"], ["y"], {})],
    "flatten and gemm": [("Flatten", ["x"], ["f"], {}), ("Gemm", ["f", "mat", "b"], ["y"], {"transB": 1})],
    "reshape and matmul": [("Reshape", ["x", "flat"], ["f"], {}), ("MatMul", ["f", "mat2"], ["z"], {}),
                           ("Add", ["z", "b"], ["y"], {})],
    "relu6": [("Clip", ["x", "zero", "six"], ["y"], {})],
    "clip": [("Clip", ["x", "zero", "one"], ["y"], {})],
    "leaky": [("LeakyRelu", ["x"], ["y"], {"alpha": 0.1})],
    "elu": [("Elu", ["x"], ["y"], {})],
    "sigmoid": [("Sigmoid", ["x"], ["y"], {})],
    "hard sigmoid": [("HardSigmoid", ["x"], ["y"], {})],
    "tanh": [("Tanh", ["x"], ["y"], {})],
    "hard swish": [("HardSwish", ["x"], ["y"], {})],
    "softmax": [("Flatten", ["x"], ["f"], {}), ("Softmax", ["f"], ["y"], {})],
    "softmax over channels": [("Softmax", ["x"], ["y"], {"axis": 1})],
    "silu in parts": [("Sigmoid", ["x"], ["s"], {}), ("Mul", ["x", "s"], ["y"], {})],
    "hard swish in parts": [("Add", ["x", "three"], ["a"], {}), ("Clip", ["a", "zero", "six"], ["c6"], {}),
                            ("Mul", ["x", "c6"], ["m"], {}), ("Div", ["m", "six"], ["y"], {})],
    "hard swish by a gate": [("Add", ["x", "three"], ["a"], {}), ("Clip", ["a", "zero", "six"], ["c6"], {}),
                             ("Div", ["c6", "six"], ["g"], {}), ("Mul", ["g", "x"], ["y"], {})],
    "sum with itself": [("Relu", ["x"], ["r"], {}), ("Add", ["r", "x"], ["y"], {})],
    "difference": [("Relu", ["x"], ["r"], {}), ("Sub", ["r", "x"], ["y"], {})],
    "squeeze and excite": [("GlobalAveragePool", ["x"], ["p"], {}), ("Conv", ["p", "k1", "b"], ["e"], {}),
                           ("HardSigmoid", ["e"], ["g"], {"alpha": 1 / 6}), ("Mul", ["x", "g"], ["y"], {})],
    "concatenate": [("Relu", ["x"], ["r"], {}), ("Concat", ["x", "r"], ["y"], {"axis": 1})],
    "concatenate rows": [("Relu", ["x"], ["r"], {}), ("Concat", ["x", "r"], ["y"], {"axis": 2})],
    "split": [("Split", ["x"], ["s", "t"], {"axis": 1}), ("Relu", ["s"], ["r"], {}),
              ("Concat", ["t", "r"], ["y"], {"axis": 1})],
    "slice": [("Slice", ["x", "start", "end", "axes", "steps"], ["y"], {})],
    "shuffle": [("Reshape", ["x", "groups"], ["s"], {}), ("Transpose", ["s"], ["t"], {"perm": [0, 2, 1, 3, 4]}),
                ("Reshape", ["t", "image"], ["u"], {}), ("Split", ["u"], ["v", "w"], {"axis": 1}),
                ("Conv", ["v", "k13"], ["a"], {}), ("Concat", ["a", "w"], ["y"], {"axis": 1})],
    "position": [("Add", ["x", "place"], ["y"], {})],
    "row factors": [("Mul", ["x", "rows"], ["y"], {})],
    "quotient": [("Sigmoid", ["x"], ["s"], {}), ("Div", ["x", "s"], ["y"], {})],
    "prelu": [("PRelu", ["x", "per"], ["y"], {})],
    "transposed": [("ConvTranspose", ["x", "k3", "b"], ["y"], {"strides": [2, 2], "pads": [1, 1, 1, 1],
                                                               "output_padding": [1, 0]})],
    "transposed in groups": [("ConvTranspose", ["x", "kg"], ["y"], {"strides": [2, 1], "group": 3})],
    "nearest": [("Resize", ["x", "", "scales"], ["y"], {"coordinate_transformation_mode": "asymmetric",
                                                       "nearest_mode": "floor"})],
    "bilinear": [("Resize", ["x", "", "", "sizes"], ["y"], {"mode": "linear"})],
    "align corners": [("Resize", ["x", "", "", "sizes"], ["y"], {"mode": "linear",
                                                               "coordinate_transformation_mode": "align_corners"})],
    "shape arithmetic": [("Shape", ["x"], ["s"], {}), ("Gather", ["s", "nought"], ["n"], {"axis": 0}),
                         ("Unsqueeze", ["n", "front"], ["n1"], {}), ("Concat", ["n1", "rest"], ["t"], {"axis": 0}),
                         ("Reshape", ["x", "t"], ["y"], {})],
    "to a sequence": [("Reshape", ["x", "tokens"], ["s"], {}), ("Transpose", ["s"], ["t"], {"perm": [0, 2, 1]}),
                      ("MatMul", ["t", "k66"], ["u"], {}), ("Add", ["u", "b"], ["y"], {})],
    "reflected": [("Pad", ["x", "pads"], ["y"], {"mode": "reflect"})],
    "space to depth": [("Slice", ["x", "noughts", "even", "axes23"], ["e"], {}),
                       ("SpaceToDepth", ["e"], ["y"], {"blocksize": 2})],
    "gelu by erf": [("Div", ["x", "root"], ["d"], {}), ("Erf", ["d"], ["e"], {}), ("Add", ["e", "one"], ["a"], {}),
                    ("Mul", ["x", "a"], ["m"], {}), ("Mul", ["m", "half"], ["y"], {})],
    "gelu of halves": [("Mul", ["half", "x"], ["h"], {}), ("Mul", ["x", "inverse"], ["d"], {}),
                       ("Erf", ["d"], ["e"], {}), ("Add", ["one", "e"], ["a"], {}), ("Mul", ["a", "h"], ["y"], {})],
    "local response": [("LRN", ["x"], ["y"], {"size": 3, "alpha": 0.3, "beta": 0.6, "bias": 1.5})],
    "unit length": [("LpNormalization", ["x"], ["y"], {"axis": 1, "p": 2})],
    "unit length of features": [("Flatten", ["x"], ["f"], {}), ("LpNormalization", ["f"], ["y"], {"axis": 1})],
    "log softmax": [("Flatten", ["x"], ["f"], {}), ("LogSoftmax", ["f"], ["y"], {})],
    "log softmax of large logits": [("Mul", ["x", "thousand"], ["m"], {}), ("Flatten", ["m"], ["f"], {}),
                                    ("LogSoftmax", ["f"], ["y"], {})],
    "logarithm of a softmax": [("Mul", ["x", "thousand"], ["m"], {}), ("LogSoftmax", ["m"], ["y"], {"axis": 1})],
    "unit length as the old exporter of PyTorch writes it": [
        ("Flatten", ["x"], ["f"], {}), ("ReduceL2", ["f"], ["n"], {"axes": [1], "keepdims": 1}),
        ("Clip", ["n", "small", ""], ["c"], {}), ("Shape", ["f"], ["s"], {}), ("Expand", ["c", "s"], ["e"], {}),
        ("Div", ["f", "e"], ["y"], {})],
    "unit length of pixels": [
        ("ReduceL2", ["x"], ["n"], {"axes": [1], "keepdims": 1}), ("Clip", ["n", "small", ""], ["c"], {}),
        ("Shape", ["x"], ["s"], {}), ("Expand", ["c", "s"], ["e"], {}), ("Div", ["x", "e"], ["y"], {})],
    "unit length as the new exporter of PyTorch writes it": [
        ("Shape", ["x"], ["n"], {"start": 0, "end": 1}), ("Flatten", ["x"], ["f"], {}),
        ("ReduceL2", ["f"], ["l"], {"axes": [1], "keepdims": 1}), ("Clip", ["l", "small"], ["c"], {}),
        ("Concat", ["n", "features"], ["s"], {"axis": 0}), ("Expand", ["c", "s"], ["e"], {}),
        ("Div", ["f", "e"], ["y"], {})],
    "expand": [("GlobalAveragePool", ["x"], ["p"], {}), ("Expand", ["p", "larger"], ["e"], {}),
               ("Relu", ["e"], ["y"], {})],
    "expand in the middle": [("ReduceMean", ["x"], ["m"], {"axes": [2]}), ("Expand", ["m", "larger"], ["y"], {})],
    "a constant that is larger": [("GlobalAveragePool", ["x"], ["p"], {}), ("Add", ["p", "place"], ["a"], {}),
                                  ("Mul", ["a", "place"], ["y"], {})],
    "attention": [("Reshape", ["x", "tokens"], ["s"], {}), ("Transpose", ["s"], ["t"], {"perm": [0, 2, 1]}),
                  ("MatMul", ["t", "s"], ["a"], {}), ("Softmax", ["a"], ["b2"], {"axis": -1}),
                  ("MatMul", ["b2", "t"], ["y"], {})],
    "attention of heads": [
        ("Reshape", ["x", "tokens"], ["s"], {}), ("Reshape", ["s", "heads"], ["h"], {}),
        ("Transpose", ["h"], ["k"], {"perm": [0, 1, 3, 2]}), ("MatMul", ["k", "h"], ["a"], {}),
        ("Where", ["mask", "a", "lowest"], ["w"], {}), ("Softmax", ["w"], ["p"], {"axis": -1}),
        ("MatMul", ["h", "p"], ["o"], {}), ("Reshape", ["o", "tokens"], ["y"], {})],
    "products of images": [("Transpose", ["x"], ["t"], {"perm": [0, 1, 3, 2]}), ("MatMul", ["x", "t"], ["y"], {})],
    "a product that repeats a factor": [("ReduceMean", ["x"], ["m"], {"axes": [1]}),
                                        ("Transpose", ["m"], ["t"], {"perm": [0, 1, 3, 2]}),
                                        ("MatMul", ["x", "t"], ["y"], {})],
    "a constant times a value": [("MatMul", ["left", "x"], ["m"], {}), ("MatMul", ["m", "right"], ["y"], {})],
    "a gemm of a constant and a value": [("Flatten", ["x"], ["f"], {}),
                                         ("Gemm", ["mat", "f", "b1"], ["g"], {"transB": 1, "alpha": 0.5}),
                                         ("Transpose", ["g"], ["y"], {})],
    "comparisons": [("Greater", ["x", "half"], ["g"], {}), ("Less", ["x", "place"], ["l"], {}),
                    ("And", ["g", "l"], ["a"], {}), ("Not", ["a"], ["n"], {}), ("Cast", ["n"], ["y"], {"to": 1})],
    "more comparisons": [("Relu", ["x"], ["r"], {}), ("Equal", ["x", "r"], ["e"], {}),
                         ("LessOrEqual", ["x", "half"], ["l"], {}), ("GreaterOrEqual", ["x", "per"], ["g"], {}),
                         ("Or", ["e", "g"], ["o"], {}), ("And", ["o", "l"], ["a"], {}),
                         ("Cast", ["a"], ["y"], {"to": 1})],
    "where": [("Relu", ["x"], ["r"], {}), ("Greater", ["x", "half"], ["g"], {}),
              ("Where", ["g", "r", "per"], ["y"], {})],
    "where a number isn't 0": [("Relu", ["x"], ["r"], {}), ("Cast", ["r"], ["c"], {"to": 9}),
                               ("Where", ["c", "rows", "x"], ["y"], {})],
    "gather a list": [("Gather", ["x", "list"], ["g"], {"axis": 1}), ("Gather", ["g", "row"], ["y"], {"axis": 2})],
    "gather with repetition": [("Gather", ["x", "numbers"], ["y"], {"axis": 3})],
    "a constant beside a value": [("Concat", ["x", "place"], ["y"], {"axis": 2})],
    "the larger of many numbers": [("Max", ["x", "place"], ["m"], {}), ("Min", ["m", "per"], ["y"], {})],
    "padded by the edge": [("Pad", ["x", "pads"], ["y"], {"mode": "edge"})],
    "extremes": [("Relu", ["x"], ["r"], {}), ("Max", ["x", "r"], ["m"], {}), ("Min", ["m", "three"], ["y"], {})],
    "selu and softsign": [("Selu", ["x"], ["s"], {}), ("Softsign", ["s"], ["y"], {})],
    "auto_pad to the front": [("Conv", ["x", "k3"], ["c"], {"auto_pad": "SAME_LOWER", "strides": [2, 2]}),
                              ("MaxPool", ["c"], ["y"], {"auto_pad": "SAME_LOWER", "kernel_shape": [2, 2]})],
    "lstm in both directions": [
        ("ReduceMean", ["x"], ["m"], {"axes": [2], "keepdims": 0}), ("Transpose", ["m"], ["t"], {"perm": [1, 0, 2]}),
        ("LSTM", ["t", "w4", "r4", "b4"], ["h"], {"hidden_size": 5, "direction": "bidirectional"}),
        ("Transpose", ["h"], ["u"], {"perm": [2, 0, 1, 3]}), ("Flatten", ["u"], ["y"], {})],
    "gru backwards": [
        ("ReduceMean", ["x"], ["m"], {"axes": [3], "keepdims": 0}), ("Transpose", ["m"], ["t"], {"perm": [1, 0, 2]}),
        ("GRU", ["t", "w3", "r3", "b3"], ["h", "end_h"],
         {"hidden_size": 4, "direction": "reverse", "linear_before_reset": 1}),
        ("Transpose", ["end_h"], ["u"], {"perm": [1, 0, 2]}), ("Flatten", ["u"], ["y"], {})],
    "quantized weights": [("DequantizeLinear", ["q", "qs", "qz"], ["k"], {"axis": 0}),
                          ("Conv", ["x", "k"], ["y"], {})],
}  # fmt: skip
CONSTANTS = SMALL | {
    "kg": draw(6, 2, 3, 3), "k1": draw(6, 6, 1, 1), "k13": draw(3, 3, 1, 1), "k66": draw(6, 6), "var": abs(draw(6)) + 1,
    "mat": draw(6, 378), "mat2": draw(378, 6), "flat": np.array([0, -1]), "tokens": np.array([0, 6, -1]),
    "root": np.float32(2**0.5), "inverse": np.float32(0.5**0.5), "half": np.float32(0.5),
    "zero": np.float32(0), "six": np.float32(6), "three": np.float32(3),
    "start": np.array([5, 0]), "end": np.array([1, 9]), "axes": np.array([1, 2]), "steps": np.array([-2, 3]),
    "noughts": np.array([0, 0]), "even": np.array([8, 6]), "axes23": np.array([2, 3]),
    "groups": np.array([0, 2, 3, 9, 7]), "image": np.array([0, -1, 9, 7]), "pads": np.array([0, 0, 1, 2, 0, 0, 1, 0]),
    "place": draw(1, 6, 9, 7), "rows": draw(9, 1), "scales": np.float32([1, 1, 2, 2]),
    "last": draw(7), "whole": draw(6, 9, 7), "sizes": np.array([2, 6, 13, 10]), "nought": np.array(0),
    "step": np.float32(6 / 255),
    "thousand": np.float32(1000), "small": np.float32(1e-12), "larger": np.array([1, 6, 9, 7]),
    "heads": np.array([0, 2, 3, 63]), "mask": RNG.random((63, 63)) > 0.3, "lowest": np.float32(-np.inf),
    "least": np.uint8(0),
    "w4": draw(2, 20, 7), "r4": draw(2, 20, 5), "b4": draw(2, 40), "w3": draw(1, 12, 9), "r3": draw(1, 12, 4),
    "b3": draw(1, 24),
    "left": draw(4, 9), "right": draw(1, 6, 7, 5), "b1": draw(6, 1), "list": np.array([4, 0, 3]),
    "row": np.array([[1, 7], [-1, 2]]), "features": np.array([378]),
    "numbers": np.array([3, 3, 0]), "front": np.array([0]), "rest": np.array([-1, 7]),
    "q": RNG.integers(-127, 128, (6, 6, 3, 3)).astype(np.int8), "qs": abs(draw(6)) / 50, "qz": np.zeros(6, np.int8),
}  # fmt: skip


def check(nodes, tmp_path, shape=IMAGE, opset=17, batch="N", atol=1e-5, constants=CONSTANTS, style=""):
    """The imported network against onnxruntime. Returns its ops' names."""
    onnxruntime = pytest.importorskip("onnxruntime")
    onnxruntime.set_default_logger_severity(3)
    used = {name for _, inputs, _, _ in nodes for name in inputs}
    arrays = {name: array for name, array in constants.items() if name in used}
    proto = model(nodes, arrays, shape, opset, batch=batch, style=style)
    x = draw(*shape)
    (expected,) = onnxruntime.InferenceSession(proto.SerializeToString()).run(["y"], {"x": x})
    file = read_model(save(tmp_path, proto))
    found, expected = infer(file, channels_last(x)), channels_last(expected)
    assert np.allclose(found.reshape(expected.shape), expected, rtol=1e-4, atol=atol)
    return [type(node.op).__name__ for node in file.network.nodes.values()]


@pytest.mark.parametrize("case", CASES)
def test_against_onnxruntime(case, tmp_path):
    fixed = {"to a sequence", "shape arithmetic", "attention", "attention of heads", "a constant beside a value"}
    shape = (1, *IMAGE[1:]) if case in fixed else IMAGE
    opset = 14 if case == "hard swish" else 13 if "Split" in str(CASES[case]) else 17
    check(CASES[case], tmp_path, shape, opset, batch=1 if case in fixed else "N")


@pytest.mark.parametrize("computed", (True, False), ids=("a value", "a table"))
def test_gather_by_computed_numbers(computed, tmp_path):
    """Numbers are an input; a constant becomes an Embedding."""
    onnxruntime = pytest.importorskip("onnxruntime")
    table, numbers = draw(5, 3), np.array([[2, 0, 1, 1]], np.int64)
    nodes = [helper.make_node("Relu", ["x"], ["r"]), helper.make_node("Cast", ["n"], ["c"], to=7)]
    nodes.append(helper.make_node("Gather", ["r" if computed else "t", "c"], ["g"], axis=int(computed)))
    nodes.append(helper.make_node("Neg", ["g"], ["y"]))
    kinds = {"x": (onnx.TensorProto.FLOAT, (1, 5, 3)), "n": (onnx.TensorProto.INT32, (1, 4))}
    infos = [helper.make_tensor_value_info(name, *kind) for name, kind in kinds.items()]
    end = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "taken", infos, [end], [numpy_helper.from_array(table, "t")])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    x = draw(1, 5, 3)
    given = {"x": x, "n": numbers.astype(np.int32)}
    (expected,) = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, given)
    if not computed:
        del infos[0], nodes[0]
        graph = helper.make_graph(nodes, "taken", infos, [end], [numpy_helper.from_array(table, "t")])
        proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    model = el.load(save(tmp_path, proto))
    found = model.predict(given if computed else numbers)
    assert np.allclose(found.reshape(expected.shape), expected, atol=1e-6)
    assert ("Take" if computed else "Embedding") in {type(node.op).__name__ for node in model.network.nodes.values()}


@pytest.mark.parametrize(
    "case,kinds",
    {
        "pad and conv": ["Conv2D"],
        "split normalization": ["Scale", "Bias"],
        "numbers in a row": ["Rescaling", "ReLU", "Rescaling"],
        "split": ["SliceChannels", "SliceChannels", "ReLU", "Concatenate"],
        "reshape and matmul": ["Reshape", "Dense"],
        "silu in parts": ["SiLU"],
        "hard swish in parts": ["HardSwish"],
        "hard swish by a gate": ["HardSwish"],
        "relu6": ["ReLU"],
        "gelu by erf": ["GELU"],
        "gelu of halves": ["GELU"],
        "unit length of pixels": ["Square", "Sum", "Sqrt", "Clip", "Divide"],
    }.items(),
)
def test_patterns_become_one_layer(case, kinds, tmp_path):
    assert check(CASES[case], tmp_path) == kinds


def test_a_range_of_integers_that_stands_for_a_relu6(tmp_path):
    """onnxruntime's quantizer leaves activations out whose limits are the ends of the integers."""
    nodes = [("Conv", ["x", "k3", "b"], ["c"], {}), ("QuantizeLinear", ["c", "step", "least"], ["i"], {}),
             ("DequantizeLinear", ["i", "step", "least"], ["y"], {})]  # fmt: skip
    assert check(nodes, tmp_path, atol=3.01 / 255) == ["Conv2D", "ReLU"]


@pytest.mark.parametrize("kind", (["LogSoftmax"], ["Softmax", "Log"]), ids="-".join)
@pytest.mark.parametrize("opset", (11, 17))
def test_the_logarithm_of_a_softmax_is_finite(kind, opset, tmp_path):
    """Probabilities below 1e-38 are 0 in float32; gradients of their logarithms were NaN."""
    names = ["g", *(["a"] if len(kind) > 1 else []), "y"]
    nodes = [("Flatten", ["x"], ["f"], {}), ("Gemm", ["f", "mat", "b"], ["g"], {"transB": 1})]
    nodes += [(op, [names[n]], [names[n + 1]], {}) for n, op in enumerate(kind)]
    proto = model(nodes, {"mat": 100 * CONSTANTS["mat"], "b": SMALL["b"]}, opset=opset)
    loaded = el.load(save(tmp_path, proto))
    x = draw(8, 9, 7, 6)
    found = loaded.predict(x)
    assert found.min() < -500 and np.isfinite(found).all()
    assert np.allclose(found, infer(loaded, x), rtol=1e-4, atol=1e-2)
    loaded.compile(el.SGD(1e-4), el.losses.MeanSquaredError())
    gradients = loaded.gradients(x, np.zeros((8, 6)))
    assert all(np.isfinite(array).all() for array in gradients.values())


@pytest.mark.parametrize(
    "opset,nodes",
    [
        (7, [("Dropout", ["x"], ["d"], {"ratio": 0.5}),
             ("BatchNormalization", ["d", "b", "b", "b", "var"], ["y"], {})]),
        (9, [("Clip", ["x"], ["c"], {"min": 0.0, "max": 6.0}),
             ("Pad", ["c"], ["y"], {"pads": [0, 0, 1, 1, 0, 0, 1, 1]})]),
        (9, [("Slice", ["x"], ["s"], {"axes": [2], "starts": [1], "ends": [8]}), ("Flatten", ["s"], ["y"], {})]),
        (11, [("Split", ["x"], ["s", "t"], {"axis": 1, "split": [2, 4]}), ("Relu", ["t"], ["y"], {})]),
        (11, [("ReduceMean", ["x"], ["m"], {"axes": [2, 3]}), ("Squeeze", ["m"], ["f"], {"axes": [2, 3]}),
              ("Softmax", ["f"], ["y"], {"axis": 1})]),
    ],
)  # fmt: skip
def test_older_opsets(opset, nodes, tmp_path):
    check(nodes, tmp_path, opset=opset)


NORM = ["g", "n", "n", "var"]
ZOO_ARRAYS = {
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
    pads = [1, 1, 1, 1] if ZOO_ARRAYS[kernel].shape[-1] == 3 else [0, 0, 0, 0]
    return ("Conv", [x, kernel], [y], {"kernel_shape": ZOO_ARRAYS[kernel].shape[2:], "pads": pads, **more})


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


@pytest.mark.parametrize("style", ["inputs", "constants"])
@pytest.mark.parametrize("name", ZOO)
def test_graphs_as_public_models_spell_them(name, style, tmp_path):
    """Old opsets, constants in odd places, open batches."""
    opset, nodes = ZOO[name]
    batch = 1 if "CNTK" in name else "N"
    check(nodes, tmp_path, (1 if batch == 1 else 2, 3, 12, 12), opset, batch, 1e-5, ZOO_ARRAYS, style)


def zoo(tmp_path, opset, nodes):
    """The file of a graph."""
    used = {name for _, inputs, _, _ in nodes for name in inputs} & set(ZOO_ARRAYS)
    return save(tmp_path, model(nodes, {name: ZOO_ARRAYS[name] for name in sorted(used)}, (1, 3, 12, 12), opset))


def test_what_opsets_before_7_had(tmp_path):
    """Broadcast by an axis, Reshape, Pad and Upsample by attributes; Concat over channels."""
    path = zoo(tmp_path, 6, [
        conv("x", "s", "stem", strides=[2, 2]), ("Add", ["s", "n"], ["a"], {"broadcast": 1, "axis": 1}),
        ("Pad", ["a"], ["q"], {"paddings": [0, 0, 1, 0, 0, 0, 0, 1]}), ("Concat", ["q", "q"], ["c"], {}),
        ("Upsample", ["c"], ["u"], {"height_scale": 2.0, "width_scale": 2.0}),
        ("ImageScaler", ["u"], ["v"], {"scale": 2.0, "bias": [1.0] * 16}),
        ("Reshape", ["v"], ["y"], {"shape": [0, -1]})])  # fmt: skip
    x = draw(2, 3, 12, 12)
    y = infer(read_model(path), channels_last(x))
    plain = zoo(tmp_path, 9, [conv("x", "s", "stem", strides=[2, 2]), ("Flatten", ["s"], ["y"], {})])
    s = infer(read_model(plain), channels_last(x)).reshape(2, 8, 6, 6) + ZOO_ARRAYS["n"][:, None, None]
    s = np.pad(s, ((0, 0), (0, 0), (1, 0), (0, 1)))
    s = np.concatenate([s, s], 1).repeat(2, 2).repeat(2, 3) * 2 + 1
    assert np.allclose(y, s.reshape(2, -1), rtol=1e-5, atol=1e-5)


def test_pixels_are_scaled_before_channels_are_first(tmp_path):
    """As tf2onnx writes Keras's Rescaling: the input has channels last."""
    nodes = [("Mul", ["x", "grey"], ["m"], {}), ("Sub", ["m", "six"], ["u"], {}),
             ("Transpose", ["u"], ["t"], {"perm": [0, 3, 1, 2]}), ("GlobalAveragePool", ["t"], ["p"], {}),
             ("Flatten", ["p"], ["y"], {})]  # fmt: skip
    file = read_model(save(tmp_path, model(nodes, {n: ZOO_ARRAYS[n] for n in ("grey", "six")}, (1, 5, 4, 3))))
    assert file.network.input_shape == (5, 4, 3)
    x = draw(2, 3, 5, 4)
    assert np.allclose(infer(file, channels_last(x)), x.mean((2, 3)) * 128 - 6, atol=1e-4)


def test_statistics_of_pixels_are_refused(tmp_path):
    path = zoo(tmp_path, 7, [STEM, ("BatchNormalization", ["s", *NORM], ["y"], {"spatial": 0})])
    assert [problem.kind for problem in import_graph(path).problems] == ["BatchNormalization"]
    with pytest.raises(UnsupportedError):
        read_model(path)


SEQUENCES = {
    "convolutions": [("Relu", ["x"], ["r"], {}), ("Conv", ["r", "k", "b"], ["c"], {"pads": [1, 1]}),
                     ("MaxPool", ["c"], ["y"], {"kernel_shape": [2], "strides": [2]})],
    "to features": [("Conv", ["x", "k"], ["c"], {}), ("GlobalAveragePool", ["c"], ["p"], {}),
                    ("Flatten", ["p"], ["y"], {})],
    "flat": [("BatchNormalization", ["x", "n", "n", "n", "v"], ["c"], {}), ("Flatten", ["c"], ["y"], {})],
    "shape of the new exporter": [("Shape", ["x"], ["s"], {"start": 0, "end": 1}), ("Conv", ["x", "k"], ["c"], {}),
                                  ("Concat", ["s", "rest"], ["t"], {"axis": 0}), ("Reshape", ["c", "t"], ["y"], {})],
    "last already": [("Transpose", ["x"], ["t"], {"perm": [0, 2, 1]}), ("Conv", ["t", "kt"], ["y"], {})],
    "tokens": [("MatMul", ["x", "m"], ["y"], {})],
}  # fmt: skip


@pytest.mark.parametrize("case", SEQUENCES)
def test_sequences_have_channels_last(case, tmp_path):
    """Those that convolutions read as (n, channels, length); others stay as they are."""
    onnxruntime = pytest.importorskip("onnxruntime")
    arrays = {"k": draw(5, 4, 3), "kt": draw(5, 9, 3), "b": draw(5), "m": draw(9, 2), "n": draw(4),
              "v": abs(draw(4)) + 1, "rest": np.array([-1])}  # fmt: skip
    used = {name for _, inputs, _, _ in SEQUENCES[case] for name in inputs}
    batch = 1 if "Shape" in str(SEQUENCES[case]) else 2
    proto = model(SEQUENCES[case], {n: a for n, a in arrays.items() if n in used}, (batch, 4, 9), batch=batch)
    x = draw(batch, 4, 9)
    (expected,) = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, {"x": x})
    loaded = el.load(save(tmp_path, proto))
    turned = case not in ("last already", "tokens")
    assert loaded.network.input_shape == ((9, 4) if turned else (4, 9))
    found = loaded.predict(x.transpose(0, 2, 1) if turned else x, batch_size=batch)
    expected = expected.transpose(0, 2, 1) if case in ("convolutions", "last already") else expected
    notes = el.inspect(tmp_path / "model.onnx").notes
    assert any("(length, channels)" in note for note in notes) == turned
    assert found.shape == expected.shape and np.allclose(found, expected, atol=1e-5)


def test_a_file_knows_its_classes_and_preprocessing(tmp_path):
    proto = model(CASES["flatten and gemm"], {"mat": CONSTANTS["mat"], "b": SMALL["b"]})
    names = [f"class {n}" for n in range(6)]
    helper.set_model_props(proto, {"class_names": json.dumps(names), "preprocessing": '{"scale": 2}', "author": "me"})
    path = save(tmp_path, proto)
    assert find_format(path).name == "ONNX"
    file = read_model(path)
    assert file.class_names == tuple(names)
    assert file.preprocessing == {"scale": 2}
    assert file.metadata["author"] == "me"
    assert np.array_equal(file.weights["Gemm_1/bias"], SMALL["b"])
    assert "Gemm_1/kernel" not in read_model(path, skip=("Gemm_1",)).weights


def test_inputs_that_nothing_reads_are_left_out_and_named(tmp_path):
    """tf2onnx declares constants that it has folded as inputs."""
    proto = model([("Relu", ["x"], ["y"], {})])
    proto.graph.input.append(helper.make_tensor_value_info("mean", onnx.TensorProto.FLOAT, [1, 1, 1, 3]))
    file = read_model(save(tmp_path, proto))
    assert list(file.network.inputs) == ["input"]
    assert "mean" in file.metadata.values()


def test_an_open_size_asks_for_the_shape(tmp_path):
    proto = model([("GlobalAveragePool", ["x"], ["y"], {})], shape=(1, 3, "height", "width"))
    path = save(tmp_path, proto)
    with pytest.raises(FormatError, match="input_shape"):
        read_model(path)
    assert read_model(path, input_shape=(4, 5, 3)).network.input_shape == (4, 5, 3)
    report = el.inspect(path)
    assert report.inputs == {"input": (96, 96, 3)} and "'x' open" in report.notes[0] and "96" in report.notes[0]
    assert not any("open" in note for note in el.inspect(path, input_shape=(4, 5, 3)).notes)


def test_all_unsupported_operators_at_once(tmp_path):
    nodes = [("Relu", ["x"], ["a"], {}), ("RNN", ["a", "b", "b"], ["h"], {"hidden_size": 4}),
             ("NonMaxSuppression", ["a", "a"], ["z"], {}), ("TopK", ["z", "one"], ["y", "i"], {"axis": 0})]  # fmt: skip
    translation = import_graph(save(tmp_path, model(nodes, SMALL, outputs=("h", "y"))))
    assert [problem.kind for problem in translation.problems] == ["RNN", "NonMaxSuppression", "TopK"]
    assert translation.problems[0].attributes["hidden_size"] == 4
    with pytest.raises(UnsupportedError, match="TopK"):
        translation.model_file()
    cut = read_model(save(tmp_path, model(nodes, SMALL)), outputs=("a",))
    assert list(cut.network.nodes) == ["Relu_0"]


def test_external_data_stays_in_its_folder(tmp_path):
    kernel = draw(6, 6, 3, 3)
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "weights.bin").write_bytes(b"1234" + kernel.tobytes())
    (tmp_path / "secret.bin").write_bytes(kernel.tobytes())

    def path(location, **more):
        proto = model([("Conv", ["x", "k"], ["y"], {})], {"k": kernel})
        tensor = proto.graph.initializer[0]
        tensor.ClearField("raw_data")
        tensor.data_location = onnx.TensorProto.EXTERNAL
        for key, value in {"location": location, **more}.items():
            tensor.external_data.add(key=key, value=str(value))
        return save(tmp_path / "inside", proto)

    file = read_model(path("weights.bin", offset=4, length=kernel.nbytes))
    assert np.array_equal(file.weights["Conv_0/kernel"], kernel.transpose(2, 3, 1, 0))
    (tmp_path / "inside" / "link.bin").symlink_to(tmp_path / "secret.bin")
    for location, more in [
        ("../secret.bin", {}), (str(tmp_path / "secret.bin"), {}), ("link.bin", {}), ("missing.bin", {}),
        ("weights.bin", {"offset": 8}), ("weights.bin", {"offset": -4}), ("weights.bin", {"length": 1 << 40}),
        ("weights.bin", {"offset": "many"}),
    ]:  # fmt: skip
        with pytest.raises(FormatError, match=r"model\.onnx"):
            read_model(path(location, **more))


def test_damaged_files(tmp_path):
    proto = model(CASES["conv"], {"k3": SMALL["k3"], "b": SMALL["b"]})
    data = proto.SerializeToString()
    proto.graph.initializer[0].dims[0] = 1 << 40
    hostile = proto.SerializeToString()
    for content in (data[:-500], data[: len(data) // 2], hostile):
        (tmp_path / "cut.onnx").write_bytes(content)
        with pytest.raises(FormatError):
            read_model(tmp_path / "cut.onnx")
    big = model([("ConstantOfShape", ["s"], ["c"], {}), ("Add", ["x", "c"], ["y"], {})], {"s": np.array([1 << 40])})
    with pytest.raises(FormatError, match="constant"):
        read_model(save(tmp_path, big))


def test_handlers_are_functions_of_operators():
    schemas = {schema.name for schema in onnx.defs.get_all_schemas()}
    assert set(HANDLERS) - schemas == {"ImageScaler"}, "an experiment of early exporters, which never had a schema"


@pytest.mark.parametrize("kind", ["stored", "scaled", "ConstantOfShape", "Expand"])
def test_dense_layers_of_more_than_4_million_values(tmp_path, kind, monkeypatch):
    """As AlexNet and VGG have them; light versions of the zoo's files compute the kernel from its shape."""
    sizes = np.array([1100, 4096])
    nodes, constants = [("Gemm", ["x", "k"], ["y"], {})], {"n": sizes, "two": np.float32([2])}
    if kind in ("stored", "scaled"):
        constants["k" if kind == "stored" else "w"] = np.full(sizes, 0.5, np.float32)
    made = {"stored": [], "scaled": [("Mul", ["w", "two"], ["k"], {})], "Expand": [("Expand", ["two", "n"], ["k"], {})],
            "ConstantOfShape": [("ConstantOfShape", ["n"], ["k"], {})]}[kind]  # fmt: skip
    path = save(tmp_path, model([*made, *nodes], constants, shape=(1, 1100)))
    (kernel,) = read_model(path).weights.values()
    assert kernel.size == 4_505_600 and kernel[0, 0] == {"stored": 0.5, "scaled": 1, "Expand": 2}.get(kind, 0)
    if kind in ("ConstantOfShape", "Expand"):
        monkeypatch.setenv("EDGELEARN_CONSTANT_BYTES", "10000000")
        with pytest.raises(FormatError, match=r"18,022,400 bytes.*EDGELEARN_CONSTANT_BYTES"):
            read_model(path)


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        ([("Conv", ["x", "k3", "wrong"], ["y"], {})], r"Conv_0.*its bias has shape \(5,\), expected \(6,\)"),
        ([("Flatten", ["x"], ["f"], {}), ("MatMul", ["f", "square"], ["y"], {})], r"378.*\(6, 6\)"),
    ],
)
def test_weights_of_other_shapes_are_named(nodes, words, tmp_path):
    arrays = {"wrong": draw(5), "square": draw(6, 6), "k3": SMALL["k3"]}
    with pytest.raises((FormatError, UnsupportedError), match=words):
        read_model(save(tmp_path, model(nodes, arrays)))


def test_names_that_are_no_text(tmp_path):
    """protobuf gives the bytes of a name that isn't UTF-8."""
    data = model([("Relu", ["x"], ["y"], {})]).SerializeToString().replace(b"\n\x01x\x12\x01y", b"\n\x01\xff\x12\x01y")
    (tmp_path / "model.onnx").write_bytes(data)
    with pytest.raises(FormatError, match=r"damaged|isn't an input"):
        read_model(tmp_path / "model.onnx")
