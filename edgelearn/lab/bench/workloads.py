"""Workloads: a kind of step, a network and a batch size, written `kind`, `kind:batch` or `network/kind:batch`. A step
is one of a network, `train:16`, or of a single op of MobileNet V1, `train/conv_pw_1:16`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

from edgelearn.errors import UsageError
from edgelearn.extensions import check_name
from edgelearn.ops.compute import STORED

from .ops import OPS, OpSpec

DEFAULT_NETWORK = "mobilenet_v1"
INT8 = "int8"
TYPES = (*STORED, INT8)
DEFAULT_BATCH = {"forward": 1, "train": 1, "train_bn": 1, "accumulate": 8, "cached": 163}

DESCRIPTIONS = {
    "forward": "inference of {network}",
    "train": "one SGD step on every layer of {network}, BatchNorm with moving statistics",
    "train_bn": "one SGD step with momentum on every layer of {network}, BatchNorm with batch statistics",
    "accumulate": "one SGD step on every layer of {network}, the mini-batch taken example by example",
    "cached": "one SGD step with momentum on the last layers of {network}, from stored features",
}

OP_DESCRIPTIONS = {
    "forward": "{op} of MobileNet V1 1.0/224 alone, forward",
    "train": "{op} of MobileNet V1 1.0/224 alone, forward and backward",
}

ONLY_TRAINED = ("loss", "update")
KINDS = (
    *DEFAULT_BATCH,
    *(f"forward/{name}" for name in OPS if name not in ONLY_TRAINED),
    *(f"train/{name}" for name in OPS),
)


_WHOLE = re.compile(rf"(?:(?P<network>.+)/)?(?P<kind>{'|'.join(DEFAULT_BATCH)})(?::(?P<batch>[^:]*))?")


@dataclass(frozen=True)
class Workload:
    """A step that can be measured.

    Arguments:
    - `kind`: see below.
    - `batch`: examples of a step.
    - `seed`: draws weights, inputs and labels.
    - `network`: a name of edgelearn.models, a model file, or MODULE:FUNCTION.
    - `compute`: the type that it computes in: a compute type (see `Compute`), or "int8", integers with ranges in
      hindsight.

    Kinds, for MobileNet V1 1.0/224 unless another network is named:
    - `forward`: logits.
    - `train`: softmax cross-entropy averaged over the batch, its gradient in every kernel, bias and BatchNorm scale and
      shift, and the SGD update. BatchNorm normalises with its moving statistics.
    - `train_bn`: the same with the statistics of the batch, which also move the stored ones, and momentum 0.9.
    - `accumulate`: `train` with the mini-batch taken one example at a time and a single update.
    - `cached`: the last convolution and Dense alone, 5 classes, BatchNorm frozen, on stored features of the layers
      below; momentum 0.9. Of MobileNet V1 that is a 1x1 convolution on (batch, 7, 7, 1024).
    - `forward/OP`: the output of one op of `ops.OPS` for given inputs.
    - `train/OP`: that, and for a given gradient of the output those of the input and of the weights; of the loss its
      value and gradient; of `update` the updated parameters.

    Raises UsageError for an unknown kind or type, a batch below 1, or a single op of another network.
    """

    kind: str
    batch: int
    seed: int = 0
    network: str = DEFAULT_NETWORK
    compute: str = "fp32"

    def __post_init__(self) -> None:
        check_name(self.kind, KINDS, "workload")
        check_name(self.compute, TYPES, "compute type")
        if self.batch < 1:
            raise UsageError(f"Workload {self.kind} needs a batch of 1 or more, not {self.batch}.")
        if self.op and self.network != DEFAULT_NETWORK:
            raise UsageError(f"Single ops are those of {DEFAULT_NETWORK}: measure {self.kind} without a network.")

    @classmethod
    def parse(cls, text: str, seed: int = 0, network: str = DEFAULT_NETWORK, compute: str = "fp32") -> Workload:
        """The workload that `text` names: `forward` (with its usual batch), `forward:16` or `resnet18/forward:16`.
        `network` is meant where `text` names none.

        Raises UsageError for an unknown kind or a batch that isn't a whole number above 0.
        """
        if whole := _WHOLE.fullmatch(text):
            network, kind, batch = whole["network"] or network, whole["kind"], whole["batch"]
        else:
            kind, colon, batch = text.partition(":")
            batch = batch if colon else None
        if batch is not None and not (batch.isascii() and batch.isdigit() and len(batch) < 10):
            raise UsageError(f"Workload {text!r}: after the colon comes the batch, a whole number as in forward:16.")
        return cls(kind, DEFAULT_BATCH.get(kind, 1) if batch is None else int(batch), seed, network, compute)

    @classmethod
    def expand(cls, text: str, seed: int = 0, network: str = DEFAULT_NETWORK) -> list[Workload]:
        """The workloads whose kinds match a pattern, as in `train/*:16`; raises UsageError if there are none."""
        if _WHOLE.fullmatch(text):
            return [cls.parse(text, seed, network)]
        pattern, colon, batch = text.partition(":")
        kinds = [kind for kind in KINDS if fnmatchcase(kind, pattern)] or [pattern]
        return [cls.parse(kind + colon + batch, seed, network) for kind in kinds]

    @property
    def name(self) -> str:
        """The text that `parse` reads, the same for all types."""
        prefix = "" if self.network == DEFAULT_NETWORK else f"{self.network}/"
        return f"{prefix}{self.kind}:{self.batch}"

    @property
    def title(self) -> str:
        """The name, and the type where that isn't float32."""
        return self.name if self.compute == "fp32" else f"{self.name}, {self.compute}"

    @property
    def description(self) -> str:
        if self.op is None:
            network = "MobileNet V1 1.0/224" if self.network == DEFAULT_NETWORK else self.network
            return DESCRIPTIONS[self.kind].format(network=network)
        pass_, _, name = self.kind.partition("/")
        return OP_DESCRIPTIONS[pass_].format(op=name)

    @property
    def op(self) -> OpSpec | None:
        """The single op that is measured, None for a whole network."""
        return OPS.get(self.kind.partition("/")[2])

    @property
    def trains(self) -> bool:
        return self.kind.partition("/")[0] != "forward"

    @property
    def batchnorm(self) -> Literal["moving", "batch"]:
        """The statistics that BatchNorm normalises with."""
        return "batch" if self.kind == "train_bn" else "moving"

    @property
    def micro_batch(self) -> int:
        """How many examples go through the network at a time."""
        return 1 if self.kind == "accumulate" else self.batch

    @property
    def momentum(self) -> float:
        return 0.9 if self.kind in ("train_bn", "cached") else 0.0

    @property
    def learning_rate(self) -> float:
        return 0.003


DEFAULT = tuple(Workload.parse(name) for name in ("forward:1", "train:1", "cached:163"))
