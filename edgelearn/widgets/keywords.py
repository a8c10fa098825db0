"""Keywords in a notebook: record or upload clips, play and label them, enrol words, set the threshold, listen."""

from __future__ import annotations

import base64
import io
import time
import wave
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anywidget
import ipywidgets
import numpy as np
import traitlets

from edgelearn.data.audio import RATE, ClipDataset, decode, fit, package
from edgelearn.display import plural
from edgelearn.errors import DataError, EdgelearnError
from edgelearn.experiments.keywords import det_curve
from edgelearn.experiments.keywords.streaming import Occurrence
from edgelearn.keywords import Detection, Embedder, Learner, Listener, OtherWords, Scores, Vocabulary
from edgelearn.keywords.learners import NearestMean
from edgelearn.keywords.vocabulary import clip_features, held_out_scores
from edgelearn.lab.runs import figures
from edgelearn.tables import Table

from .pictures import WRAP, Chart, View, error_line
from .views import ThresholdSlider

if TYPE_CHECKING:
    from matplotlib.figure import Figure


FORMATS = ".wav,.flac,.ogg"
_NO_SCORES = np.empty(0, np.float32)
_OTHERS = "#cccccc"
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
    """A button that starts and stops recording from the browser's microphone, and a meter of the level. It shows an
    error if the browser has none, or may not use it.

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

    def enrol_all(self, clips: Mapping[str, list[np.ndarray]]) -> None:
        """Learn clips of several words together. Errors as of `enrol`; nothing changes then."""
        vocabulary = self.vocabulary
        for word, some in clips.items():
            vocabulary = vocabulary.add(word, self.features(some))
        self._change(vocabulary)

    def forget(self, word: str) -> None:
        """Remove a word. Raises DataError if it isn't enrolled."""
        self._change(self.vocabulary.without(word))

    def relabel(self, features: np.ndarray, word: str | None) -> None:
        """Learn that an enrolled clip, with `features` (frames, bands), is of another word, or of none (None): it is
        forgotten then. Raises DataError if it isn't enrolled, or `word` is empty."""
        vocabulary = self.vocabulary
        same = np.array([np.array_equal(each, features) for each in vocabulary.features], bool)
        if not same.any():
            raise DataError("This clip isn't enrolled any more: its word was forgotten, or other words were loaded.")
        before = vocabulary.words[int(vocabulary.labels[same][0])]
        left = vocabulary.take(~same) if vocabulary.count(before) > 1 else vocabulary.without(before)
        self._change(left if word is None else left.add(word, features[None]))

    def use(self, vocabulary: Vocabulary) -> None:
        """Learn other words in place of these. Raises DataError if they were enrolled with other features."""
        self._change(vocabulary)

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
        look = {key: value for key, value in figures.look(label).items() if key != "linestyle"}
        axes.scatter(*points.T, s=46, **look, edgecolor="white", linewidth=0.6, label=word)
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
    length = float(scores.times[-1]) if len(scores.times) else 1.0
    rows = label_rows([(spoken.start, spoken.word) for spoken in timeline], length)
    for spoken, row in zip(timeline, rows, strict=True):
        axes.plot([spoken.start, spoken.end], [top, top], color=figures.GREEN, linewidth=5, solid_capstyle="butt")
        axes.annotate(
            spoken.word, (spoken.start, top), (0, 5 + _LINE * row), textcoords="offset points", fontsize=10,
            color=figures.GREEN,
        )  # fmt: skip
    lower = label_rows([(detection.time, detection.word) for detection in detections], length)
    for detection, row in zip(detections, lower, strict=True):
        at = detection.time, detection.score
        axes.plot(*at, "o", color=figures.ORANGE, markersize=6)
        axes.annotate(detection.word, at, (4, -5 - _LINE * row), textcoords="offset points", fontsize=10, va="top")
    above = (0.1 + 0.1 * (1 + max(rows, default=0))) * (high - low)
    axes.set_ylim(low - (0.05 + 0.1 * (1 + max(lower, default=-1))) * (high - low), top + above)
    figures.style(axes, x="Time (s)", y="Score", grid=False)
    return figure


_LINE = 12  # points from a row of labels to the next
_LETTER = 0.011  # of the figure's width


def label_rows(labels: Sequence[tuple[float, str]], length: float) -> list[int]:
    """A row for each label, so that none runs into the one before it. `labels`: (time, text), in order; `length`: of
    the axis."""
    ends, rows = list[float](), []
    for start, text in labels:
        row = next((row for row, end in enumerate(ends) if end <= start), len(ends))
        ends[row : row + 1] = [start + (len(text) + 1) * _LETTER * length]
        rows.append(row)
    return rows


