"""A federation in a run folder: its configuration, its tasks, its training here or on the processes of Flower."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from math import ceil
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from edgelearn import atomic
from edgelearn.data.audio import ClipDataset
from edgelearn.data.cifar10 import SIZE, standardized
from edgelearn.data.features import DS_CNN_MLPERF, load_features
from edgelearn.data.motion import load_motion
from edgelearn.data.speech_commands import COMMANDS, load_named
from edgelearn.data.synthetic_words import embedded_words
from edgelearn.display import plural
from edgelearn.errors import DataError, PlanError, RunError
from edgelearn.experiments.characters import CharacterWindows, read_roles
from edgelearn.experiments.config import ConfigError, TrainingConfig, epochs_setting, setting
from edgelearn.experiments.experiment import Experiment, Finish, Log, Training
from edgelearn.experiments.finetune import FRONT_ENDS, PIXELS
from edgelearn.experiments.flowers import thicket_task
from edgelearn.experiments.keywords.episodes import ARABIC, ENGLISH, hold_out
from edgelearn.experiments.tasks import Task, TaskKind, decoded_cifar10, drawn_weights, finish_task, load_model
from edgelearn.extensions import check_name, import_object
from edgelearn.federated import (
    IID,
    MIXINGS,
    STRATEGIES,
    ByGroup,
    ClientMemory,
    Clients,
    Compressor,
    Dirichlet,
    Examples,
    Gateway,
    Grid,
    LabelsPerClient,
    LocalGrid,
    Mixing,
    Partition,
    Partly,
    RoundRecord,
    Server,
    ServerSettings,
    SimulatedGrid,
    Strategy,
    counts,
    draw_durations,
    make_mixing,
    make_strategy,
)
from edgelearn.federated.compression import make_compressor
from edgelearn.federated.flower import FlowerGrid, client_app, server_app
from edgelearn.federated.messages import Work
from edgelearn.federated.privacy import LocalPrivacy, Masks, Privacy
from edgelearn.federated.secure import FixedPoint, SecureGrid, SecureWork
from edgelearn.federated.strategy import takes_bad
from edgelearn.graph import Network
from edgelearn.keywords.learners import Embedder, FineTune, Head, Learner
from edgelearn.lab.measure import peak_resident_bytes
from edgelearn.lab.runs import Run, RunStore
from edgelearn.models import ds_cnn
from edgelearn.models.keywords import Size
from edgelearn.models.language import character_lstm
from edgelearn.models.motion import motion_cnn
from edgelearn.ops import (
    SGD,
    Adam,
    BatchNormalization,
    Conv2D,
    Dense,
    Flatten,
    GroupNormalization,
    MaxPooling2D,
    ReLU,
)
from edgelearn.train import Callback, Model, PictureSource, Trainer
from edgelearn.train.control import on_interrupt
from edgelearn.train.model import Phases

from .deployment import Deployment, end_left_over, require_flower
from .own import load_own
from .report import ROUNDS, plot_partition, read_rounds, summary, totals

PARTITIONS: dict[str, Callable[..., Partition]] = {
    "iid": IID, "dirichlet": Dirichlet, "labels": LabelsPerClient, "group": ByGroup
}  # fmt: skip
GATEWAY = "gateway"  # the engine whose clients connect over sockets
ENGINES = ("local", "ray", "deployed", GATEWAY)
OWN = "own"  # the task of one's own data and network
_OWN_RATE = 0.02  # learning rate of its clients


@dataclass(frozen=True)
class FederatedConfig(TrainingConfig):
    """A federation on a task; None stands for the task's value.

    Arguments: those of TrainingConfig, of which `epochs` are those of a client in a round, and
    - `model`: file of the network of the task "own", whose examples `data` are: a file .npz with arrays x and y, or a
      folder with a subfolder of pictures or recordings for each class; `pixels`, `front_end`: what these become, as of
      `edgelearn finetune` (default: as the model says).
    - `strategy`: what the server does with the clients' updates (default "fedavg").
    - `rounds`, `clients`: their numbers.
    - `fraction`: share of the clients that train in a round (default 1).
    - `batch_size`: examples of a client's update.
    - `steps`: updates of a client in a round, each with examples drawn anew, in place of epochs (default None).
    - `learning_rate`: learning rate of the clients.
    - `partition`: who has which examples: "iid", "dirichlet", "labels" or "group", such as a speaker.
    - `alpha`: concentration of "dirichlet" (default 0.5).
    - `labels_per_client`: classes of a client with "labels" (default 1).
    - `proximal`: μ of "fedprox" (default 0.01).
    - `server_rate`: learning rate of "fedavgm", "fedadam" and "fedyogi" (default: the strategy's).
    - `server_decay`: factor of the server's steps from one round to the next (default 1). 0.995 leaves 8 % after 500.
    - `bad`: largest share of bad clients that "fedtrimmedavg", "krum", "multikrum" and the mixing "nearest" withstand
      (default 0.3).
    - `mixing`: what is done with clients' changes before the strategy combines them: "none" (default), "nearest" or
      "buckets".
    - `largest_share`: largest share of a round's examples that one client counts for (default: any).
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
    - `secure`: secure aggregation: the server sees the sum of the changes alone, also if up to a third of the clients
      of a round drop out (default False).
    - `clip`, `noise`: differential privacy: largest length of a client's change, and multiplier of the noise (default:
      none); `delta`: of (ε, δ) (default 1e-5).
    - `accountant`: what ε counts: "exact" (default) all rounds as if every client took part; "sampled" that clients are
      drawn, by the package dp-accounting.
    - `local_noise`: local differential privacy: multiplier of the noise that each client adds to its own change, with
      `clip` (default: none).
    - `spread`: rounds on a simulated clock, by which clients train at different speeds: standard deviation of the
      logarithm of a client's seconds for an example (default: no such clock). `buffer`, `concurrency`: asynchronous
      rounds (FedBuff) on that clock: answers of an update, and clients that train at a time (default: rounds wait for
      all of their clients).
    - `engine`: where clients run: "local" (default) in this process, "ray" in Flower's simulation, "deployed" on
      `nodes` SuperNodes (default 2) of Flower, with `tls` and nodes that `authenticate` on request; "gateway": programs
      of their own, such as bundles in C, which connect over sockets to `port` of this machine.
    - `listen`: this machine's address, where SuperNodes of other machines call, which `authenticate`; none is started
      here (default: this machine alone). `port`: of the SuperLink or the gateway (default: a free one).

    Raises ConfigError for an invalid value or combination.
    """

    data: str | None = setting(
        None, "folder with data sets (default: EDGELEARN_DATA); of own: a .npz, or a folder with a subfolder a class",
        metavar="PATH",
    )  # fmt: skip
    model: str | None = setting(None, "file of the network, of the task own", metavar="FILE")
    pixels: str | None = setting(None, "what pictures become, of own, if the model doesn't say", choices=tuple(PIXELS))
    front_end: str | None = setting(
        None, "features of recordings, of own, if the model doesn't say", choices=tuple(FRONT_ENDS)
    )
    strategy: str = setting("fedavg", "what the server does with updates", choices=tuple(STRATEGIES))
    rounds: int | None = epochs_setting(None, "rounds (default: the task's)")
    clients: int | None = setting(None, "clients (default: the task's)", minimum=1)
    fraction: float = setting(1.0, "share of the clients that train in a round", above=0, maximum=1)
    epochs: int | None = epochs_setting(None, "epochs of a client in a round (default: the task's)")
    batch_size: int | None = setting(None, "examples of a client's update (default: the task's)", minimum=1)
    steps: int | None = setting(None, "updates of a client in a round, in place of epochs", minimum=1)
    learning_rate: float | None = setting(None, "of the clients (default: the task's)", above=0)
    partition: str | None = setting(None, "who has which examples (default: the task's)", choices=tuple(PARTITIONS))
    alpha: float = setting(0.5, "of the partition dirichlet: small is uneven", above=0)
    labels_per_client: int = setting(1, "of the partition labels", minimum=1)
    proximal: float = setting(0.01, "μ of fedprox", minimum=0)
    server_rate: float | None = setting(None, "learning rate of fedavgm, fedadam, fedyogi", above=0)
    server_decay: float = setting(1.0, "factor of the server's steps from round to round", above=0, maximum=1)
    bad: float | None = setting(
        None, "largest share of bad clients, of fedtrimmedavg, krum, multikrum, mixing nearest (default: 0.3)",
        minimum=0, maximum=0.49,
    )  # fmt: skip
    mixing: str = setting("none", "averages changes before the strategy combines them", choices=MIXINGS)
    largest_share: float | None = setting(
        None, "of a round's examples that one client counts for (default: any)", above=0, maximum=1
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
    secure: bool = setting(False, "secure aggregation: the server sees the sum of changes alone; clients may drop out")
    clip: float | None = setting(None, "differential privacy: largest length of a client's change", above=0)
    noise: float | None = setting(None, "differential privacy: multiplier of the noise", above=0)
    accountant: str = setting(
        "exact", "what ε counts; sampled: also that clients are drawn, by dp-accounting", choices=("exact", "sampled")
    )
    local_noise: float | None = setting(
        None, "local differential privacy: multiplier of the noise that each client adds", above=0
    )
    delta: float = setting(1e-5, "of the (ε, δ) of differential privacy", above=0, maximum=0.5)
    spread: float | None = setting(
        None, "simulate clients of different speeds: deviation of the logarithm of seconds for an example", minimum=0
    )
    buffer: int | None = setting(None, "asynchronous rounds: answers of an update; with concurrency, spread", minimum=1)
    concurrency: int | None = setting(None, "asynchronous rounds: clients that train at a time", minimum=1)
    engine: str = setting("local", "where clients run", choices=ENGINES)
    nodes: int = setting(2, "SuperNodes of the engine deployed, which share the clients", minimum=1)
    tls: bool = setting(False, "encrypt what the engine deployed sends")
    authenticate: bool = setting(False, "let only nodes with registered keys take part; needs --tls")
    listen: str | None = setting(
        None, "this machine's address, for SuperNodes on other machines; needs --authenticate", metavar="ADDRESS"
    )
    port: int | None = setting(None, "of the SuperLink or the gateway (default: a free one)", minimum=1, maximum=65535)

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            strategy = self.make_strategy()
        except PlanError as error:
            raise ConfigError("bad" if self.server_rate is None else "server_rate", str(error)) from None
        private, own = self.clip is not None, self.task == OWN
        buffered = self.buffer is not None
        hidden = self.masked or self.secure or self.noise is not None
        for refused, name, problem in (
            (own and self.data is None, "data", "the task own needs the path of your examples: give data."),
            (own != (self.model is not None) and self.needs_model, "model",
             "the task own needs the file of your network." if own else "your own network is for the task own."),
            (private == (self.noise is None and self.local_noise is None), "noise" if private else "clip",
             "clip and noise belong together, or clip and local noise: give both."),
            (self.accountant == "sampled" and self.noise is None, "accountant",
             "ε is counted where the server adds noise: give clip and noise."),
            (self.local_noise and self.compress != "float32", "compress",
             "local noise is drawn after what compression would leave out: leave compress out."),
            (self.masked and self.secure, "secure", "masked demonstrates what secure does: give one of them."),
            (self.secure and self.compress != "float32", "compress",
             "secure aggregation adds up whole numbers: leave compress out."),
            (self.secure and self.noise is not None, "noise",
             "with secure aggregation the server can clip nothing: give local noise in place of noise."),
            (self.masked and (private or self.compress != "float32"), "masked",
             "masks hide changes as they are: leave clip, noise and compress out."),
            ((strategy.combines or self.mixing != "none") and hidden, "strategy",
             "mixing, and strategies other than means, must see each change: leave masked, secure and noise out."),
            ((self.masked or self.secure) and strategy.own_size, "strategy",
             f"{self.strategy} sends clients' own vectors: choose another strategy."),
            ((buffered or self.concurrency is not None) and None in (self.buffer, self.concurrency, self.spread),
             "buffer", "asynchronous rounds need buffer, concurrency and spread: give all three."),
            (self.spread is not None and (self.engine != "local" or self.deadline is not None or self.secure),
             "spread", "the clock is simulated for the engine local alone: leave deadline and secure out."),
            (buffered and hidden, "buffer",
             "asynchronous rounds mix changes from weights of several rounds: leave masked, secure and noise out."),
            (buffered and (strategy.combines or strategy.own_size or self.mixing != "none"), "buffer",
             "asynchronous rounds take means, without mixing: choose fedavg, fedprox, fedavgm, fedadam or fedyogi."),
            (buffered and self.compress_down != "float32", "compress_down",
             "clients of asynchronous rounds get all weights: leave it out."),
            (buffered and self.fraction < 1, "fraction", "with asynchronous rounds, concurrency says how many train."),
            (self.authenticate and not self.tls, "authenticate", "nodes authenticate over TLS only: give tls too."),
            (self.engine == GATEWAY
             and (hidden or self.local_noise or self.listen or {self.compress, self.compress_down} != {"float32"}
                  or strategy.own_size or strategy.proximal or self.steps or self.budget), "engine",
             "clients of a gateway train whole epochs and send float32, by themselves: leave such settings out."),
            (self.listen and not self.authenticate, "listen",
             "nodes of other machines need encryption and keys: give tls and authenticate too."),
        ):  # fmt: skip
            if refused:
                raise ConfigError(name, problem)

    @property
    def needs_model(self) -> bool:
        """True if the task own trains the network of `model`."""
        return True

    def make_strategy(self) -> Strategy:
        """The strategy with its settings."""
        told = self.mixing != "nearest" or takes_bad(self.strategy)
        return make_strategy(
            self.strategy, self.proximal, self.server_rate, self.server_decay, self.bad if told else None
        )

    def make_mixing(self) -> Mixing | None:
        """The mixing, if there is any."""
        return make_mixing(self.mixing, self.bad, self.seed)

    def make_privacy(self) -> Privacy | None:
        """Differential privacy, if there is any."""
        if self.clip is None or self.noise is None:
            return None
        drawn = len(ServerSettings(self.clients or 1, 1, self.fraction, self.seed).drawn(1))
        sampled = (drawn, self.clients or 1) if self.accountant == "sampled" else None
        return Privacy(self.clip, self.noise, self.delta, self.seed, sampled)

    def make_local_privacy(self) -> LocalPrivacy | None:
        """Local differential privacy, if there is any."""
        if self.clip is None or self.local_noise is None:
            return None
        return LocalPrivacy(self.clip, self.local_noise, self.delta, self.seed)


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
class FederatedTaskKind(TaskKind):
    """A task that can be loaded.

    Arguments: those of TaskKind, and
    - `rounds`, `clients`, `batch_size`, `partition`: used where the configuration has none.
    """

    rounds: int = 10
    clients: int = 10
    batch_size: int = 32
    partition: str = "iid"


def make_task(
    config: FederatedConfig, network: Network, train: tuple, test: tuple, data: dict[str, Any], rate: float,
    groups: np.ndarray | None = None, test_groups: np.ndarray | None = None, **sgd: Any,
) -> FederatedTask:  # fmt: skip
    """The task of training `network` by SGD from drawn weights, at `rate` where the configuration has none.

    Arguments: those of FederatedTask, and
    - `data`: its record without numbers of examples.
    - `sgd`: further arguments of SGD.
    """
    data = data | {"train": len(train[1]), "test": len(test[1])}
    return FederatedTask(
        Model(network, None, config.device, config.seed), train, test,
        lambda steps: SGD(config.learning_rate or rate, **sgd), data, drawn_weights(config.seed),
        config.batch_size or 0, "batch", groups=groups, test_groups=test_groups,
    )  # fmt: skip


def _spoken(config: FederatedConfig, clips: ClipDataset, speakers: int, size: str | Size = "S") -> FederatedTask:
    """Words by some speakers to train with, the same words by `speakers` others to test with; a DS-CNN of this size."""
    split = hold_out(clips, speakers=speakers, seed=config.seed)
    sides = []
    for part in (split.train, split.test):
        # Each coefficient has mean 0 and deviation 1 over the time of a clip, which needs no other clip.
        features = load_features(part, DS_CNN_MLPERF)
        centred = features - features.mean(1, keepdims=True)
        sides.append(((centred / (centred.std(1, keepdims=True) + np.float32(1e-3)))[..., None], part.labels))
    network = ds_cnn(sides[0][0].shape[1:], size, len(clips.class_names), softmax=False)
    if config.normalization == "group":
        network = with_group_normalization(network)
    data = {"origin": clips.origin, "description": clips.description, "classes": list(clips.class_names)}
    train, test = sides
    return make_task(config, network, train, test, data, 0.2, split.train.speakers, split.test.speakers, momentum=0.9)


def cifar10_task(config: FederatedConfig, network: Network, rate: float, **sgd: Any) -> FederatedTask:
    """Train `network` on CIFAR-10 without augmentation. Other arguments: see `make_task`."""
    sides = [decoded_cifar10(split, config.data, config.download) for split in ("train", "test")]
    sources = [
        (PictureSource(len(pictures), SIZE, lambda indices, size, pictures=pictures: pictures[indices], standardized),
         dataset.labels)
        for dataset, pictures in sides
    ]  # fmt: skip
    dataset, (train, test) = sides[0][0], sources
    data = {"origin": dataset.origin, "description": dataset.description, "classes": list(dataset.class_names)}
    return make_task(config, network, train, test, data, rate, **sgd)


def own_task(config: FederatedConfig) -> FederatedTask:
    """Train the network of `config.model`, from its own weights, on the examples of `config.data`."""
    assert config.data is not None and config.model is not None
    own = load_own(config.data, config.model, config.seed, config.pixels, config.front_end)
    network, weights = own.network, own.weights
    if config.normalization == "group":
        network = with_group_normalization(network)
        weights = network.initialize(config.seed) | {n: a for n, a in weights.items() if n in network.parameters}
    model = Model(network, weights, config.device, config.seed)
    model.class_names = tuple(own.data["classes"])
    data = own.data | {"train": len(own.train[1]), "test": len(own.test[1])}
    rate = config.learning_rate or _OWN_RATE
    return FederatedTask(
        model, own.train, own.test, lambda steps: SGD(rate, momentum=0.9), data, own.origin, config.batch_size or 0,
        "batch", own.preprocessing, groups=own.groups, test_groups=own.test_groups,
    )  # fmt: skip


def _thicket(config: FederatedConfig) -> FederatedTask:
    """Fine-tune the package's MobileNet V1 on the thicket; its normalization keeps its loaded statistics."""
    if config.normalization == "group":
        raise ConfigError("normalization", "the task 'thicket' fine-tunes a network with batch normalization.")
    task = thicket_task(config)
    rate = config.learning_rate or 1e-3
    return FederatedTask(
        task.model, task.train, task.test, lambda steps: Adam(rate), task.data, task.weights,
        config.batch_size or 0, task.batchnorm, task.pictures,
    )  # fmt: skip


