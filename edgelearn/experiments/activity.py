"""Activity recognition from motion sensors, one person left out: networks, accuracies and people of Matey-Sanz et al.'s
study (github.com/GeoTecINIT/har-performance-study), and what a person's first recording adds.

    edgelearn activity train                                  # one person left out; drawn people without data
    edgelearn activity people --network lstm --sensors both  # each person left out in turn

Guide: docs/guides/sequences.md. Figures: docs/results/sequences.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edgelearn.data.motion import SENSORS, MotionDataset, find_motion, load_motion, motion_features
from edgelearn.errors import DataError, RunError
from edgelearn.graph import Network
from edgelearn.lab.runs import Run, RunStore, figures, interval
from edgelearn.models.motion import motion_cnn, motion_cnn_lstm, motion_lstm, motion_mlp
from edgelearn.ops import Adam
from edgelearn.statistics import confusion_matrix, median
from edgelearn.tables import Table, Tabular
from edgelearn.train import Callback, Model

from .config import DATA, Config, device_setting, epochs_setting, seed_setting, setting
from .experiment import Experiment, Log, Training, silent
from .finetune import PRECISIONS
from .sweep import Job, find, train
from .tasks import drawn_weights, save_model

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NETWORKS = ("mlp", "cnn", "lstm", "cnn-lstm")
EPOCHS, DRAWN_EPOCHS = 50, 12  # at most
PATIENCE, LEAST_FALL = 5, 1e-3  # of the study: epochs in which the training loss has to fall by so much
PERSONAL_RATE, DRAWN_PERSONAL_RATE = 1e-4, 2e-4
PERSONAL_BATCH = 16  # windows of an update with a person's first recording, which has about 40


@dataclass(frozen=True)
class Published:
    """A network of the study.

    Arguments:
    - `make`: makes it, given the shape of examples.
    - `learning_rate`: of Adam.
    - `accuracy`: median over the 23 people left out, with ten trainings each.
    """

    make: Callable[..., Network]
    learning_rate: float
    accuracy: float


def _mlp(shape: tuple[int, ...], **settings: Any) -> Network:
    return motion_mlp(shape[0], **settings)


PUBLISHED = {
    ("mlp", "phone"): Published(_mlp, 1e-3, 0.861),
    ("mlp", "watch"): Published(_mlp, 1e-3, 0.822),
    ("mlp", "both"): Published(partial(_mlp, units=(512, 256)), 1e-3, 0.879),
    ("cnn", "phone"): Published(motion_cnn, 5e-4, 0.886),
    ("cnn", "watch"): Published(partial(motion_cnn, filters=128, kernel_size=25, units=(256,)), 5e-4, 0.874),
    ("cnn", "both"): Published(motion_cnn, 1e-3, 0.902),
    ("lstm", "phone"): Published(partial(motion_lstm, lstms=(128, 128), units=(256,) * 3), 5e-4, 0.865),
    ("lstm", "watch"): Published(motion_lstm, 1e-3, 0.875),
    ("lstm", "both"): Published(partial(motion_lstm, lstms=(64, 64), units=(256,) * 3), 1e-3, 0.889),
    ("cnn-lstm", "phone"): Published(partial(motion_cnn_lstm, filters=(64, 64)), 5e-4, 0.868),
    ("cnn-lstm", "watch"): Published(motion_cnn_lstm, 5e-4, 0.869),
    ("cnn-lstm", "both"): Published(motion_cnn_lstm, 1e-3, 0.901),
}


@dataclass(frozen=True)
class ActivityConfig(Config):
    """Settings of a training of all people but one. None stands for the study's value.

    Raises ConfigError for an invalid value.
    """

    network: str = setting("cnn", "network", choices=NETWORKS)
    sensors: str = setting("phone", "what people wear", choices=SENSORS)
    person: str | None = setting(None, "the person left out, who is tested (default: the first)", metavar="NAME")
    epochs: int | None = epochs_setting(
        None, f"most passes over the windows (default: {EPOCHS}, drawn: {DRAWN_EPOCHS})"
    )
    batch_size: int = setting(64, "windows of an update", minimum=1)
    learning_rate: float | None = setting(None, "learning rate of Adam (default: the study's)", above=0)
    precision: str = setting("fp32", "number formats", choices=tuple(PRECISIONS))
    personal_epochs: int = setting(30, "passes over the person's first recording afterwards, 0 for none", minimum=0)
    personal_rate: float | None = setting(
        None, f"learning rate of these (default: {PERSONAL_RATE:g}, drawn: {DRAWN_PERSONAL_RATE:g})", above=0
    )
    drawn: bool = setting(False, "drawn people, also where there is data")
    data: str | None = setting(None, DATA, metavar="DIR")
    seed: int = seed_setting()
    device: str | None = device_setting()


@dataclass(kw_only=True, repr=False)
class ActivityTraining(Training[ActivityConfig]):
    """A training of all people but one, which ends as the study's: by the loss of the training, so that nobody's
    windows but those trained on choose the number of epochs.

    Arguments: those of Training, and
    - `first`: bool, the tested windows that are of the person's first recording.
    - `losses`: of the epochs that are done (default: none).
    """

    first: np.ndarray
    losses: list[float] = field(default_factory=list)

    @property
    def finished(self) -> bool:
        return super().finished or settled(self.losses)

    def run(self, run: Run, callbacks: Sequence[Callback] = (), log: Log = print) -> dict[str, Any] | None:
        self.losses = [row["loss"] for row in run.history()]
        return super().run(run, [*callbacks, _StopWhereSettled(self)], log)


class _StopWhereSettled(Callback):
    def __init__(self, training: ActivityTraining) -> None:
        self.training = training

    def on_epoch_end(self, epoch: int, logs: Any) -> None:
        self.training.losses[epoch:] = [logs["loss"]]
        if settled(self.training.losses):
            self.model.stop_training = True


def settled(losses: Sequence[float]) -> bool:
    """True if a training's loss, by epochs, has not fallen by 0.001 below its least for five epochs, where the study
    ends a training."""
    best, waited = inf, 0
    for loss in losses:
        best, waited = (loss, 0) if loss < best - LEAST_FALL else (best, waited + 1)
    return waited >= PATIENCE


def load_activity(config: ActivityConfig) -> ActivityTraining:
    """Load windows and network. Raises DataError for missing data, or a person who isn't in it."""
    dataset = load_motion(config.sensors, config.data, config.drawn)
    if config.person not in dataset.names:
        raise DataError(f"There is no '{config.person}': choose {', '.join(dataset.names)}.")
    own = dataset.people == config.person
    x, made = examples_of(dataset, config.network)
    train, test = ((x[part], dataset.labels[part]) for part in (~own, own))
    network, rate = network_of(config, dataset, x.shape[1:])
    model = Model(network, None, config.device, config.seed)
    model.class_names, model.preprocessing = dataset.class_names, made
    model.compile(Adam(rate), precision=PRECISIONS[config.precision])
    data = {
        "origin": dataset.origin, "description": dataset.description, "classes": list(dataset.class_names),
        "train": len(train[1]), "test": len(test[1]), "person": config.person,
    }  # fmt: skip
    return ActivityTraining(
        config=config, model=model, train=train, test=test, epochs=config.epochs or 1, batch_size=config.batch_size,
        finish=_finish, data=data, weights=drawn_weights(config.seed), preprocessing=made,
        sources=[dataset.description, f"{config.person} is left out."], first=dataset.first_run(config.person)[own],
        tests_whole=True,
    )  # fmt: skip


