"""The roofline of a step: the time of each launch, and the least it could take on the device (S. Williams, A. Waterman,
D. Patterson, "Roofline", Communications of the ACM 52, 2009); and the device's peaks, which it is held against.

FLOPs are those of linear layers, a multiply-add as two, of integers as of floats. Bytes are those that a launch must
move: every buffer that it accesses, once. The bound of a launch is the longer of its FLOPs at the measured peak of the
type that its kernel multiplies in, and its bytes at the measured bandwidth of the place where they lie. Left out:
repeated reads because registers hold only a tile, arithmetic outside linear layers, latency.

A cache of a given size holds the data touched last, so data whose reuse distance, the number of other bytes touched
since (R. Mattson et al., "Evaluation techniques for storage hierarchies", IBM Systems Journal 9, 1970), is below its
size comes out of it. Distances are counted in pages of the plan's memory, for programs that repeat, as those of a
training run do. Left out: data that a kernel reads more than once, and that a cache is divided into sets and between
cores.

show.py shows rooflines.
"""

from __future__ import annotations

import datetime
import time
from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from edgelearn import statistics, tuned
from edgelearn.compile import Plan
from edgelearn.compile.search import launch_key
from edgelearn.device import QUADS, TILES, UNITS, WARPGROUPS, Device, Unit
from edgelearn.display import Displayed
from edgelearn.errors import DeviceError, PlanError, RunError
from edgelearn.lab.energy import Energy, Meter, find_meter
from edgelearn.lab.measure import Block, RoundsConfig, Sample, measure_in_turn, sample, usable_cores
from edgelearn.launch import Access, Buffer, In, Launch, Out, Role
from edgelearn.ops import Traits
from edgelearn.ops.formats import StoredType
from edgelearn.runtime import Context, Kernels, Runner, Session, choose_device
from edgelearn.runtime.devices import CHAINS, kernel, self_test
from edgelearn.runtime.session import random_batch

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


PAGE, MOST = 1 << 14, 1 << 14  # bytes of a page at least; pages that all launches touch together at most
ATTEMPTS = 3  # of a block of steps that other processes disturb
ATTEMPTS_TO_STORE = 2  # how often all rounds are measured, while other programs disturb them
# Shares of the roof that no step and no kind of launch reaches on a quiet machine; see `Roofline.problem`
MOST_OF_STEPS, MOST_OF_KINDS = 1.1, 3.0
TYPES_OF_UNITS = {unit.name: unit.types for unit in UNITS}
STORED_TYPES: dict[object, str] = {int(stored): kind for kind, stored in STORED.items()}
Times = list[tuple[Launch, int, int]]  # start and end of each launch by the device's clock, nanoseconds


@dataclass(frozen=True)
class TimedLaunch:
    """A launch of the step whose time is the median of all rounds.

    - `start`, `seconds`: by the device's clock; `start` counts from the step's first launch.
    - `median`: median over all rounds of the launch's time, seconds.
    """

    launch: Launch
    start: float
    seconds: float
    median: float


@dataclass(frozen=True)
class StepTiming:
    """Times of a step. `wall`: median of the host's time in seconds, from the first call until the result is back,
    without profiling; `noisy`: rounds during which other processes used the cores, however often they were repeated;
    `spread`: of the rounds' times, upper quartile minus lower one, as a share of the median; `energy`: of steps in a
    row after the rounds, without profiling (None: not measured); `steps`: of the last `rounds` steps, start and seconds
    of each launch."""

    launches: list[TimedLaunch]
    wall: float
    rounds: int
    noisy: int = 0
    spread: float = 0.0
    energy: Energy | None = None
    steps: Sequence[Sequence[tuple[float, float]]] = ()

    @property
    def busy(self) -> float:
        """Seconds of all launches together."""
        return sum(timed.median for timed in self.launches)


def disturbance(timings: Sequence[StepTiming]) -> str:
    """Why nothing may be concluded from these times, as `statistics.disturbance` says; empty if nothing is wrong."""
    noise = sum(timing.noisy for timing in timings) / max(1, sum(timing.rounds for timing in timings))
    return statistics.disturbance(noise, max((timing.spread for timing in timings), default=0.0))


