"""A lane in a process of its own, so that its memory can be told from that of others.

    python -m edgelearn.experiments.memory.worker LANE NETWORK ALPHA EXAMPLES DEVICE

Writes a line of JSON once it is ready, and one for each line it reads: a number of steps in, their seconds out; or an
"error", once, where the lane can't be done."""

from __future__ import annotations

import json
import sys
import time

import numpy as np


def main(lane: str, network: str, alpha: str, examples: str, device: str) -> None:
    from edgelearn.errors import EdgelearnError
    from edgelearn.experiments.networks import named_network
    from edgelearn.lab.bench.machine import peak_resident_bytes

    from .plans import TORCH

    rng = np.random.default_rng(0)
    try:
        net = named_network(network, float(alpha))
        x = rng.uniform(-1, 1, (int(examples), *net.input_shape)).astype(np.float32)
        labels = rng.integers(0, net.output.shape[-1], int(examples)).astype(np.int32)
        if lane in TORCH:
            from . import torch_twin

            before = peak_resident_bytes()
            step, facts = torch_twin.prepare(net, x, labels, checkpointed=lane != TORCH[0]), {}
        else:
            from . import engine_lane

            before = peak_resident_bytes()
            step, facts = engine_lane.prepare(lane, net, x, labels, device)
        loss = step()
        step()
    except EdgelearnError as error:
        _say({"error": str(error)})
        return
    _say(facts | {"loss": loss, "process": peak_resident_bytes() - before})
    for line in sys.stdin:
        step()  # not counted: the lane before has left its data in the caches
        start = time.perf_counter()
        for _ in range(int(line)):
            step()
        _say({"seconds": (time.perf_counter() - start) / int(line), "process": peak_resident_bytes() - before})


def _say(found: dict) -> None:
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
