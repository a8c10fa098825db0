"""What a mini-batch notes of its rounded tensors: for the ranges that come next, and whether they overflowed."""

from __future__ import annotations

from edgelearn.launch import Role
from edgelearn.ops import Emitter, Tensor
from edgelearn.ops.quantize import Findings, Quantizer, emit_check_found, emit_learn_range

from .precision import Precision
from .storage import Storage


class Noted:
    """Findings of a program's tensors, by name; only in `training`."""

    def __init__(self, precision: Precision, storage: Storage, training: bool) -> None:
        self.precision, self.storage, self.training = precision, storage, training
        self._checked: dict[str, Tensor] = {}
        self._learnt: dict[str, tuple[Quantizer, Tensor, int]] = {}

    def of(self, q: Quantizer, count: int, rule: int, add: bool = False) -> Findings | None:
        """Where `count` records of integers go, from which the next range follows by `rule`. Simulated integers hold
        the NaN that a NaN or an infinity became; others don't, and are checked."""
        if not self.training:
            return None
        found = self.storage.tensor(f"{q.name} found", (count, 16), Role.FOUND)
        self._learnt[q.name] = q, found, rule
        if not self.precision.simulated:
            self._checked[q.name] = found
        return Findings(found, self.precision.traced, add)

    def of_halves(self, name: str, count: int, add: bool = False) -> Findings | None:
        """The same for halves, that have no range and are always checked: an activation may hide an infinity."""
        if not self.training:
            return None
        found = self._checked[name] = self.storage.tensor(f"{name} found", (count, 16), Role.FOUND)
        return Findings(found, add=add)

    def knows(self, name: str) -> bool:
        return name in self._learnt or name in self._checked

    def check(self, finish: Emitter) -> None:
        """Jobs: flags for tensors that held a NaN or an infinity."""
        for name, found in self._checked.items():
            finish.layer = name.rpartition("/")[0]
            emit_check_found(finish, name, found)

    def learn(self, finish: Emitter) -> None:
        """Jobs: the next ranges from what the mini-batch has held, unless it failed."""
        for q, found, rule in self._learnt.values():
            finish.layer = q.name.rpartition("/")[0]
            emit_learn_range(finish, q, found, self.storage.control, rule)
