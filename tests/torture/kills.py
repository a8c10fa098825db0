"""Kill trainings at random moments, a third of them in writes and renames, and continue them: the same bits as ever.

After every kill, the run must be listed as interrupted, and its checkpoint and history must be whole and no older than
they were. After some kills the training goes on to its end, and must end as one that nothing disturbed.
"""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Generator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

import numpy as np
from safetensors.numpy import load_file

from edgelearn.lab.runs import Run, RunStore

from .attacks import ROOT, Attack, Outcome, environment

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
IN_WRITES = "in writes and renames"
ROUND = 6  # kills before a training may end
SLACK = 4.0  # a process may take so many times as long as the undisturbed one, and START more
START = 30.0


@dataclass
class Whole:
    """An undisturbed training: its final tensors and history, its seconds, and its calls that change files."""

    tensors: dict[str, np.ndarray]
    history: list[dict]
    seconds: float
    calls: int


def attacks(options: Namespace) -> list[Attack]:
    """`options.kills` kills, spread over the JOBS."""
    return [Attack(f"kills: {name}", partial(steps, name, options.seed, options.kills // len(JOBS))) for name in JOBS]


def steps(name: str, seed: int, count: int, outcome: Outcome, deadline: float) -> Generator[None]:
    """Kill the job `name` `count` times: each training several times, and then let it end."""
    rng = Random(f"{name} {seed} {outcome.attacks}")
    with tempfile.TemporaryDirectory() as folder:
        try:
            whole = _undisturbed(name, Path(folder) / "whole") if outcome.attacks < count else None
            for number in itertools.count(1):
                if outcome.attacks >= count or whole is None:
                    break
                store, reached = RunStore(Path(folder) / str(number)), 0
                for _ in range(min(ROUND, count - outcome.attacks)):
                    in_writes = outcome.ends.get(IN_WRITES, 0) * 3 <= outcome.attacks
                    if not _killed(name, whole, store, rng, in_writes):
                        break
                    outcome.note(IN_WRITES if in_writes else "between them")
                    reached = check(store, reached)
                    yield
                _end(name, whole, store)
                outcome.ends["trainings ended"] = outcome.ends.get("trainings ended", 0) + 1
        except (AssertionError, subprocess.TimeoutExpired) as error:
            outcome.failures.append(f"after {outcome.attacks} kills: {error!s:.300}")


def _end(name: str, whole: Whole, store: RunStore) -> None:
    """Let a training end; it must end as one that nothing disturbed."""
    assert _start(name, store, 0, whole.seconds * SLACK + START)[0] in (0, None), "it could not be continued"
    (summary,) = store.list()
    ended = store.open(summary.id)
    assert same_bits(tensors_of(ended), whole.tensors) and history(ended) == whole.history, "it ended with other bits"


def _killed(name: str, whole: Whole, store: RunStore, rng: Random, in_writes: bool) -> bool:
    """Start or continue the training, and kill it; False if it came to its end before."""
    limit = whole.seconds * SLACK + START
    if in_writes:
        status, errors = _start(name, store, rng.randint(1, max(1, whole.calls)), limit)
    else:
        status, errors = _start(name, store, 0, limit, after=rng.uniform(0.05, 0.95) * whole.seconds)
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
