"""Comparison of plans, claims, and trainings from scratch on the embedded drawings. tests/notebooks checks the claims
about plans, which a notebook shows."""

import os
import re
from dataclasses import replace
from importlib.util import find_spec

import pytest

import edgelearn as el
from edgelearn.child import Worker
from edgelearn.compile import Compress, Invert, Offload, Recompute, account, make_plan
from edgelearn.compile.plan import explain
from edgelearn.errors import DataError, PlanError, RunError
from edgelearn.experiments import memory, memory_plans
from edgelearn.experiments.claims import NotMeasured, check_claims
from edgelearn.experiments.memory import (
    PROCESS_CLAIM,
    TIME_CLAIMS,
    TRAINED_CLAIM,
    MemoryConfig,
    MemoryExperiment,
    StepTimes,
    footprint,
    time_plans,
)
from edgelearn.experiments.memory_plans import (
    PLANS,
    REVERSIBLE,
    named_plan,
    plans_to_measure,
    plot_roles,
    plot_timeline,
)
from edgelearn.lab.runs import RunStore
from edgelearn.models import mobilenet_v1, mobilenet_v2_cifar
from edgelearn.ops import Dense, Softmax
from edgelearn.runtime import choose_device
from edgelearn.train import Callback
from tests.compile.test_rematerialiser import preactivated

NETWORK = mobilenet_v2_cifar(alpha=0.25)
BASE = MemoryConfig("sample", epochs=1)


@pytest.fixture(scope="module")
def device():
    return choose_device(None).device


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return RunStore(tmp_path_factory.mktemp("memory") / "runs")


class StopAt(Callback):
    def on_train_batch_end(self, batch, logs):
        if self.model.position.updates == 3:
            self.model.stop_training = True


def test_trainings_have_the_bits_of_keeping_all(store, monkeypatch):
    """A reversible network that inverts, interrupted and resumed, learns as one that keeps everything."""
    # Or kernels would take longer than to be compiled. Only Python's mapping has the variable (tests/conftest.py).
    monkeypatch.delitem(os.environ._data, os.environ.encodekey("POCL_EXTRA_BUILD_FLAGS"), raising=False)
    kept = MemoryExperiment.start(replace(BASE, reversible=True), store, [], lambda text: None)
    inverting = replace(BASE, reversible=True, activation_memory="invertible")
    assert MemoryExperiment.start(inverting, store, [StopAt()], lambda text: None) is None
    found = MemoryExperiment.resume(store.newest_unfinished("memory"), store, [], lambda text: None)
    assert found["loss"] == kept["loss"] and found["memory"]["planned"] < kept["memory"]["planned"]
    record = store.open(store.list()[0].id).record
    assert "invert by" in str(record["plan"]) and record["config"]["activation_memory"] == "invertible"


def test_plans_take_turns_and_compute_the_same(tmp_path):
    plans = ["keep_all", "1 MB stored", "paged", *(["torch"] if find_spec("torch") else [])]
    measured = memory_plans.compare("ds_cnn", plans, 4, rounds=2, steps=1, attempts=1)
    assert [one.plan for one in measured] == plans and all(one.seconds.shape == (2,) for one in measured)
    ours = [one for one in measured if one.planned]
    assert all(one.allocated == one.planned and one.predicted > 0 for one in ours)
    assert ours[0].stored > 1e6 >= ours[1].stored
    assert ours[2].paged > 10 * ours[2].stored and [one.paged for one in ours[:2]] == [0, 0]
    assert all(one.loss == ours[0].loss for one in ours)
    assert all(one.loss == pytest.approx(ours[0].loss, rel=1e-3) and one.process > 1e6 for one in measured)
    assert [row[0] for row in memory_plans.table(measured).rows] == plans
    assert len(memory_plans.plot(measured).axes[0].texts) == len(ours)
    assert len(measured[0].seconds) == 2


def test_every_plan_of_ours_can_be_made(device):
    for name in PLANS:
        if not name.startswith("torch"):
            plan = named_plan(name, NETWORK, device, 8)
            if name.endswith("MB stored"):
                assert account(plan).stored <= int(name.split()[0]) * 10**6
    assert any(
        isinstance(w, Invert) for w in named_plan("invertible", NETWORK, device).request.activation_memory.values()
    )


def test_networks_without_rows_of_residual_blocks_are_measured_without_couplings(device):
    network = mobilenet_v1(alpha=0.25)
    assert set(plans_to_measure(network, device)) == {"prediction", "keep_all", "checkpoints", "nested"}
    with pytest.raises(PlanError):
        named_plan("invertible", network, device)


def test_what_cannot_be_compared(device):
    with pytest.raises(RunError, match="by hand"):
        named_plan("by hand", NETWORK, device)
    with pytest.raises(RunError, match="'lenet'"):
        memory_plans.compare("lenet", ["keep_all"], rounds=1)
    with pytest.raises(RunError, match=r"'1 KB stored'.* 0.001 MB"):
        memory_plans.compare(preactivated(), ["1 KB stored"], rounds=1)
    with pytest.raises(RunError, match="not 0"):
        memory_plans.compare(rounds=0)


def test_a_plan_whose_process_ends_is_named(monkeypatch):
    call = Worker.call

    def killed(worker, *request):
        worker.process.kill()
        return call(worker, *request)

    monkeypatch.setattr(Worker, "call", killed)
    with pytest.raises(RunError, match=r"'keep_all'.*SIGKILL"):
        memory_plans.compare(preactivated(), ["keep_all"], rounds=1)


