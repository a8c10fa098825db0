"""Keywords of a user's own: learners, vocabularies and detectors that applications call."""

from .detector import Detection, Detector, Scores, ScoreStream, Trigger

__all__ = ["Detection", "Detector", "ScoreStream", "Scores", "Trigger"]
