"""Combinations of precision, activation memory, micro-batch and trained layers on a network of one's own."""

import csv
import io
import json
import time
from types import SimpleNamespace

import numpy as np
import pytest

import edgelearn as el
from edgelearn.errors import NonFiniteError, PlanError, RunError
from edgelearn.experiments import combinations
from edgelearn.experiments.combinations import described, digest, split
from edgelearn.experiments.experiment import Training
from edgelearn.lab.energy import Meter
from edgelearn.lab.runs import RunStore
from edgelearn.lab.runs import compare as compare_runs
from edgelearn.ops import BatchNormalization, Conv2D, Dense, GlobalAveragePooling2D, MeanSquaredError, ReLU
from edgelearn.tables import Table
from edgelearn.train import Callback
from tests.networks import chain

COUNT = 40


def network(classes=2):
    return chain(
        "own", (8, 8, 3), conv=Conv2D(16, 3, padding="same", use_bias=False), norm=BatchNormalization(), relu=ReLU(),
        pool=GlobalAveragePooling2D(), dense=Dense(classes),
    )  # fmt: skip


def examples():
    rng = np.random.default_rng(0)
    labels = np.arange(COUNT) % 2
    x = rng.normal(size=(COUNT, 8, 8, 3)).astype(np.float32)
    x[labels == 1, :, :, 0] += 2
    return x, labels


