"""TFLite files, float, with weights of 8 bits or of integers throughout, become trainable float32 networks.

Operators: https://www.tensorflow.org/mlir/tfl_ops. Schema of files:
https://github.com/tensorflow/tensorflow/blob/master/tensorflow/compiler/mlir/lite/schema/schema.fbs

Sparse tensors: one of rank n with k blocked axes is stored as one of rank n + k, levels in `traversal_order`, where
levels below n are the axes, divided by their blocks, and level n + b lies inside the blocks of axis `block_map[b]`. A
level is DENSE, or SPARSE_CSR: `segments` delimits the `indices` of each element of the level before it.

Metadata: the model has an entry "TFLITE_METADATA", a flatbuffer of its own; associated files are a zip archive at the
file's end. Schema:
https://github.com/tensorflow/tflite-support/blob/master/tensorflow_lite_support/metadata/metadata_schema.fbs
"""

from __future__ import annotations

import io
import zipfile
import zlib
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from edgelearn.errors import FormatError, UnsupportedError

from . import operators, recurrent, shapes
from .builder import Builder, Operand, Value
from .canonical import ForeignGraph, Operator, StoredIntegers, TensorInfo, fuse_dilated
from .formats import GraphReader, graph_format, register
from .forms import Both, Only, forms
from .litert import run
from .wire import FlatBuffer, FlatTable

_NAMES = """
ADD AVERAGE_POOL_2D CONCATENATION CONV_2D DEPTHWISE_CONV_2D DEPTH_TO_SPACE DEQUANTIZE EMBEDDING_LOOKUP FLOOR
FULLY_CONNECTED HASHTABLE_LOOKUP L2_NORMALIZATION L2_POOL_2D LOCAL_RESPONSE_NORMALIZATION LOGISTIC LSH_PROJECTION LSTM
MAX_POOL_2D MUL RELU RELU_N1_TO_1 RELU6 RESHAPE RESIZE_BILINEAR RNN SOFTMAX SPACE_TO_DEPTH SVDF TANH CONCAT_EMBEDDINGS
SKIP_GRAM CALL CUSTOM EMBEDDING_LOOKUP_SPARSE PAD UNIDIRECTIONAL_SEQUENCE_RNN GATHER BATCH_TO_SPACE_ND
SPACE_TO_BATCH_ND TRANSPOSE MEAN SUB DIV SQUEEZE UNIDIRECTIONAL_SEQUENCE_LSTM STRIDED_SLICE BIDIRECTIONAL_SEQUENCE_RNN
EXP TOPK_V2 SPLIT LOG_SOFTMAX DELEGATE BIDIRECTIONAL_SEQUENCE_LSTM CAST PRELU MAXIMUM ARG_MAX MINIMUM LESS NEG PADV2
GREATER GREATER_EQUAL LESS_EQUAL SELECT SLICE SIN TRANSPOSE_CONV SPARSE_TO_DENSE TILE EXPAND_DIMS EQUAL NOT_EQUAL LOG
SUM SQRT RSQRT SHAPE POW ARG_MIN FAKE_QUANT REDUCE_PROD REDUCE_MAX PACK LOGICAL_OR ONE_HOT LOGICAL_AND LOGICAL_NOT
UNPACK REDUCE_MIN FLOOR_DIV REDUCE_ANY SQUARE ZEROS_LIKE FILL FLOOR_MOD RANGE RESIZE_NEAREST_NEIGHBOR LEAKY_RELU
SQUARED_DIFFERENCE MIRROR_PAD ABS SPLIT_V UNIQUE CEIL REVERSE_V2 ADD_N GATHER_ND COS WHERE RANK ELU REVERSE_SEQUENCE
MATRIX_DIAG QUANTIZE MATRIX_SET_DIAG ROUND HARD_SWISH IF WHILE NON_MAX_SUPPRESSION_V4 NON_MAX_SUPPRESSION_V5
SCATTER_ND SELECT_V2 DENSIFY SEGMENT_SUM BATCH_MATMUL PLACEHOLDER_FOR_GREATER_OP_CODES CUMSUM CALL_ONCE BROADCAST_TO
RFFT2D CONV_3D IMAG REAL COMPLEX_ABS HASHTABLE HASHTABLE_FIND HASHTABLE_IMPORT HASHTABLE_SIZE REDUCE_ALL
CONV_3D_TRANSPOSE VAR_HANDLE READ_VARIABLE ASSIGN_VARIABLE BROADCAST_ARGS RANDOM_STANDARD_NORMAL BUCKETIZE
RANDOM_UNIFORM MULTINOMIAL GELU DYNAMIC_UPDATE_SLICE RELU_0_TO_1 UNSORTED_SEGMENT_PROD UNSORTED_SEGMENT_MAX
UNSORTED_SEGMENT_SUM ATAN2 UNSORTED_SEGMENT_MIN SIGN BITCAST BITWISE_XOR RIGHT_SHIFT STABLEHLO_LOGISTIC STABLEHLO_ADD
STABLEHLO_DIVIDE STABLEHLO_MULTIPLY STABLEHLO_MAXIMUM STABLEHLO_RESHAPE STABLEHLO_CLAMP STABLEHLO_CONCATENATE
STABLEHLO_BROADCAST_IN_DIM STABLEHLO_CONVOLUTION STABLEHLO_SLICE STABLEHLO_CUSTOM_CALL STABLEHLO_REDUCE STABLEHLO_ABS
STABLEHLO_AND STABLEHLO_COSINE STABLEHLO_EXPONENTIAL STABLEHLO_FLOOR STABLEHLO_LOG STABLEHLO_MINIMUM STABLEHLO_NEGATE
STABLEHLO_OR STABLEHLO_POWER STABLEHLO_REMAINDER STABLEHLO_RSQRT STABLEHLO_SELECT STABLEHLO_SUBTRACT STABLEHLO_TANH
STABLEHLO_SCATTER STABLEHLO_COMPARE STABLEHLO_CONVERT STABLEHLO_DYNAMIC_SLICE STABLEHLO_DYNAMIC_UPDATE_SLICE
STABLEHLO_PAD STABLEHLO_IOTA STABLEHLO_DOT_GENERAL STABLEHLO_REDUCE_WINDOW STABLEHLO_SORT STABLEHLO_WHILE
STABLEHLO_GATHER STABLEHLO_TRANSPOSE DILATE STABLEHLO_RNG_BIT_GENERATOR REDUCE_WINDOW STABLEHLO_COMPOSITE
STABLEHLO_SHIFT_LEFT STABLEHLO_CBRT
"""
OPERATORS: list[str] = [*_NAMES.split()]

