"""Who is speaking: speakers enrolled from a few seconds each, told apart window by window, and corrected.

Speakers are enrolled in a `Vocabulary` like words, by windows of a second, for an embedder that was trained to tell
speakers apart (`files.speaker_embedder`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgelearn.errors import DataError

from .learners import Classifier, Embedder, Learner, Spotter, unit
from .listener import Hearing, ScoreStream
from .vocabulary import Vocabulary

HOP = 0.5  # seconds


def windows(samples: np.ndarray, embedder: Embedder, hop: float = HOP) -> np.ndarray:
    """Features (n, frames, bands) of the windows of a recording, to enrol its speaker with.

    Arguments:
    - `samples`: float (n,) at the front end's rate.
    - `embedder`: its `seconds` are the length of a window.
    - `hop`: seconds from window to window (default 0.5).

    Raises DataError for a recording that is shorter than a window.
    """
    rate = embedder.front_end.rate
    size, step = round(rate * embedder.seconds), max(1, round(rate * hop))
    if len(samples) < size:
        raise DataError(
            f"A speaker needs {embedder.seconds:g} s of speech or more, and this recording has "
            f"{len(samples) / rate:.2f} s. Record about ten seconds."
        )
    return embedder.features(np.lib.stride_tricks.sliding_window_view(samples, size)[::step])


@dataclass(frozen=True, eq=False)
class Windows(Classifier):
    """Scores a speaker by the mean cosine to the `nearest` windows among the speaker's. `windows`: unit vectors (n, d).
    `labels`: their speakers (n,)."""

    windows: np.ndarray
    labels: np.ndarray
    nearest: int

    @property
    def num_classes(self):
        return int(self.labels.max()) + 1

    def scores(self, embeddings):
        cosines = unit(np.asarray(embeddings)) @ self.windows.T
        best = [np.sort(cosines[:, self.labels == k], 1)[:, -self.nearest :].mean(1) for k in range(self.num_classes)]
        return np.stack(best, 1).astype(np.float32)


@dataclass(frozen=True)
class NearestWindows(Learner):
    """A speaker is all of its windows: one that was learned counts at once for windows like it, where a mean would
    hardly move (k nearest neighbours: Cover and Hart 1967, "Nearest neighbor pattern classification").

    Arguments:
    - `nearest`: windows of a speaker that count (default 3).
    """

    name = "nearest-windows"
    nearest: int = 3

    def classify(self, embedder, embeddings, labels, num_classes, unlabelled=None, seed=0):
        return Windows(unit(embeddings), np.asarray(labels), self.nearest)


@dataclass(frozen=True, eq=False)
class Whitened(Classifier):
    """Scores a speaker, in coordinates that `whitening` (d, d) makes of unit vectors, by the nearest of its windows and
    by a linear discriminant of the means (speakers, d). How well a window is known is said by `plain` windows, those of
    the speaker named."""

    plain: Windows
    whitening: np.ndarray
    windows: Windows
    means: np.ndarray

    @property
    def num_classes(self):
        return len(self.means)

    def scores(self, embeddings):
        points = unit(np.asarray(embeddings)) @ self.whitening
        linear = points @ self.means.T - np.square(self.means).sum(1) / 2
        return (self.windows.scores(points) + linear).astype(np.float32)

    def known_score(self, embeddings):
        named = self.scores(embeddings).argmax(1)
        return self.plain.scores(embeddings)[np.arange(len(named)), named]


@dataclass(frozen=True)
class WhitenedWindows(Learner):
    """A speaker is all of its windows, and their mean, where directions in which windows of one speaker differ count
    less (within-class covariance normalization: Hatch et al. 2006; regularized discriminant analysis: Friedman 1989).
    How well a window is known is what `NearestWindows` say of the speaker named.

    Arguments:
    - `nearest`: windows of a speaker that count (default 3).
    - `shrinkage`: of the covariance within speakers towards that of a sphere, above 0 and at most 1 (default 0.5).

    Raises DataError for another shrinkage.
    """

    name = "whitened-windows"
    nearest: int = 3
    shrinkage: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.shrinkage <= 1:
            raise DataError(f"The shrinkage of a covariance is above 0 and at most 1, not {self.shrinkage!r}.")

    def classify(self, embedder, embeddings, labels, num_classes, unlabelled=None, seed=0):
        points, labels = unit(np.asarray(embeddings, np.float64)), np.asarray(labels)
        means = np.stack([points[labels == k].mean(0) for k in range(num_classes)])
        within, size = points - means[labels], points.shape[1]
        covariance = within.T @ within / len(points)
        spread = np.trace(covariance) / size or 1.0  # 0 where each speaker has one window
        values, vectors = np.linalg.eigh((1 - self.shrinkage) * covariance + self.shrinkage * spread * np.eye(size))
        whitening = (vectors * np.sqrt(spread / values)) @ vectors.T
        windows = Windows(unit(points @ whitening), labels, self.nearest)
        return Whitened(Windows(points, labels, self.nearest), whitening, windows, means @ whitening)


@dataclass(frozen=True)
class SpokenWindow:
    """A window of speech.

    Arguments:
    - `time`: its end, in seconds from the start.
    - `speaker`: who speaks; "" if nobody who is enrolled.
    - `score`: how well it is known: by default the mean cosine to the nearest windows of the speaker.
    """

    time: float
    speaker: str
    score: float


class SpeakerListener(Hearing[SpokenWindow]):
    """Says who speaks, in a file, at the microphone, or in samples that the application pushes.

    >>> speakers = Vocabulary.empty(embedder := speaker_embedder())
    >>> speakers = speakers.add("Ada", windows(ten_seconds, embedder))
    >>> listener = SpeakerListener(embedder, speakers)
    >>> for window in listener.listen_to_microphone():
    ...     print(f"{window.time:.1f} s  {window.speaker}")

    Arguments:
    - `embedder`: tells speakers apart.
    - `speakers`: a vocabulary of them, with features of the same front end as the embedder's.
    - `learner`: how speakers are learned; it keeps embeddings as they are (default: `WhitenedWindows`).
    - `hop`: seconds between windows (default 0.5).
    - `threshold`: least score of a speaker; windows below are nobody's (default: none).

    Attributes: `speakers`, with the windows that were learned, to be saved.

    Raises DataError for no speakers, or those of another front end.
    """

    def __init__(
        self, embedder: Embedder, speakers: Vocabulary, learner: Learner | None = None, hop: float = HOP,
        threshold: float = -np.inf,
    ) -> None:  # fmt: skip
        self.speakers, self.threshold, self._hop = speakers, threshold, hop
        self._learner = learner or WhitenedWindows()
        self.spotter = speakers.enrol(embedder, self._learner)
        self._embeddings = embedder.embed(speakers.features)
        self.reset()

    def reset(self, batch: int = 1) -> None:
        """Begin a new recording. `batch`: windows that are embedded together; 1 answers soonest (default)."""
        self._stream = ScoreStream(self.spotter, self._hop, 0, batch)

    def push(self, samples: np.ndarray) -> list[SpokenWindow]:
        """Hear float `samples` (n,) at the front end's rate. Returns the windows that they complete."""
        scores = self._stream.push(samples)
        return [
            SpokenWindow(time, self.speakers.words[int(row.argmax())] if known >= self.threshold else "", known)
            for time, row, known in zip(scores.times.tolist(), scores.words, scores.known.tolist(), strict=True)
        ]

    def learn(self, speaker: str) -> None:
        """Learn that `speaker`, enrolled or new, spoke in the last window: a correction, or a confirmation. It counts
        from the next window on.

        Raises DataError if nothing was heard yet, or this window was learned before.
        """
        clip, heard = self._stream.clip, self._stream.heard
        if clip is None or heard is None:
            raise DataError("No window has been heard yet: name a speaker after the first one.")
        self.speakers = self.speakers.add(speaker, clip[None])
        self._embeddings = np.concatenate([self._embeddings, heard[None]])
        embedder = self.spotter.embedder
        classifier = self._learner.classify(embedder, self._embeddings, self.speakers.labels, len(self.speakers.words))
        self.spotter = self._stream.spotter = Spotter(embedder, classifier)
