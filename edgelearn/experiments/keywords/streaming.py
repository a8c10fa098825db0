"""Long recordings with known words, their labels, and the evaluation of detections in them; and hits against false
accepts an hour of enrolled words, by how the threshold was set.

For the latter, each word is enrolled with five clips of as many speakers of Speech Commands. Half of all other speakers
make the surroundings, clips of other English and of Arabic words with pauses over synthetic noise, which set the
threshold. The other half make a recording of the same kind in which false accepts are counted, and a third one has all
clips of the enrolled words by speakers who weren't enrolled.
"""

from __future__ import annotations

import wave
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path

import numpy as np

from edgelearn import atomic
from edgelearn.data.audio import RATE, ClipDataset, load_clips
from edgelearn.data.draws import synthetic_noises
from edgelearn.data.speech_commands import load_named
from edgelearn.display import plural
from edgelearn.errors import DataError
from edgelearn.keywords import Listener, OtherWords, Vocabulary
from edgelearn.keywords.files import other_words
from edgelearn.keywords.listener import REFRACTORY, Detection, Scores, Trigger, threshold_per_hour
from edgelearn.tables import Table

from .embedding import find_embedder
from .episodes import ARABIC, ENGLISH

TOLERANCE = 0.75  # seconds after a word's end in which a detection counts


@dataclass(frozen=True)
class Occurrence:
    """A keyword spoken in a recording.

    Arguments:
    - `word`: the keyword.
    - `start`, `end`: seconds from the recording's start.
    """

    word: str
    start: float
    end: float


@dataclass(frozen=True)
class DetectionReport:
    """Hits and false alarms in a recording.

    Arguments:
    - `occurrences`: number of spoken keywords.
    - `delays`: seconds from the word's end, for each that was detected.
    - `false_alarms`: number of other detections, second ones of the same occurrence included.
    - `seconds`: length of the recording.
    """

    occurrences: int
    delays: tuple[float, ...]
    false_alarms: int
    seconds: float

    @property
    def hit_rate(self) -> float:
        """Share of the keywords that was detected; NaN if there were none."""
        return len(self.delays) / self.occurrences if self.occurrences else float("nan")

    @property
    def false_alarms_per_hour(self) -> float:
        return self.false_alarms * 3600 / self.seconds

    @property
    def delay(self) -> float:
        """Mean delay in seconds; NaN without hits."""
        return float(np.mean(self.delays)) if self.delays else float("nan")

    def __str__(self) -> str:
        return (
            f"{len(self.delays)} of {plural(self.occurrences, 'keyword')} detected, on average {self.delay:.2f} s "
            f"after their end; {plural(self.false_alarms, 'false alarm')} in {self.seconds / 60:.1f} minutes, "
            f"{self.false_alarms_per_hour:.1f} an hour"
        )


def evaluate_detections(
    detections: Sequence[Detection], timeline: Sequence[Occurrence], seconds: float, tolerance: float = TOLERANCE
) -> DetectionReport:
    """Compare detections with the spoken words.

    Arguments:
    - `detections`: detections in order of time.
    - `timeline`: the spoken keywords.
    - `seconds`: length of the recording.
    - `tolerance`: a detection is a hit from a word's start until `tolerance` seconds after its end (default 0.75), if
      the word is right and wasn't detected before; else it is a false alarm.
    """
    remaining, delays = list(timeline), []
    for detection in detections:
        for spoken in remaining:
            if spoken.word == detection.word and spoken.start <= detection.time <= spoken.end + tolerance:
                remaining.remove(spoken)
                delays.append(detection.time - spoken.end)
                break
    return DetectionReport(len(timeline), tuple(delays), len(detections) - len(delays), seconds)


def sweep(
    scores: Scores, words: Sequence[str], timeline: Sequence[Occurrence], seconds: float,
    thresholds: Sequence[float], refractory: float = REFRACTORY, tolerance: float = TOLERANCE,
) -> list[DetectionReport]:  # fmt: skip
    """A report for each of `thresholds`, from the scores of a recording: misses against false alarms."""
    return [
        evaluate_detections(Trigger(words, threshold, refractory).push(scores), timeline, seconds, tolerance)
        for threshold in thresholds
    ]


def write_labels(path: str | Path, timeline: Sequence[Occurrence]) -> None:
    """Write the spoken words to a text file. Raises RunError if it can't be written."""
    lines = [f"{spoken.start:.6f}\t{spoken.end:.6f}\t{spoken.word}\n" for spoken in timeline]
    atomic.write_bytes(path, "".join(lines).encode())


