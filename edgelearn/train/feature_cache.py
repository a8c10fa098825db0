"""The frozen-prefix cache: what comes out of the frozen part, computed once per example."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryFile

import numpy as np

from edgelearn.data.split import mini_batches
from edgelearn.errors import DataError
from edgelearn.graph import Session
from edgelearn.graph.lower import input_block
from edgelearn.ops.tensor import Shape, ceil_div

from .prefetch import ahead
from .sources import Source

DTYPES = {"fp32": np.float32, "fp16": np.float16}
HALF_LIMIT = 65504.0  # the largest fp16


class FeatureCache:
    """A source of features, stored as [channels / 16][example][pixels x 16] so that taking examples copies stretches
    of memory into the layout that the device wants.

    `dtype` is "fp32" (the same bits as without a cache) or "fp16" (half the memory, features rounded to 11 bits).
    """

    def __init__(self, shape: Shape, count: int, dtype: str = "fp32", file: Path | None = None) -> None:
        self.shape = tuple(shape)
        pixels = int(np.prod(shape[:-1]))
        layout = (ceil_div(shape[-1], 16), count, pixels * 16)
        self.dtype = np.dtype(DTYPES[dtype])
        nbytes = int(np.prod(layout)) * self.dtype.itemsize
        if file is None:
            self.words = np.empty(layout, self.dtype)
        else:
            try:
                self._file = TemporaryFile(dir=file)  # nameless: gone with the process, whatever ends it
                self._file.truncate(nbytes)
                self.words = np.memmap(self._file, self.dtype, "r+", shape=layout)
            except OSError as error:
                raise DataError(
                    f"The feature cache of {nbytes:,} bytes can't be made in {file}: {error.strerror}. "
                    f"Choose another folder, or cache='fp16' in memory."
                ) from None

    def __len__(self) -> int:
        return self.words.shape[1]

    @property
    def nbytes(self) -> int:
        return self.words.nbytes

    def put(self, first: int, count: int, packed: np.ndarray) -> None:
        """Store the packed words of examples first, first + 1, ..."""
        words = packed.reshape(self.words.shape[0], count, -1)
        if self.dtype == np.float16 and np.abs(words).max() > HALF_LIMIT:
            raise DataError(
                f"A feature of {np.abs(words).max():.3g} is too large for fp16 (at most {HALF_LIMIT:.0f}): "
                f"use the fp32 cache."
            )
        self.words[:, first : first + count] = words

    def packed(self, indices: np.ndarray, block: int) -> np.ndarray:
        return np.take(self.words, indices, axis=1).astype(np.float32, copy=False)

    def fill(self, source: Source, session: Session) -> Iterator[int]:
        """Run every example through `session`'s network; yields how many are done."""
        request = session.plan.request
        block = input_block(request.network)
        parts = mini_batches(np.arange(len(source)), request.micro_batch)
        for part, x in ahead(parts, lambda part: source.packed(part, block)):
            self.put(int(part[0]), len(part), session.predict(x, len(part), packed=True))
            yield int(part[-1]) + 1
