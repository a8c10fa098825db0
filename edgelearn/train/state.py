"""Where a training stands: its position, its state as checkpoints hold it, and the files of a model."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from edgelearn import records
from edgelearn.display import Displayed
from edgelearn.errors import DataError, FormatError, PlanError
from edgelearn.graph import Network
from edgelearn.interop.weights import Weights
from edgelearn.ops import Optimizer, Tensor
from edgelearn.ops.base import number
from edgelearn.ops.emit import LOSS_SCALE
from edgelearn.ops.formats import Format
from edgelearn.ops.observers import InHindsightMinMax
from edgelearn.ops.optimizers import AVERAGE, REFERENCE
from edgelearn.ops.quantize import FIELDS, first_record
from edgelearn.ops.tensor import Shape

from .schedules import rate_at

Logs = dict[str, float]
GROWTH = 2000  # updates without an overflow, after which the loss scale doubles


@dataclass
class Position:
    """The next step of an epoch, the number of updates so far, and the epoch's sums so far.

    Arguments:
    - `epoch`, `step`: the next step, both counted from 0.
    - `updates`: steps of all epochs so far.
    - `loss`: sum of the losses of the epoch's examples so far; `correct`: right answers; `seen`: examples.
    - `by_output`: these two sums of each of several outputs.
    - `seconds`: time of the epoch's steps so far.
    - `loss_scale`: of compute type fp16; `scaled`: updates since it changed.
    - `learning_rate`: the rate that was set instead of the optimizer's (default None: the optimizer's).
    """

    epoch: int = 0
    step: int = 0
    updates: int = 0
    loss: float = 0.0
    correct: float = 0
    seen: int = 0
    seconds: float = 0.0
    by_output: Mapping[str, Sequence[float]] = field(default_factory=dict)
    learning_rate: float | None = None
    loss_scale: float = LOSS_SCALE
    scaled: int = 0

    def next_epoch(self) -> Position:
        """The first step of the epoch after this one."""
        kept = {"learning_rate": self.learning_rate, "loss_scale": self.loss_scale, "scaled": self.scaled}
        return Position(epoch=self.epoch + 1, updates=self.updates, **kept)

    def scale_loss(self, finite: bool) -> None:
        """Halve the loss scale after an overflow, double it after `GROWTH` updates without one."""
        self.scaled = self.scaled + 1 if finite else 0
        if not finite:
            self.loss_scale /= 2
        elif self.scaled == GROWTH:
            self.loss_scale, self.scaled = self.loss_scale * 2, 0


class StoppedError(Exception):
    """Raised inside `fit` when `stop_training` is set before the first step."""


@dataclass
class TrainingStatus:
    """Progress of a training, shared by the loop, the model and the callbacks.

    Arguments:
    - `position`: the next step.
    - `epochs`: the number of epochs that the current `fit` ends with.
    - `steps_per_epoch`: the number of mini-batches.
    - `stop_training`: set it to end training after the current step.
    """

    position: Position = field(default_factory=Position)
    epochs: int = 0
    steps_per_epoch: int = 0
    stop_training: bool = False

    def check_stop(self) -> None:
        """Raises StoppedError once `stop_training` is set."""
        if self.stop_training:
            raise StoppedError


class TrainedModel(Displayed, ABC):
    """The interface that callbacks use: a Model, or a Trainer."""

    status: TrainingStatus

    @property
    def position(self) -> Position:
        return self.status.position

    @position.setter
    def position(self, position: Position) -> None:
        self.status.position = position

    @property
    def stop_training(self) -> bool:
        """Set it to True to end training after the current step."""
        return self.status.stop_training

    @stop_training.setter
    def stop_training(self, stop: bool) -> None:
        self.status.stop_training = stop

    @property
    def epochs(self) -> int:
        """The number of epochs that the current `fit` ends with."""
        return self.status.epochs

    @property
    def steps_done(self) -> int:
        return self.status.position.epoch * self.status.steps_per_epoch + self.status.position.step

    @property
    def steps_total(self) -> int:
        return self.status.epochs * self.status.steps_per_epoch

    @property
    @abstractmethod
    def optimizer(self) -> Optimizer:
        """The rule that updates the weights."""

    @property
    def learning_rate(self) -> float:
        """The rate of the next step. Setting it replaces the optimizer's number or schedule until the model is compiled
        again; checkpoints hold it. Raises PlanError for a rate that can't be."""
        at = self.status.position
        return rate_at(self.optimizer.learning_rate, at.updates) if at.learning_rate is None else at.learning_rate

    @learning_rate.setter
    def learning_rate(self, rate: float) -> None:
        self.status.position.learning_rate = number("learning_rate", rate, 0)

    @property
    @abstractmethod
    def weights(self) -> Weights:
        """Copies of all weights of the network, float32 by "layer/role"."""

    @weights.setter
    @abstractmethod
    def weights(self, weights: Weights) -> None: ...

    @abstractmethod
    def swap_averages(self) -> None:
        """Exchange the trained weights and their moving averages, which an optimizer with use_ema=True keeps on the
        device: `evaluate`, `predict` and `save` then use the averages, until it is called again. BatchNorm's statistics
        have no average. Raises PlanError if there are none."""

    @abstractmethod
    def state(self) -> tuple[Weights, dict]:
        """All that training needs to continue: (tensors by name, JSON values)."""

    @abstractmethod
    def restore(self, tensors: Weights, position: dict) -> None:
        """Return to where `state` was called. Raises FormatError if that was another network's or another training."""

    @abstractmethod
    def evaluate(self, x, y) -> Logs:
        """Return the mean loss, the accuracy where the loss has one, and the metrics."""

    @abstractmethod
    def predict(self, x) -> Any:
        """Return the network's output for each example; of several outputs a dictionary by name."""

    @abstractmethod
    def range_records(self) -> Weights:
        """Return the range statistics of quantized tensors by "layer/kind": float32 (16,), see ops.quantize.FIELDS."""

    @abstractmethod
    def reconstruction_errors(self) -> dict[str, float]:
        """Return the errors of the activations that the last step inverted: see Session.reconstruction_errors."""


