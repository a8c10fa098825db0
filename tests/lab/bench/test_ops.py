"""Single ops: every contender's results against float64 references."""

from dataclasses import asdict

import numpy as np
import pytest

from edgelearn.child import Worker
from edgelearn.lab.bench import engine
from edgelearn.lab.bench.contenders import choose
from edgelearn.lab.bench.workloads import OPS, OpProblem, OpSpec, Workload, digest, make_op_problem
from edgelearn.lab.measure import usable_cores
from edgelearn.ops import (
    SGD,
    BatchNormalization,
    Conv2D,
    Dense,
    DepthwiseConv2D,
    GlobalAveragePooling2D,
    SoftmaxCrossEntropy,
)
from edgelearn.runtime import Context, list_devices

PLAIN = {"torch": "eager", "keras": "function", "tinygrad": "jit"}
SMALL = {
    "convolution": OpSpec(Conv2D(33, 3, 2, "same", use_bias=False), (10, 10, 3)),
    "pointwise": OpSpec(Conv2D(33, 1, use_bias=False), (7, 7, 48)),
    "depthwise": OpSpec(DepthwiseConv2D(3, 1, "same", use_bias=False), (9, 9, 33)),
    "depthwise, stride 2": OpSpec(DepthwiseConv2D(3, 2, "same", use_bias=False), (10, 10, 33)),
    "dense": OpSpec(Dense(31), (65,)),
    "batchnorm": OpSpec(BatchNormalization(), (7, 7, 33)),
    "pool": OpSpec(GlobalAveragePooling2D(), (7, 7, 33)),
    "loss": OpSpec(SoftmaxCrossEntropy(), (31,)),
    "update": OpSpec(SGD(), (1000,)),
}


def expected(problem: OpProblem, trains: bool = True) -> list[np.ndarray]:
    """Output, gradients of input and weights, in float64."""
    op = problem.spec.op
    x, dy = problem.x.astype(np.float64), problem.dy.astype(np.float64)
    weights = {name: array.astype(np.float64) for name, array in problem.weights.items()}
    if isinstance(op, SGD):
        return [x - problem.learning_rate * dy]
    if isinstance(op, SoftmaxCrossEntropy):
        losses, gradient = op.reference(x, problem.labels)
        return [losses.mean(), gradient]
    options = {"batch": True} if isinstance(op, BatchNormalization) else {}
    y = op.reference_forward([x], weights, **options)
    if not trains:
        return [y]
    (dx,), gradients = op.reference_backward([x], weights, dy, **options)
    return [y, *([] if problem.spec.reads_pictures else [dx]), *(gradients[name] for name in problem.trained)]


@pytest.fixture(scope="module", params=list_devices(), ids=lambda device: device.platform)
def context(request):
    return Context(request.param)


@pytest.mark.parametrize("batch", (1, 3))
@pytest.mark.parametrize("name", SMALL)
def test_the_engine_computes_an_op(context, name, batch):
    problem = make_op_problem(SMALL[name], batch, 0, 0.003)
    for trains in (False, True) if name not in ("loss", "update") else (True,):
        step = engine.prepare(problem, trains, context)
        assert step()() == pytest.approx(digest(*expected(problem, trains)), abs=1e-4)
    if name != "update":
        assert step()() == pytest.approx(digest(*expected(problem, trains)), abs=1e-4), "a second time the same"


@pytest.fixture(scope="module", params=PLAIN)
def peer(request):
    (entry,) = choose([request.param])
    if not entry.available():
        pytest.skip(f"{entry.name} is not installed (needs {', '.join(entry.missing())})")
    device = next((d for d in list_devices() if d.kind == "cpu"), None)
    if device is None:
        pytest.skip("no OpenCL device on the processor")
    variables = next(iter(entry.environments.values()))
    arguments, cores = (entry.target, len(usable_cores()), device.id), usable_cores()
    with Worker("edgelearn.lab.bench.contenders:BenchWorker", arguments, cores, variables, patience=300) as worker:
        yield worker, PLAIN[entry.name]


@pytest.mark.parametrize("name", OPS)
def test_a_peer_computes_an_op(peer, name):
    worker, variant = peer
    workload = Workload(f"train/{name}", 2)
    probe = worker.call("prepare", asdict(workload), variant)["probe"]
    first = digest(*expected(make_op_problem(OPS[name], 2, 0, workload.learning_rate)))
    assert probe[: len(first)] == pytest.approx(first, abs=1e-3)


def test_a_digest_tells_other_values_other_sizes_and_another_order():
    array = np.random.default_rng(0).standard_normal((20, 30))
    same, flipped = digest(array), digest(array[::-1])
    assert same[0] == pytest.approx(flipped[0]) and abs(same[1] - flipped[1]) > 0.1
    assert digest(array * 1.05)[0] - same[0] == pytest.approx(np.log(1.05))
    shifted = digest(np.roll(array, 1, axis=1))
    assert abs(same[1] - shifted[1]) > 0.1
    assert digest(array, array)[:2] == same
