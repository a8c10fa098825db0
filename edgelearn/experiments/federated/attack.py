"""Bad clients in a federation: accuracy by their kind and number, for each strategy.

Ten clients train a small dense network with the embedded words of twelve speakers, divided alike or by speaker, one
update a round with all of their clips; four other speakers test it. The first of the ten are bad. A training that
diverges counts as chance.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from edgelearn.data.features import DS_CNN_MLPERF, load_features
from edgelearn.data.synthetic_words import embedded_words
from edgelearn.errors import RunError
from edgelearn.experiments.keywords.episodes import hold_out
from edgelearn.federated import (
    IID,
    ByGroup,
    Clients,
    Examples,
    LocalGrid,
    Reply,
    Server,
    ServerSettings,
    make_mixing,
    make_strategy,
)
from edgelearn.graph import Network
from edgelearn.ops import SGD, Dense, ReLU
from edgelearn.tables import Table
from edgelearn.train import Model

CLIENTS, WORDS = 10, 8
COMPARED = ("fedavg", "fedmedian", "fedtrimmedavg", "krum", "multikrum", "normclipping")


def scaled(factor: float, **fields: int) -> Callable[[Reply, np.random.Generator], Reply]:
    def lie(reply, rng):
        return replace(reply, payload=(np.float32(factor) * np.frombuffer(reply.payload, "<f4")).tobytes(), **fields)

    return lie


def noise(reply: Reply, rng: np.random.Generator) -> Reply:
    """Normal values, three times as long as the change."""
    change = np.frombuffer(reply.payload, "<f4")
    values = rng.standard_normal(len(change))
    return replace(reply, payload=np.float32(3 * np.linalg.norm(change) / np.linalg.norm(values) * values).tobytes())


ATTACKS = {  # what a bad client does to its reply; "label flip" trains with the wrong words instead
    "sign flip": scaled(-1.0), "scaled": scaled(-9.0), "random": noise, "label flip": scaled(1.0),
    "false count": scaled(-1.0, examples=10**9),
}  # fmt: skip


class BadClients(LocalGrid):
    """Clients of which the first `bad` attack."""

    def __init__(self, clients: Clients, liars: Clients, kind: str, bad: int, seed: int) -> None:
        super().__init__(clients)
        self.liars, self.kind, self.bad, self.seed = LocalGrid(liars), kind, bad, seed

    def exchange(self, instructions, deadline, arrived):
        honest = {client: data for client, data in instructions.items() if client >= self.bad}
        outcomes = super().exchange(honest, deadline, arrived)
        if lying := {client: data for client, data in instructions.items() if client < self.bad}:
            for client, data in self.liars.exchange(lying, deadline, arrived).items():
                if isinstance(data, str):
                    continue  # it could not train
                reply = Reply.from_bytes(data)
                rng = np.random.default_rng([self.seed, client, reply.round])
                outcomes[client] = ATTACKS[self.kind](reply, rng).to_bytes()
        return outcomes


def measure(
    seed: int, rounds: int, strategies: Sequence[str], bad: Sequence[int], speakers: bool, mixing: str = "none",
    share: float | None = None,
) -> dict[tuple[str, str, int], float]:  # fmt: skip
    """Return the accuracy of each (strategy, kind of attack, number of bad clients)."""
    split = hold_out(embedded_words(words=WORDS, speakers=16, takes=20), speakers=4, seed=seed)
    sides = []
    for part in (split.train, split.test):
        x = load_features(part, DS_CNN_MLPERF)
        x = (x - x.mean(1, keepdims=True)) / (x.std(1, keepdims=True) + 1e-3)
        sides.append((x.reshape(len(x), -1).astype(np.float32), part.labels))
    (x, y), test = sides
    network = Network("words", x.shape[1:])
    network.add("hidden", Dense(32))
    network.add("relu", ReLU())
    network.add("words", Dense(WORDS))
    model = Model(network, seed=seed).compile(SGD(0.3))
    start = dict(model.weights)
    partition = ByGroup(CLIENTS, seed) if speakers else IID(CLIENTS, seed)
    examples = Examples(x, y, partition.divide(y, split.train.speakers))
    found = {}
    with model.trainer(max(examples.sizes), examples=examples.sizes) as trainer:
        clients = Clients(trainer, start, examples, epochs=1, seed=seed)
        flipped = replace(clients, examples=replace(examples, y=WORDS - 1 - y))
        for name in strategies:
            for kind, count in [("none", 0), *((kind, n) for kind in ATTACKS for n in bad if n)]:
                if kind == "none" and 0 not in bad:
                    continue
                liars = flipped if kind == "label flip" else clients
                model.weights = start
                settings = ServerSettings(CLIENTS, rounds, seed=seed, validation_frequency=rounds, largest_share=share)
                grid = BadClients(clients, liars, kind, count, seed)
                federation = Server(
                    model, model.changing, settings, make_strategy(name, 0.0), grid, test,
                    mixing=make_mixing(mixing, seed=seed),
                )  # fmt: skip
                try:
                    federation.fit()
                    found[name, kind, count] = model.evaluate(*test)["accuracy"]
                except RunError:  # weights grew until losses were infinite
                    found[name, kind, count] = 1 / WORDS
    return found


@dataclass(frozen=True)
class Attacked:
    """A federation with bad clients.

    Arguments:
    - `strategy`: of the server.
    - `attack`: what bad clients do, "none" where there are none.
    - `bad`: their number.
    - `accuracy`: mean over the seeds.
    """

    strategy: str
    attack: str
    bad: int
    accuracy: float


def compare(
    seeds: Sequence[int], rounds: int, strategies: Sequence[str], bad: Sequence[int], speakers: bool,
    mixing: str = "none", share: float | None = None,
) -> list[Attacked]:  # fmt: skip
    """Train each federation with each seed."""
    found = [measure(seed, rounds, strategies, bad, speakers, mixing, share) for seed in seeds]
    return [Attacked(*key, float(np.mean([each[key] for each in found]))) for key in found[0]]


def table(attacked: Sequence[Attacked]) -> Table:
    """A row for each strategy: accuracy in %, with the numbers of bad clients in the header."""
    counts = list(dict.fromkeys(each.bad for each in attacked if each.bad))
    header = ("strategy", "no bad clients", *(f"{attack}: {counts}" for attack in ATTACKS))
    rows: dict[str, dict[str, list[str]]] = {}
    for each in attacked:
        cells = rows.setdefault(each.strategy, {attack: [] for attack in ("none", *ATTACKS)})
        cells[each.attack].append(f"{100 * each.accuracy:.1f}")
    return Table(header, [(name, *map(", ".join, cells.values())) for name, cells in rows.items()])
