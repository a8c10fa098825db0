"""User verification by federated learning: FedUV, FedAwS and baselines on speakers and on CIFAR-10."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from edgelearn.data.audio import ClipDataset, load_folder
from edgelearn.data.draws import SpecAugment
from edgelearn.data.features import LogMel, load_features
from edgelearn.data.speech_commands import load_named
from edgelearn.data.synthetic_words import embedded_words
from edgelearn.display import plural
from edgelearn.errors import DataError, PlanError
from edgelearn.federated import Server
from edgelearn.federated.verification import (
    VERIFICATION_STRATEGIES,
    VerificationStrategy,
    make_verification_strategy,
    scores,
    speaker_network,
)
from edgelearn.graph import Network
from edgelearn.keywords import save_embedder
from edgelearn.keywords.learners import Embedder
from edgelearn.lab.runs import Run
from edgelearn.ops import Add, Conv2D, Dense, GlobalAveragePooling2D, GroupNormalization, ReLU
from edgelearn.train import VariedSource

from .config import ConfigError, setting
from .federated import FederatedConfig
from .federated.experiment import (
    OWN,
    FederatedTask,
    FederatedTaskKind,
    Federation,
    cifar10_task,
    federations,
    finish_federation,
    make_task,
)
from .keywords.episodes import ARABIC, ENGLISH, det_curve, equal_error_rate

FIXED = (  # a client is a user, and the network is that of the verification
    "partition", "alpha", "labels_per_client", "proximal", "bad", "normalization", "model", "pixels", "front_end",
)  # fmt: skip


@dataclass(frozen=True)
class VerificationConfig(FederatedConfig):
    """A federation of users, each of whom trains with their own recordings alone; None stands for the task's value.

    Arguments: those of FederatedConfig, of which `batch_size` is the number of recordings of an update, and
    - `strategy`: what users are told apart by (default "feduv").
    - `size`: bits of a codeword, or values of an embedding (default: 127 and 128; softmax has the number of users).
    - `steps`: updates of a user in a round (default 1).
    - `vector_rate`: learning rate of embeddings (default: the strategy's, 0.1).
    - `spread_rate`: learning rate of the server's step of "fedaws" (default: the strategy's, 0.01).
    - `nearest`: other users' embeddings from which "fedaws" moves each away (default: the strategy's, 10).
    - `augment`: mask frames and bands of recordings, anew in each round (default True).
    - `largest_update`: as in FederatedConfig (default None: losses of 0 make changes of 0, beside which others are
      large).
    - `validation_frequency`: users are verified after so many rounds (default 50), and at the end.

    Raises ConfigError for an invalid value or combination.
    """

    task: str = setting("sample", "whose data", positional=True)
    strategy: str = setting("feduv", "what users are told apart by", choices=tuple(VERIFICATION_STRATEGIES))
    size: int | None = setting(None, "bits of a codeword (127, 255, 511), values of an embedding", minimum=2)
    steps: int | None = setting(1, "updates of a user in a round", minimum=1)
    vector_rate: float | None = setting(None, "learning rate of embeddings", above=0)
    spread_rate: float | None = setting(None, "learning rate of the server's step of fedaws", above=0)
    nearest: int | None = setting(None, "embeddings from which fedaws moves each away", minimum=1)
    augment: bool = setting(True, "mask frames and bands of recordings, anew in each round")
    largest_update: float | None = setting(
        None, "times the median length of earlier rounds that an update may have", above=1
    )
    validation_frequency: int = setting(50, "verify users after so many rounds", minimum=1)

    @property
    def needs_model(self) -> bool:
        return False

    def make_strategy(self) -> VerificationStrategy:
        size = self.clients if self.strategy == "softmax" else self.size
        try:
            return make_verification_strategy(
                self.strategy, size=size, rate=self.server_rate, decay=self.server_decay,
                vector_rate=self.vector_rate, spread_rate=self.spread_rate, nearest=self.nearest,
            )  # fmt: skip
        except (PlanError, DataError) as error:
            raise ConfigError("strategy", str(error)) from None


_FILTERS = (16, 32, 64)


def picture_network(outputs: int) -> Network:
    """ResNet-8 for 32 x 32 pictures: a convolution and three residual blocks of 16, 32 and 64 filters, each convolution
    with GroupNormalization, then a dense layer "verification" without bias."""
    network = Network(f"resnet8_{outputs}", (32, 32, 3))
    _convolution(network, "conv", _FILTERS[0], 3)
    network.add("conv_relu", ReLU())
    for number, filters in enumerate(_FILTERS, start=1):
        name, strides = f"block{number}", 1 if number == 1 else 2
        x = network.output
        shortcut = x.name if strides == 1 else _convolution(network, f"{name}_0", filters, 1, strides, x.name)
        _convolution(network, f"{name}_1", filters, 3, strides, x.name)
        network.add(f"{name}_1_relu", ReLU())
        residual = _convolution(network, f"{name}_2", filters, 3)
        network.add(f"{name}_add", Add(), shortcut, residual)
        network.add(f"{name}_relu", ReLU())
    network.add("pool", GlobalAveragePooling2D())
    network.add("verification", Dense(outputs, use_bias=False))
    return network


def _convolution(network: Network, name: str, filters: int, size: int, strides: int = 1, *inputs: str) -> str:
    sides = (size // 2, size // 2)
    op = Conv2D(filters, size, strides, (sides, sides), use_bias=False, kernel_initializer="he_normal")
    network.add(name, op, *inputs)
    return network.add(f"{name}_norm", GroupNormalization(groups=8))


FRONT_END = LogMel(window=640, hop=320, fft=1024)
LEAST_CLIPS = 10  # of a speaker
_HELD_OUT = _TESTED = 0.25  # of the speakers, and of the others' clips
_SPLIT = 44  # separates this random stream from others of the same seed


def _speakers(config: VerificationConfig, clips: ClipDataset, most: int = 240) -> FederatedTask:
    """Speakers with at least LEAST_CLIPS clips, of which `most` are taken. A share of the speakers takes no part; a
    share of the others' clips is for the test."""
    rng = np.random.default_rng([config.seed, _SPLIT])
    speakers, counts = np.unique(clips.speakers, return_counts=True)
    people = rng.permutation(speakers[(counts >= LEAST_CLIPS) & (speakers != "")])
    count, users = max(1, round(_HELD_OUT * len(people))), config.clients or 0
    if len(people) < count + users:
        raise DataError(
            f"{clips.name} has {len(people)} speakers with {LEAST_CLIPS} clips. {count} of them are held out, so there "
            f"are {max(0, len(people) - count)} users, not {users}."
        )
    clips = clips.take(np.isin(clips.speakers, people))
    x = load_features(clips, FRONT_END)[..., None]
    train: list[np.ndarray] = []
    test: list[np.ndarray] = []
    for speaker in people[count : count + users]:
        own = rng.permutation(np.flatnonzero(clips.speakers == speaker))[:most]
        share = max(1, round(_TESTED * len(own)))
        test.append(own[:share])
        train.append(own[share:])
    unseen = [rng.permutation(np.flatnonzero(clips.speakers == speaker))[: len(test[0])] for speaker in people[:count]]
    places = np.concatenate(train), np.concatenate([*test, *unseen])
    owners = np.repeat(range(users), list(map(len, train)))
    tested = np.repeat([*range(users), *[-1] * count], list(map(len, [*test, *unseen])))
    description = f"{plural(users, 'speaker')}, {plural(len(owners), 'clip')} to train with; {count} speakers unseen"
    data = {
        "origin": clips.origin, "description": description, "classes": [str(name) for name in people[count:][:users]],
    }  # fmt: skip
    network = speaker_network((*FRONT_END.shape(FRONT_END.rate), 1), config.make_strategy().size)
    recordings = x[places[0]]
    if config.augment:
        masks = SpecAugment(config.seed, frames=8, bands=6)  # anew in each round
        recordings = VariedSource(
            recordings, lambda some, indices, epoch: masks(some[..., 0], indices, epoch)[..., None], np.asarray
        )
    groups = people[count:][owners]
    return make_task(config, network, (recordings, owners), (x[places[1]], tested), data, 1.0, groups)


