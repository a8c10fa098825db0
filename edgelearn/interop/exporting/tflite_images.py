"""TFLite operators of images that take more than one: transposed convolutions, resizing, LRN."""

from __future__ import annotations

import tflite

from edgelearn.errors import FormatError

from .graph import Operation
from .tflite_file import TfliteTensor
from .tflite_operators import Operators


def transposed_conv(w: Operators, o: Operation, inputs: list[TfliteTensor], y: TfliteTensor) -> None:
    """Without padding, then cut; the rows and columns that no pixel reaches are zeros."""
    x, kernel, window = inputs[0], w.reordered(inputs[1], (3, 0, 1, 2)), o.attributes["window"]
    sizes = [(x.shape[1 + a] - 1) * window.strides[a] + kernel.shape[1 + a] for a in (0, 1)]
    begins = [side[0] for side in window.padding]
    missing = [max(begin + n - size, 0) for begin, n, size in zip(begins, y.shape[1:3], sizes, strict=True)]
    exact = not any(begins) and list(y.shape[1:3]) == sizes
    whole = y if exact else TfliteTensor(f"{y.name}/whole", (1, *sizes, y.shape[3]), "float32", None, None, True)
    shape = w.shape_of(x, whole)
    w.emit("TRANSPOSE_CONV", [shape, kernel, x], whole, "TransposeConvOptions", Padding=tflite.Padding.VALID,
           StrideH=window.strides[0], StrideW=window.strides[1])  # fmt: skip
    if exact:
        return
    if any(missing):
        whole = w.pad(whole, ((0, 0), (0, missing[0]), (0, missing[1]), (0, 0)), 0.0, f"{y.name}/padded")
    ends = [0, *(begin + n for begin, n in zip(begins, y.shape[1:3], strict=True)), 0]
    numbers = [w.numbers(values, y, what) for values, what in (((0, *begins, 0), "starts"), (ends, "ends"),
                                                                ((1, 1, 1, 1), "steps"))]  # fmt: skip
    w.emit("STRIDED_SLICE", [whole, *numbers], y, "StridedSliceOptions", BeginMask=0b1001, EndMask=0b1001)


def local_response(w: Operators, o: Operation, inputs: list[TfliteTensor], y: TfliteTensor) -> None:
    size, factor, beta, bias = (o.attributes[name] for name in ("size", "factor", "beta", "bias"))
    if size % 2 == 0:
        raise FormatError(f"TFLite normalizes over an odd number of channels, not {size} (layer '{y.name}').")
    w.emit("LOCAL_RESPONSE_NORMALIZATION", inputs, y, "LocalResponseNormalizationOptions", Radius=size // 2,
           Alpha=factor, Beta=beta, Bias=bias)  # fmt: skip


def resize(w: Operators, o: Operation, inputs: list[TfliteTensor], y: TfliteTensor) -> None:
    interpolation, coordinates, _ = o.attributes["how"]
    name, options = ("RESIZE_BILINEAR", "ResizeBilinearOptions")
    if interpolation == "nearest":
        name, options = ("RESIZE_NEAREST_NEIGHBOR", "ResizeNearestNeighborOptions")
    w.emit(name, [inputs[0], w.numbers(y.shape[1:3], y, "size")], y, options, 3,
           AlignCorners=coordinates == "align_corners", HalfPixelCenters=coordinates == "half_pixel")  # fmt: skip
