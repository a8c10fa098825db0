"""The engine and the real frameworks, on the smallest batches: they run, and all compute the same."""

from contextlib import ExitStack
from dataclasses import asdict
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import pytest

from edgelearn.child import Worker
from edgelearn.lab.bench.contenders import CONTENDERS
from edgelearn.lab.bench.report import Variant
from edgelearn.lab.bench.run import BenchConfig
from edgelearn.lab.bench.workloads import Workload
from edgelearn.lab.measure import usable_cores
from edgelearn.runtime import choose_device

ONCE = BenchConfig(rounds=1, block_seconds=0.0, attempts=1, patience=120, memory_reserve=0.05)
NETWORKS = Path(__file__).with_name("bench_networks.py")
PLAIN = {
    "edgelearn": "edgelearn*", "torch": "torch channels_last", "keras": "keras function", "tinygrad": "tinygrad jit",
    "litert": "litert *", "onnxruntime": "onnxruntime *",
}  # fmt: skip
# The first three losses, or the first four logits three times over, from TensorFlow 2.21.
EXPECTED = {
    "forward": [-0.070680, 0.092271, 0.040942, 0.046802] * 3,
    "train": [6.768705, 6.758341, 6.747968],
    "accumulate": [6.768705, 6.758341, 6.747968],
    "train_bn": [7.082092, 6.876469, 6.803560],
    "cached": [1.760285, 1.704922, 1.608620],
}
LOSSES = [2.335904, 2.333292, 2.328338]  # of a network with residual blocks
VARIANTS = {"accumulate": 1}  # of edgelearn; else 2
# With 16 pictures, the third loss depends on how a processor rounds sums of statistics: TensorFlow's own by 0.5 %.
BATCH = {"forward": 1, "train": 2, "accumulate": 2, "train_bn": 64, "cached": 8}

ALL = tuple(BATCH)
# tinygrad compiles its kernels for minutes when it trains the whole network.
KINDS = {"tinygrad": ("forward", "cached"), "litert": ("forward",), "onnxruntime": ("forward",)}
CASES = [(name, kind) for name in PLAIN for kind in KINDS.get(name, ALL)]


@pytest.fixture(scope="module")
def worker_of():
    """The worker of a contender, as the bench starts it, but one for all workloads: frameworks take long to import."""
    with ExitStack() as stack:

        @cache
        def start(name):
            entry = next(entry for entry in CONTENDERS if entry.name == name)
            if not entry.available():
                pytest.skip(f"{name} is not installed (needs {', '.join(entry.missing())})")
            cores = usable_cores()
            arguments = entry.target, len(cores), choose_device(None).device.id
            environment = next(iter(entry.environments.values()))
            target = "edgelearn.lab.bench.contenders:BenchWorker"
            return stack.enter_context(Worker(target, arguments, cores, environment, ONCE.patience))

        yield start


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_a_contender_computes_the_workload(worker_of, name, kind):
    worker, workload = worker_of(name), Workload(kind, BATCH[kind], network=f"{NETWORKS}:mobilenet")
    every = [Variant(workload.name, name, variant) for variant in worker.call("variants", asdict(workload))]
    variants = [variant for variant in every if fnmatch(variant.label, PLAIN[name])]
    assert len(variants) == (VARIANTS.get(kind, 2) if name == "edgelearn" else 1)
    for variant in variants:
        answer = worker.call("prepare", asdict(workload), variant.name)
        assert answer["probe"] == pytest.approx(EXPECTED[kind], rel=2e-3 if kind == "train_bn" else 1e-4)
        assert worker.call("measure", ONCE.block_seconds, ONCE.steps)["times"]


RESIDUAL = {"edgelearn": "edgelearn", "torch": "torch eager", "keras": "keras function", "serial": "serial*"}


@pytest.mark.parametrize("name", RESIDUAL)
def test_contenders_agree_on_a_network_with_residual_blocks(worker_of, name):
    """Converted, not written by hand."""
    workload = Workload("train_bn", 2, network=f"{NETWORKS}:residual")
    worker = worker_of(name)
    every = [Variant(workload.name, name, variant) for variant in worker.call("variants", asdict(workload))]
    variant = next(variant for variant in every if fnmatch(variant.label, RESIDUAL[name]))
    assert worker.call("prepare", asdict(workload), variant.name)["probe"] == pytest.approx(LOSSES, rel=1e-4)
