"""Every depth of training of one network on one task: inference, the last layer, the last few, biases alone, sparse
updates, low-rank adapters, all layers from pretrained weights, and all from scratch.

    edgelearn depth            # drawings, and the package's small network
    edgelearn depth thicket    # drawings that are harder to tell
    edgelearn depth flowers    # the photographs, MobileNet V1 of ImageNet
    edgelearn depth cifar10    # five classes of CIFAR-10, a network pretrained on the other five
    edgelearn depth digits     # TransferCL's job: 128 digits, the last layer
    edgelearn depth mnist      # the same with MNIST

Guide: docs/guides/depth.md. Figures: docs/results/depth.md.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edgelearn import models
from edgelearn.compile import Combination, account
from edgelearn.compile.plan import Kind
from edgelearn.compile.policies import POLICIES, keep_all, masks
from edgelearn.compile.request import Policy
from edgelearn.data.cifar10 import standardized
from edgelearn.data.digits import load_digits, load_mnist, standardized_digits
from edgelearn.data.draws import stratified_split
from edgelearn.data.flowers import drawn_thicket, load_flowers, split_thicket
from edgelearn.data.pictures import ImageDataset, load_folder, load_images, normalize
from edgelearn.display import MB, plural
from edgelearn.errors import PlanError, UsageError
from edgelearn.extensions import check_name
from edgelearn.graph import Network
from edgelearn.graph.rewrites import Branches, takes_branch
from edgelearn.interop.weights import Weights
from edgelearn.lab.runs import RunStore, figures
from edgelearn.ops import SGD, BatchNormalization
from edgelearn.tables import Table, Tabular
from edgelearn.train import Callback, CosineDecay, Model

from .combinations import CombinationResult, compare, split
from .config import DATA, DOWNLOAD, Config, device_setting, setting
from .experiment import Log, silent
from .flowers import SAMPLE_SIZE, load_pretrained
from .sparse_update import Scheme, find_blocks, find_scheme, update_bytes
from .tasks import decoded_cifar10
from .turn import Turn

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Four of the depths are the goals that a student project on phones, THOMAS, gave percentages (Thaika and Aviral 2018,
# majeedthaika.github.io/THOMAS).
THOMAS = {"inference": "60 %", "last3": "80 %", "all": "100 %", "scratch": "120 %"}
WHOLE = ("all", "scratch")  # depths that train every layer
DEPTHS = ("inference", "last", "last3", "last12", "biases", "sparse", "adapters", "all", "scratch")
# Lin et al. 2022: MCUNet's sparse update in 100 KB was better than the best last-k update, of 12 layers, in 448 KB.
PUBLISHED_SHARE = 0.22  # 100 / 448, rounded
RANK = 4
NARROW = 0.5  # width of networks that are pretrained here
HELD_OUT = 0.2  # of the training examples, to choose learning rates by
MOMENTUM = 0.9  # of the moving statistics where all layers are trained
TRANSFERRED = 128  # digits that TransferCL learns
EXAMPLES = 64  # that a sparse update is chosen by


def check_depths(names: str | Sequence[str]) -> None:
    """Raises UsageError for a name that is neither in DEPTHS nor one of another number of last layers, as "last6"."""
    for name in [names] if isinstance(names, str) else names:
        if name not in DEPTHS and not _last(name):
            raise UsageError(f"{name!r} is not one of {', '.join(DEPTHS)}, or the last few layers, such as last6.")


def _last(depth: str) -> int:
    """The number of layers of a depth such as "last6"; 0 for others."""
    found = re.fullmatch(r"last([1-9]\d*)?", depth)
    return int(found[1] or 1) if found else 0


def _place(depth: str) -> tuple[int, int]:
    """Where a depth stands in tables."""
    count = _last(depth)
    return (1, count) if count else (2 * (depth != "inference"), DEPTHS.index(depth))


@dataclass(frozen=True)
class DepthConfig(Config):
    """Settings of a comparison of depths. None stands for the task's value.

    Raises ConfigError for an invalid value.
    """

    task: str = setting(
        "sample", "what is learned: sample, thicket, flowers, cifar10, digits or mnist", positional=True
    )
    network: str | None = setting(
        None,
        "of cifar10, digits and mnist, pretrained here (default: mobilenet_v2_cifar, lenet_transfercl)",
        metavar="NETWORK",
    )
    alpha: float | None = setting(None, "width of the network, if it has one (default: flowers 1, others 0.5)", above=0)
    weights: str | None = setting(None, "of flowers: MobileNet V1 of that width as Keras's HDF5", metavar="FILE")
    images: str | None = setting(
        None, "pictures of flowers or cifar10: a subfolder a class, JPEG or PNG", metavar="DIR"
    )
    size: int | None = setting(None, "pixels of a side of a picture (default: the task's)", minimum=16)
    depths: tuple[str, ...] = setting(
        DEPTHS, "depths to compare; last6 trains the last 6 layers", check=check_depths, metavar="DEPTH"
    )
    layers: tuple[str, ...] = setting((), "one more depth: patterns of layers to train", metavar="PATTERN")
    epochs: int | None = setting(None, "passes over the examples (default: the task's)", minimum=1)
    pretrain_epochs: int | None = setting(
        None, "passes to pretrain in cifar10 and digits (default: the task's)", minimum=1
    )
    scratch_epochs: int | None = setting(None, "passes from scratch (default: twice the others)", minimum=1)
    batch_size: int | None = setting(None, "examples of an update (default: the task's)", minimum=1)
    learning_rate: float | None = setting(None, "learning rate (default: the task's)", above=0)
    scratch_rate: float = setting(0.05, "learning rate from scratch", above=0)
    learning_rates: tuple[float, ...] = setting(
        (),
        "choose each depth's among these, on a fifth of the training examples",
        above=0,
        metavar="RATE",
    )
    batchnorm: str = setting(
        "batch", "statistics of BatchNorms where all layers are trained", choices=("batch", "moving")
    )
    budget_share: float = setting(
        PUBLISHED_SHARE, "memory of the sparse update, as a share of that of the last 12 layers", above=0
    )
    sparse_memory: str = setting(
        "masks",
        "policy of the sparse update's activations; with compressed_checkpoints it trains the last layers whole",
        choices=("masks", "compressed_masks", "compressed_checkpoints"),
    )
    rank: int = setting(RANK, "rank of the adapters", minimum=1)
    examples: int | None = setting(None, "train with so many examples only", minimum=1)
    seeds: tuple[int, ...] = setting((0,), "seeds, a training of each depth with each", minimum=0)
    data: str | None = setting(None, DATA, metavar="DIR")
    download: bool = setting(True, DOWNLOAD)
    device: str | None = device_setting()


Examples = tuple[np.ndarray, np.ndarray]  # with their labels


@dataclass(frozen=True)
class Start:
    """The data of a task and the pretrained network that every depth begins with.

    Arguments:
    - `network`: with logits of the task's classes.
    - `weights`: by parameter; the last layer's are drawn.
    - `train`, `test`: (examples, class numbers).
    - `epochs`, `batch_size`, `learning_rate`: the task's values.
    - `description`: data and weights in words.
    """

    network: Network
    weights: Weights
    train: tuple[np.ndarray, np.ndarray]
    test: tuple[np.ndarray, np.ndarray]
    epochs: int
    batch_size: int
    learning_rate: float
    description: str


@dataclass(frozen=True)
class DepthResult:
    """Trainings of one depth.

    Arguments:
    - `depth`: its name.
    - `trained`: number of trained parameters.
    - `macs`: multiply-adds of a step with one example.
    - `stored`: bytes that the plan stores between the passes.
    - `update`: the same with gradients and optimizer state.
    - `planned`: all device memory of the plan, bytes.
    - `result`: runs, times, energy and measured memory; None for inference.
    - `accuracy`: on the test examples: mean, and the ends of its interval at 95 %.
    - `scheme`: what a sparse update trains.
    - `rate`: the learning rate; None for inference.
    - `tried`: by learning rate, the accuracy on the examples that it was chosen by.
    """

    depth: str
    trained: int
    macs: int
    stored: int
    update: int
    planned: int
    result: CombinationResult | None
    accuracy: tuple[float, float, float]
    scheme: Scheme | None = None
    rate: float | None = None
    tried: Mapping[float, float] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        record = {name: getattr(self, name) for name in ("depth", "trained", "macs", "stored", "update", "planned")}
        scheme = {"scheme": str(self.scheme), "search_seconds": self.scheme.seconds} if self.scheme else {}
        rates = {"learning_rate": self.rate, "tried": {f"{rate:g}": value for rate, value in self.tried.items()}}
        more = self.result.to_dict() if self.result else {}
        return record | {"accuracy": list(self.accuracy)} | rates | scheme | {"trainings": more}


@dataclass(frozen=True, repr=False)
class DepthResults(Tabular):
    """Depths of training compared on one task.

    Arguments:
    - `task`, `network`, `device`: their names.
    - `rows`: a result for each depth.
    - `description`: data and weights in words.
    - `seconds`: of the whole comparison.
    """

    task: str
    network: str
    device: str
    rows: list[DepthResult]
    description: str = ""
    seconds: float = 0.0

    @property
    def headline(self) -> str:
        return f"of {plural(len(self.rows), 'depth')} of '{self.network}' on {self.task}, {self.device}"

    def table(self) -> Table:
        """A row for each depth: accuracy, trained parameters, millions of multiply-adds, memory in MB, time."""
        header = ("depth", "THOMAS", "accuracy", "trained", "MMAC", "stored", "update", "planned", "process", "ms/step",
                  "J/step")  # fmt: skip
        rows = [_cells(row) for row in self.rows]
        if all(row[-1] == NONE for row in rows):
            header, rows = header[:-1], [row[:-1] for row in rows]
        notes = [f"{row.depth}: {row.scheme}" for row in self.rows if row.scheme]
        if chosen := [f"{row.depth} {row.rate:g}" for row in self.rows if row.tried]:
            notes.append(f"Learning rates, chosen on a fifth of the training examples: {', '.join(chosen)}.")
        notes.append(
            "MMAC: million multiply-adds of a step, for one example. MB: activations stored between the passes; these "
            "with gradients and optimizer state; all of the plan; the process."
        )
        notes.append(self.description)
        return Table(header, rows, f"'{self.network}' on {self.task}, {self.device}", notes)

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON values."""
        return {
            "task": self.task, "network": self.network, "device": self.device, "description": self.description,
            "seconds": self.seconds, "depths": [row.to_dict() for row in self.rows],
        }  # fmt: skip

    @property
    def pareto(self) -> list[str]:
        """Names of depths that no other one beats in both accuracy and memory of the update."""
        return [
            row.depth for row in self.rows
            if not any(
                other.accuracy[0] >= row.accuracy[0] and other.update <= row.update
                and (other.accuracy[0], other.update) != (row.accuracy[0], row.update)
                for other in self.rows
            )
        ]  # fmt: skip

    def plot(self, path: str | Path | None = None) -> Figure:
        """Draw the accuracy over the memory of the update, the Pareto front as a line; write a PNG to `path`."""
        figure = figures.canvas(figures.WIDTH, 5)
        axes, best = figure.subplots(), set(self.pareto)
        known: list[tuple[float, float]] = []  # logarithms of the memory, and accuracies, of points with a name
        for number, row in enumerate(self.rows):
            mean, low, high = (100 * value for value in row.accuracy)
            look: dict[str, Any] = figures.look(number) | {"linestyle": "none"}
            x = max(row.update / MB, 1e-3)
            axes.errorbar([x], [mean], yerr=[[mean - low], [high - mean]], **look, capsize=4)
            near = any(0 <= np.log10(x) - at < 0.4 and abs(mean - height) < 4 for at, height in known)
            place = (6, -14) if near else (6, 5)
            axes.annotate(row.depth, (x, mean), xytext=place, textcoords="offset points", fontsize=10)
            known.append((float(np.log10(x)), mean))
        front = sorted((row.update, 100 * row.accuracy[0]) for row in self.rows if row.depth in best)
        axes.plot([max(n / MB, 1e-3) for n, _ in front], [y for _, y in front], color=figures.GRAY, linewidth=1)
        axes.set_xscale("log")
        figures.style(axes, f"{self.network}: accuracy over memory", "Activations, gradients, state (MB)",
                      "Test accuracy (%)")  # fmt: skip
        return figures.saved(figure, path)

    def plot_curves(self, path: str | Path | None = None) -> Figure:
        """Draw the test accuracy over the epochs, a line for each depth, of the first seed."""
        runs = {row.depth: next(iter(row.result.runs.values())) for row in self.rows if row.result and row.result.runs}
        return figures.plot_overlay({depth: run.history() for depth, run in runs.items()}, path)


