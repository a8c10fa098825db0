"""What a flowers run is made of; a run's record holds all of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

from edgelearn.errors import RunError
from edgelearn.experiments.config import Config
from edgelearn.ops import SGD, Adam, AdamW, Optimizer

OPTIMIZERS = ("sgd", "momentum", "nesterov", "adam", "adamw")
PUBLISHED = {"before": 147 / 736, "after": 670 / 736}  # accuracies that Qualcomm publishes for this job
PUBLISHED_JOB = {"epochs": 100, "batch_size": 163, "micro_batch": 15, "learning_rate": 0.003}
SAMPLE_JOB = {"epochs": 20, "batch_size": 50, "micro_batch": 50, "learning_rate": 0.01}


@dataclass(frozen=True)
class FlowersConfig(Config):
    """Where `epochs`, `batch_size`, `micro_batch` or `learning_rate` are None, they are the published job's (18
    mini-batches of 163, 100 epochs, learning rate 0.003), or with the embedded sample SAMPLE_JOB's.

    `images`, `data` and `sample` choose the pictures (see edgelearn.data.flowers.load_flowers), `weights` the network:
    a Keras HDF5 file, or "sample" for the small network in the package. `trainable` are patterns of parameters.
    Raises RunError for values that can't be.
    """

    images: str | None = None
    data: str | None = None
    sample: bool = False
    download: bool = True
    weights: str | None = None
    trainable: tuple[str, ...] = ("conv_pw_13", "dense")
    epochs: int | None = None
    batch_size: int | None = None
    micro_batch: int | None = None
    optimizer: str = "momentum"
    learning_rate: float | None = None
    label_smoothing: float = 0.0
    cache: str | None = "fp32"
    cache_folder: str | None = None
    budget: int | str | None = None
    seed: int = 0
    device: str | None = None

    def __post_init__(self) -> None:
        self.check(("epochs", "batch_size", "micro_batch"))
        if self.learning_rate is not None and not 0 < self.learning_rate < inf:
            raise RunError(f"learning_rate is {self.learning_rate}, but has to be above 0 and finite.")
        if self.optimizer not in OPTIMIZERS:
            raise RunError(f"'{self.optimizer}' is not an optimizer: choose {', '.join(OPTIMIZERS)}.")

    def resolve(self, sample: bool) -> FlowersConfig:
        """With nothing left open: what a run records, and what it is resumed with."""
        job = SAMPLE_JOB if sample else PUBLISHED_JOB
        chosen = {name: value for name, value in job.items() if getattr(self, name) is None}
        return replace(self, sample=sample, **chosen)

    def make_optimizer(self) -> Optimizer:
        rate = self.learning_rate
        return {
            "sgd": SGD(rate),
            "momentum": SGD(rate, momentum=0.9),
            "nesterov": SGD(rate, momentum=0.9, nesterov=True),
            "adam": Adam(rate),
            "adamw": AdamW(rate),
        }[self.optimizer]
