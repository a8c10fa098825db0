"""Peaks, rooflines, launch times and projections, of a small network on every OpenCL device."""

import json
import re
from dataclasses import asdict, replace
from itertools import pairwise
from statistics import median

import numpy as np
import pytest

from edgelearn import records, tuned
from edgelearn.compile import LaunchTimes, Plan, Precision, Request, make_plan
from edgelearn.compile.policies import checkpoints
from edgelearn.compile.precision import named_precision
from edgelearn.compile.search import launch_key
from edgelearn.device import QUADS, UNITS
from edgelearn.errors import FormatError, PlanError, RunError, UsageError
from edgelearn.graph import Network
from edgelearn.lab import profile as lab
from edgelearn.lab.bench.engine import make_request
from edgelearn.lab.bench.run import run
from edgelearn.lab.bench.workloads import Workload
from edgelearn.lab.measure import Block
from edgelearn.lab.profile import DeviceRecord, EdgeDevice, Peaks, Point, Roofline, edge_devices, profile, project
from edgelearn.lab.profile import roofline as module
from edgelearn.lab.profile import roofline as rooflines
from edgelearn.lab.profile.projection import DESCRIBED, StepRecord, efficiencies, expected, shipped
from edgelearn.lab.profile.roofline import StepTiming, TimedLaunch, bounds, compute_type, kind, table_of
from edgelearn.launch import Access, Buffer, In, InOut, Launch, Out, Role
from edgelearn.ops import (
    SGD,
    BatchNormalization,
    Compute,
    Conv2D,
    Dense,
    DepthwiseConv2D,
    Flatten,
    GlobalAveragePooling2D,
    ReLU,
    Traits,
)
from edgelearn.runtime import Context, Kernels, Runner, choose_device, list_devices

BATCH, MICRO = 3, 2


def network() -> Network:
    """8 x 8 x 3, to 4 x 4 x 16, twice, to 4 x 4 x 32, to 5 classes."""
    net = Network("small", (8, 8, 3))
    for name, op in (
        ("conv", Conv2D(16, 3, strides=2, padding="same", use_bias=False)),
        ("dw", DepthwiseConv2D(3, padding="same", use_bias=False)),
        ("pw", Conv2D(32, 1, use_bias=False)),
    ):
        net.add(name, op)
        net.add(f"{name}_bn", BatchNormalization())
        net.add(f"{name}_relu", ReLU(6))
    net.add("pool", GlobalAveragePooling2D())
    net.add("dense", Dense(5))
    return net


@pytest.fixture(scope="session", params=list_devices(), ids=lambda device: device.id.replace(" ", "-"))
def device(request):
    return request.param


@pytest.fixture(scope="session")
def peaks(device) -> Peaks:
    return lab.measure_peaks(Context(device), seconds=0.01)


@pytest.fixture(scope="session")
def plan(device) -> Plan:
    return make_plan(Request(network(), BATCH, MICRO, SGD()), device)


@pytest.fixture(scope="session")
def roofline(plan, device, peaks) -> Roofline:
    return profile(plan, device, rounds=5, peaks=peaks)


def test_measured(peaks, device):
    assert 1e8 < peaks.flops < 1e15
    assert 0 < peaks.launch < 0.01
    assert min(peaks.bandwidth) == 1 << 20 and max(peaks.bandwidth) <= device.memory // 4
    assert all(1e8 < speed < 1e14 for speed in peaks.bandwidth.values())
    assert peaks.memory <= peaks.cache
    assert records.parse(json.dumps(asdict(peaks)), Peaks) == peaks


def test_every_type_that_a_unit_multiplies_has_a_peak(peaks, device):
    types = {kind for unit in UNITS if unit.name in device.units for kind in unit.types}
    assert set(peaks.units) == types and all(1e8 < speed < 1e16 for speed in peaks.units.values())
    assert peaks.arithmetic("fp32") == peaks.flops == peaks.arithmetic("none")
    assert all(peaks.arithmetic(kind) == peaks.units[kind] for kind in types)


