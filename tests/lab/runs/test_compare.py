import json

import pytest

from edgelearn.errors import RunError
from edgelearn.lab.runs import compare, list_table, wilson_interval

RESULTS = {
    "correct": 670,
    "total": 736,
    "loss": 0.31,
    "epochs": 100,
    "seconds": 3725.4,
    "memory": {"planned": 84 * 10**6, "allocated": 91 * 10**6, "process": 412 << 20},
}


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
    assert comparison["results"] == {
        "status": ["finished", "interrupted"],
        "accuracy": [670 / 736, 0.25],
        "accuracy_interval": [wilson_interval(670, 736), None],
        "correct": ["670 of 736", None],
        "loss": [0.31, 2.5],
        "epochs": [100, 3],
        "seconds": [3725.4, None],
        "planned": [84 * 10**6, None],
        "allocated": [91 * 10**6, None],
        "process": [412 << 20, None],
        "device": ["pocl", None],
    }
    json.dumps(comparison)


@pytest.mark.parametrize("width", [60, 100])
def test_text(runs, width):
    text = compare(runs).to_text(width)
    assert max(map(len, text.splitlines())) <= width
    assert "\x1b" not in text
    for part in (
        runs[0].id,
        runs[1].id,
        "optimizer.momentum",
        "91.0 %",
        "1 h 02 min",
        "84.0 MB",
        "670 of 736",
    ):
        assert part in text
    assert "(88.7 % to 92.9" in text
    assert "seed" not in text


def test_text_of_equal_configs_and_odd_values(store):
    odd = {"name": "[red]x[/red] :smile:", "empty": {}}
    runs = [store.create("a", odd), store.create("a", odd)]
    assert "configs don't differ" in compare(runs).to_text()
    text = compare([runs[0], store.create("a", {"name": "[/]"})]).to_text()
    assert "[red]x[/red] :smile:" in text
    assert "[/]" in text


@pytest.mark.parametrize("seconds", [float("inf"), float("-inf"), float("nan")])
def test_a_time_that_is_no_number_of_seconds(store, seconds):
    with store.create("a", {}) as run:
        run.finish({"seconds": seconds})
    assert f"{seconds:.1f} s" in compare([run]).to_text()


def test_plot(runs, tmp_path):
    figure = compare(runs).plot(tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert [line.get_xdata().tolist() for line in figure.axes[0].lines] == [[1], [1], [3]]


def test_nothing_to_compare():
    with pytest.raises(RunError, match="at least one"):
        compare([])


def test_list_table(store, runs):
    (store.create("bad", {}).folder / "run.json").write_text("{")
    text = list_table(store.list(), width=120)
    lines = {run.id: next(line for line in text.splitlines() if run.id in line) for run in runs}
    assert all(part in lines[runs[0].id] for part in ("finished", "91.0 %", "pocl"))
    assert all(part in lines[runs[1].id] for part in ("interrupted", "25.0 %", " 3 "))
    assert "damaged" in text
    assert "run.json" in text
    assert max(map(len, text.splitlines())) <= 120
    assert list_table([]) == "No runs yet."
