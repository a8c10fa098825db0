"""Pages of runs in a notebook: page.js as a widget, whose requests a thread answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

from edgelearn.errors import EdgelearnError

from .page import SCRIPT, STYLES

GONE = "Run this cell again to sort, search and change it."  # below what a saved notebook shows
_THREADS = 2

Answer = Callable[[Mapping[str, Any]], dict[str, Any]]


def bundle(
    answer: Answer, view: Mapping[str, Any], html: str, text: str, *, scripts: tuple[Path, ...] = (), jobs: bool = False
) -> dict[str, Any]:
    """Return the MIME bundle of an object in a notebook: a page that works, and for saved notebooks its state.

    Arguments:
    - `answer`: answers requests of the page.
    - `view`: shown first, such as {"runs": True}.
    - `html`, `text`: the state without controls.
    - `scripts`: further files of JavaScript.
    - `jobs`: True where trainings can be started.
    """
    plain = {"text/plain": text, "text/html": html}
    try:
        page = _class(scripts)(answer, view, jobs)
    except ImportError:  # anywidget is an optional package
        return plain
    found = page._repr_mimebundle_()
    shown = found[0] if isinstance(found, tuple) else found
    return (shown or {}) | plain | {"text/html": f"{html}<p>{GONE}</p>"}


@cache
def _class(scripts: tuple[Path, ...]) -> Any:
    import anywidget
    import traitlets

    class Page(anywidget.AnyWidget):
        """A page whose requests `answer` answers."""

        _esm = "\n".join(path.read_text("utf-8") for path in (SCRIPT, *scripts))
        _css = "\n".join(path.read_text("utf-8") for path in STYLES)
        view = traitlets.Dict().tag(sync=True)
        jobs = traitlets.Bool().tag(sync=True)

        def __init__(self, answer: Answer, view: Mapping[str, Any], jobs: bool) -> None:
            super().__init__(view=dict(view), jobs=jobs)
            self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="edgelearn-page")
            self.on_msg(lambda _widget, message, _buffers: self._threads.submit(self._reply, answer, message))

        def _reply(self, answer: Answer, message: Any) -> None:
            reply: dict[str, Any] = {"number": message.get("number")}
            try:
                reply["answer"] = answer(message["request"])
            except EdgelearnError as error:
                reply["error"] = str(error)
            except Exception as error:  # the page would wait forever
                reply["error"] = f"{type(error).__name__}: {error}"
            self.send(reply)

    return Page
