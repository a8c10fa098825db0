"""Record or upload clips, and enrol them as a word."""

from __future__ import annotations

import ipywidgets
import numpy as np

from edgelearn.data.audio.decode import decode

from .enrolment import Enrolment
from .microphone import Microphone
from .status import Status

FORMATS = ".wav,.flac,.ogg"
WRAP = {"flex_flow": "row wrap", "align_items": "center"}


class ClipsBox(ipywidgets.VBox):
    """Fields for a word and its clips, and buttons to enrol them. `clips`: not enrolled yet."""

    def __init__(self, enrolment: Enrolment) -> None:
        self.enrolment = enrolment
        self.rate = enrolment.embedder.front_end.rate
        self.clips: list[np.ndarray] = []
        self._recording: list[np.ndarray] = []
        self.word = ipywidgets.Text(description="Word")
        record = Microphone("Record a clip", self._recording.append, self._recording.clear, self._recorded, self.rate)
        self.upload = ipywidgets.FileUpload(
            accept=FORMATS, multiple=True, description="Upload clips", layout={"width": "auto"}
        )
        self.upload.observe(self._uploaded, "value")
        self.enrol = ipywidgets.Button(description="Enrol", icon="check")
        self.enrol.on_click(lambda _: self.status.attempt(self._enrol, "Learning …"))
        self.discard = ipywidgets.Button(description="Discard clips", icon="trash")
        self.discard.on_click(lambda _: self.status.attempt(lambda: self._set_clips([])))
        self.forget = ipywidgets.Button(description="Forget word", icon="times")
        self.forget.on_click(lambda _: self.status.attempt(lambda: enrolment.forget(self.word.value)))
        self._pending, self.status = ipywidgets.HTML(), Status()
        top = ipywidgets.HBox([self.word, record, self.upload], layout=WRAP)
        buttons = ipywidgets.HBox([self.enrol, self.discard, self.forget, self._pending], layout=WRAP)
        super().__init__([top, buttons, self.status])
        self._set_clips([])

    def _recorded(self) -> None:
        if self._recording:
            self._set_clips([*self.clips, np.concatenate(self._recording)])
            self._recording.clear()

    def _uploaded(self, change: dict) -> None:
        def take() -> None:
            new = [decode(bytes(file["content"]), file["name"], self.rate) for file in change["new"]]
            self._set_clips([*self.clips, *new])

        if change["new"]:
            self.status.attempt(take)
            self.upload.value = ()

    def _enrol(self) -> None:
        self.enrolment.enrol(self.word.value, self.clips)
        self._set_clips([])

    def _set_clips(self, clips: list[np.ndarray]) -> None:
        self.clips = clips
        lengths = ", ".join(f"{len(clip) / self.rate:.1f} s" for clip in clips)
        self._pending.value = f"Clips to enrol: {lengths}" if clips else "Record or upload a few clips of a word."
        self.enrol.disabled = self.discard.disabled = not clips
