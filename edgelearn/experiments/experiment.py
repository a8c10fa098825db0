"""A training into a run folder: begun, interrupted, gone on with, finished. What the experiments share."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Self

from edgelearn.errors import RunError
from edgelearn.lab.runs import Run, RunStore
from edgelearn.train import Callback, Model
from edgelearn.train.interrupt import on_interrupt
from edgelearn.train.phases import Phases
from edgelearn.tuned import find

from .config import Config
from .recorder import Recorder

Say = Callable[[str], None]


def process_peak_bytes() -> int:
    """The most memory that this process has held (resident)."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


class Experiment:
    """The base of experiments' trainings: a `config` (with `to_dict`, `from_dict`, `epochs` and `seed`) and a `model`.

    A job says how it is loaded, what a run of it records, how it trains and what it ends with; this class does the
    rest. `kind` names its runs, `command` its command; `same` lists what of the record must still be so when a run is
    gone on with."""

    kind: ClassVar[str]
    command: ClassVar[str]
    config_type: ClassVar[type[Config]]
    same: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    config: Config
    model: Model
    phases: Phases

    @classmethod
    def load(cls, config: Config) -> Self:
        """Find what the configuration asks for."""
        raise NotImplementedError

    def describe(self) -> dict:
        """What a run records besides its configuration."""
        raise NotImplementedError

    def sources(self) -> list[str]:
        """Lines on where data and weights come from."""
        raise NotImplementedError

    def introduce(self, say: Say) -> None:
        """The sources first; then device, network and memory plan."""
        for line in self.sources():
            say(line)
        device = self.model.device
        say(f"Device: {device.id} (driver {device.driver}), {self.model.choice.reason}")
        say(f"  {find(device)}")
        for note in device.notes:
            say(f"  note: {note}")
        say(self.model.summary())
        say(str(self.phases))

    def fit(self, callbacks: Sequence[Callback]) -> None:
        """Train from the model's position until all epochs are done."""
        raise NotImplementedError

    def finish(self, run: Run, seconds: float, say: Say) -> dict:
        """Test; write results and finish the run."""
        raise NotImplementedError

    @classmethod
    def start(cls, config: Config, store: RunStore, callbacks: Sequence[Callback], say: Say = print) -> dict | None:
        """A new run of `config`; returns its results, or None after an interruption."""
        job = cls.load(config)
        job.introduce(say)
        with store.create(cls.kind, job.config.to_dict(), **job.describe()) as run:
            say(f"Run {run.id}")
            return job.run(run, callbacks, say)

    @classmethod
    def resume(cls, name: str, store: RunStore, callbacks: Sequence[Callback], say: Say = print) -> dict | None:
        """Go on with an interrupted or failed run, by its id or the start of it. Raises RunError when it can't be."""
        run = store.open(name)
        if run.record["kind"] != cls.kind:
            raise RunError(
                f"{run.id} is a run of '{run.record['kind']}', not of {cls.kind}: resume it with its own command."
            )
        with run.resume():
            job = cls.load(cls.config_type.from_dict(run.config))
            job.introduce(say)
            say(f"Run {run.id}, continued")
            return job.run(run, callbacks, say)

    def run(self, run: Run, callbacks: Sequence[Callback] = (), say: Say = print) -> dict | None:
        """Train into `run` from where it stands; returns its results, or None after an interruption. Raises RunError
        when it stands on other data or weights than this job's."""
        recorder = Recorder(run)
        start = time.perf_counter()
        spent = float(run.record.get("seconds", 0.0))
        if run.has_checkpoint():
            self._check_same(run)
            self.model.restore(*run.load_checkpoint())

        def stop() -> None:
            self.model.stop_training = True

        go_on = f"Continue with: {self.command} --resume {run.id}"
        with on_interrupt(stop):
            if self.model.position.epoch < self.config.epochs:
                self.fit([recorder, *callbacks])
            seconds = spent + time.perf_counter() - start
            run.update(seconds=seconds)
            if self.model.position.epoch < self.config.epochs:
                recorder.save()
                run.close()
                say(f"Stopped at a step boundary and saved. {go_on}")
                return None
        try:
            return self.finish(run, seconds, say)
        except KeyboardInterrupt:
            say(f"Trained and saved, but not tested to the end. {go_on}")
            raise

    def _check_same(self, run: Run) -> None:
        now = self.describe()
        for what, keys in self.same.items():
            before = run.record[what]
            if differing := [key for key in keys if now[what][key] != before[key]]:
                key = differing[0]
                raise RunError(
                    f"{run.id} began with other {what}: {key} was {before[key]} and is now {now[what][key]}. It began "
                    f"with: {before['description']} Make that available again to go on, or start a new run."
                )
