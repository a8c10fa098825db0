"""The checks that ops with weights share that are no linear ops."""

from __future__ import annotations

import numpy as np

from edgelearn.ops import Op, Target, finish
from edgelearn.ops.tensor import RELU6

from .harness import Workbench, close


def check_weighted(op: Op, bench: Workbench, rng: np.random.Generator, shape, n: int = 3) -> None:
    """Forward; backward to the input, as it is and masked and added to another share; and to the weights, added to
    those of an earlier micro-batch, and without the input's."""
    x = np.float64(np.float32(rng.uniform(-3, 9, (n, *shape))))
    weights = {role: rng.uniform(0.5, 1.5, weight.shape) for role, weight in op.weights(shape).items()}
    dy = rng.standard_normal(x.shape)
    (dx,), dweights = op.reference_backward([x], weights, dy)
    tx, tdy, ty, tdx = bench.put(x), bench.put(dy), bench.empty(x.shape), bench.empty(x.shape)
    tws = [bench.put(w) for w in weights.values()]
    op.emit_forward(bench, [tx, *tws], ty)
    op.emit_backward(bench, [tx, *tws], ty, tdy, [Target(tdx), *(None for _ in tws)])
    bench.run()
    close(bench.get(ty), op.reference_forward([x], weights))
    close(bench.get(tdx), dx)

    tdws = [bench.empty(w.shape) for w in weights.values()]
    for add in (False, True):
        targets = [Target(t, accumulate=add) for t in tdws]
        masked = Target(tdx, tx, RELU6, accumulate=True) if add else None
        for found in op.emit_backward(bench, [tx, *tws], ty, tdy, [masked, *targets]):
            finish.emit_sum(bench, found)
        bench.run()
        for role, tdw in zip(weights, tdws, strict=True):
            close(bench.get(tdw), dweights[role] * (1 + add))
    close(bench.get(tdx), dx + dx * ((x > 0) & (x < 6)))
