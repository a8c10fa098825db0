"""Write ONNX files for inference, float32 or int8 (QuantizeLinear and DequantizeLinear). They need the package `onnx`.

Inputs and outputs keep the network's axes, channels last; inside, images have channels first, as ONNX wants.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
UNARY = {
    "relu": "Relu", "sigmoid": "Sigmoid", "tanh": "Tanh", "exp": "Exp", "log": "Log", "sqrt": "Sqrt", "abs": "Abs",
    "neg": "Neg", "round": "Round", "erf": "Erf", "elu": "Elu", "hard_swish": "HardSwish", "leaky_relu": "LeakyRelu",
}  # fmt: skip
BINARY = {
    "add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "maximum": "Max", "minimum": "Min", "prelu": "PRelu",
}  # fmt: skip
REDUCE = {"reduce_mean": "ReduceMean", "reduce_max": "ReduceMax"}


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
            if operation.kind not in HANDLERS:
                raise FormatError(
                    f"ONNX files are not written with '{operation.kind}' (layer '{operation.output.name}')."
                )
            HANDLERS[operation.kind](self, operation)
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


def _conv(w: _Writer, o: Operation) -> None:
    window: Window = o.attributes["window"]
    x, kernel = o.inputs[:2]
    groups = x.shape[-1] if o.kind == "depthwise" else o.attributes["groups"]
    order = (3, 2, 0, 1)  # to (filters, input channels, height, width)
    w.activated(o, "Conv", [w.name(x), w.kernel(kernel, order), *w.bias(o)], group=groups, dilations=window.dilation,
                **_window(window))  # fmt: skip


def _transposed_conv(w: _Writer, o: Operation) -> None:
    x, kernel = o.inputs
    window: Window = o.attributes["window"]
    ends, more = [], []
    for axis in (0, 1):
        whole = (x.shape[1 + axis] - 1) * window.strides[axis] + kernel.shape[axis]
        end = whole - window.padding[axis][0] - o.output.shape[1 + axis]
        ends.append(max(end, 0))
        more.append(max(-end, 0))
    begins = [side[0] for side in window.padding]
    w.emit("ConvTranspose", [w.name(x), w.kernel(kernel, (2, 3, 0, 1))], o.output.name, strides=window.strides,
           kernel_shape=kernel.shape[:2], pads=(*begins, *ends), output_padding=more)  # fmt: skip


def _local_response(w: _Writer, o: Operation) -> None:
    size, factor, beta, bias = (o.attributes[name] for name in ("size", "factor", "beta", "bias"))
    w.emit("LRN", [w.name(o.inputs[0])], o.output.name, size=size, alpha=factor * size, beta=beta, bias=bias)


def _resize(w: _Writer, o: Operation) -> None:
    """To sizes, of which the batch is the input's."""
    interpolation, coordinates, rounding = o.attributes["how"]
    x, y = w.name(o.inputs[0]), o.output
    _, height, width, channels = y.shape
    batch = w.emit("Shape", [x], f"{y.name}/batch", start=0, end=1)
    rest = w.constant(f"{y.name}/rest", np.array([channels, height, width], np.int64))
    sizes = w.emit("Concat", [batch, rest], f"{y.name}/sizes", axis=0)
    more = {"nearest_mode": rounding} if interpolation == "nearest" else {}
    mode = "nearest" if interpolation == "nearest" else "linear"
    w.emit("Resize", [x, "", "", sizes], y.name, mode=mode, coordinate_transformation_mode=coordinates, **more)


def _dense(w: _Writer, o: Operation) -> None:
    x, kernel = o.inputs[:2]
    if len(x.shape) == 2:
        w.activated(o, "Gemm", [w.name(x), w.kernel(kernel, (0, 1)), *w.bias(o)])
        return
    last = w.transposed(w.name(x), f"{o.output.name}/channels last", LAST) if is_image(x) else w.name(x)
    y = w.emit("MatMul", [last, w.kernel(kernel, (0, 1))], f"{o.output.name}/product")
    for bias in w.bias(o):
        y = w.emit("Add", [y, bias], f"{o.output.name}/sum")
    if is_image(x):
        y = w.transposed(y, f"{o.output.name}/channels first", FIRST)
    w.activated(o, "Identity", [y])


