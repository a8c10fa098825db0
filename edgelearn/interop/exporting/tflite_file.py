"""The bytes of a TFLite file, a flatbuffer: tensors and operators in, bytes out.

Schema: https://github.com/tensorflow/tensorflow/blob/master/tensorflow/compiler/mlir/lite/schema/schema.fbs
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import flatbuffers
import numpy as np
import tflite

from .graph import Quantization

IDENTIFIER, VERSION = b"TFL3", 3
TYPES = {"bool": "BOOL", "float16": "FLOAT16", "float32": "FLOAT32", "int8": "INT8", "int32": "INT32", "int64": "INT64"}
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
    """An operator: its code in the schema, its version, and the fields of its options."""

    code: str
    inputs: Sequence[TfliteTensor | None]
    output: TfliteTensor
    version: int = 1
    options: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict)


def to_bytes(
    name: str, inputs: Mapping[str, TfliteTensor], outputs: Mapping[str, TfliteTensor],
    operators: Sequence[TfliteOperator], metadata: Mapping[str, bytes],
) -> bytes:  # fmt: skip
    """Return the file of one graph, with a signature "serving_default" that names inputs and outputs, and `metadata` by
    name."""
    return _Writer().file(name, inputs, outputs, operators, metadata)


class _Writer:
    """Tables are written before those that refer to them."""

    def __init__(self) -> None:
        self.builder = flatbuffers.Builder(1 << 16)
        self.buffers: list[int] = [self._table("Buffer")]  # number 0 is empty
        self.numbers: dict[tuple[str, bytes], int] = {}  # vectors, written once each
        self.contents: dict[bytes, int] = {}  # numbers of buffers

    def file(self, name, inputs, outputs, operators, metadata) -> bytes:
        tensors = dict.fromkeys(inputs.values())
        tensors |= {t: None for o in operators for t in (*o.inputs, o.output) if t is not None}
        index = {tensor: i for i, tensor in enumerate(tensors)}
        codes = {(o.code, o.version): None for o in operators}
        code_index = {code: i for i, code in enumerate(codes)}
        written = [self._tensor(tensor) for tensor in tensors]
        lines = [self._operator(o, index, code_index[o.code, o.version]) for o in operators]
        ends = {"Inputs": [index[t] for t in inputs.values()], "Outputs": [index[t] for t in outputs.values()]}
        graph = self._table(
            "SubGraph", Tensors=self._offsets(written), Operators=self._offsets(lines), Name=self._text(name),
            **{key: self._integers(value) for key, value in ends.items()},
        )  # fmt: skip
        entries = []
        for key, content in metadata.items():
            self.buffers.append(self._table("Buffer", Data=self._data(content)))
            entries.append(self._table("Metadata", Name=self._text(key), Buffer=len(self.buffers) - 1))
        signature = self._table(
            "SignatureDef", SignatureKey=self._text("serving_default"), SubgraphIndex=0,
            Inputs=self._names(inputs, index), Outputs=self._names(outputs, index),
        )  # fmt: skip
        model = self._table(
            "Model", Version=VERSION, OperatorCodes=self._offsets([self._code(*code) for code in codes]),
            Subgraphs=self._offsets([graph]), Description=self._text("edgelearn"), Buffers=self._offsets(self.buffers),
            Metadata=self._offsets(entries), SignatureDefs=self._offsets([signature]),
        )  # fmt: skip
        self.builder.Finish(model, IDENTIFIER)
        return bytes(self.builder.Output())

    def _names(self, tensors: Mapping[str, TfliteTensor], index: Mapping[TfliteTensor, int]) -> int:
        maps = [self._table("TensorMap", Name=self._text(n), TensorIndex=index[t]) for n, t in tensors.items()]
        return self._offsets(maps)

    def _tensor(self, tensor: TfliteTensor) -> int:
        number = 0
        if tensor.array is not None:
            content = np.ascontiguousarray(tensor.array).tobytes()
            if content not in self.contents:
                self.buffers.append(self._table("Buffer", Data=self._data(content)))
                self.contents[content] = len(self.buffers) - 1
            number = self.contents[content]
        fields = {
            "Name": self._text(tensor.name), "Shape": self._integers(tensor.shape),
            "Type": getattr(tflite.TensorType, TYPES[tensor.dtype]), "Buffer": number, "HasRank": True,
        }  # fmt: skip
        if tensor.batched:
            fields["ShapeSignature"] = self._integers([-1, *tensor.shape[1:]])
        if (q := tensor.quantization) is not None:
            scales = np.atleast_1d(q.scale).astype(np.float32)
            fields["Quantization"] = self._table(
                "QuantizationParameters", Scale=self._numbers(scales),
                ZeroPoint=self._numbers(np.full(len(scales), q.zero, np.int64)), QuantizedDimension=q.axis or 0,
            )  # fmt: skip
        return self._table("Tensor", **fields)

    def _operator(self, operator: TfliteOperator, index: Mapping[TfliteTensor, int], code: int) -> int:
        inputs = [-1 if tensor is None else index[tensor] for tensor in operator.inputs]
        fields: dict[str, Any] = {
            "OpcodeIndex": code, "Inputs": self._integers(inputs),
            "Outputs": self._integers([index[operator.output]]),
        }  # fmt: skip
        if operator.options:
            settings = {k: self._integers(v) if isinstance(v, tuple) else v for k, v in operator.fields.items()}
            fields["BuiltinOptionsType"] = getattr(tflite.BuiltinOptions, operator.options)
            fields["BuiltinOptions"] = self._table(operator.options, **settings)
        return self._table("Operator", **fields)

    def _code(self, code: str, version: int) -> int:
        number = getattr(tflite.BuiltinOperator, code)
        return self._table("OperatorCode", BuiltinCode=number, DeprecatedBuiltinCode=min(number, 127), Version=version)

    def _table(self, name: str, **fields: Any) -> int:
        getattr(tflite, f"{name}Start")(self.builder)
        for key, value in fields.items():
            getattr(tflite, f"{name}Add{key}")(self.builder, value)
        return getattr(tflite, f"{name}End")(self.builder)

    def _text(self, text: str) -> int:
        return self.builder.CreateString(text)

    def _numbers(self, numbers: np.ndarray) -> int:
        key = numbers.dtype.str, numbers.tobytes()
        if key not in self.numbers:
            self.numbers[key] = self.builder.CreateNumpyVector(numbers)
        return self.numbers[key]

    def _integers(self, numbers: Sequence[int]) -> int:
        return self._numbers(np.array(numbers, np.int32))

    def _offsets(self, offsets: Sequence[int]) -> int:
        self.builder.StartVector(4, len(offsets), 4)
        for offset in reversed(offsets):
            self.builder.PrependUOffsetTRelative(offset)
        return self.builder.EndVector()

    def _data(self, content: bytes) -> int:
        """Bytes, aligned."""
        builder = self.builder
        builder.StartVector(1, len(content), ALIGNMENT)
        builder.head -= len(content)
        builder.Bytes[builder.head : builder.head + len(content)] = content
        return builder.EndVector()
