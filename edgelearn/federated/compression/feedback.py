"""Error feedback: what a lossy message left out is added to the next one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from ..compressor import Compressor, Shapes, at_round
from .arrays import checked


@dataclass(frozen=True)
class ErrorFeedback:
    """Another compressor, whose errors are kept in the sender's state and added to what it sends next (Seide et al.
    2014, "1-bit stochastic gradient descent"; Karimireddy et al. 2019 on why it converges).

    Arguments:
    - `compressor`: the lossy one, such as `TopK(0.01)`.
    - `ahead`: clients train from the weights that they received plus what they left out so far, so that they don't find
      it again in each round (default False).
    """

    compressor: Compressor
    ahead: bool = False
    keeps_state: ClassVar[bool] = True

    def at_round(self, number: int) -> ErrorFeedback:
        return replace(self, compressor=at_round(self.compressor, number))

    def start(self, arrays: Sequence[np.ndarray], state: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Return the weights from which a client trains that received `arrays`."""
        if not self.ahead:
            return list(arrays)
        return [array + _kept(state, number, array.shape) for number, array in enumerate(arrays)]

    def encode(self, arrays: Sequence[np.ndarray], rng: np.random.Generator, state: dict[str, np.ndarray]) -> bytes:
        wanted = [array + _kept(state, number, array.shape) for number, array in enumerate(arrays)]
        data = self.compressor.encode(wanted, rng, state)
        sent = self.compressor.decode(data, [array.shape for array in arrays])
        state |= {_name(number): w - s for number, (w, s) in enumerate(zip(wanted, sent, strict=True))}
        return data

    def decode(self, data: bytes, shapes: Shapes) -> list[np.ndarray]:
        return self.compressor.decode(data, shapes)


def _kept(state: Mapping[str, np.ndarray], number: int, shape: tuple[int, ...]) -> np.ndarray:
    """Return the part of an array that was left out of the last message."""
    kept = state.get(_name(number), np.zeros(shape, np.float32))
    return checked(kept, shape, f"What a client kept of array {number}")


def _name(number: int) -> str:
    """The key in the state of what was left out of an array."""
    return f"left out/{number}"
