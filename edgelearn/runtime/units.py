"""Find the units of a device by trying each: it must compile, run, and give the integers that NumPy gives."""

from __future__ import annotations

import hashlib
import json

import numpy as np

from edgelearn import atomic, caches
from edgelearn.device import Device
from edgelearn.device.units import UNITS, Unit
from edgelearn.errors import EdgelearnError
from edgelearn.launch.buffers import Buffer, Role
from edgelearn.launch.launch import In, InOut, Launch

from . import build, source
from .context import Context
from .kernels import Kernels
from .runner import Runner

BLOCKS = 64  # of 16 words that a test multiplies


def find(device: Device) -> tuple[str, ...]:
    """Names of the units that `device` has, fastest first. The answer is kept next to compiled programs."""
    folder = build.folder()
    path = folder / f"units-{_key(device)}.json" if folder else None
    if path and path.is_file():
        try:
            kept = json.loads(path.read_text())
            return tuple(unit.name for unit in UNITS if unit.name in kept)
        except (OSError, ValueError, TypeError):
            path.unlink(missing_ok=True)
    found = tuple(unit.name for unit in UNITS if _may_have(device, unit) and computes(device, unit))
    if path:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            atomic.write_bytes(path, json.dumps(found).encode())
        except (OSError, EdgelearnError) as error:
            caches.not_saved(path, error)
    return found


def computes(device: Device, unit: Unit) -> bool:
    """True if `unit` compiles on `device` and gives the right sums."""
    import pyopencl as cl

    try:
        found, expected = multiply(Context(device), unit)
    except (cl.Error, EdgelearnError):
        return False
    return bool((found == expected).all())


def multiply(context: Context, unit: Unit) -> tuple[np.ndarray, np.ndarray]:
    """(sums that `unit` computes, those by NumPy) of random integers, the least and the most among them."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 255, (BLOCKS, 16, 4), np.uint8, endpoint=True)
    w = rng.integers(-128, 127, (BLOCKS, 4, 16), np.int8, endpoint=True)
    x[0], w[0], w[1] = 255, -128, 127
    sums = rng.integers(-(1 << 24), 1 << 24, (BLOCKS, 16), np.int32)
    buffers = [Buffer(name, array.nbytes, Role.TEMPORARY) for name, array in (("x", x), ("w", w), ("sums", sums))]
    memory = {buffer: context.allocate(buffer.nbytes, buffer.name) for buffer in buffers}
    for buffer, array in zip(buffers, (x, w, sums), strict=True):
        context.write(memory[buffer].handle, array)
    arguments = (In(buffers[0]), In(buffers[1]), InOut(buffers[2]), BLOCKS)
    launch = Launch("units.cl", unit.probe, (("UNIT", unit.name),), (BLOCKS,), 1, arguments)
    Runner(context, Kernels(context), [launch], lambda buffer: (memory[buffer].handle, 0)).enqueue()
    found = context.read(memory[buffers[2]].handle, np.empty_like(sums))
    return found, sums + np.einsum("bcq,bqc->bc", x.astype(np.int32), w.astype(np.int32))


def _may_have(device: Device, unit: Unit) -> bool:
    return device.kind in unit.kinds and (not unit.extension or unit.extension in device.extensions)


def _key(device: Device) -> str:
    """Hash of everything that the answer depends on."""
    tests = [source.read("units.cl", probe) for probe in sorted({unit.probe for unit in UNITS})]
    facts = (device.id, device.version, device.driver, *device.notes, *map(repr, UNITS), *tests)
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:32]
