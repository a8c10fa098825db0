"""Trainings in run folders: start, interrupt, resume, finish.

An `Experiment` is a kind of run: its name, its configuration and the function that loads a `Training` of one. How long
the work of a training took is kept in its run's folder: the next one of the same plan knows its end.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import MISSING, asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Generic, NotRequired, TypedDict, TypeVar

from edgelearn import atomic, records
from edgelearn.compile import Plan
from edgelearn.device import Device
from edgelearn.display import megabytes, plural
from edgelearn.errors import RunError
from edgelearn.extensions import import_object
from edgelearn.lab.energy import Meter, find_meter
from edgelearn.lab.measure import peak_resident_bytes
from edgelearn.lab.runs import Run, RunStore, wilson_interval
from edgelearn.lab.runs.results import flat_settings, setting_text
from edgelearn.lab.runs.store import rescue
from edgelearn.lab.runs.summary import RunSummary
from edgelearn.tables import Table, Tabular
from edgelearn.train import Callback, Model, TrainedModel
from edgelearn.train.callbacks import Progress, ProgressBar
from edgelearn.train.control import on_interrupt
from edgelearn.train.model import Phases
from edgelearn.train.remaining import TEST, Remaining
from edgelearn.train.state import Logs
from edgelearn.tuned import find

from . import EXPERIMENTS
from .claims import Claim, NotMeasured, check_claims
from .config import Config, settings
from .turn import Turn

Log = Callable[[str], None]
Finish = Callable[[Any, Run, float], tuple[dict[str, Any], str]]
C = TypeVar("C", bound=Config)
_REPORT_SECONDS = 0.5
_TEST_SECONDS = 1.5  # to draw the figures of a run, the first ones of a process
APART = ("data", "download", "device")  # settings that don't change a training's result


def _as_planned(results: Mapping[str, Any]) -> tuple[bool, str]:
    memory = results.get("memory") or {}
    planned, allocated = memory.get("planned"), memory.get("allocated")
    if planned is None or allocated is None:
        raise NotMeasured("Nothing was planned or allocated on a device.")
    return allocated <= planned, f"{allocated:,} bytes allocated at most, {planned:,} planned"


MEMORY = Claim("A training takes no more of the device's memory than its plan says, to the byte", _as_planned)


def silent(line: str) -> None:
    """A log that drops every line."""


class Recorder(Callback):
    """Writes a row of history and a checkpoint after each epoch, what was measured before training, and about once a
    second how far it is.

    Arguments:
    - `run`: the run.
    - `model`: the model that is trained.
    - `command`: the command that resumes it.
    - `meter`: the device's, which counts the energy of whole epochs.
    - `remaining`: predicts the time left.
    """

    def __init__(self, run: Run, model: TrainedModel, command: str, meter: Meter, remaining: Remaining) -> None:
        self.run, self.model, self.command, self.meter, self.remaining = run, model, command, meter, remaining
        self._rows = run.history()
        self._joules: float | None = None
        self._progress, self._next_report = Progress("loading"), 0.0

    def on_compile(self, done: int, total: int) -> None:
        self.report("compiling kernels", done, total)

    def on_extract(self, done: int, total: int) -> None:
        self.report("extracting features", done, total)

    def on_train_batch_end(self, batch: int, logs: Logs) -> None:
        self.report("training", self.model.steps_done, self.model.steps_total)

    def report(self, phase: str, done: int = 0, total: int = 0) -> None:
        """Say how far the training is: `done` of `total` in a phase."""
        before, now = self._progress.phase, time.monotonic()
        self._progress = Progress(phase, done, total)
        if now >= self._next_report or phase != before or done == total:
            self._next_report = now + _REPORT_SECONDS
            self.run.report({"phase": phase, "done": done, "total": total, "left": self.remaining.seconds})

    def on_train_begin(self, logs: Logs) -> None:
        if logs:
            with self.rescuing():
                self.run.update(before={k.removeprefix("val_"): v for k, v in logs.items()})

    def on_epoch_begin(self, epoch: int, logs: Logs) -> None:
        whole = not self.model.position.step  # of one that goes on, a part was counted by nobody
        self._joules = self.meter.read() if whole else None

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        row = {"epoch": epoch + 1, **logs}
        now = self.meter.read()
        if now is not None and self._joules is not None:
            row["joules"] = now - self._joules
        self._rows = [each for each in self._rows if each["epoch"] <= epoch] + [row]
        with self.rescuing():
            self.run.append_epoch(row)
            self.run.save_checkpoint(*self.model.state())

    def energy(self) -> dict[str, Any]:
        """Entries of the run's results: joules of all epochs, tests between them included, and who counted them."""
        counted = [row.get("joules") for row in self._rows]
        known = [joules for joules in counted if joules is not None]
        joules = sum(known) if known and len(known) == len(counted) else None
        return {"joules": joules, "energy": self.meter.to_dict()}

    def save(self) -> None:
        """Write a checkpoint."""
        with self.rescuing():
            self.run.save_checkpoint(*self.model.state())

    @contextmanager
    def rescuing(self) -> Iterator[None]:
        """If the run can't be written in the block, keep what is in memory elsewhere; the RunError then says where."""
        try:
            yield
        except RunError as error:
            folder = rescue(self.run, self._rows, *self.model.state())
            if folder is None:
                raise RunError(f"{error} What is in memory could not be saved anywhere else either.") from error
            raise RunError(
                f"{error} What was in memory is saved in {folder}. Continue with: {self.command} --resume "
                f"{self.run.id} --runs {folder.parent}"
            ) from error


