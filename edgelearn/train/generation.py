"""Texts written token by token, by a network that keeps keys and values of earlier steps on the device."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import numpy as np

from edgelearn.errors import DataError, PlanError
from edgelearn.ops import CachedAttention
from edgelearn.ops.base import number, whole

from .model import Model


def generate(
    model: Model, tokens: Sequence[int], count: int, *, temperature: float = 0.8, top_k: int | None = None,
    stop: Collection[int] = (), seed: int = 0,
) -> Iterator[int]:  # fmt: skip
    """Yield the tokens that a language model writes after others, one by one as they are drawn.

    >>> network = file.network(context=128, cached=True)
    >>> for token in generate(Model(network, file.weights_of(network)), [1, 403], 50): ...

    Arguments:
    - `model`: of a network that takes one step at a time, such as `llama(…, cached=True)`.
    - `tokens`: what comes before, one token or more.
    - `count`: most tokens to write; fewer if the context is full.
    - `temperature`: divides the logits; 0 takes the most probable token (default 0.8).
    - `top_k`: draw among so many of the most probable tokens (default None: all).
    - `stop`: tokens that end the text; they aren't given (default none).
    - `seed`: of the draws (default 0).

    Raises PlanError for another network, DataError for no tokens, or more than the context has room for.
    """
    caches = [node.op for node in model.network.nodes.values() if isinstance(node.op, CachedAttention)]
    if not caches or set(model.network.inputs) != {"tokens", "position"}:
        raise PlanError("Texts are written by a network of single steps, such as file.network(cached=True).")
    context, rng = caches[0].context, np.random.default_rng([seed, 2])
    temperature, count = number("temperature", temperature, 0), whole("count", count, 0)
    if not 0 < len(tokens) <= context:
        raise DataError(f"A text begins with 1 to {context} tokens, the model's context, not {len(tokens)}.")
    seen = [int(token) for token in tokens]
    for place in range(min(context, len(tokens) + count - 1)):
        step = {"tokens": np.full((1, 1), seen[place], np.float32), "position": np.full((1, 1), place, np.float32)}
        logits = model.predict_on_batch(step)
        if place == len(seen) - 1:
            seen.append(draw(logits.reshape(-1), temperature, top_k, rng))
            if seen[-1] in stop:
                return
            yield seen[-1]


def draw(logits: np.ndarray, temperature: float, top_k: int | None, rng: np.random.Generator) -> int:
    """A token drawn by its logits; arguments as of `generate`."""
    if not temperature:
        return int(logits.argmax())
    scaled = logits.astype(np.float64) / temperature
    if top_k is not None and top_k < len(scaled):
        scaled[np.argpartition(scaled, -top_k)[:-top_k]] = -np.inf
    weights = np.exp(scaled - scaled.max())
    return int(rng.choice(len(weights), p=weights / weights.sum()))