def read_labels(path: str | Path) -> list[Occurrence]:
    """Read the spoken words from a text file. Raises DataError for one that can't be read, or has other lines."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"The labels {path} can't be read: {error}. Give a text file.") from error
    timeline = []
    for number, line in enumerate(lines, start=1):
        try:
            start, end, word = line.split("\t")
            timeline.append(Occurrence(word, float(start), float(end)))
        except ValueError:
            raise DataError(
                f"Line {number} of {path} is not a start, an end (in seconds) and a word, with tabs between: {line!r}. "
                f"Write labels as Audacity does."
            ) from None
    return timeline


_STREAM = 37  # keeps this random stream of a seed apart from others
_FRAME = 0.01  # seconds
_HEADER, _SAMPLE, _LARGEST = 44, 2, 32767  # bytes of a WAV file's header and of a sample; the largest sample


class LongRecording:
    """Clips in random order, each after a pause, over continuous noise. One clip is in memory at a time.

    Arguments:
    - `dataset`: the clips.
    - `keywords`: words listed in `timeline`; other words are there to be ignored (default: all are keywords).
    - `seed`: draws order, pauses and synthetic noise; the same arguments make the same samples.
    - `pauses`: shortest and longest, in seconds (default 0.3 and 1.5).
    - `noises`: recordings (n,), concatenated and repeated (default: synthetic noises).
    - `level`: root mean square of the noise in decibels of full scale, at most 0 (default -45, quiet).
    - `rate`: samples a second.

    `timeline` lists the spoken keywords, `seconds` is the length. Raises DataError without clips, for a clip that can't
    be read, and for settings out of range.
    """

    def __init__(
        self, dataset: ClipDataset, keywords: Sequence[str] | None = None, seed: int = 0,
        pauses: tuple[float, float] = (0.3, 1.5), noises: Sequence[np.ndarray] | None = None, level: float = -45.0,
        rate: int = RATE,
    ) -> None:  # fmt: skip
        if not len(dataset) or not 0 <= pauses[0] <= pauses[1]:
            raise DataError(
                f"A long recording needs clips, and pauses from shorter to longer: got {len(dataset)} clips, {pauses}."
            )
        if not level <= 0 or seed < 0:
            raise DataError(f"level must be at most 0 decibels and seed at least 0; got {level} and {seed}.")
        self.dataset, self.rate = dataset, rate
        self.keywords = dataset.class_names if keywords is None else tuple(keywords)
        noise = np.concatenate(synthetic_noises(seed, rate=rate) if noises is None else list(noises))
        self._noise = (noise * 10 ** (level / 20) / max(1e-9, np.sqrt(np.mean(noise**2)))).astype(np.float32)
        rng = np.random.default_rng([seed, _STREAM])
        self._order = rng.permutation(len(dataset))
        self._pauses = np.round(rate * rng.uniform(*pauses, len(dataset) + 1)).astype(int)
        self.timeline, self.seconds = self._read_through()

    def __iter__(self) -> Iterator[np.ndarray]:
        """Pieces of the samples, float32 (n,) in -1..1: a pause and a clip each, and a last pause."""
        start = 0
        for clip, pause in zip((*self._order, None), self._pauses, strict=True):
            sound = np.empty(0, np.float32) if clip is None else self.dataset.clip(int(clip), self.rate)
            piece = np.take(self._noise, np.arange(start, start + pause + len(sound)), mode="wrap")
            piece[pause:] += sound
            start += len(piece)
            yield piece.clip(-1, 1)

    def write(self, path: str | Path) -> None:
        """Write a 16-bit WAV file atomically. Raises RunError if it can't be written; a previous file then stays."""
        size = _HEADER + _SAMPLE * round(self.seconds * self.rate)
        with atomic.replacing(path, size) as whole, wave.open(whole, "wb") as file:
            file.setparams((1, _SAMPLE, self.rate, 0, "NONE", ""))
            for piece in self:
                file.writeframes(np.round(piece * _LARGEST).astype("<i2").tobytes())

    def _read_through(self) -> tuple[list[Occurrence], float]:
        timeline, start = [], 0
        words = self.dataset.words
        for clip, pause in zip(self._order, self._pauses, strict=False):
            sound = self.dataset.clip(int(clip), self.rate)
            start += pause
            if words[clip] in self.keywords:
                first, last = speech_interval(sound, self.rate)
                at = float(start) / self.rate
                timeline.append(Occurrence(str(words[clip]), at + first, at + last))
            start += len(sound)
        return timeline, float(start + self._pauses[-1]) / self.rate


