"""The clips that embeddings train on, and the division of recordings of people that the shipped ones were trained by.

The division was fixed before the first training. Settings are chosen on the validation part alone: other words by other
speakers than those of both other parts. The test part, again other words by other speakers, is for figures to publish.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from hashlib import sha1
from pathlib import Path

import numpy as np

from edgelearn.data.audio import SILENCE, UNKNOWN, ClipDataset
from edgelearn.data.features import load_features
from edgelearn.data.speech_commands import load_named
from edgelearn.data.synthetic_words import made_up_words, spoken_words
from edgelearn.keywords.learners import Embedder, Learner, NearestMean
from edgelearn.keywords.speakers import WhitenedWindows
from edgelearn.statistics import Interval, interval
from edgelearn.tables import Table

from .episodes import ARABIC, ENGLISH, Episodes, Evaluator, Split, hold_out

ARABIC_TEST = ("cancel", "close", "eight", "forward", "no", "open", "previous", "up")
ARABIC_TEST_SPEAKERS = ("00000004", "00000005", "00000009", "00000011", "00000016", "00000023")
ARABIC_VALIDATION = ("disable", "move", "options", "right", "start", "three")
ARABIC_VALIDATION_SPEAKERS = ("00000002", "00000003", "00000008", "00000010")
ENGLISH_TEST = ("bed", "bird", "cat", "five", "happy", "on", "seven", "sheila", "stop", "yes")
ENGLISH_VALIDATION = ("down", "house", "left", "marvin", "off", "right", "three", "zero")
_SIXTHS, _TEST_SIXTHS, _VALIDATION_SIXTHS = 6, (0, 1), (2,)  # of the speakers of English, by the digest of their names
_COMMON = 10  # clips of a word that is tested in English
_WORDS, _SPEAKERS, _TAKES, _VOICES = 80, 8, 2, 1  # of synthesised speech


@dataclass(frozen=True)
class TaskData:
    """Data of a task. `train`: data sets, each with its own words. `test`: other words by other speakers."""

    train: tuple[ClipDataset, ...]
    test: ClipDataset

    @property
    def skipped(self) -> list[tuple[str, str]]:
        """(path, reason) of each file that was left out."""
        return list(dict.fromkeys(skipped for dataset in (*self.train, self.test) for skipped in dataset.skipped))

    def to_dict(self) -> dict:
        """The data of a run, for its record."""
        return {
            "origin": self.test.origin,
            "description": " ".join(dataset.description for dataset in (*self.train, self.test)),
            "words": [word for dataset in self.train for word in dataset.class_names],
            "test_words": list(self.test.class_names),
            "test_speakers": sorted(set(self.test.speakers.tolist())),
            "train": sum(map(len, self.train)), "test": len(self.test),
        }  # fmt: skip


def by_word(dataset: ClipDataset) -> ClipDataset:
    """Relabel a folder of Speech Commands: clips in _unknown_ get the words that their file names begin with
    (`tree_<speaker>_nohash_0`), _silence_ is left out."""
    spoken = dataset.take(dataset.words != SILENCE)
    words = [
        item.name.partition("_")[0] if word == UNKNOWN and isinstance(item, Path) else word
        for word, item in zip(spoken.words.tolist(), spoken.items, strict=True)
    ]
    return _labelled(spoken, words)


def by_speaker(dataset: ClipDataset) -> ClipDataset:
    """Relabel clips by who speaks."""
    return replace(_labelled(dataset, dataset.speakers.tolist()), speakers=np.full(len(dataset), ""))


def _labelled(dataset: ClipDataset, names: Sequence[str]) -> ClipDataset:
    classes = tuple(sorted(set(names)))
    return replace(dataset, class_names=classes, labels=np.searchsorted(classes, names).astype(np.int32))


@dataclass(frozen=True)
class Parts:
    """Parts of a data set that share neither words nor speakers. `test`: for published figures. `validation`: to choose
    settings by. `train`: what is left of the words and speakers then. `all_train`: all but the test part's words and
    speakers."""

    train: ClipDataset
    validation: ClipDataset
    all_train: ClipDataset
    test: ClipDataset


def arabic_parts(data: str | None = None) -> Parts:
    """The parts of Ghandoura et al.'s clips. Raises DataError without them in `data` (default: EDGELEARN_DATA)."""
    outer = hold_out(load_named(ARABIC, data), ARABIC_TEST, ARABIC_TEST_SPEAKERS)
    inner = hold_out(outer.train, ARABIC_VALIDATION, ARABIC_VALIDATION_SPEAKERS)
    return Parts(inner.train, inner.test, outer.train, outer.test)


