"""User verification by federated learning: FedUV, FedAwS and baselines on speakers and on CIFAR-10."""

from .report import Report
from .tasks import TASKS, VerificationTask
from .training import TrainedVerifier, train_verifier

__all__ = ["TASKS", "Report", "TrainedVerifier", "VerificationTask", "train_verifier"]