def _english(config: VerificationConfig) -> FederatedTask:
    clips = load_named(ENGLISH, config.data)
    return _speakers(config, clips.only([name for name in clips.class_names if name != "_silence_"]))


def _own(config: VerificationConfig) -> FederatedTask:
    """Recordings of one's own: a folder with a subfolder for each word, as Speech Commands has them."""
    assert config.data is not None
    return _speakers(config, load_folder(config.data))


def _kind(title: str, load: Callable, rounds: int, users: int, recordings: int) -> FederatedTaskKind:
    return FederatedTaskKind(title, 1, recordings, load, rounds, users, recordings, "labels")


TASKS: dict[str, FederatedTaskKind] = {
    "sample": _kind(
        "Synthesised voices of the package", lambda config: _speakers(config, embedded_words(6, 12, 8), 48), 300, 9, 12
    ),
    "arabic": _kind(
        "The Arabic speakers, a quarter of them unseen",
        lambda config: _speakers(config, load_named(ARABIC, config.data)), 200, 18, 12,
    ),
    "english": _kind("English speakers with at least ten clips, a quarter of them unseen", _english, 1000, 91, 8),
    "cifar10": _kind(
        "CIFAR-10 with one class a client; nothing is unseen",
        lambda config: cifar10_task(config, picture_network(config.make_strategy().size), 1.0), 300, 10, 32,
    ),
    OWN: _kind("Your recordings (--data), named by their speakers, a quarter of them unseen", _own, 300, 9, 12),
}  # fmt: skip


