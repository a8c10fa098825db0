"""Operators of a TFLite file and their constants, as they are appended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tflite

from .graph import Quantization
from .tflite_file import TfliteOperator, TfliteTensor


class Operators:
    """Operators in the order in which they run; `emit` appends one."""

    def __init__(self) -> None:
        self.operators: list[TfliteOperator] = []

    def shape_of(self, x: TfliteTensor, y: TfliteTensor) -> TfliteTensor:
        """The shape of `y`, whose batch is that of `x`, as an int32 tensor."""
        whole = TfliteTensor(f"{y.name}/input shape", (4,), "int32")
        self.emit("SHAPE", [x], whole, "ShapeOptions", OutType=tflite.TensorType.INT32)
        batch = TfliteTensor(f"{y.name}/batch", (1,), "int32")
        self.emit("STRIDED_SLICE", [whole, *(self.numbers([n], y, f"batch {n}") for n in (0, 1, 1))], batch,
                  "StridedSliceOptions")  # fmt: skip
        found = TfliteTensor(f"{y.name}/shape", (4,), "int32")
        self.emit("CONCATENATION", [batch, self.numbers(y.shape[1:], y, "size")], found, "ConcatenationOptions", Axis=0)
        return found

    def constant(self, array: Any, name: str) -> TfliteTensor:
        array = np.asarray(array)
        return TfliteTensor(name, array.shape, str(array.dtype), array)

    def numbers(self, values: Any, like: TfliteTensor, what: str) -> TfliteTensor:
        """int32 constants of an operator that writes `like`."""
        return self.constant(np.asarray(values, np.int32), f"{like.name}/{what}")

    def emit(
        self, code: str, inputs: Sequence[TfliteTensor | None], output: TfliteTensor, options: str = "",
        version: int = 1, **fields: Any,
    ) -> None:  # fmt: skip
        self.operators.append(TfliteOperator(code, inputs, output, version, options, fields))

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
            self.emit("PAD", [x, paddings], y, "PadOptions", 2 if x.dtype == "int8" else 1)
        elif x.dtype == "int8":
            number = TfliteTensor(f"{y.name}/value", (), "int8", np.array(-128, np.int8), x.quantization)
            self.emit("PADV2", [x, paddings, number], y, "PadV2Options", 2)
        else:
            number = self.constant(np.float32(value), f"{y.name}/value")
            self.emit("PADV2", [x, paddings, number], y, "PadV2Options")
