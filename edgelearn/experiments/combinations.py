"""Comparison of precision, activation memory, micro-batch and trained layers on one network, data and seeds."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edgelearn.compile import account
from edgelearn.compile.planner import Combination
from edgelearn.data.draws import stratified_split
from edgelearn.display import MB, Recorded, as_joules, plural
from edgelearn.errors import DataError, RunError
from edgelearn.graph import Network
from edgelearn.lab import measure
from edgelearn.lab.energy import NOT_MEASURED, Meter, find_meter
from edgelearn.lab.runs import Interval, Run, RunStore, figures, interval, median, wilson_interval
from edgelearn.lab.runs.tradeoff import Tradeoff
from edgelearn.ops import Loss, Losses, Optimizer
from edgelearn.tables import Table, Tabular
from edgelearn.train import Callback, Model, Subset
from edgelearn.train.callbacks import with_progress
from edgelearn.train.loading import NetworkLike, as_network, combined
from edgelearn.train.sources import at_epoch
from edgelearn.train.state import Logs

from .config import Config, epochs_setting, setting
from .experiment import Experiment, Log, Training, silent
from .sweep import can_go_on, diverged, is_done, known_runs
from .tasks import Task, finish_task, training_of
from .turn import Turn

if TYPE_CHECKING:
    from matplotlib.figure import Figure


PROBED = 16  # examples of a source, at its begin and at its end, that tell it from others


@dataclass(frozen=True)
class CombinationConfig(Config):
    """A combination, and the training that it shares with the others. Digests are SHA-256, in hexadecimal."""

    network: str = setting("", "name of the network")
    graph: str = setting("", "digest of its graph")
    weights: str = setting("", "digest of the weights that training begins with; empty if they are drawn")
    data: str = setting("", "digest of the examples and targets")
    epochs: int = epochs_setting(1, "passes over the examples")
    batch_size: int = setting(32, "examples per update", minimum=1)
    optimizer: str = setting("", "the optimizer, with its settings")
    loss: str = setting("", "the loss, with its settings")
    batchnorm: str = setting("batch", "statistics that BatchNorm uses", choices=("batch", "moving"))
    metrics: tuple[str, ...] = setting((), "metrics besides the accuracy")
    seed: int = setting(0, "seed of everything random", minimum=0)
    device: str | None = setting(None, "part of a device's name")
    precision: str = setting("fp32", "name of a precision, or its settings as JSON")
    activation_memory: str = setting("keep_all", "a policy, or a budget")
    micro_batch: int | None = setting(None, "examples at a time on the device", minimum=1)
    trained: tuple[str, ...] = setting((), "layers that are trained")

    @classmethod
    def of(cls, combination: Combination, seed: int, **shared: Any) -> CombinationConfig:
        """The configuration of a training. `shared`: all fields but those of the combination and the seed."""
        record: dict[str, Any] = combination.to_dict()
        record["trained"] = tuple(record["trained"])
        return cls(seed=seed, **shared, **record)

    @property
    def key(self) -> str:
        """Equal for the same training on any device."""
        return json.dumps({k: v for k, v in self.to_dict().items() if k != "device"}, sort_keys=True)


def described(thing: object) -> str:
    """An optimizer, a loss or a metric as text that is the same in every process."""
    if isinstance(thing, str):
        return thing
    if name := getattr(thing, "__qualname__", ""):
        return f"{getattr(thing, '__module__', '')}:{name}"
    return re.sub(r" at 0x[0-9a-f]+", "", repr(thing))


def digest(*parts: Any) -> str:
    """SHA-256 of arrays, texts, sources of examples, and dictionaries and lists of these. Of a source some examples are
    read."""
    found = hashlib.sha256()
    for piece in _pieces(parts):
        found.update(piece)
    return found.hexdigest()


def weights_digest(model: Model) -> str:
    """Digest of a model's weights."""
    return digest(dict(sorted(model.weights.items())))


