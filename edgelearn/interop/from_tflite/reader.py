"""Reads a TFLite file: its first sub-graph as a `ForeignGraph`, with integers dequantized."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from edgelearn.errors import FormatError

from ..importing import ForeignGraph, Operator, Quantization, TensorInfo, fuse_dilated
from . import metadata, schema, sparsity
from .flatbuffer import Buffer, Table

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
    return _Reader(Buffer(data, str(path)), path).graph()


class _Reader:
    def __init__(self, buffer: Buffer, path: Path) -> None:
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
        known = metadata.read(self.buffer, self.model, self.buffers, self.path)
        infos = {info.name: info for info in self.tensors}
        notes = (TURNED.format(len(self.turned), self.turned[0]),) if self.turned else ()
        graph = ForeignGraph(
            "TFLite", self.subgraph.text(4) or self.path.stem, tuple(infos[name] for name in inputs),
            outputs, tuple(operators), self.constants, infos, known.preprocessing,
            known.class_names, known.texts, notes=notes,
        )  # fmt: skip
        return fuse_dilated(graph, dict.fromkeys(("CONV_2D", "DEPTHWISE_CONV_2D"), _dilated))

    def _tensor(self, table: Table, name: str) -> None:
        shape = table.integers(0)
        if len(shape) > RANK or min(shape, default=1) < 0:
            raise self.buffer.damaged(f"tensor '{name}' has the shape {shape}")
        code = table.number(1, "b")
        dtype = schema.TYPES.get(code)
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

    def _quantization(self, table: Table, name: str, shape: tuple[int, ...], dtype: str) -> Quantization | None:
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
        return Quantization(scale.copy(), np.broadcast_to(zero_point, scale.shape).copy(), axis, dtype)

    def _data(self, index: int, name: str) -> np.ndarray:
        """The bytes of a tensor; empty if it has none."""
        if index >= len(self.buffers):
            raise self.buffer.damaged(f"tensor '{name}' is said to be in buffer {index} of {len(self.buffers)}")
        table = self.buffers[index]
        begin, size = table.number(1, "Q"), table.number(2, "Q")
        if begin > 1:  # behind the flatbuffer, in files above 2 GiB
            if begin + size > len(self.buffer.data):
                raise self.buffer.damaged(f"tensor '{name}' is said to be at {begin:,}, {size:,} bytes long")
            return np.frombuffer(self.buffer.data, np.uint8, size, begin)
        return table.array(0, "u1")

    def _constant(
        self, data: np.ndarray, name: str, shape: tuple[int, ...], dtype: str, quantization: Quantization | None,
        sparse: Table | None,
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
        places = sparsity.places(sparse, shape) if sparse else None
        held = count if places is None else len(places)
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
        if places is not None:
            values, there = np.zeros(count, values.dtype), values
            values[places] = there
        values = values.reshape(shape)
        if quantization and values.dtype.kind in "iu":
            return dequantize(values, quantization)
        return values.astype(np.float32) if values.dtype == np.float16 else values

    def _kind(self, table: Table) -> tuple[str, int]:
        """Name and version of an operator code; custom operators have their own name."""
        code = max(table.number(0, "b"), table.number(3, "i"))
        if not 0 <= code < len(schema.OPERATORS):
            return f"OPERATOR_{code}", table.number(2, "i", 1)
        kind = schema.OPERATORS[code]
        return (f"CUSTOM {table.text(1)}" if kind == "CUSTOM" else kind), table.number(2, "i", 1)

    def _operator(self, table: Table, kinds: list[tuple[str, int]]) -> Operator:
        index = table.number(0, "I")
        if index >= len(kinds):
            raise self.buffer.damaged(f"{table.what} has code {index} of {len(kinds)}")
        kind, version = kinds[index]
        outputs = self._names(table, 2)
        options = table.table(4, f"the options of {table.what} ({kind})")
        fields = schema.OPTIONS.get(kind, [])
        attributes = {name: _option(options, number, code, default) for name, number, code, default in fields}
        if kind.startswith("CUSTOM"):
            attributes = {"options": table.array(5, "u1").tobytes()}
        name = short_name(outputs[0]) if outputs else table.what
        return Operator(kind, name, self._names(table, 1), outputs, attributes, version)

    def _names(self, table: Table, field: int) -> tuple[str, ...]:
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


def dequantize(values: np.ndarray, quantization: Quantization) -> np.ndarray:
    """Return scale * (integer - zero_point) as float32."""
    shape = [1] * values.ndim
    if quantization.scale.size > 1:
        shape[quantization.axis] = -1
    scale, zero_point = quantization.scale.reshape(shape or 1), quantization.zero_point.reshape(shape or 1)
    with np.errstate(over="ignore"):  # a damaged file; infinities are refused later
        found = ((values.astype(np.int64) - zero_point) * scale.astype(np.float64)).astype(np.float32)
    return found.reshape(values.shape)


def _option(table: Table | None, field: int, code: str, default: int) -> Any:
    if code == "v":
        return table.integers(field) if table else ()
    value = table.number(field, "b" if code in "pa" else code, default) if table else default
    names = {"p": schema.PADDINGS, "a": schema.ACTIVATIONS}.get(code)
    if names is None:
        return value
    if not 0 <= value < len(names):
        raise FormatError(f"{table.buffer.what if table else ''} is damaged: {value} is no padding or activation.")
    return names[value]
