"""The search for kernels, on a small network on every OpenCL device, and races with times as given."""

from dataclasses import replace

import numpy as np
import pytest

import edgelearn as el
from edgelearn import tuned
from edgelearn.compile import Request, make_plan
from edgelearn.compile.precision import named_precision
from edgelearn.device import DeviceKind
from edgelearn.errors import EdgelearnError, FormatError
from edgelearn.graph import Network
from edgelearn.lab import tuning
from edgelearn.lab.tuning import CPU, GPU, Race, Rig, TunedStep, Tuner, TuningWork, groups_of, settle, shares, works_of
from edgelearn.launch import Buffer, Decision, In, Launch, Out, Role
from edgelearn.ops import SGD, Compute, Traits
from edgelearn.runtime import Context, Kernels, Session, list_devices
from tests.networks import chain

RNG = np.random.default_rng(0)


def race(name: str = "pointwise_forward 1x2x3", *times: list[float], rows: tuple[int, ...] = (14, 12, 8, 7)) -> Race:
    """A race in which candidate i took times[i]."""
    candidates = tuple({"rows": r} for r in rows)
    race = Race(Decision(name, candidates, candidates[0]))
    for number, samples in enumerate(times):
        for sample in samples:
            race.add(number, sample)
    return race


def test_every_candidate_comes_up():
    race_ = race()
    race_.cut(None, RNG)
    assert sorted(race_.entrant(turn) for turn in range(4)) == [0, 1, 2, 3]
    assert [race_.entrant(turn) for turn in range(4)] == [race_.entrant(turn) for turn in range(4, 8)]


def test_the_slow_drop_out_and_the_safe_one_stays():
    race_ = race("a", [9.0], [3.0], [5.0], [4.0])
    race_.cut(2, RNG)
    assert sorted(race_.running) == [0, 1, 3]
    race_.cut(1, RNG)
    assert sorted(race_.running) == [0, 1]


@pytest.mark.parametrize(
    ("times", "winners"),
    [
        (([100, 100, 100], [80, 80, 80], [81, 81, 81]), [1, 2]),
        (([100, 100, 100], [81, 81, 81], [80, 80, 80]), [2, 1]),
        (([100, 100, 100], [98.5, 98.5, 98.5]), [0]),  # not worth another kernel
        (([80, 100, 120], [70, 90, 110]), [0]),  # within the spread
        (([100, 100, 100], [80, 80]), [0]), (([100, 100], [80, 80, 80]), [0]),  # measured too seldom
        (([100, 100, 100],), [0]), (([], [80, 80, 80]), [0]),
    ],
)  # fmt: skip
def test_winners(times, winners):
    assert race("a", *times).winners() == winners


def test_equals_share_a_kernel():
    """The larger of two decisions takes its fastest candidate, and the other one the same where it is as good."""
    large = race("pointwise_forward 9x9x9", [100] * 3, [90] * 3, [80] * 3)
    small = race("pointwise_forward 3x3x3", [10] * 3, [8.0] * 3, [8.1] * 3)
    other = race("pointwise_backward_data 3x3x3", [10] * 3, [8.0] * 3, [8.1] * 3)
    far = race("pointwise_forward 2x2x2", [10] * 3, [5.0] * 3, [8.1] * 3)
    assert settle([small, other, far, large]) == {
        "pointwise_forward 9x9x9": {"rows": 8},
        "pointwise_forward 3x3x3": {"rows": 8},
        "pointwise_backward_data 3x3x3": {"rows": 12},
        "pointwise_forward 2x2x2": {"rows": 12},
    }


def test_a_race_that_never_ran_settles_nothing():
    assert settle([race("a")]) == {}


DEVICES = list_devices()
MINUTES = 0.03  # enough for a turn or two of each stage


@pytest.fixture(params=DEVICES, ids=[device.id for device in DEVICES])
def device(request):
    return request.param


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The user's folder, with nothing in it; no results are shipped."""
    monkeypatch.setenv("EDGELEARN_TUNED", str(tmp_path))
    monkeypatch.setattr(tuned, "shipped", lambda: tmp_path / "none")
    return tmp_path


def network() -> Network:
    return chain(
        "small", (12, 12, 16), pointwise=el.ops.Conv2D(33, 1), pool=el.ops.GlobalAveragePooling2D(),
        dense=el.ops.Dense(4),
    )  # fmt: skip


def work(n: int = 2) -> TuningWork:
    return TuningWork(f"small:{n}", Request(network(), n, n, SGD(0.1)))


