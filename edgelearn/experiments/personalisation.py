"""Learning from a user: which examples to ask labels for, and examples learnt one at a time with latent replay.

    edgelearn personal ask                    # drawings; strategies of asking at the first 25 labels
    edgelearn personal learn flowers --features flowers.npz    # photographs, one at a time beside fine-tuning

Frozen layers of a pretrained MobileNet run once for all pictures; what learns is a last layer.
Guide: docs/guides/adapt.md. Figures: docs/results/personalisation.md.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edgelearn import atomic
from edgelearn.compile import BudgetLike
from edgelearn.data.draws import stratified_split
from edgelearn.data.flowers import drawn_thicket, load_flowers
from edgelearn.data.pictures import ImageDataset, load_images, normalize
from edgelearn.display import megabytes, plural
from edgelearn.errors import DataError
from edgelearn.extensions import check_name
from edgelearn.graph import Network, split_frozen
from edgelearn.lab.runs import figures
from edgelearn.ops import SGD, Dense, Softmax
from edgelearn.statistics import margin_text
from edgelearn.tables import Table, Tabular
from edgelearn.train import Model
from edgelearn.train.asking import STRATEGIES, ask
from edgelearn.train.trainer import mini_batches

from .config import DATA, DOWNLOAD, Config, device_setting, setting
from .experiment import Log, silent
from .flowers import SAMPLE_SIZE, load_pretrained
from .tasks import decoded_cifar10

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RATE, MOMENTUM, DECAY = 1e-3, 0.9, 10.0  # of the last layer, chosen on a part of the training side of flowers
EPOCHS = 60  # passes over the labelled examples
UPDATES, BATCH_SIZE, REPLAY_RATE, REPLAY_DECAY = 16, 64, 2.5e-4, 5.0  # for an example learnt alone; chosen there, too
PICTURES, TESTED = 5000, 2000  # of CIFAR-10 to choose from and to test with
CIFAR_SIZE = 96  # pixels that these are enlarged to
AT_ONCE = 16


@dataclass(frozen=True)
class PersonalConfig(Config):
    """Settings of learning from a user.

    Raises ConfigError for an invalid value.
    """

    task: str = setting("thicket", "what is named: thicket, flowers or cifar10", positional=True)
    labels: int = setting(25, "labels that are asked for", minimum=1)
    at_once: int = setting(5, "labels that are asked for before the network learns them", minimum=1)
    strategies: tuple[str, ...] = setting(tuple(STRATEGIES), "how to ask", choices=tuple(STRATEGIES))
    per_class: int = setting(10, "examples of each class that are learnt one at a time", minimum=1)
    memory: str = setting("1 MB", "of examples that are learnt again", metavar="SIZE")
    updates: int = setting(UPDATES, "updates for each new example", minimum=1)
    batch_size: int = setting(BATCH_SIZE, "examples of such an update", minimum=2)
    seeds: tuple[int, ...] = setting(tuple(range(10)), "of draws", minimum=0)
    features: str | None = setting(None, "a file to keep the frozen layers' activations in", metavar="NPZ")
    data: str | None = setting(None, DATA, metavar="DIR")
    download: bool = setting(True, DOWNLOAD)
    device: str | None = device_setting()


# -- features ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class World:
    """Activations below the last layer, float32 (n, channels), and class numbers, to learn from and to test with.

    Arguments:
    - `x`, `y`: to learn from. `test_x`, `test_y`: to test with.
    - `names`: of the classes. `description`: data and network in words.
    - `pictures`: the data set of `x`, of which `indices` are these, to show them.
    """

    x: np.ndarray
    y: np.ndarray
    test_x: np.ndarray
    test_y: np.ndarray
    names: tuple[str, ...]
    description: str
    pictures: ImageDataset
    indices: np.ndarray


def load_world(config: PersonalConfig, log: Log = silent) -> World:
    """Load pictures, and run the frozen layers once. Raises UsageError for an unknown task, DataError for missing data,
    FormatError for damaged weights."""
    check_name(config.task, TASKS, "task")
    sides, network, description = TASKS[config.task](config)
    names, drawn = sides[0][0].class_names, config.task == "thicket"
    file, found = Path(config.features or ""), dict[str, np.ndarray]()
    if config.features and file.exists():
        with np.load(file, allow_pickle=False) as kept:
            found = dict(kept)
        if sorted(map(len, found.values())) != sorted(len(indices) for _, indices in sides):
            raise DataError(f"{file} has other examples than {config.task}: name another file.")
    else:
        for side, (dataset, indices) in zip(("train", "test"), sides, strict=True):
            size, parts = next(iter(network.network.inputs.values()))[0], []
            for part in mini_batches(indices, AT_ONCE):
                pictures = drawn_thicket(size)[1][part] if drawn else load_images(dataset, part.tolist(), size)
                parts.append(network.predict(normalize(pictures), AT_ONCE))
            log(f"{side}: {plural(len(indices), 'picture')}")
            found[side] = np.concatenate(parts)
        if config.features:
            np.savez(buffer := io.BytesIO(), train=found["train"], test=found["test"])
            atomic.write_bytes(file, buffer.getvalue())
    (train, first), (test, second) = sides
    return World(
        found["train"], train.labels[first], found["test"], test.labels[second], names, description, train, first
    )


Side = tuple[ImageDataset, np.ndarray]


def _flowers(config: PersonalConfig) -> tuple[tuple[Side, Side], Model, str]:
    drawn = config.task == "thicket"
    dataset = drawn_thicket(SAMPLE_SIZE)[0] if drawn else load_flowers(None, config.data, config.download)
    first, second = stratified_split(dataset.labels, 0.8, 0)
    found = load_pretrained(len(dataset.class_names), 0, data=config.data, sample=drawn, download=config.download)
    description = f"{dataset.description} {found.description}"
    return ((dataset, first), (dataset, second)), _body(config, found.network, found.weights), description


def _cifar10(config: PersonalConfig) -> tuple[tuple[Side, Side], Model, str]:
    (train, _), (test, _) = (decoded_cifar10(split, config.data, config.download) for split in ("train", "test"))
    found = load_pretrained(
        len(train.class_names), 0, data=config.data, download=config.download, size=CIFAR_SIZE
    )  # fmt: skip
    sides = (train, np.arange(PICTURES)), (test, np.arange(TESTED))
    description = f"{train.description} MobileNet V1 1.0 of ImageNet, pictures enlarged to {CIFAR_SIZE} pixels."
    return sides, _body(config, found.network, found.weights), description


def _body(config: PersonalConfig, network: Network, weights: Mapping[str, np.ndarray]) -> Model:
    network.freeze().unfreeze("dense")
    split = split_frozen(network)
    assert split is not None
    return Model(split.prefix, {name: weights[name] for name in split.prefix.parameters}, config.device)


TASKS: Mapping[str, Callable[[PersonalConfig], tuple[tuple[Side, Side], Model, str]]] = {
    "thicket": _flowers, "flowers": _flowers, "cifar10": _cifar10,
}  # fmt: skip


def last_layer(world: World, device: str | None = None, seed: int = 0) -> Model:
    """A last layer for a world's features, which begins at zeros."""
    network = Network("last_layer", world.x.shape[1:])
    network.add("dense", Dense(len(world.names), kernel_initializer="zeros"))
    network.add("softmax", Softmax())
    return Model(network, device=device, seed=seed).compile(SGD(RATE, momentum=MOMENTUM, weight_decay=DECAY))


