"""Optimizers, as Keras defines them: a rule a file."""

from .adam import Adam, AdamW
from .average import emit_average
from .base import AVERAGE, CHUNK, Optimizer
from .commit import emit_commit
from .lamb import LAMB
from .lion import Lion
from .norms import Clipping
from .rmsprop import RMSprop
from .sgd import SGD

__all__ = [
    "AVERAGE",
    "CHUNK",
    "LAMB",
    "SGD",
    "Adam",
    "AdamW",
    "Clipping",
    "Lion",
    "Optimizer",
    "RMSprop",
    "emit_average",
    "emit_commit",
]  # fmt: skip
