"""Enrolling words in a notebook: record or upload clips, see where they lie, hear them found, set the threshold."""

from .enrolment import Enrolment
from .microphone import Microphone
from .plots import plot_det, plot_embeddings, plot_stream
from .view import KeywordsView

__all__ = ["Enrolment", "KeywordsView", "Microphone", "plot_det", "plot_embeddings", "plot_stream"]
