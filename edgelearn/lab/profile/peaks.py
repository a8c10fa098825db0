"""Peak arithmetic of a device's units for small numbers, by the type that they multiply.

Peak performance of a device: arithmetic by type, memory and caches, and the cost of a launch.
"""

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
    macros = (("CHAINS", UNIT_CHAINS), ("UNIT", unit.name))
    launch = Launch("unit_peaks.cl", "repeat_quads", macros, (items,), group, (Out(sums), rounds))
    return launch, items * rounds * UNIT_CHAINS * QUAD_OPS


def _products(context: Context, unit: Unit, kind: str, rounds: int = ROUNDS) -> tuple[Launch, int]:
    items = 8 * GROUP * context.device.compute_units
    sums = Buffer("sums", items * 16, Role.TEMPORARY)
    code = int(STORED[kind])
    macros: dict[str, int | str] = {"CHAINS": UNIT_CHAINS, "TYPE": code, "UNIT": unit.name, "VECTOR_WIDTH": 4}
    if kind != "int8":
        macros["VALUES"] = code
    named = tuple(sorted(macros.items()))
    kernel, products, rows, columns = REPEATED[unit.probe]
    launch = Launch("unit_peaks.cl", kernel, named, (items,), GROUP, (Out(sums), rounds))
    return launch, items // WARP * rounds * products * rows * columns * DEPTHS[kind] * 2


BLOCK = 64  # bytes
SMALLEST, LARGEST = 1 << 20, 1 << 29  # bytes that the sweep of working sets goes from and to
TINY = 200  # nearly empty launches


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
        sizes = sorted(self.bandwidth)
        return self.bandwidth[next((size for size in sizes if distance <= size), sizes[-1])]

    @property
    def memory(self) -> float:
        """Bytes/s from memory, for data that no cache holds."""
        return self.bandwidth[max(self.bandwidth)]

    @property
    def cache(self) -> float:
        """Bytes/s from the fastest cache that shows."""
        return max(self.bandwidth.values())

    def to_dict(self) -> dict:
        bandwidth = {str(k): v for k, v in self.bandwidth.items()}
        return {"flops": self.flops, "bandwidth": bandwidth, "launch": self.launch, "units": dict(self.units)}

    @classmethod
    def from_dict(cls, record: Mapping) -> Peaks:
        bandwidth = {int(k): v for k, v in record["bandwidth"].items()}
        return cls(record["flops"], bandwidth, record["launch"], record.get("units", {}))


def measure_peaks(context: Context, seconds: float = 0.1) -> Peaks:
    """Measure each for about `seconds`, and take the best: chains of multiply-adds; the triad c = a + 3 b (of STREAM,
    J. McCalpin 1995) on working sets of 1 MiB, 2 MiB and so on; 200 nearly empty launches; and chains of products by
    each unit.

    Raises DeviceError if the device fails its self-test.
    """
    test = self_test(context.device, 0.0)
    if not test.passed:
        raise DeviceError(
            f"{context.device.id} fails its self-test: {test.problem}. Choose another device (`edgelearn devices`)."
        )
    bench = _Bench(context, seconds)
    largest = min(LARGEST, context.device.memory // 4, context.device.largest_buffer)
    sizes = [SMALLEST << i for i in range((largest // SMALLEST).bit_length())]
    bandwidth = {size: bench.bandwidth(size) for size in sizes}
    return Peaks(bench.flops(), bandwidth, bench.launch(), measure_units(context, bench.time))


class _Bench:
    """Runs kernels of the self-test many times in a row, so that the latency of the host doesn't count."""

    def __init__(self, context: Context, seconds: float) -> None:
        self.context, self.seconds = context, seconds
        self.kernels = Kernels(context)
        self.units, self.gpu = context.device.compute_units, context.device.is_gpu

    def flops(self) -> float:
        """FLOP/s."""
        items, rounds, repeats = (1024 if self.gpu else 8) * self.units, 4096, 16
        c = Buffer("c", items * BLOCK, Role.TEMPORARY)
        done = repeats * items * rounds * CHAINS * (BLOCK // 4) * 2
        return done / self._time("multiply_add", items, (Out(c), rounds), repeats)

    def bandwidth(self, working_set: int) -> float:
        """Bytes/s over three arrays of `working_set` bytes together."""
        blocks = working_set // (3 * BLOCK)
        repeats = max(1, (64 << 20) // working_set)
        return 3 * BLOCK * blocks * repeats / self._triad(blocks, repeats)

    def launch(self) -> float:
        """Seconds of a nearly empty launch."""
        return self._triad(self.units, TINY) / TINY

    def _triad(self, blocks: int, repeats: int) -> float:
        count = 1 if self.gpu else max(1, min(1024, blocks // (4 * self.units)))
        a, b, c = (Buffer(name, blocks * BLOCK, Role.TEMPORARY) for name in "abc")
        return self._time("triad", -(-blocks // count), (In(a), In(b), Out(c), blocks, count), repeats)

    def _time(self, name: str, items: int, arguments: tuple[Access | int, ...], repeats: int) -> float:
        return self.time(kernel(self.context.device, name, items, *arguments), repeats)

    def time(self, launch: Launch, repeats: int) -> float:
        """The shortest time of `repeats` launches in a row, after a first one that touches all memory."""
        memory = {access.buffer: self.context.allocate(access.nbytes, access.buffer.name) for access in launch.accesses}
        for held in memory.values():
            self.context.fill_zero(held.handle, held.nbytes)
        runner = Runner(self.context, self.kernels, [launch] * repeats, lambda buffer: (memory[buffer].handle, 0))

        def run() -> None:
            runner.enqueue()
            self.context.finish()

        best = min(sample(run, self.seconds).times)
        for held in memory.values():
            held.release()
        return best
