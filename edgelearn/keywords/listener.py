"""Keyword spotting in continuous sound: scores of the clip that ends now, averaged over time, a trigger, a listener.

After Chen et al. 2014, "Small-footprint keyword spotting using deep neural networks", section 2.3, who smooth the
posteriors of frames. Here networks score a whole clip at a time, so there are few scores a second to average.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np

from edgelearn.data import audio
from edgelearn.data.features import MFCC, FeatureStream
from edgelearn.errors import DataError

from .learners import Embedder, Learner, Spotter
from .vocabulary import OtherWords, Vocabulary, threshold_for

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

    `clip` are the features (frames, bands) and `heard` the embedding (d,) of the last clip that was scored, or None.
    Raises DataError for settings out of range.
    """

    def __init__(self, spotter: Spotter, hop: float = HOP, smoothing: float = SMOOTHING, batch: int = 1) -> None:
        if not (hop > 0 and smoothing >= 0 and batch >= 1):
            raise DataError(
                f"hop must be above 0, smoothing at least 0 and batch at least 1; got {hop}, {smoothing}, {batch}."
            )
        self.spotter, self.batch = spotter, batch
        self.clip: np.ndarray | None = None
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
            self.clip, self.heard = clips[-1], embeddings[-1]
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


def threshold_per_hour(scores: Scores, seconds: float, per_hour: float, refractory: float = REFRACTORY) -> float:
    """The lowest threshold that makes at most so many detections an hour, in sound without any of the words.

    Arguments:
    - `scores`: of the whole sound.
    - `seconds`: its length. In less than an hour divided by `per_hour` no detection at all is allowed.
    - `per_hour`: detections an hour, at least 0.
    - `refractory`: of the trigger (default 1).

    Raises DataError without scores, or for another number an hour.
    """
    if not per_hour >= 0:
        raise DataError(f"False accepts an hour are a number of at least 0, not {per_hour}.")
    if not len(scores.known):
        raise DataError("A threshold needs scores of some sound: give a longer recording.")
    allowed, known = int(per_hour * seconds / 3600 + 1e-9), np.unique(scores.known)
    words = [""] * scores.words.shape[1]
    low, high = 0, len(known)  # scores below `low` make too many detections; from `high` on they don't
    while low < high:
        middle = (low + high) // 2
        if len(Trigger(words, float(known[middle]), refractory).push(scores)) <= allowed:
            high = middle
        else:
            low = middle + 1
    return float(np.nextafter(np.float32(known[high - 1]), np.float32(np.inf))) if high else float(known[0])


Heard = TypeVar("Heard")


class Hearing(ABC, Generic[Heard]):
    """Hears a recording and says what is in it: samples that the application pushes, blocks, a file, or the microphone.

    Attributes: `spotter`, what was learned.
    """

    spotter: Spotter
    _file_batch = 1  # clips of a file that are embedded together

    @abstractmethod
    def reset(self, batch: int = 1) -> None:
        """Begin a new recording. `batch`: clips that are embedded together; 1 answers soonest (default)."""

    @abstractmethod
    def push(self, samples: np.ndarray) -> list[Heard]:
        """Hear float `samples` (n,) at the front end's rate. Returns what is new."""

    def finish(self) -> list[Heard]:
        """End the recording. Returns the last of it."""
        return []

    def listen(self, blocks: Iterable[np.ndarray], batch: int = 1) -> Iterator[Heard]:
        """Results in a recording that comes in `blocks`, float (n,) each. Raises DataError as `finish`."""
        self.reset(batch)
        for block in blocks:
            yield from self.push(block)
        yield from self.finish()

    def listen_to_file(self, path: str | Path) -> Iterator[Heard]:
        """Results in a WAV, FLAC or OGG file of any length. Raises DataError for a file that can't be read."""
        with closing(audio.file_blocks(path, self._rate)) as blocks:
            yield from self.listen(blocks, self._file_batch)

    def listen_to_microphone(self, name: str | None = None) -> Iterator[Heard]:
        """Results at the microphone, until the caller stops iterating.

        `name`: part of a sound device's name (default: the system's choice). Raises DataError if there is no
        microphone, or the package sounddevice is missing.
        """
        with closing(audio.microphone_blocks(self._rate, name)) as blocks:
            yield from self.listen(blocks)

    @property
    def _rate(self) -> int:
        return self.spotter.embedder.front_end.rate


