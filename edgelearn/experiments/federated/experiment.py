"""A federation in a run folder: its configuration, its tasks, its training here or on the processes of Flower."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import ceil
from pathlib import Path
from typing import Any, ClassVar, Self, cast

import numpy as np

from edgelearn import atomic
from edgelearn.data.audio import ClipDataset
from edgelearn.data.cifar10 import CLASSES, SIZE, load_cifar10, standardized
from edgelearn.data.features import DS_CNN_MLPERF, load_features
from edgelearn.data.pictures import ImageDataset, load_images
from edgelearn.data.speech_commands import COMMANDS, load_named
from edgelearn.data.synthetic_words import embedded_words
from edgelearn.errors import DataError, PlanError, RunError
from edgelearn.experiments.classes import TaskExperiment
from edgelearn.experiments.config import ConfigError, TrainingConfig, setting
from edgelearn.experiments.experiment import Log
from edgelearn.experiments.keywords.episodes import hold_out
from edgelearn.experiments.tasks import Task, TaskKind, drawn_weights, load_model
from edgelearn.federated import (
    IID,
    STRATEGIES,
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
    Server,
    ServerSettings,
    Strategy,
    counts,
    make_strategy,
)
from edgelearn.federated.compression import make_compressor
from edgelearn.federated.flower import FlowerGrid, client_app, server_app
from edgelearn.federated.privacy import Masks, Privacy
from edgelearn.graph import Network
from edgelearn.keywords.learners import Embedder, FineTune, Head, Learner
from edgelearn.lab.measure import peak_resident_bytes
from edgelearn.lab.runs import Run, RunStore
from edgelearn.models import ds_cnn
from edgelearn.models.keywords import Size
from edgelearn.ops import (
    SGD,
    BatchNormalization,
    Conv2D,
    Dense,
    Flatten,
    GroupNormalization,
    MaxPooling2D,
    Optimizer,
    ReLU,
)
from edgelearn.train import Callback, Model, PictureSource, Trainer
from edgelearn.train.control import on_interrupt
from edgelearn.train.model import Phases

from .deployment import Deployment, end_left_over, require_flower
from .report import ROUNDS, plot_partition, read_rounds, summary, totals

PARTITIONS = ("iid", "dirichlet", "labels", "group")
ENGINES = ("local", "ray", "deployed")


@dataclass(frozen=True)
class FederatedConfig(TrainingConfig):
    """A federation on a task; None stands for the task's value.

    Arguments: those of TrainingConfig, of which `epochs` are those of a client in a round, and
    - `strategy`: what the server does with the clients' updates (default "fedavg").
    - `rounds`, `clients`: their numbers.
    - `fraction`: share of the clients that train in a round (default 1).
    - `batch_size`: examples of a client's update.
    - `steps`: updates of a client in a round, each with examples drawn anew, in place of epochs (default None).
    - `learning_rate`: of the clients.
    - `partition`: who has which examples: "iid", "dirichlet", "labels" or "group", such as a speaker.
    - `alpha`: of "dirichlet" (default 0.5). `labels_per_client`: of "labels" (default 1).
    - `proximal`: μ of "fedprox" (default 0.01).
    - `server_rate`: learning rate of "fedavgm", "fedadam" and "fedyogi" (default: the strategy's).
    - `server_decay`: factor of the server's steps from one round to the next (default 1). 0.995 leaves 8 % after 500.
    - `bad`: largest share of bad clients that "fedtrimmedavg", "krum" and "multikrum" withstand (default 0.3).
    - `average`: decay of the exponential mean of the rounds' weights that is tested and kept; clients get the weights
      themselves (default 0: none). 0.99 is about the mean of 100 rounds.
    - `normalization`: "batch" (default; its moving statistics are averaged like weights) or "group".
    - `compress`: how updates are sent: "float32" (default), "int8", "topk:0.01", "topk:0.01+int8",
      "topk:0.15+sign", "topk:0.01+int8+warmup:5" or "topk:0.01+int8+warmup:5+ahead".
    - `compress_down`: how weights are sent to clients that have those of the message before (default "float32").
    - `budget`: memory of a client, such as "2 MB" (default: as much as it takes).
    - `deadline`: seconds after which a round goes on without the clients that are missing (default: it waits).
    - `largest_update`: an update longer than so many times the median of earlier rounds is left out (default 10).
    - `validation_frequency`: test after so many rounds (default 1), and at the end.
    - `masked`: hide each client's change from the server by masks that cancel in the sum: a demonstration of secure
      aggregation (default False).
    - `clip`, `noise`: differential privacy: largest length of a client's change, and multiplier of the noise (default:
      none); `delta`: of (ε, δ) (default 1e-5).
    - `engine`: where clients run: "local" (default) in this process, "ray" in Flower's simulation, "deployed" on
      `nodes` SuperNodes (default 2) of Flower, with `tls` and nodes that `authenticate` on request.
    - `listen`: this machine's address, where SuperNodes of other machines call, which `authenticate`; none is started
      here (default: this machine alone). `port`: of the SuperLink (default: a free one).

    Raises ConfigError for an invalid value or combination.
    """

    strategy: str = setting("fedavg", "what the server does with updates", choices=tuple(STRATEGIES))
    rounds: int | None = setting(None, "rounds (default: the task's)", minimum=1)
    clients: int | None = setting(None, "clients (default: the task's)", minimum=1)
    fraction: float = setting(1.0, "share of the clients that train in a round", above=0, maximum=1)
    epochs: int | None = setting(None, "epochs of a client in a round (default: the task's)", minimum=1)
    batch_size: int | None = setting(None, "examples of a client's update (default: the task's)", minimum=1)
    steps: int | None = setting(None, "updates of a client in a round, in place of epochs", minimum=1)
    learning_rate: float | None = setting(None, "of the clients (default: the task's)", above=0)
    partition: str | None = setting(None, "who has which examples (default: the task's)", choices=PARTITIONS)
    alpha: float = setting(0.5, "of the partition dirichlet: small is uneven", above=0)
    labels_per_client: int = setting(1, "of the partition labels", minimum=1)
    proximal: float = setting(0.01, "μ of fedprox", minimum=0)
    server_rate: float | None = setting(None, "learning rate of fedavgm, fedadam, fedyogi", above=0)
    server_decay: float = setting(1.0, "factor of the server's steps from round to round", above=0, maximum=1)
    bad: float | None = setting(
        None, "largest share of bad clients, of fedtrimmedavg, krum, multikrum (default: 0.3)", minimum=0, maximum=0.49
    )
    average: float = setting(
        0.0,
        "decay of the mean of the rounds' weights that is tested and kept, such as 0.99 (0: none)",
        minimum=0,
        maximum=0.99999,
    )
    normalization: str = setting("batch", "BatchNormalization or GroupNormalization", choices=("batch", "group"))
    compress: str = setting(
        "float32",
        "how updates are sent: float32, int8, topk:0.01, topk:0.01+int8 or topk:0.15+sign",
        check=make_compressor,
    )
    compress_down: str = setting(
        "float32",
        "how weights are sent: float32, int8, topk:0.01, topk:0.01+int8 or topk:0.15+sign",
        check=make_compressor,
    )
    budget: str | None = setting(None, "memory of a client, such as 2MB", metavar="SIZE")
    deadline: float | None = setting(None, "seconds to wait for the clients of a round", above=0)
    largest_update: float | None = setting(
        10.0, "times the median length of earlier rounds that an update may have", above=1
    )
    validation_frequency: int = setting(1, "test after so many rounds", minimum=1)
    masked: bool = setting(False, "hide each client's change from the server: a demonstration")
    clip: float | None = setting(None, "differential privacy: largest length of a client's change", above=0)
    noise: float | None = setting(None, "differential privacy: multiplier of the noise", above=0)
    delta: float = setting(1e-5, "of the (ε, δ) of differential privacy", above=0, maximum=0.5)
    engine: str = setting("local", "where clients run", choices=ENGINES)
    nodes: int = setting(2, "SuperNodes of the engine deployed, which share the clients", minimum=1)
    tls: bool = setting(False, "encrypt what the engine deployed sends")
    authenticate: bool = setting(False, "let only nodes with registered keys take part; needs --tls")
    listen: str | None = setting(
        None, "this machine's address, for SuperNodes on other machines; needs --authenticate", metavar="ADDRESS"
    )
    port: int | None = setting(None, "of the SuperLink (default: a free one)", minimum=1, maximum=65535)

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            strategy = self.make_strategy()
        except PlanError as error:
            raise ConfigError("bad" if self.server_rate is None else "server_rate", str(error)) from None
        if (self.clip is None) != (self.noise is None):
            raise ConfigError("clip" if self.clip is None else "noise", "clip and noise belong together: give both.")
        if self.masked and (self.clip is not None or self.compress != "float32"):
            raise ConfigError("masked", "masks hide changes as they are: leave clip, noise and compress out.")
        if strategy.combines and (self.masked or self.clip is not None):
            raise ConfigError("strategy", f"{self.strategy} must see each client's change: leave masked and clip out.")
        if self.masked and strategy.own_size:
            raise ConfigError("masked", f"{self.strategy} sends clients' own vectors: choose another strategy.")
        if self.authenticate and not self.tls:
            raise ConfigError("authenticate", "nodes authenticate over TLS only: give tls too.")
        if self.listen and not self.authenticate:
            raise ConfigError(
                "listen", "nodes of other machines need encryption and keys: give tls and authenticate too."
            )

    def make_strategy(self) -> Strategy:
        """The strategy with its settings."""
        return make_strategy(self.strategy, self.proximal, self.server_rate, self.server_decay, self.bad)

    def make_compressor(self) -> Compressor:
        """The compressor of the clients' updates."""
        return make_compressor(self.compress)

    def make_down(self) -> Compressor | None:
        """The compressor of the server's weights, if there is one."""
        return None if self.compress_down == "float32" else make_compressor(self.compress_down)

    def make_privacy(self) -> Privacy | None:
        """Differential privacy, if there is any."""
        if self.clip is None or self.noise is None:
            return None
        return Privacy(self.clip, self.noise, self.delta, self.seed)


