"""Time rounds of 100 clients beside those of Flower's own simulation: `python tools/time_federated.py`.

A client trains DS-CNN-S for an epoch of its 20 clips, with edgelearn in both. The two take turns, round by round, so
that other work on the machine slows both alike. Memory is that of a process and its children, pages that several hold
divided between them, and sampled while rounds run. Flower's needs `pip install 'flwr[simulation]==1.41.*'`.
"""

from __future__ import annotations

import argparse
import queue
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import lru_cache
from statistics import median
from typing import Any

import numpy as np
import psutil

import edgelearn as el
from edgelearn.child import Worker, WorkerError
from edgelearn.experiments.sweep import ENVIRONMENT
from edgelearn.federated import IID, Clients, Examples, FedAvg, LocalGrid, Server, ServerSettings
from edgelearn.lab.measure import resident_bytes, usable_cores
from edgelearn.models import ds_cnn
from edgelearn.runtime import choose_device
from edgelearn.train import Callback

CLIPS, CLASSES, TEST = 20, 12, 200
MIB = 2**20
ROUND_SECONDS, START_SECONDS = 600, 600  # at most


@lru_cache(maxsize=1)
def make_clients(count: int) -> tuple[el.Model, Clients]:
    """The model, and clients with drawn features of 20 clips each in an open session."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((count * CLIPS, 49, 10, 1), np.float32), np.arange(count * CLIPS) % CLASSES
    model = el.Model(ds_cnn(softmax=False), seed=0).compile(el.SGD(0.1, momentum=0.9), batchnorm="batch")
    examples = Examples(x, y, IID(count).divide(y))
    trainer = model.trainer(CLIPS, examples=examples.sizes)
    return model, Clients(trainer, dict(model.weights), examples, epochs=1, seed=0)


def test_examples(clients: Clients) -> tuple[Any, np.ndarray]:
    return clients.examples.x[np.arange(TEST)], clients.examples.y[:TEST]


class Local:
    """Rounds of the engine local."""

    def __init__(self, count: int) -> None:
        self.imports = resident_bytes()
        model, clients = make_clients(count)
        self.rounds = Server(
            model, model.changing, ServerSettings(count, 0), FedAvg(), LocalGrid(clients), test_examples(clients)
        )

    def imported(self) -> int:
        """Bytes that the imports take."""
        return self.imports

    def round(self) -> float:
        """Run a round; returns its seconds."""
        seconds: list[float] = []

        class Seconds(Callback):
            def on_epoch_end(self, epoch, logs):
                seconds.append(logs["seconds"])

        self.rounds.settings = replace(self.rounds.settings, rounds=self.rounds.position.epoch + 1)
        self.rounds.fit([Seconds()])
        return seconds[0]


class Flower:
    """Rounds of Flower's simulation on Ray: its FedAvg, its messages, an actor a core."""

    def __init__(self, count: int) -> None:
        import ray  # noqa: F401
        from flwr.simulation import run_simulation

        self.imports = resident_bytes()
        self.count = count
        self.begin: queue.Queue[None] = queue.Queue()
        self.ended: queue.Queue[float | BaseException] = queue.Queue()
        backend = {"client_resources": {"num_cpus": 1}, "init_args": {"num_cpus": len(usable_cores())}}

        def simulate() -> None:
            try:
                run_simulation(self._server(), client_app(count), count, backend_config=backend)
            except BaseException as error:
                self.ended.put(error)

        threading.Thread(target=simulate, daemon=True).start()
        self._wait(START_SECONDS)

    def imported(self) -> int:
        """Bytes that the imports take."""
        return self.imports

    def round(self) -> float:
        """Run a round; returns its seconds."""
        start = time.perf_counter()
        self.begin.put(None)
        return self._wait(ROUND_SECONDS) - start

    def _wait(self, patience: float) -> float:
        ended = self.ended.get(timeout=patience)
        if isinstance(ended, BaseException):
            raise ended
        return ended

    def _server(self) -> Any:
        from flwr.app import ArrayRecord
        from flwr.serverapp import ServerApp
        from flwr.serverapp import strategy as strategies

        app = ServerApp()
        model, clients = make_clients(self.count)

        def evaluate(number: int, arrays: Any) -> None:
            """Test, then wait for the next turn."""
            named = dict(zip(clients.names, arrays.to_numpy_ndarrays(), strict=True))
            model.weights = model.weights | named
            model.evaluate(*test_examples(clients))
            self.ended.put(time.perf_counter())
            self.begin.get()

        @app.main()
        def main(grid: Any, context: Any) -> None:
            while len(list(grid.get_node_ids())) < self.count:
                time.sleep(0.1)
            fedavg = strategies.FedAvg(fraction_evaluate=0.0, min_available_nodes=self.count)
            arrays = ArrayRecord([model.weights[name] for name in clients.names])
            fedavg.start(grid, arrays, num_rounds=10**6, evaluate_fn=evaluate)

        return app


