"""Evaluation of detections against the words that were spoken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edgelearn.keywords.detector import REFRACTORY, Detection, Scores, Trigger

TOLERANCE = 0.75  # seconds after a word's end in which a detection counts


@dataclass(frozen=True)
class Occurrence:
    """A keyword spoken in a recording.

    Arguments:
    - `word`: the keyword.
    - `start`, `end`: in seconds from the recording's start.
    """

    word: str
    start: float
    end: float


@dataclass(frozen=True)
class DetectionReport:
    """Hits and false alarms in a recording.

    Arguments:
    - `occurrences`: number of spoken keywords.
    - `delays`: for each that was detected, seconds from the word's end.
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
            f"{len(self.delays)} of {self.occurrences} keywords detected, on average {self.delay:.2f} s after their "
            f"end; {self.false_alarms} false alarms in {self.seconds / 60:.1f} minutes, "
            f"{self.false_alarms_per_hour:.1f} an hour"
        )


def evaluate_detections(
    detections: Sequence[Detection], timeline: Sequence[Occurrence], seconds: float, tolerance: float = TOLERANCE
) -> DetectionReport:
    """Compare detections with the spoken words.

    Arguments:
    - `detections`: in order of time.
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
