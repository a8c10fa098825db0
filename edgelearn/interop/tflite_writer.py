"""Write TFLite files for inference, float32 or int8. They need the packages `tflite` and `flatbuffers`.

Operators have the codes, inputs and options of the tables by which `read_tflite` reads them.

A file is a flatbuffer. The metadata that TFLite's own tools read, how inputs are made and the names of classes, is
another one in the model's entry "TFLITE_METADATA"; the class names are the file labels.txt of a zip archive after the
model. Schemas: https://github.com/tensorflow/tensorflow/blob/master/tensorflow/compiler/mlir/lite/schema/schema.fbs
and https://github.com/tensorflow/tflite-support/blob/master/tensorflow_lite_support/metadata/metadata_schema.fbs
"""

from __future__ import annotations

import io
import zipfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import flatbuffers
import numpy as np
import tflite

from edgelearn import atomic
from edgelearn.errors import FormatError
from edgelearn.ops import Op
from edgelearn.ops.window import Padding, Window

from . import read_tflite
from .exporting import GraphTensor, InferenceGraph, Operation, Quantization, inference_graph
from .formats import Written, constant_bytes, to_float16
from .forms import Form, arguments, as_file, by_meaning
from .operators import named
from .read_tflite import CODES, ENUMERATIONS, OPERATORS, OPTIONS
from .safetensors import ModelFile

IDENTIFIER, VERSION = b"TFL3", 3
ALIGNMENT = 16  # of a buffer's bytes


@dataclass(frozen=True, eq=False)
class TfliteTensor:
    """A tensor of the file; activations have no array. `batched`: the first size may be any."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    array: np.ndarray | None = None
    quantization: Quantization | None = None
    batched: bool = False


@dataclass(frozen=True, eq=False)
class TfliteOperator:
    """An operator: its code in the schema, its version, and its options by their names in `read_tflite.OPTIONS`."""

    code: str
    inputs: Sequence[TfliteTensor | None]
    output: TfliteTensor
    version: int = 1
    options: Mapping[str, Any] = field(default_factory=dict)


class SchemaTable(dict[str, Any]):
    """A table of the schema by its name, with its fields in the order in which they are written.

    Fields are texts, lists of tables, bytes, arrays, tuples of int32, tables, or numbers as they are.
    """

    def __init__(self, name: str, **fields: Any) -> None:
        super().__init__(fields)
        self.name = name


def file_bytes(
    name: str, inputs: Mapping[str, TfliteTensor], outputs: Mapping[str, TfliteTensor],
    operators: Sequence[TfliteOperator], metadata: Mapping[str, bytes],
) -> bytes:  # fmt: skip
    """Return the file of one graph, with a signature "serving_default" that names inputs and outputs, and `metadata` by
    name."""
    writer = _FileWriter()
    writer.buffers.append(writer.write(SchemaTable("Buffer")))  # number 0, of tensors that aren't constant
    tensors = dict.fromkeys(inputs.values())
    tensors |= {t: None for o in operators for t in (*o.inputs, o.output) if t is not None}
    index = {tensor: i for i, tensor in enumerate(tensors)}
    codes = list(dict.fromkeys((o.code, o.version) for o in operators))

    def named(ends: Mapping[str, TfliteTensor]) -> list[SchemaTable]:
        return [SchemaTable("TensorMap", Name=end, TensorIndex=index[tensor]) for end, tensor in ends.items()]

    places = [writer.write(writer.tensor(tensor)) for tensor in tensors]
    lines = [writer.write(_operator_table(o, index, codes.index((o.code, o.version)))) for o in operators]
    ends = {key: tuple(index[t] for t in end.values()) for key, end in (("Inputs", inputs), ("Outputs", outputs))}
    graph = writer.write(SchemaTable("SubGraph", Tensors=places, Operators=lines, Name=name, **ends))
    entries = [writer.write(SchemaTable("Metadata", Name=key, Buffer=writer.buffer(c))) for key, c in metadata.items()]
    signature = writer.write(SchemaTable("SignatureDef", SignatureKey="serving_default", SubgraphIndex=0,
                                   Inputs=named(inputs), Outputs=named(outputs)))  # fmt: skip
    numbers = [(OPERATORS.index(code), version) for code, version in codes]
    used = [SchemaTable("OperatorCode", BuiltinCode=number, DeprecatedBuiltinCode=min(number, 127), Version=version)
            for number, version in numbers]  # fmt: skip
    model = SchemaTable(
        "Model", Version=VERSION, OperatorCodes=used, Subgraphs=[graph], Description="edgelearn",
        Buffers=writer.buffers, Metadata=entries, SignatureDefs=[signature],
    )  # fmt: skip
    writer.builder.Finish(writer.write(model), IDENTIFIER)
    return bytes(writer.builder.Output())


def _operator_table(operator: TfliteOperator, index: Mapping[TfliteTensor, int], code: int) -> SchemaTable:
    inputs = tuple(-1 if tensor is None else index[tensor] for tensor in operator.inputs)
    table = SchemaTable("Operator", OpcodeIndex=code, Inputs=inputs, Outputs=(index[operator.output],))
    if kind := OPTION_TYPES.get((TABLES.get(operator.code, operator.code).replace("_", "") + "options").lower()):
        table["BuiltinOptionsType"], table["BuiltinOptions"] = kind, _options(operator.code, operator.options)
    return table


# Tables of options, which have the code's name but for some
OPTION_TYPES = {name.lower(): number for name, number in vars(tflite.BuiltinOptions).items()}
TABLES = {
    "MAX_POOL_2D": "POOL_2D", "AVERAGE_POOL_2D": "POOL_2D", "MAXIMUM": "MAXIMUM_MINIMUM", "MINIMUM": "MAXIMUM_MINIMUM",
    "MEAN": "REDUCER", "SUM": "REDUCER", "REDUCE_MAX": "REDUCER",
}  # fmt: skip


class Fields(dict[int, tuple[str, Any]]):
    """A table by the numbers of its fields: the type of each, as flatbuffers' builder calls it, and the value."""


