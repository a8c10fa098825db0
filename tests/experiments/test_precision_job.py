"""Trainings of a tiny task in place of the sample, and what is made of them."""

import json
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from edgelearn.data.flowers import draw_flower
from edgelearn.errors import DataError, NonFiniteError, RunError
from edgelearn.experiments import precision_claims
from edgelearn.experiments.claims import check_claims
from edgelearn.experiments.precision import (
    EXPECTED,
    TASKS,
    TRACE,
    PrecisionConfig,
    PrecisionExperiment,
    VariantResult,
    collect,
    device_names,
    select,
    sweep,
    variants,
)
from edgelearn.experiments.precision_claims import Times, time_steps
from edgelearn.experiments.tasks import Pictures, load_model, predict
from edgelearn.lab.runs import RunStore
from edgelearn.ops import Dense, Flatten
from edgelearn.runtime import choose_device
from edgelearn.train import Callback, RangeTrace, callbacks
from tests.experiments import precision_tiny
from tests.networks import chain

BASE = PrecisionConfig("sample", epochs=1)
ROWS = ["fp32", "everything, in-hindsight", "everything, current"]


class StopAt(Callback):
    def __init__(self, update):
        self.update = update

    def on_train_batch_end(self, batch, logs):
        if self.model.position.updates == self.update:
            self.model.stop_training = True


class StopWhileCompiling(Callback):
    def on_compile(self, done, total):
        self.model.stop_training = True


@pytest.fixture(autouse=True, scope="module")
def _the_sample_is_tiny():
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(TASKS, "sample", precision_tiny.KIND)
        yield


@pytest.fixture(scope="module")
def device():
    return choose_device(None).device


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    store, said = RunStore(tmp_path_factory.mktemp("precision") / "runs"), []
    assert sweep(BASE, select(ROWS), (0, 1), store, log=said.append)
    return store, said


def test_a_sweep_trains_what_is_missing(swept):
    store, said = swept
    assert said[0] == "1 of 6: fp32, seed 0" and len(said) == 12 and len(store.list()) == 6
    assert sweep(BASE, select(ROWS), (0, 1), store, log=said.append)
    assert len(said) == 12, "all is there"
    assert {summary.kind for summary in store.list()} == {"precision"}


def test_an_interrupted_sweep_goes_on_with_the_same_bits(swept, tmp_path):
    rows, store = select(["everything, in-hindsight"]), RunStore(tmp_path / "runs")
    assert not sweep(BASE, rows, (1,), store, lambda: [StopAt(5)], log=lambda text: None)
    assert store.list()[0].status == "interrupted"
    assert sweep(BASE, rows, (1,), store, log=lambda text: None)
    (again,) = collect(BASE, rows, (1,), store)
    (whole,) = collect(BASE, rows, (1,), swept[0])
    assert again.accuracies == whole.accuracies and again.results["loss"] == whole.results["loss"]


def test_a_finished_run_names_pictures(swept, tmp_path):
    store, _ = swept
    picture = tmp_path / "tulip.png"
    Image.fromarray(draw_flower("tulips", 99, 0, 160)).save(picture)
    ((path, answer),) = predict([str(picture)], store)
    run = store.open(store.list()[0].id)
    expected = load_model(run).predict(Pictures(precision_tiny.SIZE).load(str(picture)))[0]
    named = dict(zip(run.record["data"]["classes"], expected, strict=True))
    assert path == str(picture) and [name for name, _ in answer] == sorted(named, key=named.get, reverse=True)[:3]
    assert [share for _, share in answer] == pytest.approx([named[name] for name, _ in answer])


class DivergeAt(StopAt):
    def on_train_batch_end(self, batch, logs):
        if self.model.position.updates == self.update:
            raise NonFiniteError("a NaN appeared")


def test_a_sweep_goes_on_past_a_training_that_diverges(swept, tmp_path):
    rows, store, said = select(["gradients of 4 bits, *"]), RunStore(tmp_path / "runs"), []
    never, at = [Callback()], [DivergeAt(3)]
    callbacks = iter([at, never])
    assert sweep(BASE, rows, (0,), store, lambda: next(callbacks), log=said.append)
    assert said[1] == "  diverged: a NaN appeared" and len(said) == 4
    assert sweep(BASE, rows, (0,), store, log=said.append) and len(said) == 4, "it isn't tried again"
    first, second = collect(BASE, rows, (0,), store)
    assert first.diverged == (0,) and first.to_dict() == {"accuracies": {}, "diverged": [0]} and not second.diverged
    assert precision_claims.results_table([first, second]).rows[0][1:3] == ("", "0, 1 diverged")
    precision_claims.plot([first, second])
    found = VariantResult("everything, in-hindsight", {0: 0.9}, {}, (), (1,))
    claim = precision_claims.accuracy_claim(found.variant, "fp32", 1.0)
    assert claim.check([found, VariantResult("fp32", {0: 0.9}, {}, ())]).passed is False


