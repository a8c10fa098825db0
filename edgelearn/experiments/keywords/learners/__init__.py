"""Ways to learn words from few clips, a file each, with one interface (base.py)."""

from .base import Learner, Spotter
from .classifiers import Classifier, Linear, Prototypes
from .embedder import Embedder, Head
from .prototypes import NearestMean

__all__ = ["Classifier", "Embedder", "Head", "Learner", "Linear", "NearestMean", "Prototypes", "Spotter"]
