"""Configuration of fine-tuning any model."""

from __future__ import annotations

from dataclasses import dataclass

from edgelearn.compile import Precision
from edgelearn.experiments.config import setting
from edgelearn.experiments.transfer import CACHES, TransferConfig
from edgelearn.ops import Float16, Format

from .preprocessing import FRONT_ENDS, PIXELS

PRECISIONS = {
    "fp32": Precision(),
    "fp16": Precision(activations=Float16(), simulated=False),
    "int8": Precision(weights=Format(8, symmetric=True, per_channel=True), activations=Format(8)),
}


@dataclass(frozen=True)
class FinetuneConfig(TransferConfig):
    """Fine-tuning of the model in a file, on a folder of pictures (`images`) or of clips (`clips`) with a subfolder for
    each class. How examples are made comes from the model's metadata; `pixels` or `front_end` says it where that is
    missing.

    Raises ConfigError for an invalid value.
    """

    model: str = setting("", "file of the model: TFLite, ONNX, Keras, safetensors, …", metavar="MODEL", positional=True)
    images: str | None = setting(None, "your pictures: a subfolder a class, JPEG or PNG, any size", metavar="DIR")
    clips: str | None = setting(None, "your clips: a subfolder a class, WAV, FLAC or OGG", metavar="DIR")
    train: tuple[str, ...] = setting((), "patterns of layers to train besides the new head", metavar="PATTERN")
    inputs: tuple[str, ...] = setting((), "tensors of the file at which the network begins", metavar="TENSOR")
    outputs: tuple[str, ...] = setting((), "tensors of the file at which it ends", metavar="TENSOR")
    keep_head: bool = setting(False, "train the model's own classifier, whose classes are the folder's")
    pixels: str | None = setting(
        None, "what pictures become, if the model doesn't say: tf -1 to 1, unit 0 to 1, raw 0 to 255, torch ImageNet's",
        choices=tuple(PIXELS),
    )  # fmt: skip
    front_end: str | None = setting(None, "features of clips, if the model doesn't say", choices=tuple(FRONT_ENDS))
    precision: str = setting("fp32", "number formats; int8 leaves the ranges that an int8 export needs",
                             choices=tuple(PRECISIONS))  # fmt: skip
    loss: str = setting("cross-entropy", "loss", choices=("cross-entropy",), extensible=True)
    epochs: int | None = setting(20, "passes over the examples", minimum=1)
    batch_size: int | None = setting(32, "examples per update", minimum=1)
    learning_rate: float | None = setting(0.01, "learning rate", above=0)
    cache: str | None = setting(
        "auto", "format of the frozen layers' features kept in memory; auto: fp32 where it is possible",
        choices=("auto", *CACHES),
    )  # fmt: skip
