"""Personalisation: how much a few clips of a user reduce that user's errors, and what they cost other people."""

from .cross_validation import CrossValidation
from .model_selection import CANDIDATES, run_selected
from .protocol import Protocol
from .results import PersonalisationReport, UserResult, average, to_table, users_table

__all__ = [
    "CANDIDATES", "CrossValidation", "PersonalisationReport", "Protocol", "UserResult", "average", "run_selected",
    "to_table", "users_table",
]  # fmt: skip
