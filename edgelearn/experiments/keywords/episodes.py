"""Episodes of few-shot learning: a few clips of each word to enrol, others to classify, and unknown words to reject.

An episode depends on (seed, number) alone: all methods are compared on the same episodes.
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
    """Indices of clips in a data set.

    Arguments:
    - `words`: names of the labels 0..N-1.
    - `support`: clips to enrol, a row for each word (N, K).
    - `query`: clips to classify, a row for each word (N, Q).
    - `unknown`: clips to reject, a row for each of M other words (M, Q).
    - `unlabelled`: more clips of the words by the tested speakers, without labels (N, U).

    Raises LeakError if a clip is in two of them.
    """

    words: tuple[str, ...]
    support: np.ndarray
    query: np.ndarray
    unknown: np.ndarray
    unlabelled: np.ndarray

    def __post_init__(self):
        parts = self.support, self.query, self.unknown, self.unlabelled
        used = np.concatenate([clips.ravel() for clips in parts])
        if len(np.unique(used)) < len(used):
            raise LeakError("A clip is in the episode twice: a tested clip may have been enrolled. Draw another.")

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
    """A sequence of N-way K-shot episodes.

    Arguments:
    - `dataset`: the clips.
    - `num_classes`: words of an episode, N (default 5).
    - `shots`: clips of each to enrol, K (default 1).
    - `queries`: clips of each word, and of each unknown word, to classify (default 5).
    - `unknown`: number of other words to reject (default: as many as there are, at most `num_classes`).
    - `speakers`: `"same"`, one speaker is enrolled and tested, as on a user's own device (default); `"other"`, one
      speaker is tested who is not among those enrolled; `"any"`, speakers are mixed.
    - `count`: number of episodes (default 600).
    - `seed`: of the draws. Other `shots` with the same seed keep the tested clips, if the same speakers have enough.
    - `unlabelled`: more clips of each word without labels (default 0).
    - `unknown_words`: words that are never enrolled; they alone are rejected, as in published splits
      (`splits.WORD_SPLITS`; default: the words that an episode doesn't enrol).

    Raises DataError if the clips don't suffice for such episodes, or (except for "any") have no speaker.
    """

    def __init__(
        self,
        dataset: ClipDataset,
        num_classes: int = 5,
        shots: int = 1,
        queries: int = 5,
        unknown: int | None = None,
        speakers: str = "same",
        count: int = 600,
        seed: int = 0,
        unlabelled: int = 0,
        unknown_words: Sequence[str] = (),
    ):
        if min(num_classes, shots, queries, count) < 1 or min(unlabelled, seed) < 0 or speakers not in SPEAKERS:
            raise DataError(
                f"num_classes, shots, queries and count must be at least 1, unlabelled and seed at least 0 and "
                f"speakers one of {', '.join(SPEAKERS)}; got {num_classes}, {shots}, {queries}, {count}, {unlabelled}, "
                f"{seed} and {speakers!r}."
            )
        if missing := sorted(set(unknown_words) - set(dataset.class_names)):
            raise DataError(f"{dataset.name} has no word {missing[0]!r} to reject. Leave it out.")
        reserved = np.array([word in unknown_words for word in dataset.class_names])
        self._may_enrol, self._may_reject = ~reserved, reserved if reserved.any() else ~reserved
        self._shared = 0 if reserved.any() else num_classes  # enrolled words among those that may be rejected
        learnable, left = int(self._may_enrol.sum()), int(self._may_reject.sum()) - self._shared
        unknown = min(num_classes, left) if unknown is None else unknown
        if unknown < 0 or num_classes > learnable or unknown > left:
            raise DataError(
                f"{dataset.name} has {len(dataset.class_names)} words, too few for {num_classes} to enrol and "
                f"{max(unknown, 0)} to reject. Ask for fewer."
            )
        if speakers != "any":
            require_speakers(dataset)
        self.dataset, self.num_classes, self.shots, self.queries, self.unknown = (
            dataset,
            num_classes,
            shots,
            queries,
            unknown,
        )
        self.speakers, self.count, self.seed, self.unlabelled = speakers, count, seed, unlabelled
        self.unknown_words = tuple(unknown_words)
        self._clips, self._counts = _by_speaker_and_word(dataset, merge=speakers == "any")
        self._eligible = [speaker for speaker in range(len(self._clips)) if self._is_eligible(speaker)]
        if not self._eligible:
            whose = "" if speakers == "any" else "a single speaker of "
            raise DataError(
                f"The clips of {whose}{dataset.name} don't suffice for {num_classes} words with {shots} to enrol and "
                f"{queries} to classify, and {unknown} words to reject. Ask for fewer."
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
        known, rejectable = self._words(speaker)
        known = rng.permutation(known)[: self.num_classes]
        other = rng.permutation(np.setdiff1d(rejectable, known))[: self.unknown]
        clips = self._clips[speaker]
        draws = [rng.permutation(clips[word]) for word in known]
        query = [draw[: self.queries] for draw in draws]
        rejected = [rng.permutation(clips[word])[: self.queries] for word in other]
        if self.speakers == "other":
            support = [self._by_others(word, speaker, rng) for word in known]
        else:
            support = [draw[self.queries : self.queries + self.shots] for draw in draws]
        own_shots = 0 if self.speakers == "other" else self.shots
        unlabelled = [draw[self.queries + own_shots :][: self.unlabelled] for draw in draws]
        return Episode(
            words=tuple(self.dataset.class_names[word] for word in known),
            support=np.array(support),
            query=np.array(query),
            unknown=np.array(rejected, int).reshape(self.unknown, self.queries),
            unlabelled=np.array(unlabelled, int).reshape(self.num_classes, self.unlabelled),
        )

    def _words(self, speaker: int) -> tuple[np.ndarray, np.ndarray]:
        """Words of which a speaker has enough clips to be enrolled and tested, and to be rejected."""
        counts = self._counts[speaker]
        if self.speakers == "other":
            enough = (counts >= self.queries + self.unlabelled) & (self._counts.sum(0) - counts >= self.shots)
        else:
            enough = counts >= self.queries + self.shots + self.unlabelled
        return np.flatnonzero(enough & self._may_enrol), np.flatnonzero((counts >= self.queries) & self._may_reject)

    def _is_eligible(self, speaker: int) -> bool:
        known, rejectable = self._words(speaker)
        return len(known) >= self.num_classes and len(rejectable) >= self._shared + self.unknown

    def _by_others(self, word: int, speaker: int, rng: np.random.Generator) -> list[int]:
        """Clips by as many other speakers as possible: a speaker's second clip comes after everybody's first."""
        others = np.setdiff1d(np.flatnonzero(self._counts[:, word]), [speaker])
        draws = [rng.permutation(self._clips[other][word]) for other in rng.permutation(others)[: self.shots]]
        order = [draw[turn] for turn in range(max(map(len, draws))) for draw in draws if turn < len(draw)]
        return order[: self.shots]


def _by_speaker_and_word(dataset: ClipDataset, merge: bool) -> tuple[list[list[np.ndarray]], np.ndarray]:
    """Indices of the clips of every word by each speaker (all speakers as one, if `merge`), and their counts
    (speakers, words)."""
    names, speaker = np.unique(dataset.speakers, return_inverse=True)
    speakers, words = 1 if merge else len(names), len(dataset.class_names)
    cell = dataset.labels if merge else speaker * words + dataset.labels
    counts = np.bincount(cell, minlength=speakers * words)
    pieces = np.split(np.argsort(cell, kind="stable"), np.cumsum(counts)[:-1])
    return [pieces[k * words : (k + 1) * words] for k in range(speakers)], counts.reshape(speakers, words)