def examples_of(dataset: MotionDataset, network: str) -> tuple[np.ndarray, dict[str, Any]]:
    """(examples of a network of NETWORKS, how they are made)"""
    if network == "mlp":
        return motion_features(dataset.windows), {"motion": "features"}
    return dataset.windows, {"motion": "windows"}


def network_of(config: ActivityConfig, dataset: MotionDataset, shape: tuple[int, ...]) -> tuple[Network, float]:
    """(the study's network for examples of a shape, its learning rate or the configuration's)"""
    published = PUBLISHED[config.network, config.sensors]
    made = published.make(shape, classes=len(dataset.class_names))
    return made, config.learning_rate or published.learning_rate


def _finish(training: ActivityTraining, run: Run, seconds: float) -> tuple[dict[str, Any], str]:
    """Test the network, keep it, then test what the person's first recording adds."""
    (x, y), names = training.test, training.data["classes"]
    predicted = training.model.predict(x, training.phases["test"].request.micro_batch).argmax(-1)
    right = predicted == y
    results = training.results(int(right.sum()), len(y), run.history()[-1]["val_loss"], seconds)
    results["epochs"] = len(run.history())
    save_model(run, training.model, names, training.preprocessing)
    figures.plot_confusion(confusion_matrix(y, predicted, len(names)), names, run.folder / "confusion.png")
    figures.plot_learning_curves(run.history(), run.folder / "curves.png")
    low, high = results["interval"]
    text = f"Test accuracy: {right.sum()}/{len(y)} = {right.mean():.2%} (95 % Wilson interval {low:.2%} to {high:.2%})"
    rest = ~training.first
    if training.config.personal_epochs and training.first.any() and rest.any():
        after = _personal(training)[rest]
        results["personal"] = {
            "total": int(rest.sum()), "before": float(right[rest].mean()), "after": float((after == y[rest]).mean()),
        }  # fmt: skip
        text += (
            f"\nWithout the first recording {results['personal']['before']:.2%}; "
            f"after training on it {results['personal']['after']:.2%}"
        )
    return results, text


