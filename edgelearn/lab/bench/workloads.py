"""What can be measured: a workload is a kind of step and a batch size, written `kind` or `kind:batch`. A step is one of
a network, `train:16`, or of one op of it by itself, `train/conv_pw_1:16`."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

from edgelearn.errors import EdgelearnError

from .ops import OPS, OpSpec

DEFAULT_BATCH = {"forward": 1, "train": 1, "train_bn": 1, "accumulate": 8, "cached": 163}

DESCRIPTIONS = {
    "forward": "inference of MobileNet V1 1.0/224",
    "train": "one SGD step on every layer of MobileNet V1, BatchNorm with kept statistics",
    "train_bn": "one SGD step with momentum on every layer of MobileNet V1, BatchNorm with batch statistics",
    "accumulate": "one SGD step on every layer of MobileNet V1, the mini-batch taken image by image",
    "cached": "one SGD step with momentum on conv_pw_13 and a dense layer, from stored features",
}

OP_DESCRIPTIONS = {
    "forward": "{op} of MobileNet V1 1.0/224 by itself, forward",
    "train": "{op} of MobileNet V1 1.0/224 by itself, forward and backward",
}

NO_FORWARD = ("loss", "update")  # what is only there for training
KINDS = (
    *DEFAULT_BATCH,
    *(f"forward/{name}" for name in OPS if name not in NO_FORWARD),
    *(f"train/{name}" for name in OPS),
)


@dataclass(frozen=True)
class Workload:
    """One thing to measure.

    `forward`: logits of `batch` pictures (224, 224, 3), 1000 classes.
    `train`: softmax cross-entropy averaged over the batch, its gradient in every kernel, every BatchNorm scale
    and bias and the classifier, and the SGD update. The BatchNorm statistics are kept ones.
    `train_bn`: the same with the statistics of the batch, which also move the kept ones, and momentum 0.9.
    `accumulate`: `train` with the mini-batch of `batch` pictures taken one at a time and a single update.
    `cached`: the head alone, 5 classes, on stored features (batch, 7, 7, 1024): a 1x1 convolution, frozen
    BatchNorm, ReLU6, mean over the pixels, dense, cross-entropy; momentum 0.9 on the two kernels and the bias.

    `forward/OP`: the output of one op of `ops.OPS` for given inputs.
    `train/OP`: that, and for a given gradient of the output those of the input and of the weights; of the loss its
    value and gradient; of `update` the updated parameters.
    """

    kind: str
    batch: int
    seed: int = 0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise EdgelearnError(f"Unknown workload {self.kind!r}. Choose from: {', '.join(KINDS)}.")
        if self.batch < 1:
            raise EdgelearnError(f"Workload {self.kind} needs a batch of 1 or more, not {self.batch}.")

    @classmethod
    def parse(cls, text: str, seed: int = 0) -> Workload:
        """The workload that `text` names: `forward` (with its usual batch) or `forward:16`.

        Raises EdgelearnError for an unknown kind or a batch that isn't a whole number above 0.
        """
        kind, colon, batch = text.partition(":")
        if colon and not (batch.isascii() and batch.isdigit()):
            raise EdgelearnError(
                f"Workload {text!r}: after the colon comes the batch, a whole number as in forward:16."
            )
        return cls(kind, int(batch) if colon else DEFAULT_BATCH.get(kind, 1), seed)

    @classmethod
    def expand(cls, text: str, seed: int = 0) -> list[Workload]:
        """The workloads whose kinds match a pattern, as in `train/*:16`; raises EdgelearnError if there are none."""
        pattern, colon, batch = text.partition(":")
        kinds = [kind for kind in KINDS if fnmatchcase(kind, pattern)] or [pattern]
        return [cls.parse(kind + colon + batch, seed) for kind in kinds]

    @property
    def name(self) -> str:
        return f"{self.kind}:{self.batch}"

    @property
    def description(self) -> str:
        if self.op is None:
            return DESCRIPTIONS[self.kind]
        what, _, name = self.kind.partition("/")
        return OP_DESCRIPTIONS[what].format(op=name)

    @property
    def op(self) -> OpSpec | None:
        """The op that is measured by itself, if it is one."""
        return OPS.get(self.kind.partition("/")[2])

    @property
    def trains(self) -> bool:
        return self.kind.partition("/")[0] != "forward"

    @property
    def trains_batchnorm(self) -> bool:
        """Whether BatchNorm's scale and bias are trained too."""
        return self.kind in ("train", "train_bn", "accumulate")

    @property
    def batch_statistics(self) -> bool:
        """Whether BatchNorm normalizes with the statistics of the batch instead of the kept ones."""
        return self.kind == "train_bn"

    @property
    def micro_batch(self) -> int:
        """How many inputs go through the network at a time."""
        return 1 if self.kind == "accumulate" else self.batch

    @property
    def momentum(self) -> float:
        return 0.9 if self.kind in ("train_bn", "cached") else 0.0

    @property
    def learning_rate(self) -> float:
        return 0.003


DEFAULT = tuple(Workload.parse(name) for name in ("forward:1", "train:1", "cached:163"))
