"""ONNX operators with weights or windows: convolutions, matrix products, normalization, pooling, resizing."""

from __future__ import annotations

import numpy as np

from edgelearn.errors import UnsupportedError
from edgelearn.ops import LocalResponseNormalization, Mean

from ..importing import Builder, Operator, Value, arithmetic, linear, shapes, windows
from .arguments import Operand, as_keras, integers, known, padding_of, pairs

CHANNELS = 1  # axis of the channels


def conv(b: Builder, op: Operator, x: Value, kernel: np.ndarray, bias: np.ndarray | None = None) -> Value:
    kernel = known(kernel, "kernel")
    strides, dilation = pairs(op, kernel.ndim - 2, "strides", "dilations")
    groups, kernel = op.attributes.get("group", 1), as_keras(kernel)
    padding = padding_of(op, x, (kernel.shape[0], kernel.shape[1]), strides, dilation)
    return linear.conv(
        b, x, kernel, bias, strides=strides, padding=padding, dilation=dilation, groups=groups,
        channels=CHANNELS,
    )  # fmt: skip


def conv_transpose(b: Builder, op: Operator, x: Value, kernel: np.ndarray, bias: np.ndarray | None = None) -> Value:
    kernel = known(kernel, "kernel")
    strides, dilation = pairs(op, kernel.ndim - 2, "strides", "dilations")
    if "output_shape" in op.attributes:
        raise UnsupportedError("A transposed convolution with output_shape.", "pads and output_padding.")
    more = (0,) * (4 - kernel.ndim) + tuple(op.attributes.get("output_padding", (0,) * (kernel.ndim - 2)))
    kernel = kernel[:, :, None] if kernel.ndim == 3 else kernel  # (in, out, height, width)
    if op.attributes.get("auto_pad", "NOTSET") == "SAME_LOWER":
        raise UnsupportedError("A transposed convolution with auto_pad='SAME_LOWER'.", "SAME_UPPER, VALID or pads.")
    padding = padding_of(op, x, kernel.shape[2:], strides, dilation)
    return linear.transposed_conv(
        b, x, kernel.transpose(2, 3, 0, 1), bias, strides=strides, padding=padding,
        output_padding=(more[0], more[1]), dilation=dilation, groups=op.attributes.get("group", 1), channels=CHANNELS,
    )  # fmt: skip


def gemm(b: Builder, op: Operator, x: Operand, kernel: Operand, bias: Operand | None = None) -> Operand:
    a = op.attributes
    x = shapes.transpose(b, x, (1, 0)) if a.get("transA", 0) else x
    kernel = shapes.transpose(b, kernel, (1, 0)) if a.get("transB", 0) else kernel
    alpha, beta = a.get("alpha", 1.0), a.get("beta", 1.0)
    kernel = kernel if alpha == 1 else arithmetic.scale(b, kernel, alpha)
    if not isinstance(x, Value) or not isinstance(kernel, np.ndarray) or isinstance(bias, Value):
        y = linear.matmul(b, x, kernel)
        return y if bias is None else arithmetic.add(b, y, arithmetic.scale(b, bias, beta))
    if bias is None:
        return linear.dense(b, x, kernel)
    array = np.broadcast_to(bias if beta == 1 else bias * bias.dtype.type(beta), (1, kernel.shape[1]))[0]
    return linear.dense(b, x, kernel, array)


def matmul(b: Builder, op: Operator, x: Operand, y: Operand) -> Operand:
    return linear.matmul(b, x, y)


def batchnorm(
    b: Builder, op: Operator, x: Value, gamma: np.ndarray, beta: np.ndarray, mean: np.ndarray, variance: np.ndarray
) -> Value:
    if op.attributes.get("training_mode", 0):
        raise UnsupportedError("training_mode=1.", "An export for inference; edgelearn trains it all the same.")
    if not op.attributes.get("spatial", 1):
        raise UnsupportedError("Statistics of each pixel (spatial=0).", "Statistics of channels.")
    epsilon, momentum = op.attributes.get("epsilon", 1e-5), op.attributes.get("momentum", 0.9)
    return linear.batchnorm(b, x, gamma, beta, mean, variance, epsilon=epsilon, momentum=momentum, channels=CHANNELS)


def layer_normalization(b: Builder, op: Operator, x: Value, scale: np.ndarray, bias: np.ndarray | None = None) -> Value:
    axis = x.axis(op.attributes.get("axis", -1))
    return linear.layer_normalization(b, x, range(axis, x.rank), scale, bias, op.attributes.get("epsilon", 1e-5))


