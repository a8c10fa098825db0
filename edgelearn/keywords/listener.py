"""Listener: keyword spotting in continuous sound, from a vocabulary to detections."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path

import numpy as np

from edgelearn.data.audio import source
from edgelearn.errors import DataError

from .detector import HOP, REFRACTORY, SMOOTHING, Detection, Scores, ScoreStream, Trigger
from .learners import Embedder, Learner
from .threshold import OtherWords, threshold_for
from .vocabulary import Vocabulary

_FILE_BATCH = 8  # clips of a file that are embedded together, for speed


class Listener:
    """Detects the words of a vocabulary in a file, at the microphone, or in samples that the application pushes.

    >>> listener = Listener(load_embedder("network.safetensors"), Vocabulary.load("my-words"), threshold=0.8)
    >>> for detection in listener.listen_to_microphone():
    ...     print(f"{detection.time:.1f} s  {detection.word}")

    Every `hop` seconds the clip that ends now is scored, scores are averaged over `smoothing` seconds, and a word is
    detected once when the known score reaches the threshold (see `ScoreStream` and `Trigger`).

    Arguments:
    - `embedder`: the network.
    - `vocabulary`: the words; it holds features of the same front end as the embedder's.
    - `learner`: how words are learned (default: nearest mean by cosine).
    - `threshold`: least known score of a detection; default: the lowest that accepts at most `false_accepts` of
      `others`. It may be changed at any time.
    - `others`: clips of other words; those of enrolled words are left out.
    - `false_accepts`: share from 0 to 1 (default 0.01).
    - `hop`, `smoothing`, `refractory`: seconds between scores, averaged over, and without detections after one (default
      0.1, 0.5 and 1).

    Attributes: `spotter`, what was learned; `other_scores` (n,), known scores of `others`; `seconds` of sound heard;
    `scores` of the last piece of sound; `heard` (d,), the embedding of the last clip that was scored, or None.

    Raises DataError for an empty vocabulary, one with features of another front end, settings out of range, and where
    both `threshold` and `others` are missing.
    """

    def __init__(
        self, embedder: Embedder, vocabulary: Vocabulary, learner: Learner | None = None,
        threshold: float | None = None, others: OtherWords | None = None, false_accepts: float = 0.01,
        hop: float = HOP, smoothing: float = SMOOTHING, refractory: float = REFRACTORY,
    ) -> None:  # fmt: skip
        self.vocabulary = vocabulary
        self.spotter = vocabulary.enrol(embedder, learner)
        features = np.empty(0) if others is None else others.outside(vocabulary)
        self.other_scores = self.spotter.known_score(features) if len(features) else np.empty(0, np.float32)
        if threshold is None:
            threshold = threshold_for(self.other_scores, false_accepts)
        self._times = hop, smoothing
        self._trigger = Trigger(vocabulary.words, threshold, refractory)
        self.reset()

    @property
    def threshold(self) -> float:
        return self._trigger.threshold

    @threshold.setter
    def threshold(self, value: float) -> None:
        self._trigger.threshold = value

    @property
    def heard(self) -> np.ndarray | None:
        return self._stream.heard

    @property
    def seconds(self) -> float:
        return self._samples / self._rate

    @property
    def _rate(self) -> int:
        return self.spotter.embedder.front_end.rate

    def reset(self, batch: int = 1) -> None:
        """Begin a new recording. `batch`: clips that are embedded together; 1 detects soonest (default)."""
        self._stream = ScoreStream(self.spotter, *self._times, batch)
        self._trigger.reset()
        self._samples = 0
        self.scores = Scores.join([], self.spotter.num_classes)

    def push(self, samples: np.ndarray) -> list[Detection]:
        """Hear float `samples` (n,) at the front end's rate. Returns the new detections."""
        self._samples += len(samples)
        self.scores = self._stream.push(samples)
        return self._trigger.push(self.scores)

    def finish(self) -> list[Detection]:
        """End the recording. Returns the last detections. Raises DataError if it was shorter than one clip."""
        needed = self.spotter.embedder.seconds
        if self.seconds < needed:
            raise DataError(
                f"{self.seconds:.2f} s were heard, too short for a score, which needs {needed:g} s. Give a longer "
                f"recording, or listen longer."
            )
        self.scores = self._stream.finish()
        return self._trigger.push(self.scores)

    def listen(self, blocks: Iterable[np.ndarray], batch: int = 1) -> Iterator[Detection]:
        """Detections in a recording that comes in `blocks`, float (n,) each. Raises DataError as `finish`."""
        self.reset(batch)
        for block in blocks:
            yield from self.push(block)
        yield from self.finish()

    def listen_to_file(self, path: str | Path) -> Iterator[Detection]:
        """Detections in a WAV, FLAC or OGG file of any length. Raises DataError for a file that can't be read."""
        with closing(source.file_blocks(path, self._rate)) as blocks:
            yield from self.listen(blocks, _FILE_BATCH)

    def listen_to_microphone(self, name: str | None = None) -> Iterator[Detection]:
        """Detections at the microphone, until the caller stops iterating.

        `name`: part of a sound device's name (default: the system's choice). Raises DataError if there is no
        microphone, or the package sounddevice is missing.
        """
        with closing(source.microphone_blocks(self._rate, name)) as blocks:
            yield from self.listen(blocks)