GROUPS = ("weights", "optimizer", "ranges")


@dataclass(frozen=True)
class TrainingState:
    """Everything that a training needs to continue.

    Arguments:
    - `weights`: the weights that training changes, by "layer/role".
    - `slots`: the optimizer's state by "slot/layer/role" (default none).
    - `records`: range statistics of quantized tensors by "layer/kind" (default none).
    - `position`: the next step (default the first).
    - `new_ranges`: ranges that `records` lacks are measured again (default False: they are missing).
    """

    weights: Weights
    slots: Weights = field(default_factory=dict)
    records: Weights = field(default_factory=dict)
    position: Position = field(default_factory=Position)
    new_ranges: bool = False

    def to_tensors(self) -> tuple[Weights, dict]:
        """Return (tensors by "group/name", position as JSON values)."""
        groups = zip(GROUPS, (self.weights, self.slots, self.records), strict=True)
        tensors = {f"{group}/{name}": array for group, arrays in groups for name, array in arrays.items()}
        return tensors, asdict(self.position)

    @classmethod
    def of(cls, tensors: Weights, position: dict) -> TrainingState:
        """Return the state that `to_tensors` was called on. Raises FormatError for anything else."""
        groups: dict[str, Weights] = {group: {} for group in GROUPS}
        for name, array in tensors.items():
            group, _, rest = name.partition("/")
            if group not in groups:
                raise FormatError(f"The checkpoint has a tensor '{name}', which is not edgelearn's.")
            groups[group][rest] = array
        try:
            at = records.convert(position, Position)
        except records.RecordError as error:
            raise FormatError(f"The checkpoint's state is not edgelearn's: {error}.") from None
        for name in ("epoch", "step", "updates", "seen", "scaled"):
            if not 0 <= getattr(at, name) < 1 << 32:  # kernels count updates in 32 bits
                raise FormatError(f"The checkpoint's state is not edgelearn's: {name} is {getattr(at, name)}.")
        return cls(groups["weights"], groups["optimizer"], groups["ranges"], at)

    def check(self, weights: Iterable[str], slots: Mapping[str, Shape], quantizes: bool) -> None:
        """Raises FormatError unless the state fits a training.

        Arguments:
        - `weights`: names of the weights that the training changes.
        - `slots`: shapes of its optimizer's state, by name.
        - `quantizes`: whether it quantizes tensors.
        """
        slots = slots if self.slots or self.position.updates else {}
        for what, present, expected in ("weights", self.weights, weights), ("optimizer state", self.slots, slots):
            if odd := set(present) ^ set(expected):
                raise FormatError(
                    f"The checkpoint's {what} belong to another training: '{min(odd)}' is "
                    f"{'unknown' if min(odd) in present else 'missing'}. Build the same network, freeze the same "
                    f"layers and compile with the same optimizer before restoring."
                )
        for name, array in self.slots.items():
            if array.shape != tuple(slots[name]) or array.dtype.kind != "f":
                raise FormatError(
                    f"The checkpoint's optimizer state '{name}' has shape {array.shape} and type {array.dtype}; "
                    f"this training's has shape {tuple(slots[name])}."
                )
        if self.records and not quantizes:
            raise FormatError(
                "The checkpoint belongs to a training that quantizes tensors, unlike this one: compile with the same "
                "precision before restoring."
            )

    def swapped(self) -> TrainingState:
        """Return the state with weights and their averages exchanged. Raises PlanError if there are no averages."""
        averages = {name.split("/", 1)[1]: a for name, a in self.slots.items() if name.startswith(f"{AVERAGE}/")}
        if not averages:
            raise PlanError("There is no average of the weights: train with an optimizer that has use_ema=True.")
        slots = {f"{AVERAGE}/{name}": self.weights[name] for name in averages}
        return replace(self, weights=self.weights | averages, slots=self.slots | slots)

    def carried(self, slots: Mapping[str, Tensor], quantizers: Iterable[str]) -> TrainingState:
        """Return the state for a training of other layers: what both train keeps its state, the rest starts anew.

        Arguments:
        - `slots`: the optimizer's state of the other training, by name.
        - `quantizers`: names of the tensors that it quantizes. If they differ, all ranges are measured again.
        """
        records, new = (self.records, False) if set(self.records) == set(quantizers) else ({}, True)
        if not self.slots or self.slots.keys() == slots.keys():
            return replace(self, records=records, new_ranges=new)
        kept = {name: self.slots[name] if name in self.slots else self._new_slot(name, t) for name, t in slots.items()}
        started, dropped = (
            sorted({name.split("/", 1)[1] for name in names})
            for names in (slots.keys() - self.slots.keys(), self.slots.keys() - slots.keys())
        )
        changes = [f"the optimizer state of {_some(started)} starts anew"] if started else []
        changes += [f"that of {_some(dropped)} is dropped"] if dropped else []
        warnings.warn(f"Layers were frozen or unfrozen since the last step: {', '.join(changes)}.", stacklevel=2)
        return replace(self, slots=kept, records=records, new_ranges=new)

    def _new_slot(self, name: str, tensor: Tensor) -> np.ndarray:
        """Return zeros, or the weights for their average and for what a proximal term pulls to."""
        slot, parameter = name.split("/", 1)
        return self.weights[parameter] if slot in (AVERAGE, REFERENCE) else np.zeros(tensor.shape, np.float32)


