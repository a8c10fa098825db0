"""Write ONNX files for inference, float32 or int8 (QuantizeLinear and DequantizeLinear). They need the package `onnx`.

Operators have the names, inputs and attributes of the table by which `read_onnx` reads them. Inputs and outputs keep
the network's axes, channels last; inside, images have channels first, as ONNX wants.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from edgelearn import atomic
from edgelearn.errors import FormatError

from . import read_onnx
from .exporting import GraphTensor, InferenceGraph, Operation, Quantization, inference_graph
from .formats import Written, constant_bytes, to_float16
from .forms import Form, arguments, as_file, by_meaning
from .safetensors import ModelFile

OPSET, IR_VERSION = 17, 8
FIRST, LAST = (0, 3, 1, 2), (0, 2, 3, 1)  # channels first from channels last, and back
LATER = {"Gelu", "Mish", "Swish"}  # operators of later opsets
# Meanings that work on the last axes, or on a row of all values: images get channels last for them, and first again.
CHANNELS_LAST = {"dense", "gather", "matmul", "reshape"}
BROADCAST = {"add", "sub", "mul", "div", "maximum", "minimum", "prelu"}  # of constants with fewer axes, too


def write(path: str | Path, file: ModelFile, int8: bool = False, float16: bool = False) -> Written:
    """Write the model for inference.

    Arguments:
    - `path`: the file to write.
    - `file`: the model; class names and preprocessing become metadata, as JSON.
    - `int8`: quantize what has ranges in `file.ranges`; inputs and outputs stay float32 (default False).
    - `float16`: store weights in float16; each is followed by a Cast, and is computed with in float32 (default False).

    Raises FormatError for an op without a counterpart, missing ranges or a weight that float16 can't hold, RunError if
    the file can't be written.
    """
    known = operators()
    ranges = file.ranges if int8 else None
    graph = inference_graph(file.network, file.weights, ranges, lambda op: type(op).__name__ in known)
    writer = _Writer(graph, known)
    atomic.write_bytes(path, writer.bytes(file.texts(), float16))
    arrays = map(numpy_helper.to_array, writer.constants.values())
    return Written(constant_bytes(arrays), writer.left() if int8 else {})


def operators() -> dict[str, Form]:
    """ONNX's operators by what they mean."""
    found = by_meaning({kind: form for kind, form in read_onnx.HANDLERS.items() if kind not in LATER})
    axes_apart = {name: replace(found[name], inputs=("x",)) for name in ("mean", "largest")}  # an attribute before 18
    return found | axes_apart | {"depthwise": found["conv"]}


