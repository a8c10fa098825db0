"""Write ONNX files for inference, float32 or int8 (QuantizeLinear and DequantizeLinear). They need the package `onnx`.

Inputs and outputs keep the network's axes, channels last; inside, images have channels first, as ONNX wants.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from edgelearn import atomic
from edgelearn.errors import FormatError
from edgelearn.ops.window import Window

from .exporting import InferenceGraph, Operation, Quantization, Value, inference_graph
from .formats import Written, constant_bytes, to_float16
from .safetensors import ModelFile

OPSET, IR_VERSION = 17, 8
FIRST, LAST = (0, 3, 1, 2), (0, 2, 3, 1)  # channels first from channels last, and back


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
    graph = inference_graph(file.network, file.weights, file.ranges if int8 else None)
    writer = _Writer(graph)
    atomic.write_bytes(path, writer.bytes(file.texts(), float16))
    arrays = map(numpy_helper.to_array, writer.constants.values())
    return Written(constant_bytes(arrays), writer.left() if int8 else {})


class _Writer:
    """Translates a graph. `names` are those of tensors in the file; that of an image has channels first."""

    def __init__(self, graph: InferenceGraph) -> None:
        self.graph = graph
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, onnx.TensorProto] = {}
        self.names: dict[Value, str] = {}
        self.quantizations: dict[Value, Quantization] = {}  # of activations

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
        kind, y = o.kind, o.output.name
        if kind in WRITERS:
            WRITERS[kind](self, o, y)
        elif kind in PLAIN:
            name = kind.title().replace("_", "")
            self.emit(name, [self.name(x) for x in o.inputs], y, **PLAIN[kind](o))
        elif kind in HANDLERS:
            HANDLERS[kind](self, o, y, *map(self.name, o.inputs))
        else:
            raise FormatError(f"ONNX files are not written with '{kind}' (layer '{y}').")

    def left(self) -> dict[str, str]:
        """Layers whose outputs aren't quantized, and why."""
        quantized = {o.inputs[0] for o in self.graph.operations if o.kind == "quantize"}
        operations = [o for o in self.graph.operations if o.kind != "quantize" and o.output not in quantized]
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

    def name(self, value: Value) -> str:
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

    def numbers(self, name: str, values: Any) -> str:
        """A constant of int64."""
        return self.constant(name, np.array(values, np.int64))

    def transposed(self, name: str, output: str, order: Sequence[int]) -> str:
        return self.emit("Transpose", [name], output, perm=order)

    def decoded(self, name: str, q: Quantization) -> str:
        """A DequantizeLinear of `name`."""
        return self.emit("DequantizeLinear", [name, *self.parameters(name, q)], f"{name}/decoded", **_axis(q))

    def parameters(self, name: str, q: Quantization, dtype: type = np.int8) -> list[str]:
        """Scale and zero point."""
        zero = np.full(np.shape(q.scale), q.zero, dtype)
        return [self.constant(f"{name}/scale", q.scale), self.constant(f"{name}/zero", zero)]

    def kernel(self, value: Value, order: Sequence[int]) -> str:
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

    def bias(self, o: Operation) -> list[str]:
        """The bias, if there is one; int32 where input and kernel are quantized."""
        if len(o.inputs) < 3:
            return []
        bias, x, kernel = o.inputs[2], self.quantizations.get(o.inputs[0]), o.inputs[1].quantization
        assert bias.array is not None
        if x is None or kernel is None:
            return [self.name(bias)]
        scale = x.scale.astype(np.float64) * kernel.scale
        integers = self.constant(bias.name, np.int32(np.rint(bias.array / scale)))
        parameters = self.parameters(bias.name, Quantization(scale.astype(np.float32)), np.int32)
        return [self.emit("DequantizeLinear", [integers, *parameters], f"{bias.name}/decoded", axis=0)]

    def activated(self, o: Operation, op: str, inputs: Sequence[str], **attributes: Any) -> None:
        """A node, and its rectifier, which runtimes leave out where int8 saturates at the same value."""
        output, activation = o.output.name, o.attributes["activation"]
        if activation is None:
            self.emit(op, inputs, output, **attributes)
            return
        before = self.emit(op, inputs, f"{output}/before {activation}", **attributes)
        self.rectified(activation, before, output)

    def rectified(self, kind: str, x: str, y: str) -> None:
        if kind == "relu":
            self.emit("Relu", [x], y)
        else:
            limits = [self.constant(f"{y}/{end}", np.float32(value)) for end, value in (("low", 0), ("high", 6))]
            self.emit("Clip", [x, *limits], y)