def _options(code: str, options: Mapping[str, Any]) -> Fields:
    """Options by their names in `read_tflite.OPTIONS`; others are left out, and so are defaults."""
    found = Fields()
    for name, number, kind, default in OPTIONS.get(code, []):
        value = options.get(name, default)
        if value in ENUMERATIONS.get(kind, ()):
            value = ENUMERATIONS[kind].index(value)
        if value != default:
            found[number] = SLOTS[kind], value
    return found


SLOTS = {"b": "Int8", "p": "Int8", "a": "Int8", "i": "Int32", "f": "Float32", "?": "Bool"}


class _FileWriter:
    """Tables are written before those that refer to them."""

    def __init__(self) -> None:
        self.builder = flatbuffers.Builder(1 << 16)
        self.numbers: dict[tuple[str, bytes], int] = {}  # vectors, written once each
        self.contents: dict[bytes, int] = {}  # numbers of buffers
        self.buffers: list[int] = []

    def buffer(self, content: bytes) -> int:
        """The number of a new buffer."""
        self.buffers.append(self.write(SchemaTable("Buffer", Data=content)))
        return len(self.buffers) - 1

    def tensor(self, tensor: TfliteTensor) -> SchemaTable:
        number, q = 0, tensor.quantization
        if tensor.array is not None:
            content = np.ascontiguousarray(tensor.array).tobytes()
            if content not in self.contents:
                self.contents[content] = self.buffer(content)
            number = self.contents[content]
        table = SchemaTable(
            "Tensor", Name=tensor.name, Shape=tensor.shape, Type=CODES[tensor.dtype], Buffer=number, HasRank=True
        )
        if tensor.batched:
            table["ShapeSignature"] = (-1, *tensor.shape[1:])
        if q is not None:
            scales = np.atleast_1d(q.scale).astype(np.float32)
            zeros = np.full(len(scales), q.zero, np.int64)
            table["Quantization"] = SchemaTable(
                "QuantizationParameters", Scale=scales, ZeroPoint=zeros, QuantizedDimension=q.axis or 0
            )
        return table

    def write(self, value: Any) -> Any:
        """Write a value of a field, and return its place; numbers are returned as they are."""
        if isinstance(value, SchemaTable):
            fields = {key: self.write(each) for key, each in value.items()}
            getattr(tflite, f"{value.name}Start")(self.builder)
            for key, each in fields.items():
                getattr(tflite, f"{value.name}Add{key}")(self.builder, each)
            return getattr(tflite, f"{value.name}End")(self.builder)
        if isinstance(value, Fields):
            fields = {number: (kind, self.write(each)) for number, (kind, each) in value.items()}
            self.builder.StartObject(1 + max(fields, default=0))
            for number, (kind, each) in fields.items():
                getattr(self.builder, f"Prepend{kind}Slot")(number, each, None)
            return self.builder.EndObject()
        if isinstance(value, str):
            return self.builder.CreateString(value)
        if isinstance(value, list):
            tables = [self.write(each) for each in value]
            self.builder.StartVector(4, len(tables), 4)
            for table in reversed(tables):
                self.builder.PrependUOffsetTRelative(table)
            return self.builder.EndVector()
        if isinstance(value, bytes):  # aligned
            builder = self.builder
            builder.StartVector(1, len(value), ALIGNMENT)
            builder.head -= len(value)
            builder.Bytes[builder.head : builder.head + len(value)] = value
            return builder.EndVector()
        if isinstance(value, tuple | np.ndarray):
            numbers = np.array(value, np.int32) if isinstance(value, tuple) else value
            key = numbers.dtype.str, numbers.tobytes()
            if key not in self.numbers:
                self.numbers[key] = self.builder.CreateNumpyVector(numbers)
            return self.numbers[key]
        return value


