"""The server of a federation: draw clients, send weights, screen what comes back, aggregate it, test."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import floor, inf, isfinite, nan
from textwrap import shorten
from typing import Any, NotRequired, TypedDict, cast

import numpy as np

from edgelearn import records
from edgelearn.display import plural
from edgelearn.errors import FormatError, PlanError, RunError
from edgelearn.interop.weights import Weights
from edgelearn.ops import Optimizer
from edgelearn.records import Finite
from edgelearn.train import Callback, History, Model, Position, TrainedModel
from edgelearn.train.callbacks import CallbackList
from edgelearn.train.state import Logs, TrainingStatus

from .asynchronous import SimulatedGrid, staleness_weight
from .compression import Compressor, Decoder, Downlink, NoCompression, Shapes, at_round, checked
from .messages import Grid, Instructions, Outcome, Reply, Size, size_of, split_own
from .privacy import Masks, Privacy
from .strategy import Arrays, Average, Mixing, Strategy, norm

MOST_EXAMPLES = 10  # times the round's median that a client's number of examples counts for
_EXAMPLES = 1_000_000_000  # no client has more
_ROUNDS, _RUNNING = 50, 3  # whose median norms are kept, and of a running median
_PROBLEM = 300  # characters of a client's reason that are kept
_SAMPLING, _DOWN = 32, 38  # separate these random streams from others of the same seed
_DOWNLINK, _AVERAGE = "downlink/", "average/"  # before their tensors in a checkpoint


@dataclass(frozen=True)
class Update:
    """A change of the weights that a client proposes.

    Arguments:
    - `client`: number of the client.
    - `read`: reads the change from the client's reply: a round's changes are read one at a time.
    - `examples`: number of examples that it says it trained with, at most MOST_EXAMPLES times the round's median.
    - `metrics`: numbers by name.
    - `own`: values of the client's own (default: none).
    """

    client: int
    read: Callable[[], Arrays] = field(repr=False)
    examples: int
    metrics: Mapping[str, float]
    own: np.ndarray = field(default_factory=lambda: np.empty(0, np.float32), repr=False)

    @property
    def arrays(self) -> Arrays:
        """The change, float32."""
        return self.read()


class Changes(Sequence[Arrays]):
    """The changes of updates, in their order, each read when it is asked for."""

    def __init__(self, updates: Sequence[Update]) -> None:
        self._updates = updates

    def __getitem__(self, place: Any) -> Any:
        some = self._updates[place]
        return Changes(some) if isinstance(place, slice) else some.arrays

    def __len__(self) -> int:
        return len(self._updates)


@dataclass
class NormLimit:
    """Limit of the norms of changes, from the median norms of earlier rounds.

    The limit is `largest` times the longest running median over three rounds, of the last 50: a round in which most
    clients lie doesn't raise it, and it falls once changes have become short. Most clients know their examples in the
    end; one that has something left to learn is long beside them, and is believed as long as the last 50 rounds had
    such changes. Changes of norm 0 don't count. Before there are three rounds the shortest median counts, in the
    first round its own.

    Arguments:
    - `largest`: factor of that median; None: no limit.
    - `medians`: medians of the last rounds with changes, the oldest first, each at most the limit at its time.
    """

    largest: float | None
    medians: Sequence[float] = field(default_factory=list)

    @property
    def running(self) -> float:
        """The running median over the last three rounds; 0 before there is a round."""
        return _median(self.medians[-_RUNNING:]) if self.medians else 0.0

    def too_long(self, norms: Mapping[int, float]) -> dict[int, str]:
        """Return why some of a round's changes are too long, by client; then learn from them.

        Arguments:
        - `norms`: the changes' norms, by client.
        """
        if not (lengths := [length for length in norms.values() if length]):
            return {}
        median = _median(lengths)
        known = self.medians or [median]
        typical = max(_median(known[at : at + _RUNNING]) for at in range(max(1, len(known) - _RUNNING + 1)))
        limit = inf if self.largest is None else self.largest * typical
        self.medians = [*self.medians, min(median, limit)][-_ROUNDS:]
        reason = f"more than {self.largest} times the median of earlier rounds, {typical:.3g}"
        return {c: f"its change is {length:.3g} long, {reason}" for c, length in norms.items() if length > limit}


def screen(
    outcomes: Mapping[int, Outcome], number: int, shapes: Shapes, compressor: Decoder, limit: NormLimit,
    own_size: int = 0, largest_share: float | None = None, begun: Mapping[int, int] | None = None,
) -> tuple[list[Update], dict[int, str]]:  # fmt: skip
    """Return (updates to aggregate, by ascending client; why the others are left out, by client).

    Arguments:
    - `outcomes`: reply of each client, or why there is none.
    - `number`: number of the round.
    - `shapes`: shapes of the arrays that travel.
    - `compressor`: reads the replies.
    - `limit`: limit of the changes' norms, which learns from the round's.
    - `own_size`: number of values of a client's own, which follow the change (default 0).
    - `largest_share`: largest share of the round's examples that one client counts for (default None: any).
    - `begun`: rounds from whose weights clients trained (default None: all from those of `number`); changes of earlier
      rounds are weighted by `staleness_weight`.
    """
    updates, norms, left_out = [], {}, {}
    for client in sorted(outcomes):
        began = begun[client] if begun else number
        try:
            decoder, weight = at_round(compressor, began), staleness_weight(number - began)
            update, norms[client] = _update(outcomes, began, client, shapes, decoder, own_size, weight)
            updates.append(update)
        except FormatError as error:
            left_out[client] = str(error)
    left_out |= limit.too_long(norms)
    updates = [update for update in updates if update.client not in left_out]
    # The server can't count a client's examples, so none counts as much more than the others.
    most = MOST_EXAMPLES * int(_median(update.examples for update in updates)) if updates else 0
    if largest_share is not None and updates:
        most = min(most, most_examples([update.examples for update in updates], largest_share))
    return [replace(update, examples=min(update.examples, most)) for update in updates], left_out


def most_examples(examples: Sequence[int], share: float) -> int:
    """Return the number of examples for which a client counts at most, so that none has more than `share` of the sum.

    Arguments:
    - `examples`: number of examples of each client, at least 1.
    - `share`: above 0 and at most 1. Where it is no more than 1 / clients, everybody counts the same: 1 is returned.
    """
    rest = sum(examples)
    limit = share * rest
    for number, count in enumerate(sorted(examples, reverse=True), 1):
        if count <= limit:
            return max(1, floor(limit))
        rest -= count
        if number * share >= 1:
            break
        limit = share * rest / (1 - number * share)  # share · (number · limit + rest), for the `number` largest
    return 1


def _update(
    outcomes: Mapping[int, Outcome], number: int, client: int, shapes: Shapes, compressor: Decoder, own_size: int,
    weight: float,
) -> tuple[Update, float]:  # fmt: skip
    """Return (the update of a client, its norm). Raises FormatError, with the reason, for what can't be aggregated."""
    outcome = outcomes[client]
    if isinstance(outcome, str):
        raise FormatError(outcome)
    reply = Reply.from_bytes(outcome)
    if (reply.round, reply.client) != (number, client):
        raise FormatError(f"the reply is for round {reply.round} of client {reply.client}")
    if reply.problem:
        raise FormatError(shorten(reply.problem, _PROBLEM, placeholder=" …"))  # in one line, whatever it says
    if not 1 <= reply.examples <= _EXAMPLES:
        raise FormatError(f"it trained with {plural(reply.examples, 'example')}")

    def decoded(data: bytes) -> tuple[Arrays, np.ndarray]:
        payload, own = split_own(data, own_size)
        return compressor.decode(payload, shapes), own

    def read() -> Arrays:
        change = decoded(Reply.from_bytes(cast(bytes, outcomes[client])).payload)[0]
        return change if weight == 1 else [np.float32(weight) * array for array in change]

    arrays, own = decoded(reply.payload)
    if not all(np.isfinite(array).all() for array in (*arrays, own)):
        raise FormatError("its change holds a NaN or an infinity")
    if bad := [name for name, value in reply.metrics.items() if not isfinite(value)]:
        raise FormatError(f"its {bad[0]} is {reply.metrics[bad[0]]}")
    return Update(client, read, reply.examples, reply.metrics, own), norm(arrays)