class _Writer:
    """Translates a graph by a table of operators. `names` are those of tensors in the file; that of an image has
    channels first."""

    def __init__(self, graph: InferenceGraph, known: Mapping[str, Form]) -> None:
        self.graph, self.known = graph, known
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, onnx.TensorProto] = {}
        self.names: dict[GraphTensor, str] = {}
        self.quantizations: dict[GraphTensor, Quantization] = {}  # of activations

    def bytes(self, metadata: dict[str, str], float16: bool = False) -> bytes:
        """Return the file; see `write`."""
        inputs, outputs = self.graph.inputs, self.graph.outputs
        for name, value in inputs.items():
            self.names[value] = self.transposed(name, f"{name}/channels first", FIRST) if is_image(value) else name
        for operation in self.graph.operations:
            self.write(operation)
        for name, value in outputs.items():
            if is_image(value):
                self.transposed(self.name(value), name, LAST)
            else:
                self.emit("Identity", [self.name(value)], name)
        if float16:
            self._halve()
        graph = helper.make_graph(
            self.nodes, self.graph.name, [_described(*pair) for pair in inputs.items()],
            [_described(*pair) for pair in outputs.items()], list(self.constants.values()),
        )  # fmt: skip
        model = helper.make_model(
            graph, producer_name="edgelearn", ir_version=IR_VERSION, opset_imports=[helper.make_opsetid("", OPSET)]
        )
        helper.set_model_props(model, metadata)
        return model.SerializeToString()

    def write(self, o: Operation) -> None:
        if o.kind in HANDLERS:
            HANDLERS[o.kind](self, o, o.output.name, self.name(o.inputs[0]))
        elif o.kind in self.known:
            self.by_table(o)
        else:
            raise FormatError(f"ONNX files are not written with '{o.kind}' (layer '{o.output.name}').")

    def by_table(self, o: Operation, **changes: Any) -> None:
        """Write an operation as the operator that is read as its meaning. `changes`: settings instead of its own."""
        form = self.known[o.kind]
        settings = {name: value for name, value in {**o.attributes, **changes}.items() if name != "activation"}
        is_last = o.kind in CHANNELS_LAST or not settings.get("keepdims", True)
        if is_image(o.output) and not is_last:
            settings = {name: LAYOUT[name](value) if name in LAYOUT else value for name, value in settings.items()}
        inputs, attributes = form.written(arguments(o.kind, o.inputs) | settings)
        names = [self.input(o, name, axes, x, is_last) for name, axes, x in inputs]
        self.ended(o, form.kind, names, is_last, **attributes)

    def input(self, o: Operation, name: str, axes: str, x: Any, is_last: bool = False) -> str:
        """The name of an operator's input: a value, a constant with its axes in the file's order, or a setting."""
        place = f"{o.output.name}/{name}"
        if not isinstance(x, GraphTensor):
            array = np.asarray(x).T.ravel() if np.ndim(x) == 2 else np.asarray(x)
            return self.constant(place, array.astype(np.float32 if array.dtype.kind == "f" else np.int64))
        if x.array is None:
            turned = is_last and is_image(x)
            return self.transposed(self.name(x), f"{place} channels last", LAST) if turned else self.name(x)
        if name == "bias":
            return self.bias(o, x)
        if axes or x.quantization is not None:
            return self.kernel(x, as_file(axes) if axes else range(x.array.ndim))
        if o.kind in BROADCAST and is_image(o.output) and 0 < x.array.ndim < 4:
            return self.constant(x.name, x.array.reshape((1,) * (4 - x.array.ndim) + x.array.shape).transpose(FIRST))
        return self.name(x)

    def ended(self, o: Operation, op: str, inputs: Sequence[str], is_last: bool = False, **attributes: Any) -> None:
        """A node, channels first again after one with channels last, and the operation's activation, which runtimes
        leave out where int8 saturates at the same value."""
        y, activation, turned = o.output.name, o.attributes.get("activation"), is_last and is_image(o.output)
        before = f"{y}/before {activation}" if activation else y
        found = self.emit(op, inputs, f"{y}/channels last" if turned else before, **attributes)
        if turned:
            found = self.transposed(found, before, FIRST)
        if activation == "ReLU":
            self.emit("Relu", [found], y)
        elif activation:
            self.clipped(found, y)

    def left(self) -> dict[str, str]:
        """Layers whose outputs aren't quantized, and why."""
        quantized = {o.inputs[0] for o in self.graph.operations if o.kind == "quantize"}
        floats = [o for o in self.graph.operations if o.kind != "quantize" and o.output.dtype == "float32"]
        operations = [o for o in floats if o.output not in quantized]
        return {o.output.name.rpartition("/")[0]: "no range of its output is known" for o in operations}

    def _halve(self) -> None:
        """Store weights in float16, each with a Cast in front that makes float32 of it."""
        casts = []
        for name, tensor in list(self.constants.items()):
            if tensor.data_type == onnx.TensorProto.FLOAT and prod(tensor.dims) > 1:
                del self.constants[name]
                half = self.constant(f"{name}/float16", to_float16(name, numpy_helper.to_array(tensor)))
                casts.append(helper.make_node("Cast", [half], [name], f"cast {name}", to=onnx.TensorProto.FLOAT))
        self.nodes = [*casts, *self.nodes]

    def name(self, value: GraphTensor) -> str:
        """The name of a value's tensor; constants are written when they are first needed."""
        if value.array is not None and value not in self.names:
            array = value.array.transpose(FIRST) if value.array.ndim == 4 else value.array
            self.names[value] = self.constant(value.name, array)
        return self.names.get(value, value.name)

    def constant(self, name: str, array: Any) -> str:
        self.constants[name] = numpy_helper.from_array(np.array(array, order="C"), name)
        return name

    def emit(self, op: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(op, list(inputs), [output], f"node {len(self.nodes)}", **attributes))
        return output

    def transposed(self, name: str, output: str, order: Sequence[int]) -> str:
        return self.emit("Transpose", [name], output, perm=order)

    def decoded(self, name: str, q: Quantization) -> str:
        """A DequantizeLinear of `name`."""
        return self.emit("DequantizeLinear", [name, *self.parameters(name, q)], f"{name}/decoded", **_axis(q))

    def parameters(self, name: str, q: Quantization, dtype: type = np.int8) -> list[str]:
        """Scale and zero point."""
        zero = np.full(np.shape(q.scale), q.zero, dtype)
        return [self.constant(f"{name}/scale", q.scale), self.constant(f"{name}/zero", zero)]

    def kernel(self, value: GraphTensor, order: Sequence[int]) -> str:
        """The constant of a kernel, as integers and their DequantizeLinear if it is quantized."""
        assert value.array is not None
        if value not in self.names:
            name, q = value.name, value.quantization
            if q is None:
                self.names[value] = self.constant(name, value.array.transpose(order))
            else:
                moved = Quantization(q.scale, q.zero, None if q.axis is None else list(order).index(q.axis))
                self.names[value] = self.decoded(self.constant(name, q.encode(value.array).transpose(order)), moved)
        return self.names[value]

    def bias(self, o: Operation, bias: GraphTensor) -> str:
        """A bias, int32 where input and kernel are quantized."""
        x, kernel = self.quantizations.get(o.inputs[0]), o.inputs[1].quantization
        assert bias.array is not None
        if x is None or kernel is None:
            return self.name(bias)
        scale = x.scale.astype(np.float64) * kernel.scale
        integers = self.constant(bias.name, np.int32(np.rint(bias.array / scale)))
        parameters = self.parameters(bias.name, Quantization(scale.astype(np.float32)), np.int32)
        return self.emit("DequantizeLinear", [integers, *parameters], f"{bias.name}/decoded", axis=0)

    def clipped(self, x: str, y: str) -> None:
        """relu6"""
        limits = [self.constant(f"{y}/{end}", np.float32(value)) for end, value in (("low", 0), ("high", 6))]
        self.emit("Clip", [x, *limits], y)


