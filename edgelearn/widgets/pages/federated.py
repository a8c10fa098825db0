"""Federations: who has which examples, accuracy against bytes, voices, and what the server sees."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edgelearn.display import plural
from edgelearn.experiments.federated import FederatedConfig, FederatedExperiment, plot_bytes, plot_partition, report
from edgelearn.experiments.federated.deployment import require_flower
from edgelearn.experiments.verification import VerificationConfig, VerificationExperiment, true_positive_rate
from edgelearn.federated import (
    IID,
    ByGroup,
    Dirichlet,
    FedAvg,
    LabelsPerClient,
    LocalGrid,
    Partition,
    Reply,
    Server,
    ServerSettings,
    counts,
)
from edgelearn.federated.verification import scores
from edgelearn.lab.runs import Run, RunStore
from edgelearn.tables import Table
from edgelearn.widgets.pictures import Waiting
from edgelearn.widgets.views import RocView

from .shown import Shown, or_reason, train_all


def partitions(task: str = "sample", clients: int = 12) -> Shown:
    """Divide the examples of a task among clients in the ways that are common in papers.

    Arguments:
    - `task`: see `edgelearn federated run`.
    - `clients`: their number.
    """
    with Waiting("Making the examples"):
        task_ = FederatedExperiment.load(FederatedConfig(task, clients=clients, partition="iid")).task
    labels, groups, classes = task_.train[1], task_.groups, task_.data["classes"]
    ways: dict[str, Partition] = {
        "evenly": IID(clients), "Dirichlet 0.3": Dirichlet(clients, alpha=0.3, least=5),
        "two classes": LabelsPerClient(clients, count=2),
    }  # fmt: skip
    if groups is not None:
        ways = {"by speaker": ByGroup(clients)} | ways
    made = {name: counts(way.divide(labels, groups), labels, len(classes)) for name, way in ways.items()}
    rows = [(name, m.sum(1).min(), m.sum(1).max(), f"{(m > 0).sum(1).mean():.1f}") for name, m in made.items()]
    table = Table(("partition", "fewest examples", "most", "classes a client"), rows)
    return Shown(plural(len(ways), "partition"), table, plot_partition(made["Dirichlet 0.3"], classes))


class Federations(Shown):
    """Federations with their accuracies and bytes.

    - `runs`: one for each.
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        self.runs = list(runs)
        table = report.table(self.runs)
        super().__init__(plural(len(self.runs), "federation"), plot_bytes(self.runs), table)


def federated(
    compress: Sequence[str] = ("float32", "int8", "topk:0.05+int8"), task: str = "thicket",
    store: RunStore | str | None = None, **settings: Any,
) -> Federations:  # fmt: skip
    """Run the same federation with each compression of the clients' updates; show accuracy against bytes.

    Arguments:
    - `compress`: see `edgelearn federated run --compress`.
    - `task`: see `edgelearn federated run` (default "thicket").
    - `store`: a RunStore or its folder (default: that of the commands).
    - `settings`: others of FederatedConfig, such as `rounds`, `clients`, `partition`, `strategy`.
    """
    configs = {name: [FederatedConfig(task, compress=name, **settings)] for name in compress}
    found = train_all(FederatedExperiment, configs, store)
    return Federations([run for runs in found.values() for run in runs])


class Voices(Shown):
    """Scores of users' own recordings and of others: the share of their own that is accepted where a tenth of the
    others is.

    - `own`: scores of users' own recordings; `impostors`: of others, by their name.
    """

    def __init__(self, own: np.ndarray, impostors: dict[str, np.ndarray]) -> None:
        self.own, self.impostors = own, impostors
        rows = [(name, f"{true_positive_rate(own, other):.0%}") for name, other in impostors.items()]
        table = Table(("impostors", "one's own accepted where 10 % of these are"), rows)
        super().__init__("Scores of voices", RocView(own, impostors).figure(), table)

    def view(self) -> RocView:
        """A slider for the threshold."""
        return RocView(self.own, self.impostors)


def voices(store: RunStore | str | None = None, **settings: Any) -> Voices:
    """Train phones to accept their own user's voice and no other, by a federation (FedUV).

    Arguments:
    - `store`: a RunStore or its folder (default: that of the commands).
    - `settings`: of VerificationConfig, such as `rounds`.
    """
    configs = {"voices": [VerificationConfig(**settings)]}
    kept = store if isinstance(store, RunStore) else RunStore(store)
    with Waiting("Training on voices"):
        training = VerificationExperiment.load(configs["voices"][0])
        with training.turn.taken(), training.create_run(kept) as run:
            training.run(run, log=lambda line: None)
    recordings, users = training.task.test
    found = scores(training.model.predict(recordings), training.server.vectors)
    mine = users[:, None] == np.arange(found.shape[1])
    others = {"other users": found[(users >= 0)[:, None] & ~mine], "people who took no part": found[users < 0].ravel()}
    return Voices(found[mine], others)


class _Listening(LocalGrid):
    """A grid that keeps the replies."""

    replies: Any = None

    def exchange(self, instructions: Any, deadline: Any, arrived: Any) -> Any:
        self.replies = super().exchange(instructions, deadline, arrived)
        return self.replies


def overheard(clients: int = 12) -> Shown:
    """Guess from each client's first message which two words it has: a server can, by the bias of the last layer.

    Arguments:
    - `clients`: their number.
    """
    config = FederatedConfig("sample", rounds=1, clients=clients, partition="labels", labels_per_client=2,
                             normalization="group")  # fmt: skip
    training = FederatedExperiment.load(config)
    with Waiting("A round", training.model.device), tempfile.TemporaryDirectory() as folder:
        grid, names = _Listening(training.clients(Path(folder))), training.model.changing
        Server(training.model, names, ServerSettings(clients, 1), FedAvg(), grid, training.task.test).fit()
    shapes, bias = [training.model.weights[name].shape for name in names], names.index("classifier/bias")
    classes, rows, right = training.task.data["classes"], [], 0
    for client, part in enumerate(training.examples.parts):
        change = training.compressor("float32").decode(Reply.from_bytes(grid.replies[client]).payload, shapes)[bias]
        guess, truth = set(np.argsort(change)[-2:]), set(training.examples.y[part])
        right += guess == truth
        rows.append((client, *(", ".join(sorted(classes[i] for i in words)) for words in (guess, truth))))
    line = f"The words of {right} of {plural(clients, 'client')} are guessed from their messages."
    return Shown(line, line, Table(("client", "guessed", "in truth"), rows[:4]))


def deployment(engine: str = "deployed", store: RunStore | str | None = None) -> Shown:
    """Run a federation of two clients here and on processes of Flower, and compare the weights.

    Arguments:
    - `engine`: see `edgelearn federated run --engine`.
    - `store`: a RunStore or its folder (default: that of the commands).
    """
    kept = store if isinstance(store, RunStore) else RunStore(store)

    def weights(engine: str) -> dict[str, np.ndarray]:
        config = FederatedConfig("sample", rounds=1, clients=2, epochs=1, engine=engine)
        FederatedExperiment.start(config, kept, [], log=lambda line: None)
        return kept.open(kept.list()[0].id).load_checkpoint()[0]

    def compare() -> str:
        require_flower(engine)
        with Waiting("Deploying"):
            here, there = weights("local"), weights(engine)
        same = all(here[name].tobytes() == there[name].tobytes() for name in here)
        return "The weights are the same bits." if same else "The weights differ."

    found = or_reason(compare)
    return Shown(found, found)