@dataclass(kw_only=True, repr=False)
class Training(Tabular, Generic[C]):
    """A training that is loaded: model and examples, how it is fitted and tested, and what its run keeps of these.
    `run` does everything; a notebook can call single steps.

    Arguments:
    - `config`: settings of the run.
    - `model`: the compiled model.
    - `train`, `test`: (examples, targets), `test` None where nothing is tested between epochs.
    - `epochs`: passes over the examples.
    - `batch_size`, `micro_batch`: examples per update (default: all), and at a time on the device (default: as many).
    - `finish`: function of (training, run, seconds): tests the model, writes files into the run's folder, and returns
      the results and a text about them.
    - `data`, `weights`: entries of the run's record on where these come from; a run is continued only with the same.
    - `sources`: lines of text on the same.
    - `preprocessing`: how examples are made, Pictures or JSON values, kept with the trained network.
    - `settings`: further arguments of Model.fit, such as `cache` and `budget`.
    - `tests_whole`: the whole network is tested at the end, by a plan of its own (default False).
    - `record`: further entries of the run's record.
    - `callbacks`: function of the run: further callbacks of its training.
    - `task`: the task that is trained, of an experiment with several.
    - `claims`: held against the results; the run's record keeps the verdicts (default: that memory is as planned).
    """

    config: C
    model: Model
    train: tuple[Any, Any]
    test: Any
    epochs: int
    batch_size: int | None = None
    micro_batch: int | None = None
    finish: Finish
    data: dict[str, Any]
    weights: dict[str, Any] | None = None
    sources: Sequence[str] = ()
    preprocessing: Any = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    tests_whole: bool = False
    record: Mapping[str, Any] = field(default_factory=dict)
    callbacks: Callable[[Run], Sequence[Callback]] = lambda run: ()
    task: Any = None
    claims: Sequence[Claim] = (MEMORY,)
    experiment: Experiment = field(init=False, repr=False)

    # Entries of a run's record, and their keys, that must not have changed when the run is resumed.
    same: ClassVar = {"data": ("origin", "words", "classes", "train", "test"), "weights": ("sha256",)}

    @property
    def sizes(self) -> tuple[int, int]:
        """Examples of a mini-batch and of a micro-batch."""
        count = len(self.train[1])
        size = min(self.batch_size or count, count)
        return size, min(self.micro_batch or size, size)

    @property
    def headline(self) -> str:
        examples = f"{plural(len(self.train[1]), 'example')}, {plural(self.epochs, 'epoch')}"
        return f"of {type(self.config).__name__}: {examples}, on {self.model.device.id}"

    def table(self) -> Table:
        """Where data and weights come from, the device, the planned memory, and the settings of the configuration."""
        phases = [(f"planned, {name}", megabytes(plan.peak_bytes)) for name, plan in self.phases.items()]
        chosen = [
            (name, setting_text(value)) for name, value in flat_settings(self.config.to_dict()) if value is not None
        ]
        sources = [("", line.strip()) for line in self.sources]
        rows = [*sources, ("device", self.model.device.id), *phases, *chosen]
        return Table(("setting", "value"), rows, self.headline)

    @cached_property
    def phases(self) -> Phases:
        """The memory plans of everything that runs on the device."""
        lengths = [len(targets) for _, targets in (self.train, *([self.test] if self.test else []))]
        budget = self.settings.get("budget")
        phases = self.model.phases(*self.sizes, budget, self.settings.get("cache"), lengths)
        if self.tests_whole:
            phases["test"] = self.model.forward_plan(budget=budget)
        return phases

    @cached_property
    def meter(self) -> Meter:
        """The energy meter of the model's device."""
        return find_meter(self.model.device)

    @cached_property
    def turn(self) -> Turn:
        """The right to train on the model's device, for which programs wait."""
        return Turn(self.model.device.id)

    @property
    def trained(self) -> TrainedModel:
        """The object that is trained: the model, or one that trains it in another way."""
        return self.model

    @property
    def finished(self) -> bool:
        """True once all epochs are done."""
        return self.trained.position.epoch >= self.epochs

    def fit(self, callbacks: Sequence[Callback] = ()) -> None:
        """Train silently from the model's position until all epochs are done; a callback may show progress."""
        size, micro_batch = self.sizes
        self.model.fit(
            *self.train, size, self.epochs, micro_batch=micro_batch, validation_data=self.test, callbacks=callbacks,
            verbose=0, **self.settings,
        )  # fmt: skip

    def remaining(self, store: RunStore) -> Remaining:
        """What there is to do, as long as in an earlier run of `store`, else as predicted."""
        counts = [len(targets) for _, targets in (self.train, *([self.test] if self.test else []))]
        earlier = seconds_of_plan(store, self.experiment.kind, self._timed)
        return Remaining.of(
            self.phases, self.model.device, counts, self.sizes[0], self.epochs, self.train[0],
            validations=self.epochs + 1, checkpoints=self.epochs, test=_TEST_SECONDS, earlier=earlier,
            learned=learned_on(store, self.model.device),
        )  # fmt: skip

    @property
    def _timed(self) -> dict[str, Any]:
        return plan_key(self.phases, self.model.device, self.sizes)

    def describe(self) -> dict[str, Any]:
        """Entries of the run's record next to the configuration."""
        weights = {"weights": self.weights} if self.weights is not None else {}
        device = self.model.device.facts() | {"reason": self.model.choice.reason}
        return {"device": device, "data": self.data, **weights, "plan": self.phases.to_dict(), **self.record}

    def log_setup(self, log: Log) -> None:
        """Log data, device, network and memory plan."""
        for line in self.sources:
            log(line)
        device = self.model.device
        log(f"Device: {device.id} (driver {device.driver}), {self.model.choice.reason}")
        log(f"  {find(device)}")
        for note in device.notes:
            log(f"  note: {note}")
        log(self.model.summary())
        log(str(self.phases))

    def memory(self) -> dict[str, Any]:
        """Bytes: the planned and the allocated peak on the device, and the peak of this process."""
        allocated = self.model.context.ledger.peak
        return {"planned": self.phases.peak_bytes, "allocated": allocated, "process": peak_resident_bytes()}

    def results(self, correct: int, total: int, loss: float, seconds: float) -> dict[str, Any]:
        """The results of a classifier: `correct` of `total` test examples, with a 95 % Wilson interval."""
        return {
            "correct": correct, "total": total, "accuracy": correct / total, "epochs": self.epochs, "loss": loss,
            "seconds": seconds, "interval": list(wilson_interval(correct, total)), "memory": self.memory(),
        }  # fmt: skip

    def create_run(self, store: RunStore) -> Run:
        """Create a run of this configuration."""
        return store.create(self.experiment.kind, self.config.to_dict(), **self.describe())

    def resume_run(self, run: Run) -> None:
        """Open a run of this configuration to continue it. Raises RunError if it is of another configuration."""
        for name, value in type(self.config).from_dict(run.config).to_dict().items():
            if value != (own := self.config.to_dict()[name]):
                raise RunError(
                    f"Run {run.id} has another configuration: {name} is {value!r} there and {own!r} here. Load the "
                    f"experiment with the run's configuration, or start a new run."
                )
        run.resume()

    def run(self, run: Run, callbacks: Sequence[Callback] = (), log: Log = print) -> dict[str, Any] | None:
        """Train in `run`, from its checkpoint if it has one; returns the results, or None after an interrupt. A
        Remaining among the callbacks is told of everything that there is to do.

        Raises RunError if the run began with other data or weights.
        """
        command = self.experiment.command
        given = [each for each in callbacks if isinstance(each, Remaining)]
        remaining = given[0] if given else self.remaining(RunStore(run.folder.parent))
        others = [each for each in callbacks if each is not remaining]
        for each in others:
            if isinstance(each, ProgressBar):
                each.remaining = remaining
        recorder = Recorder(run, self.trained, command, self.meter, remaining)
        self.turn.note(run.id)
        self.meter.idle()
        start = time.perf_counter()
        earlier = float(run.record.get("seconds", 0.0))
        if run.has_checkpoint():
            self._check_same(run)
            self.trained.restore(*run.load_checkpoint())

        def stop() -> None:
            self.trained.stop_training = True

        advice = f"Continue with: {command} --resume {run.id}"
        with on_interrupt(stop), self.meter:
            if not self.finished:
                self.fit([remaining, recorder, *others, *self.callbacks(run)])
            seconds = earlier + time.perf_counter() - start
            with recorder.rescuing():
                run.update(seconds=seconds)
            if not self.finished:
                recorder.save()
                run.close()
                log(f"Stopped at a step boundary and saved. {advice}")
                return None
        try:
            remaining.begin(TEST)
            recorder.report("testing")
            with recorder.rescuing():
                results, text = self.finish(self, run, seconds)
                results |= recorder.energy()
                verdicts = check_claims(self.claims, lambda: results).verdicts
                run.update(claims=[asdict(each) for each in verdicts])
                run.finish(results)
            remaining.advance(TEST)
            save_timing(run.folder, {
                "plan": self._timed, "seconds": remaining.measured, "total": remaining.again,
                "learned": remaining.learned,
            })  # fmt: skip
        except KeyboardInterrupt:
            log(f"Trained and saved, but the test is not complete. {advice}")
            raise
        if text:
            log(text)
        return results

    def _check_same(self, run: Run) -> None:
        for entry, keys in self.same.items():
            if (now := getattr(self, entry)) is None:
                continue
            before = run.record.get(entry)
            if not isinstance(before, dict):
                raise RunError(f"{run.id} doesn't say which {entry} it began with: its record was changed. Start anew.")
            for key in keys:
                if now.get(key) != before.get(key):
                    raise RunError(
                        f"{run.id} began with other {entry}: {key} was {before.get(key)} and is now {now.get(key)}. "
                        f"It began with: {before.get('description')} Make that available again, or start a new run."
                    )