def _binary(w: _Writer, o: Operation) -> None:
    rank = len(o.output.shape)
    names = []
    for x in o.inputs:  # constants with fewer axes are broadcast along the last ones
        if x.array is not None and rank == 4 and 0 < x.array.ndim < 4:
            array = x.array.reshape((1,) * (4 - x.array.ndim) + x.array.shape).transpose(FIRST)
            names.append(w.constant(x.name, array))
        else:
            names.append(w.name(x))
    w.emit(BINARY[o.kind], names, o.output.name)


def _unary(w: _Writer, o: Operation) -> None:
    w.emit(UNARY[o.kind], [w.name(o.inputs[0])], o.output.name, **o.attributes)


def _gelu(w: _Writer, o: Operation) -> None:
    """x / 2 (1 + erf(x / sqrt 2))"""
    x, y = w.name(o.inputs[0]), o.output.name
    number = {n: w.constant(f"{y}/{n}", np.float32(v)) for n, v in (("root", 0.5**0.5), ("one", 1), ("half", 0.5))}
    erf = w.emit("Erf", [w.emit("Mul", [x, number["root"]], f"{y}/scaled")], f"{y}/erf")
    share = w.emit("Mul", [w.emit("Add", [erf, number["one"]], f"{y}/sum"), number["half"]], f"{y}/share")
    w.emit("Mul", [x, share], y)


def _softmax(w: _Writer, o: Operation) -> None:
    kinds = {"softmax": "Softmax", "log_softmax": "LogSoftmax"}
    w.emit(kinds[o.kind], [w.name(o.inputs[0])], o.output.name, axis=1 if is_image(o.output) else -1)


def _comparison(w: _Writer, o: Operation) -> None:
    truth = w.emit(o.kind.capitalize(), [w.name(x) for x in o.inputs], f"{o.output.name}/truth")
    w.emit("Cast", [truth], o.output.name, to=onnx.TensorProto.FLOAT)


def _where(w: _Writer, o: Operation) -> None:
    condition, *choices = (w.name(x) for x in o.inputs)
    truth = w.emit("Cast", [condition], f"{o.output.name}/truth", to=onnx.TensorProto.BOOL)
    w.emit("Where", [truth, *choices], o.output.name)


def _broadcast_to(w: _Writer, o: Operation) -> None:
    """The batch's size of 1 is repeated to that of the input."""
    shape = w.constant(f"{o.output.name}/shape", np.array(_by_axis(o.output, o.output.shape), np.int64))
    w.emit("Expand", [w.name(o.inputs[0]), shape], o.output.name)


def _matmul(w: _Writer, o: Operation) -> None:
    """Images have rows and columns at the end for that."""
    y, names = o.output.name, [w.name(x) for x in o.inputs]
    if not is_image(o.output):
        w.emit("MatMul", names, y)
        return
    last = [w.transposed(name, f"{y}/channels last {place}", LAST) for place, name in enumerate(names)]
    w.transposed(w.emit("MatMul", last, f"{y}/product"), y, FIRST)


def _pad(w: _Writer, o: Operation) -> None:
    if o.attributes["mode"] == "symmetric":
        raise FormatError(f"ONNX has no symmetric padding (layer '{o.output.name}'). Export to TFLite instead.")
    sides = _by_axis(o.output, o.attributes["sides"])
    pads = [before for before, _ in sides] + [after for _, after in sides]
    name = o.output.name
    sides_name = w.constant(f"{name}/sides", np.array(pads, np.int64))
    value = w.constant(f"{name}/value", np.float32(o.attributes["value"]))
    w.emit("Pad", [w.name(o.inputs[0]), sides_name, value], name, mode=o.attributes["mode"])


