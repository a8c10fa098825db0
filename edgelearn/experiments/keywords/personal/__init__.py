"""What a few clips of a user are worth to that user, and what they cost other people."""

from .choice import CANDIDATES, personalise_chosen
from .results import Personalisation, User, average, to_table, users_table
from .trial import Protocol, personalise

__all__ = [
    "CANDIDATES", "Personalisation", "Protocol", "User", "average", "personalise", "personalise_chosen", "to_table",
    "users_table",
]  # fmt: skip
