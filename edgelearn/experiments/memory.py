"""Training in less memory: activations recomputed, inverted, compressed or offloaded. Qualcomm's claim on MobileNet.

Guide: docs/guides/memory.md. Figures: docs/results/memory.md.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial

import numpy as np

from edgelearn.child import Worker, WorkerError
from edgelearn.compile import Accounting, Kind, LaunchTimes, Plan, Request, account, make_plan
from edgelearn.compile.policies import EXACT, POLICIES, find_policy, invertible, paged
from edgelearn.data.cifar10 import SIZE, standardized
from edgelearn.data.draws import stratified_split
from edgelearn.data.flowers import load_flowers
from edgelearn.data.pictures import ImageDataset, load_images
from edgelearn.device import Device
from edgelearn.display import MB, plural
from edgelearn.errors import RunError
from edgelearn.experiments.claims import Claim, NotMeasured, Verdicts, check_claims
from edgelearn.experiments.config import ConfigError, TrainingConfig, setting
from edgelearn.experiments.flowers import thicket_task
from edgelearn.experiments.memory_plans import (
    BUDGETS,
    REVERSIBLE,
    named_plan,
    plans_to_measure,
)
from edgelearn.experiments.tasks import Task, TaskKind, cifar10, drawn_weights, task_experiment
from edgelearn.graph import Network, reversible
from edgelearn.lab.measure import PeakMemory
from edgelearn.lab.profile.roofline import disturbance, table_of, time_launches
from edgelearn.lab.runs import RunStore
from edgelearn.models import (
    mobilenet_v2,
    mobilenet_v2_cifar,
    mobilenet_v2_reversible,
    revnet,
    revnet38,
    revnet110,
    revnet164,
)
from edgelearn.ops import SGD, Adam, Optimizer, pack
from edgelearn.runtime import Context, Kernels, Session
from edgelearn.runtime.kernels import VARIABLE, programs_folder
from edgelearn.train import Model, PictureSource, Subset


@dataclass(frozen=True)
class MemoryConfig(TrainingConfig):
    """Configuration of one training from scratch; None stands for the task's value.

    - `task`: a name in tasks.TASKS.
    - `reversible`: train the reversible version of the network.
    - `activation_memory`: a policy of compile.memory.policies.

    Raises ConfigError for an invalid value.
    """

    reversible: bool = setting(False, "replace residual blocks by couplings of two streams")
    activation_memory: str = setting("keep_all", "policy for the activation memory", choices=tuple(POLICIES),
                                    extensible=True)  # fmt: skip


@lru_cache(maxsize=1)
def _drawings() -> tuple[ImageDataset, np.ndarray]:
    dataset = load_flowers(embedded=True)
    return dataset, load_images(dataset, range(len(dataset)), SIZE)


def drawings(config: MemoryConfig, network: Network) -> Task:
    """The embedded drawings of flowers at CIFAR's size."""
    dataset, images = _drawings()
    train, test = stratified_split(dataset.labels, seed=config.seed)
    source = PictureSource(len(dataset), SIZE, lambda indices, size: images[indices], standardized)
    data = {"origin": dataset.origin, "description": dataset.description, "classes": list(dataset.class_names),
            "train": len(train), "test": len(test), "skipped": 0}  # fmt: skip
    model = Model(network, None, config.device, config.seed)
    train_side, test_side = ((Subset(source, part), dataset.labels[part]) for part in (train, test))
    weights = drawn_weights(config.seed)
    return Task(model, train_side, test_side, lambda steps: Adam(2e-3), data, weights, 50, "batch")


def _network(config: MemoryConfig, **settings) -> Network:
    network = mobilenet_v2_cifar(**settings)
    return reversible(network) if config.reversible else network


def _thicket(config: MemoryConfig) -> Task:
    if config.reversible:
        raise ConfigError("reversible", "the task 'thicket' has a network without residual blocks: leave it out.")
    return thicket_task(config)


TASKS: dict[str, TaskKind] = {
    "sample": TaskKind(
        "The embedded drawings of flowers, MobileNet V2 of a quarter of the width", 4, 50,
        lambda config: drawings(config, _network(config, alpha=0.25, classes=5)),
    ),
    "thicket": TaskKind(
        "The thicket, drawn flowers that are hard to tell, all layers of MobileNet V1 0.25/96", 6, 50, _thicket
    ),
    "cifar10": TaskKind(
        "CIFAR-10 from scratch, MobileNet V2 of half the width", 30, 128,
        lambda config: cifar10(config, _network(config, alpha=0.5), 0.1),
    ),
}  # fmt: skip


def _compile(config: MemoryConfig, task: Task, optimizer: Optimizer) -> None:
    policy = find_policy(config.activation_memory)
    task.model.compile(optimizer, batchnorm=task.batchnorm, activation_memory=policy)