METADATA_NAME, SIGNATURE, LABELS = "TFLITE_METADATA", b"M001", "labels.txt"
NORMALIZATION, AXIS_LABELS = 1, 2  # of the enumerations ProcessUnitOptions and AssociatedFileType


def metadata_bytes(name: str, preprocessing: Mapping[str, Any], class_names: Sequence[str]) -> bytes:
    """Return the flatbuffer. Pictures' {"mean", "deviation"} of pixels / 255 become mean and std of pixels."""
    units, files = [], []
    if "mean" in preprocessing and ("deviation" in preprocessing or "std" in preprocessing):
        spread, scale = ("std", 1) if "std" in preprocessing else ("deviation", 255)
        mean, std = (np.float32(preprocessing[key]) * np.float32(scale) for key in ("mean", spread))
        units = [_metadata({1: _metadata({0: mean, 1: std})}, {0: NORMALIZATION})]
    if class_names:
        files = [_metadata({0: LABELS}, {2: AXIS_LABELS})]
    ends = [
        [_metadata({0: end, place: tables} if tables else {0: end})]
        for end, place, tables in (("input", 4, units), ("output", 6, files))
    ]
    writer = _FileWriter()
    writer.builder.Finish(writer.write(_metadata({0: name, 3: [_metadata({2: ends[0], 3: ends[1]})]})), SIGNATURE)
    return bytes(writer.builder.Output())


def with_labels(model: bytes, class_names: Sequence[str]) -> bytes:
    """The model with an archive after it, if there are class names."""
    if not class_names:
        return model
    content = io.BytesIO()
    content.write(model)
    with zipfile.ZipFile(content, "a") as archive:
        archive.writestr(zipfile.ZipInfo(LABELS), "\n".join(name.replace("\n", " ") for name in class_names))
    return content.getvalue()


def _metadata(offsets: Mapping[int, Any], numbers: Mapping[int, int] | None = None) -> Fields:
    """A table with texts, vectors and tables, and with single bytes, by number of field."""
    fields = {number: ("UOffsetTRelative", value) for number, value in offsets.items()}
    return Fields(fields | {number: ("Uint8", value) for number, value in (numbers or {}).items()})