def english_parts(data: str | None = None) -> Parts:
    """The parts of the clips of Speech Commands. Raises DataError without them in `data` (default: EDGELEARN_DATA)."""
    outer = _hold_out_sixths(by_word(load_named(ENGLISH, data)), ENGLISH_TEST, _TEST_SIXTHS)
    inner = _hold_out_sixths(outer.train, ENGLISH_VALIDATION, _VALIDATION_SIXTHS)
    return Parts(inner.train, inner.test, outer.train, outer.test)


def _hold_out_sixths(clips: ClipDataset, words: Sequence[str], sixths: Sequence[int]) -> Split:
    return hold_out(clips, words, np.unique(clips.speakers[_in_sixths(clips.speakers, sixths)]).tolist())


def _in_sixths(speakers: np.ndarray, sixths: Sequence[int]) -> np.ndarray:
    """True for the speakers of some sixths: bool (n,)."""
    return np.array([int(sha1(name.encode()).hexdigest(), 16) % _SIXTHS in sixths for name in speakers.tolist()])


def people(data: str | None = None, validation: bool = False) -> TaskData:
    """Train on Arabic, English and synthesised words; test Arabic words of the test part, or of the validation part."""
    arabic, english = arabic_parts(data), english_parts(data)
    synthesised = spoken_words(made_up_words(_WORDS, 0), range(_SPEAKERS), _TAKES, _VOICES)
    if validation:
        return TaskData((arabic.train, english.train, synthesised), arabic.validation)
    return TaskData((arabic.all_train, english.all_train, synthesised), arabic.test)


def voices(data: str | None = None, validation: bool = False) -> TaskData:
    """Train on the speakers of both languages, and test other speakers of Arabic: those of the test part or of the
    validation part. Each speaker is a class."""
    arabic, english = arabic_parts(data), english_parts(data)
    if validation:
        return TaskData((by_speaker(arabic.train), by_speaker(english.train)), by_speaker(arabic.validation))
    return TaskData((by_speaker(arabic.all_train), by_speaker(english.all_train)), by_speaker(arabic.test))


@dataclass(frozen=True)
class PeopleReport:
    """An embedding on words and speakers of a part, by nearest mean with cosine.

    Arguments:
    - `language`: of the words.
    - `num_classes`: words of an episode; clips of others are to be rejected.
    - `shots`: clips of each word that are enrolled.
    - `speakers`: who is tested: "same" as was enrolled, "other", or "any" of several.
    - `accuracy`, `auroc`: means over the episodes, with 95 % intervals.
    """

    language: str
    num_classes: int
    shots: int
    speakers: str
    accuracy: Interval
    auroc: Interval


def measure_people(
    embedder: Embedder, data: str | None = None, validation: bool = False, episodes: int = 1000
) -> list[PeopleReport]:
    """Test an embedder in episodes on the test part of both languages, or on their validation part.

    In Arabic five words are enrolled by one speaker or by five others. In English few speakers said a word often, so
    they are mixed; words with fewer than 10 clips are the ones to reject. Raises DataError without the data.
    """
    arabic, english = (
        parts.validation if validation else parts.test for parts in (arabic_parts(data), english_parts(data))
    )
    common = np.bincount(english.labels) >= _COMMON
    names = [word if often else "others" for word, often in zip(english.class_names, common, strict=True)]
    english = _labelled(english, [names[label] for label in english.labels])
    found = []
    for language, clips, count, protocols in (
        ("Arabic", arabic, 5, (("same", 1), ("same", 5), ("other", 1), ("other", 5))),
        ("English", english, int(common.sum()), (("any", 1), ("any", 5))),
    ):
        rejected = ("others",) if language == "English" else ()
        evaluator = Evaluator(embedder, load_features(clips, embedder.front_end, embedder.seconds))
        for speakers, shots in protocols:
            of = Episodes(clips, count, shots, 5, None, speakers, episodes, unknown_words=rejected)
            measures = evaluator.run(NearestMean(), of).measures
            found.append(PeopleReport(language, count, shots, speakers, measures["accuracy"], measures["auroc"]))
    return found


