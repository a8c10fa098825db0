"""What the views of keywords share: the words so far, what was learned from them, and the threshold."""

from __future__ import annotations

import numpy as np
import traitlets

from edgelearn.data.audio.clips import ClipDataset, load_clips
from edgelearn.data.audio.decode import fit
from edgelearn.errors import DataError
from edgelearn.keywords.learners import Embedder, Learner, NearestMean, Spotter
from edgelearn.keywords.threshold import held_out_scores, threshold_for
from edgelearn.keywords.vocabulary import Vocabulary, features_of_sound

NO_SCORES = np.empty(0, np.float32)


class Enrolment(traitlets.HasTraits):
    """Words enrolled with `embedder` by `learner`, and clips of `others` that none of them should be taken for.

    vocabulary: the words' clips. spotter: what was learned from them, None without words. known, unknown: scores of the
    words' clips, each by a spotter that hadn't heard it, and of the others'. threshold: from which score on a clip is
    taken for a word; an enrolment sets it by the others' scores. vocabulary, threshold and spotter are traits to
    `observe`; spotter is the last that changes.
    """

    vocabulary = traitlets.Instance(Vocabulary)
    spotter = traitlets.Instance(Spotter, allow_none=True)
    threshold = traitlets.Float(np.inf)

    def __init__(
        self, embedder: Embedder, others: ClipDataset, learner: Learner | None = None,
        vocabulary: Vocabulary | None = None, false_accepts: float = 0.01,
    ) -> None:  # fmt: skip
        super().__init__()
        self.embedder, self.learner, self.false_accepts = embedder, learner or NearestMean(), false_accepts
        front_end = embedder.front_end
        self._others = front_end(load_clips(others, rate=front_end.rate, seconds=embedder.seconds))
        self._other_words = others.words
        self.known = self.unknown = NO_SCORES
        self._change(vocabulary or Vocabulary.empty(embedder))

    @property
    def others(self) -> np.ndarray:
        """Features of the clips of words that aren't enrolled."""
        return self._others_of(self.vocabulary)

    def features(self, clips: list[np.ndarray]) -> np.ndarray:
        """Recordings, float32 (n,) each at the front end's rate and of any length, as (clips, frames, bands). Of long
        ones it is the loudest second. Raises DataError for a silent one."""
        length = round(self.embedder.front_end.rate * self.embedder.seconds)
        return features_of_sound(np.stack([fit(clip, length) for clip in clips]), self.embedder)

    def enrol(self, word: str, clips: list[np.ndarray]) -> None:
        """Learn a new word, or more clips of one that is there. Raises DataError for no name or no clips; all stays as
        it was then."""
        if not clips:
            raise DataError(f"'{word}' needs clips. Record or upload a few.")
        self._change(self.vocabulary.add(word, self.features(clips)))

    def forget(self, word: str) -> None:
        """Raises DataError when it isn't there."""
        self._change(self.vocabulary.without(word))

    def require(self) -> Spotter:
        """The spotter. Raises DataError when no word is enrolled."""
        return self.spotter or self.vocabulary.enrol(self.embedder, self.learner)

    @property
    def score_range(self) -> tuple[float, float]:
        """The lowest and the highest score: between them the threshold makes a difference. 0 and 1 without words."""
        if self.spotter is None:
            return 0.0, 1.0
        seen = np.concatenate([self.known, self.unknown, [self.threshold]])
        return float(seen.min()), float(seen.max())

    def map(self) -> tuple[np.ndarray, np.ndarray, tuple[str, ...], np.ndarray]:
        """What plot_embeddings draws: embeddings of the words' clips, labels, words, and embeddings of the others."""
        embed, vocabulary = self.require().embedder.embed, self.vocabulary
        return embed(vocabulary.features), vocabulary.labels, vocabulary.words, embed(self.others)

    def rates(self) -> tuple[float, float]:
        """The shares of false accepts and of false rejects at the threshold; NaN where there are no clips to tell."""
        accepted = np.mean(self.unknown >= self.threshold) if len(self.unknown) else np.nan
        rejected = np.mean(self.known < self.threshold) if len(self.known) else np.nan
        return float(accepted), float(rejected)

    def _others_of(self, vocabulary: Vocabulary) -> np.ndarray:
        return self._others[~np.isin(self._other_words, vocabulary.words)]

    def _change(self, vocabulary: Vocabulary) -> None:
        """Nothing changes unless all of it can be learned."""
        spotter, known, unknown = None, NO_SCORES, NO_SCORES
        if vocabulary.words:
            spotter = vocabulary.enrol(self.embedder, self.learner)
            known = held_out_scores(vocabulary, self.embedder, self.learner)
            unknown = spotter.knownness(self._others_of(vocabulary))
        self.known, self.unknown = known, unknown
        with self.hold_trait_notifications():
            self.vocabulary = vocabulary
            self.threshold = threshold_for(unknown, self.false_accepts) if spotter else np.inf
            self.spotter = spotter
