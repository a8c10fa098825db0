"""The end of a mini-batch: sum up, complete and check gradients."""

from __future__ import annotations

from edgelearn.launch import Buffer, InOut, Role

from .batchnorm import Statistics
from .emit import Control, Emitter, GradientSum
from .formats import Stored, reads, stored_macros
from .tensor import BLOCK, Tensor, ceil_div

ROWS_CPU, ROWS_GPU = 256, 8  # of a kernel's gradient that a work-item completes
FEW = 64  # blocks a compute unit of a GPU that leave it idle, so that a work-group shares their partial sums
COUNTERS = 256  # work-items of a GPU's work-group that counts flags
FLAGS_OF_GROUP = 4096  # that it counts


def emit_sum(e: Emitter, gradient: GradientSum) -> None:
    """Emit the job that completes a gradient from its partial sums, and checks it, unless both is done."""
    if gradient.partials or not gradient.checked:
        _emit_sum(e, gradient, None, None)


def emit_kernel_sum(e: Emitter, gradient: GradientSum, statistics: Statistics, kernel: Stored | None) -> Tensor | None:
    """Emit the job that completes the gradient of a kernel whose BatchNorm uses moving statistics. With `kernel`, as
    the forward pass read it, returns its part of gamma's gradient, for `emit_gamma`."""
    return _emit_sum(e, gradient, statistics.scale, kernel)


def emit_gamma(
    e: Emitter, sums: Tensor, statistics: Statistics, bias: Tensor | None, dbeta: Tensor, dgamma: Tensor
) -> None:
    """Emit the job for gamma's gradient from `sums`, the kernel's part of it, and `dbeta`."""
    more = (bias.read,) if bias else ()
    parts = sums.rows // dgamma.blocks
    e.job(
        "finish.cl", "finish_gamma", dgamma.blocks * e.traits.members, dgamma.write,
        _flags(e, dgamma, dgamma.blocks).write, sums.read, statistics.mean.read, statistics.inverse.read, dbeta.read,
        *more, numbers=(parts,),
        bias=bias is not None,
    )  # fmt: skip


def emit_bias(e: Emitter, dbeta: Tensor, statistics: Statistics, dbias: Tensor) -> None:
    """Emit the job for dbias = dbeta * scale."""
    flags = _flags(e, dbias, dbias.blocks)
    e.job(
        "finish.cl", "finish_bias", dbias.blocks, dbias.write, flags.write, dbeta.read, statistics.scale.read,
    )  # fmt: skip


def emit_unscaled(e: Emitter, gradients: Buffer, control: Control) -> None:
    """Emit the division of all gradients by the scale of the loss."""
    blocks = gradients.nbytes // (4 * BLOCK)
    e.launch("finish.cl", "unscale", (blocks,), InOut(gradients), control.scalars.read, blocks)


def emit_finite_check(e: Emitter, flags: Buffer, control: Control) -> None:
    """Emit the count of gradients that were flagged, and of the loss, as not finite, which clears the flags. Above 0,
    updates leave the weights unchanged."""
    group, count, step = COUNTERS if e.traits.gpu else 1, flags.nbytes // 4, 1
    if count > FLAGS_OF_GROUP and e.traits.gpu:
        step, groups = FLAGS_OF_GROUP, ceil_div(count, FLAGS_OF_GROUP)
        e.launch("finish.cl", "gather_flags", (groups * group,), InOut(flags), count, step, group=group, whole=True)
    e.launch(
        "finish.cl", "count_nonfinite", (group,), InOut(flags), control.counters.update, count, step, group=group,
        whole=True,
    )  # fmt: skip


def _emit_sum(e: Emitter, gradient: GradientSum, scale: Tensor | None, kernel: Stored | None) -> Tensor | None:
    total, partials = gradient.total, gradient.partials
    few = total.rows * total.blocks < FEW * e.traits.compute_units
    shared = few and gradient.groups > e.traits.members > 1
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
        numbers=(total.rows, total.blocks, count, gradient.groups), shared=shared,
        partials=partials is not None, scale=scale is not None, gamma=kernel is not None,
        **(stored_macros(kernel) if kernel else {}),
    )  # fmt: skip
    return sums


def _flags(e: Emitter, gradient: Tensor, items: int) -> Tensor:
    parts = BLOCK // e.traits.vector
    return e.tensor(f"{gradient.buffer.name} flags", (1, items * parts), Role.CHECK)
