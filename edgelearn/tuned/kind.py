"""What of a device the best choices depend on."""

from __future__ import annotations

import platform
import re
from dataclasses import asdict, dataclass

from edgelearn.device import Device

REACH = 4  # a file serves devices with up to so many times its compute units, or so many times fewer


@dataclass(frozen=True)
class Kind:
    """A kind of device: its OpenCL platform; "cpu", "gpu" or "accelerator"; its family, whose members differ in size
    more than in nature (the instruction set of a CPU, the architecture of a GPU); floats in a vector register (lanes);
    compute units."""

    platform: str
    kind: str
    family: str
    lanes: int
    compute_units: int

    @classmethod
    def of(cls, device: Device) -> Kind:
        return cls(device.platform, device.kind, _family(device), device.vector_width, device.compute_units)

    def distance(self, other: Kind) -> float | None:
        """How many times more compute units one of the two has; None where results for one say little about the
        other."""
        mine, others = ((k.platform, k.kind, k.family, k.lanes) for k in (self, other))
        ratio = max(self.compute_units, other.compute_units) / min(self.compute_units, other.compute_units)
        return ratio if mine == others and ratio <= REACH else None

    @property
    def slug(self) -> str:
        """A file's name for results of this kind."""
        words = (self.platform, self.family, f"{self.lanes} lanes" if self.kind == "cpu" else "", self.compute_units)
        return "-".join(filter(None, re.split(r"[^a-z0-9]+", " ".join(map(str, words)).lower())))

    def to_dict(self) -> dict:
        return asdict(self)


def _family(device: Device) -> str:
    if device.kind == "cpu":
        return platform.machine().lower()
    try:  # NVIDIA's cl_nv_device_attribute_query
        import pyopencl as cl

        numbers = (device.handle.compute_capability_major_nv, device.handle.compute_capability_minor_nv)
    except (AttributeError, cl.Error):
        return device.name
    return f"compute capability {numbers[0]}.{numbers[1]}"
