"""Fine-tuning MobileNet V1 on flowers: Qualcomm's published example. See README.md beside this file."""

from .config import FlowersConfig
from .experiment import FlowersExperiment

__all__ = ["FlowersConfig", "FlowersExperiment"]