def test_times_are_checked(device, monkeypatch):
    """How near depends on the machine; what is near enough doesn't."""
    monkeypatch.setattr(memory, "disturbance", lambda timings: "")
    network = preactivated()
    ratio, predictions = check_claims(TIME_CLAIMS, lambda: time_plans(network, device, rounds=1)).verdicts
    assert isinstance(ratio.passed, bool) and re.match(r"\d\.\d\d \(", ratio.measured)
    assert "each of 13 plans" in predictions.claim and predictions.measured.count("%") == 2
    monkeypatch.setattr(memory, "disturbance", lambda timings: "the times spread by 75%")
    monkeypatch.setattr(memory, "time_launches", lambda plans, *_: [None] * len(plans))
    for verdict in check_claims(TIME_CLAIMS, lambda: time_plans(network, device)).verdicts:
        assert verdict.passed is None and "75%" in verdict.measured
    seconds, (ratio, predictions) = {"invertible": 1.3, REVERSIBLE: 1.0}, TIME_CLAIMS
    assert ratio.check(StepTimes(seconds, {})).passed
    assert not ratio.check(StepTimes(seconds | {REVERSIBLE: 0.9}, {})).passed
    for factor, holds in (0.84, False), (0.86, True), (1.14, True), (1.16, False):
        found = predictions.check(StepTimes(seconds, seconds | {REVERSIBLE: factor}))
        assert found.passed is holds and f"{factor - 1:+.1%} ({REVERSIBLE})" in found.measured


def test_a_process_that_trains(device, monkeypatch, tmp_path):
    """Once kernels are compiled and kept, as they are not in other tests."""

    with pytest.raises(NotMeasured):
        footprint(device)
    if device.kind == "cpu":
        monkeypatch.setenv("EDGELEARN_PROGRAMS", str(tmp_path))
        (found,) = check_claims([PROCESS_CLAIM], lambda: footprint(device)).verdicts
        assert found.passed and float(found.measured.split()[0]) > 55, "it holds the plan, at least"


def test_finished_trainings_are_compared(tmp_path):
    store = RunStore(tmp_path)

    def finish(accuracy: float, **settings) -> None:
        with store.create("memory", MemoryExperiment.resolve(MemoryConfig("cifar10", **settings)).to_dict()) as run:
            run.finish({"accuracy": accuracy})

    for seed, twin in enumerate((0.90, 0.91, 0.895)):
        finish(0.9, seed=seed)
        for other in {"epochs": 1}, {"micro_batch": 8}, {"activation_memory": "halves"}:  # other trainings
            finish(twin - 0.02, seed=seed, reversible=True, **other)
        assert TRAINED_CLAIM.check(store).passed is None
        finish(twin, seed=seed, reversible=True)
    found = TRAINED_CLAIM.check(store)
    assert found.passed and found.measured.startswith("+0.17 points, 3 seeds (90.17%, 90.00%)")
    for seed in (3, 4):
        finish(0.9, seed=seed)
        finish(0.85, seed=seed, reversible=True)
    assert TRAINED_CLAIM.check(store).passed is False


def test_both_networks_begin_alike():
    plain, twin = (MemoryExperiment.load(replace(BASE, reversible=r)).task for r in (False, True))
    assert set(plain.model.weights) == set(twin.model.weights)
    assert all((plain.model.weights[name] == w).all() for name, w in twin.model.weights.items())
    assert (plain.train[1] == twin.train[1]).all()


def test_what_cannot_be_trained(monkeypatch):
    monkeypatch.delenv("EDGELEARN_DATA", raising=False)
    with pytest.raises(DataError, match="EDGELEARN_DATA"):
        MemoryExperiment.load(MemoryConfig("cifar10", download=False))


# -- figures of plans --------------------------------------------------------------------------------------------------

MB = 10**6


@pytest.fixture(scope="module")
def model():
    network = el.Network("wide", (64,))
    for name in ("first", "second"):
        network.add(name, Dense(256))
    network.add("softmax", Softmax())
    return el.Model(network).compile(el.Adam(0.01))


def test_roles_add_up(model):
    plans = {"whole": model.plan(32), "in parts": model.plan(32, 4)}
    axes = plot_roles(plans).axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == list(plans)
    for row, plan in enumerate(plans.values()):
        drawn = sum(bar.get_width() for bars in axes.containers for bar in [bars[row]])
        assert drawn == pytest.approx(plan.peak_bytes / MB, rel=0.02)  # but for what is too little to see
    texts = [text.get_text().strip() for text in axes.texts]
    assert texts == [f"{plan.peak_bytes / MB:,.2f} MB" for plan in plans.values()]


@pytest.mark.parametrize("way", (None, Compress(), Offload(), Recompute()))
def test_timeline_is_the_explanations(model, way):
    request = model.plan(32).request
    plan = make_plan(
        replace(request, activation_memory=dict.fromkeys(request.network.nodes, way) if way else {}), model.device
    )
    (axes,) = plot_timeline(plan, "two layers").axes
    timeline = explain(plan).timeline
    assert [list(line.get_ydata()) for line in axes.lines if line.get_label() == "offloaded"] == (
        [[moment.paged / 1e6 for moment in timeline]] if way == Offload() else []
    )
    drawn = [sum(bars[place].get_height() for bars in axes.containers) for place in range(len(timeline))]
    assert drawn == pytest.approx([moment.nbytes / 1e6 for moment in timeline])
    assert [text.get_text() for text in axes.get_xticklabels()] == [moment.layer for moment in timeline]
    assert {plan.arena_bytes / 1e6} in [set(line.get_ydata()) for line in axes.lines]
    assert max(moment.nbytes for moment in timeline) <= plan.arena_bytes
    assert [text.get_text() for text in axes.texts][1:] == ["backward pass →"]


def test_timeline_of_a_prediction(model):
    (axes,) = plot_timeline(model.forward_plan(32)).axes
    assert len(axes.texts) == 1 and axes.containers
