"""Fine-tuning of any model on your own pictures or clips."""

from .config import FinetuneConfig
from .experiment import FinetuneExperiment, finetune

__all__ = ["FinetuneConfig", "FinetuneExperiment", "finetune"]
