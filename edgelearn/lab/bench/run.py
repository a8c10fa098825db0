"""The run: starts the workers of a workload, takes blocks from them in turn, and filters what others disturbed."""

from __future__ import annotations

import datetime
import importlib.metadata
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatch

import numpy as np

from edgelearn.errors import EdgelearnError
from edgelearn.runtime import choose_device

from . import machine
from .contenders import CONTENDERS, SUBJECT, Entry, choose
from .remote import Remote, WorkerError
from .report import BenchReport
from .results import Block, Lane
from .workloads import DEFAULT, Workload


@dataclass(frozen=True)
class BenchConfig:
    """How to measure.

    A block is a median over steps in a row, of `block_seconds` together or of one step if that takes longer. It is
    repeated, `attempts` times in all, while others use more than `foreign_limit` of the cores; `pause` is the wait
    before that. `patience` is how long a worker may take to answer, and `memory_reserve` the share of main memory
    that must be free before another worker is started. All times in seconds.
    """

    rounds: int = 9
    block_seconds: float = 0.3
    attempts: int = 5
    foreign_limit: float = 0.08
    pause: float = 0.1
    patience: float = 600.0
    memory_reserve: float = 0.15
    seed: int = 0


def run(
    workloads: Iterable[Workload] = DEFAULT,
    contenders: Iterable[str] | None = None,
    only: Sequence[str] = ("*",),
    cores: int | None = None,
    device: str | None = None,
    settings: BenchConfig = BenchConfig(),
    progress: Callable[[str], None] = lambda line: None,
    registry: Iterable[Entry] = CONTENDERS,
    subject: str = SUBJECT,
) -> BenchReport:
    """Measure `workloads` on every contender that is installed, or on those called `contenders`.

    `only` are patterns as in file names on what the table calls a lane: "torch compile", "torch compile, tuned
    malloc". `cores` limits everyone to that many processor cores; None is all this process may use. `device` is any
    part of the name of an OpenCL device; None is the best one. Where that is no CPU, contenders that compute on
    processor cores are left out. `progress` is told in a line what happens. What fails is in the report and stops
    nothing else.

    Raises EdgelearnError for an unknown contender or device, patterns that no lane fits, more cores than there are, or
    a machine without /proc.
    """
    entries = choose(contenders, registry)
    usable = machine.usable_cores()
    if cores is not None and not 1 <= cores <= len(usable):
        raise EdgelearnError(f"Can't measure on {cores} cores: this process may use 1 to {len(usable)}.")
    usable = usable[:cores]
    if settings.rounds < 1:
        raise EdgelearnError(f"A bench needs 1 round or more, not {settings.rounds}.")
    started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    chosen = choose_device(device).device
    fitting = [entry for entry in entries if entry.opencl or chosen.kind == "cpu"]
    present = [entry for entry in fitting if entry.available()]
    lanes: list[Lane] = []
    for workload in workloads:
        lanes += _run_workload(workload, present, only, usable, chosen.id, settings, progress)
    if present and not lanes:
        names = ", ".join(entry.name for entry in present)
        raise EdgelearnError(
            f"Nothing to measure: no lane of {names} is called {' or '.join(map(repr, only))}. The first column of the "
            f"table has their names; 'torch*' is all of one contender."
        )
    return BenchReport(
        started=started,
        machine=machine.describe() | {"cores": len(usable), "device": chosen.facts()},
        settings=asdict(settings),
        versions={d: importlib.metadata.version(d) for e in present for d in e.requires.values()},
        not_installed={entry.name: entry.missing() for entry in fitting if not entry.available()},
        lanes=lanes,
        subject=subject,
    )


@dataclass
class _Racer:
    """A lane and the worker that runs it, None once it has failed."""

    lane: Lane
    remote: Remote | None

    def attempt(self, work: Callable[[Remote], None]) -> None:
        """Do `work` unless this racer is out; if the worker fails, write down why and end it."""
        if self.remote is None:
            return
        try:
            work(self.remote)
        except WorkerError as error:
            self.lane.error = str(error)
            self.close()

    def close(self) -> None:
        if self.remote is not None:
            self.remote.close()
            self.remote = None


