"""The state of a training, as checkpoints hold it: tensors by name, and the position."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace

import numpy as np

from edgelearn import records
from edgelearn.errors import FormatError, PlanError
from edgelearn.interop.weights import Weights
from edgelearn.ops import Tensor
from edgelearn.ops.optimizers.base import AVERAGE, REFERENCE
from edgelearn.ops.tensor import Shape

from .status import Position

GROUPS = ("weights", "optimizer", "ranges")


@dataclass(frozen=True)
class TrainingState:
    """Everything that a training needs to continue.

    Arguments:
    - `weights`: the weights that training changes, by "layer/role".
    - `slots`: the optimizer's state by "slot/layer/role" (default none).
    - `records`: range statistics of quantized tensors by "layer/kind" (default none).
    - `position`: the next step (default the first).
    """

    weights: Weights
    slots: Weights = field(default_factory=dict)
    records: Weights = field(default_factory=dict)
    position: Position = field(default_factory=Position)

    def to_tensors(self) -> tuple[Weights, dict]:
        """Return (tensors by "group/name", position as JSON values)."""
        groups = zip(GROUPS, (self.weights, self.slots, self.records), strict=True)
        tensors = {f"{group}/{name}": array for group, arrays in groups for name, array in arrays.items()}
        return tensors, asdict(self.position)

    @classmethod
    def of(cls, tensors: Weights, position: dict) -> TrainingState:
        """Return the state that `to_tensors` was called on. Raises FormatError for anything else."""
        groups: dict[str, Weights] = {group: {} for group in GROUPS}
        for name, array in tensors.items():
            group, _, rest = name.partition("/")
            if group not in groups:
                raise FormatError(f"The checkpoint has a tensor '{name}', which is not edgelearn's.")
            groups[group][rest] = array
        try:
            at = records.convert(position, Position)
        except records.RecordError as error:
            raise FormatError(f"The checkpoint's state is not edgelearn's: {error}.") from None
        for name in ("epoch", "step", "updates", "seen", "scaled"):
            if not 0 <= getattr(at, name) < 1 << 32:  # kernels count updates in 32 bits
                raise FormatError(f"The checkpoint's state is not edgelearn's: {name} is {getattr(at, name)}.")
        return cls(groups["weights"], groups["optimizer"], groups["ranges"], at)

    def check(self, weights: Iterable[str], slots: Mapping[str, Shape], quantizes: bool) -> None:
        """Raises FormatError unless the state fits a training.

        Arguments:
        - `weights`: names of the weights that the training changes.
        - `slots`: shapes of its optimizer's state, by name.
        - `quantizes`: whether it quantizes tensors.
        """
        slots = slots if self.slots or self.position.updates else {}
        for what, present, expected in ("weights", self.weights, weights), ("optimizer state", self.slots, slots):
            if odd := set(present) ^ set(expected):
                raise FormatError(
                    f"The checkpoint's {what} belong to another training: '{min(odd)}' is "
                    f"{'unknown' if min(odd) in present else 'missing'}. Build the same network, freeze the same "
                    f"layers and compile with the same optimizer before restoring."
                )
        for name, array in self.slots.items():
            if array.shape != tuple(slots[name]) or array.dtype.kind != "f":
                raise FormatError(
                    f"The checkpoint's optimizer state '{name}' has shape {array.shape} and type {array.dtype}; "
                    f"this training's has shape {tuple(slots[name])}."
                )
        if self.records and not quantizes:
            raise FormatError(
                "The checkpoint belongs to a training that quantizes tensors, unlike this one: compile with the same "
                "precision before restoring."
            )

    def swapped(self) -> TrainingState:
        """Return the state with weights and their averages exchanged. Raises PlanError if there are no averages."""
        averages = {name.split("/", 1)[1]: a for name, a in self.slots.items() if name.startswith(f"{AVERAGE}/")}
        if not averages:
            raise PlanError("There is no average of the weights: train with an optimizer that has use_ema=True.")
        slots = {f"{AVERAGE}/{name}": self.weights[name] for name in averages}
        return replace(self, weights=self.weights | averages, slots=self.slots | slots)

    def carried(self, slots: Mapping[str, Tensor], quantizers: Iterable[str]) -> TrainingState:
        """Return the state for a training of other layers: what both train keeps its state, the rest starts anew.

        Arguments:
        - `slots`: the optimizer's state of the other training, by name.
        - `quantizers`: names of the tensors that it quantizes. If they differ, all ranges are measured again.
        """
        records = self.records if set(self.records) == set(quantizers) else {}
        if not self.slots or self.slots.keys() == slots.keys():
            return replace(self, records=records)
        kept = {name: self.slots[name] if name in self.slots else self._new_slot(name, t) for name, t in slots.items()}
        started, dropped = (
            sorted({name.split("/", 1)[1] for name in names})
            for names in (slots.keys() - self.slots.keys(), self.slots.keys() - slots.keys())
        )
        changes = [f"the optimizer state of {_some(started)} starts anew"] if started else []
        changes += [f"that of {_some(dropped)} is dropped"] if dropped else []
        warnings.warn(f"Layers were frozen or unfrozen since the last step: {', '.join(changes)}.", stacklevel=2)
        return replace(self, slots=kept, records=records)

    def _new_slot(self, name: str, tensor: Tensor) -> np.ndarray:
        """Return zeros, or the weights for their average and for what a proximal term pulls to."""
        slot, parameter = name.split("/", 1)
        return self.weights[parameter] if slot in (AVERAGE, REFERENCE) else np.zeros(tensor.shape, np.float32)


def _some(names: list[str]) -> str:
    return f"'{names[0]}'" + (f" (and {len(names) - 1} more)" if names[1:] else "")