def test_finds_what_plans_then_use(device, folder):
    parts = []
    plan = make_plan(work().request, device)
    assert plan.tuned_count == 0
    report = el.tune(plan, device=device, progress=lambda part, name: parts.append(part))
    (path,) = folder.iterdir()
    assert report.path == path and str(path) in str(report) and "train small:2" in str(report)
    assert parts == sorted(parts) and parts[0] == 0 and 0.5 < parts[-1] <= 1

    choices = tuned.load(path).choices
    plan = make_plan(work().request, device)
    decisions = plan.decisions
    assert set(choices) == set(decisions) and len(choices) > 3
    assert plan.tuned_count == len(decisions)
    for name, decision in decisions.items():
        assert choices[name] in decision.candidates
        assert decision.chosen == choices[name]


def test_choices_may_fuse_the_launches_of_other_decisions(device, folder):
    """Tiles of some sizes add up what BatchNormalization needs, which then reads its input once less."""
    net = chain(
        "normalized", (24, 24, 16), pointwise=el.ops.Conv2D(32, 1), norm=el.ops.BatchNormalization(),
        pool=el.ops.GlobalAveragePooling2D(), dense=el.ops.Dense(4),
    )  # fmt: skip
    tuner = Tuner(device, folder)
    work = TuningWork("normalized:2", Request(net, 2, 2, SGD(0.1), batchnorm="batch"))
    rig = Rig(work, tuner.context, tuner.kernels)
    forward = next(name for name in rig.decisions if name.startswith("pointwise_forward"))
    left = [
        set(rig.decisions) - set(rig.plan({forward: choice}).decisions)
        for choice in rig.decisions[forward].candidates
    ]  # fmt: skip
    if not any(left):
        pytest.skip("no candidate fuses more than the first")
    assert set(tuner.tune([work], MINUTES).results.choices) <= set(rig.decisions)


def test_launches_that_are_left_stand_for_those_that_are_fused(device, folder, monkeypatch):
    """Two layers share the decision of their normalization; the tiles of one layer's product may do its sums."""
    net = chain(
        "twice", (24, 24, 16), first=el.ops.Conv2D(32, 1), norm=el.ops.BatchNormalization(), last=el.ops.Conv2D(32, 1),
        last_norm=el.ops.BatchNormalization(), pool=el.ops.GlobalAveragePooling2D(), dense=el.ops.Dense(4),
    )  # fmt: skip
    tuner = Tuner(device, folder)
    rig = Rig(TuningWork("twice:2", Request(net, 2, 2, SGD(0.1), batchnorm="batch")), tuner.context, tuner.kernels)
    monkeypatch.setattr(tuning, "shares", lambda times: tuning.number_of_launches(launch for launch, *_ in times))
    every = tuning.number_of_launches(rig.launches)
    forward = next(d for name, d in rig.decisions.items() if name.startswith("pointwise_forward") and "16x32" in name)
    for choice in forward.candidates:
        spent = rig.run({forward.name: choice})[0].by_decision
        assert forward.name in spent and spent == {name: every[name] for name in spent}


@pytest.mark.parametrize("slower", [False, True])
def test_the_search_prefers_what_is_faster(device, folder, monkeypatch, slower):
    """With clocks that say which candidate of each decision is fastest, that one is chosen; unless the whole is
    `slower` with it."""
    tuner = Tuner(device, folder)
    decisions = Rig(work(), tuner.context, tuner.kernels).decisions
    safe, fastest = ({name: d.candidates[place] for name, d in decisions.items()} for place in (0, -1))

    def run(rig, choices):
        times = {name: 1.0 if choices[name] == fastest[name] else 2.0 for name in decisions}
        return [TunedStep(1.0 + (choices != safe) if slower else sum(times.values()), times)] * 3

    monkeypatch.setattr(Rig, "run", run)
    results = tuner.tune([work()]).results
    assert results.choices == (safe if slower else fastest)
    count = len(decisions)
    before, after, changed = (1.0, 1.0, 0) if slower else (2.0 * count, 1.0 * count, count)
    expected = {"before": before, "after": after, "decisions": count, "changed": changed}
    assert results.workloads["small:2"] == expected


