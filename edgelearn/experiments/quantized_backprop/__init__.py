"""Training with quantized weights, activations and gradients, after Fournarakis and Nagel 2021, "In-hindsight
quantization range estimation for quantized training" (arXiv 2105.04246). See README.md beside this file."""

from .config import ESTIMATORS, PrecisionConfig
from .job import PrecisionJob
from .sweep import arms, collect, sweep
from .tasks import TASKS
from .timing import time_steps

__all__ = ["ESTIMATORS", "TASKS", "PrecisionConfig", "PrecisionJob", "arms", "collect", "sweep", "time_steps"]
