"""Workloads: a kind of step, a network and a batch size, written `kind`, `kind:batch` or `network/kind:batch`.

A step is one of a network, `train:16`, or of a single op of MobileNet V1, `train/conv_pw_1:16`. Its numbers are drawn
from a seed: every contender gets the same.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

import numpy as np

from edgelearn.errors import PlanError, UsageError
from edgelearn.extensions import check_name
from edgelearn.graph import Network, split_frozen, without_softmax_and_dropout
from edgelearn.interop import find_network
from edgelearn.interop.weights import Weights
from edgelearn.ops import (
    SGD,
    Add,
    BatchNormalization,
    Conv2D,
    Dense,
    DepthwiseConv2D,
    GlobalAveragePooling2D,
    Loss,
    Op,
    Optimizer,
    SoftmaxCrossEntropy,
)
from edgelearn.ops.tensor import Shape

NAME = "op"  # of the layer in a network of one op


@dataclass(frozen=True)
class OpSpec:
    """An op on inputs of `shape`, without the batch; an update is one of parameters of this shape."""

    op: Op | Loss | Optimizer
    shape: Shape

    @property
    def reads_pictures(self) -> bool:
        """True if its input is the network's, whose gradient nobody needs."""
        return self.shape[-1] == 3

    @property
    def output_shape(self) -> Shape:
        """Without the batch; () of a loss, the parameters' of an update."""
        if isinstance(self.op, Op):
            return self.op.output_shape(self.shape)
        return () if isinstance(self.op, Loss) else self.shape

    def network(self) -> Network:
        """The op as a network of one layer."""
        assert isinstance(self.op, Op)
        network = Network(NAME, self.shape)
        network.add(NAME, self.op)
        return network


def _conv(filters: int, size: int = 1, strides: int = 1) -> Conv2D:
    return Conv2D(filters, size, strides, "same", use_bias=False)


def _depthwise(strides: int = 1) -> DepthwiseConv2D:
    return DepthwiseConv2D(3, strides, "same", use_bias=False)


OPS = {
    "conv1": OpSpec(_conv(32, 3, 2), (224, 224, 3)),
    "conv_dw_1": OpSpec(_depthwise(), (112, 112, 32)),
    "conv_pw_1": OpSpec(_conv(64), (112, 112, 32)),
    "conv_pw_1_bn": OpSpec(BatchNormalization(), (112, 112, 64)),  # with the batch's statistics
    "conv_dw_2": OpSpec(_depthwise(2), (112, 112, 64)),
    "conv_pw_3": OpSpec(_conv(128), (56, 56, 128)),
    "conv_dw_7": OpSpec(_depthwise(), (14, 14, 512)),
    "conv_pw_7": OpSpec(_conv(512), (14, 14, 512)),
    "conv_pw_13": OpSpec(_conv(1024), (7, 7, 1024)),
    "pool": OpSpec(GlobalAveragePooling2D(), (7, 7, 1024)),
    "dense": OpSpec(Dense(1000), (1024,)),
    "loss": OpSpec(SoftmaxCrossEntropy(), (1000,)),
    "update": OpSpec(SGD(), (4_231_976,)),
}


@dataclass(frozen=True)
class OpProblem:
    """Numbers for a single op.

    - `x`: inputs (batch, ...); of an update the parameters.
    - `weights`: by role ("kernel"), in the network's shapes; moving statistics among them.
    - `dy`: gradient of the output; of an update that of the parameters.
    - `labels`: of the loss.
    """

    spec: OpSpec
    x: np.ndarray
    weights: dict[str, np.ndarray]
    dy: np.ndarray
    labels: np.ndarray
    learning_rate: float

    @property
    def trained(self) -> dict[str, np.ndarray]:
        """The weights that have gradients."""
        return {role: array for role, array in self.weights.items() if not role.startswith("moving")}

    @property
    def named_weights(self) -> dict[str, np.ndarray]:
        """Weights by their names in the network of one layer."""
        return {f"{NAME}/{role}": array for role, array in self.weights.items()}


def make_op_problem(spec: OpSpec, batch: int, seed: int, learning_rate: float) -> OpProblem:
    """Normally distributed numbers; kernels by He's initialization. Same arguments, same numbers."""
    random = np.random.default_rng([seed, 4])

    def draw(shape: tuple[int, ...]) -> np.ndarray:
        return random.standard_normal(shape, np.float32)

    x, dy = draw((batch, *spec.shape)), draw((batch, *spec.output_shape))
    weights = {}
    if isinstance(spec.op, Op):
        for role, weight in spec.op.weights(spec.shape).items():
            if not weight.trainable:
                weights[role] = np.full(weight.shape, float(role == "moving_variance"), np.float32)
            else:
                scale = (2 / weight.fan_in) ** 0.5 if role == "kernel" else 1.0
                weights[role] = draw(weight.shape) * np.float32(scale)
    return OpProblem(spec, x, weights, dy, random.integers(0, spec.shape[-1], batch), learning_rate)


def digest(*arrays: np.ndarray) -> list[float]:
    """Two numbers for each array, by which contenders are compared: the logarithm of its norm, and its cosine to a
    direction that depends on its place and size alone. Arrays are in the network's layouts."""
    numbers = []
    for place, array in enumerate(arrays):
        flat = np.asarray(array, np.float64).ravel()
        direction = np.random.default_rng([place, flat.size]).standard_normal(flat.size)
        norm = float(np.linalg.norm(flat))
        numbers += [float(np.log(norm)), float(flat @ direction) / norm if norm else 0.0]
    return numbers


