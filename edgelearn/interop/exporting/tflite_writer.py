"""Write TFLite files for inference, float32 or int8. They need the packages `tflite` and `flatbuffers`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import tflite

from edgelearn import atomic
from edgelearn.errors import FormatError
from edgelearn.interop.model_file import ModelFile
from edgelearn.interop.writers import Written, constant_bytes, to_float16
from edgelearn.ops.window import Window

from .graph import InferenceGraph, Operation, Quantization, Value
from .inference import inference_graph
from .tflite_file import TfliteTensor, to_bytes
from .tflite_images import local_response, resize, transposed_conv
from .tflite_metadata import NAME, metadata_bytes, with_labels
from .tflite_operators import Operators

ACTIVATIONS = {None: "NONE", "relu": "RELU", "relu6": "RELU6"}
# Operators that compute on int8; those in ALIKE only if input and output have one quantization.
INTEGER = {
    "conv", "depthwise", "dense", "add", "mul", "sub", "reduce_mean", "reduce_sum", "softmax", "log_softmax",
    "sigmoid", "tanh", "hard_swish", "leaky_relu", "elu",
}  # fmt: skip
ALIKE = {
    "max_pool", "average_pool", "reshape", "pad", "slice", "transpose", "concatenate", "relu", "relu6", "reduce_max",
    "maximum", "minimum", "resize",
}  # fmt: skip
LINEAR = {"conv", "depthwise", "dense"}
UNARY = {
    "relu": ("RELU", "", {}), "relu6": ("RELU6", "", {}), "sigmoid": ("LOGISTIC", "", {}), "tanh": ("TANH", "", {}),
    "round": ("ROUND", "", {}), "softmax": ("SOFTMAX", "SoftmaxOptions", {"Beta": 1.0}),
    "log_softmax": ("LOG_SOFTMAX", "LogSoftmaxOptions", {}), "exp": ("EXP", "", {}),
    "rsqrt": ("RSQRT", "", {}), "gelu": ("GELU", "GeluOptions", {}),
    "elu": ("ELU", "", {}), "hard_swish": ("HARD_SWISH", "HardSwishOptions", {}), "log": ("LOG", "", {}),
    "sqrt": ("SQRT", "", {}), "abs": ("ABS", "", {}), "neg": ("NEG", "", {}),
}  # fmt: skip


def write(
    path: str | Path, file: ModelFile, int8: bool = False, float16: bool = False, full_integer: bool = False
) -> Written:
    """Write the model for inference.

    Arguments:
    - `path`: the file to write.
    - `file`: the model; class names and preprocessing become metadata, as JSON and as TFLite's tools have it.
    - `int8`: quantize what has ranges in `file.ranges`; inputs and outputs stay float32 (default False).
    - `full_integer`: as `int8`, with inputs and outputs of int8 and no tensor of floats (default False).
    - `float16`: store weights in float16; each is followed by a DEQUANTIZE, and is computed with in float32 (default
      False).

    Raises FormatError for an op without a counterpart, missing ranges, a weight that float16 can't hold or, for
    `full_integer`, layers that can't be computed with integers; RunError if the file can't be written.
    """
    graph = inference_graph(file.network, file.weights, file.ranges if int8 or full_integer else None)
    writer = _Writer(graph)
    entries = {name: text.encode() for name, text in file.texts().items()}
    entries[NAME] = metadata_bytes(file.network.name, file.preprocessing, file.class_names)
    content = writer.bytes(entries, full_integer, float16)
    atomic.write_bytes(path, with_labels(content, file.class_names))
    return Written(constant_bytes(t.array for t in writer.constants()), writer.left if int8 or full_integer else {})


class _Writer(Operators):
    """Translates a graph. A value has a float32 tensor, an int8 one, or both, made when they are first needed."""

    def __init__(self, graph: InferenceGraph) -> None:
        super().__init__()
        self.graph = graph
        self.floats: dict[Value, TfliteTensor] = {}
        self.integers: dict[Value, TfliteTensor] = {}
        self.readers = Counter(x for o in graph.operations for x in o.inputs) + Counter(graph.outputs.values())
        self.left: dict[str, str] = {}  # layers that are computed in float32, and why
        self.quantized = {o.inputs[0]: o for o in graph.operations if o.kind == "quantize"}

    def bytes(self, metadata: dict[str, bytes], full_integer: bool = False, float16: bool = False) -> bytes:
        """Return the file; see `write`."""
        inputs = {}
        for name, value in self.graph.inputs.items():
            quantize = self.quantized.get(value) if full_integer else None
            inputs[name] = self._activation(value) if quantize is None else self._integer(quantize, value.name)
            if quantize is None:
                self.floats[value] = inputs[name]
        for operation in self.graph.operations:
            self._operation(operation)
        ends = self.graph.outputs.items()
        outputs = {name: self.integers[v] if full_integer and v in self.integers else self.float(v) for name, v in ends}
        if full_integer:
            self._check_integers(inputs | outputs)
        if float16:
            self._halve()
        return to_bytes(self.graph.name, inputs, outputs, self.operators, metadata)

    def constants(self) -> list[TfliteTensor]:
        """Constants of the file."""
        tensors = dict.fromkeys(t for o in self.operators for t in o.inputs if t is not None)
        return [tensor for tensor in tensors if tensor.array is not None]

    def _check_integers(self, ends: dict[str, TfliteTensor]) -> None:
        """Raise FormatError if a tensor is of floats."""
        floats = [name for name, tensor in ends.items() if tensor.dtype == "float32"]
        floats += [t.name for o in self.operators for t in (*o.inputs, o.output) if t and t.dtype == "float32"]
        if floats:
            layers = "; ".join(f"'{layer}' ({reason})" for layer, reason in self.left.items()) or f"'{floats[0]}'"
            raise FormatError(
                f"'{self.graph.name}' can't be written with integers alone. These stay float32: {layers}. Give "
                f"examples for ranges (calibration=x), put other layers there, or write int8=True, which keeps floats."
            )

    def _halve(self) -> None:
        """Store weights in float16, each with an operator in front that makes float32 of it."""
        floats: dict[TfliteTensor, TfliteTensor] = {}
        for tensor in self.constants():
            if (array := tensor.array) is not None and tensor.dtype == "float32" and array.size > 1:
                half = to_float16(tensor.name, array)
                floats[tensor] = TfliteTensor(f"{tensor.name}/float16", tensor.shape, "float16", half)
        made = {old: TfliteTensor(old.name, old.shape) for old in floats}
        operators = [replace(o, inputs=[made.get(t, t) if t else t for t in o.inputs]) for o in self.operators]
        self.operators = []
        for old, half in floats.items():
            self.emit("DEQUANTIZE", [half], made[old], "DequantizeOptions", 3)
        self.operators += operators

    def _operation(self, o: Operation) -> None:
        if o.kind == "quantize":
            if o.output not in self.integers:
                self._requantize(self.float(o.inputs[0]), self._integer(o))
            return
        if o.kind not in HANDLERS:
            raise FormatError(f"TFLite files are not written with '{o.kind}' (layer '{o.output.name}').")
        q = self.quantized.get(o.output)
        reason = self._stays_float(o, q)
        if reason or q is None:
            self.left.setdefault(o.output.name.rpartition("/")[0], reason)
            hybrid = o.kind in LINEAR and o.inputs[1].quantization is not None
            output = self._activation(o.output)
            inputs = [self.integer(x, o) if hybrid and x is o.inputs[1] else self.float(x) for x in o.inputs]
            self.floats[o.output] = output
        else:
            target = self._integer(q)
            inputs = [self.integer(x, o) for x in o.inputs]
            output = target
            if o.kind in ALIKE and len(inputs) == 1:
                output = TfliteTensor(o.output.name, o.output.shape, "int8", None, inputs[0].quantization, True)
            elif o.kind in ALIKE:
                inputs = [self._alike(x, target) for x in inputs]
        HANDLERS[o.kind](self, o, inputs, output)
        if q is not None and output.dtype == "int8" and output is not self.integers[q.output]:
            self._match(output, q.output)

    def _stays_float(self, o: Operation, q: Operation | None) -> str:
        """The reason why an operation isn't computed with integers; empty if it is."""
        constants = [x for x in o.inputs[:2] if x.array is not None]
        if not all(x.array is not None or x in self.integers for x in o.inputs):
            return "its input is float32"
        if o.kind not in INTEGER | ALIKE or any(c.quantization is None for c in constants):
            return f"'{o.kind}' is computed in float32"
        if o.kind == "average_pool" and not _has_name(o.attributes["window"]):
            return "means of padded windows are computed in float32"
        kernel = o.kind in LINEAR and ", with an int8 kernel"
        return f"no range of its output is known{kernel or ''}" if q is None or self.readers[o.output] > 1 else ""

    def _integer(self, o: Operation, name: str = "") -> TfliteTensor:
        q: Quantization = o.attributes["quantization"]
        tensor = TfliteTensor(name or o.output.name, o.output.shape, "int8", None, q, True)
        self.integers[o.output] = tensor
        return tensor

    def _match(self, output: TfliteTensor, value: Value) -> None:
        """The tensor of `value` is `output` if their quantizations are alike, else converted from it."""
        target = self.integers[value]
        assert output.quantization is not None and target.quantization is not None
        if output.quantization.same(target.quantization):
            self.integers[value] = output
        else:
            self._requantize(output, target)

    def _alike(self, x: TfliteTensor, target: TfliteTensor) -> TfliteTensor:
        """`x` in the quantization of `target`."""
        assert x.quantization is not None and target.quantization is not None
        if x.quantization.same(target.quantization):
            return x
        converted = TfliteTensor(f"{x.name}/for {target.name}", x.shape, "int8", None, target.quantization, True)
        self._requantize(x, converted)
        return converted

    def _requantize(self, x: TfliteTensor, y: TfliteTensor) -> None:
        self.emit("QUANTIZE", [x], y, "QuantizeOptions")

    def float(self, value: Value) -> TfliteTensor:
        """The float32 tensor of a value."""
        if value not in self.floats:
            if value.array is not None:
                self.floats[value] = self.constant(value.array, value.name)
            else:
                self.floats[value] = self._activation(value, " as floats")
                self.emit("DEQUANTIZE", [self.integers[value]], self.floats[value], "DequantizeOptions")
        return self.floats[value]

    def integer(self, value: Value, o: Operation) -> TfliteTensor:
        """The integers of a value: int8, or int32 of a bias."""
        if value in self.integers or value.array is None:
            return self.integers[value]
        array, q = value.array, value.quantization
        if q is not None:
            tensor = TfliteTensor(value.name, value.shape, "int8", q.encode(array), q)
        else:
            x, kernel = self.integers[o.inputs[0]].quantization, o.inputs[1].quantization
            assert x is not None and kernel is not None
            scale = x.scale.astype(np.float64) * kernel.scale
            integers, products = np.rint(array / scale).astype(np.int32), Quantization(scale.astype(np.float32), 0, 0)
            tensor = TfliteTensor(value.name, value.shape, "int32", integers, products)
        self.integers[value] = tensor
        return tensor

    @staticmethod
    def _activation(value: Value, ending: str = "") -> TfliteTensor:
        return TfliteTensor(value.name + ending, value.shape, "float32", batched=True)