def one_at_a_time(model: Model) -> Model:
    """A last layer as it is, set up for many small updates: to be given to `replay`."""
    weights = model.weights
    model.compile(SGD(REPLAY_RATE, momentum=MOMENTUM, weight_decay=REPLAY_DECAY))
    model.weights = weights
    return model


def learn_all(model: Model, world: World, chosen: Sequence[int] | np.ndarray) -> None:
    """Train a last layer from zeros on the examples `chosen`."""
    model.compile(SGD(RATE, momentum=MOMENTUM, weight_decay=DECAY))
    model.weights = model.network.initialize(0)
    order = np.asarray(chosen, np.int64)
    model.fit(world.x[order], world.y[order], min(32, len(order)), EPOCHS, verbose=0)


def accuracy_of(answers: np.ndarray, labels: np.ndarray) -> float:
    return float((answers.argmax(-1) == labels).mean())


# -- asking for labels -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class AskingResults(Tabular):
    """Strategies of asking compared.

    Arguments:
    - `accuracies`: by strategy, of each seed a row of accuracies, one for each number of labels.
    - `labels`: these numbers.
    - `task`, `device`, `description`: names, and data and network in words.
    """

    accuracies: Mapping[str, Sequence[Sequence[float]]]
    labels: Sequence[int]
    task: str
    device: str
    description: str

    @property
    def headline(self) -> str:
        strategies = plural(len(self.accuracies), "strategy", "strategies")
        return f"of {strategies} of asking on {self.task}, {plural(self.labels[-1], 'label')}"

    def table(self) -> Table:
        """A row for each strategy: accuracy at each number of labels, and what the last is above chance."""
        rows = []
        base = np.array(self.accuracies.get("random", ())) if "random" in self.accuracies else None
        for name, found in self.accuracies.items():
            last = np.array(found)
            more = "" if base is None or name == "random" else margin_text(100 * (last - base)[:, -1])
            rows.append((name, *(margin_text(100 * last[:, i], "") for i in range(len(self.labels))), more))
        header = ("strategy", *map(str, self.labels), "above random")
        seeds = len(next(iter(self.accuracies.values())))
        notes = [f"Test accuracy in % by number of labels, ± half of the 95 % interval over {plural(seeds, 'seed')}.",
                 self.description]  # fmt: skip
        return Table(header, rows, f"{self.task}, on {self.device}", notes)

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {**asdict(self), "accuracies": {k: np.array(v).tolist() for k, v in self.accuracies.items()}}

    def plot(self, path: str | Path | None = None) -> Figure:
        """Draw accuracy over labels; write a PNG to `path`."""
        figure = figures.canvas(figures.WIDTH, 4)
        axes = figure.subplots()
        for name, found in self.accuracies.items():
            axes.plot(self.labels, 100 * np.array(found).mean(0), marker="o", label=name)
        axes.legend(fontsize=9)
        figures.style(axes, f"{self.task}: strategies of asking", "Labels", "Test accuracy (%)")
        return figures.saved(figure, path)


