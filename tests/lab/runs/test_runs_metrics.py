"""Every result of every kind of run is compared."""

import pytest

from edgelearn.lab.runs import compare, list_table
from edgelearn.lab.runs.compare import MAX_ITEMS, flat_results, result_text


def report(learner, shots, accuracy):
    measures = {
        "accuracy": {"mean": accuracy, "margin": 0.01, "count": 20},
        "auroc": {"mean": 0.9, "margin": 0.02, "count": 20},
    }
    return {"learner": learner, "num_classes": 5, "shots": shots, "measures": measures}


KEYWORDS = {"reports": [report("cosine", 1, 0.7), report("cosine", 5, 0.8), report("dummies", 5, 0.85)], "epochs": 3}
ROUNDS = {"rounds": [{"round": r, "accuracy": r / 100, "bytes": r * 10**6} for r in range(40)], "clients": 12}


def test_results_in_lists_are_named_by_what_tells_them_apart():
    found = flat_results(KEYWORDS)
    assert found["reports[cosine, shots 5].measures.accuracy"] == {"mean": 0.8, "margin": 0.01, "count": 20}
    assert len(found) == 2 * 3 + 2 and found["reports.num_classes"] == 5 and found["epochs"] == 3
    assert flat_results(ROUNDS) == {
        "rounds[40].round": 39,
        "rounds[40].accuracy": 0.39,
        "rounds[40].bytes": 39 * 10**6,
        "clients": 12,
    }
    same = flat_results({"a": [{"x": 0.5}, {"x": 0.25}]})
    assert same == {"a[1].x": 0.5, "a[2].x": 0.25}
    assert flat_results({"list": list(range(MAX_ITEMS)), "none": [], "deep": {"er": {"est": True}}}) == {
        "list": list(range(MAX_ITEMS)), "deep.er.est": True
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("a.accuracy", 0.8, "80.0 %"),
        ("a.accuracy", {"mean": 0.8, "margin": 0.01, "count": 9}, "80.0 % ± 1.0 %"),
        ("upload_bytes", 2_500_000, "2.5 MB"),
        ("memory.stored", 10**6, "1.0 MB"),
        ("steps", 12000, "12,000"),
        ("eps", 1.23456, "1.235"),
        ("f1", 2.5, "2.5"),
        ("note", "fine", "fine"),
        ("private", False, "False"),
        ("rates", [1, 2], "1, 2"),
    ],
)
def test_text(name, value, expected):
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
