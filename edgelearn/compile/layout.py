"""A plan of a request, whatever it takes."""

from __future__ import annotations

from edgelearn.device import Device
from edgelearn.errors import PlanError
from edgelearn.ops import Traits

from .lower import input_block
from .memory.activation_memory import check
from .plan import Plan, Request
from .storage import Storage


def lay_out(request: Request, device: Device, traits: Traits) -> Plan:
    """Every launch and every byte. Raises PlanError for an impossible request."""
    network, micro = request.network, request.micro_batch
    if micro > request.batch_size:
        raise PlanError(f"A micro-batch of {micro} is larger than the mini-batch of {request.batch_size}.")
    if request.batchnorm not in ("moving", "batch"):
        raise PlanError(f"batchnorm is 'moving' or 'batch', not '{request.batchnorm}'.")
    if not 0 <= request.seed < 1 << 64:
        raise PlanError(f"A seed is a whole number from 0 to 2**64 - 1, not {request.seed}.")
    if not network.nodes:
        raise PlanError(f"The network '{network.name}' has no layers.")
    request.precision.check(network)
    check(network, request.activation_memory, request.precision)
    if request.optimizer and request.loss is None:
        raise PlanError("A training needs a loss to make smaller, but the request's is None: give it one.")
    trained = [name for name in network.parameters if name in network.trainable] if request.optimizer else []
    if request.optimizer and not trained:
        raise PlanError("Nothing to train: every parameter is frozen. Unfreeze some, e.g. network.unfreeze('dense').")
    storage = Storage(network, trained, request.optimizer, device.alignment, micro, input_block(network))
    plan = Plan(request, traits, device.alignment, storage, frozenset(network.trainable))
    if request.optimizer:
        sizes = plan.micro_batches(request.batch_size)
        for mode in request.precision.modes(training=True):
            for index, n in enumerate(sizes[:2] + sizes[2:][-1:]):
                plan.program(f"train{mode}", n, index == 0)
    for mode in request.precision.modes(training=False):
        if request.loss:
            plan.program(f"evaluate{mode}", micro)
        plan.program(f"predict{mode}", micro)
    return plan
