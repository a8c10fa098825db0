"""Names, tags and notes of runs; runs that are deleted and restored; pages, and exports in every form."""

import json
import math
import os
import re
import time

import numpy as np
import pytest

from edgelearn.errors import FormatError, RunError
from edgelearn.lab.runs import Runs, RunStore, compare, page, summary
from edgelearn.lab.runs.page import KINDS, POINTS, curves, exported, run_page


@pytest.fixture
def runs(store):
    made = []
    for rate in (0.1, 0.01):
        run = store.create(
            "flowers", {"seed": 3, "lr": rate, "layers": ["a"]}, plan={"train": {"peak_bytes": rate * 1e8}}
        )
        for epoch in (1, 2, 3):
            run.append_epoch(
                {"epoch": epoch, "loss": 1 / epoch, "val_loss": rate + 1 / epoch, "val_accuracy": 0.3 * epoch}
            )
        run.finish({"accuracy": 0.9, "note": "<script>alert(1)</script>"})
        made.append(run)
    return made


def test_a_run_is_named_tagged_and_described_while_another_process_writes_it(store):
    run = store.create("flowers", {})
    other = store.open(run.id)
    assert other.annotate(name=" base  line ", tags=["a", "a", " ", "b c"], note="x\ny") == {
        "name": "base line", "tags": ["a", "b c"], "note": "x\ny"
    }  # fmt: skip
    assert other.annotate(note="") == run.notes == {"name": "base line", "tags": ["a", "b c"], "note": ""}
    (found,) = store.list()
    assert (found.name, found.tags, found.status) == ("base line", ["a", "b c"], "running")
    assert store.list().where(tags="a").ids == [run.id] and not store.list().where(tags="z")
    assert "base line" in store.list()._repr_html_()
    with pytest.raises(RunError, match="20,000"):
        run.annotate(note="x" * 20_001)
    with pytest.raises(RunError, match="list of texts"):
        run.annotate(tags="baseline")
    (run.folder / "notes.json").write_text("[")
    with pytest.raises(FormatError, match="Delete it"):
        _ = run.notes


def test_a_discarded_run_comes_back_unless_a_week_has_passed(store, runs):
    first, second = (run.id for run in runs)
    assert store.discard(first) == first and store.list().ids == [second] and store.discarded().ids == [first]
    assert store.restore(first[:-2]) == first and len(store.list()) == 2 and not store.discarded()
    for name in (first, second):
        store.discard(name)
    old = time.time() - 8 * 86400
    os.utime(store.root / ".deleted" / first, (old, old))
    with store.create("flowers", {}) as run, pytest.raises(RunError, match="is running"):
        store.discard(run.id)
    assert store.discarded().ids == [second]


def test_a_list_reads_what_changed_and_nothing_else(store, runs, monkeypatch):
    monkeypatch.setattr(summary, "_WORTH_KEEPING", 1)
    before = store.list()
    monkeypatch.setattr(summary, "_known", {})  # as in another process
    made = []
    monkeypatch.setattr(
        summary, "_summary", lambda folder, make=summary._summary: made.append(folder.name) or make(folder)
    )
    assert store.list() == before and made == []
    runs[0].annotate(name="new")
    assert {each.name for each in store.list()} == {"new", ""} and made == [runs[0].id]
    (store.root / summary.INDEX).write_text('{"format": "edgelearn index 1", "runs": {"a": [1, {"bytes": "x"}]}}')
    monkeypatch.setattr(summary, "_known", {})
    assert len(store.list()) == 2 and len(made) == 3
    assert store.newest(1).ids == [max((run.id for run in runs), key=lambda name: name[-20:])]


def test_progress_is_of_a_run_that_is_written(store):
    run = store.create("flowers", {})
    run.report({"phase": "training", "done": 3, "total": 9, "left": 2.5})
    assert store.list()[0].progress == {"phase": "training", "done": 3, "total": 9, "left": 2.5}
    assert run.writer["pid"] == os.getpid()
    run.close()
    assert store.list()[0].progress is None and store.list()[0].status == "interrupted" and run.writer is None


def test_texts_are_short(store, runs):
    assert repr(store) == f"<RunStore of 2 runs in {store.root}>"
    assert repr(runs[0]) == f"<Run {runs[0].id}: finished, 90.0 %>"
    assert repr(store.list()[0]).endswith(": finished, 90.0 %>") and repr(Runs()) == "No runs yet."
    assert isinstance(store.list()[:1], Runs) and "<table" in store.list()[0]._repr_html_() + runs[0]._repr_html_()
    bundle = store._repr_mimebundle_()
    assert runs[0].id in bundle["text/plain"] and runs[0].id in bundle["text/html"]


