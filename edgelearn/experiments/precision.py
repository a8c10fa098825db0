"""Training with quantized weights, activations and gradients, after Fournarakis and Nagel 2021, "In-hindsight
quantization range estimation for quantized training" (arXiv 2105.04246).

Guide: docs/guides/precision.md. Figures: docs/results/precision.md.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edgelearn import atomic
from edgelearn.compile import Precision
from edgelearn.data.flowers import load_flowers
from edgelearn.data.pictures import load_images, normalize
from edgelearn.errors import DataError, ExtensionError, NonFiniteError, PlanError, RunError, UsageError
from edgelearn.experiments.config import ConfigError, TrainingConfig, setting
from edgelearn.experiments.experiment import APART, Log, Training, silent
from edgelearn.experiments.flowers import FlowersConfig, FlowersExperiment, thicket_task
from edgelearn.experiments.sweep import can_go_on, is_done, known_runs
from edgelearn.experiments.tasks import Pictures, Task, TaskKind, cifar10, finish_task, task_experiment
from edgelearn.extensions import import_instance, is_reference
from edgelearn.graph import Network
from edgelearn.lab.runs import Run, RunStore, figures, mean_and_deviation
from edgelearn.models import mobilenet_v2_cifar, resnet18_cifar
from edgelearn.ops import (
    DSGC,
    SGD,
    Adam,
    CurrentMinMax,
    Float16,
    Format,
    InHindsightMinMax,
    LinearOp,
    NumberFormat,
    Observer,
    Optimizer,
    Percentile,
    RunningMinMax,
)
from edgelearn.ops.emit import STORED
from edgelearn.tables import Table
from edgelearn.train import Callback, PictureSource, RangeTrace, Subset, TraceRanges
from edgelearn.train.state import Logs

if TYPE_CHECKING:
    from matplotlib.figure import Figure


OBSERVERS: dict[str, Observer] = {
    "in-hindsight": InHindsightMinMax(),
    "current": CurrentMinMax(),
    "running": RunningMinMax(),
    "dsgc": DSGC(),
    "percentile": Percentile(),
    "fixed": InHindsightMinMax(momentum=1.0),  # the range of the first mini-batch
}
FLOAT, HALF = "fp32", "fp16"
BITS = (*map(str, range(2, 17)), HALF, FLOAT)


def _bits(default: str, tensors: str) -> Any:
    text = f"format of {tensors}, in bits"
    return setting(default, text, choices=BITS, ordered=True, metavar="BITS", extensible=True)


@dataclass(frozen=True)
class PrecisionConfig(TrainingConfig):
    """A training of `task` (see tasks.TASKS) with quantized tensors, as in Fournarakis and Nagel 2021.

    Weights are symmetric and have ranges of their own, one per tensor or, with `per_channel`, one per output channel.
    Activations and gradients get their ranges from `observer`; gradients are rounded stochastically. None stands for
    the task's value. Raises ConfigError for an invalid value or combination.
    """

    weights: str = _bits("8", "weights")
    activations: str = _bits("8", "activations")
    gradients: str = _bits("8", "gradients")
    per_channel: bool = setting(False, "a range for each output channel of a kernel")
    observer: str = setting("in-hindsight", "where the ranges come from", choices=tuple(OBSERVERS), extensible=True)
    integers: bool = setting(
        False, "store integers and compute with int8; `edgelearn devices` says whether that is faster"
    )
    norm_inputs: str = _bits(FLOAT, "what BatchNorm normalizes by the batch's statistics")
    compute: str = setting(FLOAT, "type that linear layers multiply in", choices=tuple(STORED))
    momentum: float | None = setting(
        None, "share of the range before in the next one (default: the observer's)", minimum=0, maximum=1
    )
    first_in_fp32: bool = setting(False, "leave the pictures and the first layer in float32")
    trace: int = setting(0, "record every quantized tensor each so many steps; 0: never", minimum=0, metavar="STEPS")

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            _ = self.precision
        except ExtensionError as error:
            raise ConfigError("observer" if is_reference(self.observer) else "weights", str(error)) from None
        except PlanError as error:
            raise ConfigError("integers", str(error)) from None

    @property
    def precision(self) -> Precision:
        """The precision of all layers; see `precision_of`."""
        weights = _format(self.weights, symmetric=True, per_channel=self.per_channel)
        activations, gradients = _format(self.activations), _format(self.gradients, rounding="stochastic")
        observer = OBSERVERS.get(self.observer) or import_instance(self.observer, Observer)
        if self.momentum is not None:
            if not isinstance(observer, InHindsightMinMax | RunningMinMax):
                raise ConfigError("momentum", f"the ranges of '{self.observer}' have none: leave it out.")
            observer = replace(observer, momentum=float(self.momentum))
        return Precision(
            weights, activations, gradients, observer, traced=self.trace > 0, simulated=not self.integers,
            norm_inputs=_format(self.norm_inputs),
        )  # fmt: skip

    def precision_of(self, network: Network) -> Precision:
        """The precision to compile a model of `network` with."""
        if not (self.first_in_fp32 and self.precision.quantizes):
            return self.precision
        first = next(name for name, node in network.nodes.items() if isinstance(node.op, LinearOp))
        return replace(self.precision, exceptions=dict.fromkeys((*network.inputs, first)))


def _format(bits: str, **arguments: Any) -> NumberFormat | None:
    """None is float32."""
    if is_reference(bits):
        return import_instance(bits, NumberFormat)
    if bits == FLOAT:
        return None
    return Float16() if bits == HALF else Format(int(bits), **arguments)


@lru_cache(maxsize=1)
def _flowers(sample: bool, data: str | None, download: bool, size: int) -> np.ndarray:
    """All pictures, decoded once for all trainings of a comparison."""
    dataset = load_flowers(data=data, download=download, embedded=sample)
    return load_images(dataset, range(len(dataset)), size)


def flowers(
    config: PrecisionConfig, sample: bool, trainable: tuple[str, ...], batch_size: int, optimizer: Optimizer
) -> Task:
    """Fine-tune as edgelearn.experiments.flowers does, with all pictures decoded beforehand and without a feature
    cache, since quantized features change with their ranges."""
    settings = FlowersConfig(
        data=config.data, sample=sample, download=config.download, trainable=trainable, seed=config.seed,
        device=config.device,
    )  # fmt: skip
    experiment = FlowersExperiment.load(settings)
    if (experiment.dataset.origin == "embedded sample") != sample:
        raise DataError(
            f"The task '{config.task}' needs data that is missing: {experiment.dataset.description} Set EDGELEARN_DATA "
            f"to a folder that has it, or choose the task 'sample'."
        )
    count, size = len(experiment.dataset), experiment.pretrained.size
    decoded = _flowers(sample, config.data, config.download, size)
    pictures = PictureSource(count, size, lambda indices, size: decoded[indices], normalize)
    train, test = ((Subset(pictures, part.indices), labels) for part, labels in (experiment.train, experiment.test))
    return Task(
        experiment.model, train, test, lambda steps: optimizer, experiment.data, experiment.weights or {}, batch_size,
        pictures=Pictures(size),
    )  # fmt: skip


LAST, ALL = ("conv_pw_13", "dense"), ("*",)
TASKS: dict[str, TaskKind] = {
    "sample": TaskKind(
        "The embedded drawings of flowers, last layers of MobileNet V1 0.25/96", 6, 50,
        lambda config: flowers(config, True, LAST, 50, SGD(0.01, momentum=0.9)),
    ),
    "sample-all": TaskKind(
        "The embedded drawings of flowers, all layers of MobileNet V1 0.25/96", 6, 50,
        lambda config: flowers(config, True, ALL, 50, Adam(3e-4)),
    ),
    "thicket": TaskKind(
        "The thicket, drawn flowers that are hard to tell, all layers of MobileNet V1 0.25/96", 6, 50, thicket_task
    ),
    "flowers": TaskKind(
        "Photographs of flowers, last layers of MobileNet V1 1.0/224", 20, 15,
        lambda config: flowers(config, False, LAST, 163, SGD(0.003, momentum=0.9)),
    ),
    "flowers-all": TaskKind(
        "Photographs of flowers, all layers of MobileNet V1 1.0/224", 5, 16,
        lambda config: flowers(config, False, ALL, 32, Adam(1e-4)),
    ),
    "cifar10-resnet18": TaskKind(
        "CIFAR-10 from scratch, ResNet-18 of half the width", 8, 128,
        lambda config: cifar10(config, resnet18_cifar(alpha=0.5), 0.1),
    ),
    "cifar10-mobilenetv2": TaskKind(
        "CIFAR-10 from scratch, MobileNet V2 of half the width", 12, 128,
        lambda config: cifar10(config, mobilenet_v2_cifar(alpha=0.5), 0.1),
    ),
}  # fmt: skip


TRACE = "ranges.safetensors"


class KeepTrace(Callback):
    """Writes the trace into a file after each epoch and when training ends, also by an error; a resumed training
    appends to the rows of the steps before it."""

    def __init__(self, trace: TraceRanges, path: Path) -> None:
        self.trace, self.path = trace, path
        self._begun = False

    def on_train_begin(self, logs: Logs) -> None:
        if self.path.exists():
            self.trace.go_on(RangeTrace.read(self.path), self.model.position.updates)
        self._begun = True

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        self._write()

    def on_train_end(self, logs: Logs) -> None:
        if self._begun:
            self._write()

    def _write(self) -> None:
        atomic.write_bytes(self.path, self.trace.trace.to_bytes())


def _compile(config: PrecisionConfig, task: Task, optimizer: Optimizer) -> dict[str, Any]:
    """Compile in the precision of the configuration, and trace its tensors where it says so."""
    precision, compute = config.precision_of(task.model.network), config.compute
    task.model.compile(optimizer, batchnorm=task.batchnorm, precision=precision, compute=compute)
    record = {"precision": task.model.precision.to_dict(), "compute": compute}
    if not (config.trace and precision.quantizes):
        return {"record": record}
    trace = TraceRanges(config.trace)

    def finish(training: Training, run: Run, seconds: float) -> tuple[dict[str, Any], str]:
        results, text = finish_task(training, run, seconds)
        return results, f"{text}\nIts tensors: edgelearn precision trace {run.id}"

    callbacks = lambda run: [trace, KeepTrace(trace, run.folder / TRACE)]  # noqa: E731
    return {"record": record, "callbacks": callbacks, "finish": finish}


PrecisionExperiment = task_experiment(
    "precision", PrecisionConfig, TASKS, _compile, command="edgelearn precision train", apart=(*APART, "trace")
)  # fmt: skip


# Quantized to 8 bits in the three tables of the paper: gradients (1), activations (2), everything (3).
PARTS = {
    "gradients": {"weights": FLOAT, "activations": FLOAT},
    "activations": {"weights": FLOAT, "gradients": FLOAT},
    "everything": {},
}


@dataclass(frozen=True)
class Variant:
    """A row of a comparison: its name, and the settings in which it differs from the others."""

    name: str
    settings: dict[str, Any]

    def config(self, base: PrecisionConfig, seed: int) -> PrecisionConfig:
        """The configuration of a training."""
        return replace(base, **self.settings, seed=seed)


def variants() -> list[Variant]:
    """float32 and the other compute types; each part quantized, with each observer; everything quantized with a range
    for each channel of kernels, with another momentum of ranges, with the first layer in float32, in memory with int8
    kernels; everything in fewer bits, and gradients alone."""
    observers = "in-hindsight", "current"
    floats: dict[str, Any] = dict.fromkeys(("weights", "activations", "gradients"), FLOAT)
    result = [Variant(FLOAT, floats)]
    result += [Variant(name, floats | {"compute": name}) for name in ("tf32", "bf16", "fp16")]
    for part, settings in PARTS.items():
        result += [Variant(f"{part}, {name}", settings | {"observer": name}) for name in OBSERVERS]
    for name in observers:
        result.append(Variant(f"everything, per-channel weights, {name}", {"per_channel": True, "observer": name}))
    for momentum in (0.5, 0.99):
        result.append(Variant(f"everything, ranges of momentum {momentum}", {"momentum": momentum}))
    result.append(Variant("everything, first layer in float32", {"first_in_fp32": True}))
    both = {"per_channel": True, "first_in_fp32": True}
    result.append(Variant("everything, per-channel weights, first layer in float32", both))
    for name in observers:
        result.append(Variant(f"integers, {name}", {"integers": True, "observer": name}))
    result.append(Variant("integers, per-channel weights, in-hindsight", {"integers": True, "per_channel": True}))
    for bits in ("5", "4", "2"):
        both = dict.fromkeys(("weights", "activations", "gradients"), bits)
        result += [Variant(f"everything in {bits} bits, {name}", both | {"observer": name}) for name in observers]
    for bits in (6, 4):
        for name in observers:
            result.append(Variant(f"gradients of {bits} bits, {name}", {"gradients": str(bits), "observer": name}))
    return result


def select(patterns: Sequence[str]) -> list[Variant]:
    """The variants whose names match one of `patterns` (as file names; all if there is none). Raises UsageError for a
    pattern without a match."""
    known = variants()
    for pattern in patterns:
        if not any(fnmatchcase(variant.name, pattern) for variant in known):
            raise UsageError(f"No variant is called '{pattern}'. Known: {'; '.join(each.name for each in known)}.")
    return [each for each in known if not patterns or any(fnmatchcase(each.name, p) for p in patterns)]


SEEDS = (0, 1, 2)
EXPECTED = Path(__file__).parent / "precision_expected.json"


@dataclass(frozen=True)
class VariantResult:
    """The trainings of a variant.

    Arguments:
    - `variant`: its name.
    - `accuracies`: test accuracy by seed.
    - `results`: all results of the first finished training.
    - `devices`: names of the devices that the trainings ran on.
    - `diverged`: seeds whose training ended in a NaN or an infinity.
    """

    variant: str
    accuracies: dict[int, float]
    results: dict
    devices: tuple[str, ...]
    diverged: tuple[int, ...] = ()

    @property
    def mean(self) -> float:
        return mean_and_deviation(list(self.accuracies.values()))[0]

    def to_dict(self) -> dict:
        """The entry in expected.json."""
        record: dict = {"accuracies": {str(seed): value for seed, value in sorted(self.accuracies.items())}}
        return record | ({"diverged": sorted(self.diverged)} if self.diverged else {})


def sweep(
    base: PrecisionConfig, variants: Sequence[Variant], seeds: Sequence[int], store: RunStore,
    callbacks: Callable[[], list[Callback]] = list, log: Log = print,
) -> bool:  # fmt: skip
    """Train what is not finished in `store`, resuming interrupted runs. One that diverges counts as finished; one in
    a compute type that the device has no unit for is left out.

    Arguments:
    - `base`: the settings that all trainings share.
    - `callbacks`: makes the callbacks of a training.

    Returns False after an interrupt.
    """
    known = index(store, base.device)
    configs = [(variant, variant.config(base, seed)) for seed in seeds for variant in variants]
    for number, (variant, config) in enumerate(configs, 1):
        run = known.get(PrecisionExperiment.training(config))
        if is_done(run):
            continue
        log(f"{number} of {len(configs)}: {variant.name}, seed {config.seed}")
        try:
            if run and can_go_on(run):
                results = PrecisionExperiment.resume(run.id, store, callbacks(), silent)
            else:
                results = PrecisionExperiment.start(config, store, callbacks(), silent)
        except NonFiniteError as error:
            log(f"  diverged: {error}")
            continue
        except PlanError as error:
            if config.compute == FLOAT:
                raise
            log(f"  left out: {error}")
            continue
        if results is None:
            return False
        log(f"  {results['accuracy']:.2%} after {results['seconds']:.1f} s")
    return True


def collect(
    base: PrecisionConfig, variants: Sequence[Variant], seeds: Sequence[int], store: RunStore
) -> list[VariantResult]:
    """The results of the variants that have finished or diverged trainings in `store`."""
    known, collected = index(store, base.device), []
    for variant in variants:
        runs = {
            seed: run for seed in seeds if (run := known.get(PrecisionExperiment.training(variant.config(base, seed))))
        }
        done = {seed: run.record for seed, run in runs.items() if is_done(run)}
        if done:
            accuracies = {seed: r["results"]["accuracy"] for seed, r in done.items() if r["status"] == "finished"}
            first = done[next(iter(accuracies or done))]
            diverged = tuple(seed for seed in done if seed not in accuracies)
            devices = tuple(dict.fromkeys(record["device"].get("name", "") for record in done.values()))
            collected.append(VariantResult(variant.name, accuracies, first["results"], devices, diverged))
    return collected


def device_names(results: Iterable[VariantResult]) -> str:
    """The names of all devices that the trainings ran on."""
    return ", ".join(dict.fromkeys(name for result in results for name in result.devices))


def index(store: RunStore, device: str | None) -> dict[str, Run]:
    """The newest run of each training, a finished one if there is one, by `Experiment.training`.

    Arguments:
    - `device`: part of the platform's and device's name (default: all devices).

    Runs with settings or tasks that are unknown here (of a newer version) are left out.
    """

    def training(run: Run) -> str | None:
        name = " / ".join(run.record["device"].get(part, "") for part in ("platform", "name"))  # as Device.id
        if (device or "").lower() not in name.lower():
            return None
        return PrecisionExperiment.training(PrecisionConfig.from_dict(run.config))

    return known_runs(store, PrecisionExperiment.kind, training)


def expected(task: str) -> list[VariantResult]:
    """The results kept in the package; none for a task that was not measured."""
    record = json.loads(EXPECTED.read_text())["tasks"].get(task, {"variants": {}})
    return [
        VariantResult(
            name, {int(seed): accuracy for seed, accuracy in entry["accuracies"].items()}, {}, (record["device"],),
            tuple(entry.get("diverged", ())),
        )
        for name, entry in record["variants"].items()
    ]  # fmt: skip


TITLES = {
    "clipped": "Share of clipped values",
    "signal_to_noise": "Signal to noise (dB)",
    "cosine": "Cosine to the float32 tensor",
    "staleness": "Staleness of the range (widths)",
}


def of_run(store: RunStore, name: str | None = None) -> tuple[Run, RangeTrace]:
    """Return a run and its trace.

    `name` is the run's id or the start of it (default: the newest run with a trace). Raises RunError for a run without
    a trace, FormatError for a damaged trace.
    """
    names = [name] if name else [summary.id for summary in store.list() if summary.kind == PrecisionExperiment.kind]
    for run in map(store.open, names):
        if (run.folder / TRACE).exists():
            return run, RangeTrace.read(run.folder / TRACE)
    raise RunError(
        f"{f'{names[0]} has no' if name else f'No run in {store.root} has a'} trace of its tensors. Make one: "
        f"'edgelearn precision train TASK --trace 10'."
    )


def trace_table(trace: RangeTrace, kind: str) -> Table:
    """The worst values of each tensor of `kind` ("weights", "activations", "norm_inputs" or "gradients"), in the order
    of a step. Raises PlanError if the trace has no such tensor."""
    rows = _rows(trace, kind)
    cosine = trace.cosine[:, rows]
    worst = trace.steps[np.where(np.isnan(cosine), np.inf, cosine).argmin(0)]
    least, noisy = np.fmin.reduce(cosine), np.fmin.reduce(trace.signal_to_noise[:, rows])
    clipped, stale = np.fmax.reduce(trace.clipped[:, rows]), np.fmax.reduce(trace.staleness[:, rows])
    header = ("tensor", "least cosine", "at step", "least signal to noise (dB)", "most clipped", "most stale (widths)")
    found = [
        (
            trace.tensors[row], _text(least[i], ".4f"), "" if np.isnan(least[i]) else str(worst[i]),
            _text(noisy[i], ".1f"), _text(clipped[i], ".2%"), _text(stale[i], ".2f"),
        )
        for i, row in enumerate(rows)
    ]  # fmt: skip
    return Table(header, found)


def plot_ranges(trace: RangeTrace, what: str = "cosine", kind: str = "gradients") -> Figure:
    """Draw a heat map: a row for each tensor, in the order of a step, a column for each traced step.

    Arguments:
    - `what`: "clipped", "signal_to_noise", "cosine" or "staleness".
    - `kind`: "weights", "activations", "norm_inputs" or "gradients".

    Raises PlanError if the trace doesn't have it.
    """
    if what not in TITLES:
        raise PlanError(f"A trace has {', '.join(TITLES)}, not {what!r}.")
    rows = _rows(trace, kind)
    values = getattr(trace, what)[:, rows].T
    figure = figures.canvas(figures.WIDTH, 1.5 + 0.22 * len(rows))
    axes = figure.add_subplot()
    axes.grid(False)
    image = axes.imshow(values, aspect="auto", interpolation="nearest", cmap="viridis")
    axes.set_yticks(range(len(rows)), [trace.tensors[i].rpartition("/")[0] for i in rows], fontsize=10)
    places = np.unique(np.linspace(0, len(trace.steps) - 1, min(8, len(trace.steps))).astype(int))
    axes.set_xticks(places, [str(trace.steps[p]) for p in places], fontsize=10)
    axes.set_xlabel("Step", fontsize=10)
    figure.colorbar(image, ax=axes, label=TITLES[what])
    return figure


def _text(value: float, spec: str) -> str:
    return "" if np.isnan(value) else format(value, spec)


def _rows(trace: RangeTrace, kind: str) -> list[int]:
    rows = [i for i, name in enumerate(trace.tensors) if name.endswith(f"/{kind}")]
    if not rows or not len(trace.steps):
        raise PlanError(f"The trace has no {kind}: quantize them, and train for a step.")
    return rows
