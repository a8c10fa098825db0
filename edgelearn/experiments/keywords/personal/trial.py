"""Personalisation: what a few clips of a user are worth to that user, and what they cost other people.

For each user, words with enough clips are divided into parts; each part is tested once, after enrolment with up to k of
the user's other clips of each word. False accepts are other people's clips of no word that are taken for one; besides,
it is counted how many of other people's words are wrong.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from edgelearn.data.audio.clips import ClipDataset
from edgelearn.errors import DataError
from edgelearn.experiments.keywords.splits import require_speakers
from edgelearn.keywords.learners import Background, Embedder, Learner, Spotter

from .results import Personalisation, User

_HALVES = 37  # keeps this random stream of a seed apart from others


@dataclass(frozen=True)
class Protocol:
    """Of the users' `words` (labels), those with `least` clips or more are enrolled and tested, in `parts` parts. Clips
    of other labels are of no word.

    A clip is taken for the best of the words where its score reaches `threshold`: how far it is above that of the best
    of the classifier's other classes (`against` "others"), or as it is ("none"), which suits a classifier that has no
    class for what is no word. After enrolment the threshold is set anew, to accept no more of the background's clips of
    no word (Background.others) than before; the clips on which false accepts are counted play no part.

    Where the embedder has no background of its own, it is the clips of one half of the other people, drawn with `seed`,
    and false accepts are counted on the other half.
    """

    words: tuple[int, ...]
    least: int = 5
    parts: int = 5
    threshold: float = 0.0
    against: str = "others"
    seed: int = 0

    def margins(self, scores: np.ndarray) -> np.ndarray:
        """How far each clip, of scores (n, ways), is from being no word: (n,)."""
        best = scores[:, self.words].max(1)
        if self.against == "none":
            return best
        return best - np.delete(scores, self.words, 1).max(1)

    def accepted(self, scores: np.ndarray) -> np.ndarray:
        """The word of each clip, -1 for none."""
        best = np.array(self.words)[scores[:, self.words].argmax(1)]
        return np.where(self.margins(scores) >= self.threshold, best, -1)

    def accepting(self, scores: np.ndarray, count: int) -> Protocol:
        """With the lowest threshold that accepts no more than `count` of clips with these scores."""
        falling = np.sort(self.margins(scores))[::-1]
        return replace(self, threshold=float(np.nextafter(falling[count], np.inf)) if count < len(falling) else -np.inf)


def personalise(
    learner: Learner, embedder: Embedder, dataset: ClipDataset, features: np.ndarray, protocol: Protocol, shots: int
) -> Personalisation:
    """Enrol every user of `dataset`, whose clips have `features` and labels as the embedder's head.

    Raises DataError for an embedder without a head, words that it doesn't have, where no user has words with so many
    clips, or other people have none to count errors on."""
    return Trial(embedder, dataset, features, protocol).run(learner, shots)


class Trial:
    """The users of `dataset`, for several learners: see `personalise`."""

    def __init__(self, embedder: Embedder, dataset: ClipDataset, features: np.ndarray, protocol: Protocol) -> None:
        if embedder.head is None:
            raise DataError(
                "Personalisation starts from a classifier of the words: give an embedder that has its head."
            )
        words, classes = set(protocol.words), set(range(embedder.head.ways))
        if not words or not words <= classes:
            raise DataError(f"Words are classes of the head, 0 to {len(classes) - 1}, not {protocol.words}.")
        if protocol.against == "others" and words == classes:
            raise DataError("All classes of the head are words: none stands for no word. Give against='none'.")
        require_speakers(dataset.take(np.isin(dataset.labels, protocol.words)))
        self.embedder, self.protocol, self.features = embedder, protocol, features
        self.labels, self.speakers = dataset.labels, dataset.speakers
        self.is_word = np.isin(self.labels, protocol.words)
        self.answers = np.where(self.is_word, self.labels, -1)
        self.embeddings = embedder.embed(features)
        self.plain = embedder.head
        self.half = np.zeros(len(features), bool)
        self.rehearsing = {False: embedder, True: embedder}  # the embedder for users of each half
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
                self.rehearsing[half] = embedder.with_background(background)
        for embedder in self.rehearsing.values():
            _ = embedder.metric  # made once for all users: no part of the seconds that one takes
        self.others = {half: _others(self.rehearsing[half]) for half in (False, True)}

    def run(self, learner: Learner, shots: int) -> Personalisation:
        """Enrolled with up to `shots` clips of a word. Raises DataError as `personalise`, and for no shots."""
        if shots < 1:
            raise DataError(f"An enrolment needs clips of each word: 1 or more, not {shots}.")
        return Personalisation(str(learner), shots, tuple(self._users(learner, shots)))

    def half_of(self, name: str) -> bool:
        """Which half of the people a user belongs to."""
        return bool(self.half[self.speakers == name][0])

    def _users(self, learner: Learner, shots: int) -> Iterator[User]:
        p, found = self.protocol, 0
        for name in np.unique(self.speakers[self.speakers != ""]).tolist():
            own = [np.flatnonzero((self.speakers == name) & (self.labels == word)) for word in p.words]
            own = [clips for clips in own if len(clips) >= p.least]
            if own:
                found += 1
                yield self._user(learner, name, own, shots)
        if not found:
            raise DataError(f"Nobody has {p.least} clips of one of the words. Ask for fewer.")

    def _user(self, learner: Learner, name: str, words: Sequence[np.ndarray], shots: int) -> User:
        p, half, parts = self.protocol, self.half_of(name), []
        others = (self.half == half) & (self.speakers != name)
        strangers = [np.flatnonzero(others & (self.is_word == word)) for word in (False, True)]
        if not all(map(len, strangers)):
            raise DataError(
                f"Nobody but {name} has clips of {'no' if len(strangers[1]) else 'a'} word to count errors on. Add "
                f"clips by other people."
            )
        for part in range(p.parts):
            tested = np.concatenate([clips[part :: p.parts] for clips in words])
            support = np.concatenate([np.setdiff1d(clips, clips[part :: p.parts])[:shots] for clips in words])
            if not len(tested):
                continue
            start = time.perf_counter()
            spotter = self._enrol(learner, support, half)
            seconds = time.perf_counter() - start
            after = self._accepting_as_before(p, spotter, half)
            rates = [
                np.mean(taken != self.answers[clips])
                for clips in (tested, *strangers)
                for taken in (
                    p.accepted(self.plain.scores(self.embeddings[clips])),
                    after.accepted(spotter.classifier.scores(self._embed(spotter.embedder, clips))),
                )
            ]
            parts.append((len(tested), len(support), *rates, self._kept(spotter), seconds))
        rows = np.array(parts, float)
        before, after = np.average(rows[:, 2:4], 0, rows[:, 0])
        return User(name, rows[:, 0].sum(), rows[:, 1].mean(), before, after, *rows[:, 4:].mean(0))

    def _enrol(self, learner: Learner, support: np.ndarray, half: bool) -> Spotter:
        embedder, labels = self.rehearsing[half], self.labels[support]
        if not learner.keeps_embeddings:
            return learner.enrol(embedder, self.features[support], labels)
        found = learner.classify(embedder, self.embeddings[support], labels, embedder.head.ways)
        return Spotter(embedder, found)

    def _accepting_as_before(self, p: Protocol, spotter: Spotter, half: bool) -> Protocol:
        before = self.others[half]
        if not len(before):
            return p
        now = before if spotter.embedder.model is self.embedder.model else _others(spotter.embedder)
        count = np.count_nonzero(p.accepted(self.plain.scores(before)) >= 0)
        return p.accepting(spotter.classifier.scores(now), count)

    def _embed(self, embedder: Embedder, clips: np.ndarray) -> np.ndarray:
        kept = embedder.model is self.embedder.model
        return self.embeddings[clips] if kept else embedder.embed(self.features[clips])

    def _kept(self, spotter: Spotter) -> int:
        """Bytes of what is the user's own: the classifier's arrays and the weights that have changed."""
        old, new = self.embedder.weights, spotter.embedder.weights
        changed = [array for name, array in new.items() if not np.array_equal(array, old[name])]
        own = [value for value in vars(spotter.classifier).values() if isinstance(value, np.ndarray)]
        return sum(array.nbytes for array in (*changed, *own))


def _others(embedder: Embedder) -> np.ndarray:
    """Embeddings of the background's clips of no word."""
    others = embedder.background.others
    return embedder.embed(() if others is None else others)


def _halves(speakers: np.ndarray, seed: int) -> np.ndarray:
    """Which of two halves of the speakers each clip is of; where nobody speaks, of the clips: bool (n,)."""
    rng = np.random.default_rng([seed, _HALVES])
    names = rng.permutation(np.unique(speakers[speakers != ""]))
    nobody = rng.random(len(speakers)) < 0.5
    return np.where(speakers == "", nobody, np.isin(speakers, names[: len(names) // 2]))