def is_image(value: Value) -> bool:
    return len(value.shape) == 4


def _described(name: str, value: Value) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["batch", *value.shape[1:]])


def _axis(q: Quantization) -> dict[str, int]:
    return {} if q.axis is None else {"axis": q.axis}


def _onnx_axis(value: Value, axis: int) -> int:
    """The axis of the value's tensor."""
    return FIRST.index(axis) if is_image(value) else axis


def _by_axis(value: Value, numbers: Sequence[Any]) -> list[Any]:
    """Numbers by axis, in the order of the value's tensor."""
    return [numbers[axis] for axis in FIRST] if is_image(value) else list(numbers)


def _window(window: Window) -> dict[str, Any]:
    (top, bottom), (left, right) = window.padding
    return {"kernel_shape": window.kernel, "strides": window.strides, "pads": (top, left, bottom, right)}


def _conv(w: _Writer, o: Operation, y: str) -> None:
    window: Window = o.attributes["window"]
    x, kernel = o.inputs[:2]
    groups = x.shape[-1] if o.kind == "depthwise" else o.attributes["groups"]
    order = (3, 2, 0, 1)  # to (filters, input channels, height, width)
    w.activated(o, "Conv", [w.name(x), w.kernel(kernel, order), *w.bias(o)], group=groups, dilations=window.dilation,
                **_window(window))  # fmt: skip


def _transposed_conv(w: _Writer, o: Operation, y: str) -> None:
    (x, kernel), window = o.inputs, o.attributes["window"]
    begins = [side[0] for side in window.padding]
    ends = [
        (x.shape[1 + axis] - 1) * window.strides[axis] + kernel.shape[axis] - begins[axis] - o.output.shape[1 + axis]
        for axis in (0, 1)
    ]
    w.emit("ConvTranspose", [w.name(x), w.kernel(kernel, (2, 3, 0, 1))], y, strides=window.strides,
           kernel_shape=kernel.shape[:2], pads=(*begins, *(max(end, 0) for end in ends)),
           output_padding=[max(-end, 0) for end in ends])  # fmt: skip


def _dense(w: _Writer, o: Operation, y: str) -> None:
    x, kernel = o.inputs[:2]
    if len(x.shape) == 2:
        w.activated(o, "Gemm", [w.name(x), w.kernel(kernel, (0, 1)), *w.bias(o)])
        return
    last = w.transposed(w.name(x), f"{y}/channels last", LAST) if is_image(x) else w.name(x)
    found = w.emit("MatMul", [last, w.kernel(kernel, (0, 1))], f"{y}/product")
    for bias in w.bias(o):
        found = w.emit("Add", [found, bias], f"{y}/sum")
    if is_image(x):
        found = w.transposed(found, f"{y}/channels first", FIRST)
    w.activated(o, "Identity", [found])


def _binary(op: str) -> Callable[[_Writer, Operation, str], Any]:
    def write(w: _Writer, o: Operation, y: str) -> None:
        names, rank = [], len(o.output.shape)
        for x in o.inputs:  # constants with fewer axes are broadcast along the last ones
            if x.array is not None and rank == 4 and 0 < x.array.ndim < 4:
                array = x.array.reshape((1,) * (4 - x.array.ndim) + x.array.shape).transpose(FIRST)
                names.append(w.constant(x.name, array))
            else:
                names.append(w.name(x))
        w.emit(op, names, y)

    return write


