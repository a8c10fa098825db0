"""A line about the training that another view started, with a button that stops it."""

from __future__ import annotations

from html import escape

import ipywidgets

from .worker import Worker


class OtherTraining(ipywidgets.HBox):
    """Shows that another training runs, and stops it. Hidden while none runs.

    A cell that is run again makes a new view; the training that the old one started goes on, and could not be stopped
    otherwise.
    """

    def __init__(self) -> None:
        self._worker: Worker | None = None
        self._text = ipywidgets.HTML()
        self._button = ipywidgets.Button(description="Stop it", icon="stop", layout={"width": "7em"})
        self._button.on_click(self._stop)
        super().__init__([self._text, self._button], layout={"align_items": "center"})
        self.show(None)

    def show(self, worker: Worker | None) -> None:
        """Show the training of `worker`, or hide."""
        self._worker = worker
        self.layout.display = None if worker else "none"
        if worker:
            run = f"run {worker.run.id}" if worker.run else "one that is loading"
            state = "It stops after this step." if worker.stopping else ""
            self._text.value = escape(f"Another training is running: {run}. {state}")
            self._button.disabled = worker.stopping

    def _stop(self, _button: ipywidgets.Button) -> None:
        if self._worker is not None:
            self._worker.stop()
            self.show(self._worker)
