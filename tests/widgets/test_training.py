import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import ipywidgets
import numpy as np
import pytest

from edgelearn.errors import DataError, RunError
from edgelearn.lab.runs import RunStore
from edgelearn.train import remaining
from edgelearn.train.remaining import Remaining, Work
from edgelearn.widgets import TrainingView, training
from edgelearn.widgets.training import TrainingStoppedError
from edgelearn.widgets.worker import BEAT_SECONDS, Curve, WorkerState

SECONDS = 30


def click(view, name):
    assert name in enabled(view), repr(view)
    view._buttons[name].click()


def enabled(view):
    return {name for name, button in view._buttons.items() if not button.disabled}


def ended(view):
    assert view.training.wait(SECONDS)
    return view.training.state


def points(view, name, panel=0):
    """The points (x, y) of a curve that the live chart shows; none if it doesn't show that."""
    lines = [line for line in view._live.series if (line["name"], line["panel"]) == (name, panel)]
    axes = [[np.frombuffer(line[axis], np.float32) for axis in "xy"] for line in lines]
    return np.stack(axes[0], -1).tolist() if axes else []


def until(condition):
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "edgelearn-training"]


@pytest.fixture
def shown(monkeypatch):
    """The outputs that cells display."""
    shown = []
    monkeypatch.setattr(training, "display", shown.append)
    return shown


def test_a_notebook_has_a_snapshot_and_how_to_get_the_buttons_back(store, make, monkeypatch):
    shown, kept = [], []

    def display(bundle, raw, display_id):
        shown.append(bundle)
        return SimpleNamespace(update=lambda bundle, raw: kept.append(bundle))

    monkeypatch.setattr(training, "display", display)
    view = TrainingView(make(), store)
    view._ipython_display_()
    assert "Ready." in shown[0]["text/html"] and "Run this cell again" in shown[0]["text/plain"]
    click(view, "Start")
    assert ended(view) is WorkerState.FINISHED
    until(lambda: kept)
    (last,) = kept
    assert f"Finished: run {store.list()[0].id}." in last["text/html"] and "<img alt='Chart. " in last["text/html"]
    assert "Run this cell again" in last["text/plain"] and "application/vnd.jupyter.widget-view+json" in last


def test_start(store, make, capsys):
    view = TrainingView(make(), store)
    assert enabled(view) == {"Start"}
    assert not view._live.series and not store.list()
    click(view, "Start")
    assert ended(view) is WorkerState.FINISHED and enabled(view) == set()
    (summary,) = store.list()
    assert (summary.status, summary.kind, summary.epochs) == ("finished", "toys", 4)
    assert [row["epoch"] for row in view.training.rows] == [0, 1, 2, 3, 4]
    assert "val_accuracy" in view.training.rows[0] and "loss" not in view.training.rows[0]
    assert points(view, "test")[-1][0] == 4
    assert summary.id in view._live.status and summary.id in repr(view)
    assert view._live.share == 1 and view._live.outcome == "success"
    assert all(name in view._live.tables[0] for name in ("planned", "allocated", "process"))
    assert all(name in view._live.tables[1] for name in ("train loss", "test accuracy", "time"))
    assert capsys.readouterr() == ("", "")  # what a thread prints lands in another cell


def test_stop_and_resume(store, make, gate):
    experiment = make(gate=gate)
    view = TrainingView(experiment, store)
    click(view, "Start")
    gate.allow(4)  # an epoch and a step; the second step of the second epoch is made and waits
    assert enabled(view) == {"Stop"}
    assert "of 12 steps" in view._live.status and "4 of 12 steps" in repr(view)
    click(view, "Stop")
    assert "Stopping" in view._live.status and enabled(view) == set()
    gate.open()
    assert ended(view) is WorkerState.STOPPED and enabled(view) == {"Resume"}
    (summary,) = store.list()
    run = store.open(summary.id)
    assert run.status == "interrupted"
    position = experiment.model.position
    assert (position.epoch, position.step) == (1, 2) and run.load_checkpoint()[1]["step"] == 2
    assert "epoch 1" in view._live.status and summary.id in view._live.status

    click(view, "Resume")
    assert ended(view) is WorkerState.FINISHED
    assert [s.id for s in store.list()] == [summary.id]
    assert [row["epoch"] for row in view.training.rows] == [0, 1, 2, 3, 4]
    whole = make()
    TrainingView(whole, store).run()
    for name, weights in whole.model.weights.items():
        np.testing.assert_array_equal(experiment.model.weights[name], weights)


