import os
import pty
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from edgelearn.errors import Interrupted
from edgelearn.train import Callback, Model
from edgelearn.train.control import on_interrupt

from .toys import examples, same, toy_network


@pytest.fixture(autouse=True)
def _hangups_are_heard():
    """Also by tests that run under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_asks_and_the_second_raises(number):
    before = signal.getsignal(number)
    asked = []
    with on_interrupt(lambda: asked.append(1)):
        assert signal.getsignal(number) is not before
        os.kill(os.getpid(), number)
        assert asked == [1]
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
    assert asked == [1]
    assert signal.getsignal(number) is before


def test_handlers_come_back_after_an_error():
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(RuntimeError), on_interrupt(lambda: None):
        raise RuntimeError
    assert signal.getsignal(signal.SIGINT) is before


def test_a_second_fit_asks_again():
    asked = []
    for _ in range(2):
        with on_interrupt(lambda: asked.append(1)):
            os.kill(os.getpid(), signal.SIGINT)
    assert asked == [1, 1]


class InterruptAt(Callback):
    """Ctrl-C, `times` times, at the end of update 5."""

    def __init__(self, times):
        self.times = times

    def on_train_batch_end(self, batch, logs):
        for _ in range(self.times if self.model.position.updates == 5 else 0):
            os.kill(os.getpid(), signal.SIGINT)


def test_fit_ends_behind_a_step_and_goes_on_with_the_same_bits():
    (x, y), (model, whole) = examples(6), (Model(toy_network()).compile("adam") for _ in range(2))
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(Interrupted, match="5 updates") as stopped:
        model.fit(x, y, 2, epochs=3, callbacks=InterruptAt(1))
    assert stopped.value._render_traceback_() == [str(stopped.value)]
    assert (model.position.updates, model.position.step) == (5, 2) and signal.getsignal(signal.SIGINT) is before
    model.fit(x, y, 2, epochs=3)
    whole.fit(x, y, 2, epochs=3)
    assert same(model.weights, whole.weights)


def test_a_second_interrupt_ends_fit_at_once():
    (x, y), model = examples(6), Model(toy_network()).compile("adam")
    with pytest.raises(KeyboardInterrupt) as stopped:
        model.fit(x, y, 2, epochs=3, callbacks=InterruptAt(2))
    assert type(stopped.value) is KeyboardInterrupt


def test_no_handlers_outside_the_main_thread():
    before = signal.getsignal(signal.SIGINT)
    seen = []

    def work():
        with on_interrupt(lambda: None):
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]


def test_a_signal_that_is_ignored_stays_so():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with on_interrupt(lambda: pytest.fail("heard")):
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


CLOSED = """
import sys, time
from edgelearn.train.control import on_interrupt
asked = []
with on_interrupt(lambda: asked.append(1)):
    print("ready", flush=True)
    while not asked:
        time.sleep(0.01)
    for _ in range(3):
        print("a line to a terminal that is gone", flush=True)
open(sys.argv[1], "w").write("saved")
"""


def test_a_terminal_that_is_closed_ends_training_and_not_with_an_error(tmp_path):
    """The process is the leader of a session on the terminal, as a shell's is: the kernel sends it the signal."""
    child, terminal = pty.fork()
    if child == 0:
        os.environ["PYTHONPATH"] = str(Path(__file__).parents[2])
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup, which children inherit
        signal.alarm(60)  # and a child that hears nothing would wait for ever
        os.execv(sys.executable, [sys.executable, "-c", CLOSED, str(tmp_path / "file")])
    said = b""
    while b"ready" not in said:
        said += os.read(terminal, 100)
    os.close(terminal)
    assert os.waitpid(child, 0)[1] == 0
    assert (tmp_path / "file").read_text() == "saved"


IMPORTING = """
import os, signal, sys
class Finder:
    def find_spec(self, name, path, target=None):
        if name == "edgelearn.graph":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
from edgelearn_command import main
sys.exit(main())
"""


def test_an_interrupt_during_imports_leaves_no_traceback():
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", IMPORTING, "doctor"], env=environment, capture_output=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"edgelearn: interrupted\n")
