"""Personalisation: how much a few clips of a user reduce that user's errors, and what they cost other people."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from pathlib import Path

import numpy as np

from edgelearn.data.audio import ClipDataset
from edgelearn.data.features import BC_RESNET, load_features
from edgelearn.data.speech_commands import CLASSES, COMMANDS, load_named
from edgelearn.data.tfds import data_folder
from edgelearn.device import Device
from edgelearn.display import plural
from edgelearn.errors import DataError
from edgelearn.interop import state_dict
from edgelearn.keywords.learners import Background, Embedder, Head, Learner, Neighbours, Spotter
from edgelearn.models import bcresnet
from edgelearn.ops import Concatenate, Flatten, Mean
from edgelearn.tables import Table

from .embedding import (
    ARABIC,
    ENGLISH,
    FRONT_END,
    HELD_SPEAKERS,
    IN_DATA,
    SECONDS,
    KeywordsConfig,
    arabic,
    make_embedder,
    read_run,
)
from .episodes import hold_out, require_speakers


@dataclass(frozen=True)
class Protocol:
    """Cross-validated personalisation test for each user.

    Arguments:
    - `words`: labels of the keywords; clips with other labels count as non-keywords.
    - `min_clips`: a word is tested for a user who has at least this many clips of it (default 5).
    - `folds`: number of parts a word's clips are divided into; each part is tested after enrolling the others
      (default 5).
    - `threshold`: minimum score, relative to `against`, at which a clip is accepted (default 0).
    - `against`: `"others"`, the best score among the classifier's non-keyword classes (default), or `"none"`, the raw
      score, for a classifier without such classes.
    - `seed`: draws the half of the other speakers used as background, if the embedder has none.
    """

    words: tuple[int, ...]
    min_clips: int = 5
    folds: int = 5
    threshold: float = 0.0
    against: str = "others"
    seed: int = 0

    def margins(self, scores: np.ndarray) -> np.ndarray:
        """Best keyword score of each clip, relative to `against`: (n,) of scores (n, num_classes)."""
        best = scores[:, self.words].max(1)
        if self.against == "none":
            return best
        return best - np.delete(scores, self.words, 1).max(1)

    def predict(self, scores: np.ndarray) -> np.ndarray:
        """The keyword of each clip, or -1 where none is accepted: (n,) of scores (n, num_classes)."""
        best = np.array(self.words)[scores[:, self.words].argmax(1)]
        return np.where(self.margins(scores) >= self.threshold, best, -1)

    def with_accepts(self, scores: np.ndarray, count: int) -> Protocol:
        """A copy with the lowest threshold that accepts at most `count` of the clips with `scores`."""
        descending = np.sort(self.margins(scores))[::-1]
        if count >= len(descending):
            return replace(self, threshold=-np.inf)
        return replace(self, threshold=float(np.nextafter(descending[count], np.inf)))


_BOOTSTRAPS = 10_000


@dataclass(frozen=True)
class UserResult:
    """Results of one user, averaged over folds.

    Arguments:
    - `name`: name of the user.
    - `tested`, `enrolled`: number of clips.
    - `error_before`, `error_after`: share of the user's tested clips that are classified wrongly.
    - `false_accepts_before`, `false_accepts_after`: share of other people's non-keywords that are accepted.
    - `other_errors_before`, `other_errors_after`: share of other people's keywords that are classified wrongly.
    - `nbytes`: stored for the user.
    - `seconds`: time of learning; from embeddings, if the learner leaves these as they are.
    """

    name: str
    tested: float
    enrolled: float
    error_before: float
    error_after: float
    false_accepts_before: float
    false_accepts_after: float
    other_errors_before: float
    other_errors_after: float
    nbytes: float
    seconds: float


_COLUMNS = tuple(field.name for field in fields(UserResult) if field.name != "name")


@dataclass(frozen=True, eq=False)
class PersonalisationReport:
    """Results of a learner over users.

    Arguments:
    - `learner`: its settings as text.
    - `shots`: most clips of each word that were enrolled.
    - `users`: results of each user.
    """

    learner: str
    shots: int
    users: tuple[UserResult, ...]

    def column(self, name: str) -> np.ndarray:
        """One field of all users (n,)."""
        return np.array([getattr(user, name) for user in self.users])

    def mean(self, name: str) -> float:
        """Mean of a field over users."""
        return float(self.column(name).mean())

    def worst_tenth(self, name: str) -> float:
        """Mean of the highest tenth of a field (at least one user)."""
        return float(np.sort(self.column(name))[-self._tenth :].mean())

    @property
    def initially_worst(self) -> float:
        """Mean error after personalisation of the tenth of users that was worst before."""
        order = np.argsort(self.column("error_before"), kind="stable")
        return float(self.column("error_after")[order[-self._tenth :]].mean())

    @property
    def reduction(self) -> float:
        """Relative reduction of the mean error."""
        return 1 - self.mean("error_after") / max(self.mean("error_before"), 1e-9)

    @property
    def worst_reduction(self) -> float:
        """Relative reduction of the worst tenth's error: the tenth worst after against the tenth worst before."""
        return 1 - self.worst_tenth("error_after") / max(self.worst_tenth("error_before"), 1e-9)

    @property
    def reduction_interval(self) -> tuple[float, float]:
        """95 % confidence interval of `reduction` (bootstrap over users)."""
        draws = np.random.default_rng(0).integers(len(self.users), size=(_BOOTSTRAPS, len(self.users)))
        before, after = (self.column(name)[draws].mean(1) for name in ("error_before", "error_after"))
        reductions = 1 - after[before > 0] / before[before > 0]
        if not reductions.size:
            return float("nan"), float("nan")
        low, high = np.percentile(reductions, (2.5, 97.5)).tolist()
        return low, high

    def increase(self, name: str) -> float:
        """Mean difference, after minus before, of "false_accepts" or "other_errors"."""
        return float(np.mean(self.column(f"{name}_after") - self.column(f"{name}_before")))

    @property
    def _tenth(self) -> int:
        return max(1, len(self.users) // 10)


def average(reports: Sequence[PersonalisationReport]) -> PersonalisationReport:
    """Mean of reports on the same users with the same clips, such as those of several seeds."""
    users = [
        UserResult(same[0].name, *(float(np.mean([getattr(user, name) for user in same])) for name in _COLUMNS))
        for same in zip(*(report.users for report in reports), strict=True)
    ]
    return PersonalisationReport(reports[0].learner, reports[0].shots, tuple(users))


HEADER = (
    "shots", "enrolled", "users", "error", "after", "reduction (95 %)", "worst tenth", "after", "reduction",
    "initially worst", "false accepts", "others' errors", "bytes", "seconds",
)  # fmt: skip


def to_table(reports: Sequence[PersonalisationReport]) -> Table:
    """A line for each report: shots, mean number of clips enrolled for a user, errors and false accepts in percent."""
    rows = []
    for report in reports:
        low, high = report.reduction_interval
        rows.append((
            str(report.shots), f"{report.mean('enrolled'):.1f}", str(len(report.users)),
            _percent(report.mean("error_before")), _percent(report.mean("error_after")),
            f"{report.reduction:.0%} ({low:.0%} to {high:.0%})",
            _percent(report.worst_tenth("error_before")), _percent(report.worst_tenth("error_after")),
            f"{report.worst_reduction:.0%}", _percent(report.initially_worst),
            *(_change(report.mean(f"{name}_before"), report.mean(f"{name}_after")) for name in _COSTS),
            f"{report.mean('nbytes'):,.0f}", f"{report.mean('seconds'):.2g}",
        ))  # fmt: skip
    return Table(HEADER, rows, notes=[", ".join(dict.fromkeys(report.learner for report in reports))])


USERS_HEADER = "user", "tested", "enrolled", "error", "after", "false accepts", "others' errors"


def users_table(report: PersonalisationReport) -> Table:
    """A line for each user, highest initial error first: clips, then errors and false accepts in percent."""
    rows = [
        (
            user.name, f"{user.tested:.0f}", f"{user.enrolled:.0f}",
            _percent(user.error_before), _percent(user.error_after),
            *(_change(getattr(user, f"{name}_before"), getattr(user, f"{name}_after")) for name in _COSTS),
        )
        for user in sorted(report.users, key=lambda user: -user.error_before)
    ]  # fmt: skip
    return Table(USERS_HEADER, rows, f"Users, up to {plural(report.shots, 'clip')} of a word")


_COSTS = "false_accepts", "other_errors"


def _percent(share: float) -> str:
    return f"{100 * share:.2f}"


def _change(before: float, after: float) -> str:
    return f"{_percent(before)} → {_percent(after)}"


_HALVES = 37  # keeps this random stream of a seed apart from others


class CrossValidation:
    """Personalisation of every user of a data set, for any number of learners.

    Before enrolment a clip is classified by the embedder's head, after it by the learner's classifier. The threshold
    after enrolment accepts no more of the background's non-keywords than before. False accepts are other people's
    non-keywords that are accepted; errors on other people's keywords are counted as well. If the embedder has no
    background, it consists of the clips of one half of the other people, and false accepts are counted on the other
    half.

    Arguments:
    - `embedder`: has a head with the classes of `dataset`.
    - `dataset`: clips with labels and speakers.
    - `features`: features of its clips (n, frames, bands).
    - `protocol`: what is tested.

    Raises DataError for an embedder without a head, words that aren't its classes, clips of keywords without a speaker,
    and too few people for a background.
    """

    def __init__(self, embedder: Embedder, dataset: ClipDataset, features: np.ndarray, protocol: Protocol) -> None:
        if embedder.head is None:
            raise DataError("Personalisation starts from a classifier of the words: give an embedder with its head.")
        words, classes = set(protocol.words), set(range(embedder.head.num_classes))
        if not words or not words <= classes:
            raise DataError(f"Words must be classes of the head, 0 to {len(classes) - 1}, not {protocol.words}.")
        if protocol.against == "others" and words == classes:
            raise DataError("All classes of the head are words: none is a non-keyword. Give against='none'.")
        require_speakers(dataset.take(np.isin(dataset.labels, protocol.words)))
        self.embedder, self.head, self.protocol, self.features = embedder, embedder.head, protocol, features
        self.labels, self.speakers = dataset.labels, dataset.speakers
        self.is_word = np.isin(self.labels, protocol.words)
        self.answers = np.where(self.is_word, self.labels, -1)
        self.embeddings = embedder.embed(features)
        self._before = protocol.predict(self.head.scores(self.embeddings))
        self.half = np.zeros(len(features), bool)  # of the people, for each clip
        self._embedders = {False: embedder, True: embedder}  # with the background for users of each half
        if embedder.background is None:
            self.half = _halves(self.speakers, protocol.seed)
            for half in (False, True):
                others = self.half != half
                if not others.any():
                    raise DataError(
                        f"{dataset.name} has too few people for a background. Add clips by others, or give an embedder "
                        f"that has one."
                    )
                background = Background(features[others], self.labels[others], features[others & ~self.is_word])
                self._embedders[half] = embedder.with_background(background)
        self._non_keywords = {}
        for half, each in self._embedders.items():
            _ = each.metric  # computed once for all users: not part of an enrolment's seconds
            self._non_keywords[half] = each.embed(each.required_background.non_keywords)

    def run(self, learner: Learner, shots: int) -> PersonalisationReport:
        """Test every user, enrolled by `learner` with up to `shots` clips of each word.

        Raises DataError for no shots, if nobody has enough clips of a word, or nobody else has clips to count errors
        on.
        """
        if shots < 1:
            raise DataError(f"An enrolment needs at least 1 clip of each word, not {shots}.")
        users = []
        for user in np.unique(self.speakers[self.speakers != ""]).tolist():
            words = [np.flatnonzero((self.speakers == user) & (self.labels == word)) for word in self.protocol.words]
            if words := [clips for clips in words if len(clips) >= self.protocol.min_clips]:
                users.append(self._user(learner, user, words, shots))
        if not users:
            raise DataError(f"Nobody has {self.protocol.min_clips} clips of one of the words. Ask for fewer.")
        return PersonalisationReport(str(learner), shots, tuple(users))

    def half_of(self, user: str) -> bool:
        """The half of the people that a user belongs to."""
        return bool(self.half[self.speakers == user][0])

    def _user(self, learner: Learner, user: str, words: Sequence[np.ndarray], shots: int) -> UserResult:
        """Average over folds. `words`: the user's clips of each word."""
        half, folds, count = self.half_of(user), [], self.protocol.folds
        others, embedder = (self.half == half) & (self.speakers != user), self._embedders[half]
        strangers = [np.flatnonzero(others & (self.is_word == word)) for word in (False, True)]
        if not all(map(len, strangers)):
            raise DataError(
                f"Nobody but {user} has clips of {'non-keywords' if len(strangers[1]) else 'keywords'} to count errors "
                f"on. Add clips by other people."
            )
        for fold in range(count):
            tested = np.concatenate([clips[fold::count] for clips in words])
            support = np.concatenate([np.setdiff1d(clips, clips[fold::count])[:shots] for clips in words])
            if not len(tested):
                continue
            start, labels = time.perf_counter(), self.labels[support]
            if learner.keeps_embeddings:
                x, classes = self.embeddings[support], self.head.num_classes
                spotter = Spotter(embedder, learner.classify(embedder, x, labels, classes))
            else:
                spotter = learner.enrol(embedder, self.features[support], labels)
            seconds = time.perf_counter() - start
            kept = spotter.embedder.model is self.embedder.model  # the network
            before, after = self._non_keywords[half], self.protocol
            if len(before):  # accept no more of them than before
                now = before if kept else spotter.embedder.embed(spotter.embedder.required_background.non_keywords)
                accepted = np.count_nonzero(after.predict(self.head.scores(before)) >= 0)
                after = after.with_accepts(spotter.classifier.scores(now), int(accepted))
            rates = []
            for clips in (tested, *strangers):
                x = self.embeddings[clips] if kept else spotter.embedder.embed(self.features[clips])
                for predicted in (self._before[clips], after.predict(spotter.classifier.scores(x))):
                    rates.append(np.mean(predicted != self.answers[clips]))
            folds.append((len(tested), len(support), *rates, _stored_bytes(self.embedder, spotter), seconds))
        rows = np.array(folds, float)
        errors = np.average(rows[:, 2:4], 0, rows[:, 0])
        return UserResult(user, *map(float, (rows[:, 0].sum(), rows[:, 1].mean(), *errors, *rows[:, 4:].mean(0))))


def _stored_bytes(embedder: Embedder, spotter: Spotter) -> int:
    """Bytes stored for a user: the classifier's arrays and the weights that have changed."""
    old, new = embedder.weights, spotter.embedder.weights
    changed = [array for name, array in new.items() if not np.array_equal(array, old[name])]
    arrays = [value for value in vars(spotter.classifier).values() if isinstance(value, np.ndarray)]
    return sum(array.nbytes for array in (*changed, *arrays))


def _halves(speakers: np.ndarray, seed: int) -> np.ndarray:
    """One of two halves of the speakers for each clip, drawn with `seed`; clips without a speaker are divided
    themselves: bool (n,)."""
    rng = np.random.default_rng([seed, _HALVES])
    names = rng.permutation(np.unique(speakers[speakers != ""]))
    no_speaker = rng.random(len(speakers)) < 0.5
    return np.where(speakers == "", no_speaker, np.isin(speakers, names[: len(names) // 2]))


# From cautious to bold.
CANDIDATES: tuple[Learner, ...] = tuple(
    Neighbours(weight, nearest=nearest) for weight, nearest in product((4.0, 8.0, 16.0, 24.0), (1, 2))
)
MAX_INCREASE = 0.01  # of false accepts, and of errors on other people's words


def run_selected(
    validation: CrossValidation, shots: int, candidates: Sequence[Learner] = CANDIDATES,
    max_increase: float = MAX_INCREASE,
) -> PersonalisationReport:  # fmt: skip
    """Test every user with the candidate that is best for the users of the other half of the people.

    Arguments:
    - `validation`: the users.
    - `shots`: enrolled clips of each word, at most.
    - `candidates`: learners to select from.
    - `max_increase`: see `select`.
    """
    reports = [validation.run(learner, shots) for learner in candidates]
    best = {
        half: reports[select([_of_half(report, validation, not half) for report in reports], max_increase)]
        for half in (False, True)
    }
    users = [best[validation.half_of(user.name)].users[i] for i, user in enumerate(reports[0].users)]
    return PersonalisationReport(" or ".join(dict.fromkeys(r.learner for r in best.values())), shots, tuple(users))


def select(reports: Sequence[PersonalisationReport], max_increase: float = MAX_INCREASE) -> int:
    """Index of the report with the smallest error, among those in which neither false accepts nor errors on other
    people's words rise by more than `max_increase`; 0 if there is none."""
    allowed = [
        i for i, report in enumerate(reports)
        if max(report.increase("false_accepts"), report.increase("other_errors")) <= max_increase
    ]  # fmt: skip
    return min(allowed or [0], key=lambda i: reports[i].column("error_after").mean())


def _of_half(report: PersonalisationReport, validation: CrossValidation, half: bool) -> PersonalisationReport:
    users = tuple(user for user in report.users if validation.half_of(user.name) == half)
    return PersonalisationReport(report.learner, report.shots, users)


FALSE_ACCEPTS = 0.05  # at the threshold before personalisation


def personalise_arabic(
    config: KeywordsConfig, weights: dict[str, np.ndarray], shots: Sequence[int], learner: Learner | None = None
) -> list[PersonalisationReport]:
    """Personalise a trained classifier of 16 Arabic words for the 6 held-out speakers.

    Half of a user's ten clips of a word are tested after enrolment with the others, both ways round. The background
    consists of the training clips. False accepts are other users' clips of the 8 held-out words; thresholds, before and
    after, accept FALSE_ACCEPTS of these words by the training speakers.

    Arguments:
    - `config`: configuration of the training.
    - `weights`: weights of the trained network with its classifier.
    - `shots`: a report is made for each number of enrolled clips of a word.
    - `learner`: default `Neighbours()`.

    Raises DataError for a network that wasn't trained by classification, or for another task than "arabic".
    """
    if config.task != "arabic":
        raise DataError(f"Users are the speakers of the task 'arabic'; this network was trained on '{config.task}'.")
    if "classifier/kernel" not in weights:
        raise DataError("Personalisation starts from a classifier of words: train with the method 'classify'.")
    every = load_named(ARABIC, config.data)
    users = hold_out(every, 0, HELD_SPEAKERS, config.seed).test
    head, background, words = _shared(config, weights, every, users)
    embedder = make_embedder(config, weights)
    embedder = embedder.with_weights(embedder.weights, head).with_background(background)
    classes = head.num_classes
    labels = [words.index(word) if word in words else classes for word in users.words.tolist()]
    names = (*(f"word {number}" for number in range(classes)), "another")
    scores = head.scores(embedder.embed(background.non_keywords))
    protocol = Protocol(tuple(range(len(words))), folds=2, against="none")
    protocol = protocol.with_accepts(scores, int(FALSE_ACCEPTS * len(scores)))
    features = load_features(users, FRONT_END, SECONDS)
    validation = CrossValidation(embedder, replace(users, class_names=names, labels=labels), features, protocol)
    return [validation.run(learner or Neighbours(), count) for count in shots]


def personalise_run(
    folder: str | Path, shots: Sequence[int], data: str | None = None, device: str | None = None
) -> list[PersonalisationReport]:
    """`personalise_arabic` for the network in the folder of a run."""
    config, weights = read_run(Path(folder))
    return personalise_arabic(replace(config, data=data, device=device), weights, shots)


def _shared(
    config: KeywordsConfig, weights: dict[str, np.ndarray], every: ClipDataset, users: ClipDataset
) -> tuple[Head, Background, tuple[str, ...]]:
    """The head, the background, and the words that users say: English words of the head count as non-keywords."""
    train = arabic(config).train
    words, total = train[0].class_names, sum(len(dataset.class_names) for dataset in train)
    head = Head(weights["classifier/kernel"][:, :total], weights["classifier/bias"][:total])  # without reversed words
    features = np.concatenate([load_features(dataset, FRONT_END, SECONDS) for dataset in train])
    labels = np.concatenate([train[0].labels, *(dataset.labels + len(words) for dataset in train[1:])])
    others = every.take(~np.isin(every.speakers, users.speakers) & ~np.isin(every.words, words))
    return head, Background(features, labels, load_features(others, FRONT_END, SECONDS)), words


SEEDS = 5


def load_english(
    data: str | os.PathLike | None = None, device: str | Device | None = None, bands: bool = False
) -> Embedder:
    """BC-ResNet-1 with its head for `speech_commands.CLASSES`.

    Arguments:
    - `data`: folder with data sets and weights (default: EDGELEARN_DATA).
    - `device`: part of a device's name (default: chosen).
    - `bands`: append 100 values to the 32 of the embedding that the head reads: the last stage's means over time in
      each of its five frequency bands.

    Raises DataError if there is no data folder, FormatError for a file that is missing, damaged, or of another network.
    """
    folder = data_folder(data)
    if not folder:
        raise DataError(f"{IN_DATA} is needed. Set EDGELEARN_DATA to the folder that it lies in.")
    weights = state_dict.read_bcresnet(Path(folder) / IN_DATA, bcresnet())
    network = bcresnet(classes=None)
    kernel = weights["classifier/kernel"]
    if bands:
        network.add("bands", Mean(axis=2), "stage4_block4_relu")
        network.add("bands_flat", Flatten())
        network.add("with_bands", Concatenate(), "pool", "bands_flat")
        kernel = np.pad(kernel, ((0, network.output.shape[0] - len(kernel)), (0, 0)))
    head = Head(kernel, weights["classifier/bias"])
    return Embedder(network, {name: weights[name] for name in network.parameters}, BC_RESNET, 1.0, head, device)


def english_users(
    data: str | os.PathLike | None = None, device: str | Device | None = None, seeds: int = SEEDS
) -> list[CrossValidation]:
    """Users of Speech Commands' test set, for each of `seeds`, which draw the background and the halves of the people.

    `data`, `device`, and errors: as in `load_english`.
    """
    clips = load_named(ENGLISH, data).only(CLASSES)
    features, embedder = load_features(clips, BC_RESNET), load_english(data, device, bands=True)
    words = tuple(CLASSES.index(word) for word in COMMANDS)
    return [CrossValidation(embedder, clips, features, Protocol(words, seed=seed)) for seed in range(seeds)]


def personalise_english(
    validations: Sequence[CrossValidation], shots: Sequence[int], candidates: Sequence[Learner] = CANDIDATES
) -> list[PersonalisationReport]:
    """Personalise the network for `english_users`: a report for each number of enrolled clips of a word in `shots`.

    Each user's settings are those of `candidates` that are best for other users. Reports are means over seeds.
    """
    return [average([run_selected(each, count, candidates) for each in validations]) for count in shots]
