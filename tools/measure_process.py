"""Measure the growth of processes by Model.fit against the prediction of the plan: docs/results/memory.md.

Each row is measured in a process of its own, the second of two, so that kernels are in the driver's cache.

    python tools/measure_process.py          # all rows
    python tools/measure_process.py --row 3  # one, in this process: JSON
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys

import numpy as np

import edgelearn as el
from edgelearn.compile import policies
from edgelearn.interop import find_network
from edgelearn.lab.measure import peak_resident_bytes, release_free_memory, resident_bytes, restart_peak
from edgelearn.ops import Dense, ReLU

ROWS = (  # network, policy or budget, mini-batch, micro-batch, layers to train ("" for all)
    ("dense", "keep_all", 32, 32, ""),
    ("dense", "keep_all", 512, 512, ""),
    ("mobilenet_v2_cifar", "keep_all", 1, 1, ""),
    ("mobilenet_v2_cifar", "checkpoints", 1, 1, ""),
    ("mobilenet_v2_cifar", "keep_all", 32, 8, ""),
    ("mobilenet_v2_cifar", "checkpoints", 32, 8, ""),
    ("mobilenet_v2_cifar", "3 MB stored", 8, 8, ""),
    ("resnet18_cifar", "keep_all", 8, 8, ""),
    ("resnet18_cifar", "checkpoints", 16, 4, ""),
    ("ds_cnn", "keep_all", 32, 32, ""),
    ("ds_cnn", "keep_all", 32, 8, ""),
    ("mobilenet_v1", "keep_all", 1, 1, ""),
    ("mobilenet_v1", "keep_all", 8, 8, "dense"),
    ("mobilenet_v1", "keep_all", 32, 8, "dense"),
    ("resnet18_cifar", "keep_all", 8, 8, "predictions"),
    ("bcresnet", "keep_all", 16, 16, ""),
)


def dense(*units: int) -> el.Network:
    network = el.Network("dense", units[:1])
    for number, count in enumerate(units[1:-1]):
        network.add(f"dense_{number}", Dense(count))
        network.add(f"relu_{number}", ReLU())
    network.add("output", Dense(units[-1]))
    return network


def open_driver() -> el.Model:
    """A model of one small layer, trained, which keeps the driver open."""
    model = el.Model(dense(8, 4), seed=0)
    model.compile(el.SGD(0.01))
    model.fit(np.zeros((2, 8), np.float32), np.zeros(2, np.int32), batch_size=1, verbose=0)
    return model


def growth(name: str, way: str, batch: int, micro: int, trained: str) -> dict[str, int]:
    """Bytes by which this process grows in a training of two steps, and those planned and predicted."""
    opened = open_driver()
    network = dense(784, 512, 256, 10) if name == "dense" else find_network(name).network
    if trained:
        network.freeze()
        network.unfreeze(trained)
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (2 * batch, *network.input_shape)).astype(np.float32)
    y = rng.integers(0, network.output.shape[-1], 2 * batch).astype(np.int32)
    gc.collect()
    release_free_memory()
    before = resident_bytes()
    if not restart_peak():
        raise SystemExit("This system can't restart the peak of a process: see proc(5), clear_refs.")
    model = el.Model(network, seed=0)
    policy = getattr(policies, way, None)
    batchnorm = "auto" if trained or name == "dense" else "batch"
    model.compile(el.SGD(0.01), batchnorm=batchnorm, activation_memory=policy)
    budget = None if policy else way
    model.fit(x, y, batch_size=batch, micro_batch=micro, epochs=1, budget=budget, verbose=0)
    grew = peak_resident_bytes() - before
    plan = model.plan(batch, micro_batch=micro, budget=budget)
    del opened
    return {"planned": plan.peak_bytes, "predicted": plan.process_bytes, "grew": grew}


def measured(row: int) -> dict[str, int]:
    """The growth of a process of its own, with kernels in the driver's cache."""
    command = [sys.executable, __file__, "--row", str(row)]
    for _ in range(2):
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--row", type=int)
    row = parser.parse_args().row
    if row is not None:
        print(json.dumps(growth(*ROWS[row])))
        return
    print("| network | plan | mini-batch | trained | planned | predicted | measured | off, % |")
    for number, (name, way, batch, micro, trained) in enumerate(ROWS):
        found = measured(number)
        sizes = " | ".join(f"{found[key] / 1e6:.2f}" for key in ("planned", "predicted", "grew"))
        off = 100 * (found["predicted"] / found["grew"] - 1)
        print(f"| {name} | {way} | {batch} as {micro} | {trained or 'all'} | {sizes} | {off:+.1f} |", flush=True)


if __name__ == "__main__":
    main()
