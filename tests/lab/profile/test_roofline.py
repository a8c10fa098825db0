import json
from dataclasses import replace
from itertools import pairwise

import pytest

from edgelearn.compile import Precision, Request, make_plan
from edgelearn.compile.precision import named_precision
from edgelearn.errors import PlanError
from edgelearn.lab.profile import Peaks, plot, profile, roofline_table, trace
from edgelearn.lab.profile.roofline import bounds, compute_type, kind
from edgelearn.ops import SGD, Compute, Traits
from edgelearn.runtime import Context

from .conftest import BATCH, network

FORWARD = 2 * (4 * 4 * 16 * 27 + 4 * 4 * 16 * 9 + 4 * 4 * 16 * 32 + 32 * 5)  # FLOPs of an example
UNNEEDED = 2 * 4 * 4 * 16 * 27  # the gradient of the pictures


def test_flops_are_those_of_the_network(roofline):
    assert roofline.total.flops == BATCH * (3 * FORWARD - UNNEEDED)


def test_points_add_up(roofline, plan):
    assert [timed.launch for timed in roofline.timing.launches] == plan.step_launches
    for points in (roofline.by_kind(), roofline.by_layer()):
        assert sum(p.launches for p in points) == roofline.total.launches == len(plan.step_launches)
        assert sum(p.flops for p in points) == roofline.total.flops
        assert sum(p.nbytes for p in points) == roofline.total.nbytes == sum(x.nbytes for x in plan.step_launches)
        assert sum(p.seconds for p in points) == pytest.approx(roofline.busy)
        assert all(p.seconds > 0 and p.bound > 0 for p in points)
        assert [p.seconds for p in points] == sorted((p.seconds for p in points), reverse=True)
    assert {p.name for p in roofline.by_kind()} > {"pointwise_forward", "depthwise_backward_data", "sgd"}
    assert {p.name for p in roofline.by_layer()} > {"conv", "pw", "dense", "optimizer"}


def test_what_is_faster_than_the_roof_is_told(roofline, monkeypatch):
    fine = replace(roofline, bounds=[t.median / 2 for t in roofline.timing.launches], timing=replace(
        roofline.timing, noisy=0, spread=0.0))  # fmt: skip
    assert fine.problem == "" and "Disturbed" not in roofline_table(fine)
    name = fine.by_kind()[-1].name
    above = [5.88 * t.median if kind(t.launch) == name else b for t, b in zip(
        fine.timing.launches, fine.bounds, strict=True)]  # fmt: skip
    assert f"'{name}' reached 588% of the roof" in replace(fine, bounds=above).problem
    whole = replace(fine, bounds=[t.median * 1.2 for t in fine.timing.launches])
    assert "whole step reached 120%" in whole.problem
    table = " ".join(roofline_table(whole).split())
    assert "Disturbed: the whole step" in table and "Close other programs" in table and "--rounds" in table
    assert "other processes" in replace(fine, timing=replace(fine.timing, noisy=fine.timing.rounds)).problem


def test_launches_fit_into_the_step(roofline):
    assert roofline.busy > 0
    ends = 0.0
    for timed in roofline.timing.launches:
        assert timed.start >= ends - 1e-6 and timed.seconds > 0
        ends = timed.start + timed.seconds
    assert roofline.busy < 3 * ends


def test_the_bound_is_the_longer_of_arithmetic_and_traffic(plan):
    launches = plan.step_launches
    arithmetic = bounds(plan, launches, Peaks(1e3, {1: 1e30}, 0))
    traffic = bounds(plan, launches, Peaks(1e30, {1: 1e3}, 0))
    halves = bounds(plan, launches, Peaks(1e30, {1: 1e3}, 0), width=0.5)
    assert arithmetic == pytest.approx([x.flops / 1e3 for x in launches], abs=1e-9)
    assert traffic == pytest.approx([x.nbytes / 1e3 for x in launches])
    assert halves == pytest.approx([x / 2 for x in traffic])


