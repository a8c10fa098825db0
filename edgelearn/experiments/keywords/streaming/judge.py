"""Detections beside what was really said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edgelearn.keywords.detector import REFRACTORY, Detection, Scores, Trigger

TOLERANCE = 0.75  # seconds after a word in which it may be told


@dataclass(frozen=True)
class Occurrence:
    """A keyword was said from `start` to `end`, in seconds."""

    word: str
    start: float
    end: float


@dataclass(frozen=True)
class Judgement:
    """occurrences: keywords that were said. delays: of those that were told, seconds from the word's end. false_alarms:
    detections of what wasn't said, or said twice. seconds: of the recording."""

    occurrences: int
    delays: tuple[float, ...]
    false_alarms: int
    seconds: float

    @property
    def hit_rate(self) -> float:
        """The share of keywords that was told; NaN where there was none."""
        return len(self.delays) / self.occurrences if self.occurrences else float("nan")

    @property
    def false_alarms_per_hour(self) -> float:
        return self.false_alarms * 3600 / self.seconds

    @property
    def delay(self) -> float:
        """The mean, in seconds; NaN where nothing was told."""
        return float(np.mean(self.delays)) if self.delays else float("nan")

    def __str__(self) -> str:
        minutes = self.seconds / 60
        return (
            f"{len(self.delays)} of {self.occurrences} keywords told, on average {self.delay:.2f} s after their end; "
            f"{self.false_alarms} false alarms in {minutes:.1f} minutes, {self.false_alarms_per_hour:.1f} an hour"
        )


def judge(
    detections: Sequence[Detection], timeline: Sequence[Occurrence], seconds: float, tolerance: float = TOLERANCE
) -> Judgement:
    """A detection of the right word between its beginning and `tolerance` seconds after its end is a hit, once; any
    other is a false alarm, also of another word at that moment."""
    open_, delays = list(timeline), []
    for detection in detections:
        fitting = [
            o for o in open_ if o.word == detection.word and o.start <= detection.time <= o.end + tolerance
        ]  # fmt: skip
        if fitting:
            open_.remove(fitting[0])
            delays.append(detection.time - fitting[0].end)
    return Judgement(len(timeline), tuple(delays), len(detections) - len(delays), seconds)


def sweep(
    scores: Scores, words: Sequence[str], timeline: Sequence[Occurrence], seconds: float,
    thresholds: Sequence[float], refractory: float = REFRACTORY, tolerance: float = TOLERANCE,
) -> list[Judgement]:  # fmt: skip
    """What each threshold would come to, from the scores of a recording: misses against false alarms."""
    found = []
    for threshold in thresholds:
        told = Trigger(words, threshold, refractory).push(scores)
        found.append(judge(told, timeline, seconds, tolerance))
    return found