def test_a_table_of_what_came_of_it(swept, tmp_path):
    rows = collect(BASE, select([]), (0, 1, 2), swept[0])
    assert [row.variant for row in rows] == ROWS and all(set(row.accuracies) == {0, 1} for row in rows)
    known = [VariantResult("fp32", {0: 0.5, 1: 0.7}, {}, ())]
    plain, quantized, _ = precision_claims.results_table(rows, known).rows
    assert plain[4] == "60.00 ± 127.06" and plain[3] == "" and quantized[4] == ""
    below = 100 * (rows[0].mean - rows[1].mean)
    assert (
        quantized[1] == precision_claims.spread(list(rows[1].accuracies.values())) and quantized[3] == f"{below:+.2f}"
    )
    memory = rows[1].results["memory"]
    assert memory["planned"] == memory["allocated"] < memory["process"]
    assert int(quantized[8]) > int(plain[8]), "simulated quantization reads and writes more, and says so"
    precision_claims.plot(rows, tmp_path / "chart.png")
    assert (tmp_path / "chart.png").read_bytes()[:4] == b"\x89PNG"


def test_a_trace_is_kept_with_the_run(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(callbacks, "in_notebook", lambda: True)
    store = RunStore(tmp_path / "runs")
    PrecisionExperiment.start(replace(BASE, trace=4), store, [], lambda text: None)
    trace = RangeTrace.read(store.list()[0].folder / TRACE)
    assert list(trace.steps) == [1, 5, 9, 13] and "dense/gradients" in trace.tensors
    assert not np.isnan(trace.cosine).any()
    assert not capsys.readouterr().out, "experiments show what their callbacks show"


def test_a_trace_goes_on_where_training_was_stopped(tmp_path):
    store, config = RunStore(tmp_path / "runs"), replace(BASE, trace=1, epochs=2)
    assert PrecisionExperiment.start(config, store, [StopAt(20)], lambda text: None) is None
    run = store.list()[0]
    assert list(RangeTrace.read(run.folder / TRACE).steps) == list(range(1, 21))
    before = (run.folder / TRACE).read_bytes()
    assert PrecisionExperiment.resume(run.id, store, [StopWhileCompiling()], lambda text: None) is None
    assert (run.folder / TRACE).read_bytes() == before, "nothing was trained, nothing is lost"
    assert PrecisionExperiment.resume(run.id, store, [], lambda text: None)
    resumed = RangeTrace.read(run.folder / TRACE)
    PrecisionExperiment.start(config, store, [], lambda text: None)
    whole = RangeTrace.read(store.list()[0].folder / TRACE)
    assert np.array_equal(resumed.steps, whole.steps) and np.array_equal(resumed.records, whole.records)


def test_a_training_that_diverges_leaves_its_trace(tmp_path):
    store = RunStore(tmp_path / "runs")
    with pytest.raises(NonFiniteError):
        PrecisionExperiment.start(replace(BASE, trace=1), store, [DivergeAt(3)], lambda text: None)
    assert len(RangeTrace.read(store.list()[0].folder / TRACE).steps) >= 2


def test_trainings_are_found_by_the_device_they_ran_on(swept):
    (row,) = collect(BASE, select(["fp32"]), (0, 1), swept[0])
    for name in row.devices[0], row.devices[0].upper(), row.devices[0][:5]:
        assert collect(replace(BASE, device=name), select(["fp32"]), (0, 1), swept[0]) == [row]
    assert collect(replace(BASE, device="no such device"), select(["fp32"]), (0, 1), swept[0]) == []


def test_devices_of_a_table(tmp_path):
    """Each training on its own device, and a run that a newer version made, which is none of them."""
    store = RunStore(tmp_path / "runs")
    rows = select(["fp32", "everything, current"])
    for number, variant in enumerate(rows):
        for seed in (0, 1):
            config = PrecisionExperiment.resolve(variant.config(BASE, seed)).to_dict()
            with store.create("precision", config, device={"name": f"device {number + seed}"}) as run:
                run.finish({"accuracy": 0.5})
    for odd in {"task": "moon"}, {"sparsity": 0.5}:
        with store.create("precision", odd):
            pass
    found = collect(BASE, rows, (0, 1), store)
    assert [row.devices for row in found] == [("device 0", "device 1"), ("device 1", "device 2")]
    assert device_names(found) == "device 0, device 1, device 2"


def test_photographs_are_never_replaced(monkeypatch):
    monkeypatch.delenv("EDGELEARN_DATA", raising=False)
    with pytest.raises(DataError, match="EDGELEARN_DATA"):
        PrecisionExperiment.load(PrecisionConfig("cifar10-resnet18", download=False))
    with pytest.raises(DataError):
        PrecisionExperiment.load(PrecisionConfig("flowers", download=False))


def test_resuming_another_kind_of_run(tmp_path):
    store = RunStore(tmp_path / "runs")
    with store.create("flowers", {"seed": 0}) as run:
        name = run.id
    with pytest.raises(RunError, match="'flowers'"):
        PrecisionExperiment.resume(name, store, [])


# -- the claim -------------------------------------------------------------------------------------------------------


def test_the_published_figures_are_the_formulas():
    assert [each.passed for each in check_claims(precision_claims.COSTS, precision_claims.networks).verdicts] == [
        True
    ] * 5


def test_verdicts_on_accuracy():
    def row(name, *shares):
        return VariantResult(name, dict(enumerate(shares)), {}, ())

    name = "everything, in-hindsight"
    plain, close, far = row("fp32", 0.9, 0.8, 0.7), row(name, 0.897, 0.795, 0.696), row("x", 0.91, 0.9, 0.8)

    def accuracy(results, *claim):
        return precision_claims.accuracy_claim(*claim).check(results)

    verdict = accuracy([plain, close], close.variant, "fp32", 0.5)
    assert verdict.passed and verdict.word == "passed" and verdict.measured.startswith("-0.40 points, mean of 3 seeds")
    assert accuracy([plain, close], close.variant, "fp32", 0.3).word == "failed"
    assert accuracy([far, close], close.variant, "x", 1.0).passed is False
    assert accuracy([plain], close.variant, "fp32", 1.0).word == "not measured"
    assert accuracy([plain, row(name, 0.9, 0.8)], name, "fp32", 1.0).word == "not measured", "of too few seeds"
    more = row("fp32", 0.9, 0.8, 0.7, 0.1)
    assert accuracy([more, close], close.variant, "fp32", 0.5) == verdict, "of the seeds that both have"


def test_counters(device):
    """A notebook's test checks the claims on steps: tests/notebooks."""
    found = check_claims(precision_claims.COUNTERS, lambda: device)
    assert len(found.verdicts) == 6 and all(verdict.passed for verdict in found.verdicts), str(found)


@pytest.mark.parametrize(
    ("ratios", "word"), [((0.7, 0.8, 0.9), "passed"), ((1.1, 1.2, 1.3), "failed"), ((0.5, 1.1, 1.2), "not measured")]
)
def test_verdicts_on_time(ratios, word):
    seconds = {"in-hindsight": np.array(ratios), "current": np.ones(3)}
    assert precision_claims.faster_claim("net", 1).check(Times("", "net", 1, seconds, {}, {})).word == word


def test_what_was_timed_is_told_and_what_disturbed_it():
    quiet = Times("a CPU", "net", 2, {"fp32": np.array([1.0, 1.1, 1.2])}, {"fp32": 1}, {"fp32": 1}, steps=5)
    title = precision_claims.time_title(quiet, "moving")
    assert all(word in title for word in ("net", "2 examples", "moving", "a CPU", "3 rounds", "5 steps"))
    assert quiet.problem == ""
    assert "other processes" in replace(quiet, noise=0.6).problem
    assert "spread by 50%" in replace(quiet, seconds={"fp32": np.array([1.0, 2.0, 3.0])}).problem
    ((_, middle, half, *_),) = precision_claims.time_table(quiet).rows
    assert (middle, half) == ("1100.00", "1050.00 – 1150.00")


def test_steps_are_timed_in_turn(device):
    network = chain("small", (4, 4, 16), flatten=Flatten(), dense=Dense(5))
    rounds = []
    times = time_steps(
        network, device, 2, rounds=3, steps=2, variants=("fp32", "in-hindsight", "current"),
        progress=lambda done, total: rounds.append((done, total)),
    )  # fmt: skip
    assert rounds == [(1, 3), (2, 3), (3, 3)] and all(len(found) == 3 for found in times.seconds.values())
    middle, low, high = times.ratio("in-hindsight", "current")
    assert 0 < low <= middle <= high
    assert [cells[0] for cells in precision_claims.time_table(times).rows] == ["fp32", "in-hindsight", "current"]
    assert times.traffic["in-hindsight"] < times.traffic["current"]


def test_a_type_without_a_unit_is_left_out(tmp_path):
    device = choose_device().device
    if "MMA" in device.units:
        pytest.skip("this device has matrix units for halves")
    store, lines = RunStore(tmp_path / "runs"), []
    assert sweep(BASE, select(["bf16"]), (0,), store, log=lines.append)
    assert store.list() == [] and any("bf16" in line and "left out" in line for line in lines)


def test_expected_figures_are_of_arms_that_there_are():
    names = {variant.name for variant in variants()}
    for task, found in json.loads(EXPECTED.read_text())["tasks"].items():
        assert task in TASKS and set(found["variants"]) <= names
        assert {"device", "date", "command"} <= set(found)
        assert all(0 <= share <= 1 for entry in found["variants"].values() for share in entry["accuracies"].values())


def test_a_sweep_takes_up_what_was_killed_before_its_first_checkpoint(tmp_path):
    store, row = RunStore(tmp_path / "runs"), select(["fp32"])
    experiment = PrecisionExperiment.load(row[0].config(BASE, 0))
    experiment.create_run(store).close()
    assert [summary.status for summary in store.list()] == ["interrupted"]
    assert sweep(BASE, row, (0,), store, log=lambda text: None)
    assert [summary.status for summary in store.list()] == ["finished"]
