"""Run a loss on plain buffers, and compare with its float64 reference."""

from __future__ import annotations

import numpy as np
import pytest

from edgelearn.ops import Loss
from edgelearn.ops.constants import Counter
from edgelearn.ops.emit import Control
from edgelearn.ops.loss import emit_count

from .harness import Workbench, close


def make_control(bench: Workbench, targets: np.ndarray, inverse_batch: float, weights=None) -> Control:
    """The numbers of an update, with targets (class numbers, if they are integers) and weights of rows."""
    classes = targets.dtype.kind == "i"
    on_device = bench.put(targets.reshape(1, -1), targets.size, "int32") if classes else bench.put(targets)
    of_rows = None if weights is None else bench.put(weights.reshape(1, -1))
    return bench.control(on_device, of_rows, inverse_batch=inverse_batch)


def check_loss(
    bench: Workbench, loss: Loss, outputs: np.ndarray, targets: np.ndarray, right: float, share: int = 1,
    weights: np.ndarray | None = None,
) -> None:  # fmt: skip
    """The loss, `right` answers and the gradient of a micro-batch that is one of `share` of its mini-batch."""
    n, outputs = len(targets), np.float32(outputs).astype(np.float64)
    classes = targets.dtype.kind == "i"
    targets = targets if classes else np.float32(targets).astype(np.float64)
    rows = outputs.reshape(-1, outputs.shape[-1])
    losses, expected = loss.reference(rows, targets.reshape(-1) if classes else targets.reshape(rows.shape))
    if weights is not None:
        losses, expected = losses * weights.reshape(-1), expected * weights.reshape(-1, 1)
    total = losses.sum() * n / len(rows)

    control, gradient = make_control(bench, targets, 1 / (share * len(rows)), weights), bench.empty(outputs.shape)
    for times, target in enumerate((gradient, None), 1):  # the second adds to what the first has counted
        emit_count(bench, [loss.emit(bench, bench.put(outputs), control, target)], control, n)
        bench.run()
        assert bench.count(control, Counter.LOSS) == pytest.approx(times * total, rel=1e-5, abs=1e-5 * n)
        assert bench.count(control, Counter.CORRECT) == pytest.approx(times * right, rel=1e-5)
        assert bench.count(control, Counter.SEEN) == times * n
    close(bench.get(gradient), expected.reshape(outputs.shape) / share, 1e-5)


def check_reference(loss: Loss, outputs: np.ndarray, targets: np.ndarray) -> None:
    """The reference's gradient, against differences of its losses."""
    _, gradient = loss.reference(outputs, targets)
    for place in np.ndindex(outputs.shape):
        step = np.zeros_like(outputs)
        step[place] = 1e-6
        ahead, behind = (loss.reference(outputs + sign * step, targets)[0].mean() for sign in (1, -1))
        assert gradient[place] == pytest.approx((ahead - behind) / 2e-6, abs=1e-7)
