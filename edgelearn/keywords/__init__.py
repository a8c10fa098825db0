"""Keywords of a user's own, for applications: embedders, learners, vocabularies and listeners."""

from .bundle import Bundle, load_bundle, save_bundle
from .detector import Detection, Scores, ScoreStream, Trigger
from .embedder_file import load_embedder, save_embedder
from .learners import Embedder, Learner
from .listener import Listener
from .threshold import OtherWords
from .vocabulary import Vocabulary

__all__ = [
    "Bundle", "Detection", "Embedder", "Learner", "Listener", "OtherWords", "ScoreStream", "Scores", "Trigger",
    "Vocabulary", "load_bundle", "load_embedder", "save_bundle", "save_embedder",
]  # fmt: skip
