"""Runs side by side, all results of every kind of run, and the tables that show them."""

import json

import pytest

from edgelearn.errors import RunError
from edgelearn.lab.runs import compare, list_table, wilson_interval
from edgelearn.lab.runs.results import MAX_ITEMS, flat_results, result_text

RESULTS = {
    "correct": 670, "total": 736, "loss": 0.31, "epochs": 100, "seconds": 3725.4,
    "memory": {"planned": 84 * 10**6, "allocated": 91 * 10**6, "process": 412 << 20},
    "joules": 512.0, "energy": {"source": "RAPL: package-0"},
}  # fmt: skip


@pytest.fixture
def runs(store):
    base = {"seed": 1, "lr": 0.003, "optimizer": {"name": "sgd", "momentum": 0.9}}
    with store.create("flowers", base, device={"name": "pocl"}) as first:
        first.append_epoch({"epoch": 1, "loss": 2.0, "val_loss": 1.0, "val_accuracy": 0.5})
        first.finish(RESULTS)
    changed = base | {"lr": 0.01, "optimizer": {"name": "sgd", "momentum": 0.0}, "budget": 1 << 20}
    with store.create("flowers", changed) as second:
        second.append_epoch({"epoch": 3, "loss": 2.5, "val_accuracy": 0.25})
    return [first, second]


def test_compare(runs):
    comparison = compare(runs).to_dict()
    first, second = (run.id for run in runs)
    assert comparison["runs"] == [first, second]
    assert comparison["differences"] == {
        "lr": {first: 0.003, second: 0.01},
        "optimizer.momentum": {first: 0.9, second: 0.0},
        "budget": {second: 1 << 20},
    }
    expected = {
        "status": ["finished", "interrupted"], "accuracy": [670 / 736, 0.25],
        "accuracy_interval": [wilson_interval(670, 736), None], "correct": ["670 of 736", None], "loss": [0.31, 2.5],
        "epochs": [100, 3], "seconds": [3725.4, None], "joules": [512.0, None], "planned": [84 * 10**6, None],
        "allocated": [91 * 10**6, None],
        "process": [412 << 20, None], "device": ["pocl", None], "energy.source": ["RAPL: package-0", None],
    }  # fmt: skip
    assert comparison["results"] == expected and list(comparison["results"]) == list(expected)
    json.dumps(comparison)
    with pytest.raises(RunError, match="at least one"):
        compare([])


@pytest.mark.parametrize("width", [60, 100])
def test_text(runs, width):
    text = compare(runs).to_text(width)
    assert max(map(len, text.splitlines())) <= width and "\x1b" not in text and "seed" not in text
    parts = "optimizer.momentum", "91.0 %", "1 h 02 min", "84.0 MB", "670 of 736", "(88.7 % to 92.9", "512 J"
    assert all(part in text for part in (runs[0].id, runs[1].id, *parts))


def test_text_of_equal_configs_and_odd_values(store):
    odd = {"name": "[red]x[/red] :smile:", "empty": {}}
    runs = [store.create("a", odd), store.create("a", odd)]
    assert "configs don't differ" in compare(runs).to_text()
    text = compare([runs[0], store.create("a", {"name": "[/]"})]).to_text()
    assert "[red]x[/red] :smile:" in text and "[/]" in text


@pytest.mark.parametrize("seconds", [float("inf"), float("-inf"), float("nan")])
def test_a_time_that_is_no_number_of_seconds(store, seconds):
    with store.create("a", {}) as run:
        run.finish({"seconds": seconds})
    assert f"{seconds:.1f} s" in compare([run]).to_text()