NONE = "–"


def _cells(row: DepthResult) -> tuple[str, ...]:
    mean, low, high = (100 * value for value in row.accuracy)
    margin = f" ± {max(high - mean, mean - low):.1f}" if high > low else ""
    step = row.result.seconds("step") if row.result else None
    process = row.result.bytes("process") if row.result else None
    joules = row.result.joules("step") if row.result else None
    return (
        row.depth, THOMAS.get(row.depth, ""), f"{mean:.1f} %{margin}", f"{row.trained:,}", f"{row.macs / 1e6:,.0f}",
        f"{row.stored / MB:,.2f}", f"{row.update / MB:,.2f}", f"{row.planned / MB:,.1f}",
        NONE if process is None else f"{process / MB:,.0f}", NONE if step is None else f"{1e3 * step:,.1f}",
        NONE if joules is None else f"{joules:,.3g}",
    )  # fmt: skip


# -- tasks ------------------------------------------------------------------------------------------------------------


def _flowers(config: DepthConfig) -> Start:
    """Photographs of flowers, or drawings, for MobileNet V1, or the package's small one."""
    drawn = config.task in ("sample", "thicket")
    if config.task == "thicket":
        dataset, images = drawn_thicket(SAMPLE_SIZE)
        parts = split_thicket(dataset, 0)
    else:
        data = None if config.images or drawn else config.data
        dataset = load_flowers(config.images, data, config.download, embedded=drawn)
        parts = stratified_split(dataset.labels, 0.8, 0)
        images = None
    alpha, size = (0.25, SAMPLE_SIZE) if drawn else (config.alpha or 1.0, config.size or 224)
    found = load_pretrained(
        len(dataset.class_names), 0, config.weights, config.data, drawn, config.download, size, alpha
    )  # fmt: skip
    if images is None:
        images = load_images(dataset, range(len(dataset)), size)
    train, test = ((normalize(images[part]), dataset.labels[part]) for part in parts)
    values = (4, 40, 0.01) if drawn else (10, 32, 0.01)
    return Start(found.network, found.weights, train, test, *values, f"{dataset.description} {found.description}")