def with_group_normalization(network: Network, groups: int = 8) -> Network:
    """A copy of a network with GroupNormalization in place of BatchNormalization: the statistics of a few examples of
    one client tell nothing of the others'. `groups`: of channels."""
    copy = Network(f"{network.name}_gn", network.inputs)
    for node in network.nodes.values():
        op = GroupNormalization(groups=groups) if isinstance(node.op, BatchNormalization) else node.op
        copy.add(node.name, op, *node.inputs)
    copy.take_outputs(network)
    return copy


def lenet(input_shape: tuple[int, int, int] = (32, 32, 3), classes: int = 10) -> Network:
    """LeNet of 6 and 16 channels, 120 and 84 units: the network of Flower's `niid_bench` on CIFAR-10, 62,006
    parameters."""
    network = Network("lenet", input_shape)
    for number, filters in enumerate((6, 16), 1):
        network.add(f"conv{number}", Conv2D(filters, 5))
        network.add(f"relu{number}", ReLU())
        network.add(f"pool{number}", MaxPooling2D(2))
    network.add("flatten", Flatten())
    for number, units in enumerate((120, 84), 3):
        network.add(f"dense{number}", Dense(units))
        network.add(f"relu{number}", ReLU())
    network.add("dense5", Dense(classes))
    return network


