"""A task of precision experiments that takes no time: noisy squares of five colours, and a network of four stages."""

import numpy as np

import edgelearn as el
from edgelearn.data.flowers import KINDS
from edgelearn.data.pictures import normalize
from edgelearn.experiments.tasks import Pictures, Task, TaskKind, drawn_weights
from edgelearn.ops import BatchNormalization, Conv2D, Dense, DepthwiseConv2D, GlobalAveragePooling2D, ReLU, Softmax
from edgelearn.train import PictureSource, Subset
from tests.networks import chain

SIZE, TRAIN, TEST, BATCH = 16, 800, 200, 50


def load(config):
    rng = np.random.default_rng(config.seed)
    labels = (np.arange(TRAIN + TEST) % len(KINDS)).astype(np.int32)
    colors = np.linspace(40, 215, len(KINDS))[labels, None] * [1, 0.5, -1] + [0, 60, 255]
    noise = rng.integers(-30, 30, (TRAIN + TEST, SIZE, SIZE, 3))
    pixels = np.clip(colors[:, None, None] + noise, 0, 255).astype(np.uint8)
    pictures = PictureSource(len(pixels), SIZE, lambda indices, size: pixels[indices], normalize)
    train, test = np.arange(TRAIN), np.arange(TRAIN, TRAIN + TEST)
    data = {
        "origin": "drawn", "description": "Drawn squares.", "classes": list(KINDS), "train": TRAIN, "test": TEST,
        "skipped": 0,
    }  # fmt: skip
    return Task(
        el.Model(_network(), None, config.device, config.seed),
        (Subset(pictures, train), labels[train]),
        (Subset(pictures, test), labels[test]),
        lambda steps: el.SGD(0.05, momentum=0.9),
        data,
        drawn_weights(config.seed),
        BATCH,
        "batch",
        Pictures(SIZE),
    )


def _network():
    return chain(
        "tiny", (SIZE, SIZE, 3), conv=Conv2D(16, 3, strides=2, padding="same", use_bias=False), bn=BatchNormalization(),
        relu=ReLU(6), depthwise=DepthwiseConv2D(3, padding="same"), pool=GlobalAveragePooling2D(),
        dense=Dense(len(KINDS)), softmax=Softmax(),
    )  # fmt: skip


KIND = TaskKind("Noisy squares, a tiny network", 6, BATCH, load)
