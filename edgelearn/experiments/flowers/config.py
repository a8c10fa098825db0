"""Configuration of fine-tuning on flowers."""

from __future__ import annotations

from dataclasses import dataclass, replace

from edgelearn.experiments.config import DATA, DOWNLOAD, setting
from edgelearn.experiments.transfer import TransferConfig
from edgelearn.ops import Optimizer

ACCURACY = {"before": 147 / 736, "after": 670 / 736}  # published by Qualcomm
PUBLISHED = {"epochs": 100, "batch_size": 163, "micro_batch": 15, "learning_rate": 0.003}
SAMPLE = {"epochs": 20, "batch_size": 50, "micro_batch": 50, "learning_rate": 0.01}


@dataclass(frozen=True)
class FlowersConfig(TransferConfig):
    """Fine-tuning of MobileNet V1. Where `epochs`, `batch_size`, `micro_batch` or `learning_rate` are None, the
    published values hold, or with the embedded sample those of SAMPLE. `images`, `data` and `sample` choose the
    pictures (see edgelearn.data.flowers.load_flowers).

    Raises ConfigError for an invalid value.
    """

    images: str | None = setting(None, "your own pictures: a subfolder a class, JPEG or PNG, any size", metavar="DIR")
    data: str | None = setting(None, DATA, metavar="DIR")
    sample: bool = setting(False, "the embedded sample: drawn flowers and a small network")
    download: bool = setting(True, DOWNLOAD)
    weights: str | None = setting(
        None, "MobileNet V1 1.0/224 in Keras's HDF5 layout, or 'sample' for the small network", metavar="FILE"
    )
    trainable: tuple[str, ...] = setting(("conv_pw_13", "dense"), "patterns of the layers to train", metavar="PATTERN")
    epochs: int | None = setting(None, "passes over the pictures (default: 100, embedded sample: 20)", minimum=1)
    batch_size: int | None = setting(None, "examples per update (default: 163, embedded sample: 50)", minimum=1)
    micro_batch: int | None = setting(
        None, "examples at a time on the device, gradients are summed (default: 15, embedded sample: 50)", minimum=1
    )
    learning_rate: float | None = setting(None, "learning rate (default: 0.003, embedded sample: 0.01)", above=0)

    def resolve(self, sample: bool) -> FlowersConfig:
        """Fill in the published values, or the sample's, where this configuration has None."""
        values = SAMPLE if sample else PUBLISHED
        missing = {name: value for name, value in values.items() if getattr(self, name) is None}
        return replace(self, sample=sample, **missing)

    def make_optimizer(self) -> Optimizer:
        return self.optimizer_at(self.learning_rate or PUBLISHED["learning_rate"])