def _pieces(part: Any) -> Iterable[bytes | memoryview]:
    if isinstance(part, str):
        yield part.encode()
    elif isinstance(part, Mapping):
        for key, value in part.items():
            yield str(key).encode()
            yield from _pieces(value)
    elif isinstance(part, list | tuple):
        for value in part:
            yield from _pieces(value)
    elif isinstance(part, np.ndarray):
        yield f"{part.dtype} {part.shape}".encode()
        yield np.ascontiguousarray(part).data
    elif part is not None:
        ends = np.unique(np.r_[0 : min(PROBED, len(part)), max(0, len(part) - PROBED) : len(part)])
        yield f"{type(part).__qualname__} {tuple(part.shape)}".encode()
        yield from _pieces(at_epoch(part, 0)[ends])


MEMORY = ("planned", "allocated", "process")
JOULES = ("J/step", "J/epoch")
ABSENT = "–"


@dataclass(frozen=True)
class CombinationResult:
    """The trainings of a combination.

    Arguments:
    - `combination`: the settings.
    - `runs`: the finished ones, by seed.
    - `reasons`: why others are missing, by seed.
    """

    combination: Combination
    runs: dict[int, Run] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)

    @property
    def measure(self) -> str:
        """The metric that trainings are compared by: "accuracy", or "loss" where nothing is right or wrong."""
        return (
            "accuracy"
            if self.runs and all("accuracy" in run.record["results"] for run in self.runs.values())
            else "loss"
        )

    @property
    def values(self) -> dict[int, float]:
        """The test accuracy, or the loss, by seed."""
        return {seed: run.record["results"][self.measure] for seed, run in self.runs.items()}

    @property
    def interval(self) -> tuple[float, float, float] | None:
        """(mean, low, high) of `values`: Student's 95 % interval over the seeds; of one seed Wilson's over the
        examples, or only the value. None if no training has finished."""
        values = list(self.values.values())
        if not values:
            return None
        if len(values) > 1:
            found: Interval = interval(values)
            return found.mean, found.mean - found.margin, found.mean + found.margin
        results = next(iter(self.runs.values())).record["results"]
        if "correct" in results:
            return values[0], *wilson_interval(results["correct"], results["total"])
        return values[0], values[0], values[0]

    def bytes(self, kind: str) -> int | None:
        """Memory of one of MEMORY: the largest over the seeds; None if it isn't known."""
        sizes = [run.record["results"]["memory"].get(kind) for run in self.runs.values()]
        return max((size for size in sizes if size is not None), default=None)

    def seconds(self, of: str) -> float | None:
        """Median over the seeds of the seconds of a "step" or an "epoch"."""
        times = [run.record[f"{of}_seconds"] for run in self.runs.values()]
        return median(times) if times else None

    def joules(self, of: str) -> float | None:
        """Median over the seeds of the joules of a "step" or an "epoch"; None if nobody counted."""
        counted = [run.record.get(f"{of}_joules") for run in self.runs.values()]
        known = [joules for joules in counted if joules is not None]
        return median(known) if known else None

    @property
    def counter(self) -> str:
        """Who counted the joules, or why nobody did."""
        found = ((run.record["results"].get("energy") or {}).get("source") for run in self.runs.values())
        return next(filter(None, found), NOT_MEASURED)

    @property
    def reason(self) -> str:
        """Why trainings are missing, empty if none is."""
        return "; ".join(dict.fromkeys(self.reasons.values()))

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "combination": self.combination.to_dict(), "runs": {str(seed): run.id for seed, run in self.runs.items()},
            self.measure: {str(seed): value for seed, value in self.values.items()}, "interval": self.interval,
            "bytes": {kind: self.bytes(kind) for kind in MEMORY},
            "seconds": {of: self.seconds(of) for of in ("step", "epoch")},
            "joules": {of: self.joules(of) for of in ("step", "epoch")}, "counter": self.counter,
            "reasons": {str(seed): reason for seed, reason in self.reasons.items()},
        }  # fmt: skip


