"""The server of a federation: choose clients, send weights, aggregate what comes back, test."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import floor, nan
from typing import NotRequired, TypedDict, cast

import numpy as np

from edgelearn import records
from edgelearn.errors import FormatError, PlanError, RunError
from edgelearn.interop.weights import Weights
from edgelearn.ops import Optimizer
from edgelearn.records import Finite
from edgelearn.train import Callback, History, Model, Position, TrainedModel
from edgelearn.train.callbacks import CallbackList
from edgelearn.train.state import Logs, TrainingStatus

from .compression import Compressor, Decoder, Downlink, NoCompression, at_round, checked
from .messages import Grid, Instruction, Outcome, Reply, Size, size_of
from .privacy import Masks, Privacy
from .screening import Lengths, Update, screen
from .strategy import Average, Strategy

_SAMPLING, _DOWN = 32, 38  # separate these random streams from others of the same seed
_DOWNLINK, _AVERAGE = "downlink/", "average/"  # before their tensors in a checkpoint


@dataclass(frozen=True)
class Settings:
    """Settings of a federation's rounds.

    Arguments:
    - `clients`: number of clients.
    - `rounds`: number of rounds.
    - `fraction`: share of the clients that train in a round (default 1).
    - `seed`: draws the clients of each round (default 0).
    - `deadline`: seconds after which a round goes on without those that are missing (default None: it waits).
    - `largest`: an update longer than so many times the median of earlier rounds is left out (default 10; None: none
      is); see `screening.Lengths`.
    - `validation_frequency`: test after every so many rounds, and after the last (default 1).
    - `average`: decay of the exponential mean of the rounds' weights that is tested and left in the model; clients get
      the weights themselves (default 0: none, what is tested are the weights themselves).
    """

    clients: int
    rounds: int
    fraction: float = 1.0
    seed: int = 0
    deadline: float | None = None
    largest: float | None = 10.0
    validation_frequency: int = 1
    average: float = 0.0

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


@dataclass(frozen=True)
class RoundRecord:
    """Record of a round.

    Arguments:
    - `round`: its number.
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