T = TypeVar("T", bound=Training)


@dataclass(frozen=True, repr=False)
class Experiment(Tabular, Generic[C, T]):
    """A kind of run.

    Arguments:
    - `kind`: its name.
    - `config_type`: the class of its configurations.
    - `function`: loads the training of a configuration.
    - `command`: the command that resumes its runs (default: edgelearn and the name).
    - `resolve`: returns a configuration with values where it leaves them to the experiment (default: as it is).
    - `apart`: settings that don't change a training's result.
    - `presets`: returns configurations to begin with, by name (default: none but the default one).
    """

    kind: str
    config_type: type[C]
    function: Callable[[C], T]
    command: str = ""
    resolve: Callable[[C], C] = lambda config: config
    apart: tuple[str, ...] = APART
    presets: Callable[[], Mapping[str, C]] = dict

    def __post_init__(self) -> None:
        object.__setattr__(self, "command", self.command or f"edgelearn {self.kind}")

    def __reduce__(self) -> Any:  # processes of a sweep find it by its name
        if self.kind in EXPERIMENTS:
            return import_object, (EXPERIMENTS[self.kind],)
        return super().__reduce__()

    @property
    def headline(self) -> str:
        presets = ", ".join(self.presets())
        return f"'{self.kind}', {self.config_type.__name__}" + (f", presets {presets}" if presets else "")

    def table(self) -> Table:
        """The settings of its configurations: name, default and meaning."""
        rows = [
            (name, "" if each.default in (None, MISSING) else setting_text(each.default), each.help)
            for name, each in settings(self.config_type).items()
        ]
        return Table(("setting", "default", ""), rows, f"{self.headline}; command: {self.command}")

    def load(self, config: C) -> T:
        """Load the data and the model of a configuration."""
        training = self.function(self.resolve(config))
        training.experiment = self
        return training

    def training(self, config: C) -> str:
        """A text that configurations with the same training share."""
        settings = self.resolve(config).to_dict()
        return json.dumps({name: value for name, value in settings.items() if name not in self.apart}, sort_keys=True)

    def start(
        self, config: C, store: RunStore, callbacks: Sequence[Callback], log: Log = print, **entries: Any
    ) -> dict | None:
        """Train `config` in a new run of `store`, once no other training is on the device; returns the results, or None
        after an interrupt. `entries`: further ones of the run's record."""
        training = self.load(config)
        training.record = {**training.record, **entries}
        training.log_setup(log)
        with training.turn.taken(), training.create_run(store) as run:
            log(f"Run {run.id}")
            return training.run(run, callbacks, log)

    def resume(self, name: str, store: RunStore, callbacks: Sequence[Callback], log: Log = print) -> dict | None:
        """Continue an interrupted or failed run; returns the results, or None after an interrupt.

        `name` is the run's id or the start of it. Raises RunError if the run can't be continued.
        """
        run = store.open(name)
        if run.record["kind"] != self.kind:
            raise RunError(
                f"{run.id} is a run of '{run.record['kind']}', not of {self.kind}: resume it with its own command."
            )
        with run.resume():
            training = self.load(self.config_type.from_dict(run.config))
            training.log_setup(log)
            with training.turn.taken():
                log(f"Run {run.id}, continued")
                return training.run(run, callbacks, log)


