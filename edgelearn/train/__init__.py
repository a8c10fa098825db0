"""Training in Keras's words."""

from .callbacks import Callback, EarlyStopping, History, ProgressBar, TimeLimit
from .feature_cache import FeatureCache
from .loop import Position
from .model import Model
from .range_trace import RangeTrace, TraceRanges
from .reconstruction import WatchReconstruction
from .schedules import CosineDecay, ExponentialDecay, PiecewiseConstantDecay
from .sources import ArraySource, PictureSource, Source, Subset, VariedSource

__all__ = [
    "ArraySource", "Callback", "CosineDecay", "EarlyStopping", "ExponentialDecay", "FeatureCache", "History", "Model",
    "PictureSource", "PiecewiseConstantDecay", "Position", "ProgressBar", "RangeTrace", "Source", "Subset", "TimeLimit",
    "TraceRanges", "VariedSource", "WatchReconstruction",
]  # fmt: skip
