"""A model in several threads, and in a fork."""

import multiprocessing
import subprocess
import sys
import threading

import numpy as np
import pytest

from edgelearn.errors import PlanError
from edgelearn.ops import SGD
from edgelearn.train import Callback, Model

from .toys import examples, toy_network


def in_thread(call):
    """What `call` returns or raises in another thread."""
    results = []

    def run():
        try:
            results.append(call())
        except Exception as error:
            results.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(30)
    assert results, "the thread hangs"
    return results[0]


def test_other_threads_are_refused_during_fit():
    x, y = examples(8)
    answers = []

    class Ask(Callback):
        def on_train_batch_end(self, batch, logs):
            answers.append(in_thread(lambda: self.model.predict(x)))
            answers.append(in_thread(lambda: self.model.weights))
            answers.append(self.model.predict(x).shape)

    model = Model(toy_network()).compile(SGD(0.1))
    model.fit(x, y, 8, callbacks=[Ask()])
    assert [type(answer) for answer in answers] == [PlanError, PlanError, tuple]
    assert in_thread(lambda: model.predict(x)).shape == (8, 3), "after fit, any thread may"


def test_short_calls_take_turns():
    x, y = examples(12)
    model = Model(toy_network()).compile(SGD(0.1))
    expected = model.predict(x)
    calls = [lambda: model.predict(x), lambda: model.evaluate(x, y), lambda: model.predict(x[:5])] * 4
    answers = [None] * len(calls)

    def run(place):
        answers[place] = calls[place]()

    threads = [threading.Thread(target=run, args=(place,)) for place in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    for answer in answers[::3]:
        assert np.array_equal(answer, expected)
    assert len({tuple(answer.items()) for answer in answers[1::3]}) == 1


FORK = """
import multiprocessing, sys
import numpy as np, edgelearn as el
from edgelearn.ops import Dense
network = el.Network("n", (3,))
network.add("dense", Dense(2))
model = el.Model(network)
x = np.zeros((1, 3), np.float32)
model.predict(x)

def child(queue):
    for call in (lambda: model.predict(x), el.list_devices, lambda: el.Model(network)):
        try:
            call()
            queue.put("no error")
        except el.EdgelearnError as error:
            queue.put(type(error).__name__ + ("spawn" in str(error)) * " spawn")

context = multiprocessing.get_context("fork")
queue = context.Queue()
process = context.Process(target=child, args=(queue,))
process.start()
print([queue.get(timeout=20) for _ in range(3)])
process.join(20)
print(process.exitcode, model.predict(x).shape)
"""


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="this system has no fork")
def test_a_fork_is_refused_and_told_to_spawn():
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == [str(["DeviceError spawn"] * 3), "0 (1, 2)"], done.stderr
