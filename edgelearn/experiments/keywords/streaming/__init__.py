"""Long recordings with known words, and the evaluation of detections in them."""

from .evaluation import DetectionReport, Occurrence, evaluate_detections, sweep
from .labels import read_labels, write_labels
from .recording import LongRecording

__all__ = [
    "DetectionReport", "LongRecording", "Occurrence", "evaluate_detections", "read_labels", "sweep", "write_labels",
]  # fmt: skip