SIX = [
    {}, {"precision": "int8"}, {"activation_memory": "checkpoints"}, {"activation_memory": "0.05 MB stored"},
    {"micro_batch": 4}, {"precision": "fp16", "trained": "from dense", "micro_batch": 4},
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("compare") / "runs"


@pytest.fixture(scope="module")
def comparison(folder):
    odd = [{"precision": "fp7"}, {"micro_batch": 64}, {"trained": "nothing"}, {"activation_memory": "1 byte stored"}]
    return el.compare(
        network(), examples(), SIX + odd, epochs=2, batch_size=8, optimizer=el.Adam(0.01), seeds=(0, 1), store=folder
    )


def test_each_training_is_a_run_that_allocates_what_was_planned(comparison, folder):
    done = comparison.rows[: len(SIX)]
    assert all(len(row.runs) == 2 and not row.reasons for row in done)
    assert all(row.bytes("planned") == row.bytes("allocated") for row in done)
    assert len(RunStore(folder).list()) == 2 * len(SIX) + 2  # a micro-batch is at most the mini-batch
    plain, int8, checkpoints, stored, small, head = done
    assert small.bytes("planned") < plain.bytes("planned") and head.bytes("planned") < plain.bytes("planned")
    assert all(run.record["results"]["memory"]["stored"] <= 50_000 for run in stored.runs.values())
    assert checkpoints.values == plain.values and stored.values == plain.values
    losses = [[run.history()[-1]["loss"] for run in row.runs.values()] for row in (plain, checkpoints, int8)]
    assert losses[0] == losses[1] != losses[2]
    assert plain.seconds("step") > 0 and plain.runs[0].config["seed"] == 0
    weights = el.load(head.runs[0].folder / "model.safetensors").weights
    assert np.array_equal(weights["conv/kernel"], network().initialize(0)["conv/kernel"])


def test_joules_stand_beside_seconds_where_they_are_counted(monkeypatch, tmp_path):
    watts = SimpleNamespace(source="a fake", every=None, tick=0.0, read=lambda: 1000 * time.perf_counter())
    monkeypatch.setattr(combinations, "find_meter", lambda device: Meter(watts))
    found = el.compare(network(), examples(), [{}], epochs=2, batch_size=8, optimizer=el.Adam(0.01), store=tmp_path)
    (row,) = found.rows
    run = row.runs[0]
    rows, results = run.history(), run.record["results"]
    assert results["joules"] == sum(each["joules"] for each in rows) and results["energy"]["source"] == "a fake"
    assert 0 < row.joules("step") < row.joules("epoch") and found.to_dict()["combinations"][0]["counter"] == "a fake"
    assert found.table().header[-2:] == ("J/step", "J/epoch") and "Energy: a fake." in str(found)


def test_what_fails_is_a_row_with_its_reason(comparison):
    failed = {row.combination.name: row.reason for row in comparison.rows if row.reasons}
    assert list(failed) == ["fp7", "fp32, trained nothing", "fp32, 1 byte stored"]
    assert all(reason.startswith("PlanError: ") for reason in failed.values())
    assert "'nothing'" in failed["fp32, trained nothing"]


def test_table_picture_and_record(comparison, tmp_path):
    text = comparison.to_text(80)
    assert max(map(len, text.splitlines())) <= 80 and len(repr(comparison)) < 120
    assert all(row.combination.name.split()[0] in text for row in comparison.rows)
    assert comparison.int8_speed and comparison.int8_speed in " ".join(text.split())
    assert comparison._repr_html_().count("<tr>") == 1 + len(comparison.rows)
    figure = comparison.plot(tmp_path / "own.png")
    assert (tmp_path / "own.png").read_bytes().startswith(b"\x89PNG") and len(figure.axes) == 3
    record = json.loads(json.dumps(comparison.to_dict()))
    first = record["combinations"][0]
    assert first["combination"]["precision"] == "fp32" and len(first["runs"]) == 2 and first["seconds"]["step"] > 0
    low, high = first["interval"][1:]
    assert low <= np.mean(list(first["accuracy"].values())) <= high
    runs = [row.runs[0] for row in comparison.rows[:2]]
    assert compare_runs(runs).differences == ["precision"]


def test_finished_trainings_are_found_again_and_others_are_not(comparison, folder, monkeypatch):
    monkeypatch.setattr(Training, "fit", None)  # nothing trains
    settings = {"epochs": 2, "batch_size": 8, "optimizer": el.Adam(0.01), "store": folder}
    again = el.compare(network(), examples(), SIX, seeds=(1, 0), **settings)
    assert [sorted(run.id for run in row.runs.values()) for row in again.rows] == [
        sorted(run.id for run in row.runs.values()) for row in comparison.rows[: len(SIX)]
    ]
    x, y = examples()
    for other in (
        {"data": (x + 1, y)}, {"optimizer": el.Adam(0.02)}, {"epochs": 3}, {"seeds": (2,)}, {"network": network(3)},
        {"batchnorm": "moving"},
    ):  # fmt: skip
        call = {"network": network(), "data": (x, y), "combinations": [{}], **settings, **other}
        assert el.compare(**call).rows[0].reasons, other


class StopAt(Callback):
    def on_train_batch_end(self, batch, logs):
        if self.model.position.updates == 5:
            self.model.stop_training = True


class Diverge(Callback):
    def on_train_batch_end(self, batch, logs):
        raise NonFiniteError("a gradient of 'dense' is infinite")


def test_an_interrupted_comparison_goes_on_with_the_same_bits(comparison, tmp_path):
    def run(callbacks=list, **settings):
        common = {"epochs": 2, "batch_size": 8, "optimizer": el.Adam(0.01), "store": tmp_path, "callbacks": callbacks}
        return el.compare(network(), examples(), [{}, {"micro_batch": 4}], **common | settings)

    stopped = run(lambda: [StopAt()])
    assert stopped.interrupted and not any(row.runs or row.reasons for row in stopped.rows)
    assert "same call" in str(stopped)
    with pytest.raises(RunError):
        stopped.plot()
    ended = run()
    assert not ended.interrupted and len(RunStore(tmp_path).list()) == 2
    assert ended.rows[0].runs[0].history()[-1]["loss"] == comparison.rows[0].runs[0].history()[-1]["loss"]


def test_a_training_that_diverged_is_not_made_again(tmp_path):
    common = {"epochs": 2, "batch_size": 8, "store": tmp_path}
    found = el.compare(network(), examples(), [{}], callbacks=lambda: [Diverge()], **common)
    assert found.rows[0].reason.startswith("NonFiniteError") and found.table().rows[0][1] == "failed"
    again = el.compare(network(), examples(), [{}], **common)
    assert again.rows[0].reason.startswith("diverged") and len(RunStore(tmp_path).list()) == 1


def test_a_model_with_its_weights_and_a_loss_that_is_no_accuracy(tmp_path):
    x, y = examples()
    model = el.Model(network(1), seed=3).compile(el.SGD(0.01), MeanSquaredError())
    found = el.compare(
        model, (x, y[:, None].astype(np.float32)), [{}, {"micro_batch": 4}], batch_size=8, store=tmp_path
    )
    first = found.rows[0]
    assert first.measure == "loss" and first.interval[0] == first.interval[2] and found.table().header[1] == "loss"
    record = first.runs[0].record
    assert record["config"]["weights"] and "accuracy" not in record["results"]
    assert np.array_equal(model.weights["dense/kernel"], el.Model(network(1), seed=3).weights["dense/kernel"])


def test_splits_and_digests():
    x, y = examples()
    (train, labels), (test, others) = split((x, y), 0.25)
    assert len(train) == 30 and np.bincount(labels).tolist() == [15, 15] and len(test) == len(others) == 10
    (_, labels), (_, others) = split(({"a": x, "b": x}, {"c": y * 1.0}), 0.25)
    assert len(labels["c"]) == 30 and len(others["c"]) == 10
    assert digest(x, y) == digest(x.copy(), y) != digest(x, y[::-1])
    assert digest({"a": x}) != digest({"b": x}) and len(digest()) == 64
    assert described(test_splits_and_digests).endswith(":test_splits_and_digests")
    assert described(el.SGD(0.1)) == described(el.SGD(0.1)) != described(el.SGD(0.2))
    with pytest.raises(PlanError, match="depth"):
        el.Combination.of({"depth": 3})
    with pytest.raises(RunError):
        el.compare(network(), (x, y), [])
    assert len(el.Combination.product(precision=("fp32", "int8"), micro_batch=(8, 4))) == 4


def test_tables_fit_a_terminal(comparison):
    assert max(map(len, str(comparison).splitlines())) <= 80


def test_tables_for_papers_and_spreadsheets(comparison):
    lines = list(csv.reader(io.StringIO(comparison.to_csv())))
    assert lines == [list(comparison.table().header), *map(list, comparison.table().rows)]
    latex = comparison.to_latex()
    assert latex.startswith("\\begin{tabular}{lrrrrrr}\n\\toprule\ncombination & ") and "\\%" in latex
    assert latex.count("\\\\\n") == len(comparison.rows) + 1
    assert "a\\_b \\& 5 \\% $\\pm$ 1" in Table(["x"], [["a_b & 5 % ± 1"]]).to_latex()


def test_combinations_of_no_activation_memory():
    plain, _ = el.Combination.product(activation_memory=(None, "1 MB stored"))
    assert plain == el.Combination() and plain.name == "fp32" and plain.to_dict()["activation_memory"] == "keep_all"
    with pytest.raises(PlanError, match=r"name of a policy \(.*checkpoints.*not 42"):
        el.Combination(activation_memory=42)
