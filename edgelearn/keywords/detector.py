"""Streaming detection: scores of the clip that ends now, averaged over time, and a trigger.

After Chen et al. 2014, "Small-footprint keyword spotting using deep neural networks", section 2.3, who smooth the
posteriors of frames. Here networks score a whole clip at a time, so there are few scores a second to average.
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
    """A detected `word`. `time`: of the detection, in seconds from the start. `score`: the averaged known score."""

    word: str
    time: float
    score: float


@dataclass(frozen=True, eq=False)
class Scores:
    """Averaged scores of k clips.

    Arguments:
    - `times`: ends of the clips in seconds (k,).
    - `words`: scores of each word (k, num_classes).
    - `known`: known scores (k,).
    """

    times: np.ndarray
    words: np.ndarray
    known: np.ndarray

    @staticmethod
    def join(parts: Sequence[Scores], num_classes: int = 0) -> Scores:
        """Concatenate parts; without any, no scores of `num_classes` words."""
        if not parts:
            return Scores(np.empty(0), np.empty((0, num_classes), np.float32), np.empty(0, np.float32))
        return Scores(
            *(np.concatenate([getattr(part, name) for part in parts]) for name in ("times", "words", "known"))
        )


class ScoreStream:
    """Scores of a recording that comes in pieces, in bounded memory. They don't depend on where it is cut.

    Arguments:
    - `spotter`: scores clips.
    - `hop`: seconds from clip to clip, rounded to the front end's frames, at least one frame (default 0.1).
    - `smoothing`: seconds of clips that a score is averaged over (default 0.5).
    - `batch`: clips that are embedded together: 1 has the least delay (default), more take less time for each.

    `heard` is the embedding (d,) of the last clip that was scored, None before. Raises DataError for settings out of
    range.
    """

    def __init__(self, spotter: Spotter, hop: float = HOP, smoothing: float = SMOOTHING, batch: int = 1) -> None:
        if not (hop > 0 and smoothing >= 0 and batch >= 1):
            raise DataError(
                f"hop must be above 0, smoothing at least 0 and batch at least 1; got {hop}, {smoothing}, {batch}."
            )
        self.spotter, self.batch = spotter, batch
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
        self._first = 0  # number of the first frame held
        self._recent: deque = deque(maxlen=max(1, round(smoothing / (self._step * self._frame))))

    def push(self, samples: np.ndarray) -> Scores:
        """Scores of the clips completed by `samples`, float (n,) at the front end's rate."""
        return self._scores(self._stream.push(samples), self.batch)

    def finish(self) -> Scores:
        """Scores of the last clips. Raises ShapeError if less than a frame was heard."""
        return self._scores(self._stream.finish(), 1)

    def _scores(self, frames: np.ndarray, least: int) -> Scores:
        self._frames = np.concatenate([self._frames, frames])
        parts = [Scores.join([], self.spotter.num_classes)]
        while (count := (len(self._frames) - self._width) // self._step + 1) >= least:
            count = min(count, self.batch)
            starts = self._step * np.arange(count)
            clips = np.stack([self._frames[start : start + self._width] for start in starts])
            embeddings = self.spotter.embedder.embed(clips)
            self.heard = embeddings[-1]
            classifier = self.spotter.classifier
            times = (self._first + starts + self._width - 1) * self._frame + self._delay
            parts.append(self._smooth(times, classifier.scores(embeddings), classifier.known_score(embeddings)))
            self._frames = self._frames[count * self._step :]
            self._first += count * self._step
        return Scores.join(parts)

    def _smooth(self, times: np.ndarray, words: np.ndarray, known: np.ndarray) -> Scores:
        means = []
        for row in np.column_stack([words, known]):
            self._recent.append(row)
            means.append(np.mean(self._recent, axis=0))
        means = np.stack(means)
        return Scores(times, means[:, :-1], means[:, -1])


class Trigger:
    """Detects the word with the highest score when the known score reaches a threshold.

    Arguments:
    - `words`: names, in the order of the scores.
    - `threshold`: least known score of a detection.
    - `refractory`: seconds without detections after one, since the next clips contain the same word (default 1).

    Raises DataError for NaN, or a negative time.
    """

    def __init__(self, words: Sequence[str], threshold: float, refractory: float = REFRACTORY) -> None:
        if np.isnan(threshold) or not refractory >= 0:
            raise DataError(
                f"threshold must be a number and refractory at least 0 seconds, not {threshold} and {refractory}."
            )
        self.words, self.threshold, self.refractory = tuple(words), threshold, refractory
        self.reset()

    def reset(self) -> None:
        """Begin a new recording."""
        self._silent_until = -np.inf

    def push(self, scores: Scores) -> list[Detection]:
        """Detections in the next scores."""
        detections = []
        for time, words, known in zip(scores.times.tolist(), scores.words, scores.known.tolist(), strict=True):
            if known >= self.threshold and time >= self._silent_until:
                detections.append(Detection(self.words[int(words.argmax())], time, known))
                self._silent_until = time + self.refractory
        return detections
