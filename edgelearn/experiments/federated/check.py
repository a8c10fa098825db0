"""The same bits from every engine, whatever is killed: what the manual says of federations, on this machine."""

from __future__ import annotations

import hashlib
import multiprocessing
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil

from edgelearn.errors import RunError
from edgelearn.experiments.claims import Claim
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


def check(
    experiment: FederatedKind, base: FederatedConfig, engines: Sequence[str], seeds: Sequence[int], kills: int,
    folder: Path, log: Log,
) -> Iterator[Claim]:  # fmt: skip
    """Yield a claim for each engine and seed, and for each kill: the weights are those of an undisturbed local run.

    Arguments:
    - `experiment`: FederatedExperiment or another kind; other processes import it.
    - `base`: the settings that all runs share.
    - `engines`: the engines.
    - `seeds`: seeds of the runs.
    - `kills`: number of kills, dealt to the engines' processes in turn, at random moments of a run. A claim isn't
      measured if three runs ended before their kills, each time set to half of the moment.
    - `folder`: folder of the runs, a store for each; runs that are there already are continued.
    - `log`: gets a line before each run.
    """
    references, seconds = {}, {}
    for seed in seeds:
        for engine in dict.fromkeys(("local", *engines)):
            log(f"{engine}, seed {seed}")
            job = Job(experiment, replace(base, engine=engine, seed=seed), str(folder / f"{engine}-{seed}"))
            found, took = _whole(job)
            reference = references.setdefault(seed, found)
            seconds.setdefault(engine, took)
            if engine in engines:
                yield Claim(f"{engine}, seed {seed}: the bits of local", found[:16], found == reference)
    victims = [(engine, victim) for engine in engines for victim in VICTIMS[engine]]
    rng = np.random.default_rng([base.seed, _MOMENTS])
    for number in range(kills if victims else 0):
        engine, victim = victims[number % len(victims)]
        seed, moment = seeds[number % len(seeds)], float(rng.uniform(0, seconds[engine]))
        log(f"kill {number + 1} of {kills}: {engine}, {victim} after {moment:.1f} s, seed {seed}")
        job = Job(experiment, replace(base, engine=engine, seed=seed), str(folder / f"kill-{number}"))
        found, what, hit = _killed_in_time(job, victim, moment)
        same = found == references[seed]
        passed = None if same and not hit else same
        yield Claim(f"{engine}, {victim} killed: the same bits", f"{what}: {found[:16]}", passed)


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
    what = f"killed after {rounds} rounds" if hit else "ended before the kill"
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
