"""The end of a mini-batch: check the gradients, commit statistics, update the parameters."""

from __future__ import annotations

from collections.abc import Mapping

from edgelearn.launch import Buffer, Role
from edgelearn.ops import Optimizer, Tensor
from edgelearn.ops.finish import emit_finite_check, emit_unscaled
from edgelearn.ops.optimizers.average import emit_average
from edgelearn.ops.optimizers.base import AVERAGE, REFERENCE
from edgelearn.ops.optimizers.commit import emit_commit
from edgelearn.ops.optimizers.norms import Clipping
from edgelearn.ops.optimizers.proximal import emit_proximal
from edgelearn.ops.pieces import Pieces
from edgelearn.ops.quantize import WEIGHT_ROWS
from edgelearn.ops.tensor import BLOCK

from .lowering import Lowering


def emit_update(lowering: Lowering) -> None:
    """Emit the update into `finish`. Every launch of it does nothing if a gradient is NaN or infinite."""
    storage, finish, control, optimizer = (
        lowering.storage,
        lowering.finish,
        lowering.control,
        lowering.request.optimizer,
    )
    assert optimizer is not None
    lowering.quantizers.statistics.check(finish)
    lowering.at("optimizer")
    finish.emit_jobs()
    total = storage.sizes[Role.PARAMETER]
    whole = storage.stretch(Role.GRADIENT, 0, total)
    if lowering.request.compute.scales_loss:
        emit_unscaled(finish, whole, control)
    clipping = Clipping(optimizer, [g.buffer for g in storage.gradients.values()], whole, control)
    factors = clipping.emit_factors(finish)
    emit_finite_check(finish, storage.stretch(Role.CHECK, 0, storage.sizes[Role.CHECK]), control)
    lowering.quantizers.statistics.learn(finish)
    finish.emit_jobs()
    lowering.at("optimizer")
    if statistics := storage.sizes.get(Role.STATISTICS):
        lasting, moving = (storage.stretch(role, 0, statistics) for role in (Role.STATISTICS, Role.MOVING))
        emit_commit(lowering.prepare, lasting, moving, control)
        emit_commit(finish, moving, lasting, control)
    if optimizer.clips:
        clipping.emit(finish, factors)
    parameters, slots = storage.stretch(Role.PARAMETER, 0, total), {slot.name: slot for slot in storage.slots}
    if optimizer.proximal:
        emit_proximal(finish, optimizer, parameters, whole, slots[REFERENCE], control)
    _emit_rules(lowering, optimizer)
    if optimizer.use_ema:
        emit_average(finish, optimizer, parameters, slots[AVERAGE], control)


def _emit_rules(lowering: Lowering, optimizer: Optimizer) -> None:
    """Emit the optimizer's rule, for all parameters at once or tensor by tensor."""
    storage, finish, control = lowering.storage, lowering.finish, lowering.control
    if optimizer.per_tensor:
        for name, w in storage.parameters.items():
            slots = [storage.slot_tensors[f"{slot}/{name}"].buffer for slot in optimizer.slots]
            decay = lowering.network.parameters[name].weight.decays
            optimizer.emit_update(finish, w.buffer, storage.gradients[name].buffer, slots, control, decay)
        finish.emit_jobs()
        return
    starts = [storage.offsets[slot] for slot in storage.slots if slot.name in optimizer.slots]
    extremes = lowering.quantizers.kernels.extremes
    whole = [(0, storage.sizes[Role.PARAMETER], False)]
    for offset, nbytes, decay in storage.ranges if optimizer.weight_decay else whole:
        if nbytes:
            w, g = (storage.stretch(role, offset, nbytes) for role in (Role.PARAMETER, Role.GRADIENT))
            slots = [storage.stretch(Role.OPTIMIZER, start + offset, nbytes) for start in starts]
            finish.pieces = _pieces(lowering, offset, nbytes, extremes) if extremes else None
            optimizer.emit_update(finish, w, g, slots, control, decay)


def _pieces(lowering: Lowering, offset: int, nbytes: int, extremes: Mapping[Buffer, Tensor]) -> Pieces | None:
    """The parameters in `nbytes` bytes from `offset`, in pieces of kernels as `extremes` has them, and of all between
    them; None if there is no such kernel."""
    storage, unit = lowering.storage, 4 * BLOCK
    found, rows, done = [], [], 0

    def skip(stop: int) -> None:
        rows.extend((start, min(start + WEIGHT_ROWS, stop), -1) for start in range(done, stop, WEIGHT_ROWS))

    for w in storage.parameters.values():
        first, measured = (storage.offsets[w.buffer] - offset) // unit, extremes.get(w.buffer)
        if measured is None or not 0 <= first < nbytes // unit:
            continue
        found.append(measured)
        skip(first)
        target = storage.offsets[measured.buffer] // unit
        for block in range(w.blocks):
            for start in range(0, w.rows, WEIGHT_ROWS):
                at = first + block * w.rows
                rows.append((at + start, at + min(start + WEIGHT_ROWS, w.rows), target))
                target += 2
        done = first + w.blocks * w.rows
    skip(nbytes // unit)
    return Pieces(len(rows), lowering.finish.table(tuple(rows)), tuple(found)) if found else None