@dataclass(frozen=True, repr=False)
class CombinationResults(Tabular, Recorded):
    """Combinations compared on one network, data and seeds.

    Arguments:
    - `network`: its name.
    - `device`: its name.
    - `rows`: a result for each combination, in the order given.
    - `interrupted`: the comparison was stopped; the same call goes on (default False).
    - `int8_speed`: a sentence on the time of int8 on the device (default none).
    """

    network: str
    device: str
    rows: list[CombinationResult]
    interrupted: bool = False
    int8_speed: str = ""

    entries = "network", "device", "interrupted", "combinations: rows"

    @property
    def headline(self) -> str:
        done = sum(len(row.runs) for row in self.rows)
        return f"of {plural(len(self.rows), 'combination')} on '{self.network}': {plural(done, 'training')}" + (
            ", interrupted" if self.interrupted else ""
        )

    def table(self) -> Table:
        """A row for each combination, memory in MB, and the notes."""
        measure = next((row.measure for row in self.rows if row.runs), "accuracy")
        header = ("combination", measure, *MEMORY, "ms/step", "s/epoch", *JOULES)
        if not any(row.joules("epoch") for row in self.rows):
            header = header[: -len(JOULES)]
        rows = [_cells(row)[: len(header)] for row in self.rows]
        return Table(header, rows, f"'{self.network}' on {self.device}", self._notes())

    def _notes(self) -> list[str]:
        several = any(len(row.runs) > 1 for row in self.rows)
        over = "Student's, over the seeds" if several else "Wilson's, over the test examples"
        notes = [f"{row.combination.name}: {row.reason}" for row in self.rows if row.reasons]
        notes.append(
            f"Intervals are at 95 %: {over}. Memory in MB: as planned on the device, as allocated there, and the most "
            f"that this whole process held from the second step on."
        )
        notes += [f"Energy: {counter}." for counter in dict.fromkeys(row.counter for row in self.rows if row.runs)]
        if self.int8_speed and any(row.combination.formats.stores_integers for row in self.rows if row.runs):
            notes.append(self.int8_speed)
        return notes + (["Interrupted: the same call goes on where it stopped."] if self.interrupted else [])

    def tradeoff(self) -> Tradeoff:
        """Accuracy, memory and time in one figure. Raises RunError if no training has finished."""
        return Tradeoff.of({row.combination.name: row.runs.values() for row in self.rows})

    def plot(self, path: str | Path | None = None) -> Figure:
        """Draw accuracy with intervals, memory, and time of a step, a line for each combination; write a PNG to `path`.
        Raises RunError if nothing has finished."""
        rows = [row for row in self.rows if row.runs]
        if not rows:
            raise RunError("There is nothing to draw: no training of this comparison has finished.")
        figure = figures.canvas(figures.WIDTH, 1.6 + 0.5 * len(rows))
        left, middle, right = figure.subplots(1, 3, sharey=True)
        share = rows[0].measure == "accuracy"
        for place, row in enumerate(rows):
            mean, low, high = row.interval or (0.0, 0.0, 0.0)
            scale = 100 if share else 1
            ends = [[scale * (mean - low)], [scale * (high - mean)]]
            left.errorbar([scale * mean], [place], xerr=ends, fmt="o", color=figures.BLUE, capsize=4)
            right.barh(place, 1e3 * (row.seconds("step") or 0), height=0.55, color=figures.GREEN)
        colors = (figures.BLUE, figures.ORANGE, figures.GRAY)
        for number, (kind, color) in enumerate(zip(MEMORY, colors, strict=True)):
            sizes = [(row.bytes(kind) or 0) / MB for row in rows]
            middle.barh(
                [y + 0.25 * (number - 1) for y in range(len(rows))], sizes, height=0.22, color=color, label=kind
            )
        left.set_yticks(range(len(rows)), [row.combination.name for row in rows])
        left.invert_yaxis()
        figure.legend(loc="outside upper center", ncols=len(MEMORY), fontsize=10, frameon=False)
        words = (f"Test {rows[0].measure}" + (" (%)" if share else ""), "Memory (MB)", "A step (ms)")
        for axes, word in zip((left, middle, right), words, strict=True):
            figures.style(axes, "", word, bars=True)
        return figures.saved(figure, path)


