"""Long recordings with known words, their labels, and the evaluation of detections in them."""

from __future__ import annotations

import wave
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edgelearn import atomic
from edgelearn.data.audio import RATE, ClipDataset
from edgelearn.data.draws import synthetic_noises
from edgelearn.display import plural
from edgelearn.errors import DataError
from edgelearn.keywords.listener import REFRACTORY, Detection, Scores, Trigger

TOLERANCE = 0.75  # seconds after a word's end in which a detection counts


@dataclass(frozen=True)
class Occurrence:
    """A keyword spoken in a recording.

    Arguments:
    - `word`: the keyword.
    - `start`, `end`: seconds from the recording's start.
    """

    word: str
    start: float
    end: float


@dataclass(frozen=True)
class DetectionReport:
    """Hits and false alarms in a recording.

    Arguments:
    - `occurrences`: number of spoken keywords.
    - `delays`: seconds from the word's end, for each that was detected.
    - `false_alarms`: number of other detections, second ones of the same occurrence included.
    - `seconds`: length of the recording.
    """

    occurrences: int
    delays: tuple[float, ...]
    false_alarms: int
    seconds: float

    @property
    def hit_rate(self) -> float:
        """Share of the keywords that was detected; NaN if there were none."""
        return len(self.delays) / self.occurrences if self.occurrences else float("nan")

    @property
    def false_alarms_per_hour(self) -> float:
        return self.false_alarms * 3600 / self.seconds

    @property
    def delay(self) -> float:
        """Mean delay in seconds; NaN without hits."""
        return float(np.mean(self.delays)) if self.delays else float("nan")

    def __str__(self) -> str:
        return (
            f"{len(self.delays)} of {plural(self.occurrences, 'keyword')} detected, on average {self.delay:.2f} s "
            f"after their end; {plural(self.false_alarms, 'false alarm')} in {self.seconds / 60:.1f} minutes, "
            f"{self.false_alarms_per_hour:.1f} an hour"
        )


def evaluate_detections(
    detections: Sequence[Detection], timeline: Sequence[Occurrence], seconds: float, tolerance: float = TOLERANCE
) -> DetectionReport:
    """Compare detections with the spoken words.

    Arguments:
    - `detections`: detections in order of time.
    - `timeline`: the spoken keywords.
    - `seconds`: length of the recording.
    - `tolerance`: a detection is a hit from a word's start until `tolerance` seconds after its end (default 0.75), if
      the word is right and wasn't detected before; else it is a false alarm.
    """
    remaining, delays = list(timeline), []
    for detection in detections:
        for spoken in remaining:
            if spoken.word == detection.word and spoken.start <= detection.time <= spoken.end + tolerance:
                remaining.remove(spoken)
                delays.append(detection.time - spoken.end)
                break
    return DetectionReport(len(timeline), tuple(delays), len(detections) - len(delays), seconds)


def sweep(
    scores: Scores, words: Sequence[str], timeline: Sequence[Occurrence], seconds: float,
    thresholds: Sequence[float], refractory: float = REFRACTORY, tolerance: float = TOLERANCE,
) -> list[DetectionReport]:  # fmt: skip
    """A report for each of `thresholds`, from the scores of a recording: misses against false alarms."""
    return [
        evaluate_detections(Trigger(words, threshold, refractory).push(scores), timeline, seconds, tolerance)
        for threshold in thresholds
    ]


def write_labels(path: str | Path, timeline: Sequence[Occurrence]) -> None:
    """Write the spoken words to a text file. Raises RunError if it can't be written."""
    lines = [f"{spoken.start:.6f}\t{spoken.end:.6f}\t{spoken.word}\n" for spoken in timeline]
    atomic.write_bytes(path, "".join(lines).encode())