def _motion(config: FederatedConfig) -> FederatedTask:
    """Recognise activities by the study's convolutions over a phone's axes; every fourth recording tests."""
    dataset = load_motion("phone", config.data)
    tested = dataset.runs % 4 == 0
    train, test = ((dataset.windows[part], dataset.labels[part]) for part in (~tested, tested))
    network = motion_cnn(dataset.windows.shape[1:], classes=len(dataset.class_names))
    data = {"origin": dataset.origin, "description": dataset.description, "classes": list(dataset.class_names)}
    people, test_people = (dataset.people[part] for part in (~tested, tested))
    return make_task(config, network, train, test, data, 0.1, people, test_people, momentum=0.9)


def _characters(config: FederatedConfig) -> FederatedTask:
    """Predict the character after 80 others (12 drawn ones), as Flower's FedMeta baseline on LEAF's Shakespeare; the
    roles that say most are clients, and the last fifth of what each says tests, every 20th character of it."""
    roles, source = read_roles(config.data)
    drawn = source == "drawn sums"
    context, units = (12, (32,)) if drawn else (80, (256, 256))
    said = [each for each in roles.values() if len(each) > 10 * context][: config.clients]
    if len(said) < (config.clients or 0):
        raise ConfigError("clients", f"{source} has {len(said)} roles that say {10 * context} characters: take fewer.")
    alphabet = sorted(set("".join(roles.values())))
    numbers = np.array([*map({c: n for n, c in enumerate(alphabet)}.get, "".join(said))], np.int32)
    ends = np.cumsum([len(each) for each in said])
    middles = ends - [len(each) // 5 for each in said]
    begins = ends - [len(each) for each in said]
    sides = []
    for first, last, step in ((begins, middles, 1), (middles, ends, 20)):
        starts = [np.arange(a, b - context, step) for a, b in zip(first, last, strict=True)]
        windows = CharacterWindows(numbers, np.concatenate(starts), context)
        sides.append((windows, windows.labels, np.repeat(np.arange(len(said)), [len(each) for each in starts])))
    (x, y, groups), (x_test, y_test, test_groups) = sides
    description = (
        f"{source}: {len(numbers):,} characters of {plural(len(said), 'role')}, {len(alphabet)} different ones"
    )
    data = {"origin": source, "description": description, "classes": alphabet}
    network = character_lstm(len(alphabet), context, units=units)
    task = make_task(config, network, (x, y), (x_test, y_test), data, 1e-3, groups, test_groups)
    return replace(task, optimizer=lambda steps: Adam(config.learning_rate or 1e-3))


_SMALL = Size(32, 2, (2, 2), (2, 1))  # a DS-CNN that learns in seconds
TASKS: dict[str, FederatedTaskKind] = {
    "sample": FederatedTaskKind(
        "The embedded words, a small DS-CNN; a client is a speaker", 2, 16,
        lambda config: _spoken(config, embedded_words(words=8, speakers=16, takes=5), 4, _SMALL), 12, 12, 16, "group",
    ),
    "thicket": FederatedTaskKind(
        "The thicket, drawn flowers that are hard to tell, all layers of MobileNet V1 0.25/96", 1, 25, _thicket,
        8, 10, 25, "dirichlet",
    ),
    "keywords": FederatedTaskKind(
        "Ten English words of Speech Commands, DS-CNN-S; a client is a speaker or more", 1, 16,
        lambda config: _spoken(config, load_named(ENGLISH, config.data).only(COMMANDS), 40), 50, 100, 16, "group",
    ),
    "keywords-arabic": FederatedTaskKind(
        "24 Arabic words, DS-CNN-S; a client is a speaker", 1, 16,
        lambda config: _spoken(config, load_named(ARABIC, config.data), 4), 30, 20, 16, "group",
    ),
    "cifar10": FederatedTaskKind(
        "CIFAR-10, LeNet, with the settings of Flower's niid_bench", 10, 64,
        lambda config: cifar10_task(config, lenet(), 0.01, weight_decay=1e-5, momentum=0.9), 50, 10, 64, "dirichlet",
    ),
    "motion": FederatedTaskKind(
        "Activities from a phone's motion, or drawn ones; a client is a person or more", 1, 16, _motion, 30, 12, 16,
        "group",
    ),
    "characters": FederatedTaskKind(
        "The next character of Shakespeare's roles, or of drawn sums, LSTMs; a client is a role", 1, 10, _characters,
        20, 12, 10, "group",
    ),
    OWN: FederatedTaskKind("Your examples (--data) and your network (--model)", 1, 32, own_task, 10, 10, 32),
}  # fmt: skip


FOLDER = "flower"  # in the run's folder
TRAFFIC = "traffic.json"  # in that folder: bytes as Flower counts them
CLIENTS, PARTITION = "clients", "partition.png"  # in the run's folder
SECRETS = "secrets"  # in the clients' folder: keys of secure aggregation
_NODES_HERE, _NODES_ELSEWHERE = 180, 3600  # seconds that the nodes may take
_BEGINS = 180  # seconds that a ServerApp may take to take the run over
_CRASHED = "Simulation Runtime crashed"  # what Flower says when Ray fails
_RESTARTS = 2  # of Ray: its raylet dies if its agents take 15 seconds to start, as they do on a busy machine


@dataclass(kw_only=True, repr=False)
class Federation(Training[FederatedConfig]):
    """A federation on a task: its clients, and its server while it runs."""

    server: Server = field(init=False)
    carrier: Grid | None = None  # Flower's, in a ServerApp
    server_type: ClassVar[type[Server]] = Server

    @property
    def trained(self) -> Server:
        return self.server

    @cached_property
    def examples(self) -> Examples:
        """Who has which examples."""
        config = self.config
        more = {"dirichlet": (config.alpha,), "labels": (config.labels_per_client,)}.get(config.partition or "", ())
        partition = PARTITIONS[config.partition or ""](config.clients or 0, config.seed, *more)
        return Examples(*self.train, partition.divide(self.train[1], self.task.groups))

    @cached_property
    def trainer(self) -> Trainer:
        """The open session that clients in this process share."""
        sizes, steps = self.examples.sizes, self.config.steps
        size = self.task.batch_size if steps else min(self.task.batch_size, max(sizes))
        micro_batch = min(self.config.micro_batch or size, size)
        return self.model.trainer(size, micro_batch, self.config.budget, [steps * size] if steps else sizes)

    @property
    def strategy(self) -> Strategy:
        """The server's strategy, which knows how clients train."""
        config, momentum = self.config, getattr(self.model.optimizer, "momentum", 0.0)
        size = min(self.task.batch_size, max(self.examples.sizes))
        return config.make_strategy().fitted(momentum, size, config.epochs or 1, config.steps)

    @cached_property
    def phases(self) -> Phases:
        return Phases(train=self.trainer.plan)

    def compressor(self, name: str) -> Compressor:
        """The compressor of trained parameters that is called `name`; statistics are sent as float32."""
        exact = tuple(each not in self.model.network.trainable for each in self.model.changing)
        return Partly(make_compressor(name), exact) if any(exact) else make_compressor(name)

    @property
    def _shared(self) -> tuple[ServerSettings, Masks | None, Compressor | None]:
        """Both sides know these: settings of the rounds, masks and the compressor of the server's weights, if any."""
        config = self.config
        settings = ServerSettings(
            config.clients or 0, self.epochs, config.fraction, config.seed, config.deadline, config.largest_update,
            config.validation_frequency, config.average, config.largest_share,
        )  # fmt: skip
        down = None if config.compress_down == "float32" else self.compressor(config.compress_down)
        masks = Masks(settings.drawn, config.seed) if config.masked else None
        return settings, FixedPoint(settings.drawn) if config.secure else masks, down

    def clients(self, folder: Path | None = None) -> Clients:
        """The clients. What they keep from round to round lies in `folder`; None: they keep nothing."""
        config, (_, masks, down), memory = self.config, self._shared, ClientMemory(folder) if folder else None
        return Clients(
            self.trainer, dict(self.model.weights), self.examples, config.epochs or 1, config.seed,
            self.compressor(config.compress), memory, down, config.steps, masks, config.make_strategy(),
            config.make_local_privacy(),
        )  # fmt: skip

    def work(self, folder: Path) -> Work:
        """The grid of the clients, with secure aggregation around it if it is asked for."""
        clients = self.clients(folder)
        return SecureWork(clients, ClientMemory(folder / SECRETS)) if self.config.secure else clients

    def make_server(self, run: Run) -> Server:
        """The server, which writes what happens in each round into the run's folder."""

        def record(happened: RoundRecord) -> None:
            atomic.append_line(run.folder / ROUNDS, atomic.to_json(happened.to_dict()))

        config, (settings, masks, down) = self.config, self._shared
        grid = self.carrier or LocalGrid(self.work(run.folder / CLIENTS))
        if config.spread is not None:
            steps, sizes = config.steps, self.examples.sizes
            examples = [steps * self.task.batch_size] * len(sizes) if steps else sizes
            durations = draw_durations(examples, config.spread, config.seed)
            grid = SimulatedGrid(grid, durations, config.buffer, config.concurrency, config.seed)
        if config.secure:
            grid = masks = SecureGrid(settings.drawn, grid=grid)
        return self.server_type(
            self.model, self.model.changing, settings, self.strategy, grid, self.test,
            masks or self.compressor(config.compress), record, masks or config.make_privacy(), down,
            config.make_mixing(),
        )  # fmt: skip

    def run(self, run: Run, callbacks: Sequence[Callback] = (), log: Log = print) -> dict | None:
        if self.config.engine == GATEWAY and self.carrier is None:
            with Gateway(self.config.clients or 1, port=self.config.port or 0) as gateway:
                log(f"Waiting for {plural(gateway.clients, 'client')} at {gateway.address} port {gateway.port}")
                self.carrier = gateway
                return self.run(run, callbacks, log)
        if self.config.engine != "local" and self.carrier is None:
            assert isinstance(self.experiment, FederatedKind)
            return run_elsewhere(self.experiment, run, self.config, log)
        self.server, classes = self.make_server(run), self.data["classes"]
        plot_partition(
            counts(self.examples.parts, self.examples.y, len(classes)), classes, run.folder / PARTITION
        )  # fmt: skip
        return super().run(run, callbacks, log)

    def fit(self, callbacks: Sequence[Callback] = ()) -> None:
        self.server.fit(callbacks)


def finish_federation(training: Federation, run: Run, seconds: float) -> tuple[dict[str, Any], str]:
    """Test and keep the network; the results also have the bytes, and the memory of a client."""
    happened = read_rounds(run)
    results, text = finish_task(training, run, seconds)
    results |= totals(happened)
    results["memory"] |= {"process": peak_resident_bytes()}
    if privacy := training.config.make_privacy():
        results |= {"epsilon": privacy.epsilon(len(happened)), "delta": privacy.delta}
    if local := training.config.make_local_privacy():
        most = Counter(client["client"] for each in happened for client in each["clients"]).most_common(1)
        results |= {"local_epsilon": local.epsilon(most[0][1] if most else 0), "delta": local.delta}
    return results, "\n".join(filter(None, [text, *summary(run.id, results, happened)]))


@dataclass(frozen=True, repr=False)
class FederatedKind(Experiment[FederatedConfig, Federation]):
    """A kind of federations.

    Arguments: those of Experiment, and
    - `reference`: "MODULE:NAME" of this object, by which other processes import it.
    """

    reference: str = ""

    def __reduce__(self) -> Any:
        return import_object, (self.reference,)

    def start(self, config, store, callbacks, log=print, **entries):
        if private := config.make_privacy():
            private.epsilon(1)  # what it needs must be there before anything is trained
        if config.engine not in ("local", GATEWAY):
            require_flower(config.engine)
        return super().start(config, store, callbacks, log, **entries)

    def resume(self, name, store, callbacks, log=print):
        end_left_over(store.open(name).folder / FOLDER)  # by a process that was killed
        return super().resume(name, store, callbacks, log)


def federations(
    kind: str, config_type: type[FederatedConfig], tasks: Mapping[str, FederatedTaskKind], reference: str,
    command: str, federation: type[Federation] = Federation, finish: Finish = finish_federation,
) -> FederatedKind:  # fmt: skip
    """Return the experiment of federations on one of `tasks`.

    Arguments:
    - `kind`, `config_type`, `reference`, `command`: see FederatedKind.
    - `federation`: class of its trainings.
    - `finish`: see Training.
    """

    def resolve(config: FederatedConfig) -> FederatedConfig:
        check_name(config.task, tasks, "task")
        task = tasks[config.task]
        left = ("rounds", "clients", "batch_size", "partition", "epochs", "micro_batch")
        values: dict[str, Any] = {name: getattr(task, name) for name in left if getattr(config, name) is None}
        config = replace(config, **values)
        if config.task == OWN:  # processes elsewhere have other working folders
            paths = {name: path for name in ("data", "model") if (path := getattr(config, name)) is not None}
            config = replace(config, **{name: str(Path(path).absolute()) for name, path in paths.items()})
        for name in ("buffer", "concurrency"):
            if (getattr(config, name) or 0) > (config.clients or 1):
                raise ConfigError(name, f"there are {config.clients} clients: choose no more.")
        if config.engine == "deployed" and config.nodes > (config.clients or 1):
            raise ConfigError("nodes", f"{config.nodes} nodes can't share {config.clients} clients: take fewer nodes.")
        return config

    def load(config: FederatedConfig) -> Federation:
        task, strategy, rounds = tasks[config.task].load(config), config.make_strategy(), config.rounds or 0
        optimizer = replace(task.optimizer(task.steps(rounds)), proximal=strategy.proximal)
        task.model.compile(optimizer, strategy.loss, batchnorm=task.batchnorm)
        loaded = federation(
            config=config, model=task.model, train=task.train, test=task.test, epochs=rounds, finish=finish,
            data=task.data, weights=task.weights, preprocessing=task.pictures, task=task,
        )  # fmt: skip
        sizes, decay, took = loaded.examples.sizes, config.average, plural(rounds, "round")
        loaded.sources = [
            task.data["description"], f"Weights: {task.weights['description']}", tasks[config.task].title,
            f"{plural(len(sizes), 'client')} with {min(sizes)} to {max(sizes)} examples, {config.strategy}, {took}",
            *([f"Tested and kept: the mean of the rounds' weights, decay {decay:g}"] if decay else []),
        ]  # fmt: skip
        return loaded

    def presets() -> dict[str, Any]:
        return {name: config_type(name) for name in tasks if name != "own"}

    return FederatedKind(kind, config_type, load, command, resolve, presets=presets, reference=reference)


FederatedExperiment = federations(
    "federated", FederatedConfig, TASKS, "edgelearn.experiments.federated:FederatedExperiment",
    "edgelearn federated run",
)  # fmt: skip


def run_elsewhere(experiment: FederatedKind, run: Run, config: FederatedConfig, log: Log) -> dict | None:
    """Run a federation by the engine of its configuration; returns the results, or None after an interrupt.

    Arguments:
    - `experiment`: the kind of the run, which Flower's processes import.
    - `run`: open for writing; it is closed, so that the ServerApp can take it over.
    - `config`: configuration of the federation.
    - `log`: gets a line for each round.

    Raises RunError, which says how to continue, if the run fails or a process of Flower dies.
    """
    advice = f"Continue with: edgelearn federated run --resume {run.id}"
    run.close()
    try:
        reason = _deployed(experiment, run, config, log)
        for _ in range(_RESTARTS):
            if _CRASHED not in reason:
                break
            log("Ray's processes died or didn't answer in time, as on a busy machine. They are started once more.")
            reason = _deployed(experiment, run, config, log)
    except KeyboardInterrupt:
        log(f"Stopped; the last whole round is saved. {advice}")
        return None
    except RunError as error:
        raise RunError(f"{error} {advice}") from error
    if run.status != "finished":
        if _CRASHED in reason:
            reason = f"Ray's processes died or didn't answer in {1 + _RESTARTS} starts, as on a busy machine. {reason}"
        raise RunError(f"The run ended as {run.status}: {reason} {advice}")
    results = run.record["results"]
    for line in (f"Test accuracy: {results['accuracy']:.2%}", *summary(run.id, results, read_rounds(run))):
        log(line)
    return results


def _deployed(experiment: FederatedKind, run: Run, config: FederatedConfig, log: Log) -> str:
    """Run a federation, or what is left of it, on new processes of Flower. Returns why it hasn't finished; "" if it
    has."""
    simulation, folder = config.engine == "ray", run.folder / FOLDER
    nodes = (config.clients or 1) if simulation else config.nodes
    settings = {
        "config": json.dumps(config.to_dict()), "folder": str(run.folder), "nodes": nodes,
        "patience": _NODES_ELSEWHERE if config.listen else _NODES_HERE,
    }  # fmt: skip
    ended = _watch(run, config.rounds or 0, log)
    with (
        on_interrupt(_interrupt),
        Deployment(
            folder, nodes, simulation, config.tls, config.authenticate, config.listen, config.port
        ) as deployment,
    ):
        for number, command in enumerate(deployment.commands() if config.listen else ()):
            log(f"node {number}: {command}")
        deployment.run(experiment.reference, settings)
        deployment.watch(ended)
        if not simulation:
            atomic.write_json(folder / TRAFFIC, deployment.traffic())
        if run.status == "finished":
            return ""
        return (run.record.get("error") or {}).get("message") or deployment.said()


def _interrupt() -> None:
    """SIGTERM and a closed terminal end Flower's processes as Ctrl-C does; without this they would go on alone."""
    raise KeyboardInterrupt


def _watch(run: Run, rounds: int, log: Log) -> Callable[[], bool]:
    """Return a function that logs rounds as they come, and returns True once the ServerApp has left the run."""
    before, seen = len(run.record.get("resumed") or []), len(run.history())
    latest = time.monotonic() + _BEGINS

    def ended() -> bool:
        nonlocal seen
        status = run.status
        if len(run.record.get("resumed") or []) == before:
            if time.monotonic() > latest:
                raise RunError(f"Flower's ServerApp hasn't begun after {_BEGINS} s: see the logs in {run.folder}.")
            return False
        rows = run.history()
        for row in rows[seen:]:
            figures = "  ".join(f"{k} {v:.4g}" for k, v in row.items() if k not in ("epoch", "seconds"))
            log(f"round {row['epoch']:>4}/{rounds}  {figures}  {row['seconds']:.1f} s")
        seen = len(rows)
        return status != "running"

    return ended


@lru_cache(maxsize=1)
def _clients(reference: str, config: str, folder: str) -> Work:
    """The clients of a process, which Ray keeps for many messages."""
    experiment = import_object(reference)
    loaded = experiment.load(experiment.config_type.from_dict(json.loads(config)))
    return loaded.work(Path(folder) / CLIENTS)


def make_client_app(reference: str) -> Any:
    """Return Flower's ClientApp for the experiment that `reference` names."""

    def work(context: Any) -> Work:  # Ray pickles it, so the cache is the module's
        here = context.node_config.get("folder") or context.run_config["folder"]
        return _clients(reference, context.run_config["config"], str(here))

    return client_app(work)


def make_server_app(reference: str) -> Any:
    """Return Flower's ServerApp for the experiment that `reference` names."""

    def serve(grid: Any, settings: Mapping[str, Any]) -> None:
        folder, experiment = Path(settings["folder"]), import_object(reference)
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
    untrained = FederatedExperiment.load(config)
    (x, labels), speakers = untrained.test, untrained.task.test_groups
    if speakers is None:
        raise DataError(f"The task '{config.task}' has no speakers: choose a run of keywords.")
    names, counts = np.unique(speakers, return_counts=True)
    users = names[counts >= max(least, folds)]
    if not len(users):
        raise DataError(f"No speaker of the test data has {max(least, folds)} clips: ask for fewer.")
    features, trained = np.asarray(x)[..., 0], load_model(run, device)
    embedder = _embedder(trained.network, dict(trained.weights), device)
    embeddings, classes = embedder.embed(features), len(untrained.data["classes"])

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
    for stage, model in (("before", untrained.model), ("rounds", trained)):
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
        body.add_like(node, *node.inputs)
    head = Head(weights[f"{last.name}/kernel"], weights[f"{last.name}/bias"])
    return Embedder(body, {name: weights[name] for name in body.parameters}, DS_CNN_MLPERF, head=head, device=device)