def test_curves_end_at_the_epoch_that_is_shown(store, make, gate, monkeypatch):
    """Also while the next drawing waits, which it does for a long time where drawing is slow."""
    monkeypatch.setattr(training, "_DRAWING_SHARE", 1e-9)
    view = TrainingView(make(gate=gate), store)
    click(view, "Start")
    gate.allow(7)  # two epochs and a step
    assert [row["epoch"] for row in view.training.rows] == [0, 1, 2]
    assert view._drawn == view.training.rows[: len(view._drawn)]
    assert view._live.tables[1] == training.epoch_html(view._drawn[-1])
    gate.open()
    assert ended(view) is WorkerState.FINISHED
    assert view._drawn[-1]["epoch"] == 4 and view._live.tables[1] == training.epoch_html(view._drawn[-1])


def test_stop_before_the_first_step(store, make):
    made, go = threading.Event(), threading.Event()

    def load():
        made.set()
        assert go.wait(SECONDS)
        return make()

    view = TrainingView(load, store)
    click(view, "Start")
    assert made.wait(SECONDS)
    assert "Loading" in view._live.status
    click(view, "Stop")
    go.set()
    assert ended(view) is WorkerState.READY
    assert not store.list() and enabled(view) == {"Start"}
    click(view, "Start")
    assert ended(view) is WorkerState.FINISHED


def test_run_in_a_cell(store, make, shown):
    view = TrainingView(lambda: make(), store)
    for missing in (view.summary, lambda: view.results):
        with pytest.raises(TrainingStoppedError, match="no results yet"):
            missing()
    results = view.run()
    assert results["epochs"] == 4 and view.results is results
    assert not view._live.series, "the same chart isn't shown twice"
    figure, table = shown
    assert figure.svg.startswith("<svg") and len(figure.data) < 60_000
    assert f"{results['correct']} of 24" in table.data and "before training" in table.data
    assert view.run() is results, "an experiment is trained once"
    assert len(store.list()) == 1


def test_interrupt_stops_and_saves(store, make, gate, shown):
    view = TrainingView(make(gate=gate), store)

    def interrupt():
        """In the middle of training."""
        gate.allow(1)
        os.kill(os.getpid(), signal.SIGINT)
        until(lambda: view.training.stopping)
        gate.open()

    helper = threading.Thread(target=interrupt)
    helper.start()
    with pytest.raises(TrainingStoppedError, match="Resume") as stopped:
        view.run()
    helper.join(SECONDS)
    (text,) = stopped.value._render_traceback_()
    assert "Traceback" not in text and "saved" in text and view.training.state is WorkerState.STOPPED
    (summary,) = store.list()
    assert summary.status == "interrupted" and store.open(summary.id).has_checkpoint()
    assert view.run()["epochs"] == 4 and len(store.list()) == 1 and len(shown) == 2


def test_a_cell_that_awaits_leaves_the_kernel_free(store, make, gate, shown):
    view = TrainingView(make(gate=gate), store)

    async def kernel():
        cell = asyncio.create_task(view.run_async())
        await asyncio.to_thread(gate.allow, 1)
        click(view, "Stop")
        gate.open()
        with pytest.raises(RunError, match="Resume"):
            await cell
        click(view, "Resume")
        return await view.run_async()

    assert asyncio.run(kernel())["epochs"] == 4
    assert len(shown) == 2 and len(store.list()) == 1
    interrupted = TrainingView(make(gate=gate), store)

    async def interrupt():
        cell = asyncio.create_task(interrupted.run_async())
        while not interrupted.training.rows:
            await asyncio.sleep(0.01)
        cell.cancel()
        with pytest.raises(TrainingStoppedError, match="Resume"):
            await cell

    asyncio.run(interrupt())
    assert interrupted.training.state is WorkerState.STOPPED and store.list()[0].status == "interrupted"