def is_image(value: GraphTensor) -> bool:
    return len(value.shape) == 4


def _described(name: str, value: GraphTensor) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["batch", *value.shape[1:]])


def _axis(q: Quantization) -> dict[str, int]:
    return {} if q.axis is None else {"axis": q.axis}


def _in_order(numbers: Sequence[Any]) -> list[Any]:
    """Numbers by axis, in the order of an image's tensor."""
    return [numbers[axis] for axis in FIRST]


# Settings of axes, for images, whose tensors have channels first
LAYOUT: dict[str, Callable[[Any], Any]] = {
    "axis": lambda axis: FIRST.index(axis % 4),
    "axes": lambda axes: [FIRST.index(axis) for axis in axes],
    "order": lambda order: [FIRST.index(order[axis]) for axis in FIRST],
    "shape": _in_order,
    "sides": _in_order,
}


def _transposed_conv(w: _Writer, o: Operation, y: str, x: str) -> None:
    """The padding is what lies over the output's size, which may be less than none."""
    (image, k), strides = o.inputs, o.attributes["strides"]
    begins = [side[0] for side in o.attributes["padding"]]
    ends = [
        (image.shape[1 + a] - 1) * strides[a] + k.shape[a] - begins[a] - o.output.shape[1 + a] for a in (0, 1)
    ]  # fmt: skip
    padding = tuple((begin, max(end, 0)) for begin, end in zip(begins, ends, strict=True))
    w.by_table(o, padding=padding, output_padding=[max(-end, 0) for end in ends])


