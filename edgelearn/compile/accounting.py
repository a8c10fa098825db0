"""Activation memory by the definitions that published figures use without naming them.

>>> print(account(make_plan(Request(mobilenet_v2(), optimizer=SGD(0.1), batchnorm="batch"), device)))
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import prod

from edgelearn.errors import PlanError
from edgelearn.graph.network import Network
from edgelearn.launch import Buffer
from edgelearn.ops import Activation, BatchNormalization, Conv2D, DepthwiseConv2D
from edgelearn.units import MB

from .arena import lifetimes
from .plan import Plan
from .program import Kind, Program

DEFINITIONS = {
    "stored": "written before the gradient of the loss and read after it; and the input, if the backward pass reads it",
    "paged": "offloaded between the passes, to the host's memory or a file",
    "peak": "largest sum of stored and workspace, as allocated: the arena of temporaries, and the input",
    "framework": "inputs of convolutions and BatchNorms, each tensor once: what a framework saves if activations work "
    "in place",
    "framework_not_in_place": "the same and inputs of activations: what PyTorch saves (2.13, ReLU6 in place or not)",
    "conv_inputs": "inputs of convolutions, each tensor once",
}


@dataclass(frozen=True)
class Accounting:
    """Bytes of a micro-batch's activations, by each of the DEFINITIONS. It prints as a table in MB.

    Arguments:
    - `stored`: held between the forward and the backward pass, from the plan's launches.
    - `paged`: held outside the device, as allocated.
    - `peak`: activations and workspace at their fullest moment, and the input, as allocated.
    - `framework`: inputs of convolutions and BatchNorms, each once: what a framework saves if activations work in
      place. It and the next two follow from the network's shapes, in float32 and without padding.
    - `framework_not_in_place`: the same and inputs of activations, as PyTorch saves them.
    - `conv_inputs`: inputs of convolutions, each once.
    """

    stored: int
    paged: int
    peak: int
    framework: int
    framework_not_in_place: int
    conv_inputs: int

    def __str__(self) -> str:
        """A table of MB, names and definitions."""
        values = ((f.name, getattr(self, f.name)) for f in fields(self))
        return "\n".join(f"{nbytes / MB:>9.2f} MB  {name:<22}  {DEFINITIONS[name]}" for name, nbytes in values)


def account(plan: Plan) -> Accounting:
    """Count the activations of a training plan. Raises PlanError for other plans."""
    network, n = plan.request.network, plan.request.micro_batch
    if plan.request.optimizer is None:
        raise PlanError("Only a training plan stores activations: give the request an optimizer.")
    convolved, normalized, activated = (
        _inputs(network, *kinds) for kinds in ((Conv2D, DepthwiseConv2D), (BatchNormalization,), (Activation,))
    )
    return Accounting(
        stored=sum(buffer.nbytes for buffer in stored(plan.program(Kind.TRAIN))),
        paged=plan.paged_bytes,
        peak=plan.arena_bytes + sum(x.buffer.nbytes for x in plan.storage.inputs.values()),
        framework=_nbytes(network, convolved | normalized, n),
        framework_not_in_place=_nbytes(network, convolved | normalized | activated, n),
        conv_inputs=_nbytes(network, convolved, n),
    )


def stored(program: Program) -> list[Buffer]:
    """Buffers that a training program holds between forward and backward pass, largest first."""
    launches, loss_at = program.micro, program.rematerialisation.loss_at
    held = [life.buffer for life in lifetimes(launches) if life.first < loss_at < life.last]
    read = {buffer for launch in launches[loss_at:] for buffer in launch.reads}
    held += [x.buffer for x in program.inputs.values() if x.buffer in read]
    return sorted(held, key=lambda buffer: -buffer.nbytes)


def _inputs(network: Network, *kinds: type) -> set[str]:
    return {node.inputs[0] for node in network.nodes.values() if isinstance(node.op, kinds)}


def _nbytes(network: Network, names: set[str], n: int) -> int:
    return 4 * n * sum(prod(network.shape_of(name)) for name in names)