def _personal(training: ActivityTraining) -> np.ndarray:
    """What a copy of the network, trained on the person's first recording, says of the tested windows."""
    config, model, (x, y) = training.config, training.model, training.test
    copy = Model(model.network, model.weights, share_with=model, seed=config.seed)
    copy.compile(Adam(config.personal_rate or PERSONAL_RATE), precision=PRECISIONS[config.precision])
    copy.fit(x[training.first], y[training.first], PERSONAL_BATCH, config.personal_epochs, verbose=0)
    return copy.predict(x).argmax(-1)


def _resolve(config: ActivityConfig) -> ActivityConfig:
    """Fill in the first person, the number of epochs and the rate of the person's own."""
    drawn = config.drawn or (find_motion(config.data) is None and not config.data)
    person = config.person or load_motion(config.sensors, config.data, config.drawn).names[0]
    epochs = config.epochs or (DRAWN_EPOCHS if drawn else EPOCHS)
    rate = config.personal_rate or (DRAWN_PERSONAL_RATE if drawn else PERSONAL_RATE)
    return replace(config, drawn=drawn, person=person, epochs=epochs, personal_rate=rate)


def _presets() -> dict[str, ActivityConfig]:
    return {network: ActivityConfig(network) for network in NETWORKS}


ActivityExperiment = Experiment(
    "activity", ActivityConfig, load_activity, "edgelearn activity train", resolve=_resolve, presets=_presets
)


# -- all people -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PersonResult:
    """A person who was left out.

    Arguments:
    - `person`: name. `run`: id of the training's run.
    - `accuracy`: on all of the person's windows, of which there are `total`.
    - `before`, `after`: accuracy on all recordings but the first, without and with training on that; None if not.
    """

    person: str
    run: str
    accuracy: float
    total: int
    before: float | None = None
    after: float | None = None


