"""A federation of users, each of whom trains with their own recordings alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from edgelearn.errors import PlanError, RunError
from edgelearn.interop.weights import Weights
from edgelearn.train import Trainer

from ..compressor import NoCompression
from ..masking import mask, sum_of_masked
from ..strategy import FedAdam
from .methods import Method
from .spreading import unit

_EXAMPLES, _SAMPLING = 42, 43  # separate these random streams from others of the same seed
_TAU = 1e-5  # of Adam: a mean change is the gradient itself, often small


@dataclass(frozen=True)
class VerificationSettings:
    """How a federation of users trains.

    Arguments:
    - `rounds`: their number (default 300).
    - `recordings`: of a user in each round, a mini-batch of one update (default 12).
    - `fraction`: share of the users that train in a round (default 1).
    - `rate`: learning rate of the server's FedAdam (default 0.005).
    - `vector_rate`: learning rate of vectors that are learned (default 0.1).
    - `spread_rate`: learning rate of the server's `spread` (default 0.01).
    - `seed`: draws users and recordings of each round (default 0).
    - `masked`: changes are hidden by masks that cancel in their sum, see `edgelearn.federated.masking` (default False).
    """

    rounds: int = 300
    recordings: int = 12
    fraction: float = 1.0
    rate: float = 0.005
    vector_rate: float = 0.1
    spread_rate: float = 0.01
    seed: int = 0
    masked: bool = False

    def drawn(self, users: int, number: int) -> list[int]:
        """The users of round `number`, ascending; everybody can compute them."""
        rng = np.random.default_rng([self.seed, _SAMPLING, number])
        return sorted(rng.choice(users, max(1, round(self.fraction * users)), replace=False).tolist())


class Participant:
    """A user's side. Recordings and, with FedUV, the codeword never leave it.

    Arguments:
    - `number`: of the user.
    - `x`: the user's recordings (n, …).
    - `method`, `settings`: of the federation.
    - `trainer`: an open session, whose learning rate is 1; participants in one process may share it.
    - `users`: number of all users, with whom masks are shared (default 1).
    """

    def __init__(
        self, number: int, x: np.ndarray, method: Method, settings: VerificationSettings, trainer: Trainer,
        users: int = 1,
    ) -> None:  # fmt: skip
        if settings.masked and method.shares_vectors:
            raise PlanError("Masks hide nothing where users send their vectors: choose a method that doesn't.")
        self.users = users
        self.number, self.x, self.method, self.settings, self.trainer = number, x, method, settings, trainer
        self.vector = method.vector(number, settings.seed)
        self.names = sorted(trainer.training.session.changing)
        self._weights = dict(trainer.weights)
        self._shapes = [self._weights[name].shape for name in self.names]
        if method.shares_vectors:
            self._shapes.append(self.vector.shape)

    def answer(self, number: int, data: bytes) -> bytes:
        """Train in round `number` (from 1) from the weights of a message, and return a message with their change."""
        settings = self.settings
        received = NoCompression().decode(data, self._shapes)
        if self.method.shares_vectors and number > 1:
            self.vector = received[-1]
        rng = np.random.default_rng([settings.seed, _EXAMPLES, number, self.number])
        chosen = rng.choice(len(self.x), settings.recordings, replace=len(self.x) < settings.recordings)
        x = self.x[chosen]
        weights = dict(zip(self.names, received, strict=False))
        self.trainer.load(self._weights | weights)
        self.trainer.step(x, np.tile(self.vector, (len(x), 1)))
        trained = self.trainer.weights
        reply = [trained[name] - weights[name] for name in self.names]
        if self.method.shares_vectors:
            self.vector = self.method.moved(self.vector, self.trainer.predict(x), settings.vector_rate, 1)
            reply.append(self.vector)
        if settings.masked:
            return mask(reply, self.number, settings.drawn(self.users, number), settings.seed, number)
        return NoCompression().encode(reply, rng, {})


class VerificationServer:
    """The server's side: it sees changes of shared weights, and the users' vectors if the method shares them.

    Arguments:
    - `weights`: all weights of the network, by name.
    - `names`: those that travel, in the order of a message's arrays.
    - `method`, `settings`: of the federation.
    """

    def __init__(self, weights: Weights, names: Sequence[str], method: Method, settings: VerificationSettings) -> None:
        self.weights, self.names, self.method, self.settings = dict(weights), list(names), method, settings
        self.vectors: dict[int, np.ndarray] = {}  # by user, if the method shares them
        self._adam, self._round = FedAdam(rate=settings.rate, tau=_TAU), 0
        self._state = self._adam.initial_state([weights[name].shape for name in names])

    def message(self, user: int) -> bytes:
        """The shared weights, and the user's own vector if the method shares vectors."""
        arrays = [self.weights[name] for name in self.names]
        if self.method.shares_vectors:
            arrays.append(self.vectors.get(user, np.zeros(self.method.size, np.float32)))
        return NoCompression().encode(arrays, np.random.default_rng(0), {})

    def aggregate(self, replies: dict[int, bytes]) -> None:
        """Update the weights by the mean change. Raises RunError for replies that aren't finite."""
        shapes = [self.weights[name].shape for name in self.names]
        masked = self.settings.masked
        total = sum_of_masked(list(replies.values()), shapes) if masked else self._sum(replies, shapes)
        mean = [array / len(replies) for array in total]
        self._round += 1
        changes, self._state = self._adam.step([a.astype(np.float32) for a in mean], self._state, self._round)
        for name, change in zip(self.names, changes, strict=True):
            self.weights[name] = self.weights[name] + change
        if self.method.shares_vectors:
            users = sorted(self.vectors)
            arranged = self.method.arranged(np.stack([self.vectors[u] for u in users]), self.settings.spread_rate)
            self.vectors = dict(zip(users, arranged, strict=True))

    def _sum(self, replies: dict[int, bytes], shapes: list[tuple[int, ...]]) -> list[np.ndarray]:
        """The sum of changes; vectors that come with them are kept."""
        total = [np.zeros(shape) for shape in shapes]
        own = [(self.method.size,)] if self.method.shares_vectors else []
        for user, data in sorted(replies.items()):
            arrays = NoCompression().decode(data, [*shapes, *own])
            if not all(np.isfinite(array).all() for array in arrays):
                raise RunError(f"The reply of user {user} isn't finite. Lower the learning rate.")
            total = [sum_ + array for sum_, array in zip(total, arrays, strict=False)]
            if own:
                self.vectors[user] = unit(arrays[-1]).astype(np.float32)
        return total


def run_rounds(
    server: VerificationServer, participants: Sequence[Participant],
    after: Callable[[int, dict[int, bytes], dict[int, bytes]], None] = lambda number, sent, replies: None,
) -> None:  # fmt: skip
    """Run all rounds. `after`: called after each with its number and the messages to and from each user."""
    for number in range(1, server.settings.rounds + 1):
        sent = {user: server.message(user) for user in server.settings.drawn(len(participants), number)}
        replies = {user: participants[user].answer(number, data) for user, data in sent.items()}
        server.aggregate(replies)
        after(number, sent, replies)
    if server.method.shares_vectors:
        for user, vector in server.vectors.items():
            participants[user].vector = vector
