"""Keywords in a notebook: record or upload clips, enrol words, set the threshold, listen."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anywidget
import ipywidgets
import numpy as np
import traitlets

from edgelearn.data.audio import RATE, ClipDataset, decode, fit, package
from edgelearn.errors import DataError, EdgelearnError
from edgelearn.experiments.keywords import det_curve
from edgelearn.experiments.keywords.streaming import Occurrence
from edgelearn.keywords import Detection, Embedder, Learner, Listener, OtherWords, Scores, Vocabulary
from edgelearn.keywords.learners import NearestMean
from edgelearn.keywords.vocabulary import clip_features, held_out_scores
from edgelearn.lab.runs import figures
from edgelearn.tables import Table

from .pictures import Chart, View, error_line
from .views import ThresholdSlider

if TYPE_CHECKING:
    from matplotlib.figure import Figure


FORMATS = ".wav,.flac,.ogg"
_NO_SCORES = np.empty(0, np.float32)
_OTHERS, _MARKERS = "#cccccc", "osD^vPX"
_SHOWN = 8  # detections
_HEARD_SECONDS = 1.0  # between calls of on_heard


class Status(ipywidgets.HTML):
    """A line that shows the errors of actions."""

    def attempt(self, action: Callable[[], object], meanwhile: str = "") -> bool:
        """Call `action`, showing `meanwhile`; False if it fails, whose EdgelearnError is shown then. Actions change
        nothing if they fail."""
        self.value = meanwhile
        try:
            action()
        except EdgelearnError as error:
            self.value = error_line(error)
            return False
        self.value = ""
        return True


class Microphone(anywidget.AnyWidget):
    """A button that starts and stops recording from the browser's microphone. It shows an error if the browser has
    none, or may not use it.

    ipywidgets has no such button, and MediaRecorder makes WebM, which libsndfile can't read. So a few lines of
    JavaScript (microphone.js) send plain samples, by anywidget, which needs neither a build nor an extension of
    JupyterLab.

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


class Enrolment(traitlets.HasTraits):
    """Words enrolled with an embedder, and clips of other words to set the threshold by.

    Arguments:
    - `embedder`: the network.
    - `others`: clips of words that must not be detected.
    - `learner`: how words are learned (default: nearest mean by cosine).
    - `vocabulary`: words to begin with (default none).
    - `false_accepts`: share of `others` that the threshold may accept (default 0.01).

    Traits to `observe`: `vocabulary`; `threshold`, which every enrolment sets anew; `listener`, None without words; it
    changes last. `known`: scores of the words' clips, each by a spotter that was enrolled without it. `unknown`: scores
    of the other words.
    """

    vocabulary: traitlets.Instance[Vocabulary] = traitlets.Instance(Vocabulary)
    listener: traitlets.Instance[Listener | None] = traitlets.Instance(Listener, allow_none=True)  # pyright: ignore
    threshold = traitlets.Float(np.inf)

    def __init__(
        self, embedder: Embedder, others: ClipDataset, learner: Learner | None = None,
        vocabulary: Vocabulary | None = None, false_accepts: float = 0.01,
    ) -> None:  # fmt: skip
        super().__init__()
        self.embedder, self.learner, self.false_accepts = embedder, learner or NearestMean(), false_accepts
        self._others = OtherWords.load(others, embedder)
        self.known = self.unknown = _NO_SCORES
        self._change(vocabulary or Vocabulary.empty(embedder))

    @property
    def others(self) -> np.ndarray:
        """Features (n, frames, bands) of the clips of words that aren't enrolled."""
        return self._others.outside(self.vocabulary)

    def features(self, clips: list[np.ndarray]) -> np.ndarray:
        """Features (clips, frames, bands) of recordings, float32 (n,) each, of any length, at the front end's rate. Of
        long ones the loudest second is used. Raises DataError for a silent one."""
        length = round(self.embedder.front_end.rate * self.embedder.seconds)
        return clip_features(np.stack([fit(clip, length) for clip in clips]), self.embedder)

    def enrol(self, word: str, clips: list[np.ndarray]) -> None:
        """Learn a new word, or more clips of an enrolled one. Raises DataError without a name or clips; nothing changes
        then."""
        if not clips:
            raise DataError(f"'{word}' needs clips. Record or upload a few.")
        self._change(self.vocabulary.add(word, self.features(clips)))

    def forget(self, word: str) -> None:
        """Remove a word. Raises DataError if it isn't enrolled."""
        self._change(self.vocabulary.without(word))

    def require(self) -> Listener:
        """The listener. Raises DataError if no word is enrolled."""
        if self.listener is None:
            raise DataError("No word is enrolled yet. Enrol one from a few clips.")
        return self.listener

    @property
    def score_range(self) -> tuple[float, float]:
        """Lowest and highest score; the threshold has no effect beyond. 0 and 1 without words."""
        if self.listener is None:
            return 0.0, 1.0
        scores = np.concatenate([self.known, self.unknown, [self.threshold]])
        return float(scores.min()), float(scores.max())

    def map(self) -> tuple[np.ndarray, np.ndarray, tuple[str, ...], np.ndarray]:
        """Arguments of `plot_embeddings`: embeddings of the words' clips, labels, words, and embeddings of others."""
        embed, vocabulary = self.require().spotter.embedder.embed, self.vocabulary
        return embed(vocabulary.features), vocabulary.labels, vocabulary.words, embed(self.others)

    def rates(self) -> tuple[float, float]:
        """Shares of false accepts and of false rejects at the threshold; NaN without clips to count."""
        accepted = np.mean(self.unknown >= self.threshold) if len(self.unknown) else np.nan
        rejected = np.mean(self.known < self.threshold) if len(self.known) else np.nan
        return float(accepted), float(rejected)

    def _change(self, vocabulary: Vocabulary) -> None:
        """Learn all words, then change the traits together: nothing changes if learning fails."""
        listener, known, unknown = None, _NO_SCORES, _NO_SCORES
        if vocabulary.words:
            settings = {"others": self._others, "false_accepts": self.false_accepts}
            listener = Listener(self.embedder, vocabulary, self.learner, **settings)
            known, unknown = held_out_scores(vocabulary, self.embedder, self.learner), listener.other_scores
        self.known, self.unknown = known, unknown
        with self.hold_trait_notifications():
            self.vocabulary = vocabulary
            self.threshold = listener.threshold if listener else np.inf
            self.listener = listener

    @traitlets.observe("threshold")
    def _threshold_changed(self, change: dict) -> None:
        if self.listener is not None:
            self.listener.threshold = change["new"]


