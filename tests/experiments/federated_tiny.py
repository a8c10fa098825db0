"""A task of a federation that takes no time; run as a script, the command `edgelearn` with it, killed at a moment.

    federated_tiny.py MOMENT [argument of the command ...]

Moments: client:N (after client N of the second round), row (between the second round's row and its checkpoint), never.
"""

import os
import signal
import sys
from dataclasses import replace
from functools import partial

import numpy as np

import edgelearn as el
from edgelearn.experiments.federated import FederatedConfig
from edgelearn.experiments.federated.experiment import TASKS, FederatedTask, FederatedTaskKind, federations
from edgelearn.experiments.tasks import drawn_weights
from edgelearn.ops import Dense

CLIENTS, ROUNDS = 4, 4


def load(config, hidden=0):
    rng = np.random.default_rng(config.seed)
    labels = np.arange(60) % 3
    x = (rng.normal(size=(60, 6)) + np.eye(6)[labels]).astype(np.float32)
    network = el.Network("tiny", (6,))
    if hidden:
        network.add("hidden", Dense(hidden))
    network.add("dense", Dense(3))
    data = {
        "origin": "drawn", "description": "Drawn numbers.", "classes": ["a", "b", "c"], "train": 40, "test": 20
    }  # fmt: skip
    model = el.Model(network, None, config.device, config.seed)
    groups = np.array([f"group{number % 8}" for number in range(40)])
    return FederatedTask(
        model, (x[:40], labels[:40]), (x[40:], labels[40:]), lambda steps: el.SGD(0.1), data,
        drawn_weights(config.seed), config.batch_size, "batch", groups=groups,
    )  # fmt: skip


KIND = FederatedTaskKind("Drawn numbers", 1, 8, load, ROUNDS, CLIENTS, 8, "iid")


# For the engines whose processes import the experiment; messages of "wide" have 40 kB.
TinyFederation = federations(
    "federated", FederatedConfig, {"tiny": KIND, "wide": replace(KIND, load=partial(load, hidden=1000))},
    "federated_tiny:TinyFederation", "edgelearn federated run",
)  # fmt: skip


if __name__ == "__main__":
    from edgelearn.cli import main, training
    from edgelearn.lab.runs import Run
    from edgelearn.train import ProgressBar

    moment = sys.argv[1]

    class Killed(ProgressBar):
        def on_train_batch_end(self, batch, logs):
            super().on_train_batch_end(batch, logs)
            if self.model.position.epoch == 1 and moment == f"client:{batch}":
                os.kill(os.getpid(), signal.SIGKILL)

    def save_checkpoint(run, *arguments, original=Run.save_checkpoint):
        if moment == "row" and len(run.history()) == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        original(run, *arguments)

    TASKS["tiny"], training.ProgressBar, Run.save_checkpoint = KIND, Killed, save_checkpoint
    sys.exit(main(sys.argv[2:]))
