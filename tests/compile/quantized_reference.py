"""A training step with quantized tensors in float64, stage by stage: what simulated sessions are compared with."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass, field, replace

import numpy as np

from edgelearn.compile import Precision, Request
from edgelearn.graph import INPUT, Network
from edgelearn.graph.rewrites import Stage, fuse
from edgelearn.ops import Format, ReLU, Softmax
from edgelearn.ops.random import rounding_numbers

Arrays = dict[str, np.ndarray]


def fitting(precision: Precision, network: Network) -> Precision:
    """With those exceptions alone that are of layers of `network`."""
    names = INPUT, *network.nodes
    exceptions = {p: bits for p, bits in precision.exceptions.items() if fnmatch.filter(names, p)}
    return replace(precision, exceptions=exceptions)


def distance(gradients: Arrays, others: Arrays) -> float:
    """Norm of the difference, relative to that of `others`."""
    difference = sum(np.linalg.norm(g - others[name]) ** 2 for name, g in gradients.items())
    return np.sqrt(difference / sum(np.linalg.norm(g) ** 2 for g in others.values()))


@dataclass
class Twin:
    """Trains as a session of `request` does. `ranges` has (low, high, updates) of each tensor, by "layer/kind". Ops
    that draw random numbers of their own are left out."""

    request: Request
    weights: Arrays
    ranges: dict[str, tuple[float, float, int]] = field(default_factory=dict)
    used: dict[str, tuple[float, float]] = field(default_factory=dict)
    found: dict[str, tuple[float, float]] = field(default_factory=dict)
    closest: float = np.inf  # how near, in steps, a value has come to where float32 may round otherwise

    def train(self, x: np.ndarray, labels: np.ndarray, step: int) -> tuple[float, Arrays]:
        """(mean loss, gradients); `weights` are left alone, ranges move."""
        loss, gradients = 0.0, {}
        self.found.clear()
        for first in range(0, len(x), self.request.micro_batch):
            part = slice(first, first + self.request.micro_batch)
            losses, found = self._micro_batch(np.float64(x[part]), labels[part], step, first, len(x))
            loss += losses
            gradients = {name: gradients.get(name, 0.0) + g for name, g in found.items()}
        for name, (least, most) in self.found.items():
            low, high, updates = self.ranges.get(name, (*self.used[name], 0))
            observer = self.request.precision.observer_of(name.rpartition("/")[2])
            self.ranges[name] = (*map(float, observer.next(low, high, least, most, updates)), updates + 1)
        return loss, gradients

    def _quantized(self, kind: str, layer: str, v: np.ndarray, step: int, first: int) -> np.ndarray:
        precision, name = self.request.precision, f"{layer}/{kind}"
        fmt = precision.format(kind, layer)
        if fmt is None:
            return v
        if not isinstance(fmt, Format):
            return fmt.round(v)
        observer = precision.observer_of(kind)
        axes = tuple(range(v.ndim - 1)) if fmt.per_channel else None
        low, high = np.minimum(v.min(axes), 0.0), np.maximum(v.max(axes), 0.0)
        least, most = self.found.get(name, (0.0, 0.0))
        self.found[name] = min(least, low.min()), max(most, high.max())
        if name in self.ranges and observer.static:
            low, high, _ = self.ranges[name]
        elif name in self.ranges:
            low, high = observer.next(*self.ranges[name][:2], low, high, self.ranges[name][2])
        self.used[name] = float(np.min(low)), float(np.max(high))
        scale, zero = fmt.parameters(np.float64(low), np.float64(high))
        drawn = None
        t = v / scale
        inside = (t > fmt.least - zero) & (t < fmt.most - zero) & (v != 0)
        corner = 0.5
        if fmt.rounding == "stochastic":
            shape = v.shape if kind != "weights" else (1, *v.shape)
            drawn = rounding_numbers(name, shape, self.request.seed, step, first).reshape(v.shape)
            corner = 1 - drawn
        distance = np.abs(t - np.floor(t) - corner)[inside] / np.maximum(np.abs(t[inside]), 1)
        self.closest = min(self.closest, distance.min(initial=np.inf))
        return fmt.decode(fmt.encode(v, scale, zero, drawn), scale, zero)

    def _micro_batch(self, x, labels, step: int, first: int, examples: int) -> tuple[float, Arrays]:
        network = self.request.network
        end = network.output.inputs[0] if isinstance(network.output.op, Softmax) else network.output.name
        stages = [s for s in fuse(network) if not isinstance(s.output.op, Softmax)]
        kernels: Arrays = {}
        values = {INPUT: self._quantized("activations", INPUT, x, step, first)}
        for stage in stages:
            v = [values[name] for name in stage.inputs]
            for node in stage.nodes:
                own = self._own(node.name)
                if "kernel" in own:
                    role = network.parameters[f"{node.name}/kernel"].weight
                    matrix = np.float64(np.float32(own["kernel"])).reshape(role.packed_shape)
                    kernels[node.name] = self._quantized("weights", node.name, matrix, step, 0).reshape(role.shape)
                    own["kernel"] = kernels[node.name]
                v = [node.op.reference_forward(v, own, **self._more(node))]
                if node is stage.op and stage.norm and self._more(stage.norm)["batch"] and stage.is_linear:
                    v = [self._quantized("norm_inputs", node.name, v[0], step, first)]
                values[node.name] = v[0]
            if stage.output.name != end and not stage.output.op.selects:
                values[stage.output.name] = self._quantized("activations", stage.output.name, v[0], step, first)

        losses, gradient = self.request.loss.reference(values[end], labels)
        flowing, found = {end: gradient * len(x) / examples}, {}
        for stage in reversed(stages):
            if stage.output.name in flowing:
                self._backward(stage, values, kernels, flowing, found, step, first)
        return losses.sum() / examples, found

    def _backward(self, stage: Stage, values, kernels, flowing, found: Arrays, step: int, first: int) -> None:
        dy = [flowing[stage.output.name]]
        for index, node in reversed(list(enumerate(stage.nodes))):
            inputs = [values[name] for name in (node.inputs if index == 0 else [stage.nodes[index - 1].name])]
            batch = self._more(node).get("batch", False)
            linear = stage.is_linear and node is stage.op
            if isinstance(node.op, ReLU):  # by its own output, as it was quantized
                y = values[node.name]
                passes = (y > 0) & (y < (np.inf if node.op.max_value is None else node.op.max_value))
                dy = [dy[0] * passes]
                continue
            if stage.is_linear and ((node is stage.norm and not batch) or (linear and self._last_linear(stage))):
                dy = [self._quantized("gradients", stage.op.name, dy[0], step, first)]
            own = self._own(node.name)
            if node.name in kernels:
                own["kernel"] = kernels[node.name]
            dy, dweights = node.op.reference_backward(inputs, own, dy[0], **self._more(node))
            for role, g in dweights.items():
                found[f"{node.name}/{role}"] = g
        for name, dx in zip(stage.inputs, dy, strict=True):
            flowing[name] = flowing.get(name, 0.0) + dx

    def _last_linear(self, stage: Stage) -> bool:
        """True if the gradient of the linear layer's own output is quantized, not the one behind moving
        statistics."""
        return stage.norm is None or self._more(stage.norm)["batch"]

    def _more(self, node) -> dict:
        if "moving_mean" not in self._own(node.name):
            return {}
        trained = {f"{node.name}/gamma", f"{node.name}/beta"} & self.request.network.trainable
        return {"batch": self.request.batchnorm == "batch" and bool(trained)}

    def _own(self, layer: str) -> Arrays:
        named = self.request.network.parameters.values()
        return {p.role: np.float64(self.weights[p.name]) for p in named if p.layer == layer}
