"""The run: starts the workers of a workload and measures them in turn."""

from __future__ import annotations

import datetime
import importlib.metadata
import platform
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, cast

from edgelearn.child import Worker, WorkerError
from edgelearn.errors import EdgelearnError, PlanError
from edgelearn.extensions import check_name
from edgelearn.lab.energy import LOOP, Energy, Meter, find_meter
from edgelearn.lab.measure import RoundsConfig, Sample, machine_memory, measure_in_turn, usable_cores
from edgelearn.runtime import choose_device

from .contenders import CONTENDERS, SUBJECT, BenchWorker, Entry, choose, fitting
from .report import BenchReport, EnergyFacts, LayerTime, Machine, Settings, Variant
from .workloads import DEFAULT, FULL, TYPES, Workload, make_network

LAYER_TIMER = "edgelearn.bundles.serial:LayerTimer"


def describe_machine() -> dict[str, str | int]:
    """Processor, main memory in bytes, system and Python version."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()  # Linux
    except OSError:
        lines = []
    models = [line.split(":", 1)[1].strip() for line in lines if "model name" in line]
    return {
        "processor": models[0] if models else platform.processor() or platform.machine(),
        "memory_bytes": machine_memory()[1],
        "system": platform.platform(),
        "python": platform.python_version(),
    }


@dataclass(frozen=True)
class BenchConfig(RoundsConfig):
    """Settings of a run, over those of its rounds.

    - `patience`: seconds that a worker may take to answer.
    - `memory_reserve`: share of main memory that must be free before another worker is started.
    - `energy_seconds`: length of the loop of steps whose energy is counted, after the rounds, where the device has a
      counter (see `energy.find_meter`).
    """

    patience: float = 600.0
    memory_reserve: float = 0.15
    energy_seconds: float = LOOP


def run(
    workloads: Iterable[Workload] = DEFAULT,
    contenders: Iterable[str] | None = None,
    only: Sequence[str] = ("*",),
    cores: int | None = None,
    device: str | None = None,
    config: BenchConfig = BenchConfig(),
    progress: Callable[[str], None] = lambda line: None,
    registry: Iterable[Entry] = CONTENDERS,
    subject: str = SUBJECT,
    compute: Sequence[str] = (FULL,),
    layers: bool = False,
) -> BenchReport:
    """Measure workloads on contenders.

    Arguments:
    - `contenders`: names (default: all that are installed).
    - `only`: patterns, as in file names, on labels of variants: "torch compile", "torch compile, tuned malloc".
    - `cores`: how many processor cores everyone may use (default: all that this process may use).
    - `device`: any part of the name of an OpenCL device (default: the best one). Where that is no CPU, contenders that
      compute on processor cores are left out; on NVIDIA's, PyTorch computes with CUDA.
    - `progress`: called with a line about each stage.
    - `registry`, `subject`: the known contenders, and the one that the others are compared with.
    - `compute`: types that each workload is computed in; see `Workload`. All take turns.
    - `layers`: after that, time each layer of the serial C and of the device (default False); `progress` hears why it
      can't be done.

    Failures of a variant are in the report and stop no other one. Raises EdgelearnError for an unknown contender, type
    or device, patterns that no variant matches, or more cores than there are.
    """
    entries = choose(contenders, registry)
    usable = usable_cores()
    if cores is not None and not 1 <= cores <= len(usable):
        raise EdgelearnError(f"Can't measure on {cores} cores: this process may use 1 to {len(usable)}.")
    if config.rounds < 1:
        raise EdgelearnError(f"A bench needs 1 round or more, not {config.rounds}.")
    usable = usable[:cores]
    started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    chosen = choose_device(device).device
    fit = fitting(entries, chosen)
    present = [entry for entry in fit if entry.available()]
    workloads = list(workloads)
    for kind in compute:
        check_name(kind, TYPES, "compute type")
    for workload in workloads:
        if workload.op is None:
            network = make_network(workload)  # an unknown one is an error before anything starts
            if workload.trains and network.output.shape[:-1]:
                raise PlanError(
                    f"'{workload.network}' gives {network.output.shape}: steps of contenders are timed with one class "
                    f"number for each example. `edgelearn profile` times edgelearn alone."
                )
        if layers and (workload.op or not workload.trains or workload.micro_batch < workload.batch):
            raise EdgelearnError(f"Layers are timed in training steps of whole networks, and {workload.name} is none.")

    def start(entry: Entry, environment: str) -> Worker:
        free, total = machine_memory()
        if free < config.memory_reserve * total:
            raise WorkerError(
                f"Not started: only {free / 2**30:.1f} of {total / 2**30:.1f} GiB of memory are free. "
                "Choose fewer contenders or a smaller batch."
            )
        variables, arguments = entry.environments[environment], (entry.target, len(usable), chosen.id)
        return Worker(f"{BenchWorker.__module__}:BenchWorker", arguments, usable, variables, config.patience)

    variants = []
    with find_meter(chosen) as meter:
        for workload in workloads:
            started_ones = (each for entry in present for each in _started(workload, entry, start, only, compute))
            variants += _measured(workload, started_ones, usable, config, progress, meter)
    if present and not variants:
        names = ", ".join(entry.name for entry in present)
        raise EdgelearnError(
            f"Nothing to measure: no variant of {names} is called {' or '.join(map(repr, only))}. The first column of "
            f"the table has their names; 'torch*' is all of one contender."
        )
    by_layer = {}
    for workload in workloads if layers else ():
        progress(f"{workload.name}: layers")
        try:
            with Worker(LAYER_TIMER, (chosen.id,), usable, {}, config.patience) as worker:
                found = worker.call("times", asdict(workload), config.rounds)
        except WorkerError as error:  # what was measured before is kept
            progress(f"{workload.name}: no layers: {error.reason or error}")
            continue
        by_layer[workload.name] = [LayerTime(**each) for each in found]
    return BenchReport(
        started=started,
        machine=cast(Machine, describe_machine() | {"cores": len(usable), "device": chosen.facts()}),
        config=cast(Settings, asdict(config)),
        versions={d: importlib.metadata.version(d) for e in present for d in e.requires.values()},
        not_installed={entry.name: entry.missing() for entry in fit if not entry.available()},
        variants=variants,
        subject=subject,
        energy=cast(EnergyFacts, meter.to_dict()),
        layers=by_layer,
    )


def _started(
    workload: Workload, entry: Entry, start: Callable[[Entry, str], Worker], only: Sequence[str], compute: Sequence[str]
) -> Iterator[tuple[Variant, Worker | None]]:
    """Every variant of `entry` in every environment with its worker; the first worker lists the variants."""
    first, worker = next(iter(entry.environments)), None
    try:
        worker = start(entry, first)
        names = {kind: worker.call("variants", asdict(replace(workload, compute=kind))) for kind in compute}
    except WorkerError as error:
        if worker is not None:
            worker.close()
        yield Variant(workload.name, entry.name, "", error=str(error)), None
        return
    every = [
        Variant(workload.name, entry.name, name, environment, compute=kind)
        for environment in entry.environments for kind in compute for name in names[kind]
    ]  # fmt: skip
    variants = [variant for variant in every if any(fnmatch(variant.label, pattern) for pattern in only)]
    if not variants or variants[0].environment != first:
        worker.close()
        worker = None
    for variant in variants:
        try:
            worker = worker or start(entry, variant.environment)
        except WorkerError as error:
            variant.error = str(error)
        yield variant, worker
        worker = None


def _measured(
    workload: Workload, started: Iterable[tuple[Variant, Worker | None]], cores: Sequence[int], config: BenchConfig,
    progress: Callable[[str], None], meter: Meter,
) -> list[Variant]:  # fmt: skip
    """Prepare the variants as their workers start, then measure all of them in turn; after that the energy of each."""
    variants: list[Variant] = []
    workers: dict[int, Worker] = {}  # of the variants that haven't failed, by their place in the list

    def fail(place: int, error: WorkerError) -> None:
        variants[place].error = error.reason or str(error)
        workers.pop(place).close()

    def ask(place: int, *call: Any) -> dict[str, Any] | None:
        try:
            return workers[place].call(*call)
        except WorkerError as error:
            return fail(place, error)

    def counted(place: int) -> Energy | None:
        def work() -> int:
            answer = ask(place, "measure", config.energy_seconds, 1)
            return len(answer["times"]) + 1 if answer else 0  # with the untimed one

        return meter.over(work)

    def sampler(worker: Worker) -> Callable[[], Sample]:
        return lambda: Sample(**worker.call("measure", config.block_seconds, config.steps))

    try:
        for place, (variant, worker) in enumerate(started):
            variants.append(variant)
            if worker is None:
                continue
            workers[place] = worker
            progress(f"{workload.name}: {variant.label}: preparing")
            asked = asdict(replace(workload, compute=variant.compute))
            if answer := ask(place, "prepare", asked, variant.name):
                variant.import_seconds = worker.import_seconds
                variant.first_step_seconds, variant.probe = answer["first_step_seconds"], answer["probe"]
        meter.idle()
        blocks = measure_in_turn(
            {place: sampler(worker) for place, worker in workers.items()}, cores, config,
            lambda number: progress(f"{workload.name}: round {number + 1} of {config.rounds}"), fail,
        )  # fmt: skip
        for place, measured in blocks.items():
            variants[place].blocks = measured
        for place in list(workers):
            if answer := ask(place, "memory"):
                for name, size in answer.items():
                    setattr(variants[place], f"memory_{name}", size)
        if meter.measures:
            progress(f"{workload.name}: energy")
            for place in list(workers):
                variants[place].energy = counted(place)
    finally:
        for worker in workers.values():
            worker.close()
    return variants
