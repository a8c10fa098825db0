"""Lanes side by side, the claim, and trainings from scratch on the embedded drawings."""

import re
from dataclasses import replace
from importlib.util import find_spec

import pytest

from edgelearn.compile import Invert, account
from edgelearn.errors import DataError, PlanError, RunError
from edgelearn.experiments.memory import (  # fmt: skip
    LANES,
    MemoryConfig,
    MemoryExperiment,
    check,
    check_process,
    check_times,
    check_trained,
    compare,
    lane_plan,
    on_the_spot,
    report,
)
from edgelearn.experiments.memory.compare import _Worker
from edgelearn.experiments.memory.plans import TWIN, plans_to_measure
from edgelearn.lab.runs import RunStore
from edgelearn.models import mobilenet_v1, mobilenet_v2_cifar
from edgelearn.runtime import choose_device
from edgelearn.train import Callback

NETWORK = mobilenet_v2_cifar(alpha=0.25)
BASE = MemoryConfig("sample", epochs=1)


@pytest.fixture(scope="module")
def device():
    return choose_device(None).device


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return RunStore(tmp_path_factory.mktemp("memory") / "runs")


def test_lanes_take_turns_and_compute_the_same(tmp_path):
    lanes = ["keep_all", "checkpoints", "1 MB stored", "paged", *(["torch"] if find_spec("torch") else [])]
    found = compare("mobilenet_v2_cifar", lanes, 2, rounds=2, steps=1, alpha=0.25)
    assert [lane.lane for lane in found] == lanes and all(lane.seconds.shape == (2,) for lane in found)
    ours = [lane for lane in found if lane.planned]
    assert all(lane.allocated == lane.planned and lane.predicted > 0 for lane in ours)
    assert ours[0].stored > ours[1].stored and ours[2].stored <= 1e6
    assert ours[3].paged > 10 * ours[3].stored and [lane.paged for lane in ours[:3]] == [0, 0, 0]
    assert all(lane.loss == ours[0].loss for lane in ours)
    assert all(lane.loss == pytest.approx(ours[0].loss, rel=1e-3) and lane.process > 1e6 for lane in found)
    assert [row[0] for row in report.cells(found)] == lanes
    assert len(report.plot(found).axes[0].texts) == len(ours)
    assert len(report.records(found)[0]["seconds"]) == 2


def test_every_lane_of_ours_can_be_planned(device):
    for lane in LANES:
        if not lane.startswith("torch"):
            plan = lane_plan(lane, NETWORK, device, 8)
            if lane.endswith("MB stored"):
                assert account(plan).stored <= int(lane.split()[0]) * 10**6
    assert any(
        isinstance(w, Invert) for w in lane_plan("invertible", NETWORK, device).request.activation_memory.values()
    )


def test_networks_without_rows_of_residual_blocks_are_measured_without_couplings(device):
    network = mobilenet_v1(alpha=0.25)
    assert set(plans_to_measure(network, device)) == {"prediction", "keep_all", "checkpoints", "nested"}
    with pytest.raises(PlanError, match="No stream of"):
        lane_plan("invertible", network, device)


def test_what_cannot_be_compared(device):
    with pytest.raises(RunError, match="'by hand' is no lane: choose keep_all"):
        lane_plan("by hand", NETWORK, device)
    with pytest.raises(RunError, match=r"The lane 'keep_all' can't be done: 'lenet' is no network"):
        compare("lenet", ["keep_all"], rounds=1)
    with pytest.raises(RunError, match=r"can't be done: .*over the budget"):
        compare("mobilenet_v2_cifar", ["1 KB stored"], rounds=1, alpha=0.25)
    if find_spec("torch"):
        with pytest.raises(RunError, match=r"The lane 'torch' can't be done: PyTorch's twin has no SubSpectral"):
            compare("bcresnet", ["torch"], rounds=1)
    with pytest.raises(RunError, match="1 or more rounds, not 0"):
        compare(rounds=0)
    with pytest.raises(PlanError, match="over the budget"):
        lane_plan("1 KB stored", NETWORK, device)


