"""Lower one program: forward pass, loss, backward pass, update."""

from __future__ import annotations

from edgelearn.compile.memory.rematerialiser import Rematerialisation
from edgelearn.compile.program import Program, ProgramKey
from edgelearn.compile.request import Request
from edgelearn.compile.storage import Storage
from edgelearn.ops import Softmax, Traits
from edgelearn.ops.loss import emit_count
from edgelearn.ops.tensor import Tensor

from .backward import BackwardPass
from .forward import ForwardPass
from .lowering import Lowering
from .update import emit_update


def lower(request: Request, storage: Storage, traits: Traits, key: ProgramKey) -> Program:
    """The program of `key`. Persistent tensors are added to `storage`. Raises PlanError for a network that can't be
    trained as the request says."""
    return trace(request, storage, traits, key)[0]


def trace(request: Request, storage: Storage, traits: Traits, key: ProgramKey) -> tuple[Program, Lowering]:
    """As `lower`, with the lowering, whose rematerialiser knows the program as it is if everything is stored."""
    lowering = Lowering(request, storage, traits, key)
    stages, output, loss = lowering.stages, lowering.network.output, lowering.loss
    takes_logits = isinstance(output.op, Softmax) and (loss is None or loss.takes_logits)
    logits = output.inputs[0] if takes_logits else output.name
    last = output.name
    if loss and logits != last:
        stages, last = [stage for stage in stages if stage.output is not output], logits
    forward = ForwardPass(lowering)
    forward.quantize_inputs()
    for stage in stages:
        forward.emit(stage, quantized=stage.output.name not in (logits, output.name))
    remat, micro = lowering.rematerialiser, lowering.micro
    loss_at = len(micro.launches)
    rematerialisation = Rematerialisation(loss_at, loss_at, {}, {}, {})
    if loss:
        backward = BackwardPass(lowering)
        answers = backward.emit_loss(last, loss)
        if lowering.trains:
            remat.start(lowering.tensors(), loss_at)
            for stage in reversed(stages):
                backward.emit(stage)
            rematerialisation = remat.finish()
            emit_update(lowering)
        lowering.at("loss")
        emit_count(micro, answers, lowering.control)
    lowering.prepare.emit_jobs()
    y = lowering.values[last]
    assert isinstance(y, Tensor)
    program = Program(
        lowering.prepare.launches, micro.launches, lowering.finish.launches, lowering.inputs, y, rematerialisation
    )
    return program, lowering
