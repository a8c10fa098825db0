"""A line of status and errors."""

from __future__ import annotations

from collections.abc import Callable
from html import escape

import ipywidgets

from edgelearn.errors import EdgelearnError
from edgelearn.lab.runs import figures


class Status(ipywidgets.HTML):
    """Shows the errors of actions."""

    def attempt(self, action: Callable[[], object], meanwhile: str = "") -> bool:
        """Call `action`, showing `meanwhile`; False if it fails, whose EdgelearnError is shown then. Actions change
        nothing if they fail."""
        self.value = meanwhile
        try:
            action()
            self.value = ""
            return True
        except EdgelearnError as error:
            self.value = f"<span style='color: {figures.ORANGE}'>{escape(str(error))}</span>"
            return False
