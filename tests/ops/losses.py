"""Run a loss on plain buffers, and compare with its float64 reference."""

from __future__ import annotations

import numpy as np
import pytest

from edgelearn.launch import Buffer, Role
from edgelearn.ops import Loss, Tensor
from edgelearn.ops.constants import Counter, Scalar
from edgelearn.ops.emit import Control
from edgelearn.ops.loss import emit_count

from .harness import close


def make_control(bench, targets: np.ndarray, inverse_batch: float, weights: np.ndarray | None = None) -> Control:
    scalars, counters = np.zeros((1, 16)), np.zeros((1, 16))
    scalars[0, Scalar.INVERSE_BATCH] = inverse_batch
    if targets.dtype.kind == "i":
        tensor = Tensor(bench._allocate(Buffer("labels", 4 * targets.size, Role.INPUT)), (1, targets.size))
        bench.context.write(bench.memory[tensor.buffer].handle, targets.astype(np.int32))
    else:
        tensor = bench.put(targets)
    of_rows = None if weights is None else bench.put(weights.reshape(1, -1))
    return Control(bench.put(scalars), bench.put(counters), tensor, of_rows)


def check_loss(
    bench, loss: Loss, outputs: np.ndarray, targets: np.ndarray, right: float, share: int = 1,
    weights: np.ndarray | None = None,
) -> None:  # fmt: skip
    """The loss, `right` answers and the gradient of a micro-batch that is one of `share` of its mini-batch."""
    n, outputs = len(targets), np.float32(outputs).astype(np.float64)
    if targets.dtype.kind == "f":
        targets = np.float32(targets).astype(np.float64)
    rows = outputs.reshape(-1, outputs.shape[-1])
    inverse = 1 / (share * len(rows))
    control, gradient = make_control(bench, targets, inverse, weights), bench.empty(outputs.shape)
    emit_count(bench, [loss.emit(bench, bench.put(outputs), control, gradient)], control, n)
    bench.run()
    flat = targets.reshape(-1) if targets.dtype.kind == "i" else targets.reshape(rows.shape)
    losses, expected = loss.reference(rows, flat)
    if weights is not None:
        losses, expected = losses * weights.reshape(-1), expected * weights.reshape(-1, 1)
    total = losses.sum() * n / len(rows)
    counters = bench.get(control.counters)[0]
    assert counters[Counter.LOSS] == pytest.approx(total, rel=1e-5, abs=1e-5 * n)
    assert counters[Counter.CORRECT] == pytest.approx(right, rel=1e-5)
    assert counters[Counter.SEEN] == n
    close(bench.get(gradient), expected.reshape(outputs.shape) / share, 1e-5)
    emit_count(bench, [loss.emit(bench, bench.put(outputs), control, None)], control, n)
    bench.run()
    assert bench.get(control.counters)[0, Counter.LOSS] == pytest.approx(2 * total, rel=1e-5, abs=1e-5 * n)


def check_reference(loss: Loss, outputs: np.ndarray, targets: np.ndarray) -> None:
    """The reference's gradient, against differences of its losses."""
    _, gradient = loss.reference(outputs, targets)
    for place in np.ndindex(outputs.shape):
        step = np.zeros_like(outputs)
        step[place] = 1e-6
        ahead, behind = (loss.reference(outputs + sign * step, targets)[0].mean() for sign in (1, -1))
        assert gradient[place] == pytest.approx((ahead - behind) / 2e-6, abs=1e-7)
