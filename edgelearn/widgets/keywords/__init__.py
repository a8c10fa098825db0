"""Keywords in a notebook: record or upload clips, enrol words, set the threshold, listen."""

from .enrolment import Enrolment
from .microphone import Microphone
from .plots import plot_det, plot_embeddings, plot_stream
from .view import KeywordsView

__all__ = ["Enrolment", "KeywordsView", "Microphone", "plot_det", "plot_embeddings", "plot_stream"]