_SMALL = Size(32, 2, (2, 2), (2, 1))  # a DS-CNN that learns in seconds


@dataclass
class FederatedTask(Task):
    """A loaded task.

    Arguments: those of Task, and
    - `groups`: name of the group that each example belongs to, such as its speaker; None: there are none.
    - `test_groups`: the same of the test data.
    """

    groups: np.ndarray | None = None
    test_groups: np.ndarray | None = None


@dataclass(frozen=True)
class FederatedKind(TaskKind):
    """A task that can be loaded.

    Arguments: those of TaskKind, and
    - `rounds`, `clients`, `batch_size`, `partition`: used where the configuration has none.
    """

    rounds: int = 10
    clients: int = 10
    batch_size: int = 32
    partition: str = "iid"

    @property
    def settings(self) -> dict[str, Any]:
        """Values for settings that the configuration leaves open."""
        return {name: getattr(self, name) for name in ("rounds", "clients", "batch_size", "partition", "epochs")}


def _spoken(config: FederatedConfig, clips: ClipDataset, speakers: int, network: Callable[..., Network]) -> Task:
    """Words by some speakers to train with, the same words by `speakers` others to test with."""
    split = hold_out(clips, speakers=speakers, seed=config.seed)
    train, test = (_normalized(load_features(part, DS_CNN_MLPERF))[..., None] for part in (split.train, split.test))
    built = network(train.shape[1:], len(clips.class_names))
    if config.normalization == "group":
        built = with_group_normalization(built)
    data = {
        "origin": clips.origin, "description": clips.description, "classes": list(clips.class_names),
        "train": len(train), "test": len(test),
    }  # fmt: skip
    return FederatedTask(
        Model(built, None, config.device, config.seed), (train, split.train.labels), (test, split.test.labels),
        lambda steps: SGD(config.learning_rate or 0.2, momentum=0.9), data, drawn_weights(config.seed),
        config.batch_size or 0, "batch", groups=split.train.speakers, test_groups=split.test.speakers,
    )  # fmt: skip


