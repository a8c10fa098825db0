"""Kinds of devices, which share tuned kernel configurations."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass

from .device import Device

REACH = 4  # results apply to devices with up to 4 times as many compute units, or as few as a quarter


@dataclass(frozen=True)
class DeviceKind:
    """A kind of device, whose members share tuning results.

    Arguments:
    - `platform`: the OpenCL platform.
    - `kind`: "cpu", "gpu" or "accelerator".
    - `family`: devices that differ in size more than in nature: instruction set of a CPU, architecture of a GPU.
    - `vector_width`: floats in a vector register.
    - `compute_units`: number of them.
    """

    platform: str
    kind: str
    family: str
    vector_width: int
    compute_units: int

    @classmethod
    def of(cls, device: Device) -> DeviceKind:
        return cls(device.platform, device.kind, device.architecture, device.vector_width, device.compute_units)

    def distance(self, other: DeviceKind) -> float | None:
        """Ratio of compute units (at least 1), or None if results for one kind don't apply to the other."""
        mine, others = ((k.platform, k.kind, k.family, k.vector_width) for k in (self, other))
        ratio = max(self.compute_units, other.compute_units) / min(self.compute_units, other.compute_units)
        return ratio if mine == others and ratio <= REACH else None

    @property
    def slug(self) -> str:
        """File name for results of this kind, without suffix."""
        words = (
            self.platform,
            self.family,
            f"simd{self.vector_width}" if self.kind == "cpu" else "",
            self.compute_units,
        )
        return "-".join(filter(None, re.split(r"[^a-z0-9]+", " ".join(map(str, words)).lower())))

    def to_dict(self) -> dict:
        return asdict(self)