def _median(values: Iterable[float]) -> float:
    """The middle one; of two in the middle, the lower."""
    ascending = sorted(values)
    return ascending[(len(ascending) - 1) // 2]


@dataclass(frozen=True)
class ServerSettings:
    """Settings of a federation's rounds.

    Arguments:
    - `clients`: number of clients.
    - `rounds`: number of rounds.
    - `fraction`: share of the clients that train in a round (default 1).
    - `seed`: draws the clients of each round (default 0).
    - `deadline`: seconds after which a round goes on without those that are missing (default None: it waits).
    - `largest`: an update longer than so many times the median of earlier rounds is left out (default 10; None: none
      is); see `NormLimit`.
    - `validation_frequency`: test after every so many rounds, and after the last (default 1).
    - `average`: decay of the exponential mean of the rounds' weights that is tested and left in the model; clients get
      the weights themselves (default 0: none, what is tested are the weights themselves).
    - `largest_share`: largest share of a round's examples that one client counts for (default None: any; see also
      MOST_EXAMPLES).
    """

    clients: int
    rounds: int
    fraction: float = 1.0
    seed: int = 0
    deadline: float | None = None
    largest: float | None = 10.0
    validation_frequency: int = 1
    average: float = 0.0
    largest_share: float | None = None

    def drawn(self, number: int) -> list[int]:
        """The clients of round `number` (from 1), ascending; they depend on the seed and the round alone."""
        count = max(1, floor(self.fraction * self.clients + 0.5))
        rng = np.random.default_rng([self.seed, _SAMPLING, number])
        return sorted(rng.choice(self.clients, count, replace=False).tolist())


class Bytes(TypedDict):
    """Bytes of messages: of their `payload`, and in `total`."""

    payload: int
    total: int


class ClientRecord(TypedDict):
    """Record of a client's update; its metrics stand beside."""

    client: int
    examples: int
    planned: NotRequired[Finite]
    allocated: NotRequired[Finite]
    down: Bytes
    up: Bytes
    staleness: NotRequired[int]  # updates that the server made meanwhile, of asynchronous rounds


@dataclass(frozen=True)
class RoundRecord:
    """Record of a round.

    Arguments:
    - `round`: number of the round.
    - `clients`: a dictionary for each client that was aggregated: its number, examples, metrics, and bytes.
    - `left_out`: why other clients were not, by number.
    - `down`, `up`: bytes of all messages to and from clients: `payload` and `total`.
    """

    round: int
    clients: list[ClientRecord]
    left_out: dict[str, str]
    down: Bytes
    up: Bytes

    def to_dict(self) -> dict:
        return asdict(self)


class Server(TrainedModel):
    """The server of a federation. For callbacks a round is an epoch, and a client a step of it.

    Arguments:
    - `model`: the network, its initial weights, and what tests it. It has the averaged weights where there are any.
    - `names`: the weights that travel, in the order of the arrays of a message.
    - `settings`: settings of the rounds.
    - `strategy`: makes a change of the weights of the clients' updates.
    - `grid`: reaches the clients.
    - `test`: (source of examples, int labels).
    - `compressor`: reads the replies (default: float32).
    - `record`: called after each round with what happened (default: nothing is done with it).
    - `privacy`: clips changes and adds noise to their mean, or takes the mean of masked ones, which its `decode` reads
      (default None: their mean by examples). Whether another client is aggregated must then not depend on a change's
      norm, so none is left out for it.
    - `down`: compressor of the weights that are sent, which clients must use too (default None: all as float32).
    - `mixing`: averages changes with each other before the strategy combines them (default None: it doesn't).

    Raises PlanError for an `average` of the settings that isn't 0 or between 0 and 1, for privacy with mixing or a
    strategy that combines changes in a way of its own, and for a SimulatedGrid with a buffer where all answers must be
    from the same weights.
    """

    def __init__(
        self, model: Model, names: Sequence[str], settings: ServerSettings, strategy: Strategy, grid: Grid, test: tuple,
        compressor: Decoder | None = None, record: Callable[[RoundRecord], None] = lambda record: None,
        privacy: Privacy | Masks | None = None, down: Compressor | None = None, mixing: Mixing | None = None,
    ) -> None:  # fmt: skip
        self.model, self.names, self.settings, self.strategy, self.grid = model, list(names), settings, strategy, grid
        self.test, self.compressor, self.record = test, compressor or NoCompression(), record
        if privacy and (mixing or strategy.combines):
            raise PlanError(
                f"{type(mixing or strategy).__name__} must see each client's change, which privacy and masks don't "
                "allow: choose FedAvg or another strategy that follows the mean, without mixing."
            )
        self._simulated = grid if isinstance(grid, SimulatedGrid) else None
        buffer = self._simulated.buffer if self._simulated else None
        if buffer and (privacy or mixing or down or strategy.combines or strategy.own_size or settings.fraction < 1):
            raise PlanError(
                "Asynchronous rounds take the mean of changes from weights of several rounds: choose fedavg, fedprox, "
                "fedavgm, fedadam or fedyogi, without privacy of the server, masks, mixing, compression of the weights "
                "that are sent, or a fraction of the clients."
            )
        self.mixing = mixing
        self.privacy, self._limit = privacy, NormLimit(None if privacy else settings.largest)
        self.status = TrainingStatus(epochs=settings.rounds, steps_per_epoch=buffer or len(settings.drawn(1)))
        self._weights = dict(model.weights)
        self.shapes = [self._weights[name].shape for name in self.names]
        self._trained = [index for index, name in enumerate(self.names) if name in model.network.trainable]
        self._server = strategy.initial_state([self.shapes[index] for index in self._trained])
        self.own = np.zeros((settings.clients, strategy.own_size), np.float32)
        self._downlink = Downlink(down, [self._weights[name] for name in self.names]) if down else None
        self._average = Average(settings.average) if settings.average else None
        self.tested_own = self.own  # of the clients, as they belong to the model's weights
        self._notify = CallbackList(self, [])

    @property
    def headline(self) -> str:
        return f"of '{self.model.network.name}' after {plural(self.position.epoch, 'round')}"

    @property
    def optimizer(self) -> Optimizer:
        return self.model.optimizer

    @property
    def weights(self) -> Weights:
        return dict(self._weights)

    @weights.setter
    def weights(self, weights: Weights) -> None:
        self._weights = dict(weights)
        self.model.weights, self.tested_own = self._weights, self.own

    def swap_averages(self) -> None:
        raise RunError("A federation's model has the averaged weights by itself: see `average` of its settings.")

    def evaluate(self, x, y) -> Logs:
        return self.model.evaluate(x, y)

    def predict(self, x):
        return self.model.predict(x)

    def range_records(self) -> Weights:
        return {}

    def reconstruction_errors(self) -> dict[str, float]:
        return {}

    def _travelling(self) -> Weights:
        """The weights that travel, and what clients have of their own, by name: what is averaged and checkpointed."""
        own = {"own": self.own.copy()} if self.strategy.own_size else {}
        return {name: self._weights[name] for name in self.names} | own

    def _tensors(self, averages: Sequence[np.ndarray]) -> Weights:
        """Tensors of a checkpoint, without those of the downlink. `averages`: those of `_travelling`, or none."""
        travelling = self._travelling()
        tensors = {name if name == "own" else f"weights/{name}": array for name, array in travelling.items()}
        for slot, arrays in self._server.items():
            tensors |= {f"server/{slot}/{self.names[i]}": a for i, a in zip(self._trained, arrays, strict=True)}
        return tensors | {f"{_AVERAGE}{name}": array for name, array in zip(travelling, averages, strict=False)}

    def state(self) -> tuple[Weights, dict]:
        tensors = self._tensors(self._average.arrays if self._average else ())
        if self._downlink:
            tensors |= {f"{_DOWNLINK}{name}": array for name, array in self._downlink.state().items()}
        position = {"round": self.position.epoch, "medians": self._limit.medians}
        if self._simulated:
            flights, times = self._simulated.state()
            tensors, position = tensors | flights, position | times
        return tensors, position

    def restore(self, tensors: Weights, position: dict) -> None:
        """Return to where `state` was called. Raises FormatError, and changes nothing, if it was called on another
        federation."""
        try:
            number = records.convert(position["round"], int)
            medians = records.convert(position["medians"], list[Finite])
            expected = self._tensors(list(self._travelling().values()) if self._average and number else ())
            found = {n: checked(tensors[n], a.shape, f"The checkpoint's '{n}'") for n, a in expected.items()}
            if not 0 <= number <= self.settings.rounds:
                raise FormatError(f"The checkpoint is of round {number}, and there are {self.settings.rounds}.")
            times = self._simulated.read(tensors, position) if self._simulated else None
            if self._downlink:  # the last that may fail: from here on everything changes
                kept = {k.removeprefix(_DOWNLINK): a for k, a in tensors.items() if k.startswith(_DOWNLINK)}
                self._downlink.restore(kept)
        except KeyError as error:
            raise FormatError(f"The checkpoint is of another federation: it lacks {error}. Start a new run.") from None
        except records.RecordError as error:
            raise FormatError(f"The checkpoint's rounds are damaged: {error}.") from None
        if self._simulated and times:
            self._simulated.clock, self._simulated.flights = times
        if self._average:
            self._average.arrays = [array for name, array in found.items() if name.startswith(_AVERAGE)]
        self._limit.medians, self.status.position = medians, Position(epoch=number)
        self._server = {
            slot: [found[f"server/{slot}/{self.names[index]}"] for index in self._trained] for slot in self._server
        }
        self.own = np.array(found.get("own", self.own))
        self.weights = self._weights | {name: found[f"weights/{name}"] for name in self.names}
        self._use_averages()

    def fit(self, callbacks: Sequence[Callback] = ()) -> History:
        """Run the rounds that are left and return their figures, one of each a round. Raises RunError for a round of
        which no update could be aggregated."""
        history = History()
        self._notify = CallbackList(self, [*callbacks, history])
        self.status.stop_training = False
        before = self._evaluate() if not self.position.epoch else {}
        self._notify("on_train_begin", before)
        try:
            while self.position.epoch < self.settings.rounds and not self.stop_training:
                self._round(self.position.epoch + 1)
        except _Stopped:
            self.status.position = Position(epoch=self.position.epoch)
        finally:
            self._notify("on_train_end", {})
        return history

    def _round(self, number: int) -> None:
        start, drawn = time.perf_counter(), self.settings.drawn(number)
        self._notify("on_epoch_begin", number - 1, {})
        sent = self._instructions(drawn, number)
        outcomes = self.grid.exchange(sent, self.settings.deadline, self._arrived)
        begun = self._simulated.rounds() if self._simulated else None
        updates, left_out = screen(
            outcomes, number, self.shapes, self.compressor, self._limit, self.strategy.own_size,
            self.settings.largest_share, begun,
        )  # fmt: skip
        if self._downlink:
            for client in left_out:  # whatever it has: next time it gets all weights
                self._downlink.forget(client)
        record = _recorded(number, sent, outcomes, updates, left_out, self._simulated)
        for bytes_, more in zip((record.down, record.up), getattr(self.grid, "overhead", (0, 0)), strict=True):
            bytes_["total"] += more  # messages of the grid's own
        if not updates:
            client, reason = next(iter(left_out.items()))
            raise RunError(
                f"Round {number}: no update of {len(outcomes)} clients could be aggregated. Client {client}: {reason}."
            )
        self._aggregate(updates, len(drawn), number)
        total = sum(update.examples for update in updates)
        names = [name for name in ("loss", "accuracy") if all(name in update.metrics for update in updates)]
        logs = {name: sum(u.metrics[name] * u.examples for u in updates) / total for name in names}
        if number % self.settings.validation_frequency == 0 or number == self.settings.rounds:
            logs |= self._evaluate()
        else:
            self._use_averages()
        logs |= {"clients": len(updates), "left_out": len(left_out)}
        logs |= {"up_bytes": record.up["total"], "down_bytes": record.down["total"]}
        logs |= self.privacy.logs(number) if self.privacy else {}
        if self._simulated:
            logs["simulated_seconds"] = self._simulated.clock
        logs["seconds"] = time.perf_counter() - start
        self.record(record)
        self.status.position = Position(epoch=number)
        self._notify("on_epoch_end", number - 1, logs)

    def _instructions(self, drawn: Sequence[int], number: int) -> Instructions:
        """Return the message for each client."""
        weights = [self._weights[name] for name in self.names]
        rng = np.random.default_rng([self.settings.seed, _DOWN, number])
        if self._downlink:
            self._downlink.advance(weights, rng)
            payloads = {client: self._downlink.message(client) for client in drawn}
        else:
            payloads = dict.fromkeys(drawn, NoCompression().encode(weights, rng, {}))
        return Instructions(number, payloads, self.own)

    def _arrived(self, client: int, outcome: Outcome) -> None:
        try:
            loss = Reply.from_bytes(outcome).metrics["loss"] if isinstance(outcome, bytes) else nan
        except (FormatError, KeyError):
            loss = nan
        self.position.step += 1
        self._notify("on_train_batch_end", self.position.step - 1, {"loss": loss})
        if self.stop_training and self.position.step < self.status.steps_per_epoch:
            raise _Stopped

    def _aggregate(self, updates: Sequence[Update], drawn: int, number: int) -> None:
        """Trained parameters follow the strategy; statistics of BatchNorm are averaged. What clients sent of their own
        is kept, and the strategy may change it."""
        changes: Sequence[Arrays] = Changes(updates)
        if self.privacy:
            change = self.privacy.mean(changes, drawn, number)
        else:
            examples = [update.examples for update in updates]
            if self.mixing:
                changes = self.mixing.mixed(changes, number)
                examples = [1] * len(changes)
            change = self.strategy.combined(changes, examples, self._limit.running)
        trained, self._server = self.strategy.step([change[i] for i in self._trained], self._server, number)
        scale = np.float32(self.strategy.scale(number))
        for index, step in zip(self._trained, trained, strict=True):
            change[index] = scale * step
        self.weights = self._weights | {n: self._weights[n] + c for n, c in zip(self.names, change, strict=True)}
        for update in updates:
            self.own[update.client] = update.own
        if self.strategy.own_size:
            known = self.own.any(1)  # clients that never sent theirs have zeros
            self.own[known] = self.strategy.arranged(self.own[known])
        if self._average:
            self._average.add(list(self._travelling().values()), number)

    def _evaluate(self) -> Logs:
        """Test the weights themselves and, if there are any, the averages, which stay in the model."""
        raw = self.evaluate(*self.test)
        if not self._use_averages():
            return {f"val_{name}": value for name, value in raw.items()}
        averaged = {f"val_{name}": value for name, value in self.evaluate(*self.test).items()}
        return averaged | {f"val_raw_{name}": value for name, value in raw.items()}

    def _use_averages(self) -> bool:
        """Put the averages into the model. Returns False if there are none."""
        if not self._average or not self._average.arrays:
            return False
        averages = dict(zip(self._travelling(), self._average.arrays, strict=True))
        self.tested_own = averages.pop("own", self.own)
        self.model.weights = self._weights | averages
        return True


class _Stopped(Exception):
    """Raised where `stop_training` ends a round."""


def _recorded(
    number: int, sent: Mapping[int, bytes], outcomes: Mapping[int, Outcome], updates: Sequence[Update],
    left_out: Mapping[int, str], simulated: SimulatedGrid | None,
) -> RoundRecord:  # fmt: skip
    """The record of a round. Messages count in the round in which they were sent, also to clients that answer later;
    beside a client's update stands the message that it answered."""
    if simulated:
        down = {client: flight.down for client, flight in simulated.arrived.items()}
        all_down = simulated.sent.values()
    else:
        down = {client: size_of(data) for client, data in sent.items()}
        all_down = down.values()
    up = {client: size_of(data) for client, data in outcomes.items() if isinstance(data, bytes)}
    begun = simulated.rounds() if simulated and simulated.buffer else {}
    clients = [
        cast(ClientRecord, {**u.metrics, "client": u.client, "examples": u.examples,
                            "down": _bytes(down[u.client]), "up": _bytes(up[u.client])}
             | ({"staleness": number - begun[u.client]} if begun else {}))
        for u in updates
    ]  # fmt: skip
    reasons = {str(client): why for client, why in sorted(left_out.items())}
    return RoundRecord(number, clients, reasons, _bytes(*all_down), _bytes(*up.values()))


def _bytes(*sizes: Size) -> Bytes:
    return {"payload": sum(size.payload for size in sizes), "total": sum(size.total for size in sizes)}