TYPES = {
    0: "float32", 1: "float16", 2: "int32", 3: "uint8", 4: "int64", 5: "string", 6: "bool", 7: "int16", 8: "complex64",
    9: "int8", 10: "float64", 11: "complex128", 12: "uint64", 13: "resource", 14: "variant", 15: "uint32", 16: "uint16",
    17: "int4", 18: "bfloat16",
}  # fmt: skip
ENUMERATIONS: dict[str, tuple[str, ...]] = {
    "p": ("same", "valid"), "a": ("none", "relu", "relu_n1_to_1", "relu6", "tanh", "sign_bit"),
}  # fmt: skip

# Options of operators: a name, the field's number and its type ("b" int8, "i" int32, "f" float, "?" bool, "v" vector of
# int32, "p" padding, "a" activation), and a default if that isn't 0.
_WINDOW = "padding 0 p, stride_w 1 i, stride_h 2 i"
_ARITHMETIC = "activation 0 a"
_RESIZE = "align_corners {} ?, half_pixel_centers {} ?"
LSTM, STATES = "UNIDIRECTIONAL_SEQUENCE_LSTM", (18, 19)  # its operands that are states between calls
_OPTIONS = {
    "ADD": _ARITHMETIC,
    "SUB": _ARITHMETIC,
    "MUL": _ARITHMETIC,
    "DIV": _ARITHMETIC,
    "AVERAGE_POOL_2D": f"{_WINDOW}, filter_w 3 i, filter_h 4 i, activation 5 a",
    "MAX_POOL_2D": f"{_WINDOW}, filter_w 3 i, filter_h 4 i, activation 5 a",
    "L2_POOL_2D": f"{_WINDOW}, filter_w 3 i, filter_h 4 i, activation 5 a",
    "BATCH_MATMUL": "adj_x 0 ?, adj_y 1 ?",
    "CAST": "in_type 0 b, out_type 1 b",
    "CONCATENATION": "axis 0 i, activation 1 a",
    "CONV_2D": f"{_WINDOW}, activation 3 a, dilation_w 4 i 1, dilation_h 5 i 1",
    "DEPTHWISE_CONV_2D": f"{_WINDOW}, multiplier 3 i, activation 4 a, dilation_w 5 i 1, dilation_h 6 i 1",
    "DEPTH_TO_SPACE": "block_size 0 i",
    "SPACE_TO_DEPTH": "block_size 0 i",
    "FAKE_QUANT": "min 0 f, max 1 f, num_bits 2 i",
    "FULLY_CONNECTED": "activation 0 a, weights_format 1 b, keep_num_dims 2 ?",
    "GATHER": "axis 0 i, batch_dims 1 i",
    "GELU": "approximate 0 ?",
    "L2_NORMALIZATION": _ARITHMETIC,
    "LEAKY_RELU": "alpha 0 f",
    "LOCAL_RESPONSE_NORMALIZATION": "radius 0 i, bias 1 f, alpha 2 f, beta 3 f",
    "MEAN": "keep_dims 0 ?",
    "SUM": "keep_dims 0 ?",
    "REDUCE_MAX": "keep_dims 0 ?",
    "REDUCE_MIN": "keep_dims 0 ?",
    "REDUCE_PROD": "keep_dims 0 ?",
    "MIRROR_PAD": "mode 0 b",
    "PACK": "count 0 i, axis 1 i",
    "UNPACK": "count 0 i, axis 1 i",
    "RESHAPE": "shape 0 v",
    "RESIZE_BILINEAR": _RESIZE.format(2, 3),
    "RESIZE_NEAREST_NEIGHBOR": _RESIZE.format(0, 1),
    "SHAPE": "out_type 0 b",
    "SOFTMAX": "beta 0 f",
    "SPLIT": "count 0 i",
    "SPLIT_V": "count 0 i",
    "SQUEEZE": "axes 0 v",
    "STRIDED_SLICE": "begin_mask 0 i, end_mask 1 i, ellipsis_mask 2 i, new_axis_mask 3 i, shrink_axis_mask 4 i, "
    "offset 5 ?",
    "TRANSPOSE_CONV": f"{_WINDOW}, activation 3 a",
    LSTM: "cell_activation 0 a, cell_clip 1 f, projection_clip 2 f, time_major 3 ?",
}  # fmt: skip