Handler = Callable[[_Writer, Operation, list[TfliteTensor], TfliteTensor], None]


def _has_name(window: Window) -> bool:
    """True if TFLite has a name for the padding."""
    return window.padding in (((0, 0), (0, 0)), _same(window).padding)


def _same(window: Window) -> Window:
    return Window.of((window.height, window.width, 1), window.kernel, window.strides, "same", window.dilation)


def _window(w: _Writer, o: Operation, x: TfliteTensor, y: TfliteTensor, fill: float = 0.0) -> tuple[TfliteTensor, dict]:
    """The input, padded where TFLite has no name for the padding, and the fields of a window."""
    window: Window = o.attributes["window"]
    valid = window.padding == ((0, 0), (0, 0))
    if not _has_name(window):
        x, valid = w.pad(x, ((0, 0), *window.padding, (0, 0)), fill, f"{y.name}/padded"), True
    padding = tflite.Padding.VALID if valid else tflite.Padding.SAME
    return x, {"Padding": padding, "StrideH": window.strides[0], "StrideW": window.strides[1]}


def _fused(o: Operation) -> dict[str, int]:
    code = ACTIVATIONS[o.attributes.get("activation")]
    return {"FusedActivationFunction": getattr(tflite.ActivationFunctionType, code)}


def _conv(w: _Writer, o: Operation, inputs: list[TfliteTensor], y: TfliteTensor) -> None:
    window: Window = o.attributes["window"]
    x, fields = _window(w, o, inputs[0], y)
    fields |= {"DilationHFactor": window.dilation[0], "DilationWFactor": window.dilation[1], **_fused(o)}
    integers, hybrid = x.dtype == "int8", inputs[1].dtype != x.dtype
    if o.kind == "conv":
        code, options, version = "CONV_2D", "Conv2DOptions", 3 if integers else 5 if hybrid else 1
    else:
        code, options, version = "DEPTHWISE_CONV_2D", "DepthwiseConv2DOptions", 3 if integers else 6 if hybrid else 2
        fields["DepthMultiplier"] = y.shape[-1] // x.shape[-1]
    kernel = w.reordered(inputs[1], (3, 0, 1, 2) if o.kind == "conv" else (2, 0, 1, 3))
    bias = inputs[2] if len(inputs) > 2 else _zeros(w, inputs, y)
    w.emit(code, [x, kernel, bias], y, options, version, **fields)