@dataclass(frozen=True)
class Report:
    """Rates of a verification network. *Seen* impostors are other users of the federation, *unseen* ones took no part.
    One threshold for all users.

    Arguments:
    - `seen`, `unseen`: true positive rate at a false positive rate of 10 %; NaN without impostors.
    - `seen_eer`, `unseen_eer`: equal error rates.
    - `accuracy`: share of test data whose best user is the right one.
    - `loss`: mean of 1 - score of the users' own test data.
    - `curves`: by kind of impostor, (false positive rates, true positive rates), ascending.
    """

    seen: float
    unseen: float
    seen_eer: float
    unseen_eer: float
    accuracy: float
    loss: float
    curves: dict[str, tuple[np.ndarray, np.ndarray]] = field(repr=False)

    @property
    def figures(self) -> dict[str, float]:
        """All figures that are known, by name."""
        return {k: v for k, v in vars(self).items() if k != "curves" and v == v}


def true_positive_rate(own: np.ndarray, impostors: np.ndarray, false_positive_rate: float = 0.1) -> float:
    """Return the share of a user's `own` scores at or above the lowest threshold that accepts at most
    `false_positive_rate` (default 0.1) of the impostors' scores."""
    _, accepted, rejected = det_curve(own, impostors)
    return float(1 - rejected[np.argmax(accepted <= false_positive_rate)])


def report(seen: np.ndarray, owners: np.ndarray, unseen: np.ndarray) -> Report:
    """Return the rates of scores.

    Arguments:
    - `seen`: scores of the users' test data, (n, users).
    - `owners`: number of the user of each row, (n,).
    - `unseen`: scores of data of people who took no part, (m, users).
    """
    mine = owners[:, None] == np.arange(seen.shape[1])
    own, found, curves = seen[mine], {}, {}
    for name, impostors in (("seen", seen[~mine]), ("unseen", unseen.ravel())):
        found[name] = found[f"{name}_eer"] = float("nan")
        if impostors.size:
            _, accepted, rejected = det_curve(own, impostors)
            curves[name] = accepted[::-1], 1 - rejected[::-1]
            found[name], found[f"{name}_eer"] = true_positive_rate(own, impostors), equal_error_rate(own, impostors)
    accuracy = float(np.mean(seen.argmax(1) == owners))
    return Report(**found, accuracy=accuracy, loss=float(1 - own.mean()), curves=curves)


VOICES = "voices"  # the network, in the run's folder, for `verify enrol`


class VerificationServer(Server):
    """A server whose test verifies users: its labels are their numbers, -1 for people who took no part."""

    strategy: VerificationStrategy

    @property
    def vectors(self) -> np.ndarray:
        """Vectors of all users (users, size), averaged like the model's weights; with FedUV each is known to its user
        alone, and here to the lab."""
        users, seed = range(self.settings.clients), self.settings.seed
        if not self.strategy.own_size:
            return np.stack([self.strategy.vector(user, seed) for user in users])
        return np.stack([own if own.any() else self.strategy.vector(u, seed) for u, own in enumerate(self.tested_own)])

    def report(self, x, y) -> Report:
        """Return how well each user's test data are told from other users', and from unseen people's."""
        found, seen = scores(self.model.predict(x), self.vectors), y >= 0
        return report(found[seen], y[seen], found[~seen])

    def evaluate(self, x, y):
        return self.report(x, y).figures


class Verification(Federation):
    """A federation of users, each with recordings of their own."""

    server_type = VerificationServer

    def results(self, correct, total, loss, seconds):
        seen = int(np.sum(self.test[1] >= 0))
        return super().results(round(correct / total * seen), seen, loss, seconds)


def _finish(training: Verification, run: Run, seconds: float) -> tuple[dict[str, Any], str]:
    results, text = finish_federation(training, run, seconds)
    if training.task.groups is None:  # no voices
        return results, text
    path: Path = run.folder / VOICES
    save_embedder(path, Embedder(training.model.network, dict(training.model.weights), FRONT_END))
    return results, f"Network for `edgelearn federated verify enrol --network`: {path}\n{text}"


VerificationExperiment = federations(
    "verification", VerificationConfig, TASKS, "edgelearn.experiments.verification:VerificationExperiment",
    "edgelearn federated verify train", Verification, _finish,
)  # fmt: skip
