"""Comparison of precision, activation memory, micro-batch and trained layers on one network, data and seeds."""

from .compare import compare
from .config import CombinationConfig
from .experiment import CombinationExperiment
from .results import CombinationResult, CombinationResults

__all__ = ["CombinationConfig", "CombinationExperiment", "CombinationResult", "CombinationResults", "compare"]