# Operators that compute on int8; those in ALIKE only if input and output have one quantization.
INTEGER = {
    "conv", "depthwise", "dense", "add", "mul", "sub", "mean", "total", "softmax", "log_softmax", "Sigmoid", "Tanh",
    "HardSwish", "LeakyReLU", "ELU",
}  # fmt: skip
ALIKE = {
    "max_pool", "average_pool", "reshape", "pad", "strided_slice", "transpose", "concatenate", "ReLU", "relu6",
    "largest", "maximum", "minimum", "resize_bilinear", "resize_nearest",
}  # fmt: skip
LINEAR = {"conv", "depthwise", "dense"}
# Versions of operators on floats and on int8 that aren't 1 and 2
VERSIONS = {"DEPTHWISE_CONV_2D": 2, "RESIZE_BILINEAR": 3, "RESIZE_NEAREST_NEIGHBOR": 3}
INT8_VERSIONS = VERSIONS | {
    "CONV_2D": 3, "DEPTHWISE_CONV_2D": 3, "ELU": 1, "HARD_SWISH": 1, "QUANTIZE": 1, "RESHAPE": 1,
}  # fmt: skip


def has(known: Mapping[str, Form], op: Op) -> bool:
    """True if TFLite has an operator for an op of a single value with its settings."""
    if (form := known.get(type(op).__name__)) is None:
        return False
    options = {name for name, *_ in OPTIONS.get(form.kind, [])}
    changed = {each.name: getattr(op, each.name) for each in fields(op) if getattr(op, each.name) != each.default}
    return form.attributes(**changed).keys() <= options


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
    known, ranges = by_meaning(read_tflite.HANDLERS), file.ranges if int8 or full_integer else None
    writer = _Writer(inference_graph(file.network, file.weights, ranges, partial(has, known)), known)
    entries = {name: text.encode() for name, text in file.texts().items()}
    entries[METADATA_NAME] = metadata_bytes(file.network.name, file.preprocessing, file.class_names)
    content = writer.bytes(entries, full_integer, float16)
    atomic.write_bytes(path, with_labels(content, file.class_names))
    return Written(constant_bytes(t.array for t in writer.constants()), writer.left if int8 or full_integer else {})


