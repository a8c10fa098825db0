"""Training in Keras's words."""

from edgelearn.runtime import FeatureCache

from .adaptation import Adaptation
from .callbacks import (
    Callback,
    CSVLogger,
    EarlyStopping,
    History,
    LambdaCallback,
    LearningRateScheduler,
    ModelCheckpoint,
    Monitor,
    ProgressBar,
    ReduceLROnPlateau,
    SwapEMAWeights,
    TensorBoard,
    TimeLimit,
    WatchReconstruction,
)  # fmt: skip
from .loading import from_torch, load, load_published
from .model import Model
from .range_trace import RangeTrace, TraceRanges
from .replay import Replay
from .schedules import (
    CosineDecay,
    CosineDecayRestarts,
    ExponentialDecay,
    InverseTimeDecay,
    PiecewiseConstantDecay,
    PolynomialDecay,
)
from .sources import MixedSource, PictureSource, Source, Subset, VariedSource
from .state import Position, TrainedModel
from .trainer import Trainer

__all__ = [
    "Adaptation", "CSVLogger", "Callback", "CosineDecay", "CosineDecayRestarts", "EarlyStopping", "ExponentialDecay",
    "FeatureCache", "History", "InverseTimeDecay", "LambdaCallback", "LearningRateScheduler", "MixedSource", "Model",
    "ModelCheckpoint", "Monitor", "PictureSource", "PiecewiseConstantDecay", "PolynomialDecay", "Position",
    "ProgressBar", "RangeTrace", "ReduceLROnPlateau", "Replay", "Source", "Subset", "SwapEMAWeights", "TensorBoard",
    "TimeLimit", "TraceRanges", "TrainedModel", "Trainer", "VariedSource", "WatchReconstruction", "from_torch", "load",
    "load_published",
]  # fmt: skip
