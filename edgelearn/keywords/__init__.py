"""Keywords of a user's own, for applications: embedders, learners, vocabularies and listeners."""

from .files import KeywordBundle, load_bundle, load_embedder, save_bundle, save_embedder
from .learners import Embedder, Learner
from .listener import Detection, Listener, Scores, ScoreStream, Trigger
from .vocabulary import OtherWords, Vocabulary

__all__ = [
    "Detection",
    "Embedder",
    "KeywordBundle",
    "Learner",
    "Listener",
    "OtherWords",
    "ScoreStream",
    "Scores",
    "Trigger",
    "Vocabulary",
    "load_bundle",
    "load_embedder",
    "save_bundle",
    "save_embedder",
]  # fmt: skip
