"""Main memory of a process that trains all layers of the reversible MobileNet V2 1.0/224, batch 1, inverting."""

from __future__ import annotations

import numpy as np

from edgelearn.compile.memory.policies import invertible
from edgelearn.device import Device
from edgelearn.errors import RunError
from edgelearn.lab.measure import PeakMemory, Worker, WorkerError
from edgelearn.models import mobilenet_v2_reversible
from edgelearn.ops import SGD
from edgelearn.runtime.build import VARIABLE, folder
from edgelearn.train import Model

STEPS = 3


def footprint(device: Device) -> int:
    """Peak memory minus memory after the imports, in bytes, of a process whose kernels are compiled already and kept
    as binaries: the second of two. Raises RunError where one fails."""
    nbytes = 0
    kept = {VARIABLE: str(folder() or "")}
    for _ in range(2):
        try:
            with Worker("edgelearn.experiments.memory.footprint:Training", environment=kept) as worker:
                nbytes = worker.call("run", device.id)
        except WorkerError as error:
            raise RunError(f"A training in a process of its own failed: {error.reason or error}") from None
    return nbytes


class Training:
    """Runs in the worker process."""

    def __init__(self) -> None:
        import pyopencl  # noqa: F401  before memory is counted

        self.memory = PeakMemory()

    def run(self, device: str) -> int:
        rng = np.random.default_rng(0)
        model = Model(mobilenet_v2_reversible(), device=device)
        model.compile(SGD(0.001), batchnorm="batch", activation_memory=invertible)
        x = rng.uniform(-1, 1, (STEPS, *model.network.input_shape)).astype(np.float32)
        model.fit(x, np.arange(STEPS, dtype=np.int32), batch_size=1, verbose=0)
        return self.memory.over_imports