def test_a_lane_whose_process_has_died():
    with _Worker("keep_all", "mobilenet_v2_cifar", 0.25, 1, "") as worker:
        worker.process.kill()
        worker.process.wait()
        with pytest.raises(RunError, match="The lane 'keep_all' stopped"):
            worker.ask(1)


def test_the_claim_holds(device):
    verdicts = check(device)
    assert len(verdicts) == 11 and all(verdict.passed for verdict in verdicts), verdicts


def test_times_are_checked(device):
    """How near depends on the machine; what is near enough doesn't."""
    ratio, predictions = check_times(NETWORK, device, rounds=1)
    assert isinstance(ratio.passed, bool) and re.match(r"\d\.\d\d \(", ratio.measured)
    assert "each of 13 lanes" in predictions.claim and predictions.measured.count("%") == 2
    seconds = {"invertible": 1.3, TWIN: 1.0}
    assert on_the_spot.ratio(seconds).passed and not on_the_spot.ratio(seconds | {TWIN: 0.9}).passed
    for factor, holds in (0.84, False), (0.86, True), (1.14, True), (1.16, False):
        found = on_the_spot.predictions(seconds, seconds | {TWIN: factor})
        assert found.passed is holds and f"{factor - 1:+.1%} ({TWIN})" in found.measured


def test_a_process_that_trains(device, monkeypatch, tmp_path):
    """Once kernels are compiled and kept, as they are not in other tests."""
    assert check_process(device).passed is None
    if device.kind == "cpu":
        monkeypatch.setenv("EDGELEARN_PROGRAMS", str(tmp_path))
        found = check_process(device)
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
        assert check_trained(store).passed is None
        finish(twin, seed=seed, reversible=True)
    found = check_trained(store)
    assert found.passed and found.measured.startswith("+0.17 points, 3 seeds (90.17%, 90.00%)")
    for seed in (3, 4):
        finish(0.9, seed=seed)
        finish(0.85, seed=seed, reversible=True)
    assert check_trained(store).passed is False


class StopAt(Callback):
    def on_train_batch_end(self, batch, logs):
        if self.model.position.updates == 3:
            self.model.stop_training = True


def test_trainings_have_the_bits_of_keeping_all(store):
    """Of the reversible network: interrupted and gone on with, and inverting, against keeping everything."""
    kept = MemoryExperiment.start(replace(BASE, reversible=True), store, [], lambda text: None)
    inverting = replace(BASE, reversible=True, activation_memory="invertible")
    assert MemoryExperiment.start(inverting, store, [StopAt()], lambda text: None) is None
    found = MemoryExperiment.resume(store.newest_unfinished("memory"), store, [], lambda text: None)
    assert found["loss"] == kept["loss"] and found["memory"]["planned"] < kept["memory"]["planned"]
    record = store.open(store.list()[0].id).record
    assert "invert by" in str(record["plan"]) and record["config"]["activation_memory"] == "invertible"


def test_both_networks_begin_alike():
    plain, twin = (MemoryExperiment.load(replace(BASE, reversible=r)).task for r in (False, True))
    assert set(plain.model.weights) == set(twin.model.weights)
    assert all((plain.model.weights[name] == w).all() for name, w in twin.model.weights.items())
    assert (plain.train[1] == twin.train[1]).all()


def test_what_cannot_be_trained(monkeypatch):
    monkeypatch.delenv("EDGELEARN_DATA", raising=False)
    for settings, message in ({"activation_memory": "magic"}, "no policy"), ({"epochs": 0}, "at least 1"):
        with pytest.raises(RunError, match=message):
            MemoryConfig(**settings)
    with pytest.raises(RunError, match="'moon' is no task"):
        MemoryExperiment.resolve(MemoryConfig("moon"))
    with pytest.raises(DataError, match="EDGELEARN_DATA"):
        MemoryExperiment.load(MemoryConfig("cifar10", download=False))