class _Writer:
    """Translates a graph. A value has a float32 tensor, an int8 one, or both, made when they are first needed."""

    def __init__(self, graph: InferenceGraph, known: Mapping[str, Form]) -> None:
        self.graph, self.known = graph, known
        self.operators: list[TfliteOperator] = []
        self.floats: dict[GraphTensor, TfliteTensor] = {}
        self.integers: dict[GraphTensor, TfliteTensor] = {}
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
        return file_bytes(self.graph.name, inputs, outputs, self.operators, metadata)

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
            self.emit("DEQUANTIZE", [half], made[old], 3)
        self.operators += operators

    def _operation(self, o: Operation) -> None:
        if o.kind == "quantize":
            if o.output not in self.integers:
                self._requantize(self.float(o.inputs[0]), self._integer(o))
            return
        if o.kind not in HANDLERS and o.kind not in self.known:
            raise FormatError(f"TFLite files are not written with '{o.kind}' (layer '{o.output.name}').")
        q = self.quantized.get(o.output)
        reason = self._stays_float(o, q)
        if reason or q is None:
            if o.output.dtype == "float32":
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
        HANDLERS.get(o.kind, _Writer.by_table)(self, o, inputs, output)
        if q is not None and output.dtype == "int8" and output is not self.integers[q.output]:
            self._match(output, q.output)

    def by_table(
        self, o: Operation, inputs: Sequence[TfliteTensor | None], y: TfliteTensor, version: int = 0, **changes: Any
    ) -> None:
        """Write an operation as the operator that is read as its meaning. `changes`: settings instead of its own."""
        form, settings = self.known[o.kind], {**o.attributes, **changes}
        settings["activation"] = (settings.get("activation") or "none").lower()
        given, options = form.written(arguments(o.kind, inputs) | settings)
        tensors = []
        for name, axes, x in given:
            if isinstance(x, TfliteTensor) and x.array is not None and axes:
                tensors.append(self.reordered(x, as_file(axes)))
            else:
                tensors.append(x if x is None or isinstance(x, TfliteTensor) else self.numbers(x, y, name))
        self.emit(form.kind, tensors, y, version, **options)

    def _stays_float(self, o: Operation, q: Operation | None) -> str:
        """The reason why an operation isn't computed with integers; empty if it is."""
        constants = [x for x in o.inputs[:2] if x.array is not None]
        if not all(x.array is not None or x in self.integers for x in o.inputs):
            return "its input is float32"
        if o.kind not in INTEGER | ALIKE or any(c.quantization is None for c in constants):
            return f"'{o.kind}' is computed in float32"
        if o.kind == "average_pool" and not isinstance(_padding(o), str):
            return "means of padded windows are computed in float32"
        kernel = o.kind in LINEAR and ", with an int8 kernel"
        return f"no range of its output is known{kernel or ''}" if q is None or self.readers[o.output] > 1 else ""

    def _integer(self, o: Operation, name: str = "") -> TfliteTensor:
        q: Quantization = o.attributes["quantization"]
        tensor = TfliteTensor(name or o.output.name, o.output.shape, "int8", None, q, True)
        self.integers[o.output] = tensor
        return tensor

    def _match(self, output: TfliteTensor, value: GraphTensor) -> None:
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
        self.emit("QUANTIZE", [x], y)

    def float(self, value: GraphTensor) -> TfliteTensor:
        """The float32 tensor of a value."""
        if value not in self.floats:
            if value.array is not None:
                self.floats[value] = self.constant(value.array, value.name)
            else:
                self.floats[value] = self._activation(value, " as floats")
                self.emit("DEQUANTIZE", [self.integers[value]], self.floats[value])
        return self.floats[value]

    def integer(self, value: GraphTensor, o: Operation) -> TfliteTensor:
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

    def shape_of(self, x: TfliteTensor, y: TfliteTensor) -> TfliteTensor:
        """The shape of `y`, whose batch is that of `x`, as an int32 tensor."""
        whole = TfliteTensor(f"{y.name}/input shape", (4,), "int32")
        self.emit("SHAPE", [x], whole, out_type=CODES["int32"])
        batch = TfliteTensor(f"{y.name}/batch", (1,), "int32")
        self.emit("STRIDED_SLICE", [whole, *(self.numbers([n], y, f"batch {n}") for n in (0, 1, 1))], batch)
        found = TfliteTensor(f"{y.name}/shape", (4,), "int32")
        self.emit("CONCATENATION", [batch, self.numbers(y.shape[1:], y, "size")], found, axis=0)
        return found

    def constant(self, array: Any, name: str) -> TfliteTensor:
        array = np.asarray(array)
        return TfliteTensor(name, array.shape, str(array.dtype), array)

    def numbers(self, values: Any, like: TfliteTensor, what: str) -> TfliteTensor:
        """int32 constants of an operator that writes `like`."""
        return self.constant(np.asarray(values, np.int32), f"{like.name}/{what}")

    def emit(
        self, code: str, inputs: Sequence[TfliteTensor | None], output: TfliteTensor, version: int = 0, **options: Any
    ) -> None:
        """Add an operator; version 0 is the first for the output's type."""
        usual = INT8_VERSIONS.get(code, 2) if output.dtype == "int8" else VERSIONS.get(code, 1)
        self.operators.append(TfliteOperator(code, inputs, output, version or usual, options))

    def reordered(self, x: TfliteTensor, order: tuple[int, ...]) -> TfliteTensor:
        """A constant with its axes, and the axis of its scales, in another order."""
        assert x.array is not None
        q = x.quantization
        if q is not None and q.axis is not None:
            q = Quantization(q.scale, q.zero, order.index(q.axis))
        array = x.array.transpose(order)
        return TfliteTensor(x.name, array.shape, x.dtype, array, q)

    def pad(self, x: TfliteTensor, sides: Sequence[tuple[int, int]], value: float, name: str) -> TfliteTensor:
        shape = tuple(n + sum(both) for n, both in zip(x.shape, sides, strict=True))
        padded = TfliteTensor(name, shape, x.dtype, None, x.quantization, True)
        self.emit_pad(x, sides, value, padded)
        return padded

    def emit_pad(self, x: TfliteTensor, sides: Sequence[tuple[int, int]], value: float, y: TfliteTensor) -> None:
        paddings = self.numbers(sides, y, "sides")
        if value == 0:  # int8 pads with the zero point
            self.emit("PAD", [x, paddings], y)
        elif x.dtype == "int8":
            number = TfliteTensor(f"{y.name}/value", (), "int8", np.array(-128, np.int8), x.quantization)
            self.emit("PADV2", [x, paddings, number], y)
        else:
            number = self.constant(np.float32(value), f"{y.name}/value")
            self.emit("PADV2", [x, paddings, number], y)

    @staticmethod
    def _activation(value: GraphTensor, ending: str = "") -> TfliteTensor:
        return TfliteTensor(value.name + ending, value.shape, value.dtype, batched=True)