# Trainings from scratch. Those that differ in activation memory alone see the same examples in the same order.
MemoryExperiment = task_experiment("memory", MemoryConfig, TASKS, _compile, command="edgelearn memory train")


# -- claims ----------------------------------------------------------------------------------------------------------

# Published: 43 MB and 3.7 MB of activations of MobileNet V2, 11 times less, without a definition. By the frameworks',
# two streams of full width take at most 4.19 MB, 12.8 times less, by their shapes. The peak is a bound of our own.
STEPS, SEEDS = 3, 3  # of a process that is measured; smallest number of seeds
PROCESS = 147  # MB
PICTURES = 32  # of a batch whose stored bytes may grow: with many images the statistics, which do grow, count little
EXACT_PLANS = (*(policy.__name__ for policy in EXACT), REVERSIBLE, *BUDGETS)  # those that change no bits, on the device


class MobileNets:
    """MobileNet V2 1.0/224 and its reversible twin on a device: plans of steps of batch 1 unless stated otherwise,
    float32, BatchNorm with batch statistics. Each is made when a claim asks for it."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.request = Request(mobilenet_v2(), optimizer=SGD(0.1), batchnorm="batch")
        self.twin = replace(self.request, network=mobilenet_v2_reversible())

    @cached_property
    def plans(self) -> tuple[Plan, Plan]:
        """Plans that store everything, of the twin and of the plain network."""
        return make_plan(self.twin, self.device), make_plan(self.request, self.device)

    @cached_property
    def plain(self) -> Accounting:
        """Activation memory of the plain network that stores everything."""
        return account(self.plans[1])

    @cached_property
    def inverted(self) -> Accounting:
        """Activation memory of the twin that inverts its blocks."""
        return account(make_plan(_inverting(self.twin), self.device))

    @cached_property
    def gradients(self) -> dict[int, tuple[float, int, int]]:
        """By examples of a batch: largest difference of gradients of a step that inverts from one that stores
        everything, relative to the largest gradient of a tensor; bytes allocated and planned."""
        return {examples: self._gradients(examples) for examples in (1, 8)}

    def _gradients(self, examples: int) -> tuple[float, int, int]:
        request = replace(self.twin, batch_size=examples, micro_batch=examples)
        stored, inverted = make_plan(request, self.device), make_plan(_inverting(request), self.device)
        (expected, _), (actual, allocated) = _step(stored, self.device), _step(inverted, self.device)
        least = np.finfo(np.float32).tiny
        off = max(np.abs(actual[k] - g).max() / max(np.abs(g).max(), least) for k, g in expected.items())
        return float(off), allocated, inverted.peak_bytes

    def stored(self, network: Network) -> int:
        """Bytes that a network stores for PICTURES images where it inverts its blocks."""
        request = Request(network, PICTURES, PICTURES, SGD(0.1), "batch")
        return account(make_plan(_inverting(request), self.device)).stored


def _inverting(request: Request) -> Request:
    return replace(request, activation_memory=invertible(request.network))


def _megabytes(nbytes: int) -> tuple[float, str]:
    return nbytes / MB, f"{nbytes / MB:.2f} MB"


def _saved_by_frameworks(m: MobileNets) -> tuple[list[float], str]:
    sizes = [n / MB for n in (m.plain.framework, m.plain.framework_not_in_place, m.plain.conv_inputs)]
    return [round(size, 2) for size in sizes], "{:.2f} MB ({:.2f} MB), {:.2f} MB".format(*sizes)


def _times_less(m: MobileNets) -> tuple[float, str]:
    times = m.plain.framework / m.inverted.stored
    return times, f"{times:.1f} times"


def _gradients(m: MobileNets, examples: int) -> tuple[float, str]:
    off, *_ = m.gradients[examples]
    return off, f"{off:.1e}"


def _allocated(m: MobileNets, examples: int) -> tuple[bool, str]:
    _, allocated, planned = m.gradients[examples]
    return allocated == planned, f"{allocated:,} of {planned:,}"


def _same(counts: Iterable[int]) -> tuple[bool, str]:
    twin, plain = counts
    return twin == plain, f"{twin:,} of {plain:,}"


def _parameters(m: MobileNets) -> tuple[bool, str]:
    return _same(sum(p.weight.size for p in plan.request.network.parameters.values()) for plan in m.plans)


def _multiply_adds(m: MobileNets) -> tuple[bool, str]:
    return _same(sum(x.flops for x in plan.program(Kind.PREDICT, 1).launches) // 2 for plan in m.plans)


def _growth(m: MobileNets, shallow: Callable[[], Network], deep: Callable[[], Network]) -> tuple[float, str]:
    few, many = m.stored(shallow()), m.stored(deep())
    return abs(many / few - 1), f"{many / MB:.2f} MB and {few / MB:.2f} MB"


def _third_of_revnet164() -> Network:
    """Streams of RevNet-164's bottlenecks are four times as wide as those of 38 and 110: its reference has them."""
    return revnet("revnet56", 3, (32, 128, 256, 512), bottleneck=True)