def _cells(row: CombinationResult) -> tuple[str, ...]:
    if row.interval is None:
        return row.combination.name, "failed" if row.reasons else ABSENT, *[ABSENT] * 7
    sizes = (row.bytes(kind) for kind in MEMORY)
    memory = (ABSENT if size is None else f"{size / MB:,.2f}" for size in sizes)
    step, epoch = row.seconds("step") or 0.0, row.seconds("epoch") or 0.0
    energy = (row.joules(of) for of in ("step", "epoch"))
    counted = (ABSENT if joules is None else as_joules(joules) for joules in energy)
    return row.combination.name, _value(row), *memory, f"{1e3 * step:,.1f}", f"{epoch:,.2f}", *counted


def _value(row: CombinationResult) -> str:
    assert row.interval is not None
    mean, low, high = row.interval
    share = row.measure == "accuracy"
    unit = " %" if share else ""

    def write(value: float) -> str:
        return f"{100 * value:.1f}" if share else f"{value:.4f}"

    if len(row.runs) > 1:
        return f"{write(mean)} ± {write(high - mean)}{unit}"
    return f"{write(mean)}{unit}" + (f" ({write(low)} to {write(high)})" if high > low else "")


class Measure(Callback):
    """Measures steps and the memory of the process, both without the compilation of kernels: from the second step on.

    Arguments:
    - `meter`: counts the energy of the steps.

    - `process`: the most that it held, bytes; None where the system can't forget the peak of earlier trainings.
    - `steps`: seconds of each.
    - `joules`: of all of them; None if nothing is counted.
    """

    def __init__(self, meter: Meter) -> None:
        self.process: int | None = None
        self.steps: list[float] = []
        self.joules: float | None = None
        self._meter, self._counted = meter, None
        self._began = 0.0
        self._first, self._counts = True, False

    def on_train_batch_begin(self, batch: int, logs: Logs) -> None:
        self._counted = self._meter.read()
        self._began = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: Logs) -> None:
        if not self._first:
            self.steps.append(time.perf_counter() - self._began)
            if self._counted is not None and (now := self._meter.read()) is not None:
                self.joules = (self.joules or 0.0) + now - self._counted
            return
        self._first = False
        measure.release_free_memory()
        self._counts = measure.restart_peak()

    def on_train_end(self, logs: Logs) -> None:
        if self._counts:
            self.process = measure.peak_resident_bytes()


def combination_training(
    config: CombinationConfig, task: Task, combination: Combination
) -> Training[CombinationConfig]:
    """The training of a task, whose model was made for this combination."""
    meter = find_meter(task.model.device)
    measure = Measure(meter)

    def finish(training: Training, run: Run, seconds: float) -> tuple[dict[str, Any], str]:
        epochs = [row["seconds"] for row in run.history()]
        steps = measure.steps or [epochs[-1] / task.steps(1)]
        run.update(step_seconds=median(steps), epoch_seconds=median(epochs[1:] or epochs))
        counted = [row["joules"] for row in run.history() if "joules" in row]
        if measure.joules is not None and counted:
            run.update(step_joules=measure.joules / len(measure.steps), epoch_joules=median(counted[1:] or counted))
        results, text = finish_task(training, run, seconds)
        accounted = account(training.phases["train"])
        results["memory"] |= {"process": measure.process, "stored": accounted.stored, "peak": accounted.peak}
        return results, text

    training = training_of(
        task, config, config.epochs, combination.micro_batch, finish=finish, sources=[combination.name],
        settings={"budget": combination.budget}, callbacks=lambda run: [measure],
    )  # fmt: skip
    training.experiment, training.meter = CombinationExperiment, meter
    training.model.context.ledger.restart_peak()
    return training


def _refuse(config: CombinationConfig) -> Training[CombinationConfig]:
    """Raises RunError: a network of one's own isn't in the run."""
    raise RunError(f"A training of '{config.network}' goes on by the same call of el.compare.")


CombinationExperiment = Experiment("compare", CombinationConfig, _refuse, command="the same call of el.compare")


SPLIT_SEED = 0  # of the test examples: the same for all seeds


