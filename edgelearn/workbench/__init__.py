"""The workbench's home: devices, data, experiments, runs and what trains now, as a page of JupyterLab's server and in a
notebook. `make notebooks` opens it.
"""

from __future__ import annotations

from typing import Any


def _jupyter_server_extension_points() -> list[dict[str, Any]]:
    return [{"module": "edgelearn.workbench"}]


def _load_jupyter_server_extension(app: Any) -> None:
    from .server import add_handlers

    add_handlers(app)
