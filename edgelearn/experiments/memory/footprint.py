"""What a process takes that trains all layers of MobileNet V2 1.0/224: the reversible network, which inverts, batch 1.

    python -m edgelearn.experiments.memory.footprint DEVICE

Writes the bytes of main memory that it has held at most over those after its imports."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pyopencl  # noqa: F401 -- before memory is counted

from edgelearn.compile.memory.policies import invertible
from edgelearn.device import Device
from edgelearn.errors import RunError
from edgelearn.lab.bench.machine import peak_resident_bytes, resident_bytes
from edgelearn.models import mobilenet_v2_reversible
from edgelearn.ops import SGD
from edgelearn.train import Model

STEPS = 3


def footprint(device: Device) -> int:
    """Bytes of a process whose kernels are compiled already: the second of two. Raises RunError where one fails."""
    command = [sys.executable, "-m", "edgelearn.experiments.memory.footprint", device.id]
    for _ in range(2):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RunError(f"A training in a process of its own failed: {done.stderr.strip().splitlines()[-1]}")
    return int(done.stdout)


def main(device: str) -> None:
    before = resident_bytes()
    rng = np.random.default_rng(0)
    model = Model(mobilenet_v2_reversible(), device=device)
    model.compile(SGD(0.001), batchnorm="batch", activation_memory=invertible)
    x = rng.uniform(-1, 1, (STEPS, *model.network.input_shape)).astype(np.float32)
    model.fit(x, np.arange(STEPS, dtype=np.int32), batch_size=1)
    print(peak_resident_bytes() - before)


if __name__ == "__main__":
    main(*sys.argv[1:])
