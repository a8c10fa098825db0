"""The engine and the real frameworks, on the smallest batches: they run, and all compute the same."""

import pytest

from edgelearn.lab.bench.contenders import CONTENDERS
from edgelearn.lab.bench.run import BenchConfig, run
from edgelearn.lab.bench.variant import disagreeing
from edgelearn.lab.bench.workloads import Workload

ONCE = BenchConfig(rounds=1, block_seconds=0.0, attempts=1, patience=120, memory_reserve=0.05)
PLAIN = {
    "edgelearn": "edgelearn*",
    "torch": "torch channels_last",
    "keras": "keras function",
    "tinygrad": "tinygrad jit",
}

# The first three losses, or the first four logits three times over, from PyTorch 2.13 and TensorFlow 2.21.
EXPECTED = {
    "forward": [-0.044141, 0.251036, -0.209990, 0.412042] * 3,
    "train": [7.133737, 6.863931, 6.609286],
    "accumulate": [7.133737, 6.863931, 6.609286],
    "train_bn": [7.068317, 6.373200, 5.860000],
    "cached": [1.798745, 1.691278, 1.535754],
}
VARIANTS = {"accumulate": 1}  # of edgelearn; else 2
BATCH = {"forward": 1, "train": 2, "accumulate": 2, "train_bn": 2, "cached": 8}


# tinygrad compiles its kernels for minutes when it trains the whole network.
CASES = [(name, kind) for name in PLAIN for kind in BATCH if name != "tinygrad" or kind in ("forward", "cached")]


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_a_contender_computes_the_workload(name, kind):
    entry = next(entry for entry in CONTENDERS if entry.name == name)
    if not entry.available():
        pytest.skip(f"{name} is not installed (needs {', '.join(entry.missing())})")
    report = run([Workload(kind, BATCH[kind])], [name], [PLAIN[name]], config=ONCE)
    tolerance = 5e-3 if kind == "train_bn" else 1e-4
    assert len(report.variants) == (VARIANTS.get(kind, 2) if name == "edgelearn" else 1)
    for variant in report.variants:
        assert variant.error is None and variant.blocks
        assert variant.probe == pytest.approx(EXPECTED[kind], rel=tolerance)
    assert disagreeing(report.variants) == []


def test_contenders_agree_on_a_network_with_residual_blocks():
    """Converted, not written by hand."""
    names = [entry.name for entry in CONTENDERS if entry.available() and entry.name != "tinygrad"]
    if len(names) < 2:
        pytest.skip("no other framework is installed")
    workload = Workload("train_bn", 2, network="resnet18_cifar")
    report = run([workload], names, ["edgelearn", "torch eager", "keras function"], config=ONCE)
    assert [variant.error for variant in report.variants] == [None] * len(names)
    assert disagreeing(report.variants) == []
