"""Find the units of a device by trying each: it must compile, run, and give the integers that NumPy gives."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator

import numpy as np

from edgelearn import atomic, caches
from edgelearn.device import Device
from edgelearn.device.units import UNITS, Unit
from edgelearn.errors import EdgelearnError
from edgelearn.launch.buffers import Buffer, Role
from edgelearn.launch.launch import In, InOut, Launch
from edgelearn.ops import BFloat16, Float16
from edgelearn.ops.formats import StoredType

from . import build, ptx, source
from .context import Context
from .kernels import Kernels
from .runner import Runner

BLOCKS = 64  # of 16 words that a test multiplies
HALVES = {"bf16": BFloat16(), "fp16": Float16()}


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
        results = list(PROBES[unit.probe](Context(device), unit))
    except (cl.Error, EdgelearnError):
        return False
    return all((found == expected).all() for found, expected in results)


def multiply_quads(context: Context, unit: Unit) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield (sums that `unit` computes, those by NumPy) of random integers, the least and the most among them."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 255, (BLOCKS, 16, 4), np.uint8, endpoint=True)
    w = rng.integers(-128, 127, (BLOCKS, 4, 16), np.int8, endpoint=True)
    x[0], w[0], w[1] = 255, -128, 127
    sums = rng.integers(-(1 << 24), 1 << 24, (BLOCKS, 16), np.int32)
    found = _run(context, unit, {}, (x, w, sums), BLOCKS, 1, BLOCKS)
    yield found, sums + np.einsum("bcq,bqc->bc", x.astype(np.int32), w.astype(np.int32))


def multiply_tiles(context: Context, unit: Unit) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """As `multiply_quads`, of small whole numbers in each of the unit's types: their products and sums are exact."""
    rng = np.random.default_rng(0)
    if "int8" in unit.types:  # two steps of a depth of 16, whose rows of w lie as right_columns reads them
        x, w = rng.integers(-128, 127, (2, 2, 16, 16), np.int8, endpoint=True)
        macros = {"TYPE": int(StoredType.INT8), "VECTOR_WIDTH": 4}
        slots = [slot % 8 // 2 * 4 + slot % 2 + slot // 8 * 2 for slot in range(16)]
        found = _run(context, unit, macros, (x, w[:, slots].copy(), np.zeros((16, 16), np.float32)), 32, 32)
        yield found, np.einsum("smk,skn->mn", x.astype(np.int32), w.astype(np.int32))
    x, w = (rng.integers(-8, 8, (16, 16), endpoint=True).astype(np.float32) for _ in range(2))
    for kind in unit.types:
        if kind == "int8":
            continue
        fmt = HALVES.get(kind)
        factors = [fmt.encode(v) if fmt else v for v in (x, w)]
        code = int(StoredType.of(fmt.storage)) if fmt else int(StoredType.FLOAT32)
        macros = {"TYPE": code, "VALUES": code, "VECTOR_WIDTH": 4}
        yield _run(context, unit, macros, (*factors, np.zeros((16, 16), np.float32)), 32, 32), x @ w


def multiply_by_warpgroups(context: Context, unit: Unit) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """As `multiply_tiles`: x of 64 x 16, as it is and transposed in blocks, times w of 16 x 32. Floats: x as it is, and
    w transposed."""
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-8, 8, shape, endpoint=True).astype(np.float32) for shape in ((64, 16), (16, 32)))
    transposed = x.reshape(4, 16, 16).transpose(0, 2, 1)
    blocks = w.reshape(16, 2, 16).transpose(1, 0, 2)
    for kind in unit.types:
        if kind == "tf32":
            macros = {"TYPE": int(StoredType.FLOAT32), "VECTOR_WIDTH": 4, "TRANSPOSED": 0, "DEPTH_ROWS": 1}
            yield _run(context, unit, macros, (x, w.T.copy(), np.zeros((64, 32), np.float32)), 128, 128), x @ w
            continue
        fmt = HALVES[kind]
        code = int(StoredType.of(fmt.storage))
        for number, left in enumerate((x, transposed)):
            macros = {"TYPE": code, "VALUES": code, "VECTOR_WIDTH": 4, "TRANSPOSED": number}
            factors = [fmt.encode(v.reshape(-1, 16).copy()) for v in (left, blocks)]
            yield _run(context, unit, macros, (*factors, np.zeros((64, 32), np.float32)), 128, 128), x @ w


PROBES = {
    "add_quads_of_blocks": multiply_quads,
    "add_products_of_tiles": multiply_tiles,
    "add_products_of_warpgroups": multiply_by_warpgroups,
}


def _run(
    context: Context, unit: Unit, macros: dict[str, int], arrays: tuple[np.ndarray, ...], items: int, group: int,
    *numbers: int,
) -> np.ndarray:  # fmt: skip
    """The last of `arrays` after the unit's probe has run on them."""
    buffers = [Buffer("probe", array.nbytes, Role.TEMPORARY) for array in arrays]
    memory = {buffer: context.allocate(buffer.nbytes, buffer.name) for buffer in buffers}
    for buffer, array in zip(buffers, arrays, strict=True):
        context.write(memory[buffer].handle, array)
    arguments = (*map(In, buffers[:-1]), InOut(buffers[-1]), *numbers)
    named = tuple(sorted({"UNIT": unit.name, **macros}.items()))
    launch = Launch("units.cl", unit.probe, named, (items,), group, arguments)
    Runner(context, Kernels(context), [launch], lambda buffer: (memory[buffer].handle, 0)).enqueue()
    return context.read(memory[buffers[-1]].handle, np.empty_like(arrays[-1]))


def _may_have(device: Device, unit: Unit) -> bool:
    return device.kind in unit.kinds and (not unit.extension or unit.extension in device.extensions)


def _key(device: Device) -> str:
    """Hash of everything that the answer depends on."""
    tests = [source.read("units.cl", probe) for probe in sorted({unit.probe for unit in UNITS})]
    facts = (device.id, device.version, device.driver, *device.notes, *map(repr, UNITS), repr(ptx.RULE), *tests)
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:32]
