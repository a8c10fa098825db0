"""Peak performance of a device: arithmetic by type, memory and caches, and the cost of a launch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from edgelearn.device import QUADS, TILES, UNITS, WARPGROUPS, Unit
from edgelearn.errors import DeviceError
from edgelearn.lab.measure import sample
from edgelearn.launch import Access, Buffer, In, Launch, Out, Role
from edgelearn.ops.formats import StoredType
from edgelearn.runtime import Context, Kernels, Runner
from edgelearn.runtime.devices import CHAINS, kernel, self_test

BLOCK = 64  # bytes
SMALLEST, LARGEST = 1 << 20, 1 << 29  # bytes that the sweep of working sets goes from and to
TINY = 200  # nearly empty launches
UNIT_CHAINS, ROUNDS, REPEATS = 12, 4096, 16
QUAD_OPS = 16 * 4 * 2  # of a vector of quads
WARP, GROUP = 32, 128
# The kernel, how many products of a round it makes, and the rows and columns of a warp's part of a product
REPEATED = {
    TILES: ("repeat_products", UNIT_CHAINS, 16, 8),
    WARPGROUPS: ("repeat_products_of_warpgroups", 4, 16, 128),
}
DEPTHS = {"int8": 32, "bf16": 16, "fp16": 16, "tf32": 8}
STORED = {
    "int8": StoredType.INT8, "bf16": StoredType.BFLOAT16, "fp16": StoredType.FLOAT16, "tf32": StoredType.FLOAT32,
}  # fmt: skip


@dataclass(frozen=True)
class Peaks:
    """Peak performance of a device.

    - `flops`: FLOP/s of float32 multiply-adds.
    - `bandwidth`: bytes/s by the size in bytes of a working set that is read and written repeatedly, which shows
      caches; larger sets are as fast as the largest.
    - `launch`: the least seconds that a launch costs.
    - `units`: operations/s of the units for small numbers, by the type that they multiply (default: it has none).
    """

    flops: float
    bandwidth: Mapping[int, float]
    launch: float
    units: Mapping[str, float] = field(default_factory=dict)

    def arithmetic(self, compute: str) -> float:
        """Operations/s in a type: those of its unit, of float32 where there is none."""
        return self.units.get(compute, self.flops)

    def bandwidth_at(self, distance: float) -> float:
        """Bytes/s of data with reuse distance `distance`: so many bytes were touched since."""
        return self.bandwidth[min((size for size in self.bandwidth if distance <= size), default=max(self.bandwidth))]

    @property
    def memory(self) -> float:
        """Bytes/s from memory, for data that no cache holds."""
        return self.bandwidth[max(self.bandwidth)]

    @property
    def cache(self) -> float:
        """Bytes/s from the fastest cache that shows."""
        return max(self.bandwidth.values())


def measure_peaks(context: Context, seconds: float = 0.1) -> Peaks:
    """Measure each for about `seconds`, and take the best: chains of multiply-adds; the triad c = a + 3 b (of STREAM,
    J. McCalpin 1995) on working sets of 1 MiB, 2 MiB and so on; 200 nearly empty launches; and chains of products by
    each unit. Launches run many times in a row, so that the latency of the host doesn't count.

    Raises DeviceError if the device fails its self-test.
    """
    device = context.device
    test = self_test(device, 0.0)
    if not test.passed:
        raise DeviceError(
            f"{device.id} fails its self-test: {test.problem}. Choose another device (`edgelearn devices`)."
        )
    kernels, units = Kernels(context), device.compute_units

    def time(launch: Launch, repeats: int) -> float:
        """The shortest time of `repeats` launches in a row, after a first one that touches all memory."""
        memory = {access.buffer: context.allocate(access.nbytes, access.buffer.name) for access in launch.accesses}
        for held in memory.values():
            context.fill_zero(held.handle, held.nbytes)
        runner = Runner(context, kernels, [launch] * repeats, lambda buffer: (memory[buffer].handle, 0))

        def run() -> None:
            runner.enqueue()
            context.finish()

        best = min(sample(run, seconds).times)
        for held in memory.values():
            held.release()
        return best

    def triad(blocks: int, repeats: int) -> float:
        count = 1 if device.is_gpu else max(1, min(1024, blocks // (4 * units)))
        a, b, c = (Buffer(name, blocks * BLOCK, Role.TEMPORARY) for name in "abc")
        return time(kernel(device, "triad", -(-blocks // count), In(a), In(b), Out(c), blocks, count), repeats)

    bandwidth = {}
    size = SMALLEST  # of three arrays together
    while size <= max(SMALLEST, min(LARGEST, device.memory // 4, device.largest_buffer)):
        blocks, repeats = size // (3 * BLOCK), max(1, (64 << 20) // size)
        bandwidth[size] = 3 * BLOCK * blocks * repeats / triad(blocks, repeats)
        size *= 2
    items = _items(context)
    chains = kernel(device, "multiply_add", items, Out(Buffer("c", items * BLOCK, Role.TEMPORARY)), ROUNDS)
    flops = REPEATS * items * ROUNDS * CHAINS * (BLOCK // 4) * 2 / time(chains, REPEATS)
    return Peaks(flops, bandwidth, triad(units, TINY) / TINY, _measure_units(context, time))


def _items(context: Context) -> int:
    return (1024 if context.device.is_gpu else 8) * context.device.compute_units


def _measure_units(context: Context, time: Callable[[Launch, int], float]) -> dict[str, float]:
    """Operations/s by type, a multiply-add as two, of the fastest unit for each type that the device has."""
    found: dict[str, float] = {}
    for unit in UNITS:
        for kind in unit.types if unit.name in context.device.units else ():
            if kind not in found:
                launch, operations = _quads(context, unit) if unit.probe == QUADS else _products(context, unit, kind)
                found[kind] = operations * REPEATS / time(launch, REPEATS)
    return found


def _quads(context: Context, unit: Unit, rounds: int = ROUNDS) -> tuple[Launch, int]:
    """The launch, and its operations."""
    items, group = _items(context), 64 if context.device.is_gpu else 1
    macros = (("CHAINS", UNIT_CHAINS), ("UNIT", unit.name))
    arguments: tuple[Access | int, ...] = (Out(Buffer("sums", items * 64, Role.TEMPORARY)), rounds)
    launch = Launch("unit_peaks.cl", "repeat_quads", macros, (items,), group, arguments)
    return launch, items * rounds * UNIT_CHAINS * QUAD_OPS


def _products(context: Context, unit: Unit, kind: str) -> tuple[Launch, int]:
    items, code = 8 * GROUP * context.device.compute_units, int(STORED[kind])
    macros: dict[str, int | str] = {"CHAINS": UNIT_CHAINS, "TYPE": code, "UNIT": unit.name, "VECTOR_WIDTH": 4}
    if kind != "int8":
        macros["VALUES"] = code
    name, products, rows, columns = REPEATED[unit.probe]
    arguments: tuple[Access | int, ...] = (Out(Buffer("sums", items * 16, Role.TEMPORARY)), ROUNDS)
    launch = Launch("unit_peaks.cl", name, tuple(sorted(macros.items())), (items,), GROUP, arguments)
    return launch, items // WARP * ROUNDS * products * rows * columns * DEPTHS[kind] * 2
