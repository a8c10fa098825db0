"""Personalisation: what a few clips of a user are worth to that user, and what they cost other people.

For each user, words with enough clips are divided into parts; each part is tested once, after enrolment with up to k of
the user's other clips of each word. False accepts are other people's clips of no word that are taken for one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from edgelearn.data.audio.clips import ClipDataset
from edgelearn.errors import DataError
from edgelearn.runs.tables import render, table

from .learners import Background, Classifier, Embedder, Learner, Linear
from .metrics import Interval, interval
from .splits import require_speakers

_HALVES = 37  # keeps this random stream of a seed apart from others


@dataclass(frozen=True)
class Protocol:
    """Of the users' `words` (labels), those with `least` clips or more are enrolled and tested, in `parts` parts. Clips
    of other labels are of no word. A clip is accepted as a word if that has the highest score, and it is at least
    `threshold`. Where the embedder has no background of its own, a user rehearses clips of one half of the other
    people, drawn with `seed`, and false accepts are counted on the other half."""

    words: tuple[int, ...]
    least: int = 5
    parts: int = 5
    threshold: float = -np.inf
    seed: int = 0

    def accepted(self, scores: np.ndarray) -> np.ndarray:
        """The word of each clip, -1 for none."""
        best = scores.argmax(1)
        known = np.isin(best, self.words) & (scores.max(1) >= self.threshold)
        return np.where(known, best, -1)


@dataclass(frozen=True)
class User:
    """Shares of one user's tested clips that were wrong, and of other people's clips of no word that were accepted,
    before and after; seconds of an enrolment, and bytes that it keeps for the user, on average."""

    name: str
    tested: int
    enrolled: float
    before: float
    after: float
    accepts_before: float
    accepts_after: float
    seconds: float
    nbytes: float


@dataclass(frozen=True, eq=False)
class Personalisation:
    """What `learner` came to with up to `shots` clips of a word."""

    learner: Learner
    shots: int
    users: tuple[User, ...]

    def column(self, name: str) -> np.ndarray:
        return np.array([getattr(user, name) for user in self.users])

    def error(self, when: str) -> Interval:
        """Mean over users of the error "before" or "after"."""
        return interval(self.column(when))

    def worst_tenth(self, when: str) -> float:
        """Mean error of the tenth of users (at least one) that are worst off then."""
        return float(np.sort(self.column(when))[-max(1, len(self.users) // 10) :].mean())

    @property
    def was_worst(self) -> float:
        """Mean error after, of those who were worst off before."""
        order = np.argsort(self.column("before"), kind="stable")
        return float(self.column("after")[order[-max(1, len(self.users) // 10) :]].mean())

    def to_dict(self) -> dict:
        return self.learner.to_dict() | {
            "shots": self.shots, "users": len(self.users), "tested": int(self.column("tested").sum()),
            "before": self.error("before").mean, "after": self.error("after").mean,
            "worst_before": self.worst_tenth("before"), "worst_after": self.worst_tenth("after"),
            "was_worst": self.was_worst,
            "accepts_before": float(self.column("accepts_before").mean()),
            "accepts_after": float(self.column("accepts_after").mean()),
            "seconds": float(self.column("seconds").mean()), "bytes": float(self.column("nbytes").mean()),
        }  # fmt: skip


def personalise(
    learner: Learner, embedder: Embedder, dataset: ClipDataset, features: np.ndarray, protocol: Protocol, shots: int
) -> Personalisation:
    """Enrol every user of `dataset`, whose clips have `features` and labels as the embedder's head.

    Raises DataError for an embedder without a head, or where no user has words with so many clips."""
    if embedder.head is None:
        raise DataError("Personalisation starts from a classifier of the words: give an embedder that has its head.")
    require_speakers(dataset.take(np.isin(dataset.labels, protocol.words)))
    return Personalisation(learner, shots, tuple(_Trial(learner, embedder, dataset, features, protocol).run(shots)))


class _Trial:
    def __init__(
        self, learner: Learner, embedder: Embedder, dataset: ClipDataset, features, protocol: Protocol
    ) -> None:
        self.learner, self.embedder, self.protocol, self.features = learner, embedder, protocol, features
        self.labels, self.speakers = dataset.labels, dataset.speakers
        self.embeddings = embedder.embed(features)
        self.plain = Linear(embedder.head.kernel, embedder.head.bias)
        self.half = np.zeros(len(features), bool)
        self.rehearsing = {False: embedder, True: embedder}  # the embedder for users of each half
        if embedder.background is None:
            self.half = _halves(self.speakers, protocol.seed)
            for half in (False, True):
                others = self.half != half
                background = Background(features[others], self.labels[others])
                self.rehearsing[half] = embedder.with_background(background)

    def run(self, shots: int) -> Iterator[User]:
        p, found = self.protocol, 0
        for name in np.unique(self.speakers[self.speakers != ""]).tolist():
            own = [np.flatnonzero((self.speakers == name) & (self.labels == word)) for word in p.words]
            own = [clips for clips in own if len(clips) >= p.least]
            if own:
                found += 1
                yield self._user(name, own, shots)
        if not found:
            raise DataError(f"Nobody has {p.least} clips of one of the words. Ask for fewer.")

    def _user(self, name: str, words: Sequence[np.ndarray], shots: int) -> User:
        p = self.protocol
        mine = bool(self.half[words[0][0]])
        others = np.flatnonzero((self.half == mine) & (self.speakers != name) & ~np.isin(self.labels, p.words))
        accepts_before = np.mean(p.accepted(self.plain.scores(self.embeddings[others])) >= 0)
        rows, wrong = [], []
        for part in range(p.parts):
            tested = np.concatenate([clips[part :: p.parts] for clips in words])
            support = np.concatenate([np.setdiff1d(clips, clips[part :: p.parts])[:shots] for clips in words])
            if not len(tested):
                continue
            start = time.perf_counter()
            classifier, x, nbytes = self._enrol(support, mine, np.concatenate([tested, others]))
            seconds = time.perf_counter() - start
            taken = p.accepted(classifier.scores(x))
            plain = p.accepted(self.plain.scores(self.embeddings[tested]))
            answers = self.labels[tested]
            wrong += zip(plain != answers, taken[: len(tested)] != answers, strict=True)
            rows.append((len(support), np.mean(taken[len(tested) :] >= 0), seconds, nbytes))
        before, after = np.mean(wrong, 0)
        enrolled, accepts, seconds, nbytes = np.mean(rows, 0)
        return User(name, len(wrong), enrolled, before, after, accepts_before, accepts, seconds, nbytes)

    def _enrol(self, support: np.ndarray, half: bool, tested: np.ndarray) -> tuple[Classifier, np.ndarray, int]:
        """The classifier, embeddings of the tested clips, and bytes of what has changed."""
        embedder = self.rehearsing[half]
        labels = self.labels[support]
        if self.learner.keeps_embeddings:
            found = self.learner.classify(embedder, self.embeddings[support], labels, embedder.head.ways)
            return found, self.embeddings[tested], _nbytes(vars(found))
        spotter = self.learner.enrol(embedder, self.features[support], labels)
        new, old = spotter.embedder.weights, self.embedder.weights
        changed = {name: array for name, array in new.items() if not np.array_equal(array, old[name])}
        x = spotter.embedder.embed(self.features[tested])
        return spotter.classifier, x, _nbytes(changed) + _nbytes(vars(spotter.classifier))


def _halves(speakers: np.ndarray, seed: int) -> np.ndarray:
    """Which of two halves of the speakers each clip is of; where nobody speaks, of the clips: bool (n,)."""
    rng = np.random.default_rng([seed, _HALVES])
    names = rng.permutation(np.unique(speakers[speakers != ""]))
    nobody = rng.random(len(speakers)) < 0.5
    return np.where(speakers == "", nobody, np.isin(speakers, names[: len(names) // 2]))


def _nbytes(arrays: dict) -> int:
    return sum(array.nbytes for array in arrays.values() if isinstance(array, np.ndarray))


HEADER = (
    "",
    "users",
    "error before",
    "after",
    "cut",
    "worst tenth",
    "after",
    "were worst",
    "false accepts",
    "s",
    "bytes",
)


def to_table(found: Sequence[Personalisation], width: int = 120) -> str:
    """A line for each, errors and false accepts in percent."""
    lines = table(None, HEADER)
    for p in found:
        d = p.to_dict()
        percent = {name: f"{100 * d[name]:.2f}" for name in d if isinstance(d[name], float)}
        lines.add_row(
            f"{p.learner.name}, {p.shots}", str(d["users"]), percent["before"], percent["after"],
            f"{1 - d['after'] / max(d['before'], 1e-9):.0%}", percent["worst_before"], percent["worst_after"],
            percent["was_worst"], f"{percent['accepts_before']} → {percent['accepts_after']}", f"{d['seconds']:.2f}",
            f"{d['bytes']:,.0f}",
        )  # fmt: skip
    return render([lines], width)
