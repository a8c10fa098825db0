"""Clients: each has data of its own, trains from the weights it is sent, and keeps a memory in files of its own."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from edgelearn import atomic
from edgelearn.errors import EdgelearnError, FormatError, PlanError
from edgelearn.interop import safetensors
from edgelearn.interop.weights import Weights
from edgelearn.train import Subset, Trainer
from edgelearn.train.sources import Source

from .compression import Compressor, NoCompression, at_round, keeps_state, receive, start_of
from .messages import Instruction, Reply, split_own
from .privacy import LocalPrivacy, Masks
from .strategy import FedAvg, Strategy

_SUFFIX = ".safetensors"


class ClientMemory:
    """Files of clients. A client has those of its last two rounds, so that a round that is repeated after a kill begins
    with what it began with before.

    Arguments:
    - `folder`: folder of the files; it is made when it is needed.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def load(self, client: int, number: int) -> dict[str, np.ndarray]:
        """Return the state that the client kept in its last round before round `number`; empty before its first.

        Raises FormatError for a damaged file.
        """
        earlier = [each for each in self._rounds(client) if each < number]
        return dict(safetensors.read_weights(self._path(client, max(earlier)))) if earlier else {}

    def save(self, client: int, number: int, arrays: dict[str, np.ndarray]) -> None:
        """Keep `arrays` of round `number`. Raises RunError if they can't be written."""
        data, path = safetensors.to_bytes(arrays, {}), self._path(client, number)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise atomic.explain(error, path, len(data)) from error
        atomic.write_bytes(path, data)
        for old in [each for each in self._rounds(client) if each < number][:-1]:
            self._path(client, old).unlink(missing_ok=True)

    def _rounds(self, client: int) -> list[int]:
        """The rounds of which there are files, ascending."""
        prefix = f"client-{client}-round-"
        names = [path.name for path in self.folder.glob(f"{prefix}*{_SUFFIX}")]
        numbers = [name.removeprefix(prefix).removesuffix(_SUFFIX) for name in names]
        return sorted(int(number) for number in numbers if number.isascii() and number.isdigit())  # no stray files

    def _path(self, client: int, number: int) -> Path:
        return self.folder / f"client-{client}-round-{number}{_SUFFIX}"


_ORDER, _COMPRESSION = 33, 34  # separate these random streams from others of the same seed


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
    - `epochs`: number of passes over a client's examples in each round.
    - `seed`: draws the order of examples and the rounding of lossy compression.
    - `compressor`: compressor of the changes that are sent back (default none).
    - `memory`: what clients keep from round to round; a compressor with error feedback, such as "topk:0.01", and `down`
      need one (default: nothing is kept).
    - `down`: compressor of the weights that are received, for a server with a `Downlink` (default: none).
    - `steps`: updates of a client in a round, in place of epochs, each with a mini-batch of the trainer's size that is
      drawn from its examples (default None: epochs).
    - `masks`: hide changes from the server, in place of compression (default none).
    - `local`: clips changes and adds noise to them before they leave the client (default none).
    - `strategy`: the server's, which may give a client targets of its own in place of labels, such as the vector that
      verifies a user (default FedAvg: labels).

    Raises PlanError for arguments that contradict each other.
    """

    trainer: Trainer
    weights: Weights
    examples: Examples
    epochs: int
    seed: int
    compressor: Compressor = field(default_factory=NoCompression)
    memory: ClientMemory | None = None
    down: Compressor | None = None
    steps: int | None = None
    masks: Masks | None = None
    strategy: Strategy = field(default_factory=FedAvg)
    local: LocalPrivacy | None = None

    def __post_init__(self) -> None:
        if self.down is not None and self.memory is None:
            raise PlanError("Clients that receive changes of the weights keep them: give a memory.")
        if keeps_state(self.compressor) and self.memory is None:
            raise PlanError(
                "Clients that compress with error feedback, as topk does, keep what a message left out for the next "
                "one: give memory=ClientMemory(folder)."
            )
        if self.masks and self.strategy.own_size:
            raise PlanError("Masks hide nothing where users send their vectors: choose a strategy that doesn't.")
        self.names = sorted(self.trainer.session.changing)
        self.shapes = [self.weights[name].shape for name in self.names]

    def answer(self, data: bytes) -> bytes:
        """Carry out an instruction. What a client can't do is the `problem` of its reply.

        Raises RunError if what a client keeps for its next round can't be written.
        """
        instruction = Instruction.from_bytes(data)
        try:
            reply, kept = self._train(instruction)
        except EdgelearnError as error:
            return Reply.refusal(instruction, error).to_bytes()
        if self.memory and kept:
            self.memory.save(instruction.client, instruction.round, kept)
        return reply.to_bytes()

    def _train(self, instruction: Instruction) -> tuple[Reply, dict[str, np.ndarray]]:
        """The reply, and what the client keeps for its next round."""
        number, client = instruction.round, instruction.client
        if number < 1 or not 0 <= client < len(self.examples.parts):
            raise FormatError(f"there is no round {number} of a client {client}: {len(self.examples.parts)} are here")
        start = time.perf_counter()
        kept = self.memory.load(client, number) if self.memory else {}
        payload, own = split_own(instruction.payload, self.strategy.own_size)
        if self.down is None:
            received = NoCompression().decode(payload, self.shapes)
        else:
            received = receive(self.down, payload, self.shapes, kept)
        chosen = self._chosen(number, client)
        epochs = self.epochs if self.steps is None else 1
        x = _RoundExamples(self.examples.x, chosen, (number - 1) * epochs)
        targets = self.strategy.targets(client, self.examples.y[chosen], own, self.seed)
        begun = start_of(self.compressor, received, kept)
        self.trainer.load(self.weights | dict(zip(self.names, begun, strict=True)))
        if self.strategy.own_size:  # both follow the gradient at the weights that the client received
            own = self.strategy.moved(targets[0], self.trainer.predict(x))
        history = self.trainer.fit(x, targets, epochs)
        trained = self.trainer.weights
        changes = [trained[name] - before for name, before in zip(self.names, begun, strict=True)]
        if self.local:
            changes = self.local.protect(changes, client, number)
        if self.masks:
            payload = self.masks.hide(changes, client, number)
        else:
            rng = np.random.default_rng([self.seed, _COMPRESSION, number, client])
            payload = at_round(self.compressor, number).encode(changes, rng, kept)
        metrics = {name: values[-1] for name, values in history.history.items() if name != "seconds"}
        metrics |= {
            "seconds": round(time.perf_counter() - start, 4), "planned": self.trainer.plan.peak_bytes,
            "allocated": self.trainer.session.allocated_bytes,
        }  # fmt: skip
        return Reply(number, client, payload + own.tobytes(), len(x), metrics), kept

    def _chosen(self, number: int, client: int) -> np.ndarray:
        """Numbers of the examples of a round, in a random order."""
        rng, part = np.random.default_rng([self.seed, _ORDER, number, client]), self.examples.parts[client]
        if self.steps is None:
            return rng.permutation(part)
        count = self.steps * self.trainer.plan.request.batch_size
        return rng.choice(part, count, replace=len(part) < count)


class _RoundExamples(Subset):
    """Examples of a round. Those that differ from epoch to epoch, do so from round to round.

    Arguments:
    - `source`, `indices`: see Subset.
    - `before`: number of epochs before this round.
    """

    def __init__(self, source: Source, indices: np.ndarray, before: int) -> None:
        super().__init__(source, indices)
        self.before = before

    def at_epoch(self, epoch: int) -> Subset:
        return super().at_epoch(self.before + epoch)