def _parse(text: str) -> list[tuple[str, int, str, int]]:
    fields = (part.split() for part in text.split(","))
    return [(name, int(number), kind, int(*default or "0")) for name, number, kind, *default in fields]


OPTIONS = {operator: _parse(text) for operator, text in _OPTIONS.items()}


Array = np.ndarray  # a constant
CODES = {name: number for number, name in TYPES.items()}
DTYPES = {number: {"int4": "int8", "bfloat16": "float32"}.get(name, name) for number, name in TYPES.items()}


def _activated(b: Builder, op: Operator, x: Operand) -> Operand:
    """The activation in which an operator ends."""
    name = op.attributes.get("activation", "none")
    if name == "none":
        return x
    if name.upper() not in HANDLERS:
        raise UnsupportedError(f"Activation '{name}'.", "One of relu, relu6, relu_n1_to_1, tanh.")
    with b.part(name):
        return HANDLERS[name.upper()].apply(b, op, {"x": x})


def biased_transposed_conv(b: Builder, x: Value, kernel: Array, bias: Array, *, options: Any) -> Operand:
    """MediaPipe's Convolution2DTransposeBias. Its options are three integers: padding (1: same) and strides (width,
    height)."""
    op = b.operator
    if len(options) < 12:
        raise FormatError(f"{op.kind} '{op.name}' has options of {len(options)} bytes, not 12.")
    padding, width, height = np.frombuffer(options, "<i4", 3).tolist()
    if min(width, height) < 1:
        raise FormatError(f"{op.kind} '{op.name}' has strides {(height, width)}: the file is damaged.")
    sides = []
    for n, stride, size in zip(x.shape[1:3], (height, width), kernel.shape, strict=False):
        cut = max(0, size - (n - 1) % stride - 1) if padding == 1 else 0
        sides.append((cut // 2, cut - cut // 2))
    return operators.transposed_conv(
        b, x, kernel, bias, strides=(height, width), padding=(sides[0], sides[1]), output_padding=(0, 0)
    )


def fully_connected(b: Builder, x: Value, kernel: Array, bias: Array | None = None, *, keeps_axes: bool) -> Operand:
    if not keeps_axes and (len(x.shape) != 2 or x.shape[-1] != kernel.shape[0]):
        x = shapes.reshape(b, x, (-1, kernel.shape[0]))  # type: ignore[assignment]
    return operators.dense(b, x, kernel, bias)


def softmax(b: Builder, x: Operand, *, beta: float) -> Operand:
    return operators.softmax(b, x if beta == 1 else operators.scale(b, x, beta))


def logical_not(b: Builder, x: Operand) -> Operand:
    return operators.scale(b, x, -1.0, 1.0) if isinstance(x, Value) else ~x


def select(b: Builder, condition: Operand, x: Operand, y: Operand) -> Operand:
    if b.operator.kind == "SELECT" and len(condition.shape) == 1 < len(x.shape):
        raise UnsupportedError("A condition for each example.", "A condition for each value.")
    return operators.where(b, condition, x, y)


HANDLERS = forms(
    {
        "ADD_N": "add *",
        "AVERAGE_POOL_2D": "average_pool",
        "BATCH_MATMUL": "matmul",
        "BROADCAST_TO": "expand",
        "CAST": "as_type",
        "CONCATENATION": "concatenate",
        "CONV_2D": "conv x kernel:OHWI bias",
        "DEPTHWISE_CONV_2D": ("depthwise x kernel:IHWO bias", operators.conv),
        "CUSTOM Convolution2DTransposeBias": (biased_transposed_conv, "x kernel:OHWI bias"),
        "DENSIFY": "identity",
        "DEQUANTIZE": "identity",
        "EXPAND_DIMS": "unsqueeze",
        "FAKE_QUANT": ("fake_quant x", {"low": "min", "high": "max"}),
        "FULLY_CONNECTED": (
            "dense x kernel:OI bias", fully_connected,
            {"weights_format": Only(0, "The default format of weights.", "Shuffled weights.")},
        ),
        "GATHER": "gather",
        "L2_NORMALIZATION": "unit_length",
        "LOCAL_RESPONSE_NORMALIZATION": (
            "local_response",
            {"size": Both(lambda op, x: 2 * max(op.attributes["radius"], 0) + 1, lambda size: {"radius": size // 2})},
        ),
        "LOGICAL_AND": "mul",
        "LOGICAL_NOT": logical_not,
        "LOGICAL_OR": "maximum",
        "LOGISTIC": "Sigmoid",
        "MAX_POOL_2D": "max_pool",
        "MIRROR_PAD": (
            "pad x sides", {"mode": lambda op, x: ("reflect", "symmetric")[bool(op.attributes["mode"])]}
        ),
        "PADV2": "pad",
        "POW": "power",
        "QUANTIZE": "identity",
        "RANGE": "arange",
        "REDUCE_MAX": "largest",
        "REDUCE_PROD": "product",
        "RELU_0_TO_1": ("clip x", {"low": 0, "high": 1}),
        "RELU_N1_TO_1": ("clip x", {"low": -1, "high": 1}),
        "RESIZE_NEAREST_NEIGHBOR": "resize_nearest",
        "ROUND": "rounded",
        "SELECT": select,
        "SELECT_V2": ("where", select),
        "SHAPE": "shape_of",
        "SLICE": "part",
        "SOFTMAX": ("softmax", softmax),
        "SPLIT": "halves axis x",
        "SPLIT_V": "split x sizes axis",
        "SQUEEZE": ("squeeze", {"axes": lambda op, x: op.attributes["axes"] or None}),
        "SUM": "total",
        LSTM: (recurrent.tflite_layer, "x *rest"),
        "TRANSPOSE_CONV": ("transposed_conv_to shape kernel:OHWI x bias", {"grows": True}),
    },
    same="ABS ADD DEPTH_TO_SPACE DIV ELU EQUAL EXP FILL GELU GREATER GREATER_EQUAL HARD_SWISH LEAKY_RELU LESS "
         "LESS_EQUAL LOG LOG_SOFTMAX MAXIMUM MEAN MINIMUM MUL NEG NOT_EQUAL PACK PAD PRELU RELU RELU6 RESHAPE "
         "RESIZE_BILINEAR RSQRT SPACE_TO_DEPTH SQRT SQUARE SQUARED_DIFFERENCE STRIDED_SLICE SUB TANH TILE "
         "TRANSPOSE UNPACK",
    after=_activated, strides="stride_h stride_w", dilation="dilation_h=1 dilation_w=1", size="filter_h filter_w",
    keepdims="keep_dims", block="block_size", turn_x="adj_x", turn_y="adj_y", half_pixel="half_pixel_centers",
    bits="num_bits=8", narrow="narrow_range", negative_slope="alpha", keeps_axes="keep_num_dims",
    masks=lambda op, x: op.attributes,
    dtype=Both(
        lambda op, x: DTYPES.get(op.attributes["out_type"], "float32"), lambda dtype: {"out_type": CODES[dtype]}
    ),
)  # fmt: skip

NEAREST = {
    "ARG_MAX": "leave it out: the network ends in scores",
    "BIDIRECTIONAL_SEQUENCE_LSTM": "convolutions over time",
    "LSTM": "convolutions over time",
    "L2_POOL_2D": "AVERAGE_POOL_2D",
    "SPACE_TO_BATCH_ND": "a convolution with dilation",
    "SVDF": "DEPTHWISE_CONV_2D and CONV_2D",
    "TOPK_V2": "leave it out: the network ends in scores",
}


VECTORS = {1: "<i4", 2: "<u2", 3: "u1"}  # the union SparseIndexVector
DENSE, SPARSE_CSR = 0, 1


def places(record: FlatTable, shape: tuple[int, ...]) -> np.ndarray:
    """Return the flat place of each stored value in the dense tensor. Raises FormatError for a damaged record.

    Arguments:
    - `record`: the tensor's SparsityParameters.
    - `shape`: of the dense tensor.
    """
    order, blocked = record.integers(0), record.integers(1)
    levels = record.tables(2, f"level of {record.what}")
    rank = len(shape)
    if sorted(order) != list(range(rank + len(blocked))) or len(levels) != len(order):
        raise _damaged(record, f"its levels {order} of {len(levels)} aren't those of the shape {shape}")
    if any(not 0 <= axis < rank for axis in blocked) or len(set(blocked)) < len(blocked):
        raise _damaged(record, f"its blocks are of the axes {blocked}")
    blocks = [1] * rank
    for axis, level in ((blocked[n - rank], levels[place]) for place, n in enumerate(order) if n >= rank):
        blocks[axis] = level.number(1, "i")
    if any(block < 1 or n % block for n, block in zip(shape, blocks, strict=True)):
        raise _damaged(record, f"blocks of {tuple(blocks)} don't fill the shape {shape}")
    found = np.zeros(1, np.int64)
    for n, level in zip(order, levels, strict=True):
        axis = n if n < rank else blocked[n - rank]
        size = shape[axis] // blocks[axis] if n < rank else blocks[axis]
        stride = prod(shape[axis + 1 :]) * (blocks[axis] if n < rank else 1)
        parents, indices = _children(level, len(found), size, prod(shape))
        found = found[parents] + indices * stride
    return found


def _children(level: FlatTable, count: int, size: int, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Each element of a level: the number of the one before it, of `count`, and its index, below `size`."""
    if level.number(0, "b") == DENSE:
        if level.number(1, "i") != size or count * size > most:
            raise _damaged(level, f"it has {level.number(1, 'i'):,} elements each, not {size:,}")
        return np.repeat(np.arange(count), size), np.tile(np.arange(size), count)
    segments, indices = (_vector(level, field) for field in (2, 4))
    lengths = np.diff(segments)
    if len(lengths) != count or segments[0] or (lengths < 0).any() or segments[-1] != len(indices):
        raise _damaged(level, f"its segments don't delimit {len(indices):,} indices of {count:,} elements")
    if len(indices) and not 0 <= indices.min() <= indices.max() < size:
        raise _damaged(level, f"an index lies outside an axis of {size:,}")
    return np.repeat(np.arange(count), lengths), indices


def _vector(level: FlatTable, field: int) -> np.ndarray:
    """The vector of a union whose type is field `field`."""
    kind, table = level.number(field, "B"), level.table(field + 1, level.what)
    if level.number(0, "b") != SPARSE_CSR or kind not in VECTORS or table is None:
        raise _damaged(level, "it is neither dense nor has segments and indices")
    return table.array(0, VECTORS[kind]).astype(np.int64)


def _damaged(table: FlatTable, reason: str) -> Exception:
    return table.buffer.damaged(f"{table.what}: {reason}")


NAME, METADATA_SIGNATURE = "TFLITE_METADATA", b"M001"
NORMALIZATION = 1  # of the union ProcessUnitOptions
LABELS = (2, 3)  # TENSOR_AXIS_LABELS, TENSOR_VALUE_LABELS
LABEL_BYTES = 1 << 20


@dataclass(frozen=True)
class Metadata:
    """Metadata of the inputs and outputs of a TFLite file.

    Arguments:
    - `preprocessing`: {"mean": […], "std": […]}: the input is (pixel - mean) / std, channel by channel (default empty).
    - `class_names`: names of the outputs, in their order (default none).
    - `texts`: name, description, version, author and licence, where given (default empty).
    """

    preprocessing: dict[str, Any] = field(default_factory=dict)
    class_names: tuple[str, ...] = ()
    texts: dict[str, str] = field(default_factory=dict)


def read_metadata(file: FlatBuffer, model: FlatTable, buffers: list[FlatTable], path: Path) -> Metadata:
    """Read the metadata of a model, empty if it has none. Raises FormatError naming the file."""
    entries = {entry.text(0): entry.number(1, "I") for entry in model.tables(6, "metadata")}
    index = entries.get(NAME)
    if index is None or index >= len(buffers):
        return Metadata()
    data = buffers[index].array(0, "u1").tobytes()
    if data[4:8] != METADATA_SIGNATURE:
        return Metadata()
    record = FlatBuffer(data, f"{path} (metadata)").root()
    texts = {
        name: text
        for number, name in enumerate(("name", "description", "version", "", "author", "license"))
        if name and (text := record.text(number))
    }
    graphs = record.tables(3, "sub-graph")
    if not graphs:
        return Metadata(texts=texts)
    inputs, outputs = graphs[0].tables(2, "input"), graphs[0].tables(3, "output")
    labels = [
        associated.text(0)
        for output in outputs
        for associated in output.tables(6, "associated file")
        if associated.number(2, "b") in LABELS
    ]
    return Metadata(_normalization(inputs), _class_names(file, labels[0], path) if labels else (), texts)


def _normalization(inputs: list[FlatTable]) -> dict[str, Any]:
    for unit in inputs[0].tables(4, "process unit") if inputs else []:
        options = unit.table(1, "normalization")
        if options and unit.number(0, "B") == NORMALIZATION:
            mean, std = options.array(0, "<f4"), options.array(1, "<f4")
            if 0 < mean.size == std.size <= 4096 and std.all():
                return {"mean": mean.tolist(), "std": std.tolist()}
    return {}


def _class_names(file: FlatBuffer, name: str, path: Path) -> tuple[str, ...]:
    """The lines of an associated file."""
    try:
        with zipfile.ZipFile(io.BytesIO(file.data)) as archive:
            info = archive.getinfo(name)
            if info.file_size > LABEL_BYTES or info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise ValueError(f"it says that it has {info.file_size:,} bytes, more than {LABEL_BYTES:,}")
            with archive.open(info) as member:
                text = member.read(LABEL_BYTES).decode("utf-8")
    except (
        OSError,
        ValueError,
        KeyError,
        EOFError,
        RuntimeError,
        NotImplementedError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        raise FormatError(
            f"{path}: the class names in '{name:.200}' can't be read ({error!s:.200}). Fetch the file again."
        ) from None
    return tuple(line.strip() for line in text.splitlines() if line.strip())


SIGNATURE = b"TFL3"  # at byte 4
RANK = 8  # axes of a tensor at most
EXPANSION = 8  # times the file's size that all constants may take: int4 becomes float32
SPARSITY = 8  # times that, for sparse ones
LEAST = 1 << 20
TURNED = (
    "Scales of {} tensors (the first: '{}') are said to lie along an axis that they don't have: they were read along "
    "the only axis of their number, as TensorFlow Lite Micro does; LiteRT refuses the file."
)


def read(path: Path) -> ForeignGraph:
    """Read the operators, constants and metadata of a TFLite file. Raises FormatError naming the file."""
    if not path.is_file():
        raise FormatError(f"There is no file {path}. Give the path of a TFLite model.")
    return parse(path.read_bytes(), path)


def parse(data: bytes, path: Path) -> ForeignGraph:
    """Read a TFLite model from the bytes of the file `path`. Raises FormatError naming the file."""
    if data[4:8] != SIGNATURE:
        raise FormatError(f"{path} is not a TFLite model: its bytes 4 to 8 are {data[4:8]!r}, not {SIGNATURE!r}.")
    return _Reader(FlatBuffer(data, str(path)), path).graph()


class _Reader:
    def __init__(self, buffer: FlatBuffer, path: Path) -> None:
        self.buffer, self.path = buffer, path
        self.model = buffer.root()
        graphs = self.model.tables(2, "sub-graph")
        if not graphs:
            raise buffer.damaged("it has no sub-graph")
        self.subgraph = graphs[0]
        self.buffers = self.model.tables(4, "buffer")
        self.room = max(LEAST, EXPANSION * len(buffer.data))
        self.tensors: list[TensorInfo] = []
        self.constants: dict[str, np.ndarray] = {}
        self.turned: list[str] = []  # tensors whose scales lie along an axis that they don't have

    def graph(self) -> ForeignGraph:
        names = set[str]()
        for number, table in enumerate(self.subgraph.tables(0, "tensor")):
            name = table.text(3) or f"tensor_{number}"
            name = f"{name}:{number}" if name in names else name
            names.add(name)
            self._tensor(table, name)
        kinds = [self._kind(table) for table in self.model.tables(1, "operator code")]
        operators = [self._operator(table, kinds) for table in self.subgraph.tables(3, "operator")]
        inputs, outputs = self._names(self.subgraph, 1), self._names(self.subgraph, 2)
        if not inputs or not outputs or "" in (*inputs, *outputs):
            raise self.buffer.damaged(f"its inputs are {inputs} and its outputs {outputs}")
        known = read_metadata(self.buffer, self.model, self.buffers, self.path)
        infos = {info.name: info for info in self.tensors}
        notes = (TURNED.format(len(self.turned), self.turned[0]),) if self.turned else ()
        graph = ForeignGraph(
            "TFLite", self.subgraph.text(4) or self.path.stem, tuple(infos[name] for name in inputs),
            outputs, tuple(operators), self.constants, infos, known.preprocessing,
            known.class_names, known.texts, notes=notes,
        )  # fmt: skip
        return fuse_dilated(graph, dict.fromkeys(("CONV_2D", "DEPTHWISE_CONV_2D"), _dilated))

    def _tensor(self, table: FlatTable, name: str) -> None:
        shape = table.integers(0)
        if len(shape) > RANK or min(shape, default=1) < 0:
            raise self.buffer.damaged(f"tensor '{name}' has the shape {shape}")
        code = table.number(1, "b")
        dtype = TYPES.get(code)
        if dtype is None:
            raise self.buffer.damaged(f"tensor '{name}' has the unknown type {code}")
        quantization = self._quantization(table, name, shape, dtype)
        signature = table.integers(7)
        sizes: tuple[int | None, ...] = shape
        if len(signature) == len(shape):
            sizes = tuple(None if n == -1 else n for n in signature)
        layout, is_state = "NHWC" if len(shape) == 4 else "", bool(table.number(5, "B"))
        self.tensors.append(TensorInfo(name, sizes, dtype, layout, quantization, is_state))
        data = self._data(table.number(2, "I"), name)
        if data.size:
            sparse = table.table(6, f"the sparsity of '{name}'")
            self.constants[name] = self._constant(data, name, shape, dtype, quantization, sparse)

    def _quantization(self, table: FlatTable, name: str, shape: tuple[int, ...], dtype: str) -> StoredIntegers | None:
        record = table.table(4, f"the quantization of '{name}'")
        if record is None:
            return None
        scale, zero_point = record.array(2, "<f4"), record.array(3, "<i8")
        if not scale.size:
            return None
        axis = record.number(6, "i")
        if not zero_point.size:
            zero_point = np.zeros(scale.size, np.int64)
        if axis >= len(shape) and shape.count(scale.size) == 1 < scale.size:
            axis = shape.index(scale.size)
            self.turned.append(name)
        fits = scale.size == 1 or (0 <= axis < len(shape) and shape[axis] == scale.size)
        if zero_point.size not in (1, scale.size) or not fits or not np.isfinite(scale).all():
            raise self.buffer.damaged(
                f"tensor '{name}' of shape {shape} has {scale.size} scales and {zero_point.size} zero points"
            )
        return StoredIntegers(scale.copy(), np.broadcast_to(zero_point, scale.shape).copy(), axis, dtype)

    def _data(self, index: int, name: str) -> np.ndarray:
        """The bytes of a tensor; empty if it has none."""
        if index >= len(self.buffers):
            raise self.buffer.damaged(f"tensor '{name}' is said to be in buffer {index} of {len(self.buffers)}")
        table = self.buffers[index]
        begin, size = table.number(1, "Q"), table.number(2, "Q")
        if begin > 1:  # after the flatbuffer, in files above 2 GiB
            if begin + size > len(self.buffer.data):
                raise self.buffer.damaged(f"tensor '{name}' is said to be at {begin:,}, {size:,} bytes long")
            return np.frombuffer(self.buffer.data, np.uint8, size, begin)
        return table.array(0, "u1")

    def _constant(
        self, data: np.ndarray, name: str, shape: tuple[int, ...], dtype: str, quantization: StoredIntegers | None,
        sparse: FlatTable | None,
    ) -> np.ndarray:  # fmt: skip
        """The tensor's values, those of integers with a scale as float32."""
        count = prod(shape)
        self.room -= 4 * count // (SPARSITY if sparse else 1)
        if self.room < 0:
            raise self.buffer.damaged(f"tensor '{name}' and those before it take more bytes than the file can hold")
        if dtype == "string":
            return np.zeros(0, "S1")
        try:
            stored = np.dtype({"bfloat16": "uint16", "int4": "int8"}.get(dtype, dtype)).newbyteorder("<")
        except TypeError:
            raise FormatError(f"{self.path}: constant '{name}' has the type {dtype}, not numbers.") from None
        found = places(sparse, shape) if sparse else None
        held = count if found is None else len(found)
        expected = -(-held // 2) if dtype == "int4" else held * stored.itemsize
        if data.size != expected:
            raise self.buffer.damaged(
                f"tensor '{name}' is {dtype} of shape {shape}, {expected:,} bytes, and its buffer has {data.size:,}"
            )
        if dtype == "int4":
            nibbles = np.stack([data & 15, data >> 4], 1).reshape(-1)[:held].astype(np.int8)
            values = np.where(nibbles > 7, nibbles - 16, nibbles)
        elif dtype == "bfloat16":
            values = (data.view(stored).astype(np.uint32) << 16).view(np.float32)
        else:
            values = data.view(stored)
        if found is not None:
            values, there = np.zeros(count, values.dtype), values
            values[found] = there
        values = values.reshape(shape)
        if quantization and values.dtype.kind in "iu":
            return dequantize(values, quantization)
        return values.astype(np.float32) if values.dtype == np.float16 else values

    def _kind(self, table: FlatTable) -> tuple[str, int]:
        """Name and version of an operator code; custom operators have their own name."""
        code = max(table.number(0, "b"), table.number(3, "i"))
        if not 0 <= code < len(OPERATORS):
            return f"OPERATOR_{code}", table.number(2, "i", 1)
        kind = OPERATORS[code]
        return (f"CUSTOM {table.text(1)}" if kind == "CUSTOM" else kind), table.number(2, "i", 1)

    def _operator(self, table: FlatTable, kinds: list[tuple[str, int]]) -> Operator:
        index = table.number(0, "I")
        if index >= len(kinds):
            raise self.buffer.damaged(f"{table.what} has code {index} of {len(kinds)}")
        kind, version = kinds[index]
        outputs = self._names(table, 2)
        options = table.table(4, f"the options of {table.what} ({kind})")
        fields = OPTIONS.get(kind, [])
        attributes = {name: _option(options, number, code, default) for name, number, code, default in fields}
        if kind.startswith("CUSTOM"):
            attributes = {"options": table.array(5, "u1").tobytes()}
        name, inputs = short_name(outputs[0]) if outputs else table.what, self._names(table, 1)
        if kind == LSTM:
            inputs = tuple("" if place in STATES else each for place, each in enumerate(inputs))
        return Operator(kind, name, inputs, outputs, attributes, version)

    def _names(self, table: FlatTable, field: int) -> tuple[str, ...]:
        """Tensors by name; "" for -1, an optional one that is left out."""
        indices = table.integers(field)
        if any(not -1 <= i < len(self.tensors) for i in indices):
            raise self.buffer.damaged(f"{table.what} names tensors {indices[:9]} of {len(self.tensors)}")
        return tuple("" if i == -1 else self.tensors[i].name for i in indices)


def _dilated(conv: Operator, dilation: tuple[int, int], sides: Any) -> dict[str, Any] | None:
    """Attributes of a convolution with strides 1 and no padding, with this dilation and padding."""
    a = conv.attributes
    numbers = [a.get(name, 1) for name in ("stride_h", "stride_w", "dilation_h", "dilation_w")]
    if a["padding"] != "valid" or numbers != [1, 1, 1, 1]:
        return None
    return {"dilation_h": dilation[0], "dilation_w": dilation[1], "padding": sides}


def short_name(tensor: str) -> str:
    """The layer's name in "model/layer/Conv2D;model/norm/FusedBatchNorm": the part in front of the operator."""
    parts = tensor.partition(";")[0].split("/")
    return parts[-2] if len(parts) > 1 else parts[0]


def dequantize(values: np.ndarray, quantization: StoredIntegers) -> np.ndarray:
    """Return scale * (integer - zero_point) as float32."""
    shape = [1] * values.ndim
    if quantization.scale.size > 1:
        shape[quantization.axis] = -1
    scale, zero_point = quantization.scale.reshape(shape or 1), quantization.zero_point.reshape(shape or 1)
    with np.errstate(over="ignore"):  # a damaged file; infinities are refused later
        found = ((values.astype(np.int64) - zero_point) * scale.astype(np.float64)).astype(np.float32)
    return found.reshape(values.shape)


def _option(table: FlatTable | None, field: int, code: str, default: int) -> Any:
    if code == "v":
        return table.integers(field) if table else ()
    value = table.number(field, "b" if code in "pa" else code, default) if table else default
    if (names := ENUMERATIONS.get(code)) is None:
        return value
    if not 0 <= value < len(names):
        raise FormatError(f"{table.buffer.what if table else ''} is damaged: {value} is no padding or activation.")
    return names[value]


register(graph_format("TFLite", (".tflite",), b"", GraphReader(read, HANDLERS, NEAREST, run)))
