"""Words in sound that goes on: a detector in bounded memory, long recordings to try it on, and what it is judged by."""

from edgelearn.keywords.detector import Detection, Detector, Scores, ScoreStream, Trigger

from .judge import Judgement, Occurrence, judge, sweep
from .labels import read_labels, write_labels
from .recording import LongRecording

__all__ = [
    "Detection", "Detector", "Judgement", "LongRecording", "Occurrence", "ScoreStream", "Scores", "Trigger", "judge",
    "read_labels", "sweep", "write_labels",
]  # fmt: skip