def _normalized(features: np.ndarray) -> np.ndarray:
    """Each coefficient with mean 0 and deviation 1 over the time of a clip, which needs no other clip. `features`:
    (n, frames, coefficients)."""
    centred = features - features.mean(1, keepdims=True)
    return centred / (centred.std(1, keepdims=True) + np.float32(1e-3))


def _sample(config: FederatedConfig) -> Task:
    return _spoken(
        config, embedded_words(words=8, speakers=16, takes=5), 4,
        lambda shape, classes: ds_cnn(shape, _SMALL, classes, softmax=False),
    )  # fmt: skip


def _keywords(config: FederatedConfig) -> Task:
    clips = load_named("speech_commands_v0.02_test", config.data).only(COMMANDS)
    return _spoken(config, clips, 40, lambda shape, classes: ds_cnn(shape, "S", classes, softmax=False))


def _arabic(config: FederatedConfig) -> Task:
    clips = load_named("arabic_speech_commands", config.data)
    return _spoken(config, clips, 4, lambda shape, classes: ds_cnn(shape, "S", classes, softmax=False))


@lru_cache(maxsize=2)
def _cifar10_pictures(split: str, data: str | None, download: bool) -> tuple[ImageDataset, np.ndarray]:
    dataset = load_cifar10(split, data, download)
    return dataset, load_images(dataset, range(len(dataset)), SIZE)


def cifar10_pictures(config: FederatedConfig) -> tuple[tuple, tuple, dict]:
    """Training data, test data and what a run's record says of them; no augmentation."""
    sides = [_cifar10_pictures(split, config.data, config.download) for split in ("train", "test")]
    (train, _), (test, _) = sides
    data = {"origin": train.origin, "description": train.description, "classes": list(CLASSES), "train": len(train),
            "test": len(test)}  # fmt: skip

    def side(dataset: ImageDataset, pictures: np.ndarray) -> tuple[PictureSource, np.ndarray]:
        source = PictureSource(len(pictures), SIZE, lambda indices, size: pictures[indices], standardized)
        return source, dataset.labels

    return side(*sides[0]), side(*sides[1]), data


