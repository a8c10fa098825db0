"""Full disks and homes that can't be written: an explained error or a detour, no traceback, and nothing lost.

A full disk is a small file system in memory, mounted in a name space of its own; this needs Linux and `unshare`.

    python -m tests.torture.disks FOLDER BYTES JOB [RUNS]    mount BYTES on FOLDER, and run a job (inside of `unshare`)
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections.abc import Generator
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import product
from pathlib import Path

from edgelearn.lab.runs import RunStore

from . import kills
from .attacks import ROOT, Attack, Outcome, environment

LEVELS = (4 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 48 << 20, 96 << 20)  # bytes
ROUNDS = tuple(size << 10 for size in (96, 160, 224, 288, 352, 416, 512, 640))  # a federation's run has 590 kB
ROOM = 256 << 20
LONGEST = 240.0  # seconds of a job, with all that it compiles
CLI = (sys.executable, "-m", "edgelearn.cli")
TINY = """
import numpy as np, edgelearn as el
from edgelearn.ops import Dense
network = el.Network("tiny", (4,))
network.add("dense", Dense(2))
model = el.Model(network).compile(el.SGD(0.1))
print(model.train_on_batch(np.ones((4, 4), np.float32), np.zeros(4, int)))
"""
TRAIN = ("flowers", "--sample", "--no-download", "--epochs", "2")


@dataclass(frozen=True)
class Job:
    """A command that meets a full disk at `folder`.

    Arguments:
    - `command`: what is run; "{}" is the folder.
    - `variables`: of the environment; "{}" is the folder.
    - `levels`: bytes of the disks.
    - `resume`: continues the run when there is room again, and it must end with the bits of one that nothing disturbed.
    """

    command: tuple[str, ...]
    variables: dict[str, str] = field(default_factory=dict)
    levels: tuple[int, ...] = LEVELS
    resume: tuple[str, ...] = ()


JOBS = {
    "runs": Job((*CLI, *TRAIN, "--runs", "{}/runs")),
    "caches": Job((sys.executable, "-c", TINY), {
        "HOME": "{}", "XDG_CACHE_HOME": "{}/cache", "XDG_DATA_HOME": "{}/data", "POCL_CACHE_DIR": "{}/pocl",
        "TMPDIR": "{}",
    }),
    "pages": Job((*CLI, *TRAIN, "--runs", "{}/../runs", "--cache-folder", "{}")),
    "temporary files": Job((*CLI, *TRAIN, "--runs", "{}/../runs"), {"TMPDIR": "{}"}),
    "rounds of a federation": Job(
        (*CLI, *kills.JOBS["federated"], "--runs", "{}/runs"), levels=ROUNDS,
        resume=(*CLI, "federated", "run", "--resume", "--runs", "{}/runs"),
    ),
}  # fmt: skip
HOMES = {"a file": "{}/file", "no folder": "/nonexistent/home", "of the kernel": "/proc"}


@cache
def unshare() -> tuple[str, ...]:
    """The command that gives a process mounts of its own; empty where that isn't allowed."""
    own = () if hasattr(os, "getuid") and os.getuid() == 0 else ("--user", "--map-root-user")
    command = ("unshare", *own, "--mount")
    with tempfile.TemporaryDirectory() as folder:
        try:
            subprocess.run((*command, "mount", "-t", "tmpfs", "tmpfs", folder), check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            return ()
    return command


def attacks(options: Namespace) -> list[Attack]:
    """Homes that can't be written, and each of the JOBS at every size of disk."""
    left_out = "" if unshare() else "small file systems can't be mounted here (unshare)"
    full = [Attack(f"full disk: {name}", partial(steps, name, JOBS[name].levels), left_out) for name in JOBS]
    return [Attack("home that can't be written", home_steps), *full]


def steps(name: str, levels: tuple[int, ...], outcome: Outcome, deadline: float) -> Generator[None]:
    """Run the job `name` of JOBS on disks of these sizes in bytes."""
    inside = (*unshare(), sys.executable, "-m", "tests.torture.disks")
    with tempfile.TemporaryDirectory() as whole:
        levels = levels[outcome.attacks :]
        if levels and JOBS[name].resume:
            _report(_filled(JOBS[name].command, whole), {})
        for level in levels:
            with tempfile.TemporaryDirectory() as folder:
                command = (*inside, str(Path(folder, "full")), str(level), name, str(Path(whole, "runs")))
                done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True)
            _note(outcome, f"{level:,} bytes", json.loads(done.stdout) if done.returncode == 0 else done.stderr[-300:])
            yield


