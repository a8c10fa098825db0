"""The state of a training, as checkpoints hold it: tensors by name, and the position."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field

from edgelearn.errors import FormatError
from edgelearn.interop.weights import Weights

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
            return cls(groups["weights"], groups["optimizer"], groups["ranges"], Position(**position))
        except TypeError as error:
            raise FormatError(f"The checkpoint's state is not edgelearn's: {error}.") from None

    def check(self, weights: Iterable[str], slots: Iterable[str], quantizes: bool) -> None:
        """Raises FormatError unless the state fits a training.

        Arguments:
        - `weights`: names of the weights that the training changes.
        - `slots`: names of its optimizer's state.
        - `quantizes`: whether it quantizes tensors.
        """
        slots = slots if self.slots or self.position.updates else ()
        for what, present, expected in ("weights", self.weights, weights), ("optimizer state", self.slots, slots):
            if odd := set(present) ^ set(expected):
                raise FormatError(
                    f"The checkpoint's {what} belong to another training: '{min(odd)}' is "
                    f"{'unknown' if min(odd) in present else 'missing'}. Build the same network, freeze the same "
                    f"layers and compile with the same optimizer before restoring."
                )
        if self.records and not quantizes:
            raise FormatError(
                "The checkpoint belongs to a training that quantizes tensors, unlike this one: compile with the same "
                "precision before restoring."
            )
