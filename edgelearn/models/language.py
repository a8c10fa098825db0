"""Language models: LSTMs; GPT (Radford et al. 2019, "GPT-2"), in the form of nanoGPT's small runs; BERT (Devlin et al.
2019, arXiv 1810.04805) as an encoder of sentences; Llama (Touvron et al. 2023, arXiv 2302.13971), with frozen weights
in blocks of few bits, or to write texts step by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np

from edgelearn.errors import ShapeError
from edgelearn.graph import INPUT, Network
from edgelearn.ops import (
    GELU,
    LSTM,
    Add,
    Attention,
    Bias,
    CachedAttention,
    Clip,
    Concatenate,
    Conv1D,
    Dense,
    Divide,
    Dropout,
    Embedding,
    FrozenDense,
    FrozenEmbedding,
    GlobalMaxPooling1D,
    LayerNormalization,
    Multiply,
    ReLU,
    Reshape,
    ReverseEmbedding,
    RMSNormalization,
    RotaryEmbedding,
    SiLU,
    SliceChannels,
    Sum,
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


def character_lstm(
    vocabulary: int = 65, context: int = 80, embedding: int = 8, units: Sequence[int] = (256, 256), dropout: float = 0.5
) -> Network:  # fmt: skip
    """LSTMs that predict the number after `context` others: (context,) -> (vocabulary,) logits; the network of LEAF's
    Shakespeare (Caldas et al. 2018, arXiv 1812.01097) and of Flower's federations on it.

    Arguments:
    - `vocabulary`: number of tokens (default 65, the characters of tinyshakespeare).
    - `context`: steps (default 80).
    - `embedding`: channels of a token (default 8).
    - `units`: of each LSTM (default two of 256).
    - `dropout`: share of values that training leaves out between LSTMs (default 0.5).
    """
    network = Network("character_lstm", (context,))
    network.add("tokens", Embedding(vocabulary, embedding))
    for number, size in enumerate(units, 1):
        network.add(f"lstm{number}", LSTM(size, return_sequences=number < len(units)))
        if dropout and number < len(units):
            network.add(f"lstm{number}_dropout", Dropout(dropout))
    network.add("logits", Dense(vocabulary))
    return network


def text_cnn(
    vocabulary: int, context: int = 30, channels: int = 128, filters: int = 128, widths: Sequence[int] = (2, 3, 4),
    classes: int = 150, dropout: float = 0.5,
) -> Network:  # fmt: skip
    """Convolutions over the words of a sentence and their maxima (Kim 2014, "Convolutional neural networks for sentence
    classification", EMNLP): (context,) -> (classes,) logits.

    Arguments:
    - `vocabulary`: number of tokens.
    - `context`: steps (default 30).
    - `channels`: of a token (default 128).
    - `filters`, `widths`: of each convolution, and the steps that each sees (default 128 for 2, 3 and 4 steps).
    - `classes`: number of logits (default 150).
    - `dropout`: share of the maxima that training leaves out, and of tokens' channels half of it (default 0.5).
    """
    network = Network("text_cnn", (context,))
    network.add("tokens", Embedding(vocabulary, channels))
    x = network.add("tokens_dropout", Dropout(dropout / 2))
    maxima = []
    for width in widths:
        network.add(f"conv{width}", Conv1D(filters, width, padding="same"), x)
        network.add(f"conv{width}_relu", ReLU())
        maxima.append(network.add(f"conv{width}_maxima", GlobalMaxPooling1D()))
    if len(maxima) > 1:
        network.add("maxima", Concatenate(), *maxima)
    network.add("maxima_dropout", Dropout(dropout))
    network.add("logits", Dense(classes))
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


def gpt_by_steps(network: Network, weights: Mapping[str, np.ndarray]) -> tuple[Network, dict[str, np.ndarray]]:
    """(a `gpt` that takes one step at a time and keeps keys and values of earlier steps on the device, its weights from
    those of `network`). Its inputs are "token" (1,) and "position" (1,), both float32 numbers."""
    steps, replaced = Network(f"{network.name}_by_steps", {"token": (1,), "position": (1,)}), {INPUT: "token"}
    (context,) = network.input_shape
    for node in network.nodes.values():
        inputs = [replaced.get(name, name) for name in node.inputs]
        match node.op:
            case Bias(shape=shape) if shape is not None:  # a row for each step
                rows = steps.add(node.name, Embedding(*shape), "position")
                replaced[node.name] = steps.add(f"{node.name}_sum", Add(), *inputs, rows)
            case Attention(heads=heads, key_heads=key_heads):
                steps.add(node.name, CachedAttention(heads, key_heads, context), *inputs, "position")
            case Dropout():
                replaced[node.name] = inputs[0]
            case op:
                steps.add(node.name, op, *inputs, shares=node.shares)
    found = steps.initialize(0)
    for name in found:
        layer, _, role = name.partition("/")
        source = f"{layer}/bias" if role == "embeddings" and f"{layer}/bias" in weights else name
        found[name] = weights.get(source, found[name])
    return steps, found


@dataclass(frozen=True)
class BertSizes:
    """Sizes and settings of a BERT; the defaults are MiniLM's with 6 blocks (Wang et al. 2020, arXiv 2002.10957).

    Arguments:
    - `vocabulary`: number of tokens (default 30,522).
    - `layers`, `heads`, `channels`: blocks, heads of attention, and channels of a step (default 6, 12 and 384).
    - `hidden`: channels between a block's two dense layers (default 1,536).
    - `context`: most steps, for which there are positions (default 512).
    - `epsilon`: of layer normalization (default 1e-12).
    """

    vocabulary: int = 30522
    layers: int = 6
    heads: int = 12
    channels: int = 384
    hidden: int = 1536
    context: int = 512
    epsilon: float = 1e-12


def bert(
    sizes: BertSizes | None = None, context: int = 32, classes: int | None = None, dropout: float = 0.1,
    trained: int | None = None,
) -> Network:  # fmt: skip
    """A BERT that reads a sentence: (context,) -> (channels,), the mean of its tokens' outputs (Reimers and Gurevych
    2019, "Sentence-BERT", arXiv 1908.10084), or (classes,) logits.

    Arguments:
    - `sizes`: (default: MiniLM's).
    - `context`: steps; token 0 fills up shorter sentences, and no other token attends to it (default 32).
    - `classes`: number of logits (default None: the mean itself).
    - `dropout`: share of values that training leaves out, not of what is frozen (default 0.1).
    - `trained`: last blocks that are trained; all before them is frozen (default None: everything is trained).

    Layers are "tokens", "positions" and "embedded"; for each block "block1_query", "_key", "_value", "_mixed",
    "_norm1", "_wide", "_narrow" and "_norm2"; "logits". Raises ShapeError for sizes that don't fit each other.
    """
    sizes = sizes or BertSizes()
    if sizes.heads < 1 or sizes.channels % sizes.heads:
        raise ShapeError(f"{sizes.heads} heads must divide {sizes.channels} channels.")
    if trained is not None and not 0 <= trained <= sizes.layers:
        raise ShapeError(f"This BERT has {sizes.layers} blocks, so {trained} can't be trained.")
    if not 1 <= context <= sizes.context:
        raise ShapeError(f"This BERT has positions for 1 to {sizes.context} steps, not {context}.")
    network = Network("bert", (context,))
    mask = network.add("mask", Clip(0.0, 1.0))  # numbers of tokens are whole: 0 is none
    network.add("tokens", Embedding(sizes.vocabulary, sizes.channels), INPUT)
    network.add("positions", Bias((context, sizes.channels)))
    x = network.add("embedded", LayerNormalization(sizes.epsilon))
    first = 0 if trained is None else sizes.layers - trained + 1  # of the trained blocks
    x = _dropped(network, "embedded", 0.0 if first else dropout, x)
    for number in range(1, sizes.layers + 1):
        if number == first:
            network.freeze()
        x = _bert_block(network, f"block{number}", x, mask, sizes, dropout if number >= first else 0.0)
    if trained == 0:
        network.freeze()
    network.add("steps", Reshape((context, 1)), mask)
    network.add("read", Multiply(), x, "steps")
    network.add("sum", Sum(1, keepdims=False))
    network.add("length", Sum(1), mask)
    x = network.add("mean", Divide(), "sum", "length")
    if classes is not None:
        network.add("logits", Dense(classes), _dropped(network, "mean", dropout, x))
    return network


def _bert_block(network: Network, name: str, x: str, mask: str, sizes: BertSizes, dropout: float) -> str:
    """Attention and two dense layers, each added to what it reads, and normalized afterwards."""
    parts = [network.add(f"{name}_{part}", Dense(sizes.channels), x) for part in ("query", "key", "value")]
    network.add(f"{name}_attention", Attention(sizes.heads), *parts, mask)
    y = network.add(f"{name}_mixed", Dense(sizes.channels))
    network.add(f"{name}_sum1", Add(), x, _dropped(network, f"{name}_mixed", dropout, y))
    x = network.add(f"{name}_norm1", LayerNormalization(sizes.epsilon))
    network.add(f"{name}_wide", Dense(sizes.hidden))
    network.add(f"{name}_gelu", GELU())
    y = network.add(f"{name}_narrow", Dense(sizes.channels))
    network.add(f"{name}_sum2", Add(), x, _dropped(network, f"{name}_narrow", dropout, y))
    return network.add(f"{name}_norm2", LayerNormalization(sizes.epsilon))


@dataclass(frozen=True)
class LlamaSizes:
    """Sizes and settings of a Llama.

    Arguments:
    - `vocabulary`: number of tokens.
    - `layers`, `channels`, `hidden`: blocks, channels of a step, and channels between a block's two dense layers.
    - `heads`, `key_heads`: heads of queries, and of keys and values, which several heads of queries share.
    - `base`: of rotary positions (default 10,000).
    - `epsilon`: of RMS normalization (default 1e-5).
    - `tied`: logits are products with the embedding's own table (default True).
    - `context`: steps that it was trained with (default 2,048).
    """

    vocabulary: int
    layers: int
    channels: int
    hidden: int
    heads: int
    key_heads: int
    base: float = 10000.0
    epsilon: float = 1e-5
    tied: bool = True
    context: int = 2048

    @property
    def key_channels(self) -> int:
        return self.channels // self.heads * self.key_heads


SMALL_LLAMA = LlamaSizes(512, 5, 64, 172, 8, 4, context=512)  # of llama2.c's stories260K


def llama(
    sizes: LlamaSizes = SMALL_LLAMA, context: int = 128, formats: Mapping[str, str] | None = None, cached: bool = False
) -> Network:  # fmt: skip
    """A Llama: (context,) -> (context, vocabulary) logits of the next token at each step.

    Arguments:
    - `sizes`: default those of llama2.c's stories260K.
    - `context`: steps (default 128).
    - `formats`: block formats of frozen weights by layer, such as {"block1_query": "Q4_1"}; layers that it doesn't name
      are Dense and Embedding in float32, which can be trained (default none).
    - `cached`: one step at a time: inputs "tokens" (1,) and "position" (1,), and keys and values of `context` steps are
      kept on the device (default False).

    Rotary positions turn neighbouring channels, as in the files of llama2.c and GGUF. Layers are "embedding"; for each
    block "block1_norm1", "_query", "_key", "_value", "_mixed", "_norm2", "_gate", "_up" and "_down"; "norm" and
    "logits". Raises ShapeError for sizes that don't fit each other.
    """
    if sizes.channels % sizes.heads or sizes.heads % sizes.key_heads:
        raise ShapeError(
            f"{sizes.heads} heads must divide {sizes.channels} channels, and {sizes.key_heads} heads of keys "
            f"{sizes.heads} of queries."
        )
    parts = _LlamaParts(sizes, context, dict(formats or {}), cached)
    network = Network("llama", {"tokens": (1,), "position": (1,)} if cached else (context,))
    table = parts.formats.get("embedding", "")
    embedding = (
        FrozenEmbedding(sizes.vocabulary, sizes.channels, table)
        if table
        else Embedding(sizes.vocabulary, sizes.channels)
    )
    x = network.add("embedding", embedding, *(["tokens"] if cached else []))
    for number in range(1, sizes.layers + 1):
        x = parts.add_block(network, f"block{number}", x)
    network.add("norm", RMSNormalization(sizes.epsilon), x)
    if not sizes.tied:
        network.add("logits", parts.dense("logits", sizes.vocabulary))
    elif table:
        network.add("logits", FrozenDense(sizes.vocabulary, table), shares="embedding")
    else:
        network.add("logits", ReverseEmbedding(sizes.vocabulary), shares="embedding")
    return network


@dataclass(frozen=True)
class _LlamaParts:
    """What the blocks of a Llama are made of: arguments as of `llama`."""

    sizes: LlamaSizes
    context: int
    formats: Mapping[str, str]
    cached: bool

    def dense(self, name: str, units: int) -> Dense | FrozenDense:
        name_of_format = self.formats.get(name)
        return FrozenDense(units, name_of_format) if name_of_format else Dense(units, use_bias=False)

    def add_block(self, network: Network, name: str, x: str) -> str:
        """Attention and a gated dense part (Shazeer 2020, "SwiGLU", arXiv 2002.05202), each added to what it reads."""
        s = self.sizes
        norm = network.add(f"{name}_norm1", RMSNormalization(s.epsilon), x)
        position = ["position"] if self.cached else []

        def projected(part: str, heads: int) -> str:
            units = s.channels // s.heads * heads
            return network.add(f"{name}_{part}", self.dense(f"{name}_{part}", units), norm)

        def turned(part: str, heads: int) -> str:
            turn = RotaryEmbedding(heads, s.base, interleaved=True)
            return network.add(f"{name}_{part}_turned", turn, projected(part, heads), *position)

        query, key, value = turned("query", s.heads), turned("key", s.key_heads), projected("value", s.key_heads)
        if self.cached:
            attention: Attention | CachedAttention = CachedAttention(s.heads, s.key_heads, self.context)
        else:
            attention = Attention(s.heads, s.key_heads, causal=True)
        network.add(f"{name}_attention", attention, query, key, value, *position)
        mixed = network.add(f"{name}_mixed", self.dense(f"{name}_mixed", s.channels))
        x = network.add(f"{name}_sum1", Add(), x, mixed)
        norm = network.add(f"{name}_norm2", RMSNormalization(s.epsilon), x)
        gate = network.add(f"{name}_gate", self.dense(f"{name}_gate", s.hidden), norm)
        gate = network.add(f"{name}_silu", SiLU(), gate)
        up = network.add(f"{name}_up", self.dense(f"{name}_up", s.hidden), norm)
        network.add(f"{name}_gated", Multiply(), gate, up)
        down = network.add(f"{name}_down", self.dense(f"{name}_down", s.channels))
        return network.add(f"{name}_sum2", Add(), x, down)
