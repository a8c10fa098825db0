"""Learners: methods to learn words from few clips, a file each, with one interface (base.py)."""

from .base import Learner, Spotter
from .classifiers import Classifier, Linear, NearClips, Prototypes, WithDummyPrototypes
from .dummies import DummyPrototypes
from .embedder import Background, DummyGenerator, Embedder, Head
from .finetune import FineTune
from .neighbours import Neighbours
from .prototypes import NearestMean
from .unlabelled import BatchNormStatistics, EntropyMinimisation, PseudoLabels

__all__ = [
    "Background", "BatchNormStatistics", "Classifier", "DummyGenerator", "DummyPrototypes", "Embedder",
    "EntropyMinimisation", "FineTune", "Head", "Learner", "Linear", "NearClips", "NearestMean", "Neighbours",
    "Prototypes", "PseudoLabels", "Spotter", "WithDummyPrototypes",
]  # fmt: skip
