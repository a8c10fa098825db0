"""Training steps that sessions take, and how they compare."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from edgelearn.compile import Request
from edgelearn.ops import Traits, pack
from edgelearn.runtime import Session

from .quantized_reference import Arrays
from .test_networks import EXAMPLES, drawn


def batches(session: Session, x: np.ndarray, labels: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Micro-batches as a session is given them."""
    block, start = session.plan.storage.input.block, 0
    for n in session.plan.micro_batches(len(x)):
        yield pack(x[start : start + n], block), labels[start : start + n]
        start += n


def first_step(start, request: Request, data=None, traits: Traits | None = None) -> tuple[float, Arrays]:
    """(loss, gradients) of a first step with `data` (default: as `drawn`), in the memory that was planned."""
    weights, x, labels = data or drawn(request.network)
    session = start(request, weights, traits)
    loss, _, finite = session.train(batches(session, x, labels), len(x), 0.0, 1)
    assert finite and session.allocated_bytes == session.plan.peak_bytes
    return loss, session.gradients()


def steps(start, request: Request, shrunk: float = 1.0):
    """(losses, gradients, weights, records) of three steps, from kernels that are `shrunk`."""
    weights, x, labels = drawn(request.network)
    session, losses = start(request, shrink(weights, shrunk)), []
    for step in (1, 2, 3):
        loss, _, finite = session.train(batches(session, x, labels), EXAMPLES, 0.05, step)
        assert finite
        losses.append(loss)
    return losses, session.gradients(), session.weights(), session.records()


def shrink(weights: Arrays, factor: float) -> Arrays:
    """Multiply the kernels by `factor`."""
    return {name: w * np.float32(factor) if name.endswith("kernel") else w for name, w in weights.items()}


def same_bits(some: Arrays, others: Arrays) -> None:
    assert set(some) == set(others)
    for name, array in some.items():
        assert np.array_equal(array, others[name]), name


def same(found, expected) -> None:
    """Two results of `steps` have the same bits."""
    assert found[0] == expected[0]
    for some, others in zip(found[1:], expected[1:], strict=True):
        same_bits(some, others)