def _cifar10(config: DepthConfig) -> Start:
    """Five classes of CIFAR-10, for a network pretrained here on the other five."""
    name, size = config.network or "mobilenet_v2_cifar", config.size or 32
    if config.images:
        train = test = load_folder(config.images)
        parts = stratified_split(train.labels, 0.8, 0)
    else:
        (train, _), (test, _) = (decoded_cifar10(split, config.data, config.download) for split in ("train", "test"))
        parts = np.arange(len(train)), np.arange(len(test))
    half = len(train.class_names) // 2
    known, new = (_classes(train, parts[0], size, first) for first in (0, half))
    tested = _classes(test, parts[1], size, half)
    weights = _pretrained(name, config, known, size, epochs=10)
    network = _named(name, config.alpha or NARROW, (size, size, 3), half)
    description = f"{train.description} Pretrained here on the first {half} classes, trained on the others."
    return Start(network, _without_head(network, weights), new, tested, 5, 64, 0.01, description)


def _classes(dataset: ImageDataset, part: np.ndarray, size: int, first: int) -> tuple[np.ndarray, np.ndarray]:
    """(pictures, labels from 0) of those in `part` whose class is in the half that begins with number `first`."""
    half = len(dataset.class_names) // 2
    chosen = part[(dataset.labels[part] >= first) & (dataset.labels[part] < first + half)]
    images = standardized(load_images(dataset, chosen.tolist(), size))
    return images, (dataset.labels[chosen] - first).astype(np.int32)


