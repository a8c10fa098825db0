"""The facts of a device that the choice of kernels depends on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from edgelearn.device import Device

from .store import KernelConfig, find

CHANNEL_BLOCK = 16  # channels of a block of the device layout (see ops/tensor.py)


@dataclass(frozen=True)
class Traits:
    """What the choice of tiles depends on. `vector_width` is the number of floats of a CPU's vector registers;
    `tuned` has what was measured to be fastest on this kind of device, by the name of the decision."""

    gpu: bool = False
    compute_units: int = 2
    vector_width: int = 16
    tuned: Mapping[str, KernelConfig] = field(default_factory=dict, compare=False)

    @property
    def group(self) -> int:
        """Work-items a work-group along the first dimension, unless a kernel says otherwise."""
        return 64 if self.gpu else 1

    @property
    def vector(self) -> int:
        """Channels that a work-item handles, in kernels where the 16 of a block don't meet."""
        return 4 if self.gpu else CHANNEL_BLOCK

    @property
    def members(self) -> int:
        """Work-items of a work-group with the same channels: where it pays, they share a sum."""
        return self.group * self.vector // CHANNEL_BLOCK

    @classmethod
    def of(cls, device: Device) -> Traits:
        """Raises FormatError for a damaged file of tuning results."""
        return cls(device.is_gpu, device.compute_units, device.vector_width, find(device).choices)
