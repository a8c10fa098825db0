"""Contenders with known behavior, run in real worker processes."""

import os
import time

import numpy as np

from edgelearn.errors import PlanError

MILLISECONDS = {"slow": 40, "fast": 4}


class Sleeper:
    """Steps of known length that all return the same numbers."""

    def __init__(self, cores, device):
        self.cores = cores

    def variants(self, workload):
        return list(MILLISECONDS)

    def prepare(self, workload, variant):
        def step():
            time.sleep(MILLISECONDS[variant] / 1000)
            return np.array([float(workload.batch), float(self.cores), 0.5])

        return step


class Steady(Sleeper):
    """One variant, as fast as the fast one of Sleeper."""

    def variants(self, workload):
        return [""]

    def prepare(self, workload, variant):
        return super().prepare(workload, "fast")


class Liar(Steady):
    """Fast, by computing something else."""

    def prepare(self, workload, variant):
        return lambda: np.zeros(3)


class Typed(Steady):
    """Float32 and bf16, which is twice as fast and rounds."""

    def variants(self, workload):
        return ["graph"] if workload.compute in ("fp32", "bf16") else []

    def prepare(self, workload, variant):
        step = super().prepare(workload, variant)
        return (lambda: step() * 1.02) if workload.compute == "bf16" else step


class Integers(Steady):
    """All types; refuses tf32."""

    def prepare(self, workload, variant):
        if workload.compute == "tf32":
            raise PlanError("no unit")
        return super().prepare(workload, variant)


class Troubled(Sleeper):
    """A variant for every way to fail."""

    def variants(self, workload):
        return ["raises", "dies", "dies later", "nan"]

    def prepare(self, workload, variant):
        steps = []

        def step():
            steps.append(time.sleep(0.02))
            if variant == "dies" or (variant == "dies later" and len(steps) > 7):
                os.write(2, b"out of luck\n")
                os.abort()
            return float("nan") if variant == "nan" else 1.0

        if variant == "raises":
            raise RuntimeError("no such step")
        return step


class Glutton(Sleeper):
    """Fills 100 MiB in its first step; its variant tells what the environment says."""

    def variants(self, workload):
        return ["greedy"]

    def prepare(self, workload, variant):
        hoard = []

        def step():
            if not hoard:
                hoard.append(np.ones(100 * 2**20 // 8))
            return float(os.environ["FAKE_NUMBER"])

        return step
