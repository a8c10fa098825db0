"""Callbacks, with Keras's names."""

from .base import Callback, History
from .early_stopping import EarlyStopping
from .progress import ProgressBar
from .time_limit import TimeLimit

__all__ = ["Callback", "EarlyStopping", "History", "ProgressBar", "TimeLimit"]
