"""A program: the launches for micro-batches of one size, and what is needed to collect them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from edgelearn.display import Displayed
from edgelearn.launch import Buffer, Launch
from edgelearn.ops.tensor import Tensor

from .memory.rematerialiser import Rematerialisation
from .precision.precision import RangeMode


class Kind(Enum):
    """The work that a program does on a micro-batch."""

    TRAIN = "train"
    EVALUATE = "evaluate"
    PREDICT = "predict"


@dataclass(frozen=True)
class ProgramKey:
    """Names a program of a plan.

    Arguments:
    - `kind`: what it does.
    - `examples`: size of the micro-batch.
    - `ranges`: how quantized tensors get their ranges.
    - `first`: the micro-batch begins a mini-batch, so that gradients start anew.
    """

    kind: Kind
    examples: int
    ranges: RangeMode = RangeMode.OBSERVED
    first: bool = True

    def __str__(self) -> str:
        ranges = "" if self.ranges is RangeMode.OBSERVED else f", ranges {self.ranges.value}"
        return f"{self.kind.value} {self.examples}{ranges}{'' if self.first else ', not the first'}"


@dataclass(frozen=True, eq=False, repr=False)
class Program(Displayed):
    """Launches for one size of micro-batch, and the tensors through which the host feeds and reads them.

    - `prepare`: once a mini-batch: what derives from parameters.
    - `micro`: for each micro-batch: forward and backward pass.
    - `finish`: once a mini-batch: gradients completed and checked, weights updated.
    - `inputs`: the network's inputs, by name.
    - `outputs`: its outputs, by name; without the head that a loss computes itself.
    - `rematerialisation`: what became of its activations.
    - `measure`: as weights are loaded: extremes of kernels, which updates leave from then on.
    """

    prepare: list[Launch]
    micro: list[Launch]
    finish: list[Launch]
    inputs: dict[str, Tensor]
    outputs: dict[str, Tensor]
    rematerialisation: Rematerialisation
    measure: list[Launch]

    @property
    def y(self) -> Tensor:
        """The only output."""
        (tensor,) = self.outputs.values()
        return tensor

    @property
    def headline(self) -> str:
        return f"of {len(self.launches)} launches"

    @property
    def launches(self) -> list[Launch]:
        """The launches of a step whose mini-batch is a single micro-batch."""
        return self.prepare + self.micro + self.finish

    @property
    def all_launches(self) -> list[Launch]:
        return self.measure + self.launches

    @property
    def inverted(self) -> dict[Buffer, Buffer]:
        """Copies in the backward pass that were restored by inversion, by their originals in the forward pass."""
        return self.rematerialisation.inverted
