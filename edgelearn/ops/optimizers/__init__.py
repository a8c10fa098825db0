"""Optimizers, as Keras defines them: a rule a file."""

from .adam import Adam, AdamW
from .base import Optimizer
from .lamb import LAMB
from .lion import Lion
from .rmsprop import RMSprop
from .sgd import SGD

__all__ = ["LAMB", "SGD", "Adam", "AdamW", "Lion", "Optimizer", "RMSprop"]
