"""A federation on the processes of Flower: its ServerApp writes the run, and this process watches it."""

from __future__ import annotations

import json
import time
from pathlib import Path

from edgelearn import atomic
from edgelearn.errors import RunError
from edgelearn.experiments.experiment import Log
from edgelearn.lab.runs import Run
from edgelearn.train.interrupt import on_interrupt

from .config import FederatedConfig
from .deployment import Deployment
from .report import summary

FOLDER = "flower"  # in the run's folder
TRAFFIC = "traffic.json"  # in that folder: bytes as Flower counts them
_NODES_HERE, _NODES_ELSEWHERE = 180, 3600  # seconds that the nodes may take
_BEGINS = 180  # seconds that a ServerApp may take to take the run over
_CRASHED = "Simulation Runtime crashed"  # what Flower says when Ray fails


def run_elsewhere(kind: type, run: Run, config: FederatedConfig, log: Log) -> dict | None:
    """Run a federation by the engine of its configuration; returns the results, or None after an interrupt.

    Arguments:
    - `kind`: the class of the experiment, which Flower's processes import.
    - `run`: open for writing; it is closed, so that the ServerApp can take it over.
    - `config`: of the federation.
    - `log`: gets a line for each round.

    Raises RunError, which says how to continue, if the run fails or a process of Flower dies.
    """
    simulation = config.engine == "ray"
    nodes = (config.clients or 1) if simulation else config.nodes
    advice = f"Continue with: edgelearn federated run --resume {run.id}"
    watch = _Watch(run, config.rounds or 0, log)
    run.close()
    folder = run.folder / FOLDER
    try:
        with (
            on_interrupt(_interrupt),
            Deployment(
                folder, nodes, simulation, config.tls, config.authenticate, config.listen, config.port
            ) as deployment,
        ):
            for number, command in enumerate(deployment.commands() if config.listen else ()):
                log(f"node {number}: {command}")
            deployment.run(kind, settings(config, run.folder, nodes))
            deployment.watch(watch.ended)
            if not simulation:
                atomic.write_json(folder / TRAFFIC, deployment.traffic())
            said = "" if run.status == "finished" else deployment.said()
    except KeyboardInterrupt:
        log(f"Stopped; the last whole round is saved. {advice}")
        return None
    except RunError as error:
        raise RunError(f"{error} {advice}") from error
    if run.status != "finished":
        reason = (run.record.get("error") or {}).get("message") or said
        if _CRASHED in reason:
            reason = f"Ray's processes died or didn't answer in time, as on a busy machine. Flower says: {reason}"
        raise RunError(f"The run ended as {run.status}: {reason} {advice}")
    log(f"Test accuracy: {run.record['results']['accuracy']:.2%}")
    for line in summary(run):
        log(line)
    return run.record["results"]


def settings(config: FederatedConfig, folder: Path, nodes: int) -> dict[str, str | int]:
    """The configuration of Flower's run.

    Arguments:
    - `config`: of the federation.
    - `folder`: of the run.
    - `nodes`: number of nodes.
    """
    patience = _NODES_ELSEWHERE if config.listen else _NODES_HERE
    return {"config": json.dumps(config.to_dict()), "folder": str(folder), "nodes": nodes, "patience": patience}


def _interrupt() -> None:
    """SIGTERM and a closed terminal end Flower's processes as Ctrl-C does; without this they would go on alone."""
    raise KeyboardInterrupt


class _Watch:
    """Logs rounds as they come, and tells when the ServerApp has left the run."""

    def __init__(self, run: Run, rounds: int, log: Log) -> None:
        self.run, self.rounds, self.log = run, rounds, log
        self.before, self.seen = len(run.record.get("resumed") or []), len(run.history())
        self.latest = time.monotonic() + _BEGINS

    def ended(self) -> bool:
        status = self.run.status
        if len(self.run.record.get("resumed") or []) == self.before:
            if time.monotonic() > self.latest:
                raise RunError(f"Flower's ServerApp hasn't begun after {_BEGINS} s: see the logs in {self.run.folder}.")
            return False
        rows = self.run.history()
        for row in rows[self.seen :]:
            figures = "  ".join(f"{k} {v:.4g}" for k, v in row.items() if k not in ("epoch", "seconds"))
            self.log(f"round {row['epoch']:>4}/{self.rounds}  {figures}  {row['seconds']:.1f} s")
        self.seen = len(rows)
        return status != "running"
