"""Choose the device to use."""

from __future__ import annotations

import re
from dataclasses import dataclass

from edgelearn.device import Device
from edgelearn.errors import DeviceError

from .faults import POCL
from .platforms import list_devices

KINDS = {"gpu": 0, "accelerator": 1, "cpu": 2}


@dataclass(frozen=True)
class DeviceChoice:
    """The chosen device.

    Arguments:
    - `device`: the device.
    - `reason`: why it was chosen, in words.
    - `others`: the other devices of the machine, best first (default none).
    """

    device: Device
    reason: str
    others: tuple[Device, ...] = ()


def rank(devices: list[Device]) -> list[Device]:
    """Sort devices, best first: GPUs, accelerators, CPUs; then the newest PoCL; then compute units times clock; then
    memory."""

    def key(device: Device) -> tuple:
        outdated = any(_is_pocl(device) and _is_pocl(d) and _version(d) > _version(device) for d in devices)
        return KINDS[device.kind], outdated, -device.compute_units * max(1, device.clock_mhz), -device.memory

    return sorted(devices, key=key)


def _is_pocl(device: Device) -> bool:
    return device.kind == "cpu" and device.platform == POCL


def _version(device: Device) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", device.driver)[:3])


def choose_device(name: str | Device | None = None) -> DeviceChoice:
    """Choose a device.

    Arguments:
    - `name`: part of its name, platform or version, in any case, or a Device (default: the best of the machine).

    Raises DeviceError if there is no device, none matches, or several match equally well.
    """
    if isinstance(name, Device):
        return DeviceChoice(name, "given by the caller")
    if name is not None and not isinstance(name, str):
        raise DeviceError(f"A device is part of its name or a Device of list_devices(), not {name!r:.60}.")
    devices = rank(list_devices())
    if not name:
        best = devices[0]
        why = f"a {best.kind.upper()} with {best.compute_units} compute units"
        reason = f"the only device ({why})" if len(devices) == 1 else f"the best of {len(devices)} devices: {why}"
        return DeviceChoice(best, reason, tuple(devices[1:]))
    exact = [d for d in devices if name.lower() in (d.name.lower(), d.id.lower())]
    found = exact or [d for d in devices if name.lower() in f"{d.id} {d.version}".lower()]
    listing = "; ".join(d.id for d in devices)
    if not found:
        raise DeviceError(f"No OpenCL device is called '{name}'. There are: {listing}.")
    if len(found) > 1 and len({d.id for d in found}) > 1:
        matches = "; ".join(d.id for d in found)
        raise DeviceError(f"'{name}' matches several devices: {matches}. Give more of the name.")
    return DeviceChoice(found[0], f"named '{name}'", tuple(d for d in devices if d is not found[0]))