def _dense(w: _Writer, o: Operation, inputs: list[TfliteTensor], y: TfliteTensor) -> None:
    kernel = w.reordered(inputs[1], (1, 0))
    bias = inputs[2] if len(inputs) > 2 else None
    version = 12 if kernel.dtype == "int8" and kernel.quantization and np.size(kernel.quantization.scale) > 1 else 4
    options = {"KeepNumDims": len(y.shape) > 2, **_fused(o)}
    w.emit("FULLY_CONNECTED", [inputs[0], kernel, bias], y, "FullyConnectedOptions",
           version if kernel.dtype == "int8" else 1, **options)  # fmt: skip


def _zeros(w: _Writer, inputs: list[TfliteTensor], y: TfliteTensor) -> TfliteTensor:
    """A bias of zeros, which convolutions demand."""
    array = np.zeros(y.shape[-1], np.float32)
    if inputs[0].dtype != "int8":
        return w.constant(array, f"{y.name}/bias")
    x, kernel = inputs[0].quantization, inputs[1].quantization
    assert x is not None and kernel is not None
    return TfliteTensor(f"{y.name}/bias", array.shape, "int32", array.astype(np.int32),
                        Quantization(x.scale * kernel.scale, 0, 0))  # fmt: skip


def _max_pool(w: _Writer, o: Operation, inputs: list[TfliteTensor], y: TfliteTensor) -> None:
    x, fields = _window(w, o, inputs[0], y, float(np.finfo(np.float32).min))
    _pool(w, o, "MAX_POOL_2D", x, y, fields)


