"""Language models: GPT (Radford et al. 2019, "GPT-2"), in the form of nanoGPT's small runs."""

from __future__ import annotations

from math import sqrt

import numpy as np

from edgelearn.errors import ShapeError
from edgelearn.graph import Network
from edgelearn.ops import (
    GELU,
    Add,
    Attention,
    Bias,
    Dense,
    Dropout,
    Embedding,
    LayerNormalization,
    ReverseEmbedding,
    SliceChannels,
)

DEVIATION = 0.02  # of initial weights


def gpt(
    vocabulary: int = 65, context: int = 64, layers: int = 4, heads: int = 4, channels: int = 128, dropout: float = 0.0
) -> Network:  # fmt: skip
    """A decoder that predicts the next of `vocabulary` numbers at each of `context` steps: (context,) -> (context,
    vocabulary) logits, by the embedding's own table.

    Arguments:
    - `vocabulary`: number of tokens (default 65, the characters of tinyshakespeare).
    - `context`: steps (default 64).
    - `layers`, `heads`, `channels`: blocks, heads of attention, and channels of a step (default 4, 4 and 128).
    - `dropout`: share of values that training leaves out (default 0).

    There are no biases, as in nanoGPT's small runs. `gpt_weights` draws initial weights as they do. Raises ShapeError
    if heads don't divide the channels.
    """
    if heads < 1 or channels % heads:
        raise ShapeError(f"{heads} heads must divide {channels} channels.")
    network = Network("gpt", (context,))
    network.add("tokens", Embedding(vocabulary, channels))
    x = network.add("positions", Bias((context, channels)))
    x = _dropped(network, "embedded", dropout, x)
    for number in range(1, layers + 1):
        x = _block(network, f"block{number}", x, heads, channels, dropout)
    network.add("norm", LayerNormalization(1e-5, center=False), x)
    network.add("logits", ReverseEmbedding(vocabulary), shares="tokens")
    return network


def _block(network: Network, name: str, x: str, heads: int, channels: int, dropout: float) -> str:
    """Attention and two dense layers, each added to what it reads."""
    norm = network.add(f"{name}_norm1", LayerNormalization(1e-5, center=False), x)
    projected = network.add(f"{name}_qkv", Dense(3 * channels, use_bias=False), norm)
    parts = [
        network.add(f"{name}_{part}", SliceChannels(number * channels, channels), projected)
        for number, part in enumerate(("query", "key", "value"))
    ]
    network.add(f"{name}_attention", Attention(heads, causal=True), *parts)
    y = network.add(f"{name}_mixed", Dense(channels, use_bias=False))
    x = network.add(f"{name}_sum1", Add(), x, _dropped(network, f"{name}_mixed", dropout, y))
    network.add(f"{name}_norm2", LayerNormalization(1e-5, center=False), x)
    network.add(f"{name}_wide", Dense(4 * channels, use_bias=False))
    network.add(f"{name}_gelu", GELU())
    y = network.add(f"{name}_narrow", Dense(channels, use_bias=False))
    return network.add(f"{name}_sum2", Add(), x, _dropped(network, f"{name}_narrow", dropout, y))


def _dropped(network: Network, name: str, dropout: float, x: str) -> str:
    return network.add(f"{name}_dropout", Dropout(dropout), x) if dropout else x


def gpt_weights(network: Network, seed: int = 0) -> dict[str, np.ndarray]:
    """Initial weights of a `gpt` as GPT-2's: normal with a deviation of 0.02, for what is added to the residual stream
    divided by the root of twice the number of blocks."""
    weights = network.initialize(seed)
    blocks = sum(name.endswith("_attention") for name in network.nodes)
    for name, array in weights.items():
        if name.endswith("/gamma"):
            continue
        deviation = DEVIATION / sqrt(2 * blocks) if name.endswith(("_mixed/kernel", "_narrow/kernel")) else DEVIATION
        rng = np.random.default_rng([seed, *name.encode()])
        weights[name] = (deviation * rng.standard_normal(array.shape)).astype(np.float32)
    return weights
