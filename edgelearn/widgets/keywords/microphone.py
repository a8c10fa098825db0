"""A button that records what the browser hears.

ipywidgets has none, and what MediaRecorder makes, WebM, is nothing that libsndfile reads. So a few lines of JavaScript
(microphone.js) send plain samples. They are carried by anywidget, which needs neither a build nor an extension of
JupyterLab.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import anywidget
import numpy as np
import traitlets

from edgelearn.data.audio import RATE
from edgelearn.data.audio.decode import package


class Microphone(anywidget.AnyWidget):
    """A button that begins to listen and stops again. `on_samples` gets float32 (n,) at `rate`, several times a second,
    `on_begin` and `on_end` are told of both ends. Where the browser has no microphone, or may not use it, the button
    says so."""

    _esm = Path(__file__).with_name("microphone.js")
    label = traitlets.Unicode("Record").tag(sync=True)

    def __init__(
        self, label: str, on_samples: Callable[[np.ndarray], None], on_begin: Callable[[], None] = lambda: None,
        on_end: Callable[[], None] = lambda: None, rate: int = RATE,
    ) -> None:  # fmt: skip
        self._on_samples, self._on_begin, self._on_end, self._rate = on_samples, on_begin, on_end, rate
        self._resampler = None
        super().__init__(label=label)
        self.on_msg(self._hear)

    def _hear(self, _widget, message: dict, buffers: list) -> None:
        kind = message.get("type")
        if kind == "begin":
            self._resampler = None
            self._on_begin()
        elif kind == "samples":
            if self._resampler is None:
                self._resampler = package("soxr").ResampleStream(message["rate"], self._rate, 1, dtype="float32")
            self._give(np.frombuffer(buffers[0], "<f4"), last=False)
        elif kind in ("end", "error"):
            if self._resampler is not None:
                self._give(np.empty(0, np.float32), last=True)
            self._on_end()

    def _give(self, samples: np.ndarray, last: bool) -> None:
        changed = self._resampler.resample_chunk(samples, last=last)
        if len(changed):
            self._on_samples(changed)
