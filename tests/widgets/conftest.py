import threading
from dataclasses import dataclass

import numpy as np
import pytest

import edgelearn as el
from edgelearn.experiments.config import TrainingConfig, setting
from edgelearn.experiments.experiment import Experiment, Training
from edgelearn.experiments.tasks import Task, finish_task
from edgelearn.lab.runs import RunStore
from edgelearn.ops import SGD, Dense, Softmax
from edgelearn.train import Callback
from tests.networks import chain

SECONDS = 30  # no test waits so long unless something is wrong


class Gate(Callback):
    """Lets as many steps pass as `allow` says."""

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


def numbers(config):
    """24 examples of 4 numbers in 3 classes."""
    network = chain("tiny", (4,), dense=Dense(3), softmax=Softmax())
    x = np.random.default_rng(config.seed).normal(size=(24, 4)).astype(np.float32)
    data = x, x.argmax(1) % 3
    entry = {"origin": "drawn", "description": "Numbers.", "classes": ["a", "b", "c"], "train": 24, "test": 24}
    model = el.Model(network, seed=config.seed)
    return Task(model, data, data, lambda steps: SGD(0.1, momentum=0.9), entry, {"description": "", "sha256": ""}, 8)


@dataclass(frozen=True)
class TinyConfig(TrainingConfig):
    task: str = "numbers"
    trainable: tuple[str, ...] = setting(("dense",), "layers")


@dataclass(kw_only=True)
class TinyTraining(Training[TinyConfig]):
    """3 steps an epoch. Steps wait for `gate`; `error` is raised after training."""

    gate: Gate | None = None
    error: Exception | None = None

    def fit(self, callbacks=()):
        recorder, *others = callbacks
        super().fit([recorder, *([self.gate] if self.gate else []), *others])
        if self.error is not None:
            raise self.error


def load(config):
    task = numbers(config)
    task.model.compile(task.optimizer(0))
    return TinyTraining(
        config=config, model=task.model, train=task.train, test=task.test, epochs=config.epochs, batch_size=8,
        finish=finish_task, data=task.data, weights=task.weights,
    )  # fmt: skip


def make_tiny(epochs=4, gate=None, seed=0, error=None):
    training = Experiment("toys", TinyConfig, load, command="toys").load(TinyConfig(epochs=epochs, seed=seed))
    training.gate, training.error = gate, error
    return training


@pytest.fixture
def store(tmp_path):
    return RunStore(tmp_path / "runs")


@pytest.fixture
def gate():
    gate = Gate()
    yield gate
    gate.open()


@pytest.fixture
def make():
    return make_tiny


@pytest.fixture(autouse=True)
def no_thread_is_left():
    yield
    for thread in threading.enumerate():
        if thread.name == "edgelearn-training":
            thread.join(SECONDS)
            assert not thread.is_alive()
