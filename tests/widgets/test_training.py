import asyncio
import os
import signal
import threading
import time

import numpy as np
import pytest

from edgelearn.errors import DataError, RunError
from edgelearn.widgets import TrainingView, training
from edgelearn.widgets.worker import Progress, WorkerState

SECONDS = 30


def click(view, name):
    button = view._buttons[name]
    assert not button.disabled, f"{name} can't be pressed: {view!r}"
    button.click()


def usable(view):
    return {name for name, button in view._buttons.items() if not button.disabled}


def ended(view):
    assert view.training.wait(SECONDS)
    return view.training.state


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "edgelearn-training"]


def test_start(store, tiny_job, capsys):
    view = TrainingView(tiny_job(), store)
    assert usable(view) == {"Start"}
    assert not view._curves.value and not store.list()
    click(view, "Start")
    assert ended(view) is WorkerState.FINISHED
    assert usable(view) == set()
    (summary,) = store.list()
    assert (summary.status, summary.kind, summary.epochs) == ("finished", "toys", 4)
    assert [row["epoch"] for row in view.training.rows] == [0, 1, 2, 3, 4]
    assert "val_accuracy" in view.training.rows[0] and "loss" not in view.training.rows[0]
    assert bytes(view._curves.value).startswith(b"\x89PNG")
    assert view._curves.layout.display is None
    assert summary.id in view._status.value and summary.id in repr(view)
    assert view._bar.value == 1 and view._bar.bar_style == "success"
    for name in ("planned", "allocated", "process"):
        assert name in view._memory.value
    for name in ("train loss", "test accuracy", "time"):
        assert name in view._epoch.value
    assert capsys.readouterr() == ("", "")  # what a thread prints lands in another cell


def test_stop_and_resume(store, tiny_job, gate):
    job = tiny_job(gate=gate)
    view = TrainingView(job, store)
    click(view, "Start")
    gate.allow(4)  # an epoch and a step; the second step of the second epoch is made and waits
    assert usable(view) == {"Stop"}
    assert view._status.value.startswith("Training: ") and "Training: 4 of 12 steps, " in repr(view)
    click(view, "Stop")
    assert "Stopping" in view._status.value and usable(view) == set()
    gate.open()
    assert ended(view) is WorkerState.STOPPED
    assert usable(view) == {"Resume"}
    (summary,) = store.list()
    run = store.open(summary.id)
    assert run.status == "interrupted"
    assert (job.model.position.epoch, job.model.position.step) == (1, 2)
    assert run.load_checkpoint()[1]["step"] == 2
    assert "Stopped after epoch 1" in view._status.value and summary.id in view._status.value

    click(view, "Resume")
    assert ended(view) is WorkerState.FINISHED
    assert [s.id for s in store.list()] == [summary.id]
    assert [row["epoch"] for row in view.training.rows] == [0, 1, 2, 3, 4]
    whole = tiny_job()
    TrainingView(whole, store).run()
    for name, weights in whole.model.weights.items():
        np.testing.assert_array_equal(job.model.weights[name], weights)


def test_stop_before_the_first_step(store, tiny_job):
    made, go = threading.Event(), threading.Event()

    def make():
        made.set()
        assert go.wait(SECONDS)
        return tiny_job()

    view = TrainingView(make, store)
    click(view, "Start")
    assert made.wait(SECONDS)
    assert view._status.value == "Loading …"
    click(view, "Stop")
    go.set()
    assert ended(view) is WorkerState.READY
    assert not store.list() and usable(view) == {"Start"}
    click(view, "Start")
    assert ended(view) is WorkerState.FINISHED


def test_run_in_a_cell(store, tiny_job, monkeypatch):
    shown = []
    monkeypatch.setattr(training, "display", shown.append)
    view = TrainingView(lambda: tiny_job(), store)
    with pytest.raises(RunError, match="no results yet"):
        view.summary()
    results = view.run()
    assert results["epochs"] == 4
    figure, table = shown
    assert figure.data.startswith(b"\x89PNG") and len(figure.data) < 60_000
    assert f"{results['correct']} of 24" in table.data and "before training" in table.data
    assert view.run() is results, "a job is trained once"
    assert len(store.list()) == 1


def test_run_ends_when_it_is_stopped(store, tiny_job, gate, monkeypatch):
    monkeypatch.setattr(training, "display", lambda _: None)
    view = TrainingView(tiny_job(gate=gate), store)

    def press():
        gate.allow(1)
        click(view, "Stop")
        gate.open()

    presser = threading.Thread(target=press)
    presser.start()
    with pytest.raises(RunError, match="Press Resume or run this cell again"):
        view.run()
    presser.join()
    assert view.run()["epochs"] == 4
    assert len(store.list()) == 1


def test_interrupt_stops_and_saves(store, tiny_job, gate):
    view = TrainingView(tiny_job(gate=gate), store)

    def interrupt():
        gate.allow(1)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        while not view.training.stopping:
            time.sleep(0.01)
        gate.open()

    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    with pytest.raises(KeyboardInterrupt):
        view.run()
    interrupter.join()
    assert view.training.state is WorkerState.STOPPED and not threads_alive_after(view)
    (summary,) = store.list()
    assert summary.status == "interrupted" and store.open(summary.id).has_checkpoint()


def test_a_cell_that_awaits_leaves_the_kernel_free(store, tiny_job, gate, monkeypatch):
    shown = []
    monkeypatch.setattr(training, "display", shown.append)
    view = TrainingView(tiny_job(gate=gate), store)

    async def kernel():
        cell = asyncio.create_task(view.run_async())
        await asyncio.to_thread(gate.allow, 1)
        click(view, "Stop")
        gate.open()
        with pytest.raises(RunError, match="Press Resume"):
            await cell
        click(view, "Resume")
        return await view.run_async()

    assert asyncio.run(kernel())["epochs"] == 4
    assert len(shown) == 2 and len(store.list()) == 1


