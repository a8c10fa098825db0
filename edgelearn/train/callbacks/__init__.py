"""Callbacks, with Keras's names."""

from .averages import SwapEMAWeights
from .base import Callback, History, LambdaCallback
from .checkpoint import ModelCheckpoint
from .early_stopping import EarlyStopping
from .learning_rate import LearningRateScheduler, ReduceLROnPlateau
from .loggers import CSVLogger, TensorBoard
from .monitor import Monitor
from .progress import ProgressBar
from .time_limit import TimeLimit

__all__ = [
    "CSVLogger", "Callback", "EarlyStopping", "History", "LambdaCallback", "LearningRateScheduler", "ModelCheckpoint",
    "Monitor", "ProgressBar", "ReduceLROnPlateau", "SwapEMAWeights", "TensorBoard", "TimeLimit",
]  # fmt: skip