def client_app(count: int) -> Any:
    """Flower's ClientApp: receive arrays, train an epoch, send arrays."""
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from time_federated import make_clients  # as a module's, so that an actor keeps what it has made

    app = ClientApp()

    @app.train()
    def train(message: Any, context: Any) -> Any:
        _, clients = make_clients(count)
        received = dict(zip(clients.names, message.content["arrays"].to_numpy_ndarrays(), strict=True))
        part = clients.examples.parts[int(context.node_config["partition-id"])]
        clients.trainer.load(clients.weights | received)
        clients.trainer.fit(clients.examples.x[part], clients.examples.y[part])
        trained = clients.trainer.weights
        arrays = ArrayRecord([trained[name] for name in clients.names])
        content = RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": len(part)})})
        return Message(content, reply_to=message)

    return app


class Sampler:
    """Peak memory of processes and all their children, by name; sampled by a thread.

    Arguments:
    - `pids`: of the processes, by name.
    """

    def __init__(self, pids: dict[str, int]) -> None:
        self.peaks = dict.fromkeys(pids, 0)
        self._pids, self._end = pids, threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._end.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._end.wait(0.5):
            for name, pid in self._pids.items():
                self.peaks[name] = max(self.peaks[name], family_bytes(pid))


def family_bytes(pid: int) -> int:
    """Memory of a process and its children; a page that n processes hold counts as 1/n of it in each."""
    total = 0
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        for each in [process, *process.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                total += each.memory_full_info().pss
    return total


def family_seconds(pid: int) -> float:
    """Seconds of a core that a process and its children have taken so far."""
    total, process = 0.0, psutil.Process(pid)
    for each in [process, *process.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            total += sum(each.cpu_times()[:2])
    return total


def main(contenders: Sequence[str], clients: int, rounds: int) -> None:
    """Measure, and print a line for each contender."""
    device = choose_device(None).device
    print(f"{clients} clients, DS-CNN-S, an epoch of {CLIPS} clips a round; {device.id}, {len(usable_cores())} cores")
    with ExitStack() as stack:
        workers: dict[str, Worker] = {}
        for name in contenders:
            try:
                environment = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", **ENVIRONMENT}
                target = f"time_federated:{name}"
                worker = Worker(target, (clients,), environment=environment, patience=START_SECONDS + ROUND_SECONDS)
                workers[name] = stack.enter_context(worker)
            except WorkerError as error:
                print(f"{name} is left out: {str(error).splitlines()[-1]}")
        times: dict[str, list[float]] = {name: [] for name in workers}
        computing: dict[str, list[float]] = {name: [] for name in workers}
        sampler = Sampler({name: worker.process.pid for name, worker in workers.items()})
        stack.callback(sampler.close)
        for turn in range(rounds + 1):
            for name, worker in workers.items():
                before = family_seconds(worker.process.pid)
                seconds = worker.call("round")
                if turn:  # the first compiles kernels
                    times[name].append(seconds)
                    computing[name].append(family_seconds(worker.process.pid) - before)
        sampler.close()
        for name, values in times.items():
            peak, imports = sampler.peaks[name] / MIB, workers[name].call("imported") / MIB
            print(
                f"  {name:<8} {median(values):6.2f} s a round ({min(values):.2f} to {max(values):.2f}), "
                f"{median(computing[name]):.1f} s of a core; "
                f"{peak:,.0f} MiB, {peak - imports:,.0f} over the imports"
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("contenders", nargs="*", metavar="Local | Flower", help="default: both")
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=7, help="that are timed")
    chosen = parser.parse_args()
    main(chosen.contenders or ("Local", "Flower"), chosen.clients, chosen.rounds)
