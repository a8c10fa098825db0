"""A spotter that listens: the clip that ends now is scored every hop, scores are averaged over a moment, and a word is
told once when they reach a threshold.

As Chen et al. 2014, "Small-footprint keyword spotting using deep neural networks", section 2.3, do with posteriors of
frames. Here networks hear a whole clip at a time, so there are few scores a second to average.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edgelearn.data.audio.features import MFCC
from edgelearn.data.audio.stream import FeatureStream
from edgelearn.errors import DataError

from .learners import Spotter

HOP, SMOOTHING, REFRACTORY = 0.1, 0.5, 1.0  # seconds


@dataclass(frozen=True)
class Detection:
    """word: which one. time: seconds from the beginning until it was told. score: how sure that it was a known word."""

    word: str
    time: float
    score: float


@dataclass(frozen=True, eq=False)
class Scores:
    """Averaged scores of k clips, `times` (k,) their ends in seconds: of each word (k, ways), and of any (k,)."""

    times: np.ndarray
    words: np.ndarray
    known: np.ndarray

    @staticmethod
    def join(parts: Sequence[Scores]) -> Scores:
        """One after the other."""
        return Scores(
            *(np.concatenate([getattr(part, name) for part in parts]) for name in ("times", "words", "known"))
        )


class ScoreStream:
    """The scores of a recording that comes in pieces; the same wherever it was cut.

    hop: seconds from clip to clip, to the nearest number of the front end's frames, at least one. smoothing: seconds of
    clips that a score is the mean of. at_once: clips that are embedded together: 1 tells soonest, more take less time
    for each.

    Held are the frames of the clips that come, the scores of a moment, and as `heard` the embedding (d,) of the last
    clip, None before. Raises DataError for times that can't be.
    """

    def __init__(self, spotter: Spotter, hop: float = HOP, smoothing: float = SMOOTHING, at_once: int = 1) -> None:
        if not (hop > 0 and smoothing >= 0 and at_once >= 1):
            raise DataError(
                f"hop is above 0, smoothing at least 0, at_once at least 1; got {hop}, {smoothing}, {at_once}."
            )
        self.spotter, self.at_once = spotter, at_once
        self.heard: np.ndarray | None = None
        front_end = spotter.embedder.front_end
        settings = front_end.log_mel if isinstance(front_end, MFCC) else front_end
        samples = round(settings.rate * spotter.embedder.seconds)
        self._width = front_end.shape(samples)[0]
        self._frame = settings.hop / settings.rate
        self._delay = (settings.window // 2 if settings.centred else settings.window) / settings.rate
        self._step = max(1, round(hop / self._frame))
        self._stream = FeatureStream(front_end)
        self._frames = np.empty((0, front_end.shape(samples)[1]), np.float32)
        self._first = 0  # the number of the first frame held
        self._recent: deque = deque(maxlen=max(1, round(smoothing / (self._step * self._frame))))

    def push(self, samples: np.ndarray) -> Scores:
        """The scores of the clips that `samples` float (n,), at the front end's rate, complete."""
        return self._scores(self._stream.push(samples), self.at_once)

    def finish(self) -> Scores:
        """Those of the clips that see the end. Raises ShapeError when nothing, or hardly anything, was heard."""
        return self._scores(self._stream.finish(), 1)

    def _scores(self, frames: np.ndarray, group: int) -> Scores:
        self._frames = np.concatenate([self._frames, frames])
        found = [Scores(np.empty(0), np.empty((0, self.spotter.ways), np.float32), np.empty(0, np.float32))]
        while (count := (len(self._frames) - self._width) // self._step + 1) >= group:
            count = min(count, self.at_once)
            starts = self._step * np.arange(count)
            clips = np.stack([self._frames[start : start + self._width] for start in starts])
            embeddings = self.spotter.embedder.embed(clips)
            self.heard = embeddings[-1]
            classifier = self.spotter.classifier
            times = (self._first + starts + self._width - 1) * self._frame + self._delay
            found.append(self._smooth(times, classifier.scores(embeddings), classifier.knownness(embeddings)))
            self._frames = self._frames[count * self._step :]
            self._first += count * self._step
        return Scores.join(found)

    def _smooth(self, times: np.ndarray, words: np.ndarray, known: np.ndarray) -> Scores:
        means = []
        for row in np.column_stack([words, known]):
            self._recent.append(row)
            means.append(np.mean(self._recent, axis=0))
        means = np.stack(means)
        return Scores(times, means[:, :-1], means[:, -1])


class Trigger:
    """Tells the word with the highest score when the score that a word is known reaches `threshold`; then nothing for
    `refractory` seconds, since the clips that follow hear the same word. Raises DataError for settings that can't
    be."""

    def __init__(self, words: Sequence[str], threshold: float, refractory: float = REFRACTORY) -> None:
        if np.isnan(threshold) or not refractory >= 0:
            raise DataError(
                f"A threshold is a number and refractory at least 0 seconds, not {threshold} and {refractory}."
            )
        self.words, self.threshold, self.refractory = tuple(words), threshold, refractory
        self._silent_until = -np.inf

    def push(self, scores: Scores) -> list[Detection]:
        found = []
        for time, words, known in zip(scores.times.tolist(), scores.words, scores.known.tolist(), strict=True):
            if known >= self.threshold and time >= self._silent_until:
                found.append(Detection(self.words[int(words.argmax())], time, known))
                self._silent_until = time + self.refractory
        return found


class Detector:
    """A ScoreStream and a Trigger: pieces of sound in, detections out.

    Raises DataError when there is not a word for each that the spotter knows.
    """

    def __init__(
        self, spotter: Spotter, words: Sequence[str], threshold: float, hop: float = HOP, smoothing: float = SMOOTHING,
        refractory: float = REFRACTORY, at_once: int = 1,
    ) -> None:  # fmt: skip
        if len(words) != spotter.ways:
            raise DataError(f"The spotter knows {spotter.ways} words, but {len(words)} names were given.")
        self.scores = ScoreStream(spotter, hop, smoothing, at_once)
        self.trigger = Trigger(words, threshold, refractory)

    def push(self, samples: np.ndarray) -> list[Detection]:
        """What is told once `samples` float (n,) have been heard."""
        return self.trigger.push(self.scores.push(samples))

    def finish(self) -> list[Detection]:
        """What is told at the end."""
        return self.trigger.push(self.scores.finish())