class Listener(Hearing[Detection]):
    """Detects the words of a vocabulary in a file, at the microphone, or in samples that the application pushes.

    >>> listener = Listener(load_embedder("network.safetensors"), Vocabulary.load("my-words"), threshold=0.8)
    >>> for detection in listener.listen_to_microphone():
    ...     print(f"{detection.time:.1f} s  {detection.word}")

    Every `hop` seconds the clip that ends now is scored, scores are averaged over `smoothing` seconds, and a word is
    detected once when the known score reaches the threshold (see `ScoreStream` and `Trigger`).

    Arguments:
    - `embedder`: the network.
    - `vocabulary`: the words; it holds features of the same front end as the embedder's.
    - `learner`: how words are learned (default: nearest mean by cosine).
    - `threshold`: least known score of a detection; default: the lowest that accepts at most `false_accepts` of
      `others`. It may be changed at any time, and `calibrate` sets it by a recording of the surroundings.
    - `others`: clips of other words; those of enrolled words are left out.
    - `false_accepts`: share from 0 to 1 (default 0.01).
    - `hop`, `smoothing`, `refractory`: seconds between scores, averaged over, and without detections after one (default
      0.1, 0.5 and 1).

    Attributes: `spotter`, what was learned; `other_scores` (n,), known scores of `others`; `seconds` of sound heard;
    `scores` of the last piece of sound; `heard` (d,), the embedding of the last clip that was scored, or None.

    Raises DataError for an empty vocabulary, one with features of another front end, settings out of range, and where
    both `threshold` and `others` are missing.
    """

    _file_batch = 8  # for speed

    def __init__(
        self, embedder: Embedder, vocabulary: Vocabulary, learner: Learner | None = None,
        threshold: float | None = None, others: OtherWords | None = None, false_accepts: float = 0.01,
        hop: float = HOP, smoothing: float = SMOOTHING, refractory: float = REFRACTORY,
    ) -> None:  # fmt: skip
        self.vocabulary = vocabulary
        self.spotter = vocabulary.enrol(embedder, learner)
        features = np.empty(0) if others is None else others.outside(vocabulary)
        self.other_scores = self.spotter.known_score(features) if len(features) else np.empty(0, np.float32)
        if threshold is None:
            threshold = threshold_for(self.other_scores, false_accepts)
        self._times = hop, smoothing
        self._trigger = Trigger(vocabulary.words, threshold, refractory)
        self.reset()

    def calibrate(self, recordings: Iterable[Iterable[np.ndarray]], per_hour: float = 1.0) -> float:
        """Set the threshold by the sounds that the listener will live with, and begin a new recording. Returns the
        seconds heard.

        Arguments:
        - `recordings`: of these surroundings, without any of the words; blocks of each, float (n,).
        - `per_hour`: false accepts an hour in them, at least 0 (default 1). The threshold is the lowest with no more.

        Raises DataError for a recording that is shorter than a clip, and without recordings.
        """
        parts, seconds = [], 0.0
        for blocks in recordings:
            self.reset(self._file_batch)
            found = []
            for block in blocks:
                self.push(block)
                found.append(self.scores)
            self.finish()
            whole = Scores.join([*found, self.scores])
            parts.append(Scores(whole.times + seconds, whole.words, whole.known))
            seconds += self.seconds
        scores = Scores.join(parts, self.spotter.num_classes)
        self.threshold = threshold_per_hour(scores, seconds, per_hour, self._trigger.refractory)
        self.reset()
        return seconds

    def calibrate_by_files(self, paths: Iterable[str | Path], per_hour: float = 1.0) -> float:
        """As `calibrate`, with WAV, FLAC or OGG files of any length. Raises DataError for one that can't be read."""
        return self.calibrate((audio.file_blocks(path, self._rate) for path in paths), per_hour)

    @property
    def threshold(self) -> float:
        return self._trigger.threshold

    @threshold.setter
    def threshold(self, value: float) -> None:
        self._trigger.threshold = value

    @property
    def heard(self) -> np.ndarray | None:
        return self._stream.heard

    @property
    def seconds(self) -> float:
        return self._samples / self._rate

    def reset(self, batch: int = 1) -> None:
        """Begin a new recording. `batch`: clips that are embedded together; 1 detects soonest (default)."""
        self._stream = ScoreStream(self.spotter, *self._times, batch)
        self._trigger.reset()
        self._samples = 0
        self.scores = Scores.join([], self.spotter.num_classes)

    def push(self, samples: np.ndarray) -> list[Detection]:
        """Hear float `samples` (n,) at the front end's rate. Returns the new detections."""
        self._samples += len(samples)
        self.scores = self._stream.push(samples)
        return self._trigger.push(self.scores)

    def finish(self) -> list[Detection]:
        """End the recording. Returns the last detections. Raises DataError if it was shorter than one clip."""
        needed = self.spotter.embedder.seconds
        if self.seconds < needed:
            raise DataError(
                f"{self.seconds:.2f} s were heard, too short for a score, which needs {needed:g} s. Give a longer "
                f"recording, or listen longer."
            )
        self.scores = self._stream.finish()
        return self._trigger.push(self.scores)