def _quantize(w: _Writer, o: Operation, y: str) -> None:
    q: Quantization = o.attributes["quantization"]
    encoded = w.emit("QuantizeLinear", [w.name(o.inputs[0]), *w.parameters(y, q)], y)
    w.names[o.output] = w.decoded(encoded, q)
    w.quantizations[o.output] = q


def _resize(w: _Writer, o: Operation, y: str, x: str) -> None:
    """To sizes, of which the batch is the input's."""
    interpolation, coordinates, rounding = o.attributes["how"]
    _, height, width, channels = o.output.shape
    batch = w.emit("Shape", [x], f"{y}/batch", start=0, end=1)
    sizes = w.emit("Concat", [batch, w.numbers(f"{y}/rest", [channels, height, width])], f"{y}/sizes", axis=0)
    mode = {"mode": "nearest", "nearest_mode": rounding} if interpolation == "nearest" else {"mode": "linear"}
    w.emit("Resize", [x, "", "", sizes], y, coordinate_transformation_mode=coordinates, **mode)


def _gelu(w: _Writer, o: Operation, y: str, x: str) -> None:
    """x / 2 (1 + erf(x / sqrt 2))"""
    number = {n: w.constant(f"{y}/{n}", np.float32(v)) for n, v in (("root", 0.5**0.5), ("one", 1), ("half", 0.5))}
    erf = w.emit("Erf", [w.emit("Mul", [x, number["root"]], f"{y}/scaled")], f"{y}/erf")
    share = w.emit("Mul", [w.emit("Add", [erf, number["one"]], f"{y}/sum"), number["half"]], f"{y}/share")
    w.emit("Mul", [x, share], y)


def _comparison(w: _Writer, o: Operation, y: str, *x: str) -> None:
    truth = w.emit(o.kind.capitalize(), x, f"{y}/truth")
    w.emit("Cast", [truth], y, to=onnx.TensorProto.FLOAT)


def _where(w: _Writer, o: Operation, y: str, condition: str, *choices: str) -> None:
    truth = w.emit("Cast", [condition], f"{y}/truth", to=onnx.TensorProto.BOOL)
    w.emit("Where", [truth, *choices], y)


def _broadcast_to(w: _Writer, o: Operation, y: str, x: str) -> None:
    """The batch's size of 1 is repeated to that of the input."""
    w.emit("Expand", [x, w.numbers(f"{y}/shape", _by_axis(o.output, o.output.shape))], y)


def _local_response(w: _Writer, o: Operation, y: str, x: str) -> None:
    size, factor, beta, bias = (o.attributes[name] for name in ("size", "factor", "beta", "bias"))
    w.emit("LRN", [x], y, size=size, alpha=factor * size, beta=beta, bias=bias)


def _matmul(w: _Writer, o: Operation, y: str, *x: str) -> None:
    """Images have rows and columns at the end for that."""
    if not is_image(o.output):
        w.emit("MatMul", x, y)
        return
    last = [w.transposed(name, f"{y}/channels last {place}", LAST) for place, name in enumerate(x)]
    w.transposed(w.emit("MatMul", last, f"{y}/product"), y, FIRST)


def _pad(w: _Writer, o: Operation, y: str, x: str) -> None:
    if (mode := o.attributes["mode"]) == "symmetric":
        raise FormatError(f"ONNX has no symmetric padding (layer '{y}'). Export to TFLite instead.")
    sides = w.numbers(f"{y}/sides", np.transpose(_by_axis(o.output, o.attributes["sides"])).ravel())
    w.emit("Pad", [x, sides, w.constant(f"{y}/value", np.float32(o.attributes["value"]))], y, mode=mode)


