"""Episodes: a few clips of each of N words to learn from, others of them to recognise, and words to reject.

Every episode depends on (seed, number) alone: the same ones for every method that is compared.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from edgelearn.data.audio.clips import ClipDataset
from edgelearn.errors import DataError

from .splits import LeakError, require_speakers

_STREAM = 34  # keeps this random stream of a seed apart from others
SPEAKERS = ("same", "other", "any")


@dataclass(frozen=True, eq=False)
class Episode:
    """Indices of clips in the data set, and the words of the labels 0..N-1.

    support (N, K): clips to learn from, a row a word. query (N, Q): clips to recognise, a row a word. unknown (M, Q):
    clips to reject, a row for each of M other words. unlabelled (N, U): more clips of the words by who is recognised,
    which may be heard but whose words aren't told.

    Raises LeakError when a clip is in two of them.
    """

    words: tuple[str, ...]
    support: np.ndarray
    query: np.ndarray
    unknown: np.ndarray
    unlabelled: np.ndarray

    def __post_init__(self):
        every = self.support, self.query, self.unknown, self.unlabelled
        used = np.concatenate([clips.ravel() for clips in every])
        if len(np.unique(used)) < len(used):
            raise LeakError("A clip is in the episode twice: what is recognised may have been learned. Draw anew.")

    @property
    def support_labels(self) -> np.ndarray:
        """int32 (N · K,), the labels of support.ravel()."""
        return _labels(self.support)

    @property
    def query_labels(self) -> np.ndarray:
        """int32 (N · Q,), the labels of query.ravel()."""
        return _labels(self.query)


def _labels(rows: np.ndarray) -> np.ndarray:
    return np.repeat(np.arange(len(rows), dtype=np.int32), rows.shape[1])


class Episodes:
    """`count` episodes of `ways` words with `shots` clips each to learn from and `queries` to recognise; to reject,
    `queries` clips of each of `unknown` other words (default: as many as there are, at most `ways`); and `unlabelled`
    more of each of the words. Of `unknown_words`, where there are any, are all that is rejected and none that is
    learned, as in published splits of words (splits.WORD_SPLITS).

    speakers: who is learned from and who is recognised.
        "same": one speaker, enrolled and recognised: the user's own device.
        "other": one speaker is recognised, and rejected, who is not among those learned from.
        "any": speakers don't matter.

    Where the same speakers have clips enough, other `shots` with the same seed leave what is recognised and rejected as
    it is.

    Raises DataError when the clips don't suffice for such episodes, or (but for "any") don't say who speaks.
    """

    def __init__(
        self,
        dataset: ClipDataset,
        ways: int = 5,
        shots: int = 1,
        queries: int = 5,
        unknown: int | None = None,
        speakers: str = "same",
        count: int = 600,
        seed: int = 0,
        unlabelled: int = 0,
        unknown_words: Sequence[str] = (),
    ):
        if min(ways, shots, queries, count) < 1 or min(unlabelled, seed) < 0 or speakers not in SPEAKERS:
            raise DataError(
                f"ways, shots, queries and count must be at least 1, unlabelled and seed at least 0 and speakers one "
                f"of {', '.join(SPEAKERS)}; got {ways}, {shots}, {queries}, {count}, {unlabelled}, {seed} and "
                f"{speakers!r}."
            )
        if missing := sorted(set(unknown_words) - set(dataset.class_names)):
            raise DataError(f"{dataset.name} has no word {missing[0]!r} to reject. Leave it out.")
        reserved = np.array([word in unknown_words for word in dataset.class_names])
        self._may_learn, self._may_reject = ~reserved, reserved if reserved.any() else ~reserved
        self._beside = 0 if reserved.any() else ways  # words that are learned, among those that may be rejected
        learnable, left = int(self._may_learn.sum()), int(self._may_reject.sum()) - self._beside
        unknown = min(ways, left) if unknown is None else unknown
        if unknown < 0 or ways > learnable or unknown > left:
            raise DataError(
                f"{dataset.name} has {len(dataset.class_names)} words, too few for {ways} to recognise and "
                f"{max(unknown, 0)} to reject. Ask for fewer."
            )
        if speakers != "any":
            require_speakers(dataset)
        self.dataset, self.ways, self.shots, self.queries, self.unknown = dataset, ways, shots, queries, unknown
        self.speakers, self.count, self.seed, self.unlabelled = speakers, count, seed, unlabelled
        self.unknown_words = tuple(unknown_words)
        self._clips, self._counts = _by_speaker_and_word(dataset, merge=speakers == "any")
        self._eligible = [speaker for speaker in range(len(self._clips)) if self._possible(speaker)]
        if not self._eligible:
            whose = "" if speakers == "any" else "a single speaker of "
            raise DataError(
                f"The clips of {whose}{dataset.name} don't suffice for {ways} words with {shots} to learn from and "
                f"{queries} to recognise, and {unknown} words to reject. Ask for fewer."
            )

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Episode]:
        return (self[number] for number in range(self.count))

    def __getitem__(self, number: int) -> Episode:
        if not 0 <= number < self.count:
            raise IndexError(number)
        rng = np.random.default_rng([self.seed, _STREAM, number])
        speaker = self._eligible[rng.integers(len(self._eligible))]
        known, able = self._words(speaker)
        known = rng.permutation(known)[: self.ways]
        other = rng.permutation(np.setdiff1d(able, known))[: self.unknown]
        clips = self._clips[speaker]
        drawn = [rng.permutation(clips[word]) for word in known]
        query = [own[: self.queries] for own in drawn]
        rejected = [rng.permutation(clips[word])[: self.queries] for word in other]
        if self.speakers == "other":
            support = [self._by_others(word, speaker, rng) for word in known]
        else:
            support = [own[self.queries : self.queries + self.shots] for own in drawn]
        own_support = 0 if self.speakers == "other" else self.shots
        heard = [own[self.queries + own_support :][: self.unlabelled] for own in drawn]
        return Episode(
            words=tuple(self.dataset.class_names[word] for word in known),
            support=np.array(support),
            query=np.array(query),
            unknown=np.array(rejected, int).reshape(self.unknown, self.queries),
            unlabelled=np.array(heard, int).reshape(self.ways, self.unlabelled),
        )

    def _words(self, speaker: int) -> tuple[np.ndarray, np.ndarray]:
        """Words of which this speaker has clips enough to be learned and recognised, and to be rejected."""
        counts = self._counts[speaker]
        if self.speakers == "other":
            enough = (counts >= self.queries + self.unlabelled) & (self._counts.sum(0) - counts >= self.shots)
        else:
            enough = counts >= self.queries + self.shots + self.unlabelled
        return np.flatnonzero(enough & self._may_learn), np.flatnonzero((counts >= self.queries) & self._may_reject)

    def _possible(self, speaker: int) -> bool:
        known, able = self._words(speaker)
        return len(known) >= self.ways and len(able) >= self._beside + self.unknown

    def _by_others(self, word: int, speaker: int, rng: np.random.Generator) -> list[int]:
        """Clips by other speakers, of as many of them as there are: the second of one comes after the first of all."""
        others = np.setdiff1d(np.flatnonzero(self._counts[:, word]), [speaker])
        drawn = [rng.permutation(self._clips[other][word]) for other in rng.permutation(others)[: self.shots]]
        order = [own[turn] for turn in range(max(map(len, drawn))) for own in drawn if turn < len(own)]
        return order[: self.shots]


def _by_speaker_and_word(dataset: ClipDataset, merge: bool) -> tuple[list[list[np.ndarray]], np.ndarray]:
    """For each speaker (all as one, if `merge`) the indices of the clips of every word, and how many they are:
    (speakers, words)."""
    names, speaker = np.unique(dataset.speakers, return_inverse=True)
    speakers, words = 1 if merge else len(names), len(dataset.class_names)
    cell = dataset.labels if merge else speaker * words + dataset.labels
    counts = np.bincount(cell, minlength=speakers * words)
    pieces = np.split(np.argsort(cell, kind="stable"), np.cumsum(counts)[:-1])
    return [pieces[k * words : (k + 1) * words] for k in range(speakers)], counts.reshape(speakers, words)
