"""Ways to learn words from few clips, a file each, with one interface (base.py)."""

from .base import Learner, Spotter
from .classifiers import Classifier, Linear, Prototypes, WithDummies
from .dummies import DummyPrototypes
from .embedder import Background, DummyGenerator, Embedder, Head
from .finetune import FineTune
from .meta import ANIL, MAML, meta_train
from .prototypes import NearestMean
from .unlabelled import BatchNormStatistics, EntropyMinimisation, PseudoLabels

__all__ = [
    "ANIL", "MAML", "Background", "BatchNormStatistics", "Classifier", "DummyGenerator", "DummyPrototypes", "Embedder",
    "EntropyMinimisation", "FineTune", "Head", "Learner", "Linear", "NearestMean", "Prototypes", "PseudoLabels",
    "Spotter", "WithDummies", "meta_train",
]  # fmt: skip
