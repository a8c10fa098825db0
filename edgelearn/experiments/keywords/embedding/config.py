"""Configuration of the training of an embedding."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from math import inf
from typing import Any

from edgelearn.errors import RunError
from edgelearn.experiments.config import Config
from edgelearn.keywords.learners import finetune
from edgelearn.keywords.learners.classifiers import DISTANCES

METHODS = ("classify", "prototypical", "dummy-prototypes")
NETWORKS = ("ds-resnet", "bcresnet", "ds-cnn-s", "ds-cnn-m", "ds-cnn-l")
PARTS = tuple(part for part in finetune.PARTS if part != "head")

# From and to what numbers may be; counts are at least 1.
_SHARES = {"shift": 0.5, "noise": 1.0, "label_smoothing": 1.0}
_COUNTS = ("size", "num_classes", "shots", "queries", "dummy_prototypes", "epochs", "batch_size")
_POSITIVE = ("width", "scale", "dummy_temperature", "learning_rate")


def _setting(default: Any, text: str, choices: tuple[str, ...] | None = None) -> Any:
    return field(default=default, metadata={"help": text, "choices": choices})


@dataclass(frozen=True)
class KeywordsConfig(Config):
    """Training of an embedding of words, tested on other words and speakers. The fields' metadata describes them.

    The method "classify" trains with a linear classifier, which is discarded afterwards. "prototypical" and
    "dummy-prototypes" train in episodes of `num_classes` words, with `shots` clips of each to enrol and `queries` to
    classify, and with dummy prototypes as many clips of other words to reject (see `ops.Prototypical`). A mini-batch is
    one episode then, and an epoch has about as many clips as the data.

    Raises RunError for invalid values.
    """

    task: str = _setting(
        "sample", "data to train on: sample, arabic, or a folder of recordings, a subfolder for each word"
    )
    method: str = _setting(
        "classify", "by a classifier of all words, or in episodes, without or with dummy prototypes", METHODS
    )
    network: str = _setting("ds-resnet", "network of the embedding", NETWORKS)
    width: float = _setting(1.0, "multiplies the network's channels")
    size: int = _setting(128, "values of an embedding of ds-resnet; other networks' depend on their width")
    english: bool = _setting(True, "train on English clips, too")
    reversed: bool = _setting(True, "train on clips played backwards, too, as words of their own")
    shift: float = _setting(0.1, "largest random shift of a clip, as a share of its length")
    noise: float = _setting(0.5, "probability with which noise is mixed in")
    mask: bool = _setting(True, "mask random frequencies and times (SpecAugment)")
    num_classes: int = _setting(16, "words of a training episode")
    shots: int = _setting(3, "clips of each word to enrol")
    queries: int = _setting(6, "clips of each word to classify")
    distance: str = _setting("euclidean", "distance between embeddings, in episodes", DISTANCES)
    scale: float = _setting(0.1, "multiplies distances before the softmax, in episodes")
    dummy_prototypes: int = _setting(3, "number of prototypes of words that aren't enrolled")
    dummy_temperature: float = _setting(10.0, "divides the distances to dummy prototypes in training")
    part: str = _setting("all", "part of the embedding of --start that is trained", PARTS)
    frozen: bool = _setting(False, "train dummy prototypes alone and keep the embedding of --start")
    epochs: int = _setting(40, "passes over the clips")
    batch_size: int = _setting(128, "clips of an update, unless in episodes")
    learning_rate: float = _setting(3e-3, "highest learning rate of AdamW; it falls along a cosine")
    weight_decay: float = _setting(0.02, "weight decay of AdamW")
    label_smoothing: float = _setting(0.1, "label smoothing of the classifier")
    start: str | None = _setting(None, "initial weights of the embedding (safetensors), such as those of a run")
    episodes: int = _setting(1000, "test episodes of each kind")
    data: str | None = _setting(None, "folder with data sets (default: EDGELEARN_DATA)")
    seed: int = _setting(0, "seed of the split into training and test, and of everything random")
    device: str | None = _setting(None, "part of a device's name (see `edgelearn devices`)")

    def __post_init__(self) -> None:
        self.check(_COUNTS)
        if self.episodes < 2:
            raise RunError(f"episodes is {self.episodes}, but has to be at least 2: intervals are made of several.")
        for setting in fields(self):
            known, value = setting.metadata["choices"], getattr(self, setting.name)
            if known and value not in known:
                raise RunError(f"{setting.name} is '{value}', but has to be one of {', '.join(known)}.")
        for name, most in _SHARES.items():
            if not 0 <= getattr(self, name) <= most:
                raise RunError(f"{name} is {getattr(self, name)}, but has to be from 0 to {most}.")
        for name in _POSITIVE:
            if not 0 < getattr(self, name) < inf:
                raise RunError(f"{name} is {getattr(self, name)}, but has to be above 0, and finite.")
        if not 0 <= self.weight_decay < inf:
            raise RunError(f"weight_decay is {self.weight_decay}, but has to be at least 0, and finite.")
        if self.part != "all" and not self.start:
            raise RunError(f"part='{self.part}' trains a part of a trained embedding: give its weights by start.")
        if self.frozen and not (self.start and self.method == "dummy-prototypes"):
            raise RunError("frozen trains dummy prototypes alone: give method='dummy-prototypes' and start.")

    @property
    def episodic(self) -> bool:
        return self.method != "classify"