def _cifar10(config: FederatedConfig) -> Task:
    """Flower's `niid_bench`: no augmentation, momentum, a little weight decay."""
    train, test, data = cifar10_pictures(config)
    return FederatedTask(
        Model(lenet(), None, config.device, config.seed), train, test,
        lambda steps: SGD(config.learning_rate or 0.01, weight_decay=1e-5, momentum=0.9), data,
        drawn_weights(config.seed), config.batch_size or 0, "batch",
    )  # fmt: skip


TASKS: dict[str, FederatedKind] = {
    "sample": FederatedKind(
        "The embedded words, a small DS-CNN; a client is a speaker", 2, 16, _sample, 12, 12, 16, "group"
    ),
    "keywords": FederatedKind(
        "Ten English words of Speech Commands, DS-CNN-S; a client is a speaker or more", 1, 16, _keywords, 50, 100, 16,
        "group",
    ),
    "keywords-arabic": FederatedKind(
        "24 Arabic words, DS-CNN-S; a client is a speaker", 1, 16, _arabic, 30, 20, 16, "group"
    ),
    "cifar10": FederatedKind(
        "CIFAR-10, LeNet, with the settings of Flower's niid_bench", 10, 64, _cifar10, 50, 10, 64, "dirichlet"
    ),
}  # fmt: skip


FOLDER = "flower"  # in the run's folder
TRAFFIC = "traffic.json"  # in that folder: bytes as Flower counts them
_NODES_HERE, _NODES_ELSEWHERE = 180, 3600  # seconds that the nodes may take
_BEGINS = 180  # seconds that a ServerApp may take to take the run over
_CRASHED = "Simulation Runtime crashed"  # what Flower says when Ray fails


def run_elsewhere(kind: type, run: Run, config: FederatedConfig, log: Log) -> dict | None:
    """Run a federation by the engine of its configuration; returns the results, or None after an interrupt.

    Arguments:
    - `kind`: the class of the experiment, which Flower's processes import.
    - `run`: open for writing; it is closed, so that the ServerApp can take it over.
    - `config`: of the federation.
    - `log`: gets a line for each round.

    Raises RunError, which says how to continue, if the run fails or a process of Flower dies.
    """
    simulation = config.engine == "ray"
    nodes = (config.clients or 1) if simulation else config.nodes
    advice = f"Continue with: edgelearn federated run --resume {run.id}"
    watch = _Watch(run, config.rounds or 0, log)
    run.close()
    folder = run.folder / FOLDER
    try:
        with (
            on_interrupt(_interrupt),
            Deployment(
                folder, nodes, simulation, config.tls, config.authenticate, config.listen, config.port
            ) as deployment,
        ):
            for number, command in enumerate(deployment.commands() if config.listen else ()):
                log(f"node {number}: {command}")
            deployment.run(kind, settings(config, run.folder, nodes))
            deployment.watch(watch.ended)
            if not simulation:
                atomic.write_json(folder / TRAFFIC, deployment.traffic())
            said = "" if run.status == "finished" else deployment.said()
    except KeyboardInterrupt:
        log(f"Stopped; the last whole round is saved. {advice}")
        return None
    except RunError as error:
        raise RunError(f"{error} {advice}") from error
    if run.status != "finished":
        reason = (run.record.get("error") or {}).get("message") or said
        if _CRASHED in reason:
            reason = f"Ray's processes died or didn't answer in time, as on a busy machine. Flower says: {reason}"
        raise RunError(f"The run ended as {run.status}: {reason} {advice}")
    log(f"Test accuracy: {run.record['results']['accuracy']:.2%}")
    for line in summary(run):
        log(line)
    return run.record["results"]


def settings(config: FederatedConfig, folder: Path, nodes: int) -> dict[str, str | int]:
    """The configuration of Flower's run.

    Arguments:
    - `config`: of the federation.
    - `folder`: of the run.
    - `nodes`: number of nodes.
    """
    patience = _NODES_ELSEWHERE if config.listen else _NODES_HERE
    return {"config": json.dumps(config.to_dict()), "folder": str(folder), "nodes": nodes, "patience": patience}