def _unit(x: np.ndarray) -> np.ndarray:
    return x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-12)


def _upload(label: str, take: Callable[[list[np.ndarray]], object], rate: int, status: Status, **more: object):
    """A button that decodes files and calls `take` with their samples, whose errors are shown."""
    button = ipywidgets.FileUpload(accept=FORMATS, description=label, tooltip=label, layout={"width": "auto"}, **more)

    def uploaded(change: dict) -> None:
        if files := change["new"]:
            read = [partial(decode, bytes(file["content"]), file["name"], rate) for file in files]
            status.attempt(lambda: take([clip() for clip in read]), "Reading …")
            button.value = ()

    button.observe(uploaded, "value")
    return button


@dataclass(eq=False)
class Recording:
    """A clip in the list.

    Arguments:
    - `samples`: float32 (n,).
    - `word`: its label, "" for that of the field above.
    - `features`: what was enrolled of it, (frames, bands); None before.
    """

    samples: np.ndarray
    word: str = ""
    features: np.ndarray | None = None


class ClipRow(ipywidgets.HBox):
    """A clip of the list: a player, its word, and a button to delete it.

    Arguments:
    - `recording`: the clip.
    - `name`: of the clip, such as "clip 3".
    - `rate`: samples a second.
    - `words`: to choose from.
    - `relabel`, `delete`: called with the recording, and with its new word.
    """

    def __init__(
        self, recording: Recording, name: str, rate: int, words: Sequence[str],
        relabel: Callable[[Recording, str], object], delete: Callable[[Recording], object],
    ) -> None:  # fmt: skip
        self.recording = recording
        state = "enrolled" if recording.features is not None else "new"
        sound = _address(recording.samples, rate)
        look = "style='width: 15em; height: 2.4em; vertical-align: middle'"
        player = f"<audio controls preload='none' aria-label='{name}' {look} src='{sound}'></audio>"
        self.word = ipywidgets.Combobox(
            value=recording.word, options=list(words), placeholder="word", continuous_update=False,
            description=name.capitalize(), layout={"width": "18em"},
        )  # fmt: skip
        self.delete = ipywidgets.Button(icon="trash", tooltip=f"Delete {name}", layout={"width": "3em"})
        self.word.observe(lambda change: relabel(recording, change["new"]), "value")
        self.delete.on_click(lambda _: delete(recording))
        said = f"<span class='el-quiet'>{len(recording.samples) / rate:.1f} s, {state}</span>"
        super().__init__([self.word, ipywidgets.HTML(player), ipywidgets.HTML(said), self.delete], layout=WRAP)


def _address(samples: np.ndarray, rate: int) -> str:
    """A recording as the address of a WAV file of 16 bits."""
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes())
    return f"data:audio/wav;base64,{base64.b64encode(buffer.getvalue()).decode()}"


