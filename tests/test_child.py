"""Worker processes: calls, cores, and every way to fail."""

import os
from pathlib import Path

import psutil
import pytest

from edgelearn.child import Worker, WorkerError
from edgelearn.lab.measure import usable_cores

PATH = {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[1])])}
TARGET = "measured_objects:Calculator"


def test_methods_are_called_in_a_process_on_its_cores():
    core = usable_cores()[-1]
    with Worker(TARGET, [3], [core], PATH) as worker:
        assert worker.import_seconds > 0 and worker.call("add", 4) == 7 and worker.call("add", 1) == 8
        assert psutil.Process(worker.process.pid).cpu_affinity() == [core]
    assert worker.process.returncode is not None


def test_an_error_has_its_trace_and_its_message():
    with Worker(TARGET, environment=PATH) as worker:
        with pytest.raises(WorkerError, match="measured_objects") as caught:
            worker.call("fail")
        assert caught.value.reason == "no plan"
        with pytest.raises(WorkerError, match="TypeError") as caught:
            worker.call("add")
        assert caught.value.reason is None and worker.call("add", 1) == 1, "it lives on"


def test_what_cannot_be_made():
    with pytest.raises(WorkerError) as caught:
        Worker(TARGET, [-1], environment=PATH)
    assert caught.value.reason == "-1 is below 0"
    with pytest.raises(WorkerError, match="No module named 'measured_nothing'"):
        Worker("measured_nothing:X", environment=PATH)


def test_the_end_of_a_worker_is_explained():
    with Worker(TARGET, environment=PATH) as worker:
        with pytest.raises(WorkerError, match=r"SIGABRT.*\nout of luck"):
            worker.call("die")
        with pytest.raises(WorkerError, match="SIGABRT"):
            worker.call("add", 1)
    with Worker(TARGET, environment=PATH) as worker:
        worker.process.kill()
        with pytest.raises(WorkerError, match="SIGKILL, as Linux does when memory runs out"):
            worker.call("add", 1)


def test_a_worker_that_hangs_is_given_up():
    with Worker(TARGET, environment=PATH) as worker:
        worker.patience = 0.3
        with pytest.raises(WorkerError, match=r"0\.3 s"):
            worker.call("hang")
