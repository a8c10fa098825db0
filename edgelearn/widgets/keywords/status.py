"""A line that says how it stands, and what went wrong."""

from __future__ import annotations

from collections.abc import Callable
from html import escape

import ipywidgets

from edgelearn.errors import EdgelearnError
from edgelearn.lab.runs import figures


class Status(ipywidgets.HTML):
    def attempt(self, action: Callable[[], None], meanwhile: str = "") -> None:
        """Do it. An error that was foreseen is shown; actions leave everything as it was then."""
        self.value = meanwhile
        try:
            action()
            self.value = ""
        except EdgelearnError as error:
            self.value = f"<span style='color: {figures.ORANGE}'>{escape(str(error))}</span>"