def _run_workload(
    workload: Workload,
    entries: Iterable[Entry],
    only: Sequence[str],
    cores: Sequence[int],
    device: str,
    settings: BenchConfig,
    progress: Callable[[str], None],
) -> list[Lane]:
    racers: list[_Racer] = []
    try:
        for entry in entries:
            for racer in _start(workload, entry, only, cores, device, settings):
                racers.append(racer)
                progress(f"{workload.name}: {racer.lane.label}: preparing")
                racer.attempt(lambda remote, racer=racer: _prepare(remote, racer.lane, workload))
        order = np.random.default_rng([settings.seed, 3])
        for number in range(settings.rounds):
            progress(f"{workload.name}: round {number + 1} of {settings.rounds}")
            for i in order.permutation(len(racers)):
                blocks = racers[i].lane.blocks
                racers[i].attempt(lambda remote, blocks=blocks: blocks.append(take_block(remote, cores, settings)))
        for racer in racers:
            racer.attempt(lambda remote, racer=racer: _weigh(remote, racer.lane))
    finally:
        for racer in racers:
            racer.close()
    return [racer.lane for racer in racers]


def _start(
    workload: Workload, entry: Entry, only: Sequence[str], cores: Sequence[int], device: str, settings: BenchConfig
) -> Iterator[_Racer]:
    """A racer for every variant of `entry` in every environment; the first worker is asked which variants."""

    def start(variables: Mapping[str, str]) -> Remote:
        free, total = machine.memory()
        if free < settings.memory_reserve * total:
            raise WorkerError(
                f"Not started: only {free / 2**30:.1f} of {total / 2**30:.1f} GiB of memory are free. "
                "Choose fewer contenders or a smaller batch."
            )
        return Remote(entry.target, cores, device, variables, settings.patience)

    asked = next(iter(entry.environments))
    remote = None
    try:
        remote = start(entry.environments[asked])
        names = remote.ask("variants", asdict(workload))
    except WorkerError as error:
        if remote is not None:
            remote.close()
        yield _Racer(Lane(workload.name, entry.name, "", error=str(error)), None)
        return
    every = [Lane(workload.name, entry.name, name, label) for label in entry.environments for name in names]
    lanes = [lane for lane in every if any(fnmatch(lane.label, pattern) for pattern in only)]
    if not lanes or lanes[0].environment != asked:
        remote.close()
        remote = None
    for lane in lanes:
        try:
            remote = remote or start(entry.environments[lane.environment])
        except WorkerError as error:
            lane.error = str(error)
        yield _Racer(lane, remote)
        remote = None


def _prepare(remote: Remote, lane: Lane, workload: Workload) -> None:
    lane.import_seconds = remote.import_seconds
    answer = remote.ask("prepare", asdict(workload), lane.variant)
    lane.first_step_seconds, lane.probe = answer["first_step_seconds"], answer["probe"]


def _weigh(remote: Remote, lane: Lane) -> None:
    answer = remote.ask("memory")
    lane.memory_after_imports, lane.memory_start = answer["after_imports"], answer["start"]
    lane.memory_peak = answer["peak"]


def take_block(remote: Remote, cores: Sequence[int], settings: BenchConfig) -> Block:
    """A block from `remote`, repeated while others use the cores; after the last attempt, the quietest one.

    Whether to repeat depends on what the machine did for others, never on the time that came out.
    """
    quietest = None
    for attempt in range(1, settings.attempts + 1):
        busy, begin = machine.busy_seconds(cores), time.perf_counter()
        answer = remote.ask("measure", settings.block_seconds)
        busy, wall = machine.busy_seconds(cores) - busy, time.perf_counter() - begin
        foreign = max(0.0, busy - answer["cpu_seconds"]) / wall / len(cores)
        noisy = foreign > settings.foreign_limit
        if quietest is None or foreign < quietest.foreign:
            times = answer["times"]
            quietest = Block(float(np.median(times)), len(times), foreign, attempt, noisy)
        if not noisy:
            break
        time.sleep(settings.pause)
    return replace(quietest, attempts=attempt)