def _interrupt() -> None:
    """SIGTERM and a closed terminal end Flower's processes as Ctrl-C does; without this they would go on alone."""
    raise KeyboardInterrupt


class _Watch:
    """Logs rounds as they come, and tells when the ServerApp has left the run."""

    def __init__(self, run: Run, rounds: int, log: Log) -> None:
        self.run, self.rounds, self.log = run, rounds, log
        self.before, self.seen = len(run.record.get("resumed") or []), len(run.history())
        self.latest = time.monotonic() + _BEGINS

    def ended(self) -> bool:
        status = self.run.status
        if len(self.run.record.get("resumed") or []) == self.before:
            if time.monotonic() > self.latest:
                raise RunError(f"Flower's ServerApp hasn't begun after {_BEGINS} s: see the logs in {self.run.folder}.")
            return False
        rows = self.run.history()
        for row in rows[self.seen :]:
            figures = "  ".join(f"{k} {v:.4g}" for k, v in row.items() if k not in ("epoch", "seconds"))
            self.log(f"round {row['epoch']:>4}/{self.rounds}  {figures}  {row['seconds']:.1f} s")
        self.seen = len(rows)
        return status != "running"


CLIENTS, PARTITION = "clients", "partition.png"  # in the run's folder


class FederatedExperiment(TaskExperiment[FederatedConfig]):
    """A federation on a task."""

    kind, command, config_type = "federated", "edgelearn federated run", FederatedConfig
    tasks = TASKS
    task: FederatedTask
    carrier: Grid | None = None  # Flower's, in a ServerApp
    rounds_type: ClassVar[type[Server]] = Server

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
    def trained(self) -> Server:
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
        return Clients(
            self.trainer, dict(self.model.weights), self.examples, self.config.epochs or 1, self.config.seed,
            self.compressor, memory, self.down, self.config.steps, self.masks, self.config.make_strategy(),
        )  # fmt: skip

    @property
    def masks(self) -> Masks | None:
        """Hide changes from the server, if that is wanted."""
        return Masks(self.settings.drawn, self.config.seed) if self.config.masked else None

    @property
    def settings(self) -> ServerSettings:
        """The settings of the rounds."""
        config = self.config
        return ServerSettings(
            config.clients or 0, self.epochs, config.fraction, config.seed, config.deadline, config.largest_update,
            config.validation_frequency, config.average,
        )  # fmt: skip

    def grid(self, run: Run) -> Grid:
        """The grid that carries messages to the clients."""
        return self.carrier or LocalGrid(self.clients(run.folder / CLIENTS))

    def make_rounds(self, run: Run) -> Server:
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


@lru_cache(maxsize=1)
def _clients(experiment: type[FederatedExperiment], config: str, folder: str) -> Clients:
    """The clients of a process, which Ray keeps for many messages."""
    loaded = experiment.load(experiment.config_type.from_dict(json.loads(config)))
    return loaded.clients(Path(folder) / CLIENTS)


def make_client_app(experiment: type[FederatedExperiment]) -> Any:
    """Return Flower's ClientApp for an experiment."""

    def work(context: Any) -> Clients:  # Ray pickles it, so the cache is the module's
        here = context.node_config.get("folder") or context.run_config["folder"]
        return _clients(experiment, context.run_config["config"], str(here))

    return client_app(work)


def make_server_app(experiment: type[FederatedExperiment]) -> Any:
    """Return Flower's ServerApp for an experiment."""

    def serve(grid: Any, settings: Mapping[str, Any]) -> None:
        folder = Path(settings["folder"])
        with RunStore(folder.parent).open(folder.name).resume() as run:
            loaded = experiment.load(experiment.config_type.from_dict(run.config))
            loaded.carrier = FlowerGrid(grid, settings["nodes"], settings["patience"])
            loaded.run(run)

    return server_app(serve)


STAGES = ("before", "rounds", "enrolment")
LEARNER = FineTune(epochs=50, learning_rate=0.05, rehearsal=0)  # a device has no clips of other people


