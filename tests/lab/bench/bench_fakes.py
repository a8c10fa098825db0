"""Contenders with known behavior, run in real worker processes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import numpy as np

from edgelearn.errors import PlanError
from edgelearn.lab.bench.workloads import Workload

MILLISECONDS = {"slow": 40, "fast": 4}


class Sleeper:
    """Steps of known length that all return the same numbers."""

    name = "sleeper"

    def __init__(self, cores: int, device: str) -> None:
        self.cores = cores

    def variants(self, workload: Workload) -> list[str]:
        return list(MILLISECONDS)

    def prepare(self, workload: Workload, variant: str) -> Callable[[], np.ndarray]:
        def step() -> np.ndarray:
            time.sleep(MILLISECONDS[variant] / 1000)
            return np.array([float(workload.batch), float(self.cores), 0.5])

        return step


class Steady(Sleeper):
    """One variant, as fast as the fast one of Sleeper."""

    name = "steady"

    def variants(self, workload: Workload) -> list[str]:
        return [""]

    def prepare(self, workload: Workload, variant: str) -> Callable[[], np.ndarray]:
        return super().prepare(workload, "fast")


class Liar(Steady):
    """Fast, by computing something else."""

    name = "liar"

    def prepare(self, workload: Workload, variant: str) -> Callable[[], np.ndarray]:
        return lambda: np.zeros(3)


class Troubled:
    """A variant for every way to fail; `hangs`, which takes patience, is for those who ask for it by name."""

    name = "troubled"

    def __init__(self, cores: int, device: str) -> None:
        self.steps = 0

    def variants(self, workload: Workload) -> list[str]:
        return ["raises", "dies", "dies later", "nan"]

    def prepare(self, workload: Workload, variant: str) -> Callable[[], float]:
        def step() -> float:
            self.steps += 1
            time.sleep(0.02)
            if variant == "dies" or (variant == "dies later" and self.steps > 7):
                os.write(2, b"out of luck\n")
                os.abort()
            if variant == "hangs":
                time.sleep(60)
            return float("nan") if variant == "nan" else 1.0

        if variant == "raises":
            raise RuntimeError("no such step")
        return step


class Typed(Steady):
    """Float32 and bf16, which is twice as fast and rounds."""

    name = "typed"

    def variants(self, workload: Workload) -> list[str]:
        return ["graph"] if workload.compute in ("fp32", "bf16") else []

    def prepare(self, workload: Workload, variant: str) -> Callable[[], np.ndarray]:
        step = super().prepare(workload, variant)
        return (lambda: step() * 1.02) if workload.compute == "bf16" else step


class Integers(Steady):
    """All types; refuses tf32."""

    name = "integers"

    def prepare(self, workload: Workload, variant: str) -> Callable[[], np.ndarray]:
        if workload.compute == "tf32":
            raise PlanError("no unit")
        return super().prepare(workload, variant)


class Glutton:
    """Fills 100 MiB in its first step; its variant tells what the environment says."""

    name = "glutton"

    def __init__(self, cores: int, device: str) -> None:
        self.hoard: list[np.ndarray] = []

    def variants(self, workload: Workload) -> list[str]:
        return ["greedy"]

    def prepare(self, workload: Workload, variant: str) -> Callable[[], float]:
        def step() -> float:
            if not self.hoard:
                self.hoard.append(np.ones(100 * 2**20 // 8))
            return float(os.environ["FAKE_NUMBER"])

        return step
