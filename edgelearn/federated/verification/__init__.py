"""User verification: a network that accepts its user's recordings, trained without anybody else's embeddings."""

from .federation import Participant, VerificationServer, VerificationSettings, run_rounds
from .methods import FedAwS, FedUV, FixedVectors, Method, PositivesAlone, Softmax, make_method
from .network import speaker_network
from .scores import scores, warm_up_threshold
from .spreading import spread
from .user import User

__all__ = [
    "FedAwS", "FedUV", "FixedVectors", "Method", "Participant", "PositivesAlone", "Softmax", "User",
    "VerificationServer", "VerificationSettings", "make_method", "run_rounds", "scores", "speaker_network", "spread",
    "warm_up_threshold",
]  # fmt: skip