@dataclass(frozen=True)
class _Shared:
    """Network, examples and settings that all trainings share."""

    network: Network | Model
    train: tuple[Any, Any]
    test: tuple[Any, Any]
    epochs: int
    batch_size: int
    settings: dict[str, Any]  # of `combined`
    device: str | None


def compare(
    network: NetworkLike,
    data: tuple[Any, Any],
    combinations: Sequence[Combination | Mapping[str, Any]],
    *,
    epochs: int = 1,
    batch_size: int = 32,
    optimizer: Optimizer | str | None = None,
    loss: Loss | Losses | None = None,
    batchnorm: str = "auto",
    metrics: Any = (),
    validation_data: tuple[Any, Any] | None = None,
    validation_split: float = 0.2,
    seeds: Sequence[int] = (0,),
    device: str | None = None,
    store: RunStore | str | None = None,
    callbacks: Callable[[], Sequence[Callback]] = list,
    verbose: str | int = "auto",
) -> CombinationResults:
    """Train a network in several combinations of precision, activation memory, micro-batch and trained layers, on the
    same data and with the same seeds.

    >>> comparison = el.compare(network, (x, y), [{}, {"precision": "int8"}, {"activation_memory": "1 MB stored"}])
    >>> print(comparison)
    >>> comparison.plot("comparison.png")

    Each training is a run in the run store. Finished runs are found by their settings, network and data, and aren't
    trained again; interrupted ones go on. A combination that can't be planned or trained is a row with its reason.

    Arguments:
    - `network`: a Network, whose weights are drawn from the seed; a Model, whose weights and settings all trainings
      begin with; the name of one of el.models, a model file, or "MODULE:FUNCTION".
    - `data`: (x, y) as for Model.fit.
    - `combinations`: Combinations, or dictionaries of their arguments.
    - `epochs`, `batch_size`: as for Model.fit (default 1 and 32).
    - `optimizer`, `loss`, `batchnorm`, `metrics`: as for Model.compile (default: the model's; of a network, SGD()).
    - `validation_data`: (x, y) to test with (default: a part of `data`).
    - `validation_split`: share of `data` that is tested with instead, of each class the same (default 0.2).
    - `seeds`: a training of each combination with each (default (0,)).
    - `device`: any part of a device's name (default: the model's, else the best one).
    - `store`: a RunStore or its folder (default: that of the commands).
    - `callbacks`: makes the callbacks of a training (default: none).
    - `verbose`: as for Model.fit.

    Raises PlanError for a combination with unknown arguments, DataError for classes too small to split.
    """
    chosen = [Combination.of(each) for each in combinations]
    if not chosen or not seeds:
        raise RunError("There is nothing to compare: give at least one combination and one seed.")
    bars = with_progress([], verbose)
    log: Log = print if bars else silent
    log(f"{len(chosen)} combinations, seeds {', '.join(map(str, seeds))}")
    network = as_network(network)
    train, test = (data, validation_data) if validation_data else split(data, validation_split)
    settings = {"optimizer": optimizer, "loss": loss, "batchnorm": batchnorm, "metrics": metrics}
    shared = _Shared(network, train, test, epochs, batch_size, settings, device)
    trainings = _Trainings(shared, store if isinstance(store, RunStore) else RunStore(store), log)
    rows, interrupted = [CombinationResult(each) for each in chosen], False
    jobs = [(seed, row) for seed in seeds for row in rows]
    for number, (seed, row) in enumerate(jobs, 1):
        log(f"{number} of {len(jobs)}: {row.combination.name}, seed {seed}")
        with Turn(trainings.first.device.id).taken():
            outcome = trainings.run(row.combination, seed, [*callbacks(), *with_progress([], verbose)])
        if outcome is None:
            interrupted = True
            break
        if isinstance(outcome, Run):
            row.runs[seed] = outcome
        else:
            row.reasons[seed] = outcome
            log(f"  {outcome}")
    used = trainings.first.device
    return CombinationResults(trainings.network.name, used.id, rows, interrupted, used.int8_speed)