def test_kernels_of_units_stand_below_the_roof_of_their_type(device):
    """Planned for a device with the unit, whether this one has it or not."""
    peaks = Peaks(1e3, {1: 1e30}, 0, {"int8": 4e3, "bf16": 2e3, "tf32": 5e2})
    depthwise = {"depthwise_forward", "depthwise_backward_data", "depthwise_backward_weights"}
    for compute, unit, kernels in (
        ("int8", "VNNI512", "quantized_convolution"), ("int8", "MMA", "quantized_units"),
        ("bf16", "MMA", "convolution_units"), ("bf16", "WGMMA", "convolution_units"),
        ("tf32", "MMA", "convolution_units"),
    ):  # fmt: skip
        traits = replace(Traits.of(device), find_units=lambda unit=unit: (unit,))
        precision = named_precision(compute) if compute == "int8" else Precision()
        request = Request(
            network(), 2, 2, SGD(), precision=precision, compute=Compute("fp32" if compute == "int8" else compute)
        )  # fmt: skip
        plan = make_plan(request, device, traits=traits)
        roofs = dict(zip(plan.step_launches, bounds(plan, plan.step_launches, peaks), strict=True))
        fast = [launch for launch in roofs if launch.kernel.startswith(kernels) and launch.flops]
        others = [launch for launch in roofs if kind(launch).removeprefix("quantized_") in depthwise]
        assert fast and others
        assert {compute_type(launch) for launch in fast} == {compute}
        assert all(roofs[launch] == pytest.approx(launch.flops / peaks.units[compute], rel=1e-6) for launch in fast)
        assert {compute_type(launch) for launch in others} == {"int8" if unit == "VNNI512" else "fp32"}, "quads of VNNI"


def test_predictions_too(device, peaks):
    plan = make_plan(Request(network(), 4, 4), device)
    roofline = profile(plan, device, rounds=1, name="forward", peaks=peaks)
    assert roofline.total.flops == 4 * FORWARD
    assert roofline_table(roofline).startswith(f"forward on {device.id}")


def test_what_cannot_be_measured(plan, device):
    elsewhere = replace(Traits.of(device), compute_units=1000)
    other = make_plan(Request(network(), 1, 1, SGD()), device, traits=elsewhere)
    with pytest.raises(PlanError):
        profile(other, device, peaks=Peaks(1, {1: 1}, 1))
    with pytest.raises(PlanError, match="0"):
        profile(plan, device, rounds=0, peaks=Peaks(1, {1: 1}, 1))


def test_table(roofline):
    text = roofline_table(roofline)
    total = next(line for line in text.splitlines() if line.strip().startswith("all "))
    assert total.split()[1:3] == [str(roofline.total.launches), f"{roofline.total.flops / 1e6:,.1f}"]
    assert "100.0%" in total
    rows = [line.split()[0] for line in text.splitlines() if line.strip()]
    assert [name for name in rows if name in {p.name for p in roofline.by_kind()}] == [
        p.name for p in roofline.by_kind()
    ]
    assert "pw " in roofline_table(roofline, layers=True)


def test_trace(roofline):
    traced = json.loads(json.dumps(trace(roofline)))
    spans = [event for event in traced["traceEvents"] if event["ph"] == "X"]
    launches = [event for event in spans if event["tid"] == 1]
    layers = [event for event in spans if event["tid"] == 2]
    assert len(launches) == roofline.total.launches and launches[0]["ts"] == 0
    for thread in (launches, layers):
        for one, after in pairwise(thread):
            assert one["dur"] > 0 and after["ts"] >= one["ts"] + one["dur"] - 1
    assert {event["name"] for event in layers} == {p.name for p in roofline.by_layer()}
    assert sum(event["args"]["bytes"] for event in launches) == roofline.total.nbytes
    names = [event["args"]["name"] for event in traced["traceEvents"] if event["ph"] == "M"]
    assert names == ["launches", "layers"]


def test_plot(roofline):
    (axes,) = plot(roofline).axes
    kinds = [point for point in roofline.by_kind() if point.flops]
    assert len(axes.collections) == len(kinds)
    assert sum(len(marks.get_offsets()) for marks in axes.collections) == sum(p.launches for p in kinds)
    speeds = [line.get_ydata()[-1] for line in axes.lines]
    assert speeds == pytest.approx([roofline.peaks.flops / 1e9] * 2)


def test_normal_contexts_note_nothing(device):
    assert Context(device).take_times() == []