def read_labels(path: str | Path) -> list[Occurrence]:
    """Read the spoken words from a text file. Raises DataError for one that can't be read, or has other lines."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"The labels {path} can't be read: {error}. Give a text file.") from error
    timeline = []
    for number, line in enumerate(lines, start=1):
        try:
            start, end, word = line.split("\t")
            timeline.append(Occurrence(word, float(start), float(end)))
        except ValueError:
            raise DataError(
                f"Line {number} of {path} is not a start, an end (in seconds) and a word, with tabs between: {line!r}. "
                f"Write labels as Audacity does."
            ) from None
    return timeline


_STREAM = 37  # keeps this random stream of a seed apart from others
_FRAME = 0.01  # seconds
_HEADER, _SAMPLE, _LARGEST = 44, 2, 32767  # bytes of a WAV file's header and of a sample; the largest sample


class LongRecording:
    """Clips in random order, each after a pause, over continuous noise. One clip is in memory at a time.

    Arguments:
    - `dataset`: the clips.
    - `keywords`: words listed in `timeline`; other words are there to be ignored (default: all are keywords).
    - `seed`: draws order, pauses and synthetic noise; the same arguments make the same samples.
    - `pauses`: shortest and longest, in seconds (default 0.3 and 1.5).
    - `noises`: recordings (n,), concatenated and repeated (default: synthetic noises).
    - `level`: root mean square of the noise in decibels of full scale, at most 0 (default -45, quiet).
    - `rate`: samples a second.

    `timeline` lists the spoken keywords, `seconds` is the length. Raises DataError without clips, for a clip that can't
    be read, and for settings out of range.
    """

    def __init__(
        self, dataset: ClipDataset, keywords: Sequence[str] | None = None, seed: int = 0,
        pauses: tuple[float, float] = (0.3, 1.5), noises: Sequence[np.ndarray] | None = None, level: float = -45.0,
        rate: int = RATE,
    ) -> None:  # fmt: skip
        if not len(dataset) or not 0 <= pauses[0] <= pauses[1]:
            raise DataError(
                f"A long recording needs clips, and pauses from shorter to longer: got {len(dataset)} clips, {pauses}."
            )
        if not level <= 0 or seed < 0:
            raise DataError(f"level must be at most 0 decibels and seed at least 0; got {level} and {seed}.")
        self.dataset, self.rate = dataset, rate
        self.keywords = dataset.class_names if keywords is None else tuple(keywords)
        noise = np.concatenate(synthetic_noises(seed, rate=rate) if noises is None else list(noises))
        self._noise = (noise * 10 ** (level / 20) / max(1e-9, np.sqrt(np.mean(noise**2)))).astype(np.float32)
        rng = np.random.default_rng([seed, _STREAM])
        self._order = rng.permutation(len(dataset))
        self._pauses = np.round(rate * rng.uniform(*pauses, len(dataset) + 1)).astype(int)
        self.timeline, self.seconds = self._read_through()

    def __iter__(self) -> Iterator[np.ndarray]:
        """Pieces of the samples, float32 (n,) in -1..1: a pause and a clip each, and a last pause."""
        start = 0
        for clip, pause in zip((*self._order, None), self._pauses, strict=True):
            sound = np.empty(0, np.float32) if clip is None else self.dataset.clip(int(clip), self.rate)
            piece = np.take(self._noise, np.arange(start, start + pause + len(sound)), mode="wrap")
            piece[pause:] += sound
            start += len(piece)
            yield piece.clip(-1, 1)

    def write(self, path: str | Path) -> None:
        """Write a 16-bit WAV file atomically. Raises RunError if it can't be written; a previous file then stays."""
        size = _HEADER + _SAMPLE * round(self.seconds * self.rate)
        with atomic.replacing(path, size) as whole, wave.open(whole, "wb") as file:
            file.setparams((1, _SAMPLE, self.rate, 0, "NONE", ""))
            for piece in self:
                file.writeframes(np.round(piece * _LARGEST).astype("<i2").tobytes())

    def _read_through(self) -> tuple[list[Occurrence], float]:
        timeline, start = [], 0
        words = self.dataset.words
        for clip, pause in zip(self._order, self._pauses, strict=False):
            sound = self.dataset.clip(int(clip), self.rate)
            start += pause
            if words[clip] in self.keywords:
                first, last = speech_interval(sound, self.rate)
                at = float(start) / self.rate
                timeline.append(Occurrence(str(words[clip]), at + first, at + last))
            start += len(sound)
        return timeline, float(start + self._pauses[-1]) / self.rate


def speech_interval(clip: np.ndarray, rate: int = RATE) -> tuple[float, float]:
    """Start and end of the word in a clip, in seconds: the frames within 20 decibels of the loudest."""
    size = round(rate * _FRAME)
    frames = clip[: len(clip) // size * size].reshape(-1, size)
    energy = np.square(frames, dtype=np.float64).mean(1)
    loud = np.flatnonzero(energy >= energy.max() / 100)
    return int(loud[0]) * size / rate, int(loud[-1] + 1) * size / rate