def test_interrupting_a_cell_that_awaits_stops_and_saves(store, tiny_job, gate):
    view = TrainingView(tiny_job(gate=gate), store)

    async def kernel():
        cell = asyncio.create_task(view.run_async())
        await asyncio.to_thread(gate.allow, 1)
        gate.open()
        cell.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cell

    asyncio.run(kernel())
    assert view.training.state is WorkerState.STOPPED
    assert store.list()[0].status == "interrupted"


def threads_alive_after(view):
    assert view.training.wait(SECONDS)
    for thread in threads():
        thread.join(SECONDS)
    return threads()


def test_an_error_is_shown_with_its_remedy(store, tiny_job):
    job = tiny_job(error=DataError("roses/7.jpg is <damaged>.\nRemove it."))
    view = TrainingView(job, store)
    click(view, "Start")
    assert ended(view) is WorkerState.FAILED
    assert "DataError" in view._error.value
    assert "roses/7.jpg is &lt;damaged&gt;.\nRemove it." in view._error.value
    assert "<details>" not in view._error.value
    assert usable(view) == {"Resume"} and view._bar.bar_style == "danger"
    (summary,) = store.list()
    assert summary.status == "failed"
    with pytest.raises(DataError, match="Remove it"):
        view.run()
    job.error = None
    click(view, "Resume")
    assert ended(view) is WorkerState.FINISHED
    assert view._error.value == ""
    assert [s.id for s in store.list()] == [summary.id]


def test_an_unforeseen_error_is_shown_with_its_traceback(store):
    def make():
        return 1 // 0

    view = TrainingView(make, store)
    click(view, "Start")
    assert ended(view) is WorkerState.FAILED
    assert "ZeroDivisionError" in view._error.value
    assert "<details>" in view._error.value and "return 1 // 0" in view._error.value
    assert usable(view) == {"Start"} and not store.list()


def test_a_second_view_of_a_job_takes_the_place_of_the_first(store, tiny_job, gate):
    job = tiny_job(gate=gate)
    first = TrainingView(job, store)
    click(first, "Start")
    gate.allow(1)
    second = TrainingView(job, store)
    assert first.comm is None and usable(second) == {"Stop"}
    second.training.start()
    assert len(threads()) == 1
    gate.open()
    assert ended(second) is WorkerState.FINISHED
    assert len(store.list()) == 1
    assert second._curves.value and usable(second) == set()


def test_one_training_at_a_time(store, tiny_job, gate):
    first = TrainingView(lambda: tiny_job(gate=gate), store)
    click(first, "Start")
    gate.allow(1)
    second = TrainingView(lambda: tiny_job(), store)
    click(second, "Start")
    while not first.training.stopping:
        time.sleep(0.01)
    assert second.training.run is None
    gate.open()
    assert ended(second) is WorkerState.FINISHED
    assert ended(first) is WorkerState.STOPPED
    assert sorted(s.status for s in store.list()) == ["finished", "interrupted"]
    assert usable(first) == {"Resume"}


def test_closing_stops(store, tiny_job, gate):
    view = TrainingView(tiny_job(gate=gate), store)
    click(view, "Start")
    gate.allow(1)
    view.close()
    gate.open()
    assert ended(view) is WorkerState.STOPPED
    assert not threads_alive_after(view)
    assert store.list()[0].status == "interrupted"


def test_an_interrupted_run_goes_on_with_another_job(store, tiny_job, gate):
    view = TrainingView(tiny_job(gate=gate), store)
    click(view, "Start")
    gate.allow(4)
    click(view, "Stop")
    gate.open()
    assert ended(view) is WorkerState.STOPPED
    run = store.open(store.list()[0].id)

    other = TrainingView(tiny_job(seed=1), store, run=run)
    assert usable(other) == {"Resume"} and other._curves.value
    click(other, "Resume")
    assert ended(other) is WorkerState.FAILED
    assert "seed is 0 there and 1 here" in other._error.value

    job = tiny_job()
    again = TrainingView(job, store, run=store.open(run.id))
    click(again, "Resume")
    assert ended(again) is WorkerState.FINISHED
    assert [(s.id, s.status) for s in store.list()] == [(run.id, "finished")]
    with pytest.raises(RunError, match="already has a run"):
        TrainingView(job, store, run=type(run)(store.create("flowers", {}).folder))


def test_time_left():
    started = time.monotonic() - 10
    assert Progress("training", 30, 50, first=10, started=started).seconds_left == pytest.approx(10, abs=0.5)
    assert Progress("training", 10, 50, first=10, started=started).seconds_left is None


def test_a_process_that_ends_saves_its_run(tmp_path):
    """A kernel that is restarted from the menu ends with SystemExit; the thread must not be cut off."""
    import subprocess
    import sys
    from pathlib import Path

    code = f"""
import runpy, sys, time
from pathlib import Path
job = runpy.run_path({str(Path(__file__).parent / "conftest.py")!r})["TinyJob"]
from edgelearn.lab.runs import RunStore
from edgelearn.widgets import TrainingView
view = TrainingView(job(epochs=1_000_000), RunStore({str(tmp_path)!r}))
view.training.start()
while not view.training.rows or view.training.rows[-1]["epoch"] < 2:
    time.sleep(0.01)
sys.exit(0)
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    from edgelearn.lab.runs import RunStore

    (summary,) = RunStore(tmp_path).list()
    assert summary.status == "interrupted"
    run = RunStore(tmp_path).open(summary.id)
    assert run.load_checkpoint()[1]["updates"] >= 3 * summary.epochs