def _digits(config: DepthConfig) -> Start:
    """TransferCL's job: a network that knows digits learns 128 others, as somebody else writes them."""
    images, labels = load_digits()
    x, order = standardized_digits(images, config.size or 28), np.random.default_rng(0).permutation(len(labels))
    known, new, tested = order[:1000], order[1000 : 1000 + TRANSFERRED], order[1000 + TRANSFERRED :]
    test = x[tested], labels[tested]
    return _transfer(config, (x[known], labels[known]), (x[new], labels[new]), test, 20, "Digits of scikit-learn")


def _mnist(config: DepthConfig) -> Start:
    """The same with MNIST: what is pretrained is DeepCL's job."""
    (images, labels), (test_images, test_labels) = (
        load_mnist(s, config.data, config.download) for s in ("train", "test")
    )
    count = len(labels)
    x = standardized_digits(np.concatenate([images, test_images]), config.size or 28)
    order = np.random.default_rng(0).permutation(count)
    new, known = order[:TRANSFERRED], order[TRANSFERRED:]
    test = x[count:], test_labels
    return _transfer(config, (x[known], labels[known]), (x[new], labels[new]), test, 5, "MNIST")


def _transfer(config: DepthConfig, known: Examples, new: Examples, test: Examples, epochs: int, name: str) -> Start:
    """A network pretrained for `epochs` on known examples, to be trained in 100 steps on new ones."""
    network = config.network or "lenet_transfercl"
    shape = known[0].shape[1:]
    weights = _pretrained(network, config, known, shape[0], epochs)
    description = f"{name}: {len(known[1]):,} to pretrain, {len(new[1])} to train, {len(test[1]):,} to test."
    model = Model(_named(network, config.alpha or NARROW, shape, 10), weights, config.device).compile(SGD())
    right = float((model.predict(test[0], 256).argmax(-1) == test[1]).mean())
    description += f" The pretrained network names {right:.1%} of the digits to test."
    fresh = _without_head(model.network, weights)
    return Start(model.network, fresh, new, test, 100, TRANSFERRED, 0.1, description)


