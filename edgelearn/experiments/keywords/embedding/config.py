"""What an embedding is trained with; a run's record holds all of it."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from math import inf
from typing import Any

from edgelearn.errors import RunError
from edgelearn.experiments.config import Config
from edgelearn.keywords.learners import finetune
from edgelearn.keywords.learners.classifiers import DISTANCES

METHODS = ("classify", "prototypical", "dummies")
NETWORKS = ("ds-resnet", "bcresnet", "ds-cnn-s", "ds-cnn-m", "ds-cnn-l")
PARTS = tuple(part for part in finetune.PARTS if part != "head")

# From and to what numbers may be; counts are at least 1.
_SHARES = {"shift": 0.5, "noise": 1.0, "label_smoothing": 1.0}
_COUNTS = ("size", "ways", "shots", "queries", "dummies", "epochs", "batch_size")
_POSITIVE = ("width", "scale", "relief", "learning_rate")


def _setting(default: Any, text: str, choices: tuple[str, ...] | None = None) -> Any:
    return field(default=default, metadata={"help": text, "choices": choices})


@dataclass(frozen=True)
class KeywordsConfig(Config):
    """An embedding of words, trained on some words and speakers and tested on other ones. The fields' metadata says
    what each of them is.

    "classify" tells words apart by a linear classifier, which is thrown away afterwards; "prototypical" and "dummies"
    train in episodes of `ways` words, `shots` clips each to learn from and `queries` to recognise, and with dummies as
    many of other words to reject (ops.Prototypical, whose are distance, scale, dummies and relief). An epoch of
    episodes has about as many clips as there are; a mini-batch is one episode then.

    Raises RunError for values that can't be.
    """

    task: str = _setting(
        "sample", "what it is trained on: sample, arabic, or a folder of recordings, a subfolder for each word"
    )
    method: str = _setting("classify", "by a classifier of all words, or in episodes, without or with dummies", METHODS)
    network: str = _setting("ds-resnet", "what embeds clips", NETWORKS)
    width: float = _setting(1.0, "so many times the network's usual channels")
    size: int = _setting(128, "values of an embedding by ds-resnet; others' follow from their width")
    english: bool = _setting(True, "train on English clips too, beside another language's")
    reversed: bool = _setting(True, "train on clips played backwards too, as words of their own")
    shift: float = _setting(0.1, "clips are moved by up to this share of their length")
    noise: float = _setting(0.5, "how often noise is mixed in, a probability")
    mask: bool = _setting(True, "mask frequencies and times (SpecAugment)")
    ways: int = _setting(16, "words of an episode in training")
    shots: int = _setting(3, "clips of each to learn from")
    queries: int = _setting(6, "clips of each to recognise")
    distance: str = _setting("euclidean", "between embeddings, in episodes", DISTANCES)
    scale: float = _setting(0.1, "what distances are multiplied by before the softmax, in episodes")
    dummies: int = _setting(3, "prototypes that stand for words which aren't enrolled")
    relief: float = _setting(10.0, "what the dummies' distances are divided by in training")
    part: str = _setting("all", "what of the embedding of --start learns", PARTS)
    frozen: bool = _setting(False, "leave the embedding of --start as it is: only what makes dummies learns")
    epochs: int = _setting(40, "passes over the clips")
    batch_size: int = _setting(128, "clips of an update, where there are no episodes")
    learning_rate: float = _setting(3e-3, "of AdamW at its highest; it falls along a cosine")
    weight_decay: float = _setting(0.02, "of AdamW")
    label_smoothing: float = _setting(0.1, "of the classifier")
    start: str | None = _setting(None, "weights (safetensors) that the embedding begins with, such as those of a run")
    episodes: int = _setting(1000, "that each kind of test has")
    data: str | None = _setting(None, "a folder with data sets, if not EDGELEARN_DATA")
    seed: int = _setting(0, "of the split into what is trained on and tested, and of everything drawn")
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
            raise RunError(f"Only a part, '{self.part}', learns of an embedding that was trained: give it by start.")
        if self.frozen and not (self.start and self.method == "dummies"):
            raise RunError("Only dummies learn without the embedding: give method='dummies' and start.")

    @property
    def episodic(self) -> bool:
        return self.method != "classify"
