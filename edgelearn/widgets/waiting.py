"""Show that a cell is working."""

from __future__ import annotations

import threading
import time
from html import escape
from types import TracebackType

from IPython.display import HTML, display

from edgelearn.errors import Interrupted

from .show import duration

_SECONDS = 1.0


class Waiting:
    """Shows below a cell what it does and for how long, until the block ends; then nothing is left of it. ■ ends the
    cell with a line instead of a traceback (Interrupted).

    >>> with Waiting("Measuring launches") as say:
    ...     compare(NETWORK, plans, progress=say)

    Arguments:
    - `text`: what is done. Calling the object shows another text.
    """

    def __init__(self, text: str) -> None:
        self._text, self._ended = text, threading.Event()

    def __enter__(self) -> Waiting:
        self._start = time.monotonic()
        self._shown = display(HTML(self._html()), display_id=True)
        self._thread = threading.Thread(target=self._tick, name="edgelearn-waiting", daemon=True)
        self._thread.start()
        return self

    def __call__(self, text: str) -> None:
        self._text = text

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        self._update("")
        if kind is KeyboardInterrupt:
            raise Interrupted(f"{self._text}: stopped. Run this cell again to start anew.") from None

    def _html(self) -> str:
        return f"{escape(self._text)} … {duration(time.monotonic() - self._start)}"

    def _tick(self) -> None:
        while not self._ended.wait(_SECONDS):
            self._update(self._html())

    def _update(self, html: str) -> None:
        if self._shown is not None:  # None outside of IPython
            self._shown.update(HTML(html))
