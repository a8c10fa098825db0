"""Passes over all examples in micro-batches, the next one prepared while the device works on this one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from edgelearn.data.split import mini_batches
from edgelearn.ops import Losses
from edgelearn.runtime import FeatureCache, Session
from edgelearn.runtime.feed import Examples

from .metrics import OutputMetrics
from .prefetch import ahead
from .sources import Source
from .streams import Stream
from .targets import Targets

ByOutput = Mapping[str, Sequence[float]]  # (sum of losses, right answers) of each of several outputs


def micro_batches(session: Session, x: Source) -> Iterator[tuple[np.ndarray, Examples]]:
    """Yield (indices of the examples, the examples in the device's layout), in order."""
    parts = mini_batches(np.arange(len(x)), session.plan.request.micro_batch)
    if isinstance(x, Stream):
        x.at_epoch(0)
    return ahead(parts, lambda part: session.fetch(x, part))


def evaluate(
    session: Session, x: Source, y: Targets, metrics: OutputMetrics | None = None,
    check: Callable[[], None] = lambda: None,
) -> dict[str, Any]:  # fmt: skip
    """Return the mean loss, the accuracy where the loss has one, and the metrics. `check` is called after each
    micro-batch and may raise to end the pass."""
    loss, correct, by_output = 0.0, 0.0, {}
    if metrics:
        metrics.start()
    for part, words in micro_batches(session, x):
        losses, right = session.evaluate(words, y[part], len(part))
        loss, correct = loss + losses, correct + right
        by_output = added(by_output, session.by_output)
        if metrics:
            metrics.update({name: values[part] for name, values in y.values.items()}, session.outputs(len(part)))
        check()
    logs = result_logs(session.plan.request.losses, len(x), loss, correct, by_output)
    return logs | (metrics.results() if metrics else {})


def result_logs(losses: Losses, n: int, loss: float, correct: float, by_output: ByOutput) -> dict[str, Any]:
    """The means over `n` examples, from sums: "loss" and, unless nothing is right or wrong, "accuracy"; of several
    outputs "NAME_loss" and "NAME_accuracy"."""
    logs = {"loss": loss / n}
    if len(losses.by_output) == 1:
        (only,) = losses.by_output.values()
        return logs | ({"accuracy": correct / n} if only.accuracy else {})
    for name, (own_loss, right) in by_output.items():
        logs[f"{name}_loss"] = own_loss / n
        if losses.by_output[name].accuracy:
            logs[f"{name}_accuracy"] = right / n
    return logs


def added(sums: ByOutput, more: ByOutput) -> ByOutput:
    """The sums by output, with those of another micro-batch."""
    return {name: [a + b for a, b in zip(sums.get(name, (0.0, 0.0)), pair, strict=True)] for name, pair in more.items()}


def predict(session: Session, x: Source) -> Any:
    """Return the network's output for each example: float32 (n, ...); of several outputs a dictionary by name."""
    outputs = [session.predict(words, len(part)) for part, words in micro_batches(session, x)]
    if isinstance(outputs[0], dict):
        return {name: np.concatenate([part[name] for part in outputs]) for name in outputs[0]}
    return outputs[0] if len(outputs) == 1 else np.concatenate(outputs)


def extract(session: Session, x: Source, cache: FeatureCache) -> Iterator[int]:
    """Fill `cache` with the network's outputs for `x`; yields how many examples are done."""
    for part, words in micro_batches(session, x):
        cache.put(int(part[0]), len(part), session.predict_packed(words, len(part)))
        yield int(part[-1]) + 1