def group_normalization(b: Builder, op: Operator, x: Value, scale: np.ndarray, bias: np.ndarray) -> Value:
    """Before opset 21 scale and bias have one number for each group."""
    groups, epsilon = op.attributes["num_groups"], op.attributes.get("epsilon", 1e-5)
    scale, bias = (np.repeat(a, x.shape[1] // groups) if op.version < 21 else a for a in (scale, bias))
    return linear.group_normalization(b, x, groups, scale, bias, epsilon, CHANNELS)


def instance_normalization(b: Builder, op: Operator, x: Value, scale: np.ndarray, bias: np.ndarray) -> Value:
    return linear.group_normalization(b, x, -1, scale, bias, op.attributes.get("epsilon", 1e-5), CHANNELS)


def local_response(b: Builder, op: Operator, x: Value) -> Value:
    a = op.attributes
    norm = LocalResponseNormalization(
        a["size"], a.get("alpha", 1e-4), a.get("beta", 0.75), a.get("bias", 1.0), average=True
    )
    return arithmetic.local_response(b, x, norm, CHANNELS)


def lp_normalization(b: Builder, op: Operator, x: Value) -> Value:
    if op.attributes.get("p", 2) != 2:
        raise UnsupportedError("Normalization by the sum of magnitudes.", "p=2.")
    return arithmetic.unit_length(b, x, op.attributes.get("axis", -1))


def max_pool(b: Builder, op: Operator, x: Value) -> Value:
    n = len(op.attributes["kernel_shape"])
    size, strides, dilation = pairs(op, n, "kernel_shape", "strides", "dilations")
    if dilation != (1, 1) or len(op.outputs) > 1:
        raise UnsupportedError("Maximum pooling with dilation or with indices.", "Plain windows.")
    ceil = bool(op.attributes.get("ceil_mode", 0))
    return windows.max_pool(b, x, size, strides, padding_of(op, x, size, strides), ceil=ceil, channels=CHANNELS)


def average_pool(b: Builder, op: Operator, x: Value) -> Value:
    n = len(op.attributes["kernel_shape"])
    size, strides, dilation = pairs(op, n, "kernel_shape", "strides", "dilations")
    if dilation != (1, 1):
        raise UnsupportedError("Average pooling with dilation.", "Plain windows.")
    return windows.average_pool(
        b, x, size, strides, padding_of(op, x, size, strides), ceil=bool(op.attributes.get("ceil_mode", 0)),
        counts_padding=bool(op.attributes.get("count_include_pad", 0)), channels=CHANNELS,
    )  # fmt: skip


def global_average_pool(b: Builder, op: Operator, x: Value) -> Operand:
    return windows.reduce(b, x, Mean, range(2, x.rank), keepdims=True)


def global_max_pool(b: Builder, op: Operator, x: Value) -> Operand:
    return windows.global_max_pool(b, x, CHANNELS)


def resize(
    b: Builder, op: Operator, x: Value, roi: Operand | None = None, scales: Operand | None = None,
    sizes: Operand | None = None,
) -> Value:  # fmt: skip
    """Opset 10 has no regions: its second input are the scales."""
    if op.version < 11 and op.kind == "Resize":
        scales = roi
    if op.kind == "Upsample":
        old = [1, 1, *(op.attributes.get(name, 1.0) for name in ("height_scale", "width_scale"))]
        scales = roi if roi is not None else np.array(op.attributes.get("scales", old))
    scale = None
    if sizes is not None:
        target = integers(sizes)
    else:
        factors = [float(n) for n in known(scales, "scales")]
        target = [int(np.floor(n * factor)) for n, factor in zip(x.shape, factors, strict=True)]
        scale = (factors[-2], factors[-1])
    if x.rank != 4 or len(target) != 4 or target[1] != x.shape[1]:
        raise UnsupportedError(f"{x.shape} becomes {tuple(target)}.", "Other heights and widths.")
    old = "asymmetric" if op.version < 11 else "half_pixel"
    return windows.resize(
        b, x, (target[2], target[3]), op.attributes.get("mode", "nearest"),
        coordinates=op.attributes.get("coordinate_transformation_mode", old),
        scale=scale, rounding=op.attributes.get("nearest_mode", "floor" if op.version < 11 else "round_prefer_floor"),
        channels=CHANNELS,
    )  # fmt: skip