@dataclass(frozen=True)
class PersonalErrors:
    """Errors of users who took no part in a federation, each a share of the user's clips.

    Arguments:
    - `users`: their names.
    - `tested`: number of clips of each.
    - `errors`: by stage, of each user: `before` training, after the `rounds`, after the user's own `enrolment`.
    """

    users: Sequence[str]
    tested: np.ndarray
    errors: dict[str, np.ndarray]

    def mean(self, stage: str) -> float:
        """The mean over users."""
        return float(self.errors[stage].mean())

    def worst_tenth(self, stage: str) -> float:
        """The mean over the tenth of the users with most errors, at least one user."""
        return float(np.sort(self.errors[stage])[-ceil(len(self.users) / 10) :].mean())


def personalise(
    run: Run, folds: int = 5, least: int = 10, learner: Learner = LEARNER, device: str | None = None
) -> PersonalErrors:
    """Enrol each speaker of a run's test data on top of the network that the run trained. A user's clips are divided
    into parts; each is tested after enrolment of the others.

    Arguments:
    - `run`: a finished federation of a task with speakers.
    - `folds`: number of parts (default 5).
    - `least`: clips of the words that a user has at least (default 10).
    - `learner`: enrols a user's clips (default: a new last layer, trained from the network's own).
    - `device`: part of a device's name (default: chosen).

    Raises RunError for a run that isn't finished, DataError for a task without speakers or too few clips.
    """
    config = FederatedConfig.from_dict(run.config)
    experiment = FederatedExperiment.load(config)
    (x, labels), speakers = experiment.task.test, experiment.task.test_groups
    if speakers is None:
        raise DataError(f"The task '{config.task}' has no speakers: choose a run of keywords.")
    names, counts = np.unique(speakers, return_counts=True)
    users = names[counts >= max(least, folds)]
    if not len(users):
        raise DataError(f"No speaker of the test data has {max(least, folds)} clips: ask for fewer.")
    features, trained = np.asarray(x)[..., 0], load_model(run, device)
    embedder = _embedder(trained.network, dict(trained.weights), device)
    embeddings, classes = embedder.embed(features), len(experiment.task.data["classes"])

    def enrolled(own: np.ndarray) -> np.ndarray:
        """Return True for each of the user's clips that a classifier enrolled without it misclassifies."""
        wrong = np.zeros(len(own), bool)
        for fold in range(folds):
            tested, support = own[fold::folds], np.setdiff1d(own, own[fold::folds])
            if learner.keeps_embeddings:
                found = learner.classify(embedder, embeddings[support], labels[support], classes)
                scores = found.scores(embeddings[tested])
            else:
                scores = learner.enrol(embedder, features[support], labels[support]).scores(features[tested])
            wrong[fold::folds] = scores.argmax(1) != labels[tested]
        return wrong

    wrong: dict[str, Callable[[np.ndarray], np.ndarray]] = {"enrolment": enrolled}
    for stage, model in (("before", experiment.model), ("rounds", trained)):
        wrong[stage] = (model.predict(x).argmax(1) != labels).__getitem__
    clips = [np.flatnonzero(speakers == user) for user in users]
    clips = [own[np.argsort(labels[own], kind="stable")] for own in clips]  # so that all parts have the same words
    errors = {stage: np.array([wrong[stage](own).mean() for own in clips]) for stage in STAGES}
    return PersonalErrors(users.tolist(), np.array([len(own) for own in clips]), errors)


def _embedder(network: Network, weights: dict[str, np.ndarray], device: str | None) -> Embedder:
    """The network without its last layer, which becomes the head."""
    *nodes, last = network.nodes.values()
    body = Network(f"{network.name}_embedding", network.inputs)
    for node in nodes:
        body.add(node.name, node.op, *node.inputs)
    head = Head(weights[f"{last.name}/kernel"], weights[f"{last.name}/bias"])
    return Embedder(body, {name: weights[name] for name in body.parameters}, DS_CNN_MLPERF, head=head, device=device)
