"""User verification: a network that accepts its user's recordings, trained without anybody else's embeddings."""

from .network import speaker_network
from .scores import scores, warm_up_threshold
from .spreading import spread
from .strategies import (
    VERIFICATION_STRATEGIES,
    FedAwS,
    FedUV,
    FixedVectors,
    PositivesAlone,
    Softmax,
    VerificationStrategy,
    make_verification_strategy,
)
from .user import User
from .users import Users

__all__ = [
    "VERIFICATION_STRATEGIES", "FedAwS", "FedUV", "FixedVectors", "PositivesAlone", "Softmax", "User", "Users",
    "VerificationStrategy", "make_verification_strategy", "scores", "speaker_network", "spread", "warm_up_threshold",
]  # fmt: skip