TASKS: Mapping[str, Callable[[DepthConfig], Start]] = {
    "sample": _flowers, "thicket": _flowers, "flowers": _flowers, "cifar10": _cifar10, "digits": _digits,
    "mnist": _mnist,
}  # fmt: skip


def _named(name: str, alpha: float, shape: tuple[int, ...], classes: int) -> Network:
    check_name(name, models.network_names(), "network")
    settings = {"input_shape": tuple(shape), "classes": classes, "dropout": 0.0}
    try:
        return models.named_network(name, alpha, **settings)
    except UsageError:
        return models.named_network(name, **settings)


def _pretrained(
    name: str, config: DepthConfig, examples: tuple[np.ndarray, np.ndarray], size: int, epochs: int
) -> Weights:
    """Weights of a network trained from scratch on other examples."""
    x, y = examples
    epochs = config.pretrain_epochs or epochs
    model = Model(_named(name, config.alpha or NARROW, x.shape[1:], int(y.max()) + 1), None, config.device, 0)
    model.compile(SGD(config.scratch_rate, momentum=0.9, weight_decay=5e-4))
    with Turn(model.device.id).taken():
        model.fit(x, y, 64, epochs, verbose=0)
    return model.weights


def _without_head(network: Network, weights: Weights) -> Weights:
    head = last_layers(network, 1)[0]
    fresh = network.initialize(1)  # not from the seed of pretraining, whose layers fit that head
    return {name: fresh[name] if name.partition("/")[0] == head else weights[name] for name in network.parameters}


# -- depths -----------------------------------------------------------------------------------------------------------


def last_layers(network: Network, count: int) -> list[str]:
    """Names of the last layers with kernels, the last one first."""
    layers = [p.layer for p in network.parameters.values() if p.role == "kernel"]
    return list(dict.fromkeys(layers[::-1]))[:count]


def _above(network: Network, count: int) -> list[str]:
    """Names of the parameters of the last `count` layers with kernels, and of the BatchNorms between and after them."""
    names = list(network.nodes)
    first = min(names.index(name) for name in last_layers(network, count))
    above = set(names[first:])
    return [name for name, parameter in network.parameters.items() if parameter.layer in above]


def _biases(network: Network) -> list[str]:
    head = last_layers(network, 1)[0]
    wanted = {name for name, p in network.parameters.items() if p.role in ("bias", "beta") or p.layer == head}
    return sorted(wanted)