def home_steps(outcome: Outcome, deadline: float) -> Generator[None]:
    """Train and check the installation with a home folder that can't be written."""
    attacks = list(product(HOMES, ((sys.executable, "-c", TINY), (*CLI, "doctor"))))
    for what, command in attacks[outcome.attacks :]:
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "file").touch()
            report = _report(command, {"HOME": HOMES[what].format(folder), "TMPDIR": folder}, without_caches=True)
        _note(outcome, f"{what}, {command[-1][:10].strip()}", report)
        yield


def _note(outcome: Outcome, what: str, report: dict | str) -> None:
    if isinstance(report, dict) and report["status"] in (0, 1) and not report["problem"]:
        outcome.note("with errors that explain" if report["status"] else "went well")
    else:
        problem = report if isinstance(report, str) else report["problem"] or report
        outcome.note("that broke it", f"{what}: {problem}")


def _report(command: tuple[str, ...], variables: dict[str, str], without_caches: bool = False) -> dict:
    own = environment(**variables)
    if without_caches:
        for variable in ("XDG_CACHE_HOME", "XDG_DATA_HOME", "POCL_CACHE_DIR", "EDGELEARN_PROGRAMS", "EDGELEARN_TUNED"):
            own.pop(variable, None)
    try:
        done = subprocess.run(command, cwd=ROOT, env=own, capture_output=True, text=True, timeout=LONGEST)
    except subprocess.TimeoutExpired:
        return {"status": None, "problem": f"it still ran after {LONGEST:.0f} s"}
    said = done.stdout + done.stderr
    problem = said[said.index("Traceback") :][-400:] if "Traceback" in said else ""
    if done.returncode not in (0, 1):
        problem = f"exit status {done.returncode}: {said[-300:]}"
    return {"status": done.returncode, "problem": problem}


def _filled(parts: tuple[str, ...], folder: str) -> tuple[str, ...]:
    return tuple(part.replace("{}", folder) for part in parts)


def _continued(job: Job, folder: str, whole: RunStore) -> str:
    """Make room and continue the job's run, if it has begun one. Returns what is wrong with how that ends."""
    subprocess.run(("mount", "-o", f"remount,size={ROOM}", folder), check=True)
    store = RunStore(Path(folder) / "runs")
    begun = [summary for summary in store.list() if summary.kind != "kept"]
    if not begun:
        return ""
    try:
        kills.check_run(store.open(begun[0].id))
        if problem := (report := _report(_filled(job.resume, folder), {}))["problem"] or report["status"]:
            return f" It can't be continued: {problem}"
        expected, ended = whole.open(whole.list()[0].id), store.open(begun[0].id)
        assert kills.same_bits(kills.tensors_of(ended), kills.tensors_of(expected)), "other bits"
        assert kills.history(ended) == kills.history(expected), "another history"
    except Exception as error:
        return f" Continued: {error!r:.300}"
    return ""


def main(folder: str, size: int, name: str, whole: str = "") -> None:
    """Inside of the name space: mount, keep a run, fill up, run the job, and look whether all is there. `whole`: the
    runs of the same job with room enough."""
    Path(folder).mkdir()
    subprocess.run(("mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder), check=True)
    job, kept = JOBS[name], None
    try:
        with RunStore(Path(folder) / "runs").create("kept", {"seed": 1}) as kept:
            kept.finish({"correct": 1, "total": 2})
        before = (kept.folder / "run.json").read_bytes()
    except Exception:  # no room for even that
        kept, before = None, b""
        shutil.rmtree(Path(folder) / "runs", ignore_errors=True)
    own = {variable: value.replace("{}", folder) for variable, value in job.variables.items()}
    report = _report(_filled(job.command, folder), own)
    if kept and (kept.folder / "run.json").read_bytes() != before:
        report["problem"] += " A run that was there before is damaged."
    if any(summary.status == "damaged" for summary in RunStore(Path(folder) / "runs").list()):
        report["problem"] += " There is a damaged run."
    if report["status"] == 1 and job.resume:
        report["problem"] += _continued(job, folder, RunStore(Path(whole)))
    print(json.dumps(report))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
