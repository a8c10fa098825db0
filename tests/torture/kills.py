"""Kill trainings at random moments, a third of them in writes and renames, and continue them: the same bits as ever.

After every kill, the run must be listed as interrupted, and its checkpoint and history must be whole and no older than
they were. After some kills the training goes on to its end, and must end as one that nothing disturbed.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
from safetensors.numpy import load_file

from edgelearn.lab.runs import Run, RunStore

from .attacks import ROOT, Outcome, environment

SCRIPT = Path(__file__).with_name("killed_command.py")
JOBS = {
    "flowers": ("flowers", "--sample", "--no-download", "--epochs", "3"),
    "precision": ("precision", "train", "sample", "--no-download", "--epochs", "2"),
    "memory": ("memory", "train", "sample", "--no-download", "--epochs", "2"),
    "keywords": ("keywords", "train", "sample", "--epochs", "2", "--episodes", "2"),
    "federated": ("federated", "run", "sample", "--rounds", "3", "--clients", "4", "--compress", "topk:0.1",
                  "--compress-down", "int8"),
}  # fmt: skip
TIMES = ("seconds", "up_bytes")
ROUND = 6  # kills before a training may end
SLACK = 4.0  # a process may take so many times as long as the undisturbed one, and START more
START = 30.0


@dataclass
class Killed(Outcome):
    """Kills of one job, of these `in_writes`; `finished` trainings came to their end after kills."""

    in_writes: int = 0
    finished: int = 0


@dataclass
class Whole:
    """An undisturbed training: its final tensors and history, its seconds, and its calls that change files."""

    tensors: dict[str, np.ndarray]
    history: list[dict]
    seconds: float
    calls: int


def run(name: str, seed: int, kills: int, deadline: float, outcome: Killed | None = None) -> Killed:
    """Kill the job `kills` times, or until the clock `time.monotonic()` reaches `deadline`. `outcome`: what an earlier
    run came to; this one adds to it."""
    outcome = outcome or Killed(name)
    if outcome.attacks >= kills:
        return outcome
    rng = Random(f"{name} {seed} {outcome.attacks}")
    with tempfile.TemporaryDirectory() as folder:
        try:
            whole = _undisturbed(name, Path(folder) / "whole")
            number = 0
            while outcome.attacks < kills and time.monotonic() < deadline:
                number += 1
                _round(outcome, whole, Path(folder) / str(number), rng, kills, deadline)
        except (AssertionError, subprocess.TimeoutExpired) as error:
            outcome.failures.append(f"after {outcome.attacks} kills: {error!s:.300}")
    return outcome


def _round(outcome: Killed, whole: Whole, root: Path, rng: Random, kills: int, deadline: float) -> None:
    """Kill one training several times, then let it end, if there is time."""
    store, reached = RunStore(root), 0
    for _ in range(ROUND):
        if outcome.attacks >= kills or time.monotonic() > deadline:
            break
        in_writes = outcome.in_writes * 3 <= outcome.attacks
        if not _killed(outcome, whole, store, rng, in_writes):
            break
        outcome.attacks, outcome.in_writes = outcome.attacks + 1, outcome.in_writes + in_writes
        reached = check(store, reached)
    if time.monotonic() > deadline:
        return
    if _start(outcome.name, store, 0, whole.seconds * SLACK + START)[0] not in (0, None):
        outcome.failures.append(f"after {outcome.attacks} kills: it could not be continued")
        return
    (summary,) = store.list()
    ended = store.open(summary.id)
    tensors = tensors_of(ended)
    assert same_bits(tensors, whole.tensors) and history(ended) == whole.history, "it ended with other bits"
    outcome.finished += 1


def _killed(outcome: Killed, whole: Whole, store: RunStore, rng: Random, in_writes: bool) -> bool:
    """Start or continue the training, and kill it; False if it came to its end before."""
    limit = whole.seconds * SLACK + START
    if in_writes:
        status, errors = _start(outcome.name, store, rng.randint(1, max(1, whole.calls)), limit)
    else:
        status, errors = _start(outcome.name, store, 0, limit, after=rng.uniform(0.05, 0.95) * whole.seconds)
    if status is None:  # the kill before came behind the last write
        return False
    assert "Traceback" not in errors, errors[-600:]
    assert status in (0, -signal.SIGKILL), f"exit status {status}: {errors[-300:]}"
    return status != 0


def _start(name: str, store: RunStore, call: int, limit: float, after: float | None = None) -> tuple[int | None, str]:
    """Run the command, new or with --resume, until its end or `after` seconds; (exit status, stderr). None: there is
    nothing to resume."""
    known = store.list()
    if known and known[0].status == "finished":
        return None, ""
    arguments = (*_command(name), "--resume") if known else JOBS[name]
    command = [sys.executable, str(SCRIPT), str(call), *arguments, "--runs", str(store.root)]
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors, cwd=ROOT, env=environment())
        try:
            process.wait(limit if after is None else after)
        except subprocess.TimeoutExpired:
            if after is None:
                raise
        finally:
            process.kill()
            process.wait()
        errors.seek(0)
        return process.returncode, errors.read()


def _command(name: str) -> tuple[str, ...]:
    """The words before the first option or task."""
    return JOBS[name][:1] if name == "flowers" else JOBS[name][:2]


def check(store: RunStore, reached: int) -> int:
    """All is whole and nothing is lost. Returns the number of updates that are saved."""
    listed = store.list()
    assert len(listed) <= 1, f"{len(listed)} runs of one training"
    if not listed:
        return 0
    assert listed[0].status in ("interrupted", "finished"), listed[0]
    return check_run(store.open(listed[0].id), reached)


def check_run(run: Run, reached: int = 0) -> int:
    """As `check`, of one run."""
    epochs = [row["epoch"] for row in run.history()]
    assert epochs == list(range(1, len(epochs) + 1)), epochs
    if not run.has_checkpoint():
        assert reached == 0, "the checkpoint is gone"
        return 0
    _, state = run.load_checkpoint()
    epoch = state["round"] if "round" in state else state["epoch"]
    saved = state.get("updates", epoch)
    assert saved >= reached, f"{saved} updates are saved, and {reached} were"
    assert len(epochs) - epoch in (0, 1), (epochs, state)
    return saved


def _undisturbed(name: str, root: Path) -> Whole:
    store = RunStore(root)
    _start(name, store, 0, 600)  # compiles what isn't in the cache
    store, start = RunStore(root / "again"), time.monotonic()
    status, errors = _start(name, store, 0, 600)
    assert status == 0, f"undisturbed, it ends with {status}: {errors[-300:]}"
    (summary,) = store.list()
    ended = store.open(summary.id)
    return Whole(tensors_of(ended), history(ended), time.monotonic() - start, int(errors.split()[-1]))


def same_bits(tensors: dict[str, np.ndarray], others: dict[str, np.ndarray]) -> bool:
    """True if both have the same names and values."""
    return tensors.keys() == others.keys() and all(np.array_equal(tensors[name], others[name]) for name in tensors)


def tensors_of(run: Run) -> dict[str, np.ndarray]:
    """The final tensors of a run."""
    (path,) = (path for name in ("model", "weights") if (path := run.folder / f"{name}.safetensors").exists())
    return load_file(path)


def history(run: Run) -> list[dict]:
    """Without seconds, and the bytes of messages that tell them."""
    return [{name: value for name, value in row.items() if name not in TIMES} for row in run.history()]