TIMING_FILE = "timing.json"
_TIMED_RUNS = 50  # earlier ones that are looked at


class Timing(TypedDict):
    """The file: the device and the plans, seconds of a unit by kind of work, those of the whole training after it was
    loaded, without compilation, and what trainings of other plans on the device can expect."""

    plan: dict[str, Any]
    seconds: dict[str, float]
    total: NotRequired[float]
    learned: NotRequired[dict[str, float]]


def plan_key(phases: Mapping[str, Plan], device: Device, sizes: Sequence[int]) -> dict[str, Any]:
    """Key shared by trainings whose steps take equally long."""
    found = {name: [plan.peak_bytes, len(plan.step_launches)] for name, plan in phases.items()}
    return {"device": device.facts()["name"], "sizes": list(sizes), "phases": found}


def save_timing(folder: Path, timing: Timing) -> None:
    """Write the file of the run in `folder`."""
    atomic.write_json(folder / TIMING_FILE, timing)


def seconds_of_plan(store: RunStore, kind: str, plan: Mapping[str, Any]) -> dict[str, float] | None:
    """Seconds of a unit in the newest run of this kind with the same plan on the same device; None if there is none."""
    for timing in _read_timings([each for each in store.list() if each.kind == kind]):
        if timing["plan"] == plan:
            return timing["seconds"]
    return None


def learned_on(store: RunStore, device: Device) -> dict[str, float]:
    """Values that the newest runs on this device have learned, whatever they trained; {} if there are none."""
    name, found = device.facts()["name"], dict[str, float]()
    for timing in _read_timings(store.list()):
        if timing["plan"].get("device") == name:
            found = timing.get("learned", {}) | found
    return found


def seconds_of_config(store: RunStore, config: Config) -> float | None:
    """Seconds that the newest run with these settings took after it was loaded, compilation left out, whatever its
    seed; None if there is none."""
    settings = {name: json.loads(json.dumps(value)) for name, value in config.to_dict().items() if name != "seed"}
    given = {name: value for name, value in settings.items() if value is not None}  # others the experiment chooses
    same = [
        each
        for each in store.list()
        if settings.keys() <= each.config.keys() and all(each.config[name] == value for name, value in given.items())
    ]
    return next((timing["total"] for timing in _read_timings(same) if "total" in timing), None)


def _read_timings(runs: Sequence[RunSummary]) -> Iterator[Timing]:
    """The files of the first of these runs that have one."""
    for summary in runs[:_TIMED_RUNS]:
        with suppress(OSError, records.RecordError):
            yield records.read(summary.folder / TIMING_FILE, Timing)
