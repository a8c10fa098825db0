"""Configuration of the training of an embedding."""

from __future__ import annotations

from dataclasses import dataclass

from edgelearn.errors import RunError
from edgelearn.experiments.config import DATA, Config, device_setting, seed_setting, setting
from edgelearn.keywords.learners import finetune
from edgelearn.keywords.learners.classifiers import DISTANCES

METHODS = ("classify", "prototypical", "dummy-prototypes")
NETWORKS = ("ds-resnet", "bcresnet", "ds-cnn-s", "ds-cnn-m", "ds-cnn-l")
PARTS = tuple(part for part in finetune.PARTS if part != "head")


@dataclass(frozen=True)
class KeywordsConfig(Config):
    """Training of an embedding of words, tested on other words and speakers. The fields describe themselves.

    The method "classify" trains with a linear classifier, which is discarded afterwards. "prototypical" and
    "dummy-prototypes" train in episodes of `num_classes` words, with `shots` clips of each to enrol and `queries` to
    classify, and with dummy prototypes as many clips of other words to reject (see `ops.Prototypical`). A mini-batch is
    one episode then, and an epoch has about as many clips as the data.

    Raises ConfigError for an invalid value, RunError for settings that need others.
    """

    task: str = setting(
        "sample", "data to train on: sample, arabic, or a folder of recordings, a subfolder for each word",
        positional=True,
    )  # fmt: skip
    method: str = setting(
        "classify", "by a classifier of all words, or in episodes, without or with dummy prototypes", choices=METHODS
    )
    network: str = setting("ds-resnet", "network of the embedding", choices=NETWORKS)
    width: float = setting(1.0, "multiplies the network's channels", above=0)
    size: int = setting(128, "values of an embedding of ds-resnet; other networks' depend on their width", minimum=1)
    english: bool = setting(True, "train on English clips, too")
    reversed: bool = setting(True, "train on clips played backwards, too, as words of their own")
    shift: float = setting(0.1, "largest random shift of a clip, as a share of its length", minimum=0, maximum=0.5)
    noise: float = setting(0.5, "probability with which noise is mixed in", minimum=0, maximum=1)
    mask: bool = setting(True, "mask random frequencies and times (SpecAugment)")
    num_classes: int = setting(16, "words of a training episode", minimum=1)
    shots: int = setting(3, "clips of each word to enrol", minimum=1)
    queries: int = setting(6, "clips of each word to classify", minimum=1)
    distance: str = setting("euclidean", "distance between embeddings, in episodes", choices=DISTANCES)
    scale: float = setting(0.1, "multiplies distances before the softmax, in episodes", above=0)
    dummy_prototypes: int = setting(3, "number of prototypes of words that aren't enrolled", minimum=1)
    dummy_temperature: float = setting(10.0, "divides the distances to dummy prototypes in training", above=0)
    part: str = setting("all", "part of the embedding of --start that is trained", choices=PARTS)
    frozen: bool = setting(False, "train dummy prototypes alone and keep the embedding of --start")
    epochs: int = setting(40, "passes over the clips", minimum=1)
    batch_size: int = setting(128, "clips of an update, unless in episodes", minimum=1)
    learning_rate: float = setting(3e-3, "highest learning rate of AdamW; it falls along a cosine", above=0)
    weight_decay: float = setting(0.02, "weight decay of AdamW", minimum=0)
    label_smoothing: float = setting(0.1, "label smoothing of the classifier", minimum=0, maximum=1)
    start: str | None = setting(
        None, "initial weights of the embedding (safetensors), such as those of a run", metavar="FILE"
    )
    episodes: int = setting(1000, "test episodes of each kind; intervals need at least 2", minimum=2)
    data: str | None = setting(None, DATA, metavar="DIR")
    seed: int = seed_setting()
    device: str | None = device_setting()

    def __post_init__(self) -> None:
        self.check()
        if self.part != "all" and not self.start:
            raise RunError(f"part='{self.part}' trains a part of a trained embedding: give its weights by start.")
        if self.frozen and not (self.start and self.method == "dummy-prototypes"):
            raise RunError("frozen trains dummy prototypes alone: give method='dummy-prototypes' and start.")

    @property
    def episodic(self) -> bool:
        """True if a mini-batch is an episode."""
        return self.method != "classify"