def test_plot(runs, tmp_path):
    figure = compare(runs).plot(tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert [line.get_xdata().tolist() for line in figure.axes[0].lines] == [[1], [1], [3]]


def test_list_table(store, runs):
    (store.create("bad", {}).folder / "run.json").write_text("{")
    text = list_table(store.list(), width=120)
    lines = {run.id: next(line for line in text.splitlines() if run.id in line) for run in runs}
    assert all(part in lines[runs[0].id] for part in ("finished", "91.0 %", "pocl"))
    assert all(part in lines[runs[1].id] for part in ("interrupted", "25.0 %", " 3 "))
    assert "damaged" in text and "run.json" in text and max(map(len, text.splitlines())) <= 120
    assert list_table([]) == "No runs yet."


# -- results of any kind -----------------------------------------------------------------------------------------------


def report(learner, shots, accuracy):
    measures = {
        "accuracy": {"mean": accuracy, "margin": 0.01, "count": 20},
        "auroc": {"mean": 0.9, "margin": 0.02, "count": 20},
    }
    return {"learner": learner, "num_classes": 5, "shots": shots, "measures": measures}


KEYWORDS = {"reports": [report("cosine", 1, 0.7), report("cosine", 5, 0.8), report("dummies", 5, 0.85)], "epochs": 3}
ROUNDS = {"rounds": [{"round": r, "accuracy": r / 100, "bytes": r * 10**6} for r in range(40)], "clients": 12}
LAST = {"rounds[40].round": 39, "rounds[40].accuracy": 0.39, "rounds[40].bytes": 39 * 10**6, "clients": 12}
NUMBERS = list(range(MAX_ITEMS))


@pytest.mark.parametrize(
    ("results", "flat"),
    [
        (ROUNDS, LAST),
        ({"a": [{"x": 0.5}, {"x": 0.25}]}, {"a[1].x": 0.5, "a[2].x": 0.25}),
        ({"list": NUMBERS, "none": [], "deep": {"er": {"est": True}}}, {"list": NUMBERS, "deep.er.est": True}),
    ],
)
def test_results_by_name(results, flat):
    assert flat_results(results) == flat


def test_results_in_lists_are_named_by_what_tells_them_apart():
    found = flat_results(KEYWORDS)
    assert found["reports[cosine, shots 5].measures.accuracy"] == {"mean": 0.8, "margin": 0.01, "count": 20}
    assert len(found) == 2 * 3 + 2 and found["reports.num_classes"] == 5 and found["epochs"] == 3


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("a.accuracy", 0.8, "80.0 %"), ("a.accuracy", {"mean": 0.8, "margin": 0.01, "count": 9}, "80.0 % ± 1.0 %"),
        ("upload_bytes", 2_500_000, "2.5 MB"), ("memory.stored", 10**6, "1.0 MB"), ("steps", 12000, "12,000"),
        ("eps", 1.23456, "1.235"), ("f1", 2.5, "2.5"), ("note", "fine", "fine"), ("private", False, "False"),
        ("rates", [1, 2], "1, 2"),
    ],
)  # fmt: skip
def test_a_result_as_text(name, value, expected):
    assert result_text(name, value) == expected


def test_runs_of_different_kinds_side_by_side(store):
    with store.create("keywords-train", {"seed": 1}) as keywords:
        keywords.finish(KEYWORDS | {"memory": {"planned": 10**6, "stored": 3 * 10**6}})
    with store.create("precision", {"seed": 1}) as precision:
        precision.append_epoch({"epoch": 1, "loss": 1.0, "val_loss": 0.5, "val_accuracy": 0.5, "val_auc": 0.75})
        precision.finish({"correct": 1, "total": 2, "accuracy": 0.5, "epochs": 1, "traffic": 7 * 10**6})
    comparison = compare([keywords, precision])
    results = comparison.to_dict()["results"]
    assert results["traffic"] == [None, 7 * 10**6] and results["val_auc"] == [None, 0.75]
    assert results["reports[dummies, shots 5].measures.accuracy"][0]["mean"] == 0.85
    assert results["memory.stored"] == [3 * 10**6, None] and results["planned"] == [10**6, None]
    shown = comparison.to_text(80)
    assert max(map(len, shown.splitlines())) <= 80 and "85.0 % ± 1.0 %" in shown and "7.0 MB" in shown
    assert "correct" in shown and "memory allocated" not in shown  # no run has it
    listed = list_table(store.list(), 140)
    assert "50.0 %" in listed and "70.0 % ± 1.0 %" in listed