def _pool(w: _Writer, o: Operation) -> None:
    w.emit(
        "MaxPool" if o.kind == "max_pool" else "AveragePool",
        [w.name(o.inputs[0])],
        o.output.name,
        **_window(o.attributes["window"]),
    )


def _reduce(w: _Writer, o: Operation) -> None:
    (x,), keep, y = o.inputs, o.attributes["keep"], o.output
    axes = o.attributes["axes"]
    name = w.name(x)
    if is_image(x) and not keep:  # what is left must have channels last
        name = w.transposed(name, f"{y.name}/channels last", LAST)
    elif is_image(x):
        axes = [_onnx_axis(x, axis) for axis in axes]
    if o.kind == "reduce_sum":
        w.emit("ReduceSum", [name, w.constant(f"{y.name}/axes", np.array(axes, np.int64))], y.name, keepdims=int(keep))
    else:
        w.emit(REDUCE[o.kind], [name], y.name, axes=axes, keepdims=int(keep))


def _reshape(w: _Writer, o: Operation) -> None:
    (x,), y = o.inputs, o.output
    name = w.transposed(w.name(x), f"{y.name}/channels last", LAST) if is_image(x) else w.name(x)
    shape = w.constant(f"{y.name}/shape", np.array((-1, *y.shape[1:]), np.int64))
    if is_image(y):
        w.transposed(w.emit("Reshape", [name, shape], f"{y.name}/reshaped"), y.name, FIRST)
    else:
        w.emit("Reshape", [name, shape], y.name)


def _transpose(w: _Writer, o: Operation) -> None:
    (x,), order = o.inputs, o.attributes["order"]
    if is_image(x):
        order = [FIRST.index(order[axis]) for axis in FIRST]
    w.emit("Transpose", [w.name(x)], o.output.name, perm=order)


def _slice(w: _Writer, o: Operation) -> None:
    starts, ends, steps = (o.attributes[name] for name in ("starts", "ends", "steps"))
    axes = [_onnx_axis(o.output, axis) for axis in range(1, len(starts) + 1)]
    name = o.output.name
    numbers = {"starts": starts, "ends": ends, "axes": axes, "steps": steps}
    inputs = [w.constant(f"{name}/{what}", np.array(values, np.int64)) for what, values in numbers.items()]
    w.emit("Slice", [w.name(o.inputs[0]), *inputs], name)


def _quantize(w: _Writer, o: Operation) -> None:
    q: Quantization = o.attributes["quantization"]
    name = o.output.name
    encoded = w.emit("QuantizeLinear", [w.name(o.inputs[0]), *w.parameters(name, q)], name)
    w.names[o.output] = w.decoded(encoded, q)
    w.quantizations[o.output] = q


HANDLERS: dict[str, Callable[[_Writer, Operation], Any]] = {
    "relu6": lambda w, o: w.rectified("relu6", w.name(o.inputs[0]), o.output.name),
    "rsqrt": lambda w, o: w.emit("Reciprocal", [w.emit("Sqrt", [w.name(o.inputs[0])], f"{o.output.name}/root")],
                                 o.output.name),
    "concatenate": lambda w, o: w.emit("Concat", [w.name(x) for x in o.inputs], o.output.name,
                                       axis=_onnx_axis(o.output, o.attributes["axis"])),
    "conv": _conv, "depthwise": _conv, "dense": _dense, "gelu": _gelu,
    "softmax": _softmax, "log_softmax": _softmax, "pad": _pad, "transposed_conv": _transposed_conv,
    "local_response": _local_response, "resize": _resize, "greater": _comparison, "less": _comparison, "where": _where,
    "broadcast_to": _broadcast_to, "matmul": _matmul, "max_pool": _pool, "average_pool": _pool, "reduce_sum": _reduce,
    "reshape": _reshape, "transpose": _transpose, "slice": _slice, "quantize": _quantize,
    **dict.fromkeys(UNARY, _unary), **dict.fromkeys(BINARY, _binary), **dict.fromkeys(REDUCE, _reduce),
}  # fmt: skip