def time_launches(
    plans: Sequence[Plan], device: Device, rounds: int = 20, seed: int = 0, meter: Meter | None = None
) -> list[StepTiming]:
    """Time steps of plans in turn, on random inputs: training steps of a whole mini-batch at learning rate 0, so that
    all are the same, or predictions where a plan doesn't train.

    Each plan takes turns on a plain queue, for the host's time, and on a profiling one, which costs a little: the
    device holds every plan twice. Of two steps in a row the second counts, since the first finds another plan's data in
    the caches. The first round isn't counted. A round that other processes disturbed is repeated up to ATTEMPTS times.
    After the rounds, `meter` counts the energy of each plan's steps (default: it isn't counted).

    Raises PlanError for a plan made for another kind of device, or without a round, and DeviceError.
    """
    if any(plan.traits != Traits.of(device) for plan in plans):
        raise PlanError(
            f"The plan was made for another kind of device than {device.id}. Make one for it: "
            f"make_plan(plan.request, device)."
        )
    if rounds < 1:
        raise PlanError(f"Measuring needs 1 round or more, not {rounds}.")
    plain, profiling = Kernels(Context(device)), Kernels(Context(device, profiling=True))
    times: list[list[Times]] = [[] for _ in plans]
    energies: dict[int, Energy | None] = {}

    def take(step: Callable[[], None], profiled: Callable[[], None], into: list[Times]) -> Sample:
        cpu = time.process_time()
        wall = sample(step).times
        profiled()
        profiling.context.take_times()
        profiled()
        into.append(profiling.context.take_times())
        return Sample(wall, time.process_time() - cpu)

    with ExitStack() as stack:
        samplers: dict[int, Callable[[], Sample]] = {}
        plain_steps: list[Callable[[], None]] = []
        for i, plan in enumerate(plans):
            steps = [stack.enter_context(_step(plan, kernels, seed)) for kernels in (plain, profiling)]
            samplers[i] = partial(take, *steps, times[i])
            plain_steps.append(steps[0])
        for sampler in samplers.values():
            sampler()
        blocks = measure_in_turn(samplers, usable_cores(), RoundsConfig(rounds, 0.0, attempts=ATTEMPTS))
        if meter is not None:
            meter.idle()
            energies = {i: meter.of_steps(step) for i, step in enumerate(plain_steps)}
    return [replace(_step_timing(times[i][1:], blocks[i]), energy=energies.get(i)) for i in samplers]


@contextmanager
def _step(plan: Plan, kernels: Kernels, seed: int) -> Iterator[Callable[[], None]]:
    """The step of a plan, on random inputs, as a function."""
    r, rng = plan.request, np.random.default_rng(seed)
    with closing(Session(plan, kernels.context, kernels)) as session:
        session.load(r.network.initialize(seed))
        sizes = plan.micro_batches(r.batch_size)
        parts = [random_batch(plan, n, rng) for n in sizes]

        def step() -> None:
            if r.optimizer is not None:
                session.train(parts, r.batch_size, 0.0, 1)
            else:
                for n, (x, _) in zip(sizes, parts, strict=True):
                    session.predict(x, n)

        yield step


