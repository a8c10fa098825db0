"""Cross-validation over users: each user's clips are enrolled and tested in turn, before and after personalisation."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import numpy as np

from edgelearn.data.audio.clips import ClipDataset
from edgelearn.errors import DataError
from edgelearn.experiments.keywords.splits import require_speakers
from edgelearn.keywords.learners import Background, Embedder, Learner, Spotter

from .protocol import Protocol
from .results import PersonalisationReport, UserResult

_HALVES = 37  # keeps this random stream of a seed apart from others


class CrossValidation:
    """Personalisation of every user of a data set, for any number of learners.

    Before enrolment a clip is classified by the embedder's head, after it by the learner's classifier. The threshold
    after enrolment accepts no more of the background's non-keywords than before. False accepts are other people's
    non-keywords that are accepted; errors on other people's keywords are counted as well. If the embedder has no
    background, it consists of the clips of one half of the other people, and false accepts are counted on the other
    half.

    Arguments:
    - `embedder`: has a head with the classes of `dataset`.
    - `dataset`: clips with labels and speakers.
    - `features`: of its clips (n, frames, bands).
    - `protocol`: what is tested.

    Raises DataError for an embedder without a head, words that aren't its classes, clips of keywords without a speaker,
    and too few people for a background.
    """

    def __init__(self, embedder: Embedder, dataset: ClipDataset, features: np.ndarray, protocol: Protocol) -> None:
        if embedder.head is None:
            raise DataError("Personalisation starts from a classifier of the words: give an embedder with its head.")
        words, classes = set(protocol.words), set(range(embedder.head.num_classes))
        if not words or not words <= classes:
            raise DataError(f"Words must be classes of the head, 0 to {len(classes) - 1}, not {protocol.words}.")
        if protocol.against == "others" and words == classes:
            raise DataError("All classes of the head are words: none is a non-keyword. Give against='none'.")
        require_speakers(dataset.take(np.isin(dataset.labels, protocol.words)))
        self.embedder, self.head, self.protocol, self.features = embedder, embedder.head, protocol, features
        self.labels, self.speakers = dataset.labels, dataset.speakers
        self.is_word = np.isin(self.labels, protocol.words)
        self.answers = np.where(self.is_word, self.labels, -1)
        self.embeddings = embedder.embed(features)
        self._before = protocol.predict(self.head.scores(self.embeddings))
        self.half = np.zeros(len(features), bool)  # of the people, for each clip
        self._embedders = {False: embedder, True: embedder}  # with the background for users of each half
        if embedder.background is None:
            self.half = _halves(self.speakers, protocol.seed)
            for half in (False, True):
                others = self.half != half
                if not others.any():
                    raise DataError(
                        f"{dataset.name} has too few people for a background. Add clips by others, or give an embedder "
                        f"that has one."
                    )
                background = Background(features[others], self.labels[others], features[others & ~self.is_word])
                self._embedders[half] = embedder.with_background(background)
        for embedder in self._embedders.values():
            _ = embedder.metric  # computed once for all users: not part of an enrolment's seconds
        self._non_keywords = {half: _non_keywords(each) for half, each in self._embedders.items()}

    def run(self, learner: Learner, shots: int) -> PersonalisationReport:
        """Test every user, enrolled by `learner` with up to `shots` clips of each word.

        Raises DataError for no shots, if nobody has enough clips of a word, or nobody else has clips to count errors
        on.
        """
        if shots < 1:
            raise DataError(f"An enrolment needs at least 1 clip of each word, not {shots}.")
        return PersonalisationReport(str(learner), shots, tuple(self._users(learner, shots)))

    def half_of(self, user: str) -> bool:
        """The half of the people that a user belongs to."""
        return bool(self.half[self.speakers == user][0])

    def _users(self, learner: Learner, shots: int) -> Iterator[UserResult]:
        tested = False
        for user in np.unique(self.speakers[self.speakers != ""]).tolist():
            clips = [np.flatnonzero((self.speakers == user) & (self.labels == word)) for word in self.protocol.words]
            clips = [of_word for of_word in clips if len(of_word) >= self.protocol.min_clips]
            if clips:
                tested = True
                yield self._user(learner, user, clips, shots)
        if not tested:
            raise DataError(f"Nobody has {self.protocol.min_clips} clips of one of the words. Ask for fewer.")

    def _user(self, learner: Learner, user: str, words: Sequence[np.ndarray], shots: int) -> UserResult:
        """Average over folds. `words`: the user's clips of each word."""
        half, folds, count = self.half_of(user), [], self.protocol.folds
        others = (self.half == half) & (self.speakers != user)
        strangers = [np.flatnonzero(others & (self.is_word == word)) for word in (False, True)]
        if not all(map(len, strangers)):
            raise DataError(
                f"Nobody but {user} has clips of {'non-keywords' if len(strangers[1]) else 'keywords'} to count errors "
                f"on. Add clips by other people."
            )
        for fold in range(count):
            tested = np.concatenate([clips[fold::count] for clips in words])
            support = np.concatenate([np.setdiff1d(clips, clips[fold::count])[:shots] for clips in words])
            if not len(tested):
                continue
            start = time.perf_counter()
            spotter = self._enrol(learner, support, half)
            seconds = time.perf_counter() - start
            after = self._with_accepts_as_before(spotter, half)
            rates = [
                np.mean(predicted != self.answers[clips])
                for clips in (tested, *strangers)
                for predicted in (
                    self._before[clips],
                    after.predict(spotter.classifier.scores(self._embed(spotter.embedder, clips))),
                )
            ]
            folds.append((len(tested), len(support), *rates, self._stored_bytes(spotter), seconds))
        rows = np.array(folds, float)
        errors = np.average(rows[:, 2:4], 0, rows[:, 0])
        return UserResult(user, *map(float, (rows[:, 0].sum(), rows[:, 1].mean(), *errors, *rows[:, 4:].mean(0))))

    def _enrol(self, learner: Learner, support: np.ndarray, half: bool) -> Spotter:
        embedder, labels = self._embedders[half], self.labels[support]
        if not learner.keeps_embeddings:
            return learner.enrol(embedder, self.features[support], labels)
        classifier = learner.classify(embedder, self.embeddings[support], labels, self.head.num_classes)
        return Spotter(embedder, classifier)

    def _with_accepts_as_before(self, spotter: Spotter, half: bool) -> Protocol:
        before = self._non_keywords[half]
        if not len(before):
            return self.protocol
        now = before if spotter.embedder.model is self.embedder.model else _non_keywords(spotter.embedder)
        count = np.count_nonzero(self.protocol.predict(self.head.scores(before)) >= 0)
        return self.protocol.with_accepts(spotter.classifier.scores(now), int(count))

    def _embed(self, embedder: Embedder, clips: np.ndarray) -> np.ndarray:
        same = embedder.model is self.embedder.model
        return self.embeddings[clips] if same else embedder.embed(self.features[clips])

    def _stored_bytes(self, spotter: Spotter) -> int:
        """Bytes stored for a user: the classifier's arrays and the weights that have changed."""
        old, new = self.embedder.weights, spotter.embedder.weights
        changed = [array for name, array in new.items() if not np.array_equal(array, old[name])]
        arrays = [value for value in vars(spotter.classifier).values() if isinstance(value, np.ndarray)]
        return sum(array.nbytes for array in (*changed, *arrays))


def _non_keywords(embedder: Embedder) -> np.ndarray:
    """Embeddings of the background's non-keywords."""
    return embedder.embed(embedder.required_background.non_keywords)


def _halves(speakers: np.ndarray, seed: int) -> np.ndarray:
    """One of two halves of the speakers for each clip, drawn with `seed`; clips without a speaker are divided
    themselves: bool (n,)."""
    rng = np.random.default_rng([seed, _HALVES])
    names = rng.permutation(np.unique(speakers[speakers != ""]))
    no_speaker = rng.random(len(speakers)) < 0.5
    return np.where(speakers == "", no_speaker, np.isin(speakers, names[: len(names) // 2]))
