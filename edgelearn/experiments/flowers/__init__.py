"""Fine-tuning MobileNet V1 on flowers: Qualcomm's published example. See README.md beside this file."""

from .config import FlowersConfig
from .job import FlowersJob

__all__ = ["FlowersConfig", "FlowersJob"]
