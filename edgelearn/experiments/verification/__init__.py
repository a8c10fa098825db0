"""User verification by federated learning: FedUV, FedAwS and baselines on speakers and on CIFAR-10."""

from .config import VerificationConfig
from .experiment import VOICES, VerificationExperiment, VerificationRounds
from .report import Report
from .tasks import TASKS

__all__ = ["TASKS", "VOICES", "Report", "VerificationConfig", "VerificationExperiment", "VerificationRounds"]
