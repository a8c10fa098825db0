"""Devices that are not here, as data: published figures with their sources."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from edgelearn import records
from edgelearn.device import Device
from edgelearn.errors import FormatError, UsageError
from edgelearn.ops import Traits

from .peaks import Peaks

FOLDER = Path(__file__).with_name("devices")
WIDTHS = {"fp32": 1.0, "fp16": 0.5}  # size of a number against float32


@dataclass(frozen=True)
class EdgeDevice:
    """Published figures of a device.

    Arguments:
    - `name`: of the device.
    - `kind`: "cpu", "gpu" or "accelerator".
    - `compute_units`: number of them.
    - `flops`: FLOP/s by precision: "fp32" and, where it computes in it, "fp16".
    - `bandwidth`: of its memory, bytes/s.
    - `memory`: bytes.
    - `launch`: seconds that a kernel launch costs.
    - `sources`: where each figure is from, or that it is an assumption.
    """

    name: str
    kind: Literal["cpu", "gpu", "accelerator"]
    compute_units: int
    flops: Mapping[str, float]
    bandwidth: float
    memory: int
    launch: float
    sources: Mapping[str, str]

    def __post_init__(self) -> None:
        if not {"fp32"} <= set(self.flops) <= set(WIDTHS):
            raise ValueError(f"flops has FLOP/s by precision: {', '.join(WIDTHS)}, fp32 at least")
        figures = {name: getattr(self, name) for name in ("compute_units", "bandwidth", "memory", "launch")}
        for name, value in (figures | dict(self.flops)).items():
            if not 0 < value < float("inf"):
                raise ValueError(f"{name} is a number above 0, not {value!r}")
        if set(figures) | {"flops"} != set(self.sources):
            raise ValueError(f"sources says where flops, {', '.join(figures)} are from, and nothing else")

    @classmethod
    def load(cls, name: str | Path) -> EdgeDevice:
        """The device with a name in `edge_devices()`, or described by a JSON file with the fields of this class.

        Raises UsageError for another name, FormatError for a file that doesn't describe a device.
        """
        path = FOLDER / f"{name}.json" if str(name) in edge_devices() else Path(name)
        if not path.is_file():
            raise UsageError(
                f"There is no device '{name}', and no such file. Choose from {', '.join(edge_devices())}, or write a "
                f"JSON file like {FOLDER / 'adreno-540.json'}."
            )
        try:
            return records.read(path, cls)
        except (records.RecordError, OSError) as error:
            raise FormatError(
                f"{path} does not describe a device: {error}. See {FOLDER / 'adreno-540.json'} for one that does."
            ) from None

    def peaks(self, precision: str) -> Peaks:
        """Peaks in a precision. Raises FormatError if the device doesn't compute in it."""
        if precision not in self.flops:
            raise FormatError(f"{self.name} has no FLOP/s in {precision}, only in {', '.join(self.flops)}.")
        return Peaks(self.flops[precision], {1: self.bandwidth}, self.launch)

    def device(self) -> Device:
        """A device to make plans for, with memory for any of them."""
        endless = 1 << 62
        return Device(
            name=self.name, platform="described", vendor="", driver="", version="", kind=self.kind, memory=endless,
            largest_buffer=endless, local_memory=32 << 10, compute_units=self.compute_units, clock_mhz=0, alignment=128,
            vector_width=4, extensions=(),
        )  # fmt: skip

    def traits(self) -> Traits:
        return Traits(self.kind == "gpu", self.compute_units, 4)


def edge_devices() -> list[str]:
    """Names of the devices that are described in the package."""
    return sorted(path.stem for path in FOLDER.glob("*.json"))
