"""One figure of accuracy, memory and time: runs that differ in their seed are one mark."""

import subprocess
import sys

import pytest

from edgelearn.errors import RunError
from edgelearn.lab.runs import RunStore
from edgelearn.lab.runs.tradeoff import tradeoff


def make_run(store, accuracy, seconds=(9.0, 1.0, 2.0), finish=True, **config):
    run = store.create("precision", {"weights": "8", "seed": 0, **config})
    for epoch, each in enumerate(seconds, 1):
        run.append_epoch({"epoch": epoch, "loss": 1.0, "seconds": each})
    if finish:
        memory = {"planned": 3_000_000, "allocated": 3_000_000, "process": 9_000_000}
        run.finish({"accuracy": accuracy, "correct": round(100 * accuracy), "total": 100, "memory": memory})
    run.close()
    return store.open(run.id)


def test_seeds_are_one_mark_and_settings_name_the_others(tmp_path):
    store = RunStore(tmp_path)
    runs = [make_run(store, 0.8), make_run(store, 0.9, seed=1), make_run(store, 0.5, weights="4")]
    eight, four = tradeoff(runs).points
    assert (eight.name, four.name) == ("weights 8", "weights 4")
    assert len(eight.runs) == 2 and eight.accuracy[0] == pytest.approx(0.85)
    assert eight.accuracy[1] < 0.8 and eight.bytes == 3_000_000
    assert four.seconds == 1.5, "the first epoch compiles"
    assert four.accuracy == pytest.approx((0.5, 0.4038, 0.5962), abs=1e-3)
    page = tradeoff(runs)._repr_html_()
    assert "<img alt='Chart. " in page and all(f'href="/edgelearn/runs/{run.id}"' in page for run in runs)
    assert f"<a href='{four.page}' title='weights 4: 50.0%, 3 MB, 1.50 s'" in page.replace("3.00 MB", "3 MB")
    assert eight.page == "/edgelearn/compare?" + "&".join(f"id={run.id}" for run in runs[:2])
    assert "weights 4" in str(tradeoff(runs)) and "2 configurations" in repr(tradeoff(runs))


def test_what_has_not_finished_is_not_drawn(tmp_path):
    with pytest.raises(RunError, match="no run has finished"):
        tradeoff([make_run(RunStore(tmp_path), 0.8, finish=False)])


def test_the_functions_of_notebooks_are_imported_late():
    code = "import sys, edgelearn as el; el.lab; assert not {'ipywidgets', 'matplotlib'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
