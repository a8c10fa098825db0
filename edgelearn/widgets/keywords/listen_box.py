"""Listen to the microphone or a file, with scores as they come."""

from __future__ import annotations

import time
from collections.abc import Callable

import ipywidgets
import numpy as np

from edgelearn.data.audio.decode import decode
from edgelearn.keywords import Detection
from edgelearn.lab.runs import tables

from .clips_box import FORMATS
from .enrolment import Enrolment
from .microphone import Microphone
from .status import Status

_SHOWN = 8  # detections
_HEARD_SECONDS = 1.0  # between calls of on_heard


class ListenBox(ipywidgets.VBox):
    """A bar with the score of each word, and the `detections` so far.

    Arguments:
    - `enrolment`: its listener is used.
    - `on_heard`: called with the embedding (d,) of the last clip, about once a second.
    """

    def __init__(self, enrolment: Enrolment, on_heard: Callable[[np.ndarray], None]) -> None:
        self.enrolment, self._on_heard = enrolment, on_heard
        self.rate = enrolment.embedder.front_end.rate
        self.detections: list[Detection] = []
        self.listening = False
        self.microphone = Microphone("Listen", self._hear, self._begin, self._end, self.rate)
        self.upload = ipywidgets.FileUpload(accept=FORMATS, description="Listen to a file", layout={"width": "auto"})
        self.upload.observe(self._uploaded, "value")
        self.bars, self._table, self.status = ipywidgets.VBox(), ipywidgets.HTML(), Status()
        super().__init__([ipywidgets.HBox([self.microphone, self.upload]), self.status, self.bars, self._table])
        enrolment.observe(lambda _: self._draw_bars(), "listener")
        self._draw_bars()

    def listen(self, samples: np.ndarray) -> list[Detection]:
        """Detections in a whole recording, float32 (n,) at the front end's rate. Raises DataError if no word is
        enrolled, or it is shorter than a clip."""
        self._start()
        try:
            self._push(samples)
            self._show(self.enrolment.require().finish())
        finally:
            self._end()
        return self.detections

    def _start(self) -> None:
        self.enrolment.require().reset()
        self.detections, self._table.value, self._next_heard = [], "", 0.0
        self.listening = True

    def _begin(self) -> None:
        if not self.status.attempt(self._start):
            self.microphone.stop()

    def _hear(self, samples: np.ndarray) -> None:
        if self.listening and not self.status.attempt(lambda: self._push(samples)):
            self.microphone.stop()
            self._end()

    def _push(self, samples: np.ndarray) -> None:
        listener = self.enrolment.require()
        detections, scores = listener.push(samples), listener.scores
        if len(scores.times):
            if time.monotonic() >= self._next_heard and listener.heard is not None:
                self._on_heard(listener.heard)
                self._next_heard = time.monotonic() + _HEARD_SECONDS
            for bar, score in zip(self.bars.children, scores.words[-1].tolist(), strict=True):
                bar.value = min(max(score, bar.min), bar.max)
                bar.bar_style = "success" if score >= listener.threshold else ""
        self._show(detections)

    def _show(self, detections: list[Detection]) -> None:
        if detections:
            self.detections += detections
            rows = [(f"{d.time:.1f} s", d.word, f"{d.score:.3f}") for d in self.detections[-_SHOWN:]]
            self._table.value = tables.html(rows, ("time", "word", "score"))

    def _end(self) -> None:
        self.listening = False

    def _uploaded(self, change: dict) -> None:
        for file in change["new"]:
            self.status.attempt(
                lambda file=file: self.listen(decode(bytes(file["content"]), file["name"], self.rate)), "Listening …"
            )
            self.upload.value = ()

    def _draw_bars(self) -> None:
        self._end()
        low, high = self.enrolment.score_range
        self.bars.children = [
            ipywidgets.FloatProgress(low, min=low, max=high, description=word, layout={"width": "40em"})
            for word in self.enrolment.vocabulary.words
        ]
