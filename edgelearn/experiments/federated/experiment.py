"""A federation in a run folder: start, interrupt, resume, finish."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self, cast

from edgelearn import atomic
from edgelearn.experiments.config import ConfigError
from edgelearn.experiments.experiment import Log
from edgelearn.experiments.task import TaskExperiment
from edgelearn.federated import (
    IID,
    ByGroup,
    ClientMemory,
    Clients,
    Compressor,
    Dirichlet,
    Examples,
    Grid,
    LabelsPerClient,
    LocalGrid,
    Partition,
    Partly,
    RoundRecord,
    Rounds,
    Settings,
    counts,
)
from edgelearn.federated.masking import Masks
from edgelearn.lab.measure.memory import peak_resident_bytes
from edgelearn.lab.runs import Run
from edgelearn.ops import Optimizer
from edgelearn.train import Callback, Trainer
from edgelearn.train.phases import Phases

from .config import FederatedConfig
from .deployment import require_flower
from .elsewhere import FOLDER, run_elsewhere
from .partition_figure import plot_partition
from .processes import end_left_over
from .report import summary
from .round_records import ROUNDS, read_rounds, totals
from .tasks import TASKS, FederatedKind, FederatedTask

CLIENTS, PARTITION = "clients", "partition.png"  # in the run's folder


class FederatedExperiment(TaskExperiment[FederatedConfig]):
    """A federation on a task."""

    kind, command, config_type = "federated", "edgelearn federated run", FederatedConfig
    tasks = TASKS
    task: FederatedTask
    carrier: Grid | None = None  # Flower's, in a ServerApp
    rounds_type: ClassVar[type[Rounds]] = Rounds
    clients_type: ClassVar[type[Clients]] = Clients

    @classmethod
    def resolve(cls, config: FederatedConfig) -> FederatedConfig:
        config = super().resolve(config)
        kind = cast(FederatedKind, cls.tasks[config.task])
        left = {name: value for name, value in kind.settings.items() if getattr(config, name) is None}
        config = replace(config, **left)
        if config.engine == "deployed" and config.nodes > (config.clients or 1):
            raise ConfigError("nodes", f"{config.nodes} nodes can't share {config.clients} clients: take fewer nodes.")
        return config

    @classmethod
    def load(cls, config: FederatedConfig) -> Self:
        return cast(Self, super().load(config))

    @classmethod
    def start(cls, config, store, callbacks, log=print):
        if config.engine != "local":
            require_flower(config.engine)
        return super().start(config, store, callbacks, log)

    @classmethod
    def resume(cls, name, store, callbacks, log=print):
        end_left_over(store.open(name).folder / FOLDER)  # by a process that was killed
        return super().resume(name, store, callbacks, log)

    def compile(self, optimizer: Optimizer) -> None:
        proximal = self.config.make_strategy().proximal
        self.model.compile(replace(optimizer, proximal=proximal), batchnorm=self.task.batchnorm)

    @property
    def epochs(self) -> int:
        """Rounds of the whole federation."""
        return self.config.rounds or 0

    @property
    def trained(self) -> Rounds:
        return self.rounds

    @cached_property
    def examples(self) -> Examples:
        """Who has which examples."""
        x, y = self.task.train
        return Examples(x, y, self.partition.divide(y, self.task.groups))

    @property
    def partition(self) -> Partition:
        """The partition of the configuration."""
        config, clients = self.config, self.config.clients or 0
        made: Mapping[str | None, Callable[[], Partition]] = {
            "iid": lambda: IID(clients, config.seed),
            "dirichlet": lambda: Dirichlet(clients, config.seed, config.alpha),
            "labels": lambda: LabelsPerClient(clients, config.seed, config.labels_per_client),
            "group": lambda: ByGroup(clients, config.seed),
        }
        return made[config.partition]()

    @cached_property
    def trainer(self) -> Trainer:
        """The open session that clients in this process share."""
        sizes, steps = self.examples.sizes, self.config.steps
        size = self.task.batch_size if steps else min(self.task.batch_size, max(sizes))
        micro_batch = min(self.config.micro_batch or size, size)
        return self.model.trainer(size, micro_batch, self.config.budget, [steps * size] if steps else sizes)

    @cached_property
    def phases(self) -> Phases:
        return Phases(train=self.trainer.plan)

    @property
    def compressor(self) -> Compressor:
        """Compresses changes of trained parameters; those of statistics are sent as float32."""
        return self._of_parameters(self.config.make_compressor())

    @property
    def down(self) -> Compressor | None:
        """Compresses the weights that are sent, if anything does."""
        chosen = self.config.make_down()
        return self._of_parameters(chosen) if chosen else None

    def _of_parameters(self, chosen: Compressor) -> Compressor:
        exact = tuple(name not in self.model.network.trainable for name in self.model.changing)
        return Partly(chosen, exact) if any(exact) else chosen

    def clients(self, folder: Path | None = None) -> Clients:
        """The clients. What they keep from round to round lies in `folder`; None: they keep nothing."""
        memory = ClientMemory(folder) if folder else None
        return self.clients_type(
            self.trainer, dict(self.model.weights), self.examples, self.config.epochs or 1, self.config.seed,
            self.compressor, memory, self.down, self.config.steps, self.masks, **self.clients_settings(),
        )  # fmt: skip

    def clients_settings(self) -> Mapping[str, Any]:
        """Further arguments of `clients_type`."""
        return {}

    @property
    def masks(self) -> Masks | None:
        """Hide changes from the server, if that is wanted."""
        return Masks(self.settings.drawn, self.config.seed) if self.config.masked else None

    @property
    def settings(self) -> Settings:
        """The settings of the rounds."""
        config = self.config
        return Settings(
            config.clients or 0, self.epochs, config.fraction, config.seed, config.deadline, config.largest_update,
            config.validation_frequency, config.average,
        )  # fmt: skip

    def grid(self, run: Run) -> Grid:
        """The grid that carries messages to the clients."""
        return self.carrier or LocalGrid(self.clients(run.folder / CLIENTS))

    def make_rounds(self, run: Run) -> Rounds:
        """The server's side, which writes what happens in each round into the run's folder."""

        def record(happened: RoundRecord) -> None:
            atomic.append_line(run.folder / ROUNDS, atomic.to_json(happened.to_dict()))

        config, masks = self.config, self.masks
        return self.rounds_type(
            self.model, self.model.changing, self.settings, config.make_strategy(), self.grid(run), self.task.test,
            masks or self.compressor, record, masks or config.make_privacy(), self.down,
        )  # fmt: skip

    def sources(self) -> list[str]:
        sizes, strategy = self.examples.sizes, self.config.strategy
        clients = f"{len(sizes)} clients with {min(sizes)} to {max(sizes)} examples, {strategy}, {self.epochs} rounds"
        decay = self.config.average
        averaged = [f"Tested and kept: the mean of the rounds' weights, decay {decay:g}"] if decay else []
        return [*super().sources(), clients, *averaged]

    def run(self, run: Run, callbacks: Sequence[Callback] = (), log: Log = print) -> dict | None:
        if self.config.engine != "local" and self.carrier is None:
            return run_elsewhere(type(self), run, self.config, log)
        self.rounds = self.make_rounds(run)
        plot_partition(
            counts(self.examples.parts, self.examples.y, len(self.task.data["classes"])),
            self.task.data["classes"], run.folder / PARTITION,
        )  # fmt: skip
        self._happened = lambda: read_rounds(run)
        return super().run(run, callbacks, log)

    def fit(self, callbacks: Sequence[Callback]) -> None:
        self.rounds.fit(callbacks)

    def finish(self, run: Run, seconds: float, log: Log) -> dict:
        results = super().finish(run, seconds, log)
        for line in summary(run):
            log(line)
        return results

    def memory(self) -> dict[str, int]:
        """Bytes of a client, planned and allocated, and of this process."""
        return totals(self._happened())["memory"] | {"process": peak_resident_bytes()}

    def results(self, correct: int, total: int, loss: float, seconds: float) -> dict:
        happened = self._happened()
        found = {name: value for name, value in totals(happened).items() if name != "memory"}
        if privacy := self.config.make_privacy():
            found |= {"epsilon": privacy.epsilon(len(happened)), "delta": privacy.delta}
        return super().results(correct, total, loss, seconds) | found