def depth_network(network: Network, depth: str, config: DepthConfig) -> tuple[Network, Branches | None]:
    """The network as a depth trains it, and its branches; a sparse update's are found by `find_scheme` instead."""
    if depth in WHOLE:
        return (network.copy() if config.batchnorm == "moving" else _recent(network)).unfreeze(), None
    copy = network.copy()
    copy.freeze()
    if depth == "adapters":
        copy.unfreeze(*_biases(copy))
        head = last_layers(copy, 1)[0]
        layers = [node.name for node in copy.nodes.values() if takes_branch(node) and node.name != head]
        branches = Branches({}, dict.fromkeys(layers, config.rank))
        return branches.network(copy), branches
    if depth == "biases":
        patterns = _biases(copy)
    elif depth == "layers":
        patterns = [*config.layers, last_layers(copy, 1)[0]]
    else:
        patterns = _above(copy, _last(depth) or 1)
    return copy.unfreeze(*patterns), None


def _recent(network: Network) -> Network:
    """A copy whose BatchNorms' moving statistics follow the last updates. With Keras's momentum of 0.99 they are still
    near those of pretraining after the few updates of a fine-tuning, when the layers below have long changed."""
    copy = network.copy()
    for name, node in network.nodes.items():
        if isinstance(node.op, BatchNormalization):
            copy.nodes[name] = replace(node, op=replace(node.op, momentum=min(node.op.momentum, MOMENTUM)))
    return copy


def _optimizer(rate: float | CosineDecay, *, clipped: bool = True) -> SGD:
    """SGD with momentum. Gradients are clipped: with BatchNorms that keep their statistics many layers diverge else."""
    return SGD(rate, momentum=0.9, global_clipnorm=1.0 if clipped else None)


class _Depths:
    """The depths of one task: makes a model for each."""

    def __init__(self, start: Start, config: DepthConfig) -> None:
        self.start, self.config = start, config
        self.batch_size = min(config.batch_size or start.batch_size, len(start.train[1]))
        self.optimizer = _optimizer(config.learning_rate or start.learning_rate)
        self.first = Model(start.network.copy(), start.weights, config.device, 0).compile(self.optimizer)
        self.scheme: Scheme | None = None

    def rate(self, depth: str) -> float:
        """The learning rate of a depth, unless it is chosen among several."""
        config = self.config
        return config.scratch_rate if depth == "scratch" else config.learning_rate or self.start.learning_rate

    def policy(self, depth: str) -> Policy:
        """Strategies by which a depth stores activations."""
        return keep_all if depth in WHOLE else POLICIES[self.config.sparse_memory] if depth == "sparse" else masks

    def model(self, depth: str, rate: float | CosineDecay | None = None) -> Model:
        """The model of a depth, compiled, with the weights that training begins with. `rate`: of learning (default: the
        depth's)."""
        start = self.start
        if depth == "sparse":
            self.scheme = self.scheme or self._scheme()
            network, branches = self.scheme.network(start.network), self.scheme.branches
            network = _recent(network) if self.scheme.whole else network
        else:
            network, branches = depth_network(start.network, depth, self.config)
        weights = branches.weights(start.network, start.weights) if branches else start.weights
        rate = rate or self.rate(depth)
        optimizer = _optimizer(rate, clipped=depth != "scratch")
        model = Model(network, None if depth == "scratch" else weights, share_with=self.first, seed=0)
        if depth == "sparse" and self.scheme and self.scheme.whole:
            return model.compile(optimizer, batchnorm="batch", activation_memory=self.policy(depth))
        if depth not in WHOLE:
            return model.compile(optimizer, activation_memory=self.policy(depth))
        batchnorm = "batch" if depth == "scratch" else self.config.batchnorm
        return model.compile(optimizer, batchnorm=batchnorm, activation_memory=self.policy(depth))

    def _scheme(self) -> Scheme:
        """The scheme for the published share of what the last 12 layers take, once the last layer is trained."""
        (x, y), begun = self.start.train, time.perf_counter()
        budget = round(self.config.budget_share * update_bytes(self.model("last12").plan(self.batch_size)))
        if self.config.sparse_memory == "compressed_checkpoints":
            return find_blocks(self.first, budget, self.batch_size)
        head = self.model("last")
        with Turn(head.device.id).taken():
            head.fit(x, y, self.batch_size, 3, cache="fp32", verbose=0)
        few = np.random.default_rng(0).permutation(len(y))[:EXAMPLES]
        few = np.sort(few)
        model = Model(self.start.network.copy(), head.weights, share_with=self.first).compile(self.optimizer)
        found = find_scheme(model, x[few], y[few], budget, self.batch_size, activation_memory=self.policy("sparse"))
        return replace(found, seconds=time.perf_counter() - begun)