def _reduce(w: _Writer, o: Operation, y: str, x: str) -> None:
    (value,), keep, axes = o.inputs, o.attributes["keep"], o.attributes["axes"]
    if is_image(value) and not keep:  # what is left must have channels last
        x = w.transposed(x, f"{y}/channels last", LAST)
    elif is_image(value):
        axes = [_onnx_axis(value, axis) for axis in axes]
    if o.kind == "reduce_sum":
        w.emit("ReduceSum", [x, w.numbers(f"{y}/axes", axes)], y, keepdims=int(keep))
    else:
        w.emit("ReduceMean" if o.kind == "reduce_mean" else "ReduceMax", [x], y, axes=axes, keepdims=int(keep))


def _reshape(w: _Writer, o: Operation, y: str, x: str) -> None:
    x = w.transposed(x, f"{y}/channels last", LAST) if is_image(o.inputs[0]) else x
    shape, image = w.numbers(f"{y}/shape", (-1, *o.output.shape[1:])), is_image(o.output)
    found = w.emit("Reshape", [x, shape], f"{y}/reshaped" if image else y)
    if image:
        w.transposed(found, y, FIRST)


def _slice(w: _Writer, o: Operation, y: str, x: str) -> None:
    axes = [_onnx_axis(o.output, axis) for axis in range(1, len(o.output.shape))]
    numbers = {**o.attributes, "axes": axes}
    w.emit("Slice", [x, *(w.numbers(f"{y}/{what}", numbers[what]) for what in ("starts", "ends", "axes", "steps"))], y)


def _last(o: Operation) -> dict[str, Any]:
    return {"axis": 1 if is_image(o.output) else -1}


def _order(o: Operation) -> dict[str, Any]:
    order = o.attributes["order"]
    return {"perm": [FIRST.index(order[axis]) for axis in FIRST] if is_image(o.inputs[0]) else order}


# Kinds that are the operator of the same name, such as HardSwish, and its attributes.
PLAIN: dict[str, Callable[[Operation], Mapping[str, Any]]] = {
    "softmax": _last, "log_softmax": _last, "transpose": _order,
    "max_pool": lambda o: _window(o.attributes["window"]), "average_pool": lambda o: _window(o.attributes["window"]),
    **dict.fromkeys(("relu", "sigmoid", "tanh", "exp", "log", "sqrt", "abs", "neg", "round", "erf", "elu", "hard_swish",
                     "leaky_relu"), lambda o: o.attributes),
}  # fmt: skip
# Kinds of several operators, of the names of their inputs.
HANDLERS: dict[str, Callable[..., Any]] = {
    "relu6": lambda w, o, y, x: w.rectified("relu6", x, y),
    "rsqrt": lambda w, o, y, x: w.emit("Reciprocal", [w.emit("Sqrt", [x], f"{y}/root")], y),
    "broadcast_to": _broadcast_to, "local_response": _local_response,
    "concatenate": lambda w, o, y, *x: w.emit("Concat", x, y, axis=_onnx_axis(o.output, o.attributes["axis"])),
    "gelu": _gelu, "pad": _pad, "resize": _resize, "greater": _comparison, "less": _comparison, "where": _where,
    "matmul": _matmul, "reduce_sum": _reduce, "reduce_mean": _reduce, "reduce_max": _reduce, "reshape": _reshape,
    "slice": _slice,
}  # fmt: skip
# Kinds that write their constants themselves.
WRITERS: dict[str, Callable[[_Writer, Operation, str], Any]] = {
    "conv": _conv, "depthwise": _conv, "dense": _dense, "transposed_conv": _transposed_conv, "quantize": _quantize,
    "add": _binary("Add"), "sub": _binary("Sub"), "mul": _binary("Mul"), "div": _binary("Div"),
    "maximum": _binary("Max"), "minimum": _binary("Min"), "prelu": _binary("PRelu"),
}  # fmt: skip
