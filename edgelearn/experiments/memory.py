"""Training in less memory: activations recomputed, inverted, compressed or offloaded. Qualcomm's claim on MobileNet.

Guide: docs/guides/memory.md. Figures: docs/results/memory.md.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from edgelearn.child import Worker, WorkerError
from edgelearn.compile import Kind, LaunchTimes, Plan, Request, account, make_plan
from edgelearn.compile.policies import EXACT, POLICIES, find_policy, invertible, paged
from edgelearn.data.cifar10 import SIZE, standardized
from edgelearn.data.draws import stratified_split
from edgelearn.data.flowers import load_flowers
from edgelearn.data.pictures import ImageDataset, load_images
from edgelearn.device import Device
from edgelearn.display import MB
from edgelearn.errors import RunError
from edgelearn.experiments.claims import Claim
from edgelearn.experiments.config import TrainingConfig, setting
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


TASKS: dict[str, TaskKind] = {
    "sample": TaskKind(
        "The embedded drawings of flowers, MobileNet V2 of a quarter of the width", 4, 50,
        lambda config: drawings(config, _network(config, alpha=0.25, classes=5)),
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


POINTS, SEEDS = 1.0, 3  # largest loss of accuracy, smallest number of seeds


def check_trained(store: RunStore, task: str = "cifar10") -> Claim:
    """The claim on accuracy: mean over the seeds with which both networks were trained, with the task's own epochs and
    micro-batch and a policy that changes no bits. Not measured with less than SEEDS seeds."""
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
    training = f"On {task}, {wanted.epochs} epochs from scratch"
    claim = f"{training}: reversible at most {POINTS:g} point below plain, {SEEDS} seeds"
    if len(seeds) < SEEDS:
        return Claim(claim, f"{len(seeds)} seeds trained: edgelearn memory train {task} [--reversible] --seed S", None)
    more = 100 * sum(twin[seed] - plain[seed] for seed in seeds) / len(seeds)
    mean = [sum(side[seed] for seed in seeds) / len(seeds) for side in (twin, plain)]
    return Claim(claim, f"{more:+.2f} points, {len(seeds)} seeds ({mean[0]:.2%}, {mean[1]:.2%})", more >= -POINTS)


STEPS = 3


def footprint(device: Device) -> int:
    """Peak memory minus memory after the imports, in bytes, of a process whose kernels are compiled already and kept
    as binaries: the second of two. Raises RunError where one fails."""
    nbytes = 0
    kept = {VARIABLE: str(programs_folder() or "")}
    for _ in range(2):
        try:
            with Worker("edgelearn.experiments.memory:Training", environment=kept) as worker:
                nbytes = worker.call("run", device.id)
        except WorkerError as error:
            raise RunError(f"A training in a process of its own failed: {error.reason or error}") from None
    return nbytes


class Training:
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


RATIO, OFF, PROCESS = 1.35, 0.15, 147  # of keep-all's time, of a prediction, MB
RATIO_CLAIM = f"A step that inverts takes at most {RATIO} of the time of storing all of the same network"
EXACT_PLANS = (*(policy.__name__ for policy in EXACT), REVERSIBLE, *BUDGETS)  # those that change no bits, on the device


def check_times(network: Network, device: Device, rounds: int = 9) -> list[Claim]:
    """Claims on times of steps of batch 1, all plans taking turns; none is decided by times that other programs
    disturbed. Raises as `time_launches`."""
    measured = plans_to_measure(network, device)
    plans = measured | {name: named_plan(name, network, device) for name in EXACT_PLANS if name not in measured}
    timings = dict(zip(plans, time_launches(list(plans.values()), device, rounds), strict=True))
    if problem := disturbance(list(timings.values())):
        return [
            Claim(claim, f"not decided: {problem}", None) for claim in (RATIO_CLAIM, prediction_claim(len(EXACT_PLANS)))
        ]
    times = LaunchTimes.of(device, table_of([timings[name] for name in measured]))
    seconds = {name: timings[name].wall for name in EXACT_PLANS}
    return [ratio(seconds), predictions(seconds, {name: times.step(plans[name]) for name in EXACT_PLANS})]


def ratio(seconds: Mapping[str, float]) -> Claim:
    """The claim on inverting; `seconds` of a step by plan."""
    measured = seconds["invertible"] / seconds[REVERSIBLE]
    return Claim(
        RATIO_CLAIM,
        f"{measured:.2f} ({seconds['invertible'] * 1e3:.1f} ms of {seconds[REVERSIBLE] * 1e3:.1f} ms)",
        measured <= RATIO,
    )


def predictions(seconds: Mapping[str, float], predicted: Mapping[str, float]) -> Claim:
    """The claim on predicted times, made from the launches of a few plans; `seconds` of a step by plan."""
    off = {name: predicted[name] / seconds[name] - 1 for name in seconds}
    low, high = min(off, key=lambda name: off[name]), max(off, key=lambda name: off[name])
    return Claim(
        prediction_claim(len(off)),
        f"{off[low]:+.1%} ({low}) to {off[high]:+.1%} ({high})", max(map(abs, off.values())) <= OFF,
    )  # fmt: skip


def prediction_claim(plans: int) -> str:
    """The claim on predicted times, for so many plans."""
    return f"Times of steps are predicted within {OFF:.0%}, for each of {plans} plans"


def check_process(device: Device) -> Claim:
    """The claim on main memory, for MobileNet V2 1.0/224, batch 1. Raises as `footprint`."""
    claim = f"A process that trains all layers takes at most {PROCESS} MB over its imports, kernels compiled"
    own_memory = device.kind != "cpu"
    if own_memory or programs_folder() is None:
        why = "the device has memory of its own" if own_memory else "compiled kernels are not stored here"
        return Claim(claim, f"not counted: {why}", None)
    nbytes = footprint(device)
    return Claim(claim, f"{nbytes / MB:.1f} MB", nbytes <= PROCESS * MB)


FRAMEWORK, NOT_IN_PLACE, CONV_INPUTS = 53.78, 78.20, 27.06  # MB of the plain network, by three definitions
# Published: 43 MB and 3.7 MB, 11 times less, without a definition. By FRAMEWORK's, two streams of full width take at
# most 4.19 MB, 12.8 times less, by their shapes. The peak is a bound of our own.
STORED, TIMES, PEAK = 4.19, 12.8, 20.0  # MB, times less, MB
TOLERANCE = 1e-4  # of gradients
MICRO_BATCHES = (1, 8)  # whose gradients are compared
GROWTH, PICTURES = 0.05, 32  # growth of stored bytes; with many images the statistics, which do grow, count little
BUDGET, SECONDS = "8 MB stored", 10.0  # the planner's time limit


def check(device: Device) -> list[Claim]:
    """Claims on MobileNet V2 1.0/224, batch 1 unless stated otherwise, float32, BatchNorm with batch statistics."""
    request = Request(mobilenet_v2(), optimizer=SGD(0.1), batchnorm="batch")
    twin = replace(request, network=mobilenet_v2_reversible())
    # Streams of RevNet-164's bottlenecks are four times as wide as those of 38 and 110: its reference has them, too.
    third = revnet("revnet56", 3, (32, 128, 256, 512), bottleneck=True)
    return [
        *_memory(make_plan(request, device), make_plan(_inverting(twin), device)),
        *(_gradients(replace(twin, batch_size=n, micro_batch=n), device) for n in MICRO_BATCHES),
        *_sizes(make_plan(request, device), make_plan(twin, device)),
        _depth(device, "RevNet-110 stores what RevNet-38 does", revnet38(), revnet110()),
        _depth(device, "RevNet-164 stores what a third of its units do", third, revnet164()),
        _planning(request, device),
    ]


def _inverting(request: Request) -> Request:
    return replace(request, activation_memory=invertible(request.network))


def _memory(plain: Plan, inverted: Plan) -> list[Claim]:
    before, after = account(plain), account(inverted)
    counted = [n / MB for n in (before.framework, before.framework_not_in_place, before.conv_inputs)]
    times = before.framework / after.stored
    return [
        Claim(
            f"Frameworks save {FRAMEWORK:.2f} MB of the plain network ({NOT_IN_PLACE:.2f} MB not in place), "
            f"{CONV_INPUTS:.2f} MB as inputs of convolutions",
            "{:.2f} MB ({:.2f} MB), {:.2f} MB".format(*counted),
            [round(n, 2) for n in counted] == [FRAMEWORK, NOT_IN_PLACE, CONV_INPUTS],
        ),
        Claim(
            f"Inverted, at most {STORED} MB are stored", f"{after.stored / MB:.2f} MB", after.stored <= STORED * MB
        ),
        Claim(f"That is at least {TIMES} times less", f"{times:.1f} times", times >= TIMES),
        Claim(f"With workspace at most {PEAK:.0f} MB", f"{after.peak / MB:.2f} MB", after.peak <= PEAK * MB),
    ]  # fmt: skip


def _gradients(request: Request, device: Device) -> Claim:
    """Gradients of a step that inverts, compared with one that stores everything, and its memory."""
    stored, inverted = make_plan(request, device), make_plan(_inverting(request), device)
    (expected, _), (actual, allocated) = _step(stored, device), _step(inverted, device)
    off = max(
        np.abs(actual[k] - g).max() / max(np.abs(g).max(), np.finfo(np.float32).tiny) for k, g in expected.items()
    )
    return Claim(
        f"Batch {request.batch_size}: gradients are those of storing all, within {TOLERANCE:g}; allocated as planned",
        f"{off:.1e}; {allocated:,} of {inverted.peak_bytes:,}",
        bool(off <= TOLERANCE) and allocated == inverted.peak_bytes,
    )


def _sizes(plain: Plan, twin: Plan) -> list[Claim]:
    plans = plain, twin
    sizes = [sum(p.weight.size for p in plan.request.network.parameters.values()) for plan in plans]
    flops = [sum(launch.flops for launch in plan.program(Kind.PREDICT, 1).launches) for plan in plans]
    return [
        Claim("No parameter more or less", f"{sizes[1]:,} of {sizes[0]:,}", sizes[0] == sizes[1]),
        Claim("No multiply-add more or less", f"{flops[1] // 2:,} of {flops[0] // 2:,}", flops[0] == flops[1]),
    ]


def _depth(device: Device, claim: str, shallow: Network, deep: Network) -> Claim:
    def of(network: Network) -> int:
        request = Request(network, PICTURES, PICTURES, SGD(0.1), "batch")
        return account(make_plan(_inverting(request), device)).stored

    few, many = of(shallow), of(deep)
    return Claim(
        f"{claim}, within {GROWTH:.0%} (batch {PICTURES})",
        f"{many / MB:.2f} MB and {few / MB:.2f} MB", abs(many / few - 1) <= GROWTH,
    )  # fmt: skip


def _planning(request: Request, device: Device) -> Claim:
    start = time.perf_counter()
    accounted = account(make_plan(request, device, BUDGET))
    seconds = time.perf_counter() - start
    return Claim(
        f"The planner finds a plan within {BUDGET} in under {SECONDS:.0f} s",
        f"{accounted.stored / MB:.2f} MB in {seconds:.1f} s", seconds < SECONDS,
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
