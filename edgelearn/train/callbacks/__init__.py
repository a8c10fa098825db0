"""Callbacks, with Keras's names."""

from .base import Callback, CallbackList, History
from .early_stopping import EarlyStopping
from .progress import ProgressBar, with_progress
from .time_limit import TimeLimit

__all__ = ["Callback", "CallbackList", "EarlyStopping", "History", "ProgressBar", "TimeLimit", "with_progress"]
