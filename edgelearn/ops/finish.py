"""The end of a mini-batch: gradients summed, completed and checked."""

from __future__ import annotations

from edgelearn.launch import Buffer, In, Role

from .batchnorm import Statistics
from .control import Control
from .emit import Emitter
from .quantized_tensor import Stored, reads, stored_macros
from .sums import Sum
from .tensor import BLOCK, Tensor, ceil_div

ROWS_CPU, ROWS_GPU = 256, 8  # of a kernel's gradient that a work-item completes
FEW = 64  # blocks a compute unit of a GPU that leave it waiting, so that a work-group shares their partial sums
COUNTERS = 256  # work-items of a GPU that count flags


def emit_sum(e: Emitter, found: Sum) -> None:
    """Complete a gradient that needs no more than its sum."""
    _emit_sum(e, found, None, None)


def emit_kernel_sum(e: Emitter, found: Sum, statistics: Statistics, kernel: Stored | None) -> Tensor | None:
    """Complete the gradient of a kernel behind kept statistics. With `kernel`, as the forward pass read it, also its
    part of dgamma, for `emit_gamma`."""
    return _emit_sum(e, found, statistics.scale, kernel)


def emit_gamma(
    e: Emitter, sums: Tensor, statistics: Statistics, bias: Tensor | None, dbeta: Tensor, dgamma: Tensor
) -> None:
    more = (bias.read,) if bias else ()
    parts = sums.rows // dgamma.blocks
    e.job(
        "finish.cl", "finish_gamma", dgamma.blocks * e.traits.members, dgamma.write,
        _flags(e, dgamma, dgamma.blocks).write, sums.read, statistics.mean.read, statistics.inverse.read, dbeta.read,
        *more, numbers=(parts,),
        bias=bias is not None,
    )  # fmt: skip


def emit_bias(e: Emitter, dbeta: Tensor, statistics: Statistics, dbias: Tensor) -> None:
    """dbias = dbeta * scale"""
    flags = _flags(e, dbias, dbias.blocks)
    e.job(
        "finish.cl", "finish_bias", dbias.blocks, dbias.write, flags.write, dbeta.read, statistics.scale.read,
    )  # fmt: skip


def emit_finite_check(e: Emitter, flags: Buffer, control: Control) -> None:
    """Count what the jobs above have flagged, and the loss: above 0, updates leave weights alone."""
    group = COUNTERS if e.traits.gpu else 1
    e.launch(
        "finish.cl", "count_nonfinite", (1,), In(flags), control.counters.update, flags.nbytes // 4, group=group,
    )  # fmt: skip


def _emit_sum(e: Emitter, found: Sum, scale: Tensor | None, kernel: Stored | None) -> Tensor | None:
    total, partials = found.total, found.partials
    few = total.rows * total.blocks < FEW * e.traits.compute_units
    shared = few and found.groups > e.traits.members > 1
    count = ROWS_CPU if not e.traits.gpu else 1 if shared else ROWS_GPU
    parts = ceil_div(total.rows, count)
    items = total.blocks * parts
    access = total.write if partials else total.update if scale else total.read
    accesses = [access, _flags(e, total, items).write]
    sums = None
    if partials:
        accesses.append(partials.read)
    if scale:
        accesses.append(scale.read)
    if kernel:
        sums = e.tensor(f"{total.buffer.name} times kernel", (items, BLOCK), Role.PARTIAL)
        accesses += [*reads(kernel), sums.write]
    e.job(
        "finish.cl", "finish_sum", items * (e.traits.members if shared else 1), *accesses,
        numbers=(total.rows, total.blocks, count, found.groups), shared=shared,
        partials=partials is not None, scale=scale is not None, gamma=kernel is not None,
        **(stored_macros(kernel) if kernel else {}),
    )  # fmt: skip
    return sums


def _flags(e: Emitter, gradient: Tensor, items: int) -> Tensor:
    parts = BLOCK // e.traits.vector
    return e.tensor(f"{gradient.buffer.name} flags", (1, items * parts), Role.CHECK)
