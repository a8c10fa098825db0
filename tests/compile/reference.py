"""A training step of any network in float64, layer by layer: what sessions are compared with."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from edgelearn.compile import Request
from edgelearn.graph import INPUT, Network
from edgelearn.ops import BatchNormalization, Dropout, Max, MaxPooling2D, Op, ReLU, Softmax

Arrays = dict[str, np.ndarray]


@dataclass
class Step:
    """Mean loss, right answers, gradients of all parameters, and the moving statistics afterwards."""

    loss: float = 0.0
    correct: int = 0
    gradients: Arrays = field(default_factory=dict)
    weights: Arrays = field(default_factory=dict)


def train_step(request: Request, weights: Arrays, x: np.ndarray, labels: np.ndarray, step: int) -> Step:
    """The step that a session takes for this mini-batch, in the request's micro-batches."""
    found = Step(weights={name: np.float64(w) for name, w in weights.items()})
    for first in range(0, len(x), request.micro_batch):
        part = slice(first, first + request.micro_batch)
        _micro_batch(request, found, np.float64(x[part]), labels[part], step, first, len(x))
    return found


def predict(network: Network, weights: Arrays, x: np.ndarray) -> np.ndarray:
    """The output with kept statistics, nothing dropped."""
    values = {INPUT: np.float64(x)}
    for node in network.nodes.values():
        own = {p.role: np.float64(weights[p.name]) for p in network.parameters.values() if p.layer == node.name}
        values[node.name] = node.op.reference_forward([values[name] for name in node.inputs], own)
    return values[network.output.name]


def _micro_batch(
    request: Request, found: Step, x: np.ndarray, labels: np.ndarray, step: int, first: int, examples: int
) -> None:
    network, weights = request.network, found.weights
    output = network.output
    end = output.inputs[0] if isinstance(output.op, Softmax) else output.name
    nodes = [node for node in network.nodes.values() if node is not output or end == output.name]
    own = {node.name: {p.role: weights[p.name] for p in network.parameters.values() if p.layer == node.name}
           for node in nodes}  # fmt: skip
    more: dict[str, dict] = {}  # what some ops take besides
    values = {INPUT: x}
    for node in nodes:
        inputs = [values[name] for name in node.inputs]
        if isinstance(node.op, Dropout):
            factors = node.op.factors(node.name, node.shape, len(x), request.seed, step, first)
            more[node.name] = {"factors": factors}
        elif isinstance(node.op, BatchNormalization):
            trained = {f"{node.name}/gamma", f"{node.name}/beta"} & network.trainable
            more[node.name] = {"batch": request.batchnorm == "batch" and bool(trained)}
        _check_margin(node.op, node.name, inputs[0])
        values[node.name] = node.op.reference_forward(inputs, own[node.name], **more.get(node.name, {}))
        if more.get(node.name, {}).get("batch"):
            _move_statistics(node.op, node.name, inputs[0], weights)

    logits = values[end]
    losses, gradient = request.loss.reference(logits, labels)
    found.loss += losses.sum() / examples
    found.correct += int((logits.argmax(-1) == labels).sum())
    gradients = {end: gradient * len(x) / examples}
    for node in reversed(nodes):
        if node.name not in gradients:
            continue
        inputs = [values[name] for name in node.inputs]
        dy = gradients[node.name]
        dxs, dweights = node.op.reference_backward(inputs, own[node.name], dy, **more.get(node.name, {}))
        for name, dx in zip(node.inputs, dxs, strict=True):
            gradients[name] = gradients.get(name, 0.0) + dx
        for role, dweight in dweights.items():
            name = f"{node.name}/{role}"
            found.gradients[name] = found.gradients.get(name, 0.0) + dweight


def _move_statistics(op: BatchNormalization, name: str, x: np.ndarray, weights: Arrays) -> None:
    for role, batch in zip(("moving_mean", "moving_variance"), op.reference_moments(x), strict=True):
        key = f"{name}/{role}"
        weights[key] = weights[key] * op.momentum + batch * (1 - op.momentum)


def _check_margin(op: Op, name: str, x: np.ndarray) -> None:
    """Where float32 could fall on the other side of a corner, gradients can't be compared."""
    if isinstance(op, ReLU):
        corners = (0,) if op.max_value is None else (0, op.max_value)
        margin = min(np.min(np.abs(x - corner)[x != corner], initial=np.inf) for corner in corners)
    elif isinstance(op, MaxPooling2D):
        window = op.window(x.shape[1:])
        padded = window.pad(x, -np.inf)
        second, most = np.sort([padded[region] for _, _, region in window.slices()], 0)[-2:]
        margin = np.min((most - second)[most > 0], initial=np.inf)  # ties at 0 are those of a ReLU before
    elif isinstance(op, Max):
        below = np.where(x < op._repeated(x, op.reference_forward([x], {})), x, -np.inf)
        margin = np.min(op.reference_forward([x], {}) - op.reference_forward([below], {}))
    else:
        return
    scale = np.abs(x).max()
    assert margin > 3e-6 * scale, f"choose another seed: '{name}' is {margin / scale:.0e} from a corner"