def _average_pool(w: _Writer, o: Operation, inputs: list[TfliteTensor], y: TfliteTensor) -> None:
    window: Window = o.attributes["window"]
    x, fields = _window(w, o, inputs[0], y)
    if x is inputs[0]:
        _pool(w, o, "AVERAGE_POOL_2D", x, y, fields)
        return
    whole = TfliteTensor(f"{y.name}/padded mean", y.shape, y.dtype, None, y.quantization, True)
    _pool(w, o, "AVERAGE_POOL_2D", x, whole, fields)
    inside = window.pad(np.ones((1, window.height, window.width, 1)))
    pixels = sum(inside[region] for _, _, region in window.slices())
    shares = w.constant(np.float32(window.taps / pixels), f"{y.name}/shares")
    w.emit("MUL", [whole, shares], y, "MulOptions")


def _pool(w: _Writer, o: Operation, code: str, x: TfliteTensor, y: TfliteTensor, fields: dict) -> None:
    height, width = o.attributes["window"].kernel
    version = 2 if x.dtype == "int8" else 1
    w.emit(code, [x], y, "Pool2DOptions", version, FilterHeight=height, FilterWidth=width, **fields)


def _binary(code: str, options: str) -> Handler:
    def handle(w: _Writer, o: Operation, inputs: list[TfliteTensor], y: TfliteTensor) -> None:
        w.emit(code, inputs, y, options, 2 if y.dtype == "int8" else 1)

    return handle


def _unary(w: _Writer, o: Operation, inputs: list[TfliteTensor], y: TfliteTensor) -> None:
    code, options, fields = UNARY[o.kind]
    second = y.dtype == "int8" and o.kind not in ("elu", "hard_swish")  # of which there is one version alone
    w.emit(code, inputs, y, options, 2 if second else 1, **fields)


def _reduce(code: str) -> Handler:
    def handle(w: _Writer, o: Operation, inputs: list[TfliteTensor], y: TfliteTensor) -> None:
        axes = w.numbers(o.attributes["axes"], y, "axes")
        w.emit(code, [inputs[0], axes], y, "ReducerOptions", 2 if y.dtype == "int8" else 1,
               KeepDims=o.attributes["keep"])  # fmt: skip

    return handle


def _reshape(w: _Writer, o: Operation, inputs: list[TfliteTensor], y: TfliteTensor) -> None:
    w.emit("RESHAPE", [inputs[0], w.numbers((-1, *y.shape[1:]), y, "shape")], y, "ReshapeOptions")