class Rounds(TrainedModel):
    """The server's side of a federation. For callbacks a round is an epoch, and a client a step of it.

    Arguments:
    - `model`: the network, its initial weights, and what tests it. It has the averaged weights where there are any.
    - `names`: the weights that travel, in the order of the arrays of a message.
    - `settings`: of the rounds.
    - `strategy`: makes a change of the weights of the clients' updates.
    - `grid`: reaches the clients.
    - `test`: (source of examples, int labels).
    - `compressor`: of the replies (default none).
    - `record`: called after each round with what happened (default: nothing is done with it).
    - `privacy`: clips changes and adds noise to their mean, or takes the mean of masked ones, which its `decode` reads
      (default None: their mean by examples). Whether another client is aggregated must then not depend on a change's
      length, so none is left out for it.
    - `down`: compressor of the weights that are sent, which clients must use too (default None: all as float32).

    Raises PlanError for an `average` of the settings that isn't 0 or between 0 and 1, and for privacy with a strategy
    that combines changes in a way of its own.
    """

    def __init__(
        self, model: Model, names: Sequence[str], settings: Settings, strategy: Strategy, grid: Grid, test: tuple,
        compressor: Decoder | None = None, record: Callable[[RoundRecord], None] = lambda record: None,
        privacy: Privacy | Masks | None = None, down: Compressor | None = None,
    ) -> None:  # fmt: skip
        self.model, self.names, self.settings, self.strategy, self.grid = model, list(names), settings, strategy, grid
        self.test, self.compressor, self.record = test, compressor or NoCompression(), record
        if privacy and strategy.combines:
            raise PlanError(
                f"{type(strategy).__name__} must see each client's change, which privacy and masks don't allow: "
                "choose FedAvg or another strategy that follows the mean."
            )
        self.privacy, self._lengths = privacy, Lengths(None if privacy else settings.largest)
        self.status = TrainingStatus(epochs=settings.rounds, steps_per_epoch=len(settings.drawn(1)))
        self._weights = dict(model.weights)
        self.shapes = [self._weights[name].shape for name in self.names]
        trained = model.network.trainable
        self._trained = [index for index, name in enumerate(self.names) if name in trained]
        self._server = strategy.initial_state([self.shapes[index] for index in self._trained])
        self.own = np.zeros((settings.clients, strategy.own_size), np.float32)
        self._downlink = Downlink(down, [self._weights[name] for name in self.names]) if down else None
        self._average = Average(settings.average) if settings.average else None
        self.tested_own = self.own  # of the clients, as they belong to the model's weights
        self._notify = CallbackList(self, [])

    @property
    def headline(self) -> str:
        return f"of '{self.model.network.name}' after {self.position.epoch} rounds"

    @property
    def optimizer(self) -> Optimizer:
        return self.model.optimizer

    @property
    def weights(self) -> Weights:
        return dict(self._weights)

    @weights.setter
    def weights(self, weights: Weights) -> None:
        self._weights = dict(weights)
        self._test_these()

    def swap_averages(self) -> None:
        raise RunError("A federation's model has the averaged weights by itself: see `average` of its settings.")

    def state(self) -> tuple[Weights, dict]:
        tensors = {f"weights/{name}": self._weights[name] for name in self.names}
        for slot, arrays in self._server.items():
            tensors |= {f"server/{slot}/{self.names[i]}": a for i, a in zip(self._trained, arrays, strict=True)}
        if self.strategy.own_size:
            tensors["own"] = self.own.copy()
        if self._downlink:
            tensors |= {f"{_DOWNLINK}{name}": array for name, array in self._downlink.state().items()}
        if self._average and self._average.arrays:
            tensors |= {f"{_AVERAGE}{n}": a for n, a in zip(self._to_average(), self._average.arrays, strict=True)}
        return tensors, {"round": self.position.epoch, "medians": self._lengths.medians}

    def restore(self, tensors: Weights, position: dict) -> None:
        """Return to where `state` was called. Raises FormatError, and changes nothing, if it was called on another
        federation."""
        try:
            weights = {n: _stored(tensors, f"weights/{n}", s) for n, s in zip(self.names, self.shapes, strict=True)}
            trained = [(self.names[index], self.shapes[index]) for index in self._trained]
            server = {
                slot: [_stored(tensors, f"server/{slot}/{name}", shape) for name, shape in trained]
                for slot in self.strategy.slots
            }
            number = records.convert(position["round"], int)
            medians = records.convert(position["medians"], list[Finite])
            own = _stored(tensors, "own", self.own.shape) if self.strategy.own_size else self.own
            averaged = self._to_average() if self._average and number else {}
            averages = [_stored(tensors, f"{_AVERAGE}{n}", a.shape) for n, a in averaged.items()]
            if not 0 <= number <= self.settings.rounds:
                raise FormatError(f"The checkpoint is of round {number}, and there are {self.settings.rounds}.")
            if self._downlink:  # the last that may fail: from here on everything changes
                kept = {k.removeprefix(_DOWNLINK): a for k, a in tensors.items() if k.startswith(_DOWNLINK)}
                self._downlink.restore(kept)
        except KeyError as error:
            raise FormatError(f"The checkpoint is of another federation: it lacks {error}. Start a new run.") from None
        except records.RecordError as error:
            raise FormatError(f"The checkpoint's rounds are damaged: {error}.") from None
        if self._average:
            self._average.arrays = averages
        self._lengths.medians = medians
        self._server, self.own, self.status.position = server, np.array(own), Position(epoch=number)
        self.weights = self._weights | weights
        self._test_averages()

    def evaluate(self, x, y) -> Logs:
        return self.model.evaluate(x, y)

    def predict(self, x):
        return self.model.predict(x)

    def range_records(self) -> Weights:
        return {}

    def reconstruction_errors(self) -> dict[str, float]:
        return {}

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
        start = time.perf_counter()
        self._notify("on_epoch_begin", number - 1, {})
        drawn = self.settings.drawn(number)
        sent = self._instructions(drawn, number)
        outcomes = self.grid.exchange(sent, self.settings.deadline, self._arrived)
        updates, left_out = screen(
            outcomes, number, self.shapes, at_round(self.compressor, number), self._lengths, self.strategy.own_size
        )  # fmt: skip
        if self._downlink:
            for client in left_out:  # whatever it has: next time it gets all weights
                self._downlink.forget(client)
        record = _recorded(number, sent, outcomes, updates, left_out)
        if not updates:
            client, reason = next(iter(left_out.items()))
            raise RunError(
                f"Round {number}: no update of {len(drawn)} clients could be aggregated. Client {client}: {reason}."
            )
        self._apply(self._combined(updates, len(drawn), number), number)
        self._arrange(updates)
        if self._average:
            self._average.add(list(self._to_average().values()), number)
        logs = self._logs(updates)
        if number % self.settings.validation_frequency == 0 or number == self.settings.rounds:
            logs |= self._evaluate()
        else:
            self._test_averages()
        logs |= {"clients": len(updates), "left_out": len(left_out)}
        logs |= {"up_bytes": record.up["total"], "down_bytes": record.down["total"]}
        if self.privacy:
            logs |= self.privacy.logs(number)
        logs["seconds"] = time.perf_counter() - start
        self.record(record)
        self.status.position = Position(epoch=number)
        self._notify("on_epoch_end", number - 1, logs)

    def _instructions(self, drawn: Sequence[int], number: int) -> dict[int, bytes]:
        """Return the message for each client."""
        weights = [self._weights[name] for name in self.names]
        rng = np.random.default_rng([self.settings.seed, _DOWN, number])
        if self._downlink:
            self._downlink.advance(weights, rng)
            payloads = {client: self._downlink.message(client) for client in drawn}
        else:
            payloads = dict.fromkeys(drawn, NoCompression().encode(weights, rng, {}))
        return {
            client: Instruction(number, client, data + self.own[client].tobytes()).to_bytes()
            for client, data in payloads.items()
        }

    def _arrived(self, client: int, outcome: Outcome) -> None:
        self.position.step += 1
        self._notify("on_train_batch_end", self.position.step - 1, {"loss": _loss(outcome)})
        if self.stop_training and self.position.step < self.status.steps_per_epoch:
            raise _Stopped

    def _combined(self, updates: Sequence[Update], drawn: int, number: int) -> list[np.ndarray]:
        """One change made of those of all clients."""
        if self.privacy:
            return self.privacy.mean(updates, drawn, number)
        changes, examples = zip(*((update.arrays, update.examples) for update in updates), strict=True)
        return self.strategy.combined(changes, examples, self._lengths.running)

    def _apply(self, changes: list[np.ndarray], number: int) -> None:
        """Trained parameters follow the strategy; statistics of BatchNorm are averaged."""
        trained, self._server = self.strategy.step([changes[i] for i in self._trained], self._server, number)
        scale = np.float32(self.strategy.scale(number))
        for index, change in zip(self._trained, trained, strict=True):
            changes[index] = scale * change
        changed = {name: self._weights[name] + change for name, change in zip(self.names, changes, strict=True)}
        self.weights = self._weights | changed

    def _arrange(self, updates: Sequence[Update]) -> None:
        """Keep what clients sent of their own, and let the strategy change it. Those that never did have zeros."""
        for update in updates:
            self.own[update.client] = update.own
        if self.strategy.own_size:
            known = self.own.any(1)
            self.own[known] = self.strategy.arranged(self.own[known])

    def _evaluate(self) -> Logs:
        """Test the weights themselves and, if there are any, the averages, which stay in the model."""
        raw = self.evaluate(*self.test)
        if not self._average or not self._average.arrays:
            return {f"val_{name}": value for name, value in raw.items()}
        self._test_averages()
        averaged = {f"val_{name}": value for name, value in self.evaluate(*self.test).items()}
        return averaged | {f"val_raw_{name}": value for name, value in raw.items()}

    def _to_average(self) -> dict[str, np.ndarray]:
        """The arrays that are averaged, as the server has them now, by name."""
        own = {"own": self.own} if self.strategy.own_size else {}
        return {name: self._weights[name] for name in self.names} | own

    def _test_these(self) -> None:
        """Put the server's own weights into the model."""
        self.model.weights, self.tested_own = self._weights, self.own

    def _test_averages(self) -> None:
        """Put the averages into the model, if there are any."""
        if self._average and self._average.arrays:
            averages = dict(zip(self._to_average(), self._average.arrays, strict=True))
            self.tested_own = averages.pop("own", self.own)
            self.model.weights = self._weights | averages

    def _logs(self, updates: Sequence[Update]) -> Logs:
        """The clients' metrics, by number of examples."""
        total = sum(update.examples for update in updates)
        names = [name for name in ("loss", "accuracy") if all(name in update.metrics for update in updates)]
        return {name: sum(u.metrics[name] * u.examples for u in updates) / total for name in names}


