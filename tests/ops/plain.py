"""The checks that all ops without weights share."""

from __future__ import annotations

import numpy as np

from edgelearn.ops import Op, Target
from edgelearn.ops.tensor import RELU6

from .harness import Workbench, close


def check_plain(
    op: Op,
    bench: Workbench,
    rng: np.random.Generator,
    *shapes,
    n: int = 2,
    whole: bool = False,
    low: float = -3,
) -> None:
    """Forward, and backward to every input: as it is, masked and added to another share, and with only the last input
    asking. Values go from `low` to 9, so that ReLU6's mask matters; `whole` numbers have many ties."""
    xs = [np.float32(rng.integers(low, 9, (n, *s)) if whole else rng.uniform(low, 9, (n, *s))) for s in shapes]
    inputs = [x.astype(np.float64) for x in xs]
    out_shape = op.output_shape(*shapes)
    txs, ty = [bench.put(x) for x in xs], bench.empty((n, *out_shape))
    op.emit_forward(bench, txs, ty)
    bench.run()
    y = op.reference_forward(inputs, {})
    assert y.shape == (n, *out_shape)
    close(bench.get(ty), y)

    dy = rng.standard_normal(y.shape)
    dxs, weights = op.reference_backward(inputs, {}, dy)
    assert not weights
    tdy, tdxs = bench.put(dy), [bench.empty(x.shape) for x in xs]
    op.emit_backward(bench, txs, ty, tdy, [Target(t) for t in tdxs])
    bench.run()
    for tdx, dx in zip(tdxs, dxs, strict=True):
        close(bench.get(tdx), dx)
    masked = [Target(t, tx, RELU6, accumulate=True) for t, tx in zip(tdxs, txs, strict=True)]
    op.emit_backward(bench, txs, ty, tdy, masked)
    bench.run()
    for tdx, dx, x in zip(tdxs, dxs, xs, strict=True):
        close(bench.get(tdx), dx + dx * ((x > 0) & (x < 6)))
    last = bench.empty(xs[-1].shape)
    op.emit_backward(bench, txs, ty, tdy, [None] * (len(xs) - 1) + [Target(last)])
    bench.run()
    close(bench.get(last), dxs[-1])
