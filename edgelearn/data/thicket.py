"""The thicket: drawn flowers that are hard to tell, half hidden by leaves, in haze and grain.

A network learns the embedded sample (edgelearn.data.flowers) to 99 %, in whatever way it is trained. Of these pictures,
drawn by the same program, it misses one in eight, so that number formats, trained layers and numbers of examples
differ in their accuracies.
"""

from __future__ import annotations

from functools import lru_cache
from math import pi

import numpy as np

from .draws import stratified_split
from .flowers import KINDS, bright_color, clutter, drawn_flowers, leaf_color, petal_outline, place, scene, shade
from .pictures import ImageDataset, load_images

SHARE = 0.6  # of the pictures to train with; many to test with, so that a point of accuracy is ten pictures
_PURPOSE = 11  # separates these random streams from others of the same seed


def thicket_flowers(n_per_class: int = 500, seed: int = 0) -> ImageDataset:
    """Draw `n_per_class` hidden flowers (default 500) of each of the five kinds of tf_flowers, with the same labels.

    A picture depends only on (seed, kind, index) and its size. Raises DataError if `n_per_class` is below 1.
    """
    detail = ", half hidden by leaves, in haze and grain"
    return drawn_flowers("thicket", "The thicket", detail, draw_hidden, n_per_class, seed)


def draw_hidden(kind: str, seed: int, index: int, size: int) -> np.ndarray:
    """Draw picture `index` of a kind (a key of KINDS): uint8 of shape (size, size, 3)."""
    rng = np.random.default_rng([seed, _PURPOSE, list(KINDS).index(kind), index])
    canvas = scene(size, rng)
    clutter(canvas, rng)
    clutter(canvas, rng)
    center, radius = rng.uniform(0.25, 0.75, 2), rng.uniform(0.21, 0.43)
    KINDS[kind](canvas, rng, center, radius, bright_color(rng))
    for _ in range(rng.integers(0, 5)):
        color, outline = leaf_color(rng), petal_outline(rng.uniform(0.3, 0.6), 0.8, 1.2)
        where = center + radius * rng.uniform(-1.2, 1.2, 2)
        leaf = place(outline, where, radius * rng.uniform(0.8, 1.6), rng.uniform(0, 2 * pi))
        canvas.fill(leaf, color, shade(color, 0.8))
    clear = canvas.finish(rng).astype(np.float32)
    contrast, haze = rng.uniform(0.5, 1), rng.uniform(60, 190)
    grain = rng.standard_normal(clear.shape, np.float32) * rng.uniform(2, 8)
    return np.clip(haze + contrast * (clear - haze) + grain, 0, 255).astype(np.uint8)


@lru_cache(maxsize=2)
def drawn_thicket(size: int) -> tuple[ImageDataset, np.ndarray]:
    """(data set, all its pictures as uint8 (n, size, size, 3)), drawn once in a process."""
    dataset = thicket_flowers()
    return dataset, load_images(dataset, range(len(dataset)), size)


def split_thicket(dataset: ImageDataset, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Indices of the pictures to train and to test with."""
    return stratified_split(dataset.labels, SHARE, seed)
