"""Peak arithmetic of a device's units for small numbers, by the type that they multiply."""

from __future__ import annotations

from collections.abc import Callable

from edgelearn.device.units import QUADS, TILES, UNITS, WARPGROUPS, Unit
from edgelearn.launch import Buffer, Launch, Out, Role
from edgelearn.ops.formats import StoredType
from edgelearn.runtime import Context

CHAINS, ROUNDS, REPEATS = 12, 4096, 16
QUAD_OPS = 16 * 4 * 2  # of a vector of quads
WARP, GROUP = 32, 128
# The kernel, how many products of a round it makes, and the rows and columns of a warp's part of a product
REPEATED = {
    TILES: ("repeat_products", CHAINS, 16, 8),
    WARPGROUPS: ("repeat_products_of_warpgroups", 4, 16, 128),
}
DEPTHS = {"int8": 32, "bf16": 16, "fp16": 16, "tf32": 8}
STORED = {
    "int8": StoredType.INT8, "bf16": StoredType.BFLOAT16, "fp16": StoredType.FLOAT16, "tf32": StoredType.FLOAT32,
}  # fmt: skip


def measure_units(context: Context, time: Callable[[Launch, int], float]) -> dict[str, float]:
    """Return operations/s by type, a multiply-add as two, of the fastest unit for each type that the device has.

    Arguments:
    - `time`: seconds of a launch that is repeated so many times.
    """
    found: dict[str, float] = {}
    for unit in UNITS:
        if unit.name not in context.device.units:
            continue
        for kind in unit.types:
            if kind not in found:
                launch, operations = _quads(context, unit) if unit.probe == QUADS else _products(context, unit, kind)
                found[kind] = operations * REPEATS / time(launch, REPEATS)
    return found


def _quads(context: Context, unit: Unit, rounds: int = ROUNDS) -> tuple[Launch, int]:
    """The launch, and its operations."""
    gpu = context.device.is_gpu
    items, group = (1024 if gpu else 8) * context.device.compute_units, 64 if gpu else 1
    sums = Buffer("sums", items * 64, Role.TEMPORARY)
    macros = (("CHAINS", CHAINS), ("UNIT", unit.name))
    launch = Launch("unit_peaks.cl", "repeat_quads", macros, (items,), group, (Out(sums), rounds))
    return launch, items * rounds * CHAINS * QUAD_OPS


def _products(context: Context, unit: Unit, kind: str, rounds: int = ROUNDS) -> tuple[Launch, int]:
    items = 8 * GROUP * context.device.compute_units
    sums = Buffer("sums", items * 16, Role.TEMPORARY)
    code = int(STORED[kind])
    macros: dict[str, int | str] = {"CHAINS": CHAINS, "TYPE": code, "UNIT": unit.name, "VECTOR_WIDTH": 4}
    if kind != "int8":
        macros["VALUES"] = code
    named = tuple(sorted(macros.items()))
    kernel, products, rows, columns = REPEATED[unit.probe]
    launch = Launch("unit_peaks.cl", kernel, named, (items,), GROUP, (Out(sums), rounds))
    return launch, items // WARP * rounds * products * rows * columns * DEPTHS[kind] * 2