def split(data: tuple[Any, Any], share: float) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """Divide (x, y) into examples to train and to test with: of class numbers the same share of each class."""
    x, y = data
    count = len(next(iter(y.values())) if isinstance(y, Mapping) else y)
    labels = np.asarray(y) if not isinstance(y, Mapping) else np.zeros((0, 0))
    if labels.ndim == 1 and labels.dtype.kind in "iu":
        parts = stratified_split(labels, round(1 - share, 6), SPLIT_SEED)
    else:
        order, kept = np.random.default_rng(SPLIT_SEED).permutation(count), round(count * (1 - share))
        if not 0 < kept < count:
            raise DataError(f"A validation_split of {share:g} of {count} examples leaves none.")
        parts = np.sort(order[:kept]), np.sort(order[kept:])
    first, second = ((_part(x, part), _part(y, part)) for part in parts)
    return first, second


def _part(values: Any, indices: np.ndarray) -> Any:
    if isinstance(values, Mapping):
        return {name: _part(value, indices) for name, value in values.items()}
    if isinstance(values, list | tuple) and values and hasattr(values[0], "shape"):
        return [_part(value, indices) for value in values]
    if isinstance(values, list | tuple):
        values = np.asarray(values)
    return values[indices] if isinstance(values, np.ndarray) else Subset(values, indices)


class _Trainings:
    """The trainings of a comparison, of which the store may have some."""

    def __init__(self, shared: _Shared, store: RunStore, log: Log) -> None:
        self.shared, self.store, self.log = shared, store, log
        given = shared.network
        self.first = combined(given, device=shared.device, **shared.settings)
        self.network = self.first.network
        self.known = known_runs(
            store, CombinationExperiment.kind, lambda run: CombinationConfig.from_dict(run.config).key
        )
        metrics = shared.settings["metrics"]
        named = [metrics] if isinstance(metrics, str) or callable(metrics) else list(metrics)
        self.config = {
            "network": self.network.name, "graph": digest(self.network.to_json()),
            "weights": weights_digest(given) if isinstance(given, Model) else "",
            "data": digest(shared.train, shared.test), "epochs": shared.epochs, "batch_size": shared.batch_size,
            "optimizer": described(self.first.optimizer), "loss": described(self.first.loss),
            "batchnorm": self.first.batchnorm, "metrics": tuple(map(described, named)), "device": shared.device,
        }  # fmt: skip

    def run(self, combination: Combination, seed: int, callbacks: Sequence[Callback]) -> Run | str | None:
        """The finished run; or the reason why there is none; or None after an interrupt."""
        try:
            config = CombinationConfig.of(combination, seed, **self.config)
            known = self.known.get(config.key)
            if known is not None and is_done(known):
                return _diverged(known) if diverged(known) else known
            training = combination_training(config, self._task(combination, seed), combination)
            _ = training.phases
            if known is not None and can_go_on(known):
                with known.resume() as run:
                    return run if training.run(run, callbacks, silent) else None
            with training.create_run(self.store) as run:
                return run if training.run(run, callbacks, silent) else None
        except Exception as error:  # of any kind: ops, losses and sources may be the caller's
            return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"

    def _task(self, combination: Combination, seed: int) -> Task:
        shared, given = self.shared, self.shared.network
        model = combined(given, combination, device=shared.device, seed=seed, share_with=self.first, **shared.settings)
        (_, y), (_, test_y) = shared.train, shared.test
        labels = np.asarray(y) if not isinstance(y, Mapping) else np.zeros(0)
        classes = [str(label) for label in np.unique(labels)] if labels.dtype.kind in "iu" else []
        data = {
            "origin": "arrays", "description": f"{len(y):,} examples to train and {len(test_y):,} to test with.",
            "classes": classes, "train": len(y), "test": len(test_y), "skipped": 0,
        }  # fmt: skip
        digest = self.config["weights"]
        weights = {"description": "of the model" if digest else f"Drawn from seed {seed}.", "sha256": digest}
        return Task(
            model, shared.train, shared.test, lambda steps: model.optimizer, data, weights, shared.batch_size,
            model.batchnorm,
        )  # fmt: skip


def _diverged(run: Run) -> str:
    return f"diverged: {run.record['error']['message']}"
