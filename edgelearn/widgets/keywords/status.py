"""A line of status and errors."""

from __future__ import annotations

from collections.abc import Callable
from html import escape

import ipywidgets

from edgelearn.errors import EdgelearnError
from edgelearn.lab.runs import figures


class Status(ipywidgets.HTML):
    """Shows the errors of actions."""

    def attempt(self, action: Callable[[], object], meanwhile: str = "") -> None:
        """Call `action`, showing `meanwhile`; an EdgelearnError is shown. Actions change nothing if they fail."""
        self.value = meanwhile
        try:
            action()
            self.value = ""
        except EdgelearnError as error:
            self.value = f"<span style='color: {figures.ORANGE}'>{escape(str(error))}</span>"