def compare_depths(
    config: DepthConfig | None = None, *, store: RunStore | str | None = None, log: Log = silent,
    callbacks: Callable[[], Sequence[Callback]] = list, **settings: Any,
) -> DepthResults:  # fmt: skip
    """Train one network on one task at every depth, and compare accuracy, memory, multiply-adds and time.

    >>> found = compare_depths(task="sample", depths=("last", "biases", "all"))
    >>> print(found)
    >>> found.plot("depths.png")

    Each training is a run in the run store, found again by the same call.

    Arguments:
    - `config`: a DepthConfig (default: one of `settings`).
    - `store`: a RunStore or its folder (default: that of the commands).
    - `log`: takes lines of text (default: none).
    - `callbacks`: makes the callbacks of a training.
    - `settings`: those of DepthConfig.

    Raises UsageError and PlanError for settings that can't be, DataError for missing data.
    """
    config, begun = config or DepthConfig(**settings), time.perf_counter()
    check_name(config.task, TASKS, "task")
    start = TASKS[config.task](config)
    if config.examples:
        x, y = start.train
        start = replace(start, train=(x[: config.examples], y[: config.examples]))
    depths = _Depths(start, config)
    rows = []
    wanted = [*sorted(set(config.depths), key=_place), *(["layers"] if config.layers else [])]
    for depth in wanted:
        log(depth)
        rows.append(_row(depths, depth, store, callbacks))
    device = depths.first.device
    return DepthResults(
        config.task, start.network.name, device.id, rows, start.description, time.perf_counter() - begun
    )


def _row(
    depths: _Depths, depth: str, store: RunStore | str | None, callbacks: Callable[[], Sequence[Callback]]
) -> DepthResult:
    start, config = depths.start, depths.config
    if depth == "inference":
        return _inference(depths, depths.model(depth))
    epochs = config.epochs or start.epochs
    if depth == "scratch":
        epochs = config.scratch_epochs or 2 * epochs

    def trained(rate: float, data: Any, test: Any, seeds: tuple[int, ...]) -> CombinationResult:
        batch_size = min(depths.batch_size, len(data[1]))
        model = depths.model(depth, CosineDecay(rate, epochs * -(-len(data[1]) // batch_size)))
        combination = Combination(activation_memory=depths.policy(depth))
        found = compare(
            model.network if depth == "scratch" else model, data, [combination], epochs=epochs,
            batch_size=batch_size, optimizer=model.optimizer, validation_data=test,
            seeds=seeds, device=config.device, store=store, callbacks=callbacks, verbose=0,
        )  # fmt: skip
        return found.rows[0]

    tried = dict[float, float]()
    if len(set(config.learning_rates)) > 1:
        for rate in config.learning_rates:
            held_out = trained(rate, *split(start.train, HELD_OUT), config.seeds[:1])
            tried[rate] = held_out.interval[0] if held_out.interval else 0.0  # it diverged
    rate = max(config.learning_rates or (depths.rate(depth),), key=lambda each: tried.get(each, 0.0))
    result = trained(rate, start.train, start.test, config.seeds)
    if result.interval is None:
        raise PlanError(f"The depth '{depth}' could not be trained: {result.reason or 'it was interrupted'}.")
    model = depths.model(depth, rate)
    plan = model.plan(depths.batch_size)
    macs = sum(launch.flops for launch in plan.step_launches) // 2 // depths.batch_size
    accounted, count = account(plan), model.network.count(model.network.trainable)
    return DepthResult(
        depth,
        count,
        macs,
        accounted.stored,
        update_bytes(plan),
        plan.peak_bytes,
        result,
        result.interval,
        depths.scheme if depth == "sparse" else None,
        rate,
        tried,
    )


def _inference(depths: _Depths, model: Model) -> DepthResult:
    """The network as it begins, with a last layer that is drawn: what training starts from."""
    x, y = depths.start.test
    plan = model.forward_plan(depths.batch_size)
    accuracy = float((model.predict(x, depths.batch_size).argmax(-1) == y).mean())
    macs = sum(launch.flops for launch in plan.program(Kind.PREDICT, depths.batch_size).launches) // 2
    return DepthResult(
        "inference", 0, macs // depths.batch_size, 0, 0, plan.peak_bytes, None, (accuracy, accuracy, accuracy)
    )
