"""Records of the quantized tensors over a training."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from edgelearn.display import Displayed, plural
from edgelearn.errors import FormatError, PlanError
from edgelearn.interop.safetensors import read_weights, to_bytes
from edgelearn.ops.quantize import FIELDS

from .callbacks import Callback
from .state import Logs

STEPS = "steps"


class RangeTrace(Displayed):
    """Range statistics of quantized tensors over a training. Every property is an array (steps, tensors).

    Arguments:
    - `tensors`: names "layer/kind", in the order in which a step writes them.
    - `steps`: numbers of the recorded updates.
    - `records`: float32 (steps, tensors, 16), fields as in ops.quantize.FIELDS. `signal_to_noise` and `cosine` are NaN
      unless the precision is traced.
    """

    def __init__(self, tensors: list[str], steps: np.ndarray, records: np.ndarray) -> None:
        self.tensors, self.steps, self.records = tensors, steps, records

    @property
    def headline(self) -> str:
        return f"of {plural(len(self.tensors), 'tensor')} in {plural(len(self.steps), 'step')}"

    def _field(self, name: str) -> np.ndarray:
        return self.records[:, :, FIELDS.index(name)].astype(np.float64)  # products of sums of squares leave float32

    @property
    def low(self) -> np.ndarray:
        """The lower end of the range in use; of per-channel weights, of all channels."""
        return self._field("low")

    @property
    def high(self) -> np.ndarray:
        return self._field("high")

    @property
    def least(self) -> np.ndarray:
        """The smallest value of the mini-batch, or 0."""
        return self._field("least")

    @property
    def most(self) -> np.ndarray:
        """The largest value of the mini-batch, or 0."""
        return self._field("most")

    @property
    def clipped(self) -> np.ndarray:
        """The fraction of values outside the range in use."""
        return self._field("clipped") / np.maximum(self._field("count"), 1)

    @property
    def signal_to_noise(self) -> np.ndarray:
        """Signal-to-noise ratio of quantization, in decibels."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return 10 * np.log10(self._traced("signal") / self._field("noise"))

    @property
    def cosine(self) -> np.ndarray:
        """Cosine between a tensor before and after quantization; 0 if all its values became 0."""
        tiny = np.finfo(np.float32).tiny
        return self._field("product") / np.sqrt(self._traced("signal") * np.maximum(self._field("result"), tiny))

    def _traced(self, name: str) -> np.ndarray:
        values = self._field(name)
        return np.where(values > 0, values, np.nan)

    @property
    def staleness(self) -> np.ndarray:
        """Distance of the range in use from the mini-batch's own range, in widths of the latter."""
        with np.errstate(divide="ignore", invalid="ignore"):
            off = np.abs(self.low - self.least) + np.abs(self.high - self.most)
            return off / (self.most - self.least)

    def first_divergence(self, cosine: float = 0.9) -> tuple[int, str] | None:
        """Return the first (step, tensor) whose cosine is below `cosine`, or None; of several in a step, the one
        written first.

        Raises PlanError when the precision wasn't traced."""
        cosines = self.cosine
        if cosines.size and np.isnan(cosines).all():
            raise PlanError("There are no cosines: train with Precision(..., traced=True).")
        places = np.argwhere(cosines < cosine)
        return (int(self.steps[places[0][0]]), self.tensors[places[0][1]]) if len(places) else None

    def to_bytes(self) -> bytes:
        """Return a safetensors file; write it with edgelearn.atomic to be safe from interruptions."""
        by_name = {f"{i:04d} {name}": self.records[:, i] for i, name in enumerate(self.tensors)}
        return to_bytes(by_name | {STEPS: self.steps})

    @classmethod
    def read(cls, path: str | Path) -> RangeTrace:
        """Read a file that `to_bytes` made. Raises FormatError for any other."""
        arrays = read_weights(path)
        steps = arrays.pop(STEPS, None)
        keys = sorted(arrays)
        fits = steps is not None and all(arrays[key].shape == (len(steps), 16) for key in keys)
        if steps is None or not fits or not all(key[:4].isdigit() for key in keys):
            raise FormatError(f"{path} is not a trace of ranges: give a file that RangeTrace.to_bytes made.")
        shape = len(steps), len(keys), 16
        records = np.stack([arrays[key] for key in keys], 1) if keys else np.zeros(shape, np.float32)
        return cls([key[5:] for key in keys], steps, records)


class TraceRanges(Callback):
    """Collect a RangeTrace while `fit` runs: a read of 64 bytes per tensor every `every` steps (default 10)."""

    def __init__(self, every: int = 10) -> None:
        if every < 1:
            raise PlanError(f"Ranges are traced every 1 or more steps, not {every}.")
        self.every = every
        self._steps: list[int] = []
        self._records: list[np.ndarray] = []
        self._tensors: list[str] = []

    def on_train_batch_end(self, batch: int, logs: Logs) -> None:
        step = self.model.position.updates
        if (step - 1) % self.every == 0:
            ranges = self.model.range_records()
            if not ranges:
                raise PlanError("Nothing is quantized, so there are no ranges to trace: compile with a precision.")
            self._tensors = list(ranges)
            self._steps.append(step)
            self._records.append(np.stack(list(ranges.values())))

    def go_on(self, before: RangeTrace, updates: int) -> None:
        """Continue an earlier trace: its records of the first `updates` steps are kept."""
        kept = np.asarray(before.steps) <= updates
        self._tensors = before.tensors
        self._steps, self._records = before.steps[kept].astype(int).tolist(), list(before.records[kept])

    @property
    def trace(self) -> RangeTrace:
        shape = len(self._steps), len(self._tensors), len(FIELDS)
        records = np.array(self._records, np.float32).reshape(shape)
        return RangeTrace(self._tensors, np.array(self._steps, np.int64), records)
