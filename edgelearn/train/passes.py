"""Passes over all examples in micro-batches, the next one prepared while the device works on this one."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from edgelearn.data.split import mini_batches
from edgelearn.runtime import FeatureCache, Session
from edgelearn.runtime.session import Examples

from .prefetch import ahead
from .sources import Source


def micro_batches(session: Session, x: Source) -> Iterator[tuple[np.ndarray, Examples]]:
    """Yield (indices of the examples, the examples in the device's layout), in order."""
    parts = mini_batches(np.arange(len(x)), session.plan.request.micro_batch)
    return ahead(parts, lambda part: session.fetch(x, part))


def evaluate(session: Session, x: Source, y: np.ndarray, check: Callable[[], None] = lambda: None) -> dict[str, float]:
    """Return the mean loss and the accuracy. `check` is called after each micro-batch and may raise to end the pass."""
    loss, correct = 0.0, 0
    for part, words in micro_batches(session, x):
        losses, right = session.evaluate(words, y[part])
        loss, correct = loss + losses, correct + right
        check()
    return {"loss": loss / len(x), "accuracy": correct / len(x)}


def predict(session: Session, x: Source) -> np.ndarray:
    """Return the network's output for each example: float32 (n, ...)."""
    outputs = [session.predict(words, len(part)) for part, words in micro_batches(session, x)]
    return outputs[0] if len(outputs) == 1 else np.concatenate(outputs)


def extract(session: Session, x: Source, cache: FeatureCache) -> Iterator[int]:
    """Fill `cache` with the network's outputs for `x`; yields how many examples are done."""
    for part, words in micro_batches(session, x):
        cache.put(int(part[0]), len(part), session.predict_packed(words, len(part)))
        yield int(part[-1]) + 1
