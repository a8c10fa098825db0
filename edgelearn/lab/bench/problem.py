"""The numbers of a workload, drawn from its seed: every contender gets the same."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgelearn.errors import PlanError
from edgelearn.graph import Network, split_frozen, without_softmax_and_dropout
from edgelearn.interop import find_network
from edgelearn.interop.weights import Weights
from edgelearn.ops import Add, Conv2D, Dense

from .ops import OpProblem, make_op_problem
from .workloads import Workload

CACHED_CLASSES = 5


@dataclass(frozen=True)
class Problem:
    """A network that gives logits, its weights by name, inputs (batch, *input_shape) and integer labels."""

    network: Network
    weights: dict[str, np.ndarray]
    inputs: np.ndarray
    labels: np.ndarray


def make_network(workload: Workload) -> Network:
    """The network of a workload, as `find_part`."""
    return find_part(workload)[0]


def find_part(workload: Workload) -> tuple[Network, Weights]:
    """The network of a workload, without softmax and dropout, of "cached" the part above the stored features; and the
    weights that come with it, if any.

    Raises as `find_network`, PlanError for a single op, and where "cached" has nothing to store.
    """
    if workload.op:
        raise PlanError(f"Workload {workload.name} is a single op without a plan: choose one of a whole network.")
    settings = {"classes": CACHED_CLASSES} if workload.kind == "cached" else {}
    file = find_network(workload.network, **settings)
    network = without_softmax_and_dropout(file.network)
    _ = network.input_shape, network.output  # one of each, or PlanError
    if workload.trains and network.output.shape[:-1]:
        raise PlanError(f"'{workload.network}' gives {network.output.shape}: steps are timed with class numbers.")
    if workload.kind != "cached":
        return network, file.weights
    last = {type(node.op): node.name for node in network.nodes.values()}
    heads = [last[kind] for kind in (Conv2D, Dense) if kind in last]
    split = split_frozen(network.freeze().unfreeze(*heads)) if heads else None
    if split is None:
        raise PlanError(f"'{workload.network}' has no frozen part below {' and '.join(heads)}: nothing can be stored.")
    return split.suffix, file.weights


def make_problem(workload: Workload) -> Problem | OpProblem:
    """Network, weights, inputs and labels; an OpProblem of a single op. Same workload, same numbers."""
    if workload.op:
        return make_op_problem(workload.op, workload.batch, workload.seed, workload.learning_rate)
    network, known = find_part(workload)
    inputs = np.random.default_rng([workload.seed, 2])
    shape = (workload.batch, *network.input_shape)
    if workload.kind == "cached":
        data = np.clip(inputs.standard_normal(shape, np.float32), 0, 6)
    else:
        data = inputs.random(shape, np.float32) * 2 - 1
    labels = inputs.integers(0, network.output.shape[-1], workload.batch)
    drawn = _draw_weights(network, np.random.default_rng([workload.seed, 1]))
    return Problem(network, drawn | {name: known[name] for name in drawn if name in known}, data, labels)


def _draw_weights(network: Network, random: np.random.Generator) -> dict[str, np.ndarray]:
    """He's initialization, which keeps the second moment near 1 through ReLUs, so that statistics near 0 and 1 fit. A
    BatchNormalization that ends a residual branch has small scales: the sum of many branches stays small. Other roles
    have their initializers' values."""
    centers = {"gamma": 1.0, "moving_variance": 1.0, "beta": 0.0, "moving_mean": 0.0}
    parameters = network.parameters.values()
    initial = {} if all(p.role in (*centers, "kernel", "bias") for p in parameters) else network.initialize()
    found = {}
    for name, parameter in network.parameters.items():
        weight, role = parameter.weight, parameter.role
        if role == "kernel":
            gain = 1 if isinstance(network.nodes[parameter.layer].op, Dense) else 2
            found[name] = random.standard_normal(weight.shape, np.float32) * np.float32((gain / weight.fan_in) ** 0.5)
        elif role == "bias":
            found[name] = np.zeros(weight.shape, np.float32)
        elif role not in centers:
            found[name] = initial[name]
        else:
            found[name] = (centers[role] + random.uniform(-0.1, 0.1, weight.shape)).astype(np.float32)
            if role == "gamma" and any(isinstance(node.op, Add) for node in network.consumers(parameter.layer)):
                found[name] *= np.float32(0.2)
    return found
