"""Hits against false accepts an hour of enrolled words, by how the threshold was set.

Each word is enrolled with five clips of as many speakers of Speech Commands. Half of all other speakers make the
surroundings, clips of other English and of Arabic words with pauses over synthetic noise, which set the threshold. The
other half make a recording of the same kind in which false accepts are counted, and a third one has all clips of the
enrolled words by speakers who weren't enrolled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from edgelearn.data.audio import ClipDataset, load_clips
from edgelearn.data.speech_commands import load_named
from edgelearn.keywords import Listener, OtherWords, Vocabulary
from edgelearn.keywords.files import other_words
from edgelearn.keywords.listener import Scores, threshold_per_hour
from edgelearn.tables import Table

from .embedding import find_embedder
from .episodes import ARABIC, ENGLISH
from .streaming import LongRecording, sweep

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