def test_errors_are_shown_with_their_remedies_or_tracebacks(store, make):
    experiment = make(error=DataError("roses/7.jpg is <damaged>.\nRemove it."))
    view = TrainingView(experiment, store)
    click(view, "Start")
    assert ended(view) is WorkerState.FAILED and "DataError" in view._error.value
    assert "roses/7.jpg is &lt;damaged&gt;.\nRemove it." in view._error.value and "<details>" not in view._error.value
    assert enabled(view) == {"Resume"} and view._live.outcome == "danger"
    (summary,) = store.list()
    assert summary.status == "failed"
    experiment.error = None
    click(view, "Resume")
    assert ended(view) is WorkerState.FINISHED and view._error.value == ""
    assert [s.id for s in store.list()] == [summary.id]
    view = TrainingView(lambda: make(1 // 0), store)
    with pytest.raises(ZeroDivisionError):
        view.run()
    assert view.training.state is WorkerState.FAILED and "ZeroDivisionError" in view._error.value
    assert "<details>" in view._error.value and "1 // 0" in view._error.value
    assert enabled(view) == {"Start"} and len(store.list()) == 1


def test_a_second_view_of_an_experiment_replaces_the_first(store, make, gate):
    experiment = make(gate=gate)
    first = TrainingView(experiment, store)
    click(first, "Start")
    gate.allow(1)
    second = TrainingView(experiment, store)
    assert first.comm is None and enabled(second) == {"Stop"}
    second.training.start()
    assert len(threads()) == 1
    gate.open()
    assert ended(second) is WorkerState.FINISHED
    assert len(store.list()) == 1
    assert second._live.series and enabled(second) == set()


def test_one_training_at_a_time(store, make, gate):
    first = TrainingView(lambda: make(gate=gate), store)
    click(first, "Start")
    gate.allow(1)
    second, third = (TrainingView(lambda: make(), store) for _ in range(2))
    click(second, "Start")
    click(third, "Start")
    until(lambda: all(view.training.progress.phase.startswith("waiting") for view in (second, third)))
    assert second.training.run is None and third.training.run is None
    click(second, "Stop")
    assert ended(second) is WorkerState.READY and first.training.state is WorkerState.RUNNING
    gate.open()
    assert ended(first) is WorkerState.FINISHED and ended(third) is WorkerState.FINISHED
    assert sorted(s.status for s in store.list()) == ["finished", "finished"]


def shown_other(view):
    """The text of the line about another training; None while it is hidden."""
    return None if view._other.layout.display == "none" else view._other._text.value


def test_a_cell_run_again_shows_the_training_that_it_started(store, make, gate):
    """It made a new view with a button to stop the old training, which had no view any more."""

    def cell():
        return TrainingView(lambda: make(gate=gate), store)

    old = cell()
    click(old, "Start")
    gate.allow(1)
    new = cell()
    assert new.training is old.training and enabled(new) == {"Stop"} and shown_other(new) is None
    click(new, "Stop")
    gate.open()
    assert ended(new) is WorkerState.STOPPED and enabled(new) == {"Resume"}
    assert cell().training is not old.training, "what has ended begins anew"


def test_a_training_that_waits_and_is_stopped_lets_no_other_pass(store, make, gate):
    first, second, third = (TrainingView(lambda: make(gate=gate), store) for _ in range(3))
    click(first, "Start")
    gate.allow(1)
    click(second, "Start")
    click(third, "Start")
    until(lambda: "2 before this one" in third.status)
    click(second, "Stop")
    assert ended(second) is WorkerState.READY
    until(lambda: "1 before this one" in third.status)
    assert third.training.run is None and first.training.state is WorkerState.RUNNING
    click(third, "Stop")
    assert ended(third) is WorkerState.READY
    gate.open()
    assert ended(first) is WorkerState.FINISHED


@pytest.mark.parametrize("waiting", (False, True))
def test_a_cell_run_again_can_stop_what_it_started_before(store, make, gate, waiting):
    """The cell's output shows the new view alone; the old one is in no output any more."""
    old = TrainingView(lambda: make(gate=gate), store)
    assert shown_other(old) is None
    click(old, "Start")
    gate.allow(1)
    new = TrainingView(lambda: make(), store)
    if waiting:
        click(new, "Start")
    assert f"run {store.list()[0].id}" in str(shown_other(new)) and shown_other(old) is None
    new._other._button.click()
    assert old.training.stopping and new._other._button.disabled
    gate.open()
    assert ended(old) is WorkerState.STOPPED
    until(lambda: shown_other(new) is None)
    if not waiting:
        click(new, "Start")
    assert ended(new) is WorkerState.FINISHED
    assert sorted(s.status for s in store.list()) == ["finished", "interrupted"]


def test_a_view_that_was_there_before_shows_what_another_starts(store, make, gate):
    idle, view = TrainingView(lambda: make(), store), TrainingView(lambda: make(gate=gate), store)
    click(view, "Start")
    gate.allow(1)
    until(lambda: shown_other(idle) is not None)
    click(view, "Stop")
    gate.open()
    assert ended(view) is WorkerState.STOPPED
    until(lambda: shown_other(idle) is None and shown_other(view) is None)


def test_a_closed_view_stops_and_another_experiment_goes_on_with_its_run(store, make, gate):
    view = TrainingView(make(gate=gate), store)
    click(view, "Start")
    gate.allow(4)
    view.close()
    gate.open()
    assert ended(view) is WorkerState.STOPPED and store.list()[0].status == "interrupted"
    run = store.open(store.list()[0].id)
    other = TrainingView(make(seed=1), store, run=run)
    assert enabled(other) == {"Resume"} and other._live.series
    with pytest.raises(RunError, match="seed is 0 there and 1 here"):
        other.run()
    experiment = make()
    again = TrainingView(experiment, store, run=store.open(run.id))
    click(again, "Resume")
    assert ended(again) is WorkerState.FINISHED
    assert [(s.id, s.status) for s in store.list()] == [(run.id, "finished")]
    with store.create("toys", {}) as new, pytest.raises(RunError, match=new.id):
        TrainingView(experiment, store, run=new)


def test_a_chart_shows_each_step_before_the_first_epoch_ends(store, make, gate):
    """After a thousand steps of one epoch there was a single dot."""
    view = TrainingView(make(gate=gate), store)
    click(view, "Start")
    gate.allow(2)
    until(lambda: len(points(view, "each step")) >= 2)
    assert [x for x, _ in points(view, "each step")][:2] == pytest.approx([1 / 3, 2 / 3])
    assert "Loss (mean over examples) over epochs, last: each step" in view._live.alt
    gate.open()
    assert ended(view) is WorkerState.FINISHED
    assert len(points(view, "each step")) == 12 and [x for x, _ in points(view, "train")] == [1, 2, 3, 4]


def test_a_curve_keeps_its_form_in_few_points():
    curve = Curve(most=100)
    for step in range(10_000):
        curve.add(step, 2.0 * step)
    x, y = np.array(curve.points).T
    assert 50 <= len(x) <= 100 and np.all(np.diff(x) > 0) and x[-1] > 9_700
    assert np.abs(y - 2 * x).max() <= 2 * 128, "each is the mean of a stretch that ends at x"


class Sent:
    """Messages that widgets send to the browser, and their bytes."""

    def __init__(self, monkeypatch):
        self.clear()
        monkeypatch.setattr(ipywidgets.Widget, "_send", lambda _, message, buffers=None: self.count(message, buffers))

    def clear(self):
        self.messages = self.bytes = 0

    def count(self, message, buffers):
        self.messages += 1
        self.bytes += len(json.dumps(message)) + sum(map(len, buffers or ()))


def test_a_step_tells_the_browser_nothing_and_a_second_a_little(store, make, monkeypatch):
    """A step wrote texts and drew curves by itself, which took 6 % of a step of 2.3 ms."""
    clock = SimpleNamespace(now=0.0, used=0.0)
    clock.monotonic, clock.thread_time = lambda: clock.now, lambda: clock.used
    monkeypatch.setattr(training, "time", clock)
    view, sent, drawn = TrainingView(make(), store), Sent(monkeypatch), []
    worker, draw = view.training, view._live.draw
    worker.run, worker.state = store.create("toys", {}), WorkerState.RUNNING
    status = SimpleNamespace(steps_per_epoch=16)
    worker.model = SimpleNamespace(steps_done=0, steps_total=10**6, status=status)
    monkeypatch.setattr(view._live, "draw", lambda *values: (drawn.append(clock.now), draw(*values)))
    worker.on_train_begin({})
    sent.clear()

    def train(steps):
        for _ in range(steps):
            worker.model.steps_done += 1
            worker.on_train_batch_end(0, {"loss": 1 / worker.model.steps_done, "accuracy": 0.5})
            if worker.model.steps_done % status.steps_per_epoch == 0:
                epoch = worker.model.steps_done // status.steps_per_epoch - 1
                worker.on_epoch_end(epoch, {"loss": 0.1, "accuracy": 0.5, "val_loss": 0.1, "val_accuracy": 0.5})

    def pass_seconds(seconds):
        """Steps of 2.5 ms, and the beats of the worker's thread."""
        sent.clear()
        drawn.clear()
        for _ in range(round(seconds / BEAT_SECONDS)):
            clock.now += BEAT_SECONDS
            train(round(BEAT_SECONDS / 0.0025))
            view.update()

    clock.now += 10  # texts and curves are due
    train(20_000)
    assert (sent.messages, drawn) == (0, [])
    pass_seconds(20)
    assert len(drawn) >= 20 and sent.messages == len(drawn), "one message for each drawing"
    assert sent.bytes <= 20_000 * 20

    def slow(*values):
        drawn.append(clock.now)
        clock.used += 0.1

    monkeypatch.setattr(view._live, "draw", slow)
    pass_seconds(20)
    assert 6 <= len(drawn) <= 9, "a tenth of a second each, 4 % of a core"
    worker.state = WorkerState.STOPPED


OTHER_PROGRAM = """
import sys
from edgelearn.experiments.turn import Turn
turn = Turn(sys.argv[1])
turn.take()
turn.note("flowers-1")
print("taken", flush=True)
sys.stdin.readline()
"""


def test_a_training_waits_for_another_program_or_goes_ahead(store, make, monkeypatch, tmp_path):
    monkeypatch.setenv("EDGELEARN_LOCKS", str(tmp_path / "locks"))
    stopped, ahead, waiting = (TrainingView(make(), store) for _ in range(3))
    command = [sys.executable, "-c", OTHER_PROGRAM, make().model.device.id]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout and other.stdout.readline() == "taken\n"
        click(stopped, "Start")
        until(lambda: stopped.training.waits_for)
        until(lambda: "in use by flowers-1, which another program trains" in stopped._other._text.value)
        assert stopped._other.layout.display is None and "aiting for flowers-1" in stopped.status
        click(stopped, "Stop")
        assert ended(stopped) is WorkerState.READY and stopped._other.layout.display == "none"
        click(ahead, "Start")
        until(lambda: ahead.training.waits_for)
        ahead._other._ahead.click()
        assert ended(ahead) is WorkerState.FINISHED
        click(waiting, "Start")
        until(lambda: waiting.training.waits_for)
        other.communicate("\n")
        assert ended(waiting) is WorkerState.FINISHED


def test_time_left_counts_what_is_to_be_compiled_and_tested(store, make, gate):
    view = TrainingView(make(gate=gate, epochs=4), store)
    click(view, "Start")
    gate.allow(5)
    left = view.training.remaining
    assert left is not None
    work = left.work
    assert (work["validation"].total, work["validation"].done) == (5, 2)
    assert work["step"].total == 12 and work["step"].done in (5, 6), "the last of them may wait"
    assert " left" in view.status and left.share < 1
    gate.open()
    assert ended(view) is WorkerState.FINISHED and left.share == 1
    later, measured = make(seed=1).remaining(store), left.measured
    assert later.work["test"].known and later.work["step"].predicted == pytest.approx(measured["step"])
    assert not make(seed=1).remaining(RunStore(store.root / "other")).work["test"].known


def test_time_left_leaves_first_launches_out_and_knows_how_busy_the_machine_is(monkeypatch):
    now, used = [0.0], [0.0]
    monkeypatch.setattr(remaining.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(remaining, "_processor_seconds", lambda: used[0])
    left = Remaining({
        "kernel": Work(10, 0.1), "warm": Work(10), "step": Work(20, 0.5), "test": Work(1, 2.0),
    })  # fmt: skip
    assert left.seconds == pytest.approx(1 + 1.6 + 10 + 2)
    for done in range(11):
        left.on_compile(done, 10)
        now[0], used[0] = now[0] + 0.4, used[0] + 0.2  # another program has half of the processor
    assert left.seconds == pytest.approx(6.4 + 20 + 4)
    left.begin("step")
    now[0] += 6.4 + 1
    left.advance("step")
    assert left.work["step"].counted == 0 and left.seconds == pytest.approx(19 + 4)
    now[0] += 0.5
    left.advance("step")
    assert left.seconds == pytest.approx(18 * 0.5 + 4) and left.measured["step"] == pytest.approx(0.25)


@pytest.mark.parametrize("busy", [1.0, 2.5])
def test_time_left_of_a_first_run_is_right_within_a_third_after_a_tenth(monkeypatch, busy):
    """Another plan was trained on this device before, where kernels take longer than expected, and steps as well."""
    now, used = [0.0], [0.0]
    monkeypatch.setattr(remaining.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(remaining, "_processor_seconds", lambda: used[0])

    def run(kernels, examples, steps, learned, slow):
        work = {
            "kernel": Work(kernels, 0.09), "warm": Work(kernels), "example": Work(examples, 0.002),
            "step": Work(steps, 0.01), "test": Work(1, 0.5),
        }  # fmt: skip
        left = Remaining(work)
        left.learn(learned)
        warm = 1.6 * 0.3 * kernels
        moments = [(0.3, partial(left.on_compile, done, kernels)) for done in range(1, kernels + 1)]
        moments += [(0.006, partial(left.on_extract, done, examples)) for done in range(1, examples + 1)]
        moments += [(0.03, partial(left.advance, "step", done)) for done in range(1, steps + 1)]
        moments[kernels] = moments[kernels][0] + warm / 3, moments[kernels][1]
        moments[kernels + examples] = moments[kernels + examples][0] + 2 * warm / 3, moments[kernels + examples][1]
        left.on_compile(0, kernels)
        begun, whole = now[0], slow * (sum(seconds for seconds, _ in moments) + 0.5)
        for seconds, moment in moments:
            now[0], used[0] = now[0] + slow * seconds, used[0] + seconds
            moment()
            passed = now[0] - begun
            if learned and 0.1 <= passed / whole <= 0.9:
                assert left.seconds == pytest.approx(whole - passed, rel=1 / 3)
        return left.learned

    learned = run(10, 50, 100, {}, 1.0)
    assert learned == pytest.approx({"kernel": 0.3, "example": 3.0, "step": 3.0}, rel=0.2)
    run(40, 500, 3000, learned, busy)


def test_a_process_that_ends_saves_its_run(tmp_path):
    """A kernel that is restarted from the menu ends with SystemExit; the thread must not be cut off."""
    code = f"""
import runpy, sys, time
make = runpy.run_path({str(Path(__file__).parent / "conftest.py")!r})["make_tiny"]
from edgelearn.lab.runs import RunStore
from edgelearn.widgets import TrainingView
view = TrainingView(make(epochs=1_000_000), RunStore({str(tmp_path)!r}))
view.training.start()
while not view.training.rows or view.training.rows[-1]["epoch"] < 2:
    time.sleep(0.01)
sys.exit(0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    (summary,) = RunStore(tmp_path).list()
    assert summary.status == "interrupted"
    run = RunStore(tmp_path).open(summary.id)
    assert run.load_checkpoint()[1]["updates"] >= 3 * summary.epochs
