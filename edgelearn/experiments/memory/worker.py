"""The worker process of one plan, whose memory is counted alone."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from edgelearn.graph import Network
from edgelearn.interop import find_network
from edgelearn.lab.measure import PeakMemory, sample

from .plans import TORCH


class PlanWorker:
    """A training step by one plan. Arguments as of `compare`; raises EdgelearnError where the plan can't be made."""

    def __init__(self, plan: str, network: str, alpha: float, examples: int, device: str) -> None:
        rng = np.random.default_rng(0)
        net = Network.from_json(network) if network.startswith("{") else find_network(network, alpha).network
        x = rng.uniform(-1, 1, (examples, *net.input_shape)).astype(np.float32)
        labels = rng.integers(0, net.output.shape[-1], examples).astype(np.int32)
        self.figures: dict[str, Any] = {}
        if plan in TORCH:
            from . import torch_plans

            self.memory = PeakMemory()
            self.step = torch_plans.prepare(net, x, labels, checkpointed=plan != TORCH[0])
        else:
            from . import engine_plans

            self.memory = PeakMemory()
            self.step, self.figures = engine_plans.prepare(plan, net, x, labels, device)
        self.figures["loss"] = self.step()
        self.step()

    def facts(self) -> dict[str, Any]:
        """Figures of the plan, loss of the first step, and the process's peak memory so far minus that after the
        imports."""
        return self.figures | {"process": self.memory.over_imports}

    def measure(self, steps: int) -> dict[str, Any]:
        """A sample of steps, after an untimed one."""
        return asdict(sample(self.step, steps=steps))
