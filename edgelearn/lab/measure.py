"""One way to measure: interleaved rounds with a check for other processes, cores, and memory."""

from __future__ import annotations

import ctypes
import gc
import math
import sys
import time
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import psutil

from edgelearn.child import WorkerError
from edgelearn.errors import EdgelearnError
from edgelearn.statistics import ADVICE, MIN_ROUNDS, REMEDY, Ratio, compare, disturbance, quartiles

__all__ = [
    "ADVICE", "MIN_ROUNDS", "REMEDY", "Block", "PeakMemory", "Ratio", "RoundsConfig", "Sample", "compare",
    "disturbance", "measure_in_turn", "quartiles", "sample", "usable_cores",
]  # fmt: skip

IDLE = {"idle", "iowait", "guest", "guest_nice"}  # guests are counted under user and nice, too


def usable_cores() -> list[int]:
    """Numbers of the processor cores this process may use; all cores where the system has no affinity (macOS)."""
    process = psutil.Process()
    if hasattr(process, "cpu_affinity"):
        return sorted(process.cpu_affinity() or ())
    return list(range(psutil.cpu_count() or 1))


def busy_seconds(cores: Collection[int]) -> float:
    """Seconds that all processes together have used `cores` since the machine started, stolen time included."""
    times = psutil.cpu_times(percpu=True)
    return sum(v for core in cores for name, v in times[core]._asdict().items() if name not in IDLE)


class PeakMemory:
    """Peak resident memory of this process minus its resident memory at creation: create it after the imports."""

    def __init__(self) -> None:
        release_free_memory()
        self.after_imports = resident_bytes()

    @property
    def over_imports(self) -> int:
        """Peak since the process started, or since `restart_peak`, minus memory after the imports; bytes."""
        return peak_resident_bytes() - self.after_imports


def resident_bytes() -> int:
    """Main memory that this process holds now."""
    return psutil.Process().memory_info().rss


def peak_resident_bytes() -> int:
    """Largest main memory that this process has held since its start, or since `restart_peak`."""
    if sys.platform == "linux":
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    if sys.platform == "win32":
        return psutil.Process().memory_info().peak_wset
    import resource  # POSIX only

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def restart_peak() -> bool:
    """Restart the peak at the memory held now; False where the kernel can't (see proc(5), clear_refs)."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def release_free_memory() -> None:
    """Return freed memory that the C library still holds to the system, where it can do that (glibc)."""
    gc.collect()
    if sys.platform == "linux" and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)):
        trim(0)


def machine_memory() -> tuple[int, int]:
    """(available, total) bytes of main memory."""
    memory = psutil.virtual_memory()
    return memory.available, memory.total


Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class RoundsConfig:
    """Settings of a measurement in rounds.

    - `rounds`: blocks of each variant (default 9).
    - `block_seconds`, `steps`: a block is as many steps in a row as last `block_seconds` together, at least `steps`.
    - `attempts`: how often at most a noisy block is measured (default 5).
    - `foreign_limit`: share of the cores that other processes may use before a block counts as noisy (default 0.08).
    - `pause`: seconds to wait before a block is measured again.
    """

    rounds: int = 9
    block_seconds: float = 0.3
    steps: int = 1
    attempts: int = 5
    foreign_limit: float = 0.08
    pause: float = 0.1


@dataclass(frozen=True)
class Sample:
    """Some steps in a row.

    Arguments:
    - `times`: seconds of each step.
    - `cpu_seconds`: of all threads of the process meanwhile.
    """

    times: list[float]
    cpu_seconds: float


@dataclass(frozen=True)
class Block:
    """Steps in a row, measured together.

    Arguments:
    - `seconds`: median of a step.
    - `steps`: number of steps.
    - `foreign`: share of the cores that other processes used meanwhile.
    - `attempts`: how often the block was measured.
    - `noisy`: True if other processes disturbed every attempt; this is then the quietest.
    """

    seconds: float
    steps: int
    foreign: float
    attempts: int
    noisy: bool

    def __post_init__(self) -> None:
        if not 0 < self.seconds < math.inf:
            raise ValueError(f"a block of {self.seconds} seconds was not measured")


def sample(step: Callable[[], Any], seconds: float = 0.0, steps: int = 1, warm_up: int = 1) -> Sample:
    """Time steps in this process, after `warm_up` untimed ones: for `seconds`, and at least `steps`."""
    cpu = time.process_time()
    for _ in range(warm_up):  # the variant before has left its data in the caches
        step()
    times: list[float] = []
    begin = before = time.perf_counter()
    while len(times) < steps or before - begin < seconds:
        step()
        after = time.perf_counter()
        times.append(after - before)
        before = after
    return Sample(times, time.process_time() - cpu)


def measure_in_turn(
    samplers: Mapping[Key, Callable[[], Sample]],
    cores: Sequence[int],
    config: RoundsConfig,
    progress: Callable[[int], None] = lambda number: None,
    on_error: Callable[[Key, WorkerError], None] | None = None,
) -> dict[Key, list[Block]]:
    """One block of every variant in each round, in an order that rotates from round to round.

    Arguments:
    - `samplers`: takes a sample, by variant.
    - `cores`: the cores that samples run on, watched for other processes.
    - `progress`: called with the number of each round, from 0.
    - `on_error`: called when a worker fails, which leaves the other rounds out; by default the error is raised.

    Raises EdgelearnError for less than one round.
    """
    if config.rounds < 1:
        raise EdgelearnError(f"Measuring takes 1 round or more, not {config.rounds}.")
    blocks: dict[Key, list[Block]] = {key: [] for key in samplers}
    running = list(samplers)
    for number in range(config.rounds):
        progress(number)
        first = number % max(1, len(running))
        for key in running[first:] + running[:first]:
            try:
                blocks[key].append(take_block(samplers[key], cores, config))
            except WorkerError as error:
                if on_error is None:
                    raise
                running.remove(key)
                on_error(key, error)
    return blocks


def take_block(take_sample: Callable[[], Sample], cores: Sequence[int], config: RoundsConfig) -> Block:
    """A block, measured again while other processes use the cores; after the last attempt, the quietest one.

    Whether to repeat depends on what the machine did for other processes, never on the time that came out.
    """
    quietest = None
    attempt = 0
    while attempt < max(1, config.attempts):
        if attempt:
            time.sleep(config.pause)
        attempt += 1
        busy, begin = busy_seconds(cores), time.perf_counter()
        taken = take_sample()
        busy, wall = busy_seconds(cores) - busy, time.perf_counter() - begin
        foreign = max(0.0, busy - taken.cpu_seconds) / wall / len(cores)
        noisy = foreign > config.foreign_limit
        if quietest is None or foreign < quietest.foreign:
            quietest = Block(float(np.median(taken.times)), len(taken.times), foreign, attempt, noisy)
        if not noisy:
            break
    assert quietest is not None
    return replace(quietest, attempts=attempt)
