import threading
from types import SimpleNamespace

import numpy as np
import pytest

import edgelearn as el
from edgelearn.experiments.recorder import Recorder
from edgelearn.lab.runs import RunStore, wilson_interval
from edgelearn.ops import Dense, Softmax
from edgelearn.train import Callback

SECONDS = 30  # no test waits so long unless something is wrong


class Gate(Callback):
    """Lets as many steps pass as `allow` said."""

    def __init__(self):
        self.steps = threading.Semaphore(0)
        self.arrived = threading.Semaphore(0)

    def on_train_batch_end(self, batch, logs):
        self.arrived.release()
        assert self.steps.acquire(timeout=SECONDS)

    def allow(self, steps):
        """Let steps pass, and wait until the next one has been made and waits."""
        self.steps.release(steps)
        for _ in range(steps + 1):
            assert self.arrived.acquire(timeout=SECONDS)

    def open(self):
        self.steps.release(1000)


class TinyJob:
    """What a view needs of a job, on 24 examples of 4 numbers: 3 steps an epoch."""

    kind = "toys"

    def __init__(self, epochs=4, gate=None, seed=0, error=None):
        self.gate, self.error, self.epochs = gate, error, epochs
        self.config = SimpleNamespace(to_dict=lambda: {"epochs": epochs, "seed": seed, "trainable": ("dense",)})
        network = el.Network("tiny", (4,))
        network.add("dense", Dense(3))
        network.add("softmax", Softmax())
        self.model = el.Model(network, seed=seed).compile(el.SGD(0.1, momentum=0.9))
        self.x = np.random.default_rng(seed).normal(size=(24, 4)).astype(np.float32)
        self.y = self.x.argmax(1) % 3
        self.phases = SimpleNamespace(peak_bytes=self.model.plan(8).peak_bytes)

    def describe(self):
        return {"device": self.model.device.facts()}

    def run(self, run, callbacks, say):
        say("training")
        recorder = Recorder(run)
        if run.has_checkpoint():
            self.model.restore(*run.load_checkpoint())
        steps = [self.gate] if self.gate else []
        data = self.x, self.y
        if self.model.position.epoch < self.epochs:
            self.model.fit(*data, 8, self.epochs, validation_data=data, callbacks=[recorder, *steps, *callbacks])
        if self.error is not None:
            raise self.error
        if self.model.position.epoch < self.epochs:
            recorder.save()
            run.close()
            return None
        correct = int((self.model.predict(self.x).argmax(-1) == self.y).sum())
        results = {
            "correct": correct, "total": 24, "accuracy": correct / 24, "loss": run.history()[-1]["val_loss"],
            "epochs": self.epochs, "seconds": 1.0, "interval": list(wilson_interval(correct, 24)),
            "memory": {"planned": 1 << 20, "allocated": 1 << 20, "process": 1 << 21},
        }  # fmt: skip
        run.finish(results)
        return results


@pytest.fixture
def store(tmp_path):
    return RunStore(tmp_path / "runs")


@pytest.fixture
def gate():
    gate = Gate()
    yield gate
    gate.open()


@pytest.fixture
def tiny_job():
    return TinyJob


@pytest.fixture(autouse=True)
def no_thread_is_left():
    yield
    for thread in threading.enumerate():
        if thread.name == "edgelearn-training":
            thread.join(SECONDS)
            assert not thread.is_alive()
