"""Collects statistics of a mini-batch's rounded tensors: for the next ranges, and to detect overflows."""

from __future__ import annotations

from edgelearn.compile.storage import Storage
from edgelearn.launch import Role
from edgelearn.ops import Emitter, Tensor
from edgelearn.ops.quantize import Quantizer, emit_check_finite, emit_learn_range
from edgelearn.ops.range_statistics import RangeStatistics

from .precision import Precision


class RangeCollector:
    """Statistics of a program's tensors, by name; only in `training`."""

    def __init__(self, precision: Precision, storage: Storage, training: bool) -> None:
        self.precision, self.storage, self.training = precision, storage, training
        self._checked: dict[str, Tensor] = {}
        self._observed: dict[str, tuple[Quantizer, Tensor, int]] = {}

    def of(self, q: Quantizer, count: int, rule: int, add: bool = False) -> RangeStatistics | None:
        """`count` records of a tensor of integers, from which `rule` computes the next range. Stored integers are
        checked for NaN and infinity; simulated ones needn't be, since they keep a NaN.
        """
        if not self.training:
            return None
        parts = self._parts(q.name, count)
        self._observed[q.name] = q, parts, rule
        if not self.precision.simulated:
            self._checked[q.name] = parts
        return RangeStatistics(parts, self.precision.traced, add)

    def of_rangeless(self, name: str, count: int, add: bool = False) -> RangeStatistics | None:
        """`count` records of a tensor in a format without a range. It is always checked: a later layer may hide an
        infinity."""
        if not self.training:
            return None
        parts = self._checked[name] = self._parts(name, count)
        return RangeStatistics(parts, add=add)

    def knows(self, name: str) -> bool:
        return name in self._observed or name in self._checked

    def check(self, finish: Emitter) -> None:
        """Emit jobs that flag tensors with a NaN or an infinity."""
        for name, parts in self._checked.items():
            finish.layer = name.rpartition("/")[0]
            emit_check_finite(finish, name, parts)

    def learn(self, finish: Emitter) -> None:
        """Emit jobs that compute the next ranges, unless the mini-batch failed."""
        for q, parts, rule in self._observed.values():
            finish.layer = q.name.rpartition("/")[0]
            emit_learn_range(finish, q, parts, self.storage.control, rule)

    def _parts(self, name: str, count: int) -> Tensor:
        return self.storage.tensor(f"{name} found", (count, 16), Role.FOUND)