def compare_asking(config: PersonalConfig | None = None, *, log: Log = silent, **settings: Any) -> AskingResults:
    """Ask for labels by each strategy, and train a last layer on them.

    >>> print(compare_asking(task="flowers", features="flowers.npz"))

    Arguments:
    - `config`: a PersonalConfig (default: one of `settings`).
    - `log`: takes lines of text (default: none).

    Raises UsageError for an unknown task, DataError for missing data.
    """
    config = config or PersonalConfig(**settings)
    world = load_world(config, log)
    model = last_layer(world, config.device)
    numbers = [*range(config.at_once, config.labels, config.at_once), config.labels]
    found: dict[str, list[list[float]]] = {}
    for strategy in config.strategies:
        log(strategy)
        for seed in config.seeds:
            answers = np.full((len(world.x), len(world.names)), 1 / len(world.names), np.float32)
            chosen, curve = np.zeros(0, np.int64), []
            for number in numbers:
                asked = ask(strategy, world.x, answers, chosen, number - len(chosen), seed)
                chosen = np.concatenate([chosen, asked])
                learn_all(model, world, chosen)
                answers = model.predict(world.x, 512) if strategy in ("margin", "badge") else answers
                curve.append(accuracy_of(model.predict(world.test_x, 512), world.test_y))
            found.setdefault(strategy, []).append(curve)
    return AskingResults(found, numbers, config.task, model.device.id, world.description)


# -- one example at a time ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LearningResult:
    """A seed's examples, learnt one at a time.

    Arguments:
    - `seed`: of their draw and order.
    - `batch`: test accuracy after training on all at once; `single`: after learning them one at a time.
    - `old`: accuracy on the old classes before a new one comes; `replay`, `plain`: after it was learnt one at a time,
      with kept examples and without; `new`, `new_plain`: on the new class.
    - `milliseconds`: median of a call of `learn`, features at hand.
    """

    seed: int
    batch: float
    single: float
    old: float
    replay: float
    plain: float
    new: float
    new_plain: float
    milliseconds: float


