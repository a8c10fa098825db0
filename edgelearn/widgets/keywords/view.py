"""The view of an enrolment: clips, map, threshold and listening."""

from __future__ import annotations

import ipywidgets
import numpy as np

from edgelearn.lab.runs import figures, tables

from .clips_box import ClipsBox
from .enrolment import Enrolment
from .listen_box import ListenBox
from .plots import plot_embeddings
from .threshold_box import ThresholdBox


class KeywordsView(ipywidgets.VBox):
    """Record or upload clips and enrol them as words; a map shows their embeddings. A slider sets the threshold, with
    its false accepts and rejects. Sound of the microphone or a file is scored as it comes, and a star on the map shows
    its embedding. Everything works from files alone, without a microphone.

    Arguments:
    - `enrolment`: the words, embedder and threshold that its boxes share.
    """

    def __init__(self, enrolment: Enrolment) -> None:
        self.enrolment = enrolment
        self.clips, self.threshold, self.listening = (
            ClipsBox(enrolment),
            ThresholdBox(enrolment),
            ListenBox(enrolment, self._draw_map),
        )
        self._words = ipywidgets.HTML()
        self._map = ipywidgets.Image(format="png", layout={"display": "none"})
        learned = ipywidgets.HBox([self._words, self._map], layout={"align_items": "center", "grid_gap": "2em"})
        super().__init__([self.clips, learned, self.threshold, self.listening])
        enrolment.observe(lambda _: self._draw(), "listener")
        self._draw()

    def _draw(self) -> None:
        vocabulary = self.enrolment.vocabulary
        self._words.value = tables.html(
            [(word, vocabulary.count(word)) for word in vocabulary.words], ("word", "clips")
        )
        self._map.layout.display = None if vocabulary.words else "none"
        if vocabulary.words:
            self._points = self.enrolment.map()
            self._draw_map()

    def _draw_map(self, heard: np.ndarray | None = None) -> None:
        self._map.value = figures.to_png(plot_embeddings(*self._points, heard))
