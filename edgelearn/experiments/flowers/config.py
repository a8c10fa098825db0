"""Configuration of fine-tuning on flowers."""

from __future__ import annotations

from dataclasses import dataclass, replace

from edgelearn.compile.memory.budget import budgets
from edgelearn.experiments.config import DATA, DOWNLOAD, Config, device_setting, seed_setting, setting
from edgelearn.ops import SGD, Adam, AdamW, Optimizer

OPTIMIZERS = ("sgd", "momentum", "nesterov", "adam", "adamw")
CACHES = ("fp32", "fp16")
ACCURACY = {"before": 147 / 736, "after": 670 / 736}  # published by Qualcomm
PUBLISHED = {"epochs": 100, "batch_size": 163, "micro_batch": 15, "learning_rate": 0.003}
SAMPLE = {"epochs": 20, "batch_size": 50, "micro_batch": 50, "learning_rate": 0.01}


@dataclass(frozen=True)
class FlowersConfig(Config):
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
    optimizer: str = setting("momentum", "optimizer", choices=OPTIMIZERS)
    learning_rate: float | None = setting(None, "learning rate (default: 0.003, embedded sample: 0.01)", above=0)
    label_smoothing: float = setting(0.0, "share of the label given to all classes", minimum=0, maximum=1)
    cache: str | None = setting("fp32", "format of the frozen layers' features kept in memory", choices=CACHES)
    cache_folder: str | None = setting(None, "keep the features in a temporary file in this folder", metavar="DIR")
    budget: int | str | None = setting(
        None, "limit of the memory plan: '64MB', '20MB peak', '8MB stored' or several", check=budgets, metavar="SIZE"
    )
    seed: int = seed_setting()
    device: str | None = device_setting()

    def resolve(self, sample: bool) -> FlowersConfig:
        """Fill in the published values, or the sample's, where this configuration has None."""
        values = SAMPLE if sample else PUBLISHED
        missing = {name: value for name, value in values.items() if getattr(self, name) is None}
        return replace(self, sample=sample, **missing)

    def make_optimizer(self) -> Optimizer:
        rate = self.learning_rate or PUBLISHED["learning_rate"]
        return {
            "sgd": SGD(rate),
            "momentum": SGD(rate, momentum=0.9),
            "nesterov": SGD(rate, momentum=0.9, nesterov=True),
            "adam": Adam(rate),
            "adamw": AdamW(rate),
        }[self.optimizer]
