"""The state that the views of keywords share: enrolled words, the listener that learned them, and the threshold."""

from __future__ import annotations

import numpy as np
import traitlets

from edgelearn.data.audio.clips import ClipDataset
from edgelearn.data.audio.decode import fit
from edgelearn.errors import DataError
from edgelearn.keywords import Embedder, Learner, Listener, OtherWords, Vocabulary
from edgelearn.keywords.learners import NearestMean
from edgelearn.keywords.vocabulary import clip_features, held_out_scores

_NO_SCORES = np.empty(0, np.float32)


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

    def _listener(self, vocabulary: Vocabulary) -> Listener:
        return Listener(self.embedder, vocabulary, self.learner, others=self._others, false_accepts=self.false_accepts)

    def _change(self, vocabulary: Vocabulary) -> None:
        """Learn all words, then change the traits together: nothing changes if learning fails."""
        listener, known, unknown = None, _NO_SCORES, _NO_SCORES
        if vocabulary.words:
            listener = self._listener(vocabulary)
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
