"""The ClientApp and the ServerApp of a federation: the same for Flower's simulation and for its deployment."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from edgelearn.federated import Clients
from edgelearn.federated.flower import FlowerGrid, client_app, server_app
from edgelearn.lab.runs import RunStore

from .experiment import CLIENTS, FederatedExperiment


@lru_cache(maxsize=1)
def _clients(experiment: type[FederatedExperiment], config: str, folder: str) -> Clients:
    """The clients of a process, which Ray keeps for many messages."""
    loaded = experiment.load(experiment.config_type.from_dict(json.loads(config)))
    return loaded.clients(Path(folder) / CLIENTS)


def make_client_app(experiment: type[FederatedExperiment]) -> Any:
    """Return Flower's ClientApp for an experiment."""

    def work(context: Any) -> Clients:  # Ray pickles it, so the cache is the module's
        here = context.node_config.get("folder") or context.run_config["folder"]
        return _clients(experiment, context.run_config["config"], str(here))

    return client_app(work)


def make_server_app(experiment: type[FederatedExperiment]) -> Any:
    """Return Flower's ServerApp for an experiment."""

    def serve(grid: Any, settings: Mapping[str, Any]) -> None:
        folder = Path(settings["folder"])
        with RunStore(folder.parent).open(folder.name).resume() as run:
            loaded = experiment.load(experiment.config_type.from_dict(run.config))
            loaded.carrier = FlowerGrid(grid, settings["nodes"], settings["patience"])
            loaded.run(run)

    return server_app(serve)
