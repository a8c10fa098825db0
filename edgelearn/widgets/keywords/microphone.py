"""A button that records from the browser's microphone.

ipywidgets has none, and MediaRecorder makes WebM, which libsndfile can't read. So a few lines of JavaScript
(microphone.js) send plain samples, by anywidget, which needs neither a build nor an extension of JupyterLab.
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
    """A button that starts and stops recording. It shows an error if the browser has no microphone, or may not use it.

    Arguments:
    - `label`: text of the button.
    - `on_samples`: called with float32 (n,) at `rate`, ten times a second.
    - `on_begin`, `on_end`: called when recording starts and stops.
    - `rate`: samples a second; the browser's are resampled.
    """

    _esm = Path(__file__).with_name("microphone.js")
    label = traitlets.Unicode("Record").tag(sync=True)

    def __init__(
        self, label: str, on_samples: Callable[[np.ndarray], None], on_begin: Callable[[], None] = lambda: None,
        on_end: Callable[[], None] = lambda: None, rate: int = RATE,
    ) -> None:  # fmt: skip
        self._on_samples, self._on_begin, self._on_end, self._rate = on_samples, on_begin, on_end, rate
        self._resampler = None
        super().__init__(label=label)
        self.on_msg(self._receive)

    def stop(self) -> None:
        """Stop recording, as the button does."""
        self.send({"type": "stop"})

    def _receive(self, _widget, message: dict, buffers: list) -> None:
        kind = message.get("type")
        if kind == "begin":
            self._resampler = None
            self._on_begin()
        elif kind == "samples":
            if self._resampler is None:
                self._resampler = package("soxr").ResampleStream(message["rate"], self._rate, 1, dtype="float32")
            self._resample(np.frombuffer(buffers[0], "<f4"), last=False)
        elif kind in ("end", "error"):
            self._resample(np.empty(0, np.float32), last=True)
            self._on_end()

    def _resample(self, samples: np.ndarray, last: bool) -> None:
        if self._resampler is not None and len(resampled := self._resampler.resample_chunk(samples, last=last)):
            self._on_samples(resampled)