def principal_plane(embeddings: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean (d,) of embeddings (n, d), and the two directions (d, 2) of their largest variance."""
    mean = embeddings.mean(0)
    _, _, directions = np.linalg.svd(embeddings - mean, full_matrices=False)
    plane = np.zeros((embeddings.shape[1], 2), embeddings.dtype)
    plane[:, : min(2, len(directions))] = directions[:2].T
    return mean, plane


def plot_embeddings(
    embeddings: np.ndarray, labels: np.ndarray, words: Sequence[str], others: np.ndarray | None = None,
    heard: np.ndarray | None = None,
) -> Figure:  # fmt: skip
    """Draw clips in the principal plane of their embeddings, scaled to length 1.

    Arguments:
    - `embeddings`, `labels`: of enrolled clips, (n, d) and (n,).
    - `words`: names of the labels.
    - `others`: embeddings (m, d) of other words, drawn in grey (default none).
    - `heard`: embedding (d,) of a clip, drawn as a star (default none).

    Raises DataError without clips.
    """
    if not len(embeddings):
        raise DataError("A map needs clips: enrol a word.")
    mean, plane = principal_plane(_unit(embeddings))
    figure = figures.canvas(6, 4.5)
    axes = figure.add_subplot()
    if others is not None and len(others):
        axes.scatter(*((_unit(others) - mean) @ plane).T, s=14, color=_OTHERS, label="other words")
    for label, word in enumerate(words):
        points = (_unit(embeddings[labels == label]) - mean) @ plane
        color, marker = figures.PALETTE[label % len(figures.PALETTE)], _MARKERS[label % len(_MARKERS)]
        axes.scatter(*points.T, s=46, color=color, marker=marker, edgecolor="white", linewidth=0.6, label=word)
    if heard is not None:
        axes.scatter(*(_unit(heard) - mean) @ plane, s=220, marker="*", color="black", label="just heard", zorder=3)
    axes.set(xticks=[], yticks=[])
    axes.set_xlabel("First principal component", fontsize=10)
    axes.set_ylabel("Second", fontsize=10)
    figure.legend(loc="outside right upper", fontsize=10, frameon=False)
    return figure


def plot_det(known: np.ndarray, unknown: np.ndarray, threshold: float) -> Figure:
    """Draw false accepts and false rejects by threshold, and against each other (Martin et al. 1997).

    Arguments:
    - `known`, `unknown`: known scores of clips of known words (n,) and of others (m,).
    - `threshold`: is marked.

    Raises DataError without scores of either kind.
    """
    thresholds, accepted, rejected = det_curve(known, unknown)
    figure = figures.canvas(figures.WIDTH, 3.4)
    left, right = figure.subplots(1, 2)
    finite = np.isfinite(thresholds)
    left.step(thresholds[finite], 100 * accepted[finite], where="pre", color=figures.ORANGE, label="false accepts")
    left.step(thresholds[finite], 100 * rejected[finite], where="pre", color=figures.BLUE, label="false rejects")
    left.axvline(threshold, color=figures.GRAY, linestyle="--", linewidth=1.4)
    left.locator_params(axis="x", nbins=5)
    left.legend(fontsize=10, frameon=False)
    right.step(100 * accepted, 100 * rejected, where="post", color=figures.GREEN)
    here = 100 * float(np.mean(np.asarray(unknown) >= threshold)), 100 * float(np.mean(np.asarray(known) < threshold))
    right.plot(*here, "o", color=figures.GRAY, markersize=9)
    right.annotate(f"{here[0]:.1f} %, {here[1]:.1f} %", here, (9, 7), textcoords="offset points", fontsize=10)
    right.set_xlim(-3, 103)
    labels = ("Threshold", "Share of clips (%)"), ("False accepts (%)", "False rejects (%)")
    for axes, (x, y) in zip((left, right), labels, strict=True):
        axes.set_ylim(-3, 103)
        figures.style(axes, x=x, y=y, grid=False)
    return figure


def plot_stream(
    scores: Scores, threshold: float, detections: Sequence[Detection] = (), timeline: Sequence[Occurrence] = ()
) -> Figure:
    """Draw the known score over time.

    Arguments:
    - `scores`: of a recording.
    - `threshold`: drawn as a line.
    - `detections`: drawn as dots (default none).
    - `timeline`: spoken words, drawn as bars above (default none).
    """
    figure = figures.canvas(figures.WIDTH, 3)
    axes = figure.add_subplot()
    axes.plot(scores.times, scores.known, color=figures.BLUE, linewidth=1.3)
    axes.axhline(threshold, color=figures.GRAY, linestyle="--", linewidth=1.2)
    low, high = float(scores.known.min()), float(scores.known.max())
    top = high + 0.12 * (high - low)
    for spoken in timeline:
        axes.plot([spoken.start, spoken.end], [top, top], color=figures.GREEN, linewidth=5, solid_capstyle="butt")
        axes.annotate(
            spoken.word, (spoken.start, top), (0, 5), textcoords="offset points", fontsize=10, color=figures.GREEN
        )
    for detection in detections:
        at = detection.time, detection.score
        axes.plot(*at, "o", color=figures.ORANGE, markersize=6)
        axes.annotate(detection.word, at, (4, 5), textcoords="offset points", fontsize=10)
    axes.set_ylim(low - 0.05 * (high - low), top + 0.2 * (high - low))
    figures.style(axes, x="Time (s)", y="Score", grid=False)
    return figure


def _unit(x: np.ndarray) -> np.ndarray:
    return x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-12)


def _upload(label: str, take: Callable[[list[np.ndarray]], object], rate: int, status: Status, **more: object):
    """A button that decodes files and calls `take` with their samples, whose errors are shown."""
    button = ipywidgets.FileUpload(accept=FORMATS, description=label, layout={"width": "auto"}, **more)

    def uploaded(change: dict) -> None:
        if files := change["new"]:
            read = [partial(decode, bytes(file["content"]), file["name"], rate) for file in files]
            status.attempt(lambda: take([clip() for clip in read]), "Reading …")
            button.value = ()

    button.observe(uploaded, "value")
    return button


class ClipsBox(ipywidgets.VBox):
    """Fields for a word and its clips, recorded or uploaded, and buttons to enrol them. `clips`: not enrolled yet."""

    def __init__(self, enrolment: Enrolment) -> None:
        self.enrolment = enrolment
        self.rate = enrolment.embedder.front_end.rate
        self.clips: list[np.ndarray] = []
        self._recording: list[np.ndarray] = []
        self.word = ipywidgets.Text(description="Word")
        self._pending, self.status = ipywidgets.HTML(), Status()
        record = Microphone("Record a clip", self._recording.append, self._recording.clear, self._recorded, self.rate)
        self.upload = _upload("Upload clips", self._add, self.rate, self.status, multiple=True)

        def button(text: str, icon: str, action: Callable[[], object], meanwhile: str = "") -> ipywidgets.Button:
            made = ipywidgets.Button(description=text, icon=icon)
            made.on_click(lambda _: self.status.attempt(action, meanwhile))
            return made

        self.enrol = button("Enrol", "check", self._enrol, "Learning …")
        self.discard = button("Discard clips", "trash", lambda: self._set_clips([]))
        self.forget = button("Forget word", "times", lambda: enrolment.forget(self.word.value))
        rows = [self.word, record, self.upload], [self.enrol, self.discard, self.forget, self._pending]
        wrap = {"flex_flow": "row wrap", "align_items": "center"}
        super().__init__([*(ipywidgets.HBox(row, layout=wrap) for row in rows), self.status])
        self._set_clips([])

    def _recorded(self) -> None:
        if self._recording:
            self._add([np.concatenate(self._recording)])
            self._recording.clear()

    def _add(self, clips: list[np.ndarray]) -> None:
        self._set_clips([*self.clips, *clips])

    def _enrol(self) -> None:
        self.enrolment.enrol(self.word.value, self.clips)
        self._set_clips([])

    def _set_clips(self, clips: list[np.ndarray]) -> None:
        self.clips = clips
        lengths = ", ".join(f"{len(clip) / self.rate:.1f} s" for clip in clips)
        self._pending.value = f"Clips to enrol: {lengths}" if clips else "Record or upload a few clips of a word."
        self.enrol.disabled = self.discard.disabled = not clips


class ThresholdBox(ipywidgets.VBox):
    """Slider, rates and curves of an `enrolment`. The slider ranges from the lowest score to the highest."""

    def __init__(self, enrolment: Enrolment) -> None:
        self.enrolment = enrolment
        self.slider, self.rates, self.curves = ThresholdSlider(), ipywidgets.HTML(), Chart()
        super().__init__([self.slider, self.rates, self.curves])
        self.slider.observe(self._slid, "value")
        enrolment.observe(lambda _: self._draw(), ["threshold", "listener"])
        self._draw()

    def _slid(self, change: dict) -> None:
        if change["new"] != self.slider.shown:
            self.enrolment.threshold = self.slider.threshold

    def _draw(self) -> None:
        enrolment, count = self.enrolment, len(self.enrolment.known)
        self.slider.disabled = enrolment.listener is None
        self.curves.draw(plot_det(enrolment.known, enrolment.unknown, enrolment.threshold) if count else None)
        if enrolment.listener is None:
            self.rates.value = ""
            return
        self.slider.put(*enrolment.score_range, enrolment.threshold)
        accepted, rejected = enrolment.rates()
        rejects = f"{rejected:.1%} of {count} enrolled clips, each scored without itself."
        self.rates.value = (
            f"Threshold {enrolment.threshold:.3f}. False accepts: {accepted:.1%} of {len(enrolment.unknown)} clips of "
            f"other words. False rejects: {rejects if count else 'enrol a second clip of a word to measure them.'}"
        )


class ListenBox(ipywidgets.VBox):
    """The microphone or a file, scored as it comes: a bar with the score of each word, and the `detections` so far.

    Arguments:
    - `enrolment`: its listener is used.
    - `on_heard`: called with the embedding (d,) of the last clip, about once a second.
    """

    def __init__(self, enrolment: Enrolment, on_heard: Callable[[np.ndarray], None]) -> None:
        self.enrolment, self._on_heard = enrolment, on_heard
        self.rate = enrolment.embedder.front_end.rate
        self.detections: list[Detection] = []
        self.listening = False
        self.bars, self._table, self.status = ipywidgets.VBox(), ipywidgets.HTML(), Status()
        self.microphone = Microphone("Listen", self._hear, self._begin, self._end, self.rate)
        self.upload = _upload("Listen to a file", lambda found: self.listen(found[0]), self.rate, self.status)
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
            self._table.value = Table(("time", "word", "score"), rows).to_html()

    def _end(self) -> None:
        self.listening = False

    def _draw_bars(self) -> None:
        self._end()
        low, high = self.enrolment.score_range
        self.bars.children = [
            ipywidgets.FloatProgress(low, min=low, max=high, description=word, layout={"width": "40em"})
            for word in self.enrolment.vocabulary.words
        ]


class KeywordsView(View):
    """Record or upload clips and enrol them as words; a map shows their embeddings. A slider sets the threshold, with
    its false accepts and rejects. Sound of the microphone or a file is scored as it comes, and a star on the map shows
    its embedding. Everything works from files alone, without a microphone.

    Arguments:
    - `enrolment`: the words, embedder and threshold that its boxes share.
    """

    def __init__(self, enrolment: Enrolment) -> None:
        self.enrolment = enrolment
        self.clips, self.threshold = ClipsBox(enrolment), ThresholdBox(enrolment)
        self.listening = ListenBox(enrolment, lambda heard: self._map.draw(plot_embeddings(*self._points, heard)))
        self._words, self._map = ipywidgets.HTML(), Chart()
        learned = ipywidgets.HBox([self._words, self._map], layout={"align_items": "center", "grid_gap": "2em"})
        super().__init__([self.clips, learned, self.threshold, self.listening])
        enrolment.observe(lambda _: self._draw(), "listener")
        self._draw()

    def _draw(self) -> None:
        vocabulary = self.enrolment.vocabulary
        rows = [(word, vocabulary.count(word)) for word in vocabulary.words]
        self._words.value = Table(("word", "clips"), rows).to_html()
        if rows:
            self._points = self.enrolment.map()
        self._map.draw(plot_embeddings(*self._points) if rows else None)
