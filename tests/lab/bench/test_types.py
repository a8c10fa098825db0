"""Steps in each compute type, in this process, on a network that compiles fast."""

from pathlib import Path

import numpy as np
import pytest

from edgelearn.errors import PlanError
from edgelearn.lab.bench.engine import Engine
from edgelearn.lab.bench.workloads import AGREEMENT, TYPES, Workload
from edgelearn.runtime import choose_device

SMALL = "bench_networks:small"


def losses(contender, compute, kind="train_bn", variant=None):
    """The numbers of three steps."""
    workload = Workload(kind, 4, network=SMALL, compute=compute)
    variants = contender.variants(workload)
    step = contender.prepare(workload, variants[0] if variant is None else variant)
    return np.concatenate([np.ravel(step()) for _ in range(3)])


@pytest.fixture(autouse=True)
def networks(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parent)


@pytest.fixture(scope="module")
def engine():
    return Engine(1, choose_device().device.id)


@pytest.mark.parametrize("kind", ["train_bn", "forward"])
def test_integers_are_near_float32(engine, kind):
    full, integers = losses(engine, "fp32", kind), losses(engine, "int8", kind)
    error = np.abs(integers - full).max()
    assert 0 < error < AGREEMENT["int8"] * np.abs(full).max()


def test_a_type_without_a_unit_is_refused(engine):
    if any(unit == "MMA" for unit in engine.context.device.units):
        pytest.skip("this device has matrix units for halves")
    with pytest.raises(PlanError, match="bf16"):
        losses(engine, "bf16")


def test_single_ops_are_float32(engine):
    assert [engine.variants(Workload("train/pool", 1, compute=kind)) for kind in TYPES] == [[""], [], [], [], []]


@pytest.mark.parametrize(("variant", "kind"), [("eager", "train_bn"), ("channels_last", "accumulate")])
def test_autocast_is_near_float32(engine, variant, kind):
    pytest.importorskip("torch")
    from edgelearn.lab.bench.torch_peer import TorchPeer

    peer = TorchPeer(1, "a processor")
    full, halves = (losses(peer, compute, kind, variant) for compute in ("fp32", "bf16"))
    assert 0 < np.abs(halves - full).max() < AGREEMENT["bf16"] * full.max()
    assert full == pytest.approx(losses(engine, "fp32", kind), rel=1e-4)
    assert peer.variants(Workload("train", 1, compute="fp16")) == [], "PyTorch's processors have no unit for it"


def test_pytorch_on_nvidia():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no GPU that PyTorch can use")
    from edgelearn.lab.bench.torch_peer import TorchPeer

    peer = TorchPeer(1, "NVIDIA CUDA / GPU")
    full = losses(peer, "fp32", variant="eager")
    for compute in TYPES[:-1]:
        for variant in peer.variants(Workload("train_bn", 4, network=SMALL, compute=compute)):
            found = losses(peer, compute, variant=variant)
            assert np.abs(found - full).max() < AGREEMENT[compute] * full.max(), (compute, variant)
    assert losses(peer, "bf16", "forward", "graph").shape == losses(peer, "fp32", "forward").shape