class ClipsBox(ipywidgets.VBox):
    """Fields for a word and its clips, recorded or uploaded; a list to play, relabel and delete them; buttons to enrol
    them, and to save and load words.

    Arguments:
    - `enrolment`: learns the clips.
    - `suggestions`: words to choose from besides those that are enrolled (default none).
    """

    def __init__(self, enrolment: Enrolment, suggestions: Sequence[str] = ()) -> None:
        self.enrolment, self.suggestions = enrolment, tuple(suggestions)
        self.rate = enrolment.embedder.front_end.rate
        self.recordings: list[Recording] = []
        self._blocks: list[np.ndarray] = []
        self.word = ipywidgets.Combobox(description="Word", placeholder="choose or type")
        self._pending, self.status = ipywidgets.HTML(), Status()
        record = Microphone("Record a clip", self._blocks.append, self._blocks.clear, self._recorded, self.rate)
        self.upload = _upload("Upload clips", self._add, self.rate, self.status, multiple=True)

        def button(text: str, icon: str, action: Callable[[], object], meanwhile: str = "") -> ipywidgets.Button:
            made = ipywidgets.Button(description=text, icon=icon)
            made.on_click(lambda _: self.status.attempt(action, meanwhile))
            return made

        self.enrol = button("Enrol", "check", self._enrol, "Learning …")
        self.discard = button("Discard clips", "trash", self._discard)
        self.forget = button("Forget word", "times", lambda: self._forget(self.word.value))
        self.file = ipywidgets.Text("words.safetensors", description="File", layout={"width": "24em"})
        self.save = button("Save words", "save", lambda: enrolment.vocabulary.save(self.file.value))
        self.load = button("Load words", "folder-open", self._load, "Learning …")
        self.list = ipywidgets.VBox(layout={"max_height": "22em", "overflow": "auto"})
        rows = (
            [self.word, record, self.upload], [self.enrol, self.discard, self.forget, self._pending],
            [self.file, self.save, self.load],
        )  # fmt: skip
        first, second, third = (ipywidgets.HBox(row, layout=WRAP) for row in rows)
        super().__init__([first, second, self.status, self.list, third])
        enrolment.observe(lambda _: self._show(), "listener")
        self._show()

    @property
    def clips(self) -> list[np.ndarray]:
        """The clips that aren't enrolled yet, float32 (n,) each."""
        return [each.samples for each in self.recordings if each.features is None]

    @property
    def words(self) -> list[str]:
        """The words to choose from."""
        return list(dict.fromkeys([*self.enrolment.vocabulary.words, *self.suggestions]))

    def _recorded(self) -> None:
        if self._blocks:
            self._add([np.concatenate(self._blocks)])
            self._blocks.clear()

    def _add(self, clips: list[np.ndarray]) -> None:
        self.recordings += [Recording(clip, self.word.value.strip()) for clip in clips]
        self._show()

    def _enrol(self) -> None:
        new = [each for each in self.recordings if each.features is None]
        words: dict[str, list[Recording]] = {}
        for each in new:
            words.setdefault(each.word or self.word.value.strip(), []).append(each)
        self.enrolment.enrol_all({word: [each.samples for each in some] for word, some in words.items()})
        for word, some in words.items():
            for each, features in zip(some, self.enrolment.features([each.samples for each in some]), strict=True):
                each.word, each.features = word, features
        self._show()

    def _discard(self) -> None:
        self.recordings = [each for each in self.recordings if each.features is not None]
        self._show()

    def _forget(self, word: str) -> None:
        self.enrolment.forget(word)
        self.recordings = [each for each in self.recordings if each.features is None or each.word != word]
        self._show()

    def _load(self) -> None:
        self.enrolment.use(Vocabulary.load(self.file.value))
        self._show()

    def _relabel(self, recording: Recording, word: str) -> None:
        def change() -> None:
            if recording.features is not None and word.strip() != recording.word:
                self.enrolment.relabel(recording.features, word)
            recording.word = word.strip()

        self.status.attempt(change, "Learning …")
        self._show()

    def _delete(self, recording: Recording) -> None:
        def change() -> None:
            if recording.features is not None:
                self.enrolment.relabel(recording.features, None)
            self.recordings.remove(recording)

        self.status.attempt(change, "Learning …")
        self._show()

    def _show(self) -> None:
        self.word.options = words = self.words
        rows = [
            ClipRow(each, f"clip {number}", self.rate, words, self._relabel, self._delete)
            for number, each in enumerate(self.recordings, start=1)
        ]
        before, self.list.children = self.list.children, rows
        for row in before:
            row.close()
        new = self.clips
        self._pending.value = (
            f"{plural(len(new), 'clip')} to enrol" if new else "Record or upload a few clips of a word."
        )
        self.enrol.disabled = self.discard.disabled = not new
        self.save.disabled = not self.enrolment.vocabulary.words


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
        rejects = f"{rejected:.1%} of {plural(count, 'enrolled clip')}, each scored without itself."
        others = plural(len(enrolment.unknown), "clip")
        self.rates.value = (
            f"Threshold {enrolment.threshold:.3f}. False accepts: {accepted:.1%} of {others} of "
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
        super().__init__(
            [ipywidgets.HBox([self.microphone, self.upload], layout=WRAP), self.status, self.bars, self._table]
        )
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
    - `suggestions`: words to choose from besides those that are enrolled (default none).
    """

    def __init__(self, enrolment: Enrolment, suggestions: Sequence[str] = ()) -> None:
        self.enrolment = enrolment
        self.clips, self.threshold = ClipsBox(enrolment, suggestions), ThresholdBox(enrolment)
        self.listening = ListenBox(enrolment, lambda heard: self._map.draw(plot_embeddings(*self._points, heard)))
        self._words, self._map = ipywidgets.HTML(), Chart()
        learned = ipywidgets.HBox(
            [self._words, self._map], layout={"align_items": "center", "flex_flow": "row wrap", "grid_gap": "2em"}
        )
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
