"""Values that the host sends to a device for a step: numbers, examples, targets and weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgelearn.compile.lower import input_blocks
from edgelearn.compile.plan import Plan
from edgelearn.ops import control as places
from edgelearn.ops import pack
from edgelearn.ops.loss import rows_of
from edgelearn.ops.tensor import Empty

from .feature_cache import FeatureCache
from .plan_memory import PlanMemory
from .step_scalars import step_scalars

Examples = np.ndarray | Mapping[str, np.ndarray]  # of the only input, or of each input by name


@dataclass(frozen=True)
class OutputTargets:
    """Targets of one output for a micro-batch, as the device reads them.

    Arguments:
    - `values`: int32 class numbers, one for each row, or float32 values from `pack`.
    - `weights`: float32, one for each row (default None: 1 each).
    """

    values: np.ndarray
    weights: np.ndarray | None = None


Targets = np.ndarray | Sequence[OutputTargets]  # class numbers of the only output, or each output's


def random_batch(plan: Plan, n: int, rng: np.random.Generator) -> tuple[Examples, list[OutputTargets]]:
    """Return a micro-batch of `n` examples of the plan's network, in the device's layout, to time steps with: inputs
    from -1 to 1, and targets of 0."""
    network, losses = plan.request.network, plan.request.losses.by_output
    x = {
        name: pack(rng.uniform(-1, 1, (n, *shape)).astype(np.float32), plan.storage.inputs[name].block)
        for name, shape in network.inputs.items()
    }
    targets = []
    for name, loss in losses.items():
        shape = network.nodes[name].shape
        is_value = loss.target_dtype == "float32"
        values = pack(np.zeros((n, *shape), np.float32)) if is_value else np.zeros(n * rows_of(shape), np.int32)
        targets.append(OutputTargets(values))
    return x, targets


class Feed:
    """Packs examples and copies what a step reads to the device; for a GPU, in pinned memory. Arguments: see
    Session."""

    def __init__(self, plan: Plan, memory: PlanMemory) -> None:
        self.plan, self.memory = plan, memory
        self._blocks = input_blocks(plan.request.network)
        context = memory.context
        self._empty: Empty | None = context.pinned.empty if context.device.is_gpu else None
        losses, nodes = plan.request.losses, plan.request.network.nodes
        several = len(losses.by_output) > 1
        # 1 exactly for a single vector: its loss then has the same bits as without a factor
        self._factors = [losses.weight(name) / rows_of(nodes[name].shape) for name in losses.by_output] or [1.0]
        rows = all(each.accuracy == "rows" for each in losses.by_output.values())
        self.counts_whole = rows and self._factors == [1.0]  # right answers are whole numbers
        self._own_scalars = list(plan.storage.controls.values()) if several else []

    def close(self) -> None:
        """Give back the pinned memory that no array uses."""
        if self._empty is not None:
            self.memory.context.pinned.release()

    def pack(self, x: Examples) -> Examples:
        """Return examples (n, ..., channels) in the device's layout. Any thread may call this."""
        if isinstance(x, Mapping):
            return {name: pack(x[name], block, empty=self._empty) for name, block in self._blocks.items()}
        (block,) = self._blocks.values()
        return pack(x, block, empty=self._empty)

    def fetch(self, source: Any, indices: np.ndarray) -> Examples:
        """Return the examples `source[indices]` in the device's layout. Any thread may call this."""
        if isinstance(source, FeatureCache):
            return source.device_layout(indices, self._empty)
        first, count = int(indices[0]), len(indices)
        in_memory = type(source) is np.ndarray  # a memmap is copied ahead of time, which reads the file
        if in_memory and np.array_equal(indices, np.arange(first, first + count)):
            return self.pack(source[first : first + count])  # neighbours: sent without a copy of them
        return self.pack(source[indices])

    def begin(self, examples: int, rate: float, step: int, scale: float = 1.0) -> None:
        """Send the numbers of a mini-batch, whose loss is multiplied by `scale`. Raises PlanError if a plan without an
        optimizer is to train."""
        scalars = step_scalars(self.plan.request, examples, rate, step, scale)
        scalars[places.INVERSE_BATCH] = self._factors[0] / examples * scale
        self.memory.send(self.plan.storage.control.scalars.buffer, scalars)
        for control, factor in zip(self._own_scalars, self._factors, strict=False):
            own = scalars.copy()
            own[places.INVERSE_BATCH] = factor / examples * scale
            self.memory.send(control.scalars.buffer, own)

    def send(self, x: Examples | None, targets: Targets | None) -> None:
        """Send the examples of a micro-batch, and their targets where there are any."""
        storage = self.plan.storage
        if isinstance(x, Mapping):
            for name, words in x.items():
                self.memory.send(storage.inputs[name].buffer, np.asarray(words, np.float32))
        elif x is not None:
            self.memory.send(storage.input.buffer, np.asarray(x, np.float32))
        if targets is None:
            return
        outputs = [OutputTargets(np.asarray(targets))] if isinstance(targets, np.ndarray) else targets
        for control, output in zip(storage.controls.values(), outputs, strict=True):
            labels = output.values.dtype.kind in "iu"
            values = np.ascontiguousarray(output.values, np.int32 if labels else np.float32)
            self.memory.send(control.targets.buffer, values)
            if control.weights is not None:
                rows = values.size if labels else values.shape[1]
                weights = np.ones(rows, np.float32) if output.weights is None else output.weights
                self.memory.send(control.weights.buffer, np.ascontiguousarray(weights, np.float32))
