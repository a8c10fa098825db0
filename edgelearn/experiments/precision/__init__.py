"""Training with quantized weights, activations and gradients, after Fournarakis and Nagel 2021, "In-hindsight
quantization range estimation for quantized training" (arXiv 2105.04246). See README.md in this folder."""

from .config import OBSERVERS, PrecisionConfig
from .experiment import PrecisionExperiment
from .sweep import collect, expected, sweep
from .tasks import TASKS
from .timing import time_steps
from .variants import select, variants

__all__ = [
    "OBSERVERS", "TASKS", "PrecisionConfig", "PrecisionExperiment", "collect", "expected", "select", "sweep",
    "time_steps", "variants",
]  # fmt: skip