def speech_interval(clip: np.ndarray, rate: int = RATE) -> tuple[float, float]:
    """Start and end of the word in a clip, in seconds: the frames within 20 decibels of the loudest."""
    size = round(rate * _FRAME)
    frames = clip[: len(clip) // size * size].reshape(-1, size)
    energy = np.square(frames, dtype=np.float64).mean(1)
    loud = np.flatnonzero(energy >= energy.max() / 100)
    return int(loud[0]) * size / rate, int(loud[-1] + 1) * size / rate


SHOTS, RATES, LEVEL = 5, (10.0, 3.0, 1.0), -30.0  # clips of a word, false accepts an hour, decibels of the noise


def scores_of(listener: Listener, recording: LongRecording) -> Scores:
    """The scores of a whole recording."""
    listener.reset(8)
    parts = []
    for piece in recording:
        listener.push(piece)
        parts.append(listener.scores)
    listener.finish()
    return Scores.join([*parts, listener.scores])


def after_each_other(listener: Listener, recordings: list[LongRecording]) -> Scores:
    """The scores of recordings as of one."""
    parts, start = [], 0.0
    for recording in recordings:
        found = scores_of(listener, recording)
        parts.append(Scores(found.times + start, found.words, found.known))
        start += recording.seconds
    return Scores.join(parts)


def halves(clips: ClipDataset, seed: int) -> tuple[ClipDataset, ClipDataset]:
    """Clips of half of the speakers, and of the others."""
    speakers = np.random.default_rng(seed).permutation(np.unique(clips.speakers))
    first = np.isin(clips.speakers, speakers[: len(speakers) // 2])
    return clips.take(first), clips.take(~first)


@dataclass(frozen=True)
class ThresholdTest:
    """A threshold on recordings.

    Arguments:
    - `way`: how it was set.
    - `threshold`: the score.
    - `hits`, `occurrences`: words that were detected and spoken.
    - `false_accepts`, `hours`: in recordings without them.
    - `seed`: drew speakers and recordings.
    """

    way: str
    threshold: float
    hits: int
    occurrences: int
    false_accepts: int
    hours: float
    seed: int


def measure(
    words: Sequence[str], seed: int, data: str | None = None, log: Callable[[str], object] = lambda line: None
) -> list[ThresholdTest]:
    """Test each way to set the threshold. Raises DataError without Speech Commands in `data`."""
    english, arabic = load_named(ENGLISH, data), load_named(ARABIC, data)
    embedder, where = find_embedder(None, data)
    log(where)
    vocabulary, rng = Vocabulary.empty(embedder), np.random.default_rng(seed)
    spoken = english.only(list(words))
    enrolled = rng.permutation(np.unique(spoken.speakers))[: 4 * SHOTS]
    for word in words:
        clips = spoken.take((spoken.words == word) & np.isin(spoken.speakers, enrolled))
        chosen = rng.permutation(len(clips))[:SHOTS]
        vocabulary = vocabulary.add(word, embedder.features(load_clips(clips, chosen)))
    tested = spoken.take(~np.isin(spoken.speakers, enrolled))
    others = english.only([word for word in english.class_names if word not in words])
    sides = [halves(others, seed), halves(arabic.take(np.arange(0, len(arabic), 3)), seed)]
    surroundings, elsewhere = (
        [LongRecording(side[half], keywords=(), seed=10 * seed + half, level=LEVEL) for side in sides]
        for half in (0, 1)
    )
    said = LongRecording(tested, seed=10 * seed + 2, level=LEVEL)
    listener = Listener(embedder, vocabulary, threshold=inf)
    clips = sides[0][0]
    picked = clips.take(np.arange(0, len(clips), max(1, len(clips) // 500)))
    ways = {
        name: Listener(embedder, vocabulary, others=OtherWords.load(some, embedder)).threshold
        for name, some in (("synthesised words (default)", other_words()), ("`--others`, real words", picked))
    }
    around = after_each_other(listener, surroundings)
    hours = sum(each.seconds for each in surroundings) / 3600
    for rate in RATES:
        ways[f"`--surroundings` of {hours:.1f} hours, {rate:g} an hour"] = threshold_per_hour(
            around, 3600 * hours, rate
        )
    tests = [(each, scores_of(listener, each)) for each in (said, *elsewhere)]
    found = []
    for how, threshold in ways.items():
        heard, *silent = (
            sweep(scores, vocabulary.words, each.timeline, each.seconds, [threshold])[0] for each, scores in tests
        )
        alarms, hours = sum(report.false_alarms for report in silent), sum(report.seconds for report in silent) / 3600
        found.append(ThresholdTest(how, threshold, len(heard.delays), heard.occurrences, alarms, hours, seed))
    return found


def table(tests: Sequence[ThresholdTest]) -> Table:
    """A row for each way, over all seeds, whose ways are in the same order."""
    by_seed: dict[int, list[ThresholdTest]] = {}
    for each in tests:
        by_seed.setdefault(each.seed, []).append(each)
    rows = []
    for own in zip(*by_seed.values(), strict=True):
        hits, spoken = sum(each.hits for each in own), sum(each.occurrences for each in own)
        accepts = sum(each.false_accepts for each in own) / sum(each.hours for each in own)
        thresholds = ", ".join(f"{each.threshold:.3f}" for each in own)
        rows.append((own[0].way, thresholds, f"{hits} of {spoken} ({hits / spoken:.0%})", f"{accepts:.1f}"))
    return Table(("threshold set by", "threshold", "hits", "false accepts an hour"), rows)
