"""What the microphone or a file says, scored as it comes."""

from __future__ import annotations

import time
from collections.abc import Callable

import ipywidgets
import numpy as np

from edgelearn.data.audio.decode import decode
from edgelearn.keywords import Detection, Detector
from edgelearn.widgets.show import table_html

from .clips_box import FORMATS
from .enrolment import Enrolment
from .microphone import Microphone
from .status import Status

_SHOWN = 8  # detections
_HEARD_SECONDS = 1.0


class ListenBox(ipywidgets.VBox):
    """Bars with each word's score now, and the `detections` so far. `on_heard` gets the embedding (d,) of what was just
    heard, about once a second."""

    def __init__(self, enrolment: Enrolment, on_heard: Callable[[np.ndarray], None]) -> None:
        self.enrolment, self._on_heard = enrolment, on_heard
        self.rate = enrolment.embedder.front_end.rate
        self.detections: list[Detection] = []
        self._detector: Detector | None = None
        self.microphone = Microphone("Listen", self._hear, self._begin, self._end, self.rate)
        self.upload = ipywidgets.FileUpload(accept=FORMATS, description="Listen to a file", layout={"width": "auto"})
        self.upload.observe(self._uploaded, "value")
        self.bars, self._table, self.status = ipywidgets.VBox(), ipywidgets.HTML(), Status()
        super().__init__([ipywidgets.HBox([self.microphone, self.upload]), self.status, self.bars, self._table])
        enrolment.observe(lambda _: self._learned(), "spotter")
        enrolment.observe(self._moved, "threshold")
        self._learned()

    def listen(self, samples: np.ndarray) -> list[Detection]:
        """All of a recording, float32 (n,) at the front end's rate. Raises DataError where no word is enrolled,
        ShapeError when it is shorter than a frame."""
        self._start()
        self._show(samples)
        self._tell(self._detector.finish())
        self._end()
        return self.detections

    def _start(self) -> None:
        self.detections, self._table.value, self._next_heard = [], "", 0.0
        enrolment = self.enrolment
        self._detector = Detector(enrolment.require(), enrolment.vocabulary.words, enrolment.threshold)

    def _begin(self) -> None:
        self.status.attempt(self._start)

    def _hear(self, samples: np.ndarray) -> None:
        if self._detector is not None:
            self.status.attempt(lambda: self._show(samples))

    def _show(self, samples: np.ndarray) -> None:
        scores = self._detector.scores.push(samples)
        if len(scores.times):
            if time.monotonic() >= self._next_heard:
                self._on_heard(self._detector.scores.heard)
                self._next_heard = time.monotonic() + _HEARD_SECONDS
            for bar, score in zip(self.bars.children, scores.words[-1].tolist(), strict=True):
                bar.value = min(max(score, bar.min), bar.max)
                bar.bar_style = "success" if score >= self.enrolment.threshold else ""
        self._tell(self._detector.trigger.push(scores))

    def _tell(self, detections: list[Detection]) -> None:
        if detections:
            self.detections += detections
            rows = [(f"{d.time:.1f} s", d.word, f"{d.score:.3f}") for d in self.detections[-_SHOWN:]]
            self._table.value = table_html(rows, ("time", "word", "score"))

    def _end(self) -> None:
        self._detector = None

    def _uploaded(self, change: dict) -> None:
        for file in change["new"]:
            self.status.attempt(
                lambda file=file: self.listen(decode(bytes(file["content"]), file["name"], self.rate)), "Listening …"
            )
            self.upload.value = ()

    def _learned(self) -> None:
        self._end()
        low, high = self.enrolment.score_range
        words = self.enrolment.vocabulary.words
        layout = {"width": "40em"}
        self.bars.children = [
            ipywidgets.FloatProgress(low, min=low, max=high, description=word, layout=layout) for word in words
        ]

    def _moved(self, change: dict) -> None:
        if self._detector is not None:
            self._detector.trigger.threshold = change["new"]
