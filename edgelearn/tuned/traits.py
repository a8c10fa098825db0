"""The properties of a device that the choice of kernels depends on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from edgelearn.device import Device
from edgelearn.device.units import QUADS, TILES, first_of, first_with

from .store import KernelConfig, find

CHANNEL_BLOCK = 16  # channels of a block of the device layout (see ops/tensor.py)


@dataclass(frozen=True)
class Traits:
    """Properties of a device from which kernels and tile sizes are chosen.

    Arguments:
    - `gpu`: the device is a GPU.
    - `compute_units`: number of compute units.
    - `vector_width`: floats of a CPU's vector registers.
    - `tuned`: the configurations measured to be fastest on this kind of device, by name of the decision.
    - `find_units`: names the device's units for small numbers (default: it has none).
    """

    gpu: bool = False
    compute_units: int = 2
    vector_width: int = 16
    tuned: Mapping[str, KernelConfig] = field(default_factory=dict, compare=False)
    find_units: Callable[[], tuple[str, ...]] = field(default=tuple, compare=False)

    @property
    def group(self) -> int:
        """Default work-group size along the first dimension."""
        return 64 if self.gpu else 1

    @property
    def vector(self) -> int:
        """Channels per work-item, in kernels that don't combine channels."""
        return 4 if self.gpu else CHANNEL_BLOCK

    @property
    def members(self) -> int:
        """Work-items of a work-group that handle the same channels and can share a sum."""
        return self.group * self.vector // CHANNEL_BLOCK

    def unit(self, dtype: str) -> str:
        """The fastest unit that multiplies `dtype`, such as "int8"; "" if the device has none."""
        return first_of(self.find_units(), dtype)

    @property
    def quads(self) -> str:
        """The fastest unit that adds up four products of 8-bit integers; "" if the device has none."""
        return first_with(QUADS, self.find_units())

    @property
    def matrix_unit(self) -> str:
        """The fastest unit that multiplies small matrices; "" if the device has none."""
        return first_with(TILES, self.find_units())

    @classmethod
    def of(cls, device: Device) -> Traits:
        """The traits of `device`. Raises FormatError for a damaged file of tuning results."""
        return cls(device.is_gpu, device.compute_units, device.vector_width, find(device).choices, lambda: device.units)