def test_an_interrupt_keeps_what_was_found_and_the_next_run_goes_on(device, folder, monkeypatch):
    real, ran = Rig.run, []

    def run(rig, choices):
        ran.append(rig.work.name)
        if ran.count("small:3") == 2:
            raise KeyboardInterrupt
        return real(rig, choices)

    monkeypatch.setattr(Rig, "run", run)
    with pytest.raises(KeyboardInterrupt):
        Tuner(device, folder).tune([work(2), work(3)], MINUTES)
    (path,) = folder.iterdir()
    kept = tuned.load(path)
    assert list(kept.workloads) == ["small:2"]
    names = set(kept.choices)

    ran.clear()
    monkeypatch.setattr(Rig, "run", lambda *a: ran.append(a[0].work.name) or real(*a))
    done = Tuner(device, folder).tune([work(2), work(3)], MINUTES).results
    assert set(ran) == {"small:3"}, "what is done is not run again"
    assert list(done.workloads) == ["small:2", "small:3"] and names <= set(done.choices)
    second = make_plan(work(3).request, device).decisions
    assert set(second) <= set(done.choices)

    ran.clear()
    Tuner(device, folder).tune([work(2)], MINUTES, again=True)
    assert set(ran) == {"small:2"}
    again = tuned.load(path)
    assert set(again.workloads) == set(done.workloads) and set(again.choices) == set(done.choices)


def test_tuning_again_loses_nothing_when_it_is_interrupted(device, folder, monkeypatch):
    others = {name: d.candidates[-1] for name, d in make_plan(work().request, device).decisions.items()}
    path = tuned.save(tuned.TuningResults(DeviceKind.of(device), {"workloads": {"small:2": {}}}, others), folder)

    def run(rig, choices):
        raise KeyboardInterrupt

    monkeypatch.setattr(Rig, "run", run)
    with pytest.raises(KeyboardInterrupt):
        Tuner(device, folder).tune([work()], MINUTES, again=True)
    assert tuned.load(path).choices == others