@dataclass(frozen=True, repr=False)
class LearningResults(Tabular):
    """Examples learnt one at a time, beside all at once, and a new class beside old ones.

    Arguments:
    - `rows`: a result for each seed.
    - `memory`: bytes of kept examples; `planned`: of all with the plans.
    - `per_class`, `task`, `device`, `description`: examples of a class; names; data and network in words.
    """

    rows: Sequence[LearningResult]
    memory: int
    planned: int
    per_class: int
    task: str
    device: str
    description: str

    @property
    def headline(self) -> str:
        examples, seeds = plural(self.per_class, "example"), plural(len(self.rows), "seed")
        return f"of {examples} a class one at a time, {self.task}, {seeds}"

    def values(self, name: str) -> np.ndarray:
        """A field of all rows, in %."""
        return 100 * np.array([getattr(row, name) for row in self.rows])

    def table(self) -> Table:
        """Accuracies after learning, and what is forgotten, with intervals over seeds."""
        of = self.values
        rows = [
            ("all at once", margin_text(of("batch"), ""), ""),
            ("one at a time, with replay", margin_text(of("single"), ""), margin_text(of("single") - of("batch"))),
            ("old classes before", margin_text(of("old"), ""), ""),
            ("the new one learnt with replay", margin_text(of("replay"), ""), margin_text(of("replay") - of("old"))),
            ("the new one learnt without", margin_text(of("plain"), ""), margin_text(of("plain") - of("old"))),
            ("new class, with replay", margin_text(of("new"), ""), ""),
            ("new class, without replay", margin_text(of("new_plain"), ""), ""),
        ]  # fmt: skip
        text = (
            f"Test accuracy in %, and points beside the row above it or before; ± half of the 95 % interval over "
            f"{plural(len(self.rows), 'seed')}. {self.per_class} examples a class; {megabytes(self.memory)} of kept "
            f"examples, {megabytes(self.planned)} planned in all."
        )
        notes = [text, self.description]
        return Table(("", "accuracy", "difference"), rows, f"{self.task}, on {self.device}", notes)

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {**asdict(self), "rows": [asdict(row) for row in self.rows]}

    def plot(self, path: str | Path | None = None) -> Figure:
        """Draw the means of the accuracies; write a PNG to `path`."""
        bars = {
            "all at once": "batch", "one at a time": "single", "old classes\nbefore": "old",
            "old, after\nreplay": "replay", "old, without\nreplay": "plain", "new, with\nreplay": "new",
            "new, without\nreplay": "new_plain",
        }  # fmt: skip
        figure = figures.canvas(figures.WIDTH, 4)
        axes = figure.subplots()
        heights = [float(self.values(name).mean()) for name in bars.values()]
        colors = [figures.ORANGE if "plain" in name else figures.BLUE for name in bars.values()]
        axes.bar(range(len(bars)), heights, 0.6, color=colors)
        axes.set_xticks(range(len(bars)), list(bars), fontsize=8)
        axes.set_ylim(0, 100)
        figures.style(axes, f"What is learnt and kept: {self.task}", "", "Test accuracy (%)")
        return figures.saved(figure, path)


def compare_learning(config: PersonalConfig | None = None, *, log: Log = silent, **settings: Any) -> LearningResults:
    """Learn examples one at a time with replay, beside all at once; then a new class beside old ones, with replay and
    without.

    Arguments and errors as `compare_asking`.
    """
    config = config or PersonalConfig(**settings)
    world, rows, bytes_of = load_world(config, log), list[LearningResult](), (0, 0)
    model = last_layer(world, config.device)
    old, late = world.y < len(world.names) - 1, len(world.names) - 1

    def taught(chosen: np.ndarray, memory: BudgetLike | None, known: np.ndarray) -> tuple[np.ndarray, list[float]]:
        """(answers to the test examples, seconds of calls) after learning `chosen` one at a time."""
        nonlocal bytes_of
        learner = one_at_a_time(model).replay(memory, batch_size=config.batch_size, updates=config.updates)
        seconds = []
        if len(known):
            learner.remember(world.x[known], world.y[known])
        for i in chosen:
            begun = time.perf_counter()
            learner.learn(world.x[i : i + 1], world.y[i : i + 1])
            seconds.append(time.perf_counter() - begun)
        if memory is not None:
            bytes_of = learner.replay_bytes, learner.planned_bytes
        answers = learner.predict(world.test_x)
        learner.close()
        return answers, seconds

    for seed in config.seeds:
        log(f"seed {seed}")
        rng = np.random.default_rng(seed)
        classes = range(len(world.names))
        chosen = np.concatenate([rng.choice(np.flatnonzero(world.y == c), config.per_class, False) for c in classes])
        chosen = rng.permutation(chosen)
        learn_all(model, world, chosen)
        batch = accuracy_of(model.predict(world.test_x, 512), world.test_y)
        model.weights = model.network.initialize(0)
        answers, seconds = taught(chosen, config.memory, chosen[:0])
        single = accuracy_of(answers, world.test_y)
        known, new = np.flatnonzero(old), chosen[world.y[chosen] == late]
        learn_all(model, world, known)
        tests = world.test_y < late
        before = accuracy_of(model.predict(world.test_x[tests], 512), world.test_y[tests])
        kept = rng.permutation(known)
        after = {memory: taught(new, memory, kept)[0] for memory in (config.memory, None)}
        (replay, own), (plain, alone) = (
            [accuracy_of(answers[part], world.test_y[part]) for part in (tests, ~tests)] for answers in after.values()
        )
        took = 1e3 * float(np.median(seconds))
        rows.append(LearningResult(seed, batch, single, before, replay, plain, own, alone, took))
    return LearningResults(
        rows, *bytes_of, config.per_class, config.task, model.device.id, world.description
    )  # fmt: skip
