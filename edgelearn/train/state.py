"""All that a training needs to go on, as a checkpoint holds it: tensors by name, and where it stands."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass

from edgelearn.errors import FormatError
from edgelearn.interop.weights import Weights

from .loop import Position

WEIGHTS, OPTIMIZER, RANGES = GROUPS = "weights", "optimizer", "ranges"


@dataclass(frozen=True)
class TrainingState:
    """`weights` that training changes, the optimizer's `slots` by "slot/parameter", `records` of the ranges of
    quantized tensors, and the `position`."""

    weights: Weights
    slots: Weights
    records: Weights
    position: Position

    def to_tensors(self) -> tuple[Weights, dict]:
        """(tensors, JSON-able state)."""
        groups = zip(GROUPS, (self.weights, self.slots, self.records), strict=True)
        tensors = {f"{group}/{name}": array for group, arrays in groups for name, array in arrays.items()}
        return tensors, asdict(self.position)

    @classmethod
    def of(cls, tensors: Weights, state: dict) -> TrainingState:
        """What `to_tensors` gave. Raises FormatError for anything else."""
        groups: dict[str, Weights] = {group: {} for group in GROUPS}
        for name, array in tensors.items():
            group, _, rest = name.partition("/")
            if group not in groups:
                raise FormatError(f"The checkpoint has a tensor '{name}', which is not edgelearn's.")
            groups[group][rest] = array
        try:
            return cls(*groups.values(), Position(**state))
        except TypeError as error:
            raise FormatError(f"The checkpoint's state is not edgelearn's: {error}.") from None

    def check(self, weights: Iterable[str], slots: Iterable[str], quantizes: bool) -> None:
        """Raises FormatError unless it is of a training that changes these `weights`, with an optimizer that has these
        `slots`, and only quantizes if this one does."""
        slots = slots if self.slots or self.position.updates else ()
        for what, found, wanted in ("weights", self.weights, weights), ("optimizer state", self.slots, slots):
            if odd := set(found) ^ set(wanted):
                raise FormatError(
                    f"The checkpoint's {what} are of another training: '{min(odd)}' is "
                    f"{'unknown' if min(odd) in found else 'missing'}. Build the same network, freeze the same layers "
                    f"and compile with the same optimizer before restoring."
                )
        if self.records and not quantizes:
            raise FormatError(
                "The checkpoint is of a training that quantized tensors, unlike this one: compile with the same "
                "precision before restoring."
            )