def _transpose(w: _Writer, o: Operation, inputs: list[TfliteTensor], y: TfliteTensor) -> None:
    version = 2 if y.dtype == "int8" else 1
    w.emit("TRANSPOSE", [inputs[0], w.numbers(o.attributes["order"], y, "order")], y, "TransposeOptions", version)


def _slice(w: _Writer, o: Operation, inputs: list[TfliteTensor], y: TfliteTensor) -> None:
    starts, ends, steps = (o.attributes[name] for name in ("starts", "ends", "steps"))
    named = {"starts": (0, *starts), "ends": (0, *ends), "steps": (1, *steps)}
    numbers = [w.numbers(values, y, what) for what, values in named.items()]
    w.emit("STRIDED_SLICE", [inputs[0], *numbers], y, "StridedSliceOptions", 2 if y.dtype == "int8" else 1,
           BeginMask=1, EndMask=1)  # fmt: skip


def _concatenate(w: _Writer, o: Operation, inputs: list[TfliteTensor], y: TfliteTensor) -> None:
    w.emit("CONCATENATION", inputs, y, "ConcatenationOptions", 2 if y.dtype == "int8" else 1,
           Axis=o.attributes["axis"])  # fmt: skip


def _pad(w: _Writer, o: Operation, inputs: list[TfliteTensor], y: TfliteTensor) -> None:
    if (mode := o.attributes["mode"]) == "edge":
        raise FormatError(f"TFLite has no padding by the edge (layer '{o.output.name}'). Export to ONNX instead.")
    if mode != "constant":
        sides = w.numbers(o.attributes["sides"], y, "sides")
        w.emit("MIRROR_PAD", [inputs[0], sides], y, "MirrorPadOptions", Mode=int(mode == "symmetric"))
        return
    w.emit_pad(inputs[0], o.attributes["sides"], o.attributes["value"], y)


def _comparison(w: _Writer, o: Operation, inputs: list[TfliteTensor], y: TfliteTensor) -> None:
    truth = TfliteTensor(f"{y.name}/truth", y.shape, "bool", batched=True)
    w.emit(o.kind.upper(), inputs, truth, f"{o.kind.capitalize()}Options")
    w.emit("CAST", [truth], y, "CastOptions", InDataType=tflite.TensorType.BOOL)


def _where(w: _Writer, o: Operation, inputs: list[TfliteTensor], y: TfliteTensor) -> None:
    truth = TfliteTensor(f"{y.name}/truth", inputs[0].shape, "bool", batched=True)
    w.emit("CAST", inputs[:1], truth, "CastOptions", OutDataType=tflite.TensorType.BOOL)  # from float32, which is 0
    w.emit("SELECT_V2", [truth, *inputs[1:]], y, "SelectV2Options")


def _broadcast_to(w: _Writer, o: Operation, inputs: list[TfliteTensor], y: TfliteTensor) -> None:
    """A product with ones, which leaves the batch open."""
    w.emit("MUL", [inputs[0], w.constant(np.ones(y.shape, np.float32), f"{y.name}/ones")], y, "MulOptions")


HANDLERS: dict[str, Handler] = {
    "leaky_relu": lambda w, o, x, y: w.emit("LEAKY_RELU", x, y, "LeakyReluOptions", 2 if y.dtype == "int8" else 1,
                                            Alpha=o.attributes["alpha"]),
    "greater": _comparison, "less": _comparison, "where": _where, "broadcast_to": _broadcast_to,
    "matmul": _binary("BATCH_MATMUL", "BatchMatMulOptions"),
    "add": _binary("ADD", "AddOptions"), "sub": _binary("SUB", "SubOptions"), "mul": _binary("MUL", "MulOptions"),
    "div": _binary("DIV", "DivOptions"), "maximum": _binary("MAXIMUM", "MaximumMinimumOptions"),
    "minimum": _binary("MINIMUM", "MaximumMinimumOptions"), "prelu": _binary("PRELU", ""),
    "conv": _conv, "depthwise": _conv, "dense": _dense, "max_pool": _max_pool, "average_pool": _average_pool,
    "reduce_mean": _reduce("MEAN"), "reduce_sum": _reduce("SUM"), "reduce_max": _reduce("REDUCE_MAX"), "pad": _pad,
    "reshape": _reshape, "transpose": _transpose, "slice": _slice, "concatenate": _concatenate, "resize": resize,
    "transposed_conv": transposed_conv, "local_response": local_response, **dict.fromkeys(UNARY, _unary),
}  # fmt: skip