DEFAULT_NETWORK = "mobilenet_v1"
FULL, INT8 = "fp32", "int8"
# Relative difference allowed between what contenders compute, by type. With batch statistics, elements that sit on an
# edge of ReLU6 fall to either side by rounding alone, which moves the loss of the third step by about a thousandth.
AGREEMENT = {FULL: 5e-3, "tf32": 1e-2, "bf16": 3e-2, "fp16": 1e-2, INT8: 0.1}
TYPES = tuple(AGREEMENT)
DEFAULT_BATCH = {"forward": 1, "train": 1, "train_bn": 1, "accumulate": 8, "cached": 163}

DESCRIPTIONS = {
    "forward": "inference of {network}",
    "train": "one SGD step on every layer of {network}, BatchNorm with moving statistics",
    "train_bn": "one SGD step with momentum on every layer of {network}, BatchNorm with batch statistics",
    "accumulate": "one SGD step on every layer of {network}, the mini-batch taken example by example",
    "cached": "one SGD step with momentum on the last layers of {network}, from stored features",
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
        if self.op:
            name = self.kind.partition("/")[2]
            return f"{name} of MobileNet V1 1.0/224 alone, forward{' and backward' * self.trains}"
        network = "MobileNet V1 1.0/224" if self.network == DEFAULT_NETWORK else self.network
        return DESCRIPTIONS[self.kind].format(network=network)

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


CACHED_CLASSES = 5


@dataclass(frozen=True)
class Problem:
    """A network that gives logits, its weights by name, inputs (batch, *input_shape) and integer labels."""

    network: Network
    weights: dict[str, np.ndarray]
    inputs: np.ndarray
    labels: np.ndarray

    def parts(self, size: int) -> list[tuple[np.ndarray, np.ndarray]]:
        """Inputs and labels (int32) of each micro-batch."""
        labels = self.labels.astype(np.int32)
        return [(self.inputs[i : i + size], labels[i : i + size]) for i in range(0, len(labels), size)]


def make_network(workload: Workload) -> Network:
    """The network of a workload, as `find_part`."""
    return find_part(workload)[0]


def find_part(workload: Workload) -> tuple[Network, Weights]:
    """The network of a workload, without softmax and dropout, of "cached" the part above the stored features; and the
    weights that come with it, if any.

    Raises as `find_network`, PlanError for a single op, and where "cached" has nothing to store.
    """
    if workload.op:
        raise PlanError(f"Workload {workload.name} is a single op without a plan: choose one of a whole network.")
    settings = {"classes": CACHED_CLASSES} if workload.kind == "cached" else {}
    file = find_network(workload.network, **settings)
    network = without_softmax_and_dropout(file.network)
    _ = network.input_shape, network.output  # one of each, or PlanError
    if workload.kind != "cached":
        return network, file.weights
    last = {type(node.op): node.name for node in network.nodes.values()}
    heads = [last[kind] for kind in (Conv2D, Dense) if kind in last]
    split = split_frozen(network.freeze().unfreeze(*heads)) if heads else None
    if split is None:
        raise PlanError(f"'{workload.network}' has no frozen part below {' and '.join(heads)}: nothing can be stored.")
    return split.suffix, file.weights


def make_problem(workload: Workload) -> Problem | OpProblem:
    """Network, weights, inputs and labels; an OpProblem of a single op. Same workload, same numbers."""
    if workload.op:
        return make_op_problem(workload.op, workload.batch, workload.seed, workload.learning_rate)
    network, known = find_part(workload)
    inputs = np.random.default_rng([workload.seed, 2])
    shape = (workload.batch, *network.input_shape)
    if workload.kind == "cached":
        data = np.clip(inputs.standard_normal(shape, np.float32), 0, 6)
    else:
        data = inputs.random(shape, np.float32) * 2 - 1
    labels = inputs.integers(0, network.output.shape[-1], workload.batch)
    drawn = _draw_weights(network, np.random.default_rng([workload.seed, 1]))
    return Problem(network, drawn | {name: known[name] for name in drawn if name in known}, data, labels)


def _draw_weights(network: Network, random: np.random.Generator) -> dict[str, np.ndarray]:
    """He's initialization, which keeps the second moment near 1 through ReLUs, so that statistics near 0 and 1 fit. A
    BatchNormalization that ends a residual branch has small scales: the sum of many branches stays small. Other roles
    have their initializers' values."""
    centers = {"gamma": 1.0, "moving_variance": 1.0, "beta": 0.0, "moving_mean": 0.0}
    parameters = network.parameters.values()
    initial = {} if all(p.role in (*centers, "kernel", "bias") for p in parameters) else network.initialize()
    found = {}
    for name, parameter in network.parameters.items():
        weight, role = parameter.weight, parameter.role
        if role == "kernel":
            gain = 1 if isinstance(network.nodes[parameter.layer].op, Dense) else 2
            found[name] = random.standard_normal(weight.shape, np.float32) * np.float32((gain / weight.fan_in) ** 0.5)
        elif role == "bias":
            found[name] = np.zeros(weight.shape, np.float32)
        elif role not in centers:
            found[name] = initial[name]
        else:
            found[name] = (centers[role] + random.uniform(-0.1, 0.1, weight.shape)).astype(np.float32)
            if role == "gamma" and any(isinstance(node.op, Add) for node in network.consumers(parameter.layer)):
                found[name] *= np.float32(0.2)
    return found