def _planning(m: MobileNets) -> tuple[float, str]:
    start = time.perf_counter()
    accounted = account(make_plan(m.request, m.device, "8 MB stored"))
    seconds = time.perf_counter() - start
    return seconds, f"{accounted.stored / MB:.2f} MB in {seconds:.1f} s"


GRADIENTS = "Batch {}: gradients are those of storing all, within {{target:g}}"
GROWTH = f"{{}}, within {{{{target:.0%}}}} (batch {PICTURES})"
PLAN_CLAIMS: tuple[Claim[MobileNets], ...] = (
    Claim(
        "Frameworks save {target[0]:.2f} MB of the plain network ({target[1]:.2f} MB not in place), {target[2]:.2f} MB "
        "as inputs of convolutions",
        _saved_by_frameworks, "=", [53.78, 78.20, 27.06],
    ),
    Claim("Inverted, at most {target} MB are stored", lambda m: _megabytes(m.inverted.stored), "≤", 4.19),
    Claim("That is at least {target} times less", _times_less, "≥", 12.8),
    Claim("With workspace at most {target} MB", lambda m: _megabytes(m.inverted.peak), "≤", 20),
    Claim(GRADIENTS.format(1), lambda m: _gradients(m, 1), "≤", 1e-4),
    Claim("Batch 1: allocated as planned", lambda m: _allocated(m, 1)),
    Claim(GRADIENTS.format(8), lambda m: _gradients(m, 8), "≤", 1e-4),
    Claim("Batch 8: allocated as planned", lambda m: _allocated(m, 8)),
    Claim("No parameter more or less", _parameters),
    Claim("No multiply-add more or less", _multiply_adds),
    Claim(
        GROWTH.format("RevNet-110 stores what RevNet-38 does"), lambda m: _growth(m, revnet38, revnet110), "≤", 0.05
    ),
    Claim(
        GROWTH.format("RevNet-164 stores what a third of its units do"),
        lambda m: _growth(m, _third_of_revnet164, revnet164), "≤", 0.05,
    ),
    Claim("The planner finds a plan within 8 MB stored in under {target:.0f} s", _planning, "<", 10.0),
)  # fmt: skip


def _step(plan: Plan, device: Device) -> tuple[dict[str, np.ndarray], int]:
    """(gradients of a step from random weights and images, bytes allocated)"""
    request, context = plan.request, Context(device)
    network, n = request.network, request.batch_size
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (n, *network.input_shape)).astype(np.float32)
    labels = rng.integers(0, network.output.shape[-1], n).astype(np.int32)
    session = Session(plan, context, Kernels(context))
    session.load(network.initialize(0))
    session.train([(pack(x, plan.storage.input.block), labels)], n, 0.0, 1)
    result = session.gradients(), context.ledger.peak
    session.close()
    return result


@dataclass(frozen=True)
class StepTimes:
    """Seconds of a step of batch 1 by plan, measured, and predicted from the launches of a few plans."""

    measured: Mapping[str, float]
    predicted: Mapping[str, float]


def time_plans(network: Network, device: Device, rounds: int = 9) -> StepTimes:
    """Time EXACT_PLANS in turn. Raises NotMeasured if other programs disturbed the times, and as `time_launches`."""
    few = plans_to_measure(network, device)
    plans = few | {name: named_plan(name, network, device) for name in EXACT_PLANS if name not in few}
    timings = dict(zip(plans, time_launches(list(plans.values()), device, rounds), strict=True))
    if problem := disturbance(list(timings.values())):
        raise NotMeasured(f"not decided: {problem}")
    times = LaunchTimes.of(device, table_of([timings[name] for name in few]))
    return StepTimes(
        {name: timings[name].wall for name in EXACT_PLANS}, {name: times.step(plans[name]) for name in EXACT_PLANS}
    )


def _ratio(times: StepTimes) -> tuple[float, str]:
    inverting, storing = times.measured["invertible"], times.measured[REVERSIBLE]
    return inverting / storing, f"{inverting / storing:.2f} ({inverting * 1e3:.1f} ms of {storing * 1e3:.1f} ms)"


def _predictions(times: StepTimes) -> tuple[float, str]:
    off = {name: times.predicted[name] / seconds - 1 for name, seconds in times.measured.items()}
    low, high = min(off, key=lambda name: off[name]), max(off, key=lambda name: off[name])
    return max(map(abs, off.values())), f"{off[low]:+.1%} ({low}) to {off[high]:+.1%} ({high})"