Handler = Callable[[_Writer, Operation, list[TfliteTensor], TfliteTensor], None]


def _padding(o: Operation) -> Padding:
    """TFLite's name of a window's padding, or pixels if it has none."""
    a, shape = o.attributes, o.inputs[0].shape[1:]
    height, width = a["size"] if "size" in a else o.inputs[1].shape[:2]
    return named(a["padding"], shape, (height, width), a["strides"], a.get("dilation", (1, 1)))


def _padded(w: _Writer, o: Operation, x: TfliteTensor, y: TfliteTensor, fill: float = 0.0) -> tuple[TfliteTensor, str]:
    """The input, padded where TFLite has no name for the padding, and the name."""
    padding = _padding(o)
    if isinstance(padding, str):
        return x, padding
    return w.pad(x, ((0, 0), *padding, (0, 0)), fill, f"{y.name}/padded"), "valid"


def _conv(w: _Writer, o: Operation, inputs: list[TfliteTensor], y: TfliteTensor) -> None:
    x, padding = _padded(w, o, inputs[0], y)
    kernel, bias, version = inputs[1], inputs[2] if len(inputs) > 2 else _zeros(w, inputs, y), 0
    if x.dtype != kernel.dtype:  # an int8 kernel alone
        version = 5 if o.kind == "conv" else 6
    w.by_table(o, [x, kernel, bias], y, version, padding=padding, multiplier=y.shape[-1] // x.shape[-1])


def _dense(w: _Writer, o: Operation, inputs: list[TfliteTensor], y: TfliteTensor) -> None:
    kernel, version = inputs[1], 0
    if kernel.dtype == "int8" and kernel.quantization:
        version = 12 if np.size(kernel.quantization.scale) > 1 else 4
    w.by_table(o, inputs, y, version, keeps_axes=len(y.shape) > 2)


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
    x, padding = _padded(w, o, inputs[0], y, float(np.finfo(np.float32).min))
    w.by_table(o, [x], y, padding=padding)


def _average_pool(w: _Writer, o: Operation, inputs: list[TfliteTensor], y: TfliteTensor) -> None:
    """With zeros around the image, then times the share of the windows that lies inside."""
    x, padding = _padded(w, o, inputs[0], y)
    if x is inputs[0]:
        w.by_table(o, [x], y, padding=padding)
        return
    whole = TfliteTensor(f"{y.name}/padded mean", y.shape, y.dtype, None, y.quantization, True)
    w.by_table(o, [x], whole, padding=padding)
    a, (_, height, width, _) = o.attributes, o.inputs[0].shape
    window = Window.of((height, width, 1), a["size"], a["strides"], a["padding"])
    inside = window.pad(np.ones((1, height, width, 1)))
    pixels = sum(inside[region] for _, _, region in window.slices())
    w.emit("MUL", [whole, w.constant(np.float32(window.taps / pixels), f"{y.name}/shares")], y)


def _pad(w: _Writer, o: Operation, inputs: list[TfliteTensor], y: TfliteTensor) -> None:
    if (mode := o.attributes["mode"]) == "edge":
        raise FormatError(f"TFLite has no padding by the edge (layer '{o.output.name}'). Export to ONNX instead.")
    if mode == "constant":
        w.emit_pad(inputs[0], o.attributes["sides"], o.attributes["value"], y)
    else:
        sides = w.numbers(o.attributes["sides"], y, "sides")
        w.emit("MIRROR_PAD", [inputs[0], sides], y, 1, mode=int(mode == "symmetric"))


def _transposed_conv(w: _Writer, o: Operation, inputs: list[TfliteTensor], y: TfliteTensor) -> None:
    """Without padding, then cut; the rows and columns that no pixel reaches are zeros."""
    (x, kernel), a = inputs, o.attributes
    sizes = [(x.shape[1 + axis] - 1) * a["strides"][axis] + kernel.shape[axis] for axis in (0, 1)]
    begins = [side[0] for side in a["padding"]]
    missing = [max(begin + n - size, 0) for begin, n, size in zip(begins, y.shape[1:3], sizes, strict=True)]
    exact = not any(begins) and list(y.shape[1:3]) == sizes
    whole = y if exact else TfliteTensor(f"{y.name}/whole", (1, *sizes, y.shape[3]), "float32", None, None, True)
    operands = [w.shape_of(x, whole), w.reordered(kernel, as_file("OHWI")), x]
    w.emit("TRANSPOSE_CONV", operands, whole, padding="valid", **w.known["conv"].attributes(strides=a["strides"]))
    if exact:
        return
    if any(missing):
        whole = w.pad(whole, ((0, 0), (0, missing[0]), (0, missing[1]), (0, 0)), 0.0, f"{y.name}/padded")
    ends = [begin + n for begin, n in zip(begins, y.shape[1:3], strict=True)]
    _slice(w, o, [whole], y, (*begins, 0), (*ends, y.shape[3]), (1, 1, 1))


def _slice(w: _Writer, o: Operation, inputs: list[TfliteTensor], y: TfliteTensor, *numbers: Sequence[int]) -> None:
    """Masks leave the batch open."""
    begin, end, strides = numbers or (o.attributes[name] for name in ("begin", "end", "strides"))
    named = [((0, *begin), "begin"), ((0, *end), "end"), ((1, *strides), "strides")]
    tensors = [w.numbers(values, y, name) for values, name in named]
    w.emit("STRIDED_SLICE", [inputs[0], *tensors], y, begin_mask=1, end_mask=1)


def _broadcast_to(w: _Writer, o: Operation, inputs: list[TfliteTensor], y: TfliteTensor) -> None:
    """A product with ones, which leaves the batch open."""
    w.emit("MUL", [inputs[0], w.constant(np.ones(y.shape, np.float32), f"{y.name}/ones")], y)


# Kinds of which TFLite has no operator, or that need more than their names.
HANDLERS: dict[str, Handler] = {
    "as_type": lambda w, o, inputs, y: w.by_table(o, inputs, y, in_type=CODES[inputs[0].dtype]),
    "gather": lambda w, o, inputs, y: w.by_table(o, inputs, y, 5 if o.attributes.get("batch_dims") else 0),
    "softmax": lambda w, o, inputs, y: w.by_table(o, inputs, y, beta=1.0),
    "expand": _broadcast_to, "conv": _conv, "depthwise": _conv, "dense": _dense, "max_pool": _max_pool,
    "average_pool": _average_pool, "pad": _pad, "transposed_conv": _transposed_conv, "strided_slice": _slice,
}  # fmt: skip