def _some(names: list[str]) -> str:
    return f"'{names[0]}'" + (f" (and {len(names) - 1} more)" if names[1:] else "")


BATCH = 8  # examples whose activations are held at once


def calibrate(model: Any, x: Any, batch_size: int = BATCH) -> Weights:
    """Return records of the smallest and the largest value of every activation, as a training leaves them, and of the
    network's outputs.

    Arguments:
    - `model`: a Model; it is left as it is.
    - `x`: examples of the kind that the exported model will get, (n, ...), or a dictionary of them by input; a hundred
      are usually enough.
    - `batch_size`: examples that are computed at once (default 8).

    Raises DataError if there are no examples.
    """
    from edgelearn.interop.exporting import ranged  # with the exporters, which an import doesn't wait for

    inputs = x if isinstance(x, Mapping) else {next(iter(model.network.inputs)): x}
    count = len(next(iter(inputs.values())))
    if not count:
        raise DataError("Calibration needs examples: give some of the kind that the model will get.")
    names = ranged(model.network)
    whole = Network.from_json(model.network.to_json())
    whole.outputs = tuple(names) or whole.outputs
    probe = type(model)(whole, model.weights, model.device)
    ends: dict[str, tuple[float, float]] = {}
    for begin in range(0, count, batch_size):
        part = {name: np.asarray(a[begin : begin + batch_size], np.float32) for name, a in inputs.items()}
        size = min(batch_size, count - begin)
        found = probe.predict(part if isinstance(x, Mapping) else next(iter(part.values())), size)
        values = found if isinstance(found, dict) else {whole.outputs[0]: found}
        for name, array in (part | values).items():
            low, high = ends.get(name, (np.inf, -np.inf))
            ends[name] = min(low, float(array.min())), max(high, float(array.max()))
    return {f"{name}/activations": _record(*ends[name]) for name in (*inputs, *names)}


def _record(low: float, high: float) -> np.ndarray:
    record = first_record(InHindsightMinMax())
    scale, zero = Format(8).parameters(np.float32(low), np.float32(high))
    known = {"scale": scale, "inverse": 1 / scale, "zero": zero, "low": low, "high": high, "least": low, "most": high,
             "next_low": low, "next_high": high}  # fmt: skip
    for name, value in known.items():
        record[FIELDS.index(name)] = value
    return record


OWN = ".safetensors"
WEIGHTS = (OWN, ".weights.h5", ".pt", ".pth")  # ends of the names of files of weights alone


def check_suffix(path: str | Path, weights_alone: bool = False) -> str:
    """Return the end of a file's name. Raises FormatError for one under which `save`, or `save_weights` with
    `weights_alone`, would write something else than it says."""
    for suffix in WEIGHTS if weights_alone else (OWN,):
        if Path(path).name.lower().endswith(suffix):
            return suffix
    if weights_alone:
        raise FormatError(f"{path}: names of files of weights alone end in {', '.join(WEIGHTS)}.")
    raise FormatError(
        f"{path}: save writes edgelearn's own format, with the state of training, under names that end in {OWN}: "
        f"'{Path(path).stem or 'model'}{OWN}'. For other frameworks there is model.export('model.onnx'), with the "
        f"suffix of .onnx, .tflite, .keras and others."
    )
