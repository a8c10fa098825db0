"""The frozen-prefix cache: what comes out of the frozen part, computed once per example."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from pathlib import Path

import numpy as np

from edgelearn.errors import DataError, NonFiniteError
from edgelearn.ops.tensor import BLOCK, Shape, ceil_div
from edgelearn.runtime import Session, on_disk

from .passes import micro_batches
from .sources import Source

DTYPES = {"fp32": np.float32, "fp16": np.float16}
HALF_LIMIT = 65504.0  # the largest fp16


class FeatureCache:
    """A source of features, stored as [channels / block][example][pixels][block] so that taking examples copies
    stretches of memory into the layout that the device wants. `block` is that of the network that reads them.

    `dtype` is "fp32" (as without a cache) or "fp16" (half the memory, features rounded to 11 bits).
    They lie in memory, or in a file in `folder` that has no name. Raises DataError when there is no room.
    """

    def __init__(
        self, shape: Shape, count: int, dtype: str = "fp32", folder: Path | None = None, block: int = BLOCK
    ) -> None:
        self.shape, self.dtype = tuple(shape), np.dtype(DTYPES[dtype])
        layout = (ceil_div(shape[-1], block), count, prod(shape[:-1]), block)
        nbytes = prod(layout) * self.dtype.itemsize
        try:
            words = np.empty(nbytes, np.uint8) if folder is None else on_disk(nbytes, folder)
        except (OSError, MemoryError) as error:
            raise DataError(
                f"The feature cache of {nbytes:,} bytes can't be made in {folder or 'memory'}: "
                f"{getattr(error, 'strerror', None) or 'there is too little'}. Use the fp16 cache, which is half as "
                f"large, another folder for it, or no cache."
            ) from None
        self.words = words.view(self.dtype).reshape(layout)

    def __len__(self) -> int:
        return self.words.shape[1]

    @property
    def nbytes(self) -> int:
        return self.words.nbytes

    def put(self, first: int, count: int, packed: np.ndarray) -> None:
        """Store the words of examples first, first + 1, ..., as sessions give them.

        Raises NonFiniteError when one is a NaN or an infinity, DataError when it doesn't fit fp16.
        """
        blocks, _, pixels, block = self.words.shape
        words = packed.reshape(blocks, count, pixels, BLOCK)[..., :block]
        largest = np.abs(words).max(axis=(0, 2, 3))
        if not np.isfinite(largest).all():
            example = first + int(np.argmin(np.isfinite(largest)))
            raise NonFiniteError(
                f"The frozen layers make a NaN or an infinity of example {example}: either it holds one itself, or the "
                f"frozen weights are too large. Clean the data, or use other weights."
            )
        if self.dtype == np.float16 and largest.max() > HALF_LIMIT:
            raise DataError(
                f"A feature of {largest.max():.3g} is too large for fp16 (at most {HALF_LIMIT:.0f}): use the fp32 "
                f"cache."
            )
        self.words[:, first : first + count] = words

    def packed(self, indices: np.ndarray, block: int) -> np.ndarray:
        words = np.take(self.words, indices, axis=1).astype(np.float32, copy=False)
        return words.reshape(len(words), -1, block)

    def fill(self, source: Source, session: Session) -> Iterator[int]:
        """Run every example through `session`'s network; yields how many are done."""
        for part, x in micro_batches(session, source):
            self.put(int(part[0]), len(part), session.predict(x, len(part), packed=True))
            yield int(part[-1]) + 1
