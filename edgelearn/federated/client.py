"""Clients: each has data of its own, and trains from the weights it is sent."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from edgelearn.errors import EdgelearnError, FormatError, PlanError
from edgelearn.interop.weights import Weights
from edgelearn.train import Subset, Trainer
from edgelearn.train.sources import Source

from .compression.downlink import Copy
from .compressor import Compressor, NoCompression
from .memory import ClientMemory
from .messages import Instruction, Reply

_ORDER, _COMPRESSION = 33, 34  # separate these random streams from others of the same seed


class Work(Protocol):
    """Carries out instructions: `Clients` in this process, or something that asks clients elsewhere."""

    def answer(self, data: bytes) -> bytes:
        """Return the reply to an instruction, both as bytes."""
        ...


@dataclass(frozen=True)
class Examples:
    """All examples of a federation and who has which.

    Arguments:
    - `x`, `y`: source of examples, and their int labels (n,).
    - `parts`: indices of each client's examples.
    """

    x: Source
    y: np.ndarray
    parts: Sequence[np.ndarray]

    @property
    def sizes(self) -> list[int]:
        """Number of examples of each client."""
        return [len(part) for part in self.parts]


@dataclass
class Clients:
    """Clients that share an open session in this process, one after the other.

    Arguments:
    - `trainer`: the open session; its plan has programs for every client's number of examples.
    - `weights`: all weights of the network; what doesn't travel stays as it is.
    - `examples`: the data, by client.
    - `epochs`: over a client's examples in each round.
    - `seed`: of the order of examples and of lossy compression.
    - `compressor`: of the changes that are sent back (default none).
    - `memory`: what clients keep from round to round (default: nothing is kept).
    - `down`: compressor of the weights that are received, for a server with a `Downlink` (default: none). It needs a
      memory.
    """

    trainer: Trainer
    weights: Weights
    examples: Examples
    epochs: int
    seed: int
    compressor: Compressor = field(default_factory=NoCompression)
    memory: ClientMemory | None = None
    down: Compressor | None = None

    def __post_init__(self) -> None:
        if self.down is not None and self.memory is None:
            raise PlanError("Clients that receive changes of the weights keep them: give a memory.")
        self.names = sorted(self.trainer.training.session.changing)
        self.shapes = [self.weights[name].shape for name in self.names]

    def answer(self, data: bytes) -> bytes:
        """Carry out an instruction. What a client can't do is the `problem` of its reply."""
        instruction = Instruction.from_bytes(data)
        try:
            return self._train(instruction).to_bytes()
        except EdgelearnError as error:
            problem = f"{type(error).__name__}: {error}"
            return Reply(instruction.round, instruction.client, b"", 0, {}, problem).to_bytes()

    def _train(self, instruction: Instruction) -> Reply:
        number, client = instruction.round, instruction.client
        if number < 1 or not 0 <= client < len(self.examples.parts):
            raise FormatError(f"there is no round {number} of a client {client}: {len(self.examples.parts)} are here")
        start = time.perf_counter()
        kept = self.memory.load(client, number) if self.memory else {}
        received = self._received(instruction.payload, kept)
        part = self.examples.parts[client]
        order = np.random.default_rng([self.seed, _ORDER, number, client]).permutation(part)
        self.trainer.load(self.weights | dict(zip(self.names, received, strict=True)))
        history = self.trainer.fit(Subset(self.examples.x, order), self.examples.y[order], self.epochs)
        trained = self.trainer.weights
        changes = [trained[name] - before for name, before in zip(self.names, received, strict=True)]
        rng = np.random.default_rng([self.seed, _COMPRESSION, number, client])
        payload = self.compressor.encode(changes, rng, kept)
        if self.memory and kept:
            self.memory.save(client, number, kept)
        last = {name: values[-1] for name, values in history.history.items() if name != "seconds"}
        metrics = last | {"seconds": round(time.perf_counter() - start, 4), **self._bytes()}
        return Reply(number, client, payload, len(part), metrics)

    def _received(self, payload: bytes, kept: dict[str, np.ndarray]) -> list[np.ndarray]:
        """The weights that a message leads to; with `down` they are kept, since the next one changes them."""
        if self.down is None:
            return NoCompression().decode(payload, self.shapes)
        return Copy(self.down).receive(payload, self.shapes, kept)

    def _bytes(self) -> Mapping[str, float]:
        """Planned and allocated device memory."""
        session = self.trainer.training.session
        return {"planned": self.trainer.plan.peak_bytes, "allocated": session.allocated_bytes}
