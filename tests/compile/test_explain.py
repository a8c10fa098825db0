"""Explanations account for every byte."""

import pytest

from edgelearn.compile import Kind, Precision, Request, make_plan
from edgelearn.compile.plan import BAR, explain
from edgelearn.compile.policies import checkpoints, invertible, keep_all
from edgelearn.graph import reversible
from edgelearn.ops import SGD, Adam, Float16

from .test_plan import REQUESTS
from .test_rematerialiser import preactivated


@pytest.mark.parametrize("name", REQUESTS)
def test_shares_add_up_to_what_is_planned(kernels, name):
    plan = make_plan(REQUESTS[name], kernels.context.device)
    found = explain(plan)
    assert sum(share.nbytes for share in found.shares) == plan.peak_bytes
    assert all(share.nbytes >= 0 for share in found.shares)
    assert max(moment.nbytes for moment in found.timeline) == max(nbytes for _, nbytes in plan.live_bytes(
        Kind.TRAIN if plan.request.optimizer else Kind.PREDICT
    ))  # fmt: skip
    assert (found.accounting is None) == (plan.request.optimizer is None)
    assert str(plan) in str(found) and any(row[0] == "dense" for row in found.table().rows)


@pytest.mark.parametrize(
    ("policy", "ways"),
    [
        (keep_all, {"stored"}),
        (checkpoints, {"stored", "recomputed"}),
        (invertible, {"stored", "recomputed", "inverted"}),
    ],
)
def test_what_becomes_of_activations(kernels, policy, ways):
    network = reversible(preactivated())
    plan = make_plan(Request(network, 2, 2, Adam(), "batch", activation_memory=policy(network)), kernels.context.device)
    found = explain(plan)
    assert {way for _, _, way, _ in found.activations} == ways
    kept = sum(nbytes for _, _, way, nbytes in found.activations if way == "stored")
    assert kept == found.accounting.stored
    if policy is invertible:
        assert ("row0_0_add", "inverted") in [(layer, way) for layer, name, way, _ in found.activations]


@pytest.mark.parametrize("policy", (keep_all, checkpoints))
def test_floats_made_of_what_is_stored_are_workspace(kernels, policy):
    """Tensors of the same name in both passes, which aren't the same tensor."""
    network, half = preactivated(), Float16()
    precision = Precision(half, half, None, norm_inputs=half, simulated=False)
    request = Request(network, 2, 2, SGD(0.1), "batch", precision=precision, activation_memory=policy(network))
    plan = make_plan(request, kernels.context.device)
    found, back = explain(plan), plan.program(Kind.TRAIN).rematerialisation
    assert len([way for _, _, way, _ in found.activations if way == "recomputed"]) == len(set(back.originals.values()))
    if policy is keep_all:
        assert {way for _, _, way, _ in found.activations} == {"stored"}
        assert not any("recomputed" in moment.purposes for moment in found.timeline)


def test_the_timeline_goes_forward_and_back(kernels):
    network = preactivated()
    plan = make_plan(
        Request(network, 2, 2, SGD(0.1), "batch", activation_memory=checkpoints(network)), kernels.context.device
    )
    timeline = explain(plan).timeline
    turn = sum(moment.forward for moment in timeline)
    assert all(m.forward for m in timeline[:turn]) and not any(m.forward for m in timeline[turn:])
    assert not any("recomputed" in m.purposes for m in timeline[:turn])
    assert any("recomputed" in m.purposes for m in timeline[turn:])
    lines = explain(plan).timetable().splitlines()
    assert len(lines) == len(timeline) and max(line.count("█") for line in lines) == BAR