def test_a_folder_that_cannot_be_written_is_refused_before_any_work(device, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(Rig, "run", lambda *a: pytest.fail("measured"))
    with pytest.raises(FormatError):
        Tuner(device, tmp_path / "file").tune([work()], MINUTES)


def test_little_time_is_shared_out(device, folder, monkeypatch):
    """Every workload gets its share of the time, and candidates without a turn drop out."""
    clock, ran = [0.0], []

    def run(rig, choices):
        clock[0] += 10.0
        ran.append(rig.work.name)
        return [TunedStep(0.001, dict.fromkeys(rig.decisions, 1.0))] * 3

    monkeypatch.setattr(Rig, "run", run)
    monkeypatch.setattr(tuning.time, "monotonic", lambda: clock[0])
    results = Tuner(device, folder).tune([work(2), work(3)], minutes=2).results
    compared = 2 * tuning.COMPARISONS
    assert 6 <= ran.count("small:2") - compared <= 9 and 6 <= ran.count("small:3") - compared <= 9
    assert len(results.choices) == sum(w["decisions"] for w in results.workloads.values())


def test_a_damaged_file_is_not_overwritten(device, folder):
    path = tuned.path_of(DeviceKind.of(device), folder)
    path.write_text("{")
    with pytest.raises(FormatError, match=path.name):
        Tuner(device)
    assert path.read_text() == "{"


def test_tuned_and_safe_plans_agree(device, folder):
    """Also where every decision is another one than the safe one."""
    request, rng = work(3).request, np.random.default_rng(0)
    weights, x = request.network.initialize(), rng.standard_normal((3 * 144, 16), np.float32)
    safe = make_plan(request, device)
    others = {name: decision.candidates[-1] for name, decision in safe.decisions.items()}
    tuned.save(tuned.TuningResults(DeviceKind.of(device), {}, others), folder)
    plan = make_plan(request, device)
    assert plan.tuned_count == len(others) and safe.tuned_count == 0
    found = []
    for each in (safe, plan):
        session = Session(each, Context(device))
        session.load(weights)
        loss, _, finite = session.train([(x, np.array([0, 1, 2], np.int32))], 3, 0.1, 1)
        assert finite
        found.append({"loss": np.array(loss), **session.gradients()})
        session.close()
    for name, array in found[0].items():
        np.testing.assert_allclose(found[1][name], array, rtol=1e-4, atol=1e-6, err_msg=name)


# -- what a decision is charged with -----------------------------------------------------------------------------------


def test_shares():
    """A launch that adds up what two decisions left costs each by its bytes; what nobody decided costs nobody."""
    a, b = (Decision(f"{name} 1", ({"items": 0},), {"items": 0}) for name in "ab")
    parts_a, parts_b = Buffer("a", 300, Role.PARTIAL), Buffer("b", 100, Role.PARTIAL)
    other, total = Buffer("x", 600, Role.TEMPORARY), Buffer("sum", 8, Role.GRADIENT)

    def launch(decision, *accesses):
        return Launch("copy.cl", "copy", (), (1,), 1, accesses, decision=decision)

    times = [
        (launch(a, In(other), Out(parts_a)), 0, 70),
        (launch(b, In(other), Out(parts_b)), 80, 90),
        (launch(None, In(parts_a), In(parts_b), In(other), Out(total)), 100, 200),
        (launch(None, In(total), In(other)), 200, 1000),
        (launch(a, In(other), Out(parts_a)), 1000, 1001),
    ]
    assert shares(times) == {"a 1": 70 + 30 + 1, "b 1": 10 + 10}


def test_groups():
    """Workloads are timed together where they share what is open, also by way of a third one."""

    class Fake:
        def __init__(self, name, *decisions):
            self.work = TuningWork(name, None)
            self.decisions = {d: Decision(d, ({"rows": 1}, {"rows": 2}), {"rows": 1}) for d in decisions}

        def run(self, choices):
            return [TunedStep(1.0, dict.fromkeys(self.decisions, 3.0 + i)) for i in range(2)]

    a, b, c, d = Fake("a", "1", "2"), Fake("b", "3", "s"), Fake("c", "2", "3"), Fake("d", "s")
    groups = groups_of([a, b, c, d], {"s"})
    assert [str(group) for group in groups] == ["a, b, c", "d"]
    assert [set(group.open) for group in groups] == [{"1", "2", "3"}, set()]
    assert set(groups[0].decisions) == {"1", "2", "3", "s"}
    assert groups[0].run({}) == {"1": 3, "2": 6, "3": 6, "s": 3}, "times of several workloads add up"
    assert [str(group) for group in groups_of([a, b, c, d], set())] == ["a, b, c, d"]


# -- workloads ---------------------------------------------------------------------------------------------------------


def test_works_of_plans():
    """One for each size of micro-batch."""
    device = DEVICES[0]
    plans = [make_plan(Request(network(), 8, 3, SGD()), device), make_plan(Request(network(), 5, 5), device)]
    works = works_of(plans)
    assert [w.name for w in works] == ["train small:3", "train small:2", "predict small:5"]
    assert [(w.trains, w.request.batch_size, w.request.micro_batch) for w in works] == [
        (True, 3, 3), (True, 2, 2), (False, 5, 5)
    ]  # fmt: skip


def test_kernels_of_units_are_decided(device):
    """Kernels of integers are decided on this device, those of halves on one with matrix units."""
    integers = Rig(replace(work(), request=replace(work().request, precision=named_precision("int8"))), *of(device))
    assert {name.split()[0] for name in integers.decisions} >= {
        "quantized_convolution_forward", "quantized_convolution_backward_data", "quantized_convolution_backward_weights"
    }  # fmt: skip
    assert all(steps.seconds > 0 for steps in integers.run({}))
    traits = replace(Traits.of(device), find_units=lambda: ("MMA",))
    halves = make_plan(replace(work().request, compute=Compute("bf16")), device, traits=traits).decisions
    assert {name.split()[0] for name in halves} >= {"units_forward_bf16", "units_backward_weights_bf16"}
    assert all(len(d.candidates) > 1 for name, d in halves.items() if name.startswith("units_"))


def of(device):
    context = Context(device, profiling=True)
    return context, Kernels(context)


def test_works_by_name():
    integers = TuningWork.parse("resnet18_cifar/train_bn:4", "int8")
    assert integers.name == "resnet18_cifar/train_bn:4, int8" and integers.request.precision == named_precision("int8")
    assert TuningWork.parse("train:1", "bf16").request.compute == Compute("bf16")
    cached = TuningWork.parse("cached:163/15")
    assert cached.request.batch_size == cached.request.micro_batch == 15 and cached.trains
    assert not TuningWork.parse("forward:2").trains
    assert TuningWork.parse("accumulate:8").request.micro_batch == 1
    assert TuningWork.parse("flowers-sample").request.network.output.shape == (5,)


BAD = ("backward:1", "train:0", "train:2/3", "train:2/0", "train:2/", "train:2/x", "train/conv1", "forward/dense:8/2")


@pytest.mark.parametrize("text", BAD)  # the last are ops by themselves
def test_works_that_are_none(text):
    with pytest.raises(EdgelearnError, match=r"[Ww]orkload"):
        TuningWork.parse(text)


@pytest.mark.parametrize("text", CPU + GPU)
def test_defaults_are_workloads(text):
    assert TuningWork.parse(text).name == text