def _step_timing(rounds: list[Times], blocks: Sequence[Block]) -> StepTiming:
    """Launches of the round of median length, with medians over all rounds."""
    lengths = np.array([times[-1][2] - times[0][1] for times in rounds])
    typical = rounds[int(np.argsort(lengths)[len(lengths) // 2])]
    medians: Any = np.median([[end - start for _, start, end in times] for times in rounds], axis=0)
    steps = [
        [((start - times[0][1]) / 1e9, (end - start) / 1e9) for _, start, end in times]
        for times in rounds[-len(blocks) :]  # a disturbed round is repeated
    ]
    launches = [
        TimedLaunch(launch, (start - typical[0][1]) / 1e9, (end - start) / 1e9, float(median) / 1e9)
        for (launch, start, end), median in zip(typical, medians, strict=True)
    ]
    low, wall, high = statistics.quartiles([block.seconds for block in blocks])
    noisy = sum(block.noisy for block in blocks)
    return StepTiming(launches, wall, len(blocks), noisy, (high - low) / wall, steps=steps)


def measure_launches(
    plans: Sequence[Plan], device: Device, rounds: int = 20, busy: bool = False
) -> tuned.MeasuredTimes:
    """Time steps of `plans` on the device in turn, and store the times of their launches (see `table_of`) in
    EDGELEARN_TUNED or the user's folder, next to those of other launches. All plans to come are predicted by them.

    Arguments:
    - `plans`: steps that have the launches to be timed.
    - `device`: where they run.
    - `rounds`: of all plans (default 20).
    - `busy`: store the times even if other programs disturbed them (default False).

    Times that other programs disturbed (see `disturbance`) are measured again, once. Raises RunError if they disturbed
    those as well, nothing stored; as `time_launches`; FormatError where the stored times are
    damaged, before anything is measured, or nothing can be written.
    """
    tuned.load_times(device)
    attempts = ATTEMPTS_TO_STORE
    while (problem := disturbance(timings := time_launches(plans, device, rounds))) and not busy:
        attempts -= 1
        if not attempts:
            raise RunError(
                f"The machine is busy: {problem}. Such times would mislead all plans to come, so that they were not "
                f"stored: end other programs, and measure again."
            )
    table = table_of(timings)
    tuned.save_times(table, device)
    return table


def table_of(timings: Sequence[StepTiming]) -> tuned.MeasuredTimes:
    """Seconds of each kind of launch (see `launch_key`): the mean over its places in steps, since
    caches differ between them, of the median over rounds. The time of a step beyond its launches is divided between a
    cost of each launch and one of the step by least squares: take plans of few launches and of many."""
    from scipy.optimize import nnls

    seconds: dict[str, list[float]] = {}
    for timed in (timed for timing in timings for timed in timing.launches):
        seconds.setdefault(launch_key(timed.launch), []).append(timed.median)
    means = {name: float(np.mean(values)) for name, values in seconds.items()}
    rests = [max(timing.wall - timing.busy, 0.0) for timing in timings]
    (between, fixed), _ = nnls(np.array([(len(timing.launches), 1.0) for timing in timings]), np.array(rests))
    return tuned.MeasuredTimes(datetime.date.today().isoformat(), float(between), float(fixed), means)


def distances(launches: Sequence[Launch], place: Callable[[Access], tuple[Role, int]]) -> list[list[tuple[int, int]]]:
    """(bytes moved, reuse distance in bytes) of each launch, in the steady state of a loop over `launches`. `place`
    gives the memory that an access lies in, and its first byte."""
    page = PAGE
    while sum(launch.nbytes for launch in launches) > page * MOST:
        page *= 2
    moves: list[list[tuple[int, int]]] = []
    last: dict[Hashable, int] = {}  # when each page was touched
    times: list[int] = []  # the same, ascending
    now = 0
    for turn in range(2):
        for launch in launches:
            moved: dict[int, int] = {}
            for access in launch.accesses:
                role, first = place(access)
                for number in range(first // page, -(-(first + access.nbytes) // page)):
                    start, end = max(first, number * page), min(first + access.nbytes, (number + 1) * page)
                    count = len(times)  # pages touched since this one was, itself included, or all of them
                    if (role, number) in last:
                        at = bisect_left(times, last[role, number])
                        count -= at
                        del times[at]
                    now += 1
                    last[role, number] = now
                    times.append(now)
                    moved[count * page] = moved.get(count * page, 0) + (access.reads + access.writes) * (end - start)
            if turn:
                moves.append([(nbytes, distance) for distance, nbytes in moved.items()])
    return moves


@dataclass(frozen=True)
class Point:
    """A group of launches.

    Arguments:
    - `name`: of the group: a kernel or a layer.
    - `launches`: number of them.
    - `flops`, `nbytes`: arithmetic and bytes of all of them together.
    - `seconds`: on the device, 0 where nothing was measured.
    - `bound`: seconds that they would take at the roof.
    - `compute`: types that their linear layers compute in (default "fp32").
    """

    name: str
    launches: int
    flops: int
    nbytes: int
    seconds: float
    bound: float
    compute: str = "fp32"

    @property
    def intensity(self) -> float:
        """FLOPs a byte."""
        return self.flops / self.nbytes

    @property
    def efficiency(self) -> float:
        """Share of the roof that was reached."""
        return self.bound / self.seconds


def kind(launch: Launch) -> str:
    """The computation of a launch, whichever variant of a kernel does it: "pointwise_forward"."""
    return launch.decision.name.partition(" ")[0] if launch.decision else launch.kernel


def compute_type(launch: Launch) -> str:
    """The type that a launch multiplies in: that of its unit, "fp32" where it has none."""
    macros = dict(launch.macros)
    types = TYPES_OF_UNITS.get(str(macros.get("UNIT")), ())
    stored = STORED_TYPES.get(macros.get("TYPE"), "") if len(types) > 1 else "".join(types)
    return stored if stored in types else "fp32"


def bounds(plan: Plan, launches: Iterable[Launch], peaks: Peaks, width: float = 1.0) -> list[float]:
    """Seconds of each launch at the roof. `width`: size of a number relative to the plan's: 0.5 for halves."""
    launches = list(launches)
    reuse = distances(launches, lambda access: (access.buffer.role, plan.offsets[access.buffer] + access.first))
    return [
        max(
            launch.flops / peaks.arithmetic(compute_type(launch)),
            sum(n * width / peaks.bandwidth_at(far * width) for n, far in moved),
        )
        for launch, moved in zip(launches, reuse, strict=True)
    ]


@dataclass(frozen=True, repr=False)
class Roofline(Displayed):
    """A measured step next to the limits of its device.

    Arguments:
    - `name`: of the step.
    - `device`: it was measured on.
    - `plan`: of the step.
    - `peaks`: the device's limits.
    - `timing`: seconds of each launch, in order.
    - `bounds`: seconds that each launch would take at the roof, in order.
    - `meter`: the device's, by which `timing` has energy.
    """

    name: str
    device: Device
    plan: Plan = field(repr=False)
    peaks: Peaks
    timing: StepTiming = field(repr=False)
    bounds: list[float] = field(repr=False)
    meter: Meter = field(repr=False, default_factory=lambda: Meter(None, "nobody counted"))

    @property
    def headline(self) -> str:
        return f"of a {self.name} on {self.device.id}: {self.wall * 1e3:.2f} ms"

    @property
    def wall(self) -> float:
        """Median seconds of a step on the host's clock."""
        return self.timing.wall

    @property
    def busy(self) -> float:
        """Seconds of all launches together."""
        return self.timing.busy

    @property
    def problem(self) -> str:
        """Why nothing may be concluded from these times; empty if nothing is wrong with them. Launches far above the
        roof tell that it was measured while other programs computed; data in a nearer cache than is assumed explains
        little."""
        fastest = max(self.by_kind(), key=lambda point: point.efficiency)
        for point, what, most in (
            (fastest, f"'{fastest.name}'", MOST_OF_KINDS), (self.total, "the whole step", MOST_OF_STEPS),
        ):  # fmt: skip
            if point.efficiency > most:
                return f"{what} reached {point.efficiency:.0%} of the roof, which was measured too low"
        return disturbance([self.timing])

    @property
    def total(self) -> Point:
        return self._points(lambda launch: "all")[0]

    def by_kind(self) -> list[Point]:
        """Groups by kind of launch, "pointwise_forward", "depthwise_backward_data" and so on; the longest first."""
        return self._points(kind)

    def by_layer(self) -> list[Point]:
        """Groups by layer, the longest first."""
        return self._points(lambda launch: launch.layer)

    def _points(self, name: Callable[[Launch], str]) -> list[Point]:
        groups: dict[str, list[int]] = {}
        for index, timed in enumerate(self.timing.launches):
            groups.setdefault(name(timed.launch), []).append(index)
        points = []
        for group, indices in groups.items():
            timed = [self.timing.launches[i] for i in indices]
            flops, nbytes = sum(t.launch.flops for t in timed), sum(t.launch.nbytes for t in timed)
            seconds, bound = sum(t.median for t in timed), sum(self.bounds[i] for i in indices)
            types = dict.fromkeys(compute_type(t.launch) for t in timed if t.launch.flops)
            points.append(Point(group, len(timed), flops, nbytes, seconds, bound, ", ".join(types) or "fp32"))
        return sorted(points, key=lambda point: -point.seconds)


def profile(
    plan: Plan, device: Device | str | None = None, rounds: int = 20, name: str = "", peaks: Peaks | None = None
) -> Roofline:
    """Time every launch of a step, and count the energy of whole steps where the device has a counter.

    Arguments:
    - `plan`: the step: a training step, or a prediction where the plan doesn't train.
    - `device`: the device that the plan was made for (default: the best one).
    - `rounds`: steps to measure.
    - `name`: of the step, for reports (default: the network's).
    - `peaks`: of the device, if they were measured before.

    Raises PlanError for a plan of another kind of device, and DeviceError.
    """
    device = choose_device(device).device
    peaks = peaks or measure_peaks(Context(device))
    with find_meter(device) as meter:
        (timing,) = time_launches([plan], device, rounds, meter=meter)
    launches = [timed.launch for timed in timing.launches]
    name = name or plan.request.network.name
    return Roofline(name, device, plan, peaks, timing, bounds(plan, launches, peaks), meter)
