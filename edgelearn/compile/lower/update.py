"""The end of a mini-batch: check the gradients, commit statistics, update the parameters."""

from __future__ import annotations

from edgelearn.launch import Role
from edgelearn.ops.finish import emit_finite_check
from edgelearn.ops.optimizers import emit_commit

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
    emit_finite_check(finish, storage.stretch(Role.CHECK, 0, storage.sizes[Role.CHECK]), control)
    lowering.quantizers.statistics.learn(finish)
    finish.emit_jobs()
    lowering.at("optimizer")
    if statistics := storage.sizes.get(Role.STATISTICS):
        lasting, moving = (storage.stretch(role, 0, statistics) for role in (Role.STATISTICS, Role.MOVING))
        emit_commit(lowering.prepare, lasting, moving, control)
        emit_commit(finish, moving, lasting, control)
    total = storage.sizes[Role.PARAMETER]
    for offset, nbytes, decay in storage.ranges if optimizer.weight_decay else [(0, total, False)]:
        if nbytes:
            w, g = (storage.stretch(role, offset, nbytes) for role in (Role.PARAMETER, Role.GRADIENT))
            slots = [storage.stretch(Role.OPTIMIZER, storage.offsets[slot] + offset, nbytes) for slot in storage.slots]
            optimizer.emit_update(finish, w, g, slots, control, decay)
