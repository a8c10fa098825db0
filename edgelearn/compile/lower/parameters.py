"""Gradients of the parameters of linear stages: summed in each micro-batch, completed at the end of the mini-batch."""

from __future__ import annotations

from edgelearn.graph.fuse import Stage
from edgelearn.launch import Role
from edgelearn.ops import batchnorm, finish, reduce
from edgelearn.ops import quantized_copy as quantized_copy
from edgelearn.ops.quantized import family
from edgelearn.ops.quantized_tensor import QuantizedTensor, Stored
from edgelearn.ops.sums import Sum
from edgelearn.ops.tensor import Tensor

from .lowering import Lowering, linear, norm


def emit_parameter_gradients(
    lowering: Lowering, stage: Stage, x: Stored, dy: Stored, statistics: batchnorm.Statistics | None
) -> None:
    """Emit the gradients of a stage's kernel and bias from its input and output gradient.

    With stored `statistics`, `dy` is the gradient behind scale and shift: those of kernel, bias, gamma and beta follow
    from the sums of its products (see kernels/finish.cl).
    """
    dkernel, dbias = (lowering.gradient(stage.name, role) for role in ("kernel", "bias"))
    if statistics is None:
        for part in filter(None, _emit_sums(lowering, stage, x, dy, dkernel, dbias)[::-1]):
            finish.emit_sum(lowering.finish, part)
        return
    dgamma, dbeta = (lowering.gradient(norm(stage)[0].name, role) for role in ("gamma", "beta"))
    kernel_total, dy_total = dkernel, dbeta
    if dgamma and not dkernel:
        kernel_total = gradient_workspace(lowering, stage, "kernel gradient for gamma", lowering.master_kernel(stage))
    if (dgamma or dbias) and not dbeta:
        dy_total = gradient_workspace(lowering, stage, "sum of gradients", statistics.scale)
    kernel_sum, dy_sum = _emit_sums(lowering, stage, x, dy, kernel_total, dy_total)
    if dy_sum:
        finish.emit_sum(lowering.finish, dy_sum)
    if kernel_sum:
        kernel = lowering.kernel(stage) if dgamma else None
        products = finish.emit_kernel_sum(lowering.finish, kernel_sum, statistics, kernel)
        if dgamma and products and dy_total:
            finish.emit_gamma(lowering.finish, products, statistics, lowering.bias(stage), dy_total, dgamma)
    if dbias and dy_total:
        finish.emit_bias(lowering.finish, dy_total, statistics, dbias)


def gradient_workspace(lowering: Lowering, stage: Stage, name: str, like: Tensor) -> Tensor:
    """Memory for a gradient of no trained parameter, from which that of another one is computed."""
    return lowering.storage.tensor(f"{stage.name}/{name}", like.shape, Role.GRADIENT)


def _emit_sums(
    lowering: Lowering, stage: Stage, x: Stored, dy: Stored, kernel_total: Tensor | None, dy_total: Tensor | None
) -> tuple[Sum | None, Sum | None]:
    """Add the products of x and dy to `kernel_total`, and dy to `dy_total`, where these are given; the sums that are to
    be completed."""
    op, micro, add = linear(stage), lowering.micro, not lowering.first
    if isinstance(dy, QuantizedTensor):
        if kernel_total:
            return family(op).emit_backward_weights(micro, op, x, dy, kernel_total, dy_total, add)
        return None, quantized_copy.emit_channel_sums(micro, dy, dy_total, add) if dy_total else None
    if kernel_total:
        assert isinstance(x, Tensor)
        return op.emit_backward_weights(micro, x, dy, kernel_total, dy_total, add)
    return None, reduce.emit_channel_sums(micro, dy, dy_total, add) if dy_total else None