TIME_CLAIMS: tuple[Claim[StepTimes], ...] = (
    Claim(
        "A step that inverts takes at most {target} of the time of storing all of the same network", _ratio, "≤", 1.35
    ),
    Claim(
        f"Times of steps are predicted within {{target:.0%}}, for each of {len(EXACT_PLANS)} plans", _predictions, "≤",
        0.15,
    ),
)  # fmt: skip


def footprint(device: Device) -> int:
    """Peak memory minus memory after the imports, in bytes, of a process whose kernels are compiled already and kept
    as binaries: the second of two. Raises NotMeasured where that can't be counted, RunError where a process fails."""
    if device.kind != "cpu":
        raise NotMeasured("not counted: the device has memory of its own")
    if programs_folder() is None:
        raise NotMeasured("not counted: compiled kernels are not stored here")
    nbytes = 0
    kept = {VARIABLE: str(programs_folder())}
    for _ in range(2):
        try:
            with Worker("edgelearn.experiments.memory:MeasuredTraining", environment=kept) as worker:
                nbytes = worker.call("run", device.id)
        except WorkerError as error:
            raise RunError(f"A training in a process of its own failed: {error.reason or error}") from None
    return nbytes


class MeasuredTraining:
    """Runs in the worker process."""

    def __init__(self) -> None:
        import pyopencl  # noqa: F401  before memory is counted

        self.memory = PeakMemory()

    def run(self, device: str) -> int:
        rng = np.random.default_rng(0)
        model = Model(mobilenet_v2_reversible(), device=device)
        model.compile(SGD(0.001), batchnorm="batch", activation_memory=invertible)
        x = rng.uniform(-1, 1, (STEPS, *model.network.input_shape)).astype(np.float32)
        model.fit(x, np.arange(STEPS, dtype=np.int32), batch_size=1, verbose=0)
        return self.memory.over_imports


# Figures of MobileNet V2 1.0/224, batch 1.
PROCESS_CLAIM = Claim[int](
    "A process that trains all layers takes at most {target} MB over its imports, kernels compiled",
    lambda nbytes: (nbytes / MB, f"{nbytes / MB:.1f} MB"), "≤", PROCESS,
)  # fmt: skip


def _below_plain(store: RunStore, task: str) -> tuple[float, str]:
    """Points that the reversible network is more accurate, mean over the seeds with which both networks were trained,
    with the task's own epochs and micro-batch and a policy that changes no bits."""
    wanted = MemoryExperiment.resolve(MemoryConfig(task))
    exact = {policy.__name__ for policy in (*EXACT, paged)}
    accuracies: dict[bool, dict[int, float]] = {False: {}, True: {}}
    for summary in store.list():
        if summary.kind == MemoryExperiment.kind and summary.status == "finished":
            config = MemoryConfig.from_dict(store.open(summary.id).config)
            settings = config.task, config.epochs, config.micro_batch
            if settings == (task, wanted.epochs, wanted.micro_batch) and config.activation_memory in exact:
                accuracies[config.reversible].setdefault(config.seed, summary.results["accuracy"])
    plain, twin = accuracies[False], accuracies[True]
    seeds = sorted(set(plain) & set(twin))
    if len(seeds) < SEEDS:
        raise NotMeasured(
            f"{plural(len(seeds), 'seed')} trained: edgelearn memory train {task} [--reversible] --seed S"
        )
    more = 100 * sum(twin[seed] - plain[seed] for seed in seeds) / len(seeds)
    mean = [sum(side[seed] for seed in seeds) / len(seeds) for side in (twin, plain)]
    return more, f"{more:+.2f} points, {plural(len(seeds), 'seed')} ({mean[0]:.2%}, {mean[1]:.2%})"


TRAINED_CLAIM = Claim[RunStore](
    f"On cifar10, {TASKS['cifar10'].epochs} epochs from scratch: reversible at most 1 point below plain, {SEEDS} seeds",
    lambda store: _below_plain(store, "cifar10"), "≥", -1.0,
)  # fmt: skip


def check(device: Device, store: RunStore, rounds: int = 9) -> Verdicts:
    """Check all claims: plans, times of `rounds` steps, the memory of a process, finished trainings in `store`."""
    return (
        check_claims(PLAN_CLAIMS, partial(MobileNets, device))
        + check_claims(TIME_CLAIMS, partial(time_plans, mobilenet_v2(), device, rounds))
        + check_claims([PROCESS_CLAIM], partial(footprint, device))
        + check_claims([TRAINED_CLAIM], lambda: store)
    )
