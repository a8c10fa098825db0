"""Reproducible augmentation of pictures."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from .draws import capacity

_AUGMENT = 3  # keeps this random stream of a seed apart from those of edgelearn.data.split


@dataclass(frozen=True)
class FlipAndCrop:
    """Half of the pictures mirrored left to right, and all of them shifted by up to `padding` pixels in each direction,
    black coming in at the edges: a random crop of the padded picture (He et al. 2016, section 4.2).

    What happens to picture i in an epoch depends on `seed`, the epoch and i alone (see edgelearn.data.draws).
    """

    seed: int
    padding: int = 4

    def __call__(self, images: np.ndarray, indices: np.ndarray, epoch: int) -> np.ndarray:
        """`images` (n, height, width, channels), of which each is picture `indices[...]` of the data set, as they look
        in `epoch`: the same shape and type."""
        indices = np.asarray(indices)
        if not len(indices):
            return images
        mirrored, top, left = _choices(self.seed, epoch, self.padding, capacity(indices))[indices].T
        n, height, width, _ = images.shape
        p = self.padding
        padded = np.pad(images, ((0, 0), (p, p), (p, p), (0, 0)))
        rows = top[:, None] + np.arange(height)
        columns = np.where(mirrored[:, None], np.arange(width)[::-1], np.arange(width)) + left[:, None]
        return padded[np.arange(n)[:, None, None], rows[:, :, None], columns[:, None, :]]


@lru_cache(maxsize=2)
def _choices(seed: int, epoch: int, padding: int, count: int) -> np.ndarray:
    """(mirrored, top, left) of each of `count` pictures, drawn in order: a larger `count` keeps the first ones."""
    rng = np.random.default_rng([seed, _AUGMENT, epoch])
    return rng.integers(0, [2, 2 * padding + 1, 2 * padding + 1], (count, 3))
