"""User verification by federated learning: FedUV, FedAwS and baselines on speakers and on CIFAR-10."""

from .config import VerificationConfig
from .experiment import VerificationExperiment, VerificationRounds
from .report import Report
from .tasks import TASKS

__all__ = ["TASKS", "Report", "VerificationConfig", "VerificationExperiment", "VerificationRounds"]
