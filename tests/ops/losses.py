"""Run a loss on plain buffers, and compare with its float64 reference."""

from __future__ import annotations

import numpy as np
import pytest

from edgelearn.launch import Buffer, Role
from edgelearn.ops import Loss, Tensor
from edgelearn.ops.control import CORRECT, INVERSE_BATCH, LOSS, SEEN, Control
from edgelearn.ops.loss import emit_count

from .harness import close


def make_control(bench, labels: np.ndarray, inverse_batch: float) -> Control:
    scalars, counters = np.zeros((1, 16)), np.zeros((1, 16))
    scalars[0, INVERSE_BATCH] = inverse_batch
    tensor = Tensor(bench._allocate(Buffer("labels", 4 * len(labels), Role.INPUT)), (1, len(labels)))
    bench.context.write(bench.memory[tensor.buffer].handle, labels.astype(np.int32))
    return Control(bench.put(scalars), bench.put(counters), tensor)


def check_loss(bench, loss: Loss, outputs: np.ndarray, labels: np.ndarray, right: float, share: int = 1) -> None:
    """The loss, `right` answers and the gradient of a micro-batch that is one of `share` of its mini-batch."""
    n, outputs = len(labels), np.float32(outputs).astype(np.float64)
    control, gradient = make_control(bench, labels, 1 / (share * n)), bench.empty(outputs.shape)
    emit_count(bench, loss.emit(bench, bench.put(outputs), control, gradient), control)
    bench.run()
    losses, expected = loss.reference(outputs, labels)
    counters = bench.get(control.counters)[0]
    assert counters[LOSS] == pytest.approx(losses.sum(), rel=2e-5, abs=1e-5 * n)
    assert counters[CORRECT] == pytest.approx(right, rel=1e-5)
    assert counters[SEEN] == n
    close(bench.get(gradient), expected / share)
    emit_count(bench, loss.emit(bench, bench.put(outputs), control, None), control)
    bench.run()
    assert bench.get(control.counters)[0, LOSS] == pytest.approx(2 * losses.sum(), rel=2e-5, abs=1e-5 * n)


def check_reference(loss: Loss, outputs: np.ndarray, labels: np.ndarray) -> None:
    """The reference's gradient, against differences of its losses."""
    _, gradient = loss.reference(outputs, labels)
    for place in np.ndindex(outputs.shape):
        step = np.zeros_like(outputs)
        step[place] = 1e-6
        ahead, behind = (loss.reference(outputs + sign * step, labels)[0].mean() for sign in (1, -1))
        assert gradient[place] == pytest.approx((ahead - behind) / 2e-6, abs=1e-7)