@dataclass(frozen=True)
class SpeakersReport:
    """Five speakers who were never heard, enrolled from ten seconds each.

    Arguments:
    - `language`, `speakers`: what they speak, and how many of them five at a time are drawn from.
    - `at_once`: share of one-second windows that are right after the enrolment.
    - `before`, `after`: error on the second half of each speaker's other windows, after the enrolment, and after it
      was said who spoke in each of the first half, as it was heard.
    - `corrected`: number of windows of the first half that were named wrongly when they were heard.
    """

    language: str
    speakers: int
    at_once: Interval
    before: Interval
    after: Interval
    corrected: Interval


_DRAW = 37  # keeps this random stream of a seed apart from others
ENROLLED = 10  # seconds


def measure_speakers(
    embedder: Embedder, data: str | None = None, validation: bool = False, draws: int = 50, seed: int = 0,
    learner: Learner = WhitenedWindows(),  # noqa: B008
) -> list[SpeakersReport]:  # fmt: skip
    """Test who is speaking on the speakers of the test part, or of the validation part: all their clips of a second, in
    random order. Raises DataError without the data.

    Arguments:
    - `embedder`: tells speakers apart.
    - `draws`: of five (in the Arabic validation part four) speakers, their enrolled clips and the order (default 50).
    - `learner`: how speakers are learned.
    """
    arabic, english = load_named(ARABIC, data), by_word(load_named(ENGLISH, data))
    names = ARABIC_VALIDATION_SPEAKERS if validation else ARABIC_TEST_SPEAKERS
    found = []
    for language, clips in (
        ("Arabic", arabic.take(np.isin(arabic.speakers, names))),
        ("English", english.take(_in_sixths(english.speakers, _VALIDATION_SIXTHS if validation else _TEST_SIXTHS))),
    ):
        counts = {name: np.count_nonzero(clips.speakers == name) for name in np.unique(clips.speakers).tolist()}
        enough = [name for name, count in counts.items() if count >= 2 * ENROLLED]
        clips = clips.take(np.isin(clips.speakers, enough))
        embeddings = embedder.embed(load_features(clips, embedder.front_end, embedder.seconds))
        rows = []
        for draw in range(draws):
            rng = np.random.default_rng([seed, _DRAW, draw])
            chosen = rng.permutation(enough)[:5]
            of = [rng.permutation(np.flatnonzero(clips.speakers == name)) for name in chosen]
            parts = zip(*((each[:ENROLLED], *np.array_split(each[ENROLLED:], 2)) for each in of), strict=True)
            enrolled, first, second = (_with_labels(part) for part in parts)
            rows.append(_corrected(embedder, embeddings, learner, enrolled, first, second, rng))
        measures = (interval(np.array(values)) for values in zip(*rows, strict=True))
        found.append(SpeakersReport(language, len(enough), *measures))
    return found


def _with_labels(clips: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Clips of each speaker, concatenated, and the number of the speaker of each."""
    return np.concatenate(clips), np.repeat(np.arange(len(clips)), [len(each) for each in clips])


def _corrected(embedder, embeddings, learner, enrolled, first, second, rng) -> tuple[float, float, float, float]:
    """Share right at once, error before and after corrections, number of corrections."""

    def classifier():
        clips, labels = enrolled
        return learner.classify(embedder, embeddings[clips], labels, int(labels.max()) + 1)

    def right(part, known):
        return known.scores(embeddings[part[0]]).argmax(1) == part[1]

    known = classifier()
    at_first, before = right(first, known), right(second, known)
    corrections = 0
    for number in rng.permutation(len(first[0])):
        clip, label = first[0][number], first[1][number]
        corrections += known.scores(embeddings[[clip]])[0].argmax() != label
        enrolled = np.append(enrolled[0], clip), np.append(enrolled[1], label)
        known = classifier()
    after = right(second, known)
    return float(np.append(at_first, before).mean()), 1 - before.mean(), 1 - after.mean(), corrections


def to_table(reports: Sequence[PeopleReport] | Sequence[SpeakersReport]) -> Table:
    """A row for each report."""
    header = tuple(field.name.replace("_", " ") for field in fields(reports[0]))
    return Table(header, [tuple(str(value) for value in vars(report).values()) for report in reports])
