"""Keywords of a user's own, for applications: embedders, learners, vocabularies and listeners."""

from .files import KeywordBundle, load_bundle, load_embedder, save_bundle, save_embedder
from .learners import Embedder, Learner
from .listener import Detection, Listener, Scores, ScoreStream, Trigger
from .speakers import NearestWindows, SpeakerListener, SpokenWindow, WhitenedWindows, windows
from .vocabulary import OtherWords, Vocabulary

__all__ = [
    "Detection",
    "Embedder",
    "KeywordBundle",
    "Learner",
    "Listener",
    "NearestWindows",
    "OtherWords",
    "ScoreStream",
    "Scores",
    "SpeakerListener",
    "SpokenWindow",
    "Trigger",
    "Vocabulary",
    "WhitenedWindows",
    "load_bundle",
    "load_embedder",
    "save_bundle",
    "save_embedder",
    "windows",
]  # fmt: skip
