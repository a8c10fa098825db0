"""Steps of one network in many lanes, each in a process of its own, taking turns."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np

from edgelearn.errors import RunError

from .plans import LANES, TORCH


@dataclass(frozen=True)
class Measured:
    """A lane: bytes `stored`, `paged` out of the device, at their `peak`, `planned` and `allocated` in all (None of
    PyTorch, which counts none of them), `process` bytes over those after the imports; `seconds` of a step, an array of
    rounds, beside those `predicted`, from costs of launches of which a share was measured; `loss` of the first
    step."""

    lane: str
    seconds: np.ndarray
    process: int
    loss: float
    stored: int | None = None
    peak: int | None = None
    planned: int | None = None
    allocated: int | None = None
    predicted: float | None = None
    measured_costs: float | None = None
    network: str = ""
    device: str = ""
    paged: int | None = None

    @property
    def median(self) -> float:
        return float(np.median(self.seconds))


def compare(
    network: str = "mobilenet_v2", lanes: Sequence[str] = (), examples: int = 1, rounds: int = 9, steps: int = 2,
    alpha: float = 1.0, device: str = "", progress: Callable[[str], None] = lambda text: None,
) -> list[Measured]:  # fmt: skip
    """Train `network` (a name in edgelearn.models) on drawn pictures with BatchNorm's batch statistics, in each round
    `steps` steps in every lane. Without `lanes` all that can be done, PyTorch's where it is installed; `progress` is
    told which can't. Raises RunError where a lane can't be done or its process fails, with what it said."""
    if rounds < 1:
        raise RunError(f"Steps are measured in 1 or more rounds, not {rounds}.")
    asked = list(lanes)
    with ExitStack() as stack:
        workers = {}
        for lane in asked or [lane for lane in LANES if lane not in TORCH or find_spec("torch")]:
            progress(f"preparing {lane}")
            try:
                workers[lane] = stack.enter_context(_Worker(lane, network, alpha, examples, device))
            except LaneError as error:
                if asked:
                    raise
                progress(f"left out: {error}")
        lanes = list(workers)
        seconds: dict[str, list[float]] = {lane: [] for lane in lanes}
        for turn in range(rounds):
            progress(f"round {turn + 1} of {rounds}")
            for lane in lanes[turn % len(lanes) :] + lanes[: turn % len(lanes)]:
                seconds[lane].append(workers[lane].ask(steps)["seconds"])
        return [Measured(lane, np.array(seconds[lane]), **worker.facts) for lane, worker in workers.items()]


class LaneError(RunError):
    """A lane that can't be done with this network or on this device."""


class _Worker:
    def __init__(self, lane: str, network: str, alpha: float, examples: int, device: str) -> None:
        words = [lane, network, str(alpha), str(examples), device]
        command = [sys.executable, "-m", "edgelearn.experiments.memory.worker", *words]
        self.lane, self.process = lane, subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )  # fmt: skip
        self.facts = self._answer()

    def __enter__(self) -> _Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.communicate()

    def ask(self, steps: int) -> dict:
        with suppress(BrokenPipeError):  # it has died: what it said is in the answer
            self.process.stdin.write(f"{steps}\n")
            self.process.stdin.flush()
        found = self._answer()
        self.facts["process"] = found["process"]
        return found

    def _answer(self) -> dict:
        line = self.process.stdout.readline()
        if not line:
            said = self.process.communicate()[1].strip().splitlines()
            raise RunError(f"The lane '{self.lane}' stopped: {said[-1] if said else 'without a word'}")
        found = json.loads(line)
        if "error" in found:
            self.process.communicate()
            raise LaneError(f"The lane '{self.lane}' can't be done: {found['error']}")
        return found
