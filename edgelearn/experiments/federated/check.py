"""The same bits from every engine, whatever is killed: what the manual says of federations, on this machine."""

from __future__ import annotations

import hashlib
import multiprocessing
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import psutil

from edgelearn.display import plural
from edgelearn.errors import RunError
from edgelearn.experiments.claims import Claim, NotMeasured
from edgelearn.experiments.experiment import Log
from edgelearn.experiments.sweep import Job, find, train
from edgelearn.lab.runs import RunStore

from .experiment import FederatedConfig, FederatedKind

# Processes to kill, by engine, and the names of their programs; "lab" is the process that a user starts.
VICTIMS = {
    "local": {"lab": ""},
    "ray": {"lab": "", "server": "flwr-simulation"},
    "deployed": {
        "lab": "", "server": "flwr-serverapp", "superlink": "flower-superlink", "supernode": "flower-supernode",
        "client": "flwr-clientapp",
    },
}  # fmt: skip
_MOMENTS = 39  # separates this random stream from others of the same seed
_POLL_SECONDS = 0.05
_ATTEMPTS = 3  # to kill a run, and to resume it


class Federations:
    """Runs of a federation by several engines, undisturbed and killed. Each is made when a claim asks for it.

    Arguments:
    - `experiment`: FederatedExperiment or another kind; other processes import it.
    - `base`: the settings that all runs share.
    - `seeds`: seeds of the runs.
    - `folder`: folder of the runs, a store for each; runs that are there already are continued.
    - `log`: gets a line before each run.
    """

    def __init__(
        self, experiment: FederatedKind, base: FederatedConfig, seeds: Sequence[int], folder: Path, log: Log
    ) -> None:
        self.experiment, self.base, self.seeds, self.folder, self.log = experiment, base, seeds, folder, log
        self._whole: dict[tuple[str, int], tuple[str, float]] = {}  # digest and seconds
        self._moments = np.random.default_rng([base.seed, _MOMENTS])

    def whole(self, engine: str, seed: int) -> tuple[str, float]:
        """The digest of the weights of an undisturbed run, and its seconds."""
        if (engine, seed) not in self._whole:
            self.log(f"{engine}, seed {seed}")
            self._whole[engine, seed] = _whole(self._job(engine, seed, f"{engine}-{seed}"))
        return self._whole[engine, seed]

    def same(self, engine: str, seed: int) -> tuple[bool, str]:
        reference, found = self.whole("local", seed)[0], self.whole(engine, seed)[0]
        return found == reference, found[:16]

    def same_after_kill(self, number: int, engine: str, victim: str) -> tuple[bool, str]:
        """Kill a process at a random moment of a run. Decides nothing if three runs ended before, each time set to half
        of the moment."""
        seed = self.seeds[number % len(self.seeds)]
        moment = float(self._moments.uniform(0, self.whole(engine, self.seeds[0])[1]))
        self.log(f"kill {number + 1}: {engine}, {victim} after {moment:.1f} s, seed {seed}")
        found, what, hit = _killed_in_time(self._job(engine, seed, f"kill-{number}"), victim, moment)
        same = found == self.whole("local", seed)[0]
        if same and not hit:
            raise NotMeasured(f"{what}: {found[:16]}")
        return same, f"{what}: {found[:16]}"

    def _job(self, engine: str, seed: int, name: str) -> Job:
        return Job(self.experiment, replace(self.base, engine=engine, seed=seed), str(self.folder / name))


def claims(engines: Sequence[str], seeds: Sequence[int], kills: int) -> list[Claim[Federations]]:
    """A claim for each engine and seed, and for each of `kills` kills, dealt to the engines' processes in turn."""
    victims = [(engine, victim) for engine in engines for victim in VICTIMS[engine]]
    wholes = [
        Claim(f"{engine}, seed {seed}: the bits of local", partial(Federations.same, engine=engine, seed=seed))
        for seed in seeds for engine in engines
    ]  # fmt: skip
    dealt = [(number, *victims[number % len(victims)]) for number in range(kills if victims else 0)]
    return wholes + [
        Claim(
            f"{engine}, {victim} killed: the same bits",
            partial(Federations.same_after_kill, number=number, engine=engine, victim=victim),
        )
        for number, engine, victim in dealt
    ]


def _whole(job: Job) -> tuple[str, float]:
    """The digest of an undisturbed run's weights, and its seconds."""
    start = time.monotonic()
    outcome = train(job)
    if outcome.results is None:
        raise RunError(f"A run that nothing disturbed failed: {outcome.problem}")
    took = outcome.results["seconds"]
    return _digest(job), max(time.monotonic() - start, took)


def _killed_in_time(job: Job, victim: str, moment: float) -> tuple[str, str, bool]:
    """Call `_killed`. A run that ended before its kill is made again, and killed earlier."""
    outcome = _killed(job, victim, moment)
    for attempt in range(1, _ATTEMPTS):
        if outcome[2]:
            break
        outcome = _killed(replace(job, root=f"{job.root}-{attempt}"), victim, moment / 2**attempt)
    return outcome


def _killed(job: Job, victim: str, moment: float) -> tuple[str, str, bool]:
    """Kill a process of a run and resume the run. Return its digest, what happened, and True after a hit."""
    process = multiprocessing.get_context("spawn").Process(target=train, args=(job,))
    process.start()
    assert process.pid is not None
    program = VICTIMS[job.config.to_dict()["engine"]][victim]
    lab, start, hit = psutil.Process(process.pid), time.monotonic(), False
    try:
        while process.is_alive() and not hit:
            if time.monotonic() - start >= moment and (found := _process(lab, program)):
                with suppress(psutil.NoSuchProcess):
                    found.kill()
                    hit = True
            time.sleep(_POLL_SECONDS)
        process.join()
    finally:
        process.kill()  # still there only if the check is interrupted
        process.join()
    run = find(job)
    rounds = len(run.history()) if run else 0
    what = f"killed after {plural(rounds, 'round')}" if hit else "ended before the kill"
    problem = ""
    for _ in range(_ATTEMPTS):
        outcome = train(job)
        if outcome.results is not None:
            return _digest(job), what, hit
        problem = outcome.problem
    return "", f"{what}, then: {problem}", hit


def _process(lab: psutil.Process, program: str) -> psutil.Process | None:
    """The first process of a program below `lab`; `lab` itself for ""."""
    if not program:
        return lab
    with suppress(psutil.NoSuchProcess):
        for each in lab.children(recursive=True):
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                if any(Path(word).name == program for word in each.cmdline()[:4]):
                    return each
    return None


def _digest(job: Job) -> str:
    """SHA-256 of the tensors of the run's checkpoint: weights and the server optimizer's state."""
    run = find(job)
    assert run is not None
    digest = hashlib.sha256()
    for name, array in sorted(RunStore(job.root).open(run.id).load_checkpoint()[0].items()):
        digest.update(name.encode() + array.tobytes())
    return digest.hexdigest()