def test_chains_of_quads_are_all_computed(device):
    """Their sum is that of every product, so the compiler has left none out."""
    context, rounds = Context(device), 3
    for unit in (unit for unit in UNITS if unit.name in device.units and unit.probe == QUADS):
        launch, operations = module._quads(context, unit, rounds)
        (sums,) = launch.writes
        memory = context.allocate(sums.nbytes, "sums")
        Runner(context, Kernels(context), [launch], lambda buffer, memory=memory: (memory.handle, 0)).enqueue()
        found = context.read(memory.handle, np.empty(sums.nbytes // 4, np.int32))
        expected = sum(4 * r * (i + 1) for r in range(rounds) for i in range(module.UNIT_CHAINS))
        assert (found == expected).all() and operations == found.size * rounds * module.UNIT_CHAINS * 4 * 2
        memory.release()


def test_bandwidth_is_that_of_the_cache_that_is_large_enough():
    peaks = Peaks(1.0, {1 << 10: 30.0, 1 << 20: 20.0, 1 << 30: 10.0}, 0.0)
    assert [peaks.bandwidth_at(x) for x in (0, 1 << 10, 1025, 1 << 20, 1 << 25, 1 << 40)] == [30, 30, 20, 20, 10, 10]
    assert (peaks.cache, peaks.memory) == (30, 10)


PAGE = rooflines.PAGE


def launch(*accesses: Access) -> Launch:
    return Launch("", "", (), (1,), 1, accesses)


def find(launches):
    """Every buffer in memory of its own, told apart by how they are named."""
    first = {}
    for access in (a for found in launches for a in found.accesses):
        first.setdefault(access.buffer, 100 * PAGE * len(first))
    return [
        dict(map(reversed, moved))  # pyright: ignore
        for moved in rooflines.distances(launches, lambda a: (a.buffer.role, first[a.buffer]))
    ]


@pytest.fixture
def buffers():
    return [Buffer(name, pages * PAGE, Role.TEMPORARY) for name, pages in (("a", 1), ("b", 2), ("c", 4))]


def test_distance_counts_what_was_touched_since(buffers):
    a, b, c = buffers
    first, second = find([launch(In(a), Out(b)), launch(In(a), Out(c))])
    # a was touched before c was, five pages ago; the two pages of b before a, c and a: 1 + 4 + the rest of b
    assert first == {5 * PAGE: PAGE, 7 * PAGE: 2 * PAGE}
    assert second == {3 * PAGE: PAGE, 7 * PAGE: 4 * PAGE}


def test_bytes_are_those_of_the_launch(buffers):
    a, b, c = buffers
    assert find([launch(InOut(b))]) == [{2 * PAGE: 4 * PAGE}]  # read and written; a loop finds what it left
    launches = [launch(In(b, PAGE // 2), Out(a, 64)), launch(InOut(c, 3 * PAGE + 64), In(a))]
    for moved, one in zip(find(launches), launches, strict=True):
        assert sum(moved.values()) == one.nbytes  # pyright: ignore


def test_many_bytes_have_large_pages(monkeypatch, buffers):
    monkeypatch.setattr(rooflines, "MOST", 4)
    _, b, c = buffers
    (moved,) = find([launch(In(b), Out(c))])
    assert sum(moved.values()) == 6 * PAGE and set(moved) <= {4 * PAGE, 6 * PAGE, 8 * PAGE}  # pyright: ignore


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
    assert fine.problem == "" and "Disturbed" not in lab.roofline_table(fine, 120)
    name = fine.by_kind()[-1].name
    above = [5.88 * t.median if kind(t.launch) == name else b for t, b in zip(
        fine.timing.launches, fine.bounds, strict=True)]  # fmt: skip
    assert f"'{name}' reached 588% of the roof" in replace(fine, bounds=above).problem
    whole = replace(fine, bounds=[t.median * 1.2 for t in fine.timing.launches])
    assert "whole step reached 120%" in whole.problem
    table = " ".join(lab.roofline_table(whole, 120).split())
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


def test_predictions_and_what_cannot_be_measured(plan, device, peaks):
    forward = profile(make_plan(Request(network(), 4, 4), device), device, rounds=1, name="forward", peaks=peaks)
    assert forward.total.flops == 4 * FORWARD
    assert lab.roofline_table(forward, 120).startswith(f"forward on {device.id}")
    elsewhere = replace(Traits.of(device), compute_units=1000)
    other = make_plan(Request(network(), 1, 1, SGD()), device, traits=elsewhere)
    with pytest.raises(PlanError):
        profile(other, device, peaks=peaks)
    with pytest.raises(PlanError, match="0"):
        profile(plan, device, rounds=0, peaks=peaks)
    assert Context(device).take_times() == [], "a normal context notes nothing"


def test_an_output_for_each_step_is_profiled_but_not_compared():
    workload = Workload.parse("train:2", network="edgelearn.models.language:gpt")
    assert make_request(workload, 2).network.output.shape == (64, 65)
    with pytest.raises(PlanError, match="edgelearn profile"):
        run([workload], ["edgelearn"])


def test_table(roofline):
    text = lab.roofline_table(roofline, 120)
    total = next(line for line in text.splitlines() if line.strip().startswith("all "))
    assert total.split()[1:3] == [str(roofline.total.launches), f"{roofline.total.flops / 1e6:,.1f}"]
    assert "100.0%" in total
    rows = [line.split()[0] for line in text.splitlines() if line.strip()]
    assert [name for name in rows if name in {p.name for p in roofline.by_kind()}] == [
        p.name for p in roofline.by_kind()
    ]
    assert "pw " in lab.roofline_table(roofline, layers=True)


EVENT_BYTES = 5_000_000 / 100 / 300  # so that 100 steps of 300 launches are 5 MB


def test_trace(roofline):
    traced = json.loads(json.dumps(lab.trace(roofline)))
    spans = [event for event in traced["traceEvents"] if event["ph"] == "X"]
    launches, layers, all_launches, steps = (
        [event for event in spans if (event["pid"], event["tid"]) == line] for line in ((1, 1), (1, 2), (2, 1), (2, 2))
    )
    assert len(launches) == roofline.total.launches and launches[0]["ts"] == 0
    assert len(steps) == roofline.timing.rounds and len(all_launches) == len(steps) * len(launches)
    for thread in (launches, layers, all_launches, steps):
        for one, after in pairwise(thread):
            assert one["dur"] > 0 and after["ts"] >= one["ts"] + one["dur"] - 1
    assert {event["name"] for event in layers} == {p.name for p in roofline.by_layer()}
    assert sum(event["args"]["bytes"] for event in launches) == roofline.total.nbytes
    names = [event["args"]["name"] for event in traced["traceEvents"] if event["ph"] == "M"]
    assert names == ["the median step", "launches", "layers", "all steps", "launches", "steps"]
    assert len(json.dumps(all_launches)) / len(all_launches) < EVENT_BYTES


def test_plot(roofline):
    (axes,) = lab.plot(roofline).axes
    kinds = [point for point in roofline.by_kind() if point.flops]
    assert len(axes.collections) == len(kinds)
    assert sum(len(marks.get_offsets()) for marks in axes.collections) == sum(p.launches for p in kinds)  # pyright: ignore
    speeds = [line.get_ydata()[-1] for line in axes.lines]  # pyright: ignore
    assert speeds == pytest.approx([roofline.peaks.flops / 1e9] * 2)


def test_costs_are_measured_and_kept(monkeypatch, tmp_path):
    monkeypatch.setenv("EDGELEARN_TUNED", str(tmp_path))
    device = choose_device(None).device
    network = Network("two", (8, 8, 16))
    for name in ("first", "second"):
        network.add(name, Conv2D(16, 3))
        network.add(f"{name}_relu", ReLU())
    network.add("flat", Flatten())
    network.add("dense", Dense(5))
    plans = [
        make_plan(Request(network, 2, 2, SGD(0.1), activation_memory=s), device) for s in ({}, checkpoints(network))
    ]
    table = lab.measure_launches(plans[:1], device, rounds=2, busy=True)
    costs = LaunchTimes.of(device)
    assert costs.known(plans[0]) == 1 and len(table.seconds) <= len(plans[0].step_launches)
    assert costs.known(plans[1]) == 1, "launches that run again are the same"
    assert 0 < costs.step(plans[0]) < 10


def one_plan(monkeypatch, tmp_path, *attempts):
    """(plan, device) of a step whose times are `attempts`, one after another."""
    monkeypatch.setenv("EDGELEARN_TUNED", str(tmp_path))
    device = choose_device(None).device
    network = Network("one", (16,))
    network.add("dense", Dense(5))
    left = iter(attempts)
    monkeypatch.setattr(rooflines, "time_launches", lambda *arguments: next(left))
    return make_plan(Request(network, 2, 2, SGD(0.1)), device), device


NOISY = [StepTiming([], 1.0, 4, noisy) for noisy in (4, 1)]
WIDE = [StepTiming([], 1.0, 4, 0, spread) for spread in (0.01, 0.42)]
QUIET = [StepTiming([], 1.0, 4, 1, 0.05)]


@pytest.mark.parametrize(("attempts", "figure"), [((WIDE, NOISY), "62%"), ((NOISY, WIDE), "42%")])
def test_times_of_a_busy_machine_are_measured_again_and_not_kept(attempts, figure, monkeypatch, tmp_path):
    plan, device = one_plan(monkeypatch, tmp_path, *attempts, attempts[0], QUIET)
    with pytest.raises(RunError, match=figure):
        lab.measure_launches([plan], device)
    assert not tuned.path_of_times(device).exists()
    assert lab.measure_launches([plan], device) == table_of(QUIET)
    assert tuned.path_of_times(device).exists()


def test_the_spread_of_a_step():
    blocks = [Block(seconds, 1, 0.0, 1, False) for seconds in (1.0, 2.0, 3.0, 4.0, 9.0)]
    launch = Launch("copy.cl", "copy", (), (16,), 1, (1,))
    timing = rooflines._step_timing([[(launch, 0, 5)]] * 5, blocks)
    assert (timing.wall, timing.rounds, timing.noisy) == (3.0, 5, 0) and timing.spread == pytest.approx(2 / 3)


def test_damaged_costs_are_found_before_measuring(monkeypatch, tmp_path):
    plan, device = one_plan(monkeypatch, tmp_path)
    path = tuned.path_of_times(device)
    path.parent.mkdir()
    path.write_text("{")
    with pytest.raises(FormatError, match=re.escape(str(path))):
        lab.measure_launches([plan], device)


def test_what_steps_take_is_shared_among_launches_and_the_step():
    """3 us for each launch and 100 us for a step, and launches that take longer in one plan than in another."""
    launch = Launch("copy.cl", "copy", (), (16,), 1, (1,))

    def step(count: int, seconds: float, rest: float) -> StepTiming:
        return StepTiming([TimedLaunch(launch, 0.0, seconds, seconds)] * count, count * seconds + rest, 1)

    few, many = step(10, 2e-6, 130e-6), step(30, 4e-6, 190e-6)
    table = table_of([few, many])
    assert (table.between, table.fixed) == pytest.approx((3e-6, 100e-6))
    assert table.seconds == pytest.approx({launch_key(launch): 3.5e-6}), "a mean over 40 places"
    assert table_of([step(10, 2e-6, -1e-6)]).fixed == 0, "the host's clock was ahead of the device's: nothing is left"


ADRENO = EdgeDevice.load("adreno-540")
REQUEST = Request(network(), BATCH, MICRO, SGD())


def record(kind: str, share: float) -> DeviceRecord:
    """Figures of a device that reaches this share of the roof at whatever it does."""
    points = (Point("pointwise_forward", 1, 10, 10, 1.0, share), Point("sgd", 2, 0, 10, 2.0, 2 * share))
    facts = {"platform": "p", "name": f"{kind} {share}", "kind": kind, "compute_units": 2}
    return DeviceRecord(facts, "2026-01-01", Peaks(10.0, {1: 10.0}, 0.1), (StepRecord("step", 3.5, points),))  # pyright: ignore


def test_a_step_of_ones_own_is_what_was_measured(roofline):
    own = DeviceRecord.of([roofline])
    launches = [(point.name, point.bound, point.launches) for point in own.steps[0].kinds]
    assert expected(launches, efficiencies([own]), 0.0) == pytest.approx(roofline.busy)


def test_records_are_kept_as_json(roofline, tmp_path):
    own = DeviceRecord.of([roofline])
    path = tmp_path / "record.json"
    path.write_text(json.dumps(own.to_dict()))
    found = DeviceRecord.load(path)
    assert found.steps == own.steps and found.peaks == own.peaks and found.name == own.name


def test_estimates_by_hand():
    found = project(REQUEST, [ADRENO], records=[record("gpu", 0.5), record("cpu", 0.01)])
    fp32, fp16 = found.estimates
    assert (fp32.precision, fp16.precision, fp32.basis) == ("fp32", "fp16", "gpu")
    launches = fp32.plan.step_launches
    roof = sum(max(x.flops / ADRENO.flops["fp32"], x.nbytes / ADRENO.bandwidth) for x in launches)
    cost = len(launches) * ADRENO.launch
    assert fp32.bound == pytest.approx(roof + cost)
    assert fp32.expected == pytest.approx(2 * roof + cost)
    assert fp16.bound - cost == pytest.approx((fp32.bound - cost) / 2)
    assert fp16.nbytes == fp32.nbytes / 2 == fp32.plan.peak_bytes / 2
    moved, products = sum(x.nbytes for x in launches), sum(x.flops for x in launches) / 2
    assert fp32.joules == pytest.approx((162.5 * moved + 4.6 * products) / 1e12)
    assert fp16.joules == pytest.approx((162.5 * moved / 2 + 1.5 * products) / 1e12)
    own = replace(ADRENO, picojoules={"byte": 1, "fp32": 2, "fp16": 1}, sources=ADRENO.sources | {"picojoules": "me"})  # pyright: ignore
    (fp32, _) = project(REQUEST, [own], records=[record("gpu", 0.5)]).estimates
    assert fp32.joules == pytest.approx((moved + 2 * products) / 1e12)


def test_without_a_device_of_the_kind_others_serve():
    (fp32, _) = project(REQUEST, [ADRENO], records=[record("cpu", 0.25)]).estimates
    assert fp32.basis == "cpu"
    assert fp32.expected - fp32.bound == pytest.approx(3 * (fp32.bound - fp32.launches * ADRENO.launch))


def test_what_does_not_fit_says_so():
    small = replace(ADRENO, memory=1 << 10)
    found = project(REQUEST, [small, ADRENO], name="tiny step", records=[record("gpu", 0.5)])
    assert [estimate.fits for estimate in found.estimates] == [False, False, True, True]
    text = lab.projection_table(found, 200)
    assert text.startswith("tiny step, predicted") and text.count("no: 0 MB") == 2
    assert "every byte comes from memory" in text and "Error" not in text
    assert ADRENO.sources["flops"] in found.sources


def test_the_error_is_that_of_a_prediction_from_the_others():
    slow, fast = record("gpu", 0.25), record("gpu", 0.5)
    errors = project(REQUEST, [ADRENO], records=[slow, fast]).errors
    # at the roof 0.75 s and 1.5 s; three launches of 0.1 s; both measured as 3.5 s
    assert errors[slow.name] == {"step": pytest.approx((0.75 / 0.5 + 0.3) / 3.5 - 1)}
    assert errors[fast.name] == {"step": pytest.approx((1.5 / 0.25 + 0.3) / 3.5 - 1)}


def test_the_error_on_measured_cpus():
    found = project(REQUEST, [ADRENO])
    cpus = {r.name for r in shipped() if r.device["kind"] == "cpu"}
    errors = [abs(error) for name in cpus for error in found.errors[name].values()]
    assert len(errors) >= 20 and median(errors) < 0.12 and max(errors) < 0.4
    assert "in the median" in lab.projection_table(found, 120)


GOOD = json.loads((DESCRIBED / "adreno-540.json").read_text())


def write(tmp_path, content) -> str:
    path = tmp_path / "device.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


@pytest.mark.parametrize("name", edge_devices())
def test_described(name):
    device = EdgeDevice.load(name)
    assert device.peaks("fp32").flops == device.flops["fp32"] <= device.flops["fp16"]
    assert device.peaks("fp16").bandwidth_at(123) == device.bandwidth
    assert all("http" in text or "assumption" in text or "same page" in text for text in device.sources.values())
    assert (device.traits().gpu, device.traits().compute_units) == (device.device().is_gpu, device.compute_units)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"kind": "tpu"}, "kind"), ({"flops": {"fp16": 1e9}}, "fp32"), ({"flops": 1e9}, "flops"),
        ({"flops": {"fp32": 0}}, "fp32"), ({"bandwidth": "fast"}, "bandwidth: 'fast'"),
        ({"memory": float("inf")}, "memory: inf"), ({"launch": True}, "launch: True"), ({"cores": 4}, "cores"),
        ({"sources": {"flops": "a book"}}, "sources"), ({"picojoules": {"byte": 1}}, "picojoules has"),
        ({"picojoules": {"byte": 0, "fp32": 1, "fp16": 1}}, "picojoules of byte"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(tmp_path, change, problem):
    path = write(tmp_path, GOOD | change)
    with pytest.raises(FormatError, match=problem) as caught:
        EdgeDevice.load(path)
    assert path in str(caught.value) and "adreno-540.json" in str(caught.value)


def test_descriptions_of_ones_own(tmp_path):
    device = EdgeDevice.load(write(tmp_path, GOOD | {"name": "mine", "flops": {"fp32": 1e9}}))
    assert device.name == "mine"
    with pytest.raises(FormatError, match="mine has no FLOP/s in fp16, only in fp32"):
        device.peaks("fp16")
    with pytest.raises(UsageError, match=r"'adreno-1'.*adreno-540, "):
        EdgeDevice.load("adreno-1")
    for content in ("{", "[]", "\0"):
        with pytest.raises(FormatError, match="does not describe a device"):
            EdgeDevice.load(write(tmp_path, content))
    with pytest.raises(FormatError, match="memory"):
        EdgeDevice.load(write(tmp_path, {k: v for k, v in GOOD.items() if k != "memory"}))
