"""What an embedding is trained with; a run's record holds all of it."""

from __future__ import annotations

from dataclasses import dataclass

from edgelearn.errors import RunError
from edgelearn.experiments.config import Config

METHODS = ("classify", "prototypical", "dummies")
NETWORKS = ("ds-resnet", "bcresnet")


@dataclass(frozen=True)
class KeywordsConfig(Config):
    """An embedding of words, trained on some words and speakers and tested on other ones.

    task: see data.TASKS. The split into what is trained on and tested is that of `seed`.
    method: "classify": words are told apart by a linear classifier, which is thrown away afterwards; "prototypical" and
        "dummies": episodes of `ways` words, `shots` clips each to learn from and `queries` to recognise, and with
        dummies as many of other words to reject (ops.Prototypical).
    network: "ds-resnet" (models.ds_resnet) or "bcresnet", of so many times the usual `width`; embeddings of `size`.
    english: whether clips of Speech Commands in English are trained on too.
    reversed: whether clips played backwards are trained on, as words of their own.
    shift, noise, mask: how clips are varied from epoch to epoch: moved by up to this share of their length; noise mixed
        in with this probability; SpecAugment.
    distance, scale, dummies, relief: as ops.Prototypical has them.
    frozen: whether the embedding stays as it is in `start`, and only what makes dummies learns.
    epochs, batch_size, learning_rate, weight_decay: of AdamW along a cosine. An epoch of episodes has about as many
        clips as there are; a mini-batch is one episode then.
    start: a file of weights (safetensors) to begin with, None for fresh ones.
    episodes: of each kind that it is tested with.

    Raises RunError for values that can't be.
    """

    task: str = "arabic"
    method: str = "classify"
    network: str = "ds-resnet"
    width: float = 1.0
    size: int = 128
    english: bool = True
    reversed: bool = True
    shift: float = 0.1
    noise: float = 0.5
    mask: bool = True
    ways: int = 16
    shots: int = 3
    queries: int = 6
    distance: str = "euclidean"
    scale: float = 0.1
    dummies: int = 3
    relief: float = 10.0
    frozen: bool = False
    epochs: int = 40
    batch_size: int = 128
    learning_rate: float = 3e-3
    weight_decay: float = 0.02
    label_smoothing: float = 0.1
    start: str | None = None
    episodes: int = 1000
    data: str | None = None
    seed: int = 0
    device: str | None = None

    def __post_init__(self) -> None:
        counts = "size", "ways", "shots", "queries", "dummies", "epochs", "batch_size", "episodes"
        self.check(counts)
        for name, known in ("method", METHODS), ("network", NETWORKS):
            if getattr(self, name) not in known:
                raise RunError(f"{name} is '{getattr(self, name)}', but has to be one of {', '.join(known)}.")
        for name, most in ("shift", 0.5), ("noise", 1.0):
            if not 0 <= getattr(self, name) <= most:
                raise RunError(f"{name} is {getattr(self, name)}, but has to be from 0 to {most}.")
        if not min(self.width, self.scale, self.relief, self.learning_rate) > 0 or self.weight_decay < 0:
            raise RunError("width, scale, relief and learning_rate have to be above 0, and weight_decay not below.")

        if self.frozen and not (self.start and self.method == "dummies"):
            raise RunError("Only dummies learn without the embedding: give method='dummies' and start.")

    @property
    def episodic(self) -> bool:
        return self.method != "classify"
