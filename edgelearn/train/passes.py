"""Examples through a session, a micro-batch at a time, the next one prepared while the device works on this one."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from edgelearn.compile.lower import input_block
from edgelearn.data.split import mini_batches
from edgelearn.runtime import Session

from .prefetch import ahead
from .sources import Source


def micro_batches(session: Session, x: Source) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(numbers of the examples, their words as the device wants them), of all examples in order."""
    request = session.plan.request
    block = input_block(request.network)
    return ahead(mini_batches(np.arange(len(x)), request.micro_batch), lambda part: x.packed(part, block))


def evaluate(session: Session, x: Source, y: np.ndarray, check: Callable[[], None] = lambda: None) -> dict[str, float]:
    """Mean loss and accuracy. `check` is called after each micro-batch, and ends the pass with what it raises."""
    loss, correct = 0.0, 0
    for part, words in micro_batches(session, x):
        losses, right = session.evaluate(words, y[part])
        loss, correct = loss + losses, correct + right
        check()
    return {"loss": loss / len(x), "accuracy": correct / len(x)}


def predict(session: Session, x: Source) -> np.ndarray:
    """The network's output for each example: float32 (n, ...)."""
    return np.concatenate([session.predict(words, len(part)) for part, words in micro_batches(session, x)])
