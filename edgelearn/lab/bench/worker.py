"""The worker process of a contender: prepare a step, time it, read its memory."""

from __future__ import annotations

import importlib
import math
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, cast

import numpy as np

from edgelearn.lab.measure import PeakMemory, sample
from edgelearn.lab.measure.memory import peak_resident_bytes, release_free_memory, restart_peak

from .workloads import Workload

PROBED_STEPS = 3
PROBED_NUMBERS = 4


class BenchWorker:
    """A contender, given as "module:Class", and the step it was asked to prepare.

    Arguments:
    - `cores`: how many processor cores it may use.
    - `device`: id of the OpenCL device.
    """

    def __init__(self, target: str, cores: int, device: str) -> None:
        module, _, name = target.partition(":")
        self.contender = getattr(importlib.import_module(module), name)(cores, device)
        self.peak = PeakMemory()
        self.start_peak = 0
        self.peak_restarted = False
        self.step: Callable[[], Any] | None = None

    def variants(self, workload: dict[str, Any]) -> list[str]:
        return self.contender.variants(Workload(**workload))

    def prepare(self, workload: dict[str, Any], variant: str) -> dict[str, Any]:
        """Make the step and run it a few times; the numbers it computes are the probe. The peak of memory restarts
        then, so that compilers and the arrays that numbers were drawn in don't count."""
        begin = time.perf_counter()
        step = self.step = self.contender.prepare(Workload(**workload), variant)
        probe = _numbers(step())
        first_step_seconds = time.perf_counter() - begin
        for _ in range(PROBED_STEPS - 1):
            probe += _numbers(step())
        release_free_memory()
        self.start_peak = peak_resident_bytes()
        self.peak_restarted = restart_peak()
        return {"first_step_seconds": first_step_seconds, "probe": probe}

    def measure(self, seconds: float, steps: int) -> dict[str, Any]:
        """A sample of steps; see `measure.sample`. Raises ArithmeticError if the last one isn't finite."""
        results: list[Any] = [None]

        def step() -> None:
            assert self.step is not None
            results[0] = self.step()

        taken = sample(step, seconds, steps)
        _numbers(results[0])
        return asdict(taken)

    def memory(self) -> dict[str, int | None]:
        peak = peak_resident_bytes() if self.peak_restarted else None
        return {"after_imports": self.peak.after_imports, "start": self.start_peak, "peak": peak}


def _numbers(result: Any) -> list[float]:
    """Numbers by which contenders are compared: those that the result gives if it is a function, else its first few.
    Raises ArithmeticError unless they are finite."""
    numbers: list[float]
    if callable(result):
        numbers = cast("Callable[[], list[float]]", result)()
    else:
        numbers = [] if result is None else [float(x) for x in np.ravel(np.asarray(result))[:PROBED_NUMBERS]]
    if not all(map(math.isfinite, numbers)):
        raise ArithmeticError(f"The step computes NaN or infinity: {numbers}")
    return numbers
