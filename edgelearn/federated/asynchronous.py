"""Asynchronous rounds on a simulated clock: the server doesn't wait for the slowest client.

They are those of FedBuff (Nguyen et al. 2022, "Federated learning with buffered asynchronous aggregation").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import sqrt

import numpy as np

from edgelearn import records
from edgelearn.errors import FormatError, PlanError
from edgelearn.interop.weights import Weights
from edgelearn.records import Finite

from .messages import Arrived, Grid, Instruction, Outcome, Outcomes, Size, size_of

_SPEED, _ORDER = 43, 44  # separate these random streams from others of the same seed
_FLIGHT = "in flight/"  # before answers in a checkpoint


def draw_durations(sizes: Sequence[int], spread: float, seed: int = 0) -> list[float]:
    """Return how long each client trains: its examples times its seconds for an example, which are log-normal.

    Arguments:
    - `sizes`: number of examples with which each client trains in a round.
    - `spread`: standard deviation of the logarithm of the seconds for an example, at least 0. With 1 the slowest of
      ten clients takes about five times as long as the median one, which takes one second.
    - `seed`: draws them (default 0).
    """
    normal = np.random.default_rng([seed, _SPEED]).standard_normal(len(sizes))
    return [float(size * pace) for size, pace in zip(sizes, np.exp(spread * normal), strict=True)]


def staleness_weight(staleness: int) -> float:
    """Return the factor 1/√(1 + staleness) of a change (Nguyen et al. 2022).

    Arguments:
    - `staleness`: number of updates that the server made while the client trained, at least 0.
    """
    return 1 / sqrt(1 + staleness)


@dataclass(frozen=True)
class Flight:
    """A client's training that the simulated clock has not finished yet.

    Arguments:
    - `round`: number of the round whose weights it trains from.
    - `done`: simulated seconds at which its answer arrives.
    - `down`: size of the message that it got.
    - `answer`: its reply.
    """

    round: int
    done: float
    down: Size
    answer: Outcome = field(repr=False)


@dataclass(frozen=True)
class _Flown:
    """Record of a flight in a checkpoint, without the payload of its answer. The answer's header says how long the
    client really trained, so it is no tensor: these have the same bits whenever a run is repeated."""

    client: int
    round: int
    done: Finite
    down: Size
    header: str
    problem: str


class SimulatedGrid:
    """Clients of another grid on a simulated clock, whose rounds end after all answers, or after the first `buffer`.

    With a buffer, `concurrency` clients train at any time, each from the weights of the moment at which it began. Once
    one answers, the next begins, drawn from those that neither train nor have an answer in the buffer. After `buffer`
    answers the server makes an update. An answer is computed when its client begins, and waits until the clock reaches
    its end, so that bits depend on the seed alone.

    Arguments:
    - `grid`: reaches the clients; it answers at once.
    - `durations`: simulated seconds for which each client trains, above 0; see `draw_durations`.
    - `buffer`: answers of an update (default None: those of all clients of a round, which begin together).
    - `concurrency`: clients that train at a time, with `buffer` (default None: all clients).
    - `seed`: draws the order in which clients begin (default 0).

    Attributes:
    - `clock`: simulated seconds since the first round.
    - `flights`: the trainings that go on, by client.
    - `sent`: sizes of the messages that the last exchange sent, by client.
    - `arrived`: the trainings that ended in the last exchange, by client.

    Raises PlanError for a buffer or a concurrency that the clients can't fill.
    """

    def __init__(
        self, grid: Grid, durations: Sequence[float], buffer: int | None = None, concurrency: int | None = None,
        seed: int = 0,
    ) -> None:  # fmt: skip
        for name, number in (("buffer", buffer), ("concurrency", concurrency)):
            if number is not None and not 1 <= number <= len(durations):
                raise PlanError(f"A {name} of {number} doesn't suit {len(durations)} clients: choose 1 to as many.")
        self.grid, self.durations, self.seed = grid, list(durations), seed
        self.buffer, self.concurrency = buffer, concurrency
        self.clock, self.flights = 0.0, dict[int, Flight]()
        self.sent, self.arrived = dict[int, Size](), dict[int, Flight]()

    def exchange(
        self, instructions: Mapping[int, bytes], deadline: float | None, arrived: Arrived
    ) -> Mapping[int, Outcome]:
        """Send instructions to clients as places become free, until there are enough answers.

        Arguments:
        - `instructions`: for each client that may be asked.
        - `deadline`: not used: the clock is simulated.
        - `arrived`: called with a client's number and its outcome as soon as that is computed; it may raise, and
          nothing has happened then.

        Returns the outcome of each client whose training ended.
        """
        number = Instruction.from_bytes(instructions[min(instructions)]).round
        order = np.random.default_rng([self.seed, _ORDER, number]).permutation(sorted(instructions)).tolist()
        clock, flights = self.clock, dict(self.flights)
        sent, ended = dict[int, Size](), dict[int, Flight]()
        idle = [client for client in order if client not in flights]
        places, wanted = self.concurrency or len(order), self.buffer or len(order)
        while len(ended) < wanted:
            free = max(0, places - len(flights))
            starting, idle = idle[:free], idle[free:]
            answers = self.grid.exchange({client: instructions[client] for client in starting}, None, arrived)
            for client in starting:
                sent[client] = size_of(instructions[client])
                done = clock + self.durations[client]
                flights[client] = Flight(number, done, sent[client], answers[client])
            first = min(flights, key=lambda client: (flights[client].done, client))
            ended[first] = flights.pop(first)
            clock = ended[first].done
        self.clock, self.flights, self.sent, self.arrived = clock, flights, sent, ended  # at once: see `arrived`
        outcomes = Outcomes()
        for client, flight in ended.items():
            outcomes[client] = flight.answer
        return outcomes

    def rounds(self) -> dict[int, int]:
        """The rounds from whose weights the answers of the last exchange were trained, by client."""
        return {client: flight.round for client, flight in self.arrived.items()}

    def state(self) -> tuple[Weights, dict]:
        """Return (answers of the trainings that go on, as bytes by name; the clock and their times)."""
        tensors, flown = {}, []
        for client, flight in sorted(self.flights.items()):
            answer, problem = (b"", flight.answer) if isinstance(flight.answer, str) else (flight.answer, "")
            start = len(answer) - size_of(answer).payload
            tensors[f"{_FLIGHT}{client}"] = np.frombuffer(answer[start:], np.uint8)
            header = answer[:start].decode("latin-1")
            flown.append(asdict(_Flown(client, flight.round, Finite(flight.done), flight.down, header, problem)))
        return tensors, {"clock": self.clock, "in_flight": flown}

    def read(self, tensors: Weights, position: dict) -> tuple[float, dict[int, Flight]]:
        """Return (`clock`, `flights`) of what `state` returned. Raises FormatError for a state of other clients."""
        try:
            clock = records.convert(position["clock"], float)
            flown = records.convert(position["in_flight"], list[_Flown])
            if bad := [each.client for each in flown if not 0 <= each.client < len(self.durations)]:
                raise FormatError(f"The checkpoint has an answer of client {bad[0]}, whom this federation lacks.")
            payloads = [tensors[f"{_FLIGHT}{each.client}"].tobytes() for each in flown]
            answers = [
                each.problem or each.header.encode("latin-1") + payload
                for each, payload in zip(flown, payloads, strict=True)
            ]
        except UnicodeEncodeError:
            raise FormatError("The checkpoint's answers of clients are damaged.") from None
        except KeyError as error:
            raise FormatError(f"The checkpoint has no simulated clock: it lacks {error}. Start a new run.") from None
        except records.RecordError as error:
            raise FormatError(f"The checkpoint's simulated clock is damaged: {error}.") from None
        return clock, {
            each.client: Flight(each.round, each.done, each.down, answer)
            for each, answer in zip(flown, answers, strict=True)
        }