def test_a_comparison_shows_differences_first(runs):
    found = compare(runs)
    _, settings, plan, facts, results = found.tables()
    assert (settings.rows, plan.rows, facts.rows) == (
        [("lr", "0.1", "0.01")], [("train.peak_bytes", "1e+07", "1e+06")], []
    )  # fmt: skip
    assert ("accuracy (95 % interval)", "90.0 %", "90.0 %") in results.rows
    assert found.labels == ["lr 0.1", "lr 0.01"]
    html = found._repr_html_()
    assert html.index("What differs in the config") < html.index("<img alt=") < html.index("Results")
    assert found.to_csv().splitlines()[0].startswith("run,lr,status,accuracy")
    runs[0].annotate(name="base")
    assert compare(runs).labels == ["base", "lr 0.01"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_and_a_comparison_are_exported(runs, kind):
    for several in (runs[:1], runs):
        name, data = exported(several, compare(several), kind)
        assert name.endswith(f".{kind}") and len(data) > 100
        if kind == "html":
            text = data.decode()
            assert "<script>alert" not in text and not re.search(r"""(?:src|href)=["'](?!data:)\w""", text)
            view = json.loads(re.search(r"type='application/json'>(.*?)</script>", text)[1])
            assert view.keys() == {"run" if len(several) == 1 else "compare"}
    with pytest.raises(RunError, match="not as 'exe'"):
        exported(runs, compare(runs), "exe")


def test_a_page_has_what_was_recorded(store, runs):
    held = [{"claim": "a < b", "measured": "1 < 2", "passed": True}, {"claim": "c", "measured": "no", "passed": None}]
    with store.create("flowers", {}) as run:
        run.update(claims=held)
        assert [row[0] for row in run.claims.rows] == ["passed", "not measured"] and run_page(run)["claims"] == held
    (runs[0].folder / "changes.diff").write_text("+ a line")
    (runs[0].folder / "output.log").write_text("said")
    (runs[0].folder / "curves.png").write_bytes(b"png")
    found = run_page(runs[0])
    assert found["curves"]["val_loss"][0] == [1, 2, 3] and found["changes"] == "+ a line"
    assert found["logs"] == [{"name": "output.log", "text": "said"}]
    assert found["pictures"][0]["alt"] == "Learning curves" and found["config"]["lr"] == 0.1
    assert ["lr", "0.1"] in map(list, found["settings"]) and ["train.peak_bytes", "1e+07"] in map(list, found["plan"])


def test_a_record_that_somebody_changed_has_a_page(store):
    odd = {"data": "x", "weights": 3, "plan": [1], "claims": "no", "again": "y"}
    run = store.create("flowers", {"lr": None}, **odd)
    run.append_epoch({"epoch": 1, "loss": math.nan, "words": ["a"]})
    run.finish({"memory": None, "other": math.inf})
    (run.folder / "notes.json").write_text('{"id": "other", "status": "x", "name": "n"}')
    assert store.list()[0].id == run.id and store.list()[0].name == "n"
    found = store.answer({"do": "run", "id": run.id})["run"]
    assert (found["id"], found["status"], found["plan"], found["claims"], found["curves"]) == (
        run.id, "finished", [], [], {}
    )  # fmt: skip
    assert store.answer({"do": "compare", "ids": [run.id]})["compare"]["ids"] == [run.id]
    json.dumps(store.answer({"do": "list"}), allow_nan=False)


def test_a_long_curve_keeps_its_extremes():
    y = np.sin(np.arange(10_001))
    y[1234], y[5678] = 9, -9
    (x, kept) = curves([{"epoch": epoch, "loss": float(value)} for epoch, value in enumerate(y)])["loss"]
    assert len(x) <= POINTS and x == sorted(x) and (x[0], x[-1]) == (0, 10_000)
    assert (kept[x.index(1234)], kept[x.index(5678)]) == (9, -9)


def test_requests_of_pages(store, runs):
    ids = [run.id for run in runs]
    assert {row["id"] for row in store.answer({"do": "list"})["rows"]} == set(ids)
    assert store.answer({"do": "annotate", "id": ids[0], "tags": ["t"]})["tags"] == ["t"]
    moved = store.answer({"do": "discard", "ids": [ids[0], "nothing"]})
    assert moved["done"] == [ids[0]] and "nothing" in moved["problems"][0]
    assert store.answer({"do": "discarded"})["rows"][0]["id"] == ids[0]
    assert store.answer({"do": "restore", "ids": ids[:1]})["done"] == ids[:1]
    assert store.answer({"do": "compare", "ids": ids})["compare"]["ids"] == ids
    for request in ({}, {"do": "run"}, {"do": "annotate", "id": ids[0], "status": "x"}, {"do": "run", "id": "../x"}):
        with pytest.raises(RunError):
            store.answer(request)
    assert page.document("</title>", "", "", {"a": "</script>"}).count("</script>") == 1
    assert RunStore(store.root / "none").answer({"do": "list"}) == {"rows": [], "complete": True}