def _stored(tensors: Weights, name: str, shape: tuple[int, ...]) -> np.ndarray:
    return checked(tensors[name], shape, f"The checkpoint's '{name}'")


class _Stopped(Exception):
    """Raised where `stop_training` ends a round."""


def _loss(outcome: Outcome) -> float:
    """The loss that a client reports; NaN if there is none."""
    try:
        return Reply.from_bytes(outcome).metrics["loss"] if isinstance(outcome, bytes) else nan
    except (FormatError, KeyError):
        return nan


def _recorded(
    number: int, sent: Mapping[int, bytes], outcomes: Mapping[int, Outcome], updates: Sequence[Update],
    left_out: Mapping[int, str],
) -> RoundRecord:  # fmt: skip
    down = {client: size_of(data) for client, data in sent.items()}
    up = {client: size_of(data) for client, data in outcomes.items() if isinstance(data, bytes)}
    clients = [
        cast(ClientRecord, {**u.metrics, "client": u.client, "examples": u.examples,
                            "down": _bytes(down[u.client]), "up": _bytes(up[u.client])})
        for u in updates
    ]  # fmt: skip
    reasons = {str(client): why for client, why in sorted(left_out.items())}
    return RoundRecord(number, clients, reasons, _bytes(*down.values()), _bytes(*up.values()))


def _bytes(*sizes: Size) -> Bytes:
    return {"payload": sum(size.payload for size in sizes), "total": sum(size.total for size in sizes)}
