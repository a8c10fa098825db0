"""Activations that leave the device between the passes, and come back byte for byte."""

import signal
from dataclasses import replace

import numpy as np
import pytest

from edgelearn.compile import Compress, Kind, Offload, Recompute, Request, account, make_plan
from edgelearn.compile.plan import explain
from edgelearn.compile.policies import paged
from edgelearn.compile.storage import lifetimes
from edgelearn.errors import PagingError, PlanError
from edgelearn.launch import Await, Buffer, Role, Transfer
from edgelearn.models import mobilenet_v2
from edgelearn.ops import SGD, pack

from .steps import batches, same, same_bits, steps
from .test_networks import EXAMPLES, NETWORKS, drawn
from .test_rematerialiser import PRECISIONS
from .test_strategies import added


def everything(network, folder=None) -> dict:
    return dict.fromkeys(network.nodes, Offload(folder))


@pytest.mark.parametrize("batchnorm", ("moving", "batch"))
@pytest.mark.parametrize("name", NETWORKS)
def test_paged_steps_have_the_same_bits(start, kernels, tmp_path, name, batchnorm):
    network = NETWORKS[name]()
    request = Request(network, EXAMPLES, 2, SGD(0.05), batchnorm, seed=7)
    expected = steps(start, request)
    for activation_memory in (paged(network), everything(network, str(tmp_path))):
        same(steps(start, replace(request, activation_memory=activation_memory)), expected)
        found = account(make_plan(replace(request, activation_memory=activation_memory), kernels.context.device))
        assert found.paged > 2 * found.stored
    assert not list(tmp_path.iterdir())


def test_integers_are_paged_as_they_are(start):
    network = NETWORKS["separable"]()
    request = Request(network, EXAMPLES, 2, SGD(0.05), "batch", seed=7, precision=PRECISIONS["integers"])
    same(steps(start, replace(request, activation_memory=everything(network))), steps(start, request))


def test_bytes_are_where_the_plan_says(start, kernels):
    """Everything but the input is paged: as many bytes as were stored."""
    request = Request(added(), EXAMPLES, EXAMPLES, SGD(0.1))
    kept, gone = (
        make_plan(replace(request, activation_memory=s), kernels.context.device) for s in ({}, everything(added()))
    )
    assert account(kept).paged == 0 and account(gone).stored == kept.storage.input.buffer.nbytes
    moved = account(kept).stored - account(gone).stored
    assert account(gone).paged == gone.paged_bytes and moved <= gone.paged_bytes < moved + 4096, "but for alignment"
    session = start(gone.request, drawn(added())[0])
    assert session.allocated_bytes == gone.peak_bytes and session.paged_bytes == gone.paged_bytes
    found = explain(gone)
    assert {("stem", "offloaded"), ("stem", "restored")} <= {(layer, way) for layer, _, way, _ in found.activations}
    assert max(moment.paged for moment in found.timeline) == moved
    assert sum(share.nbytes for share in found.shares) == gone.peak_bytes
    assert "the host's memory" in str(gone) and " offloaded 0.0" in found.timetable()


def test_transfers_go_on_while_launches_compute(kernels):
    """Each transfer is awaited before what it needs is read or written over, later than it begins."""
    network = added()
    plan = make_plan(Request(network, 1, 1, SGD(0.1), activation_memory=everything(network)), kernels.context.device)
    launches = plan.program(Kind.TRAIN, 1).micro
    begun: dict[Buffer, int] = {}
    between = []
    for at, launch in enumerate(launches):
        under_way = [x for x in begun if x is not getattr(launch, "buffer", None)]
        assert not any(a.buffer in under_way and (a.writes or launches[begun[a.buffer]].target_buffer is a.buffer)
                       for a in launch.accesses)  # fmt: skip
        if isinstance(launch, Transfer):
            begun[next(b for b in launch.reads + launch.writes if b.role is Role.TEMPORARY)] = at
        elif isinstance(launch, Await):
            between.append(at - begun.pop(launch.buffer) - 1)
        assert len(begun) <= 1, "one at a time"
    assert not begun and len(between) == 2 * len([b for b in plan.offsets if b.role is Role.PAGED]) / len(
        {key for key in plan.programs if key.kind is Kind.TRAIN}
    )
    assert sum(n > 0 for n in between) > len(between) / 2
    lives = {life.buffer: life for life in lifetimes(launches)}
    for at, launch in enumerate(launches):
        if isinstance(launch, Await):
            assert lives[launch.buffer].first < at <= lives[launch.buffer].last


def test_mobilenet_v2_from_a_file(start, tmp_path):
    network, rng = mobilenet_v2((96, 96, 3), alpha=0.35), np.random.default_rng(0)
    x, labels = rng.standard_normal((2, 96, 96, 3)).astype(np.float32), rng.integers(0, 1000, 2).astype(np.int32)
    found = []
    for activation_memory in ({}, paged(network, str(tmp_path))):
        session = start(
            Request(network, 2, 2, SGD(0.1), "batch", activation_memory=activation_memory), network.initialize(1)
        )
        for step in (1, 2):
            session.train([(pack(x, 3), labels)], 2, 0.1, step)
        found.append(session.weights())
    same_bits(*found)


def test_nothing_is_left_where_pages_are_refused(kernels, start, tmp_path):
    held = kernels.context.ledger.held
    request = Request(added(), 1, 1, SGD(0.1), activation_memory=everything(added(), str(tmp_path / "missing")))
    with pytest.raises(PagingError, match="No such file or directory"):
        start(request, drawn(added())[0])
    assert kernels.context.ledger.held == held


def test_an_interrupt_leaves_a_session_that_goes_on(start, tmp_path):
    network = added()
    request = Request(network, EXAMPLES, EXAMPLES, SGD(0.0), activation_memory=everything(network, str(tmp_path)))
    weights, x, labels = drawn(network)
    session = start(request, weights)
    session.train(batches(session, x, labels), EXAMPLES, 0.0, 1)
    expected = session.gradients()

    def interrupted():
        signal.raise_signal(signal.SIGINT)
        yield

    with pytest.raises(KeyboardInterrupt):
        session.train(interrupted(), EXAMPLES, 0.0, 2)
    session.train(batches(session, x, labels), EXAMPLES, 0.0, 3)
    same_bits(session.gradients(), expected)
    session.close()
    assert session.paged_bytes == 0 and not list(tmp_path.iterdir())


def test_pages_are_in_one_place(kernels):
    activation_memory = {"stem": Offload(), "sum": Offload("/tmp")}
    with pytest.raises(PlanError, match=r"one place.*/tmp"):
        make_plan(Request(added(), 1, 1, SGD(0.1), activation_memory=activation_memory), kernels.context.device)


def test_ways_side_by_side(start):
    """Tensors are recomputed from others that are paged or kept in fewer bits."""
    network = NETWORKS["residual"]()
    exact = {"a_add": Offload(), "a_relu": Recompute(), "b1": Offload(), "b1_bn": Recompute(), "b1_relu": Recompute()}
    request = Request(network, EXAMPLES, 2, SGD(0.05), "batch")
    same(steps(start, replace(request, activation_memory=exact)), steps(start, request))
    losses, *_ = steps(start, replace(request, activation_memory=exact | {"b1": Compress()}))
    assert losses[0] == steps(start, request)[0][0]