def _dense(w: _Writer, o: Operation, y: str, _: str) -> None:
    """A product and a sum; with channels last if there are more axes than two."""
    x, kernel, *bias = o.inputs
    if len(x.shape) == 2:
        w.by_table(o)
        return
    op, inputs = "MatMul", [w.input(o, "x", "", x, True), w.input(o, "kernel", "IO", kernel)]
    for each in bias:
        op, inputs = "Add", [w.emit(op, inputs, f"{y}/product"), w.bias(o, each)]
    w.ended(o, op, inputs, True)


def _quantize(w: _Writer, o: Operation, y: str, x: str) -> None:
    q: Quantization = o.attributes["quantization"]
    encoded = w.emit("QuantizeLinear", [x, *w.parameters(y, q)], y)
    w.names[o.output] = w.decoded(encoded, q)
    w.quantizations[o.output] = q


def _resize(w: _Writer, o: Operation, y: str, x: str) -> None:
    """To sizes, of which the batch is the input's."""
    a, (_, height, width, channels) = o.attributes, o.output.shape
    batch = w.emit("Shape", [x], f"{y}/batch", start=0, end=1)
    sizes = w.emit("Concat", [batch, w.input(o, "rest", "", [channels, height, width])], f"{y}/sizes", axis=0)
    coordinates = "align_corners" if a["align_corners"] else "half_pixel" if a["half_pixel"] else "asymmetric"
    mode: dict[str, str] = {"mode": "linear"}
    if o.kind == "resize_nearest":
        mode = {"mode": "nearest", "nearest_mode": "floor" if coordinates == "asymmetric" else "round_prefer_ceil"}
    w.emit("Resize", [x, "", "", sizes], y, coordinate_transformation_mode=coordinates, **mode)


def _pad(w: _Writer, o: Operation, y: str, x: str) -> None:
    if o.attributes["mode"] == "symmetric":
        raise FormatError(f"ONNX has no symmetric padding (layer '{y}'). Export to TFLite instead.")
    w.by_table(o)


def _gather(w: _Writer, o: Operation, y: str, _: str) -> None:
    """Rows of each example by its own numbers, which are int64 and have one more axis then."""
    x, indices = o.inputs
    if not o.attributes.get("batch_dims"):
        w.by_table(o)
        return
    numbers = w.emit("Cast", [w.name(indices)], f"{y}/int64", to=onnx.TensorProto.INT64)
    numbers = w.emit("Unsqueeze", [numbers, w.input(o, "last axis", "", [2])], f"{y}/numbers")
    w.ended(o, "GatherND", [w.input(o, "x", "", x, True), numbers], True, batch_dims=1)


# Kinds of which ONNX has no operator, or that need more than their names.
HANDLERS: dict[str, Callable[..., Any]] = {
    "Erf": lambda w, o, y, x: w.emit("Erf", [x], y),
    "Rsqrt": lambda w, o, y, x: w.emit("Reciprocal", [w.emit("Sqrt", [x], f"{y}/root")], y),
    "dense": _dense, "gather": _gather, "pad": _pad, "quantize": _quantize, "relu6": lambda w, o, y, x: w.clipped(x, y),
    "local_response": lambda w, o, y, x: w.by_table(
        o, alpha=o.attributes["alpha"] * o.attributes["size"]
    ),
    "resize_bilinear": _resize, "resize_nearest": _resize, "transposed_conv": _transposed_conv,
}  # fmt: skip