@dataclass(frozen=True, repr=False)
class ActivityResults(Tabular):
    """People left out in turn.

    Arguments:
    - `config`: settings of all trainings.
    - `people`: a result for each person.
    - `description`: the data in words.
    - `device`: name.
    """

    config: ActivityConfig
    people: Sequence[PersonResult]
    description: str
    device: str

    @property
    def accuracy(self) -> tuple[float, float]:
        """(mean over the people, half of its 95 % interval by Student's t; 0 for one person)"""
        return _mean([each.accuracy for each in self.people])

    @property
    def median(self) -> float:
        """Median of the accuracies over the people, which the study reports."""
        return median([each.accuracy for each in self.people])

    @property
    def lift(self) -> tuple[float, float] | None:
        """(mean of what a person's first recording adds to the accuracy on the others, half of its 95 % interval); None
        if nobody's was trained on."""
        added = [each.after - each.before for each in self.people if each.after is not None and each.before is not None]
        return _mean(added) if added else None

    @property
    def published(self) -> float | None:
        """The study's median accuracy; None for drawn people."""
        return None if self.config.drawn else PUBLISHED[self.config.network, self.config.sensors].accuracy

    @property
    def headline(self) -> str:
        mean, margin = self.accuracy
        return f"of {self.config.network}, {self.config.sensors}: {mean:.1%} ± {margin:.1%}, {len(self.people)} people"

    def table(self) -> Table:
        """A row for each person, and their mean."""
        rows = [
            (each.person, f"{each.total:,}", _percent(each.accuracy), _percent(each.before), _percent(each.after))
            for each in self.people
        ]
        mean, margin = self.accuracy
        befores = [each.before for each in self.people if each.before is not None]
        afters = [each.after for each in self.people if each.after is not None]
        rows += [(), (
            "mean", "", f"{mean:.1%} ± {margin:.1%}", _percent(_mean(befores)[0] if befores else None),
            _percent(_mean(afters)[0] if afters else None),
        )]  # fmt: skip
        notes = [self.description, "before, after: on all recordings but the person's first, which is trained on."]
        if self.lift:
            notes.append(f"The first recording adds {self.lift[0]:+.1%} ± {self.lift[1]:.1%} (95 %, over the people).")
        if self.published is not None:
            notes.append(f"Median: {self.median:.1%}; published for all 23 people: {self.published:.1%}.")
        header = ("left out", "windows", "accuracy", "before", "after")
        return Table(header, rows, f"{self.config.network}, {self.config.sensors}, on {self.device}", notes)

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "network": self.config.network, "sensors": self.config.sensors, "precision": self.config.precision,
            "device": self.device, "description": self.description, "accuracy": list(self.accuracy),
            "median": self.median, "published": self.published, "lift": list(self.lift) if self.lift else None,
            "people": [asdict(each) for each in self.people],
        }  # fmt: skip

    def plot(self, path: str | Path | None = None) -> Figure:
        """Draw each person's accuracy on all recordings but the first, before and after training on that; write a PNG
        to `path`."""
        figure = figures.canvas(figures.WIDTH, 4)
        axes, places = figure.subplots(), np.arange(len(self.people))
        for shift, name, color in ((-0.2, "before", figures.ORANGE), (0.2, "after", figures.BLUE)):
            values = [getattr(each, name) for each in self.people]
            heights = [
                100 * (each.accuracy if value is None else value)
                for each, value in zip(self.people, values, strict=True)
            ]
            axes.bar(places + shift, heights, 0.38, color=color, label=f"{name} the first recording")
        axes.set_xticks(places, [each.person for each in self.people])
        axes.set_ylim(0, 100)
        figure.legend(fontsize=10, loc="outside lower center", ncols=2, frameon=False)
        figures.style(axes, self.headline.removeprefix("of "), "Left out", "Test accuracy (%)", bars=True)
        return figures.saved(figure, path)


def _mean(values: Sequence[float]) -> tuple[float, float]:
    if len(values) == 1:
        return values[0], 0.0
    found = interval(values)
    return found.mean, found.margin


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"


def leave_one_out(
    config: ActivityConfig | None = None, people: Sequence[str] = (), *, store: RunStore | str | None = None,
    log: Log = silent, callbacks: Callable[[], Sequence[Callback]] = list, **settings: Any,
) -> ActivityResults:  # fmt: skip
    """Train without each person in turn, and test on that person.

    >>> found = leave_one_out(network="lstm", people=("p01", "p02"))
    >>> print(found)

    Each training is a run in the run store, found again by the same call; an interrupted one goes on.

    Arguments:
    - `config`: the settings (default: one of `settings`); its `person` is ignored.
    - `people`: names (default: everybody).
    - `store`: a RunStore or its folder (default: that of the commands).
    - `log`: takes lines of text (default: none).
    - `callbacks`: makes the callbacks of a training.
    - `settings`: those of ActivityConfig.

    Raises DataError for missing data or unknown people, RunError if a training failed.
    """
    config = config or ActivityConfig(**settings)
    dataset = load_motion(config.sensors, config.data, config.drawn)
    kept = store if isinstance(store, RunStore) else RunStore(store)
    if unknown := [name for name in people if name not in dataset.names]:
        raise DataError(f"There is no '{unknown[0]}': choose {', '.join(dataset.names)}.")
    found, device = [], ""
    for name in people or dataset.names:
        job = Job(ActivityExperiment, replace(config, person=name), str(kept.root))
        log(name)
        outcome, run = train(job, list(callbacks())), find(job)
        if run is None or run.status != "finished":
            raise RunError(f"The training without {name} could not be finished: {outcome.problem}")
        found.append(_person(name, run.id, run.record["results"]))
        device = " / ".join(run.record["device"].get(part, "") for part in ("platform", "name"))  # as Device.id
    return ActivityResults(ActivityExperiment.resolve(config), found, dataset.description, device)


def _person(name: str, run: str, results: Mapping[str, Any]) -> PersonResult:
    personal = results.get("personal") or {}
    return PersonResult(name, run, results["accuracy"], results["total"], personal.get("before"), personal.get("after"))
