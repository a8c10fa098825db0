"""Training in Keras's words."""

from edgelearn.runtime import FeatureCache

from .callbacks import Callback, EarlyStopping, History, ProgressBar, TimeLimit
from .files import from_torch, load
from .model import Model
from .range_trace import RangeTrace, TraceRanges
from .reconstruction import WatchReconstruction
from .schedules import CosineDecay, ExponentialDecay, PiecewiseConstantDecay
from .sources import PictureSource, Source, Subset, VariedSource
from .status import Position, TrainedModel
from .trainer import Trainer

__all__ = [
    "Callback", "CosineDecay", "EarlyStopping", "ExponentialDecay", "FeatureCache", "History", "Model", "PictureSource",
    "PiecewiseConstantDecay", "Position", "ProgressBar", "RangeTrace", "Source", "Subset", "TimeLimit", "TraceRanges",
    "TrainedModel", "Trainer", "VariedSource", "WatchReconstruction", "from_torch", "load",
]  # fmt: skip
