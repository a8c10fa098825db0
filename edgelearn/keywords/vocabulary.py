"""Vocabulary: a user's own words, as features of the clips that they were enrolled with, and thresholds for them.

It is stored as a safetensors file: arrays, and JSON as metadata; no code. Since it holds features, not embeddings, any
learner and any network with the same front end can learn from it. The clips can't be played back, but what was said
could be recovered: keep the file as private as the recordings.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

import numpy as np

from edgelearn import atomic, records
from edgelearn.data import features as front_ends
from edgelearn.data.audio import ClipDataset, load_clips
from edgelearn.errors import DataError, FormatError
from edgelearn.interop import safetensors

from .learners import Embedder, Learner, NearestMean, Spotter

VERSION = 1
_KIND = "edgelearn words"


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """Enrolled clips and their words.

    Arguments:
    - `front_end`: what computed the features, as JSON (`data.audio.features.to_json`).
    - `seconds`: length of a clip.
    - `words`: names of the labels 0..n-1.
    - `features`: float32 (clips, frames, bands).
    - `labels`: int32 (clips,).

    Raises FormatError if these contradict each other, or features aren't finite.
    """

    front_end: str
    seconds: float
    words: tuple[str, ...]
    features: np.ndarray
    labels: np.ndarray

    def __post_init__(self) -> None:
        labels = sorted(set(self.labels.tolist()))
        if (
            self.features.ndim != 3 or self.labels.shape != self.features.shape[:1]
            or labels != list(range(len(self.words))) or len(set(self.words)) < len(self.words)
        ):  # fmt: skip
            raise FormatError(
                f"Words {', '.join(self.words)} with features of shape {self.features.shape} and labels {labels} don't "
                f"fit each other: every word needs a clip, every clip a word. Enrol the words again."
            )
        if not np.isfinite(self.features).all():
            raise FormatError("Features of these words are infinite or NaN. Record the clips again.")

    def __str__(self) -> str:
        return ", ".join(f"{word} ({self.count(word)} clips)" for word in self.words) or "no words"

    @staticmethod
    def empty(embedder: Embedder) -> Vocabulary:
        """No words yet, for the front end of `embedder`."""
        shape = embedder.front_end.shape(round(embedder.front_end.rate * embedder.seconds))
        front_end = front_ends.to_json(embedder.front_end)
        return Vocabulary(front_end, embedder.seconds, (), np.empty((0, *shape), np.float32), np.empty(0, np.int32))

    def count(self, word: str) -> int:
        """Number of clips of `word`."""
        return int(np.count_nonzero(self.labels == self.words.index(word))) if word in self.words else 0

    def add(self, word: str, features: np.ndarray) -> Vocabulary:
        """A copy with clips of a new word, or more clips of an enrolled one. `features`: (n, frames, bands).

        Raises DataError for an empty name, no clips, features of another shape, or a clip that is enrolled already
        (thresholds are evaluated on clips that were left out of the enrolment, so none may be there twice).
        """
        word = word.strip()
        if not word:
            raise DataError("A word needs a name: give one, such as the word itself.")
        if not len(features) or np.shape(features)[1:] != self.features.shape[1:]:
            raise DataError(
                f"'{word}' needs features of at least one clip, of shape (n, {self.features.shape[1]}, "
                f"{self.features.shape[2]}), not {np.shape(features)}. Make them with this vocabulary's front end."
            )
        features = np.asarray(features, np.float32)
        enrolled = {
            clip.tobytes(): f"is enrolled already, as '{self.words[label]}'"
            for clip, label in zip(self.features, self.labels.tolist(), strict=True)
        }
        for number, clip in enumerate(features, 1):
            content = clip.tobytes()
            if content in enrolled:
                raise DataError(f"Clip {number} {enrolled[content]}. Leave it out, or record another.")
            enrolled[content] = f"is the same recording as clip {number} of '{word}'"
        words = self.words if word in self.words else (*self.words, word)
        return Vocabulary(
            self.front_end, self.seconds, words,
            np.concatenate([self.features, features]),
            np.concatenate([self.labels, np.full(len(features), words.index(word), np.int32)]),
        )  # fmt: skip

    def without(self, word: str) -> Vocabulary:
        """A copy without `word`. Raises DataError if it isn't enrolled."""
        if word not in self.words:
            raise DataError(f"'{word}' isn't enrolled. There are: {', '.join(self.words) or 'none'}.")
        removed = self.words.index(word)
        keep = self.labels != removed
        labels = self.labels[keep]
        words = tuple(other for other in self.words if other != word)
        return Vocabulary(self.front_end, self.seconds, words, self.features[keep], labels - (labels > removed))

    def take(self, clips: np.ndarray) -> Vocabulary:
        """A copy with some of the clips, which still have every word: bool (clips,) or indices."""
        return Vocabulary(self.front_end, self.seconds, self.words, self.features[clips], self.labels[clips])

    def enrol(self, embedder: Embedder, learner: Learner | None = None, seed: int = 0) -> Spotter:
        """Learn the words.

        Arguments:
        - `embedder`: the network.
        - `learner`: how words are learned (default: nearest mean by cosine).
        - `seed`: draws whatever is random.

        Raises DataError if there are no words, or the embedder has another front end.
        """
        if not self.words:
            raise DataError("No word is enrolled yet. Enrol one from a few clips.")
        if (front_ends.to_json(embedder.front_end), embedder.seconds) != (self.front_end, self.seconds):
            raise DataError(
                f"These words were enrolled with other features ({self.front_end}, {self.seconds:g} s) than "
                f"'{embedder.network.name}' takes. Enrol them again for this network, or use the previous network."
            )
        return (learner or NearestMean()).enrol(embedder, self.features, self.labels, seed=seed)

    def save(self, path: str | Path) -> None:
        """Write a file atomically. Raises RunError if it can't be written; a previous file then stays as it is."""
        head = {"version": VERSION, "words": self.words, "front_end": self.front_end, "seconds": self.seconds}
        arrays = {"features": self.features, "labels": self.labels}
        atomic.write_bytes(path, safetensors.to_bytes(arrays, {_KIND: json.dumps(head)}))

    @staticmethod
    def load(path: str | Path) -> Vocabulary:
        """Read a file. Raises FormatError if there is none, it holds something else, is damaged, or is of a newer
        version."""
        if not Path(path).is_file():
            raise FormatError(
                f"There is no file of words {path}. Enrol one first: edgelearn keywords enrol WORD CLIP … --into {path}"
            )
        arrays, metadata = safetensors.read_weights(path), safetensors.read_metadata(path)
        try:
            head = records.parse(metadata[_KIND], _Head)
            if head["version"] != VERSION:
                raise FormatError(
                    f"{path} holds words in version {head['version']}; this edgelearn reads version {VERSION}. Update "
                    f"it, or enrol the words again."
                )
            front_ends.from_json(head["front_end"])
            return Vocabulary(
                head["front_end"], head["seconds"], head["words"],
                arrays["features"].astype(np.float32), arrays["labels"].astype(np.int32),
            )  # fmt: skip
        except (KeyError, ValueError, DataError) as error:
            raise FormatError(
                f"{path} holds no words, or is damaged ({error}). Give a file that `edgelearn keywords enrol` wrote."
            ) from None


class _Head(TypedDict):
    """The texts and numbers of a file."""

    version: int
    words: tuple[str, ...]
    front_end: str
    seconds: float


def file_features(files: Sequence[str | Path], embedder: Embedder) -> np.ndarray:
    """Features (n, frames, bands) of recordings to enrol with `embedder`. Raises DataError for one that can't be read
    or is silent."""
    paths = [Path(file) for file in files]
    labels, speakers = np.zeros(len(paths), int), np.full(len(paths), "")
    clips = ClipDataset("clips", "folder", "Clips.", ("clip",), labels, speakers, paths)
    return clip_features(load_clips(clips, rate=embedder.front_end.rate, seconds=embedder.seconds), embedder)


def clip_features(clips: np.ndarray, embedder: Embedder) -> np.ndarray:
    """Features (n, frames, bands) of clips, float (n, samples), to enrol with `embedder`. Raises DataError for a silent
    one, as a muted microphone records it."""
    silent = np.flatnonzero(~np.any(clips, axis=1))
    if silent.size:
        raise DataError(
            f"Clip {silent[0] + 1} of {len(clips)} is silent. Check that the microphone isn't muted, and "
            f"record it again."
        )
    return embedder.features(clips)


@dataclass(frozen=True, eq=False)
class OtherWords:
    """Clips of words that must not be detected; a threshold is set by their scores.

    Arguments:
    - `features`: (n, frames, bands).
    - `words`: name of the word in each clip (n,).
    """

    features: np.ndarray
    words: np.ndarray

    @staticmethod
    def load(clips: ClipDataset, embedder: Embedder) -> OtherWords:
        """Compute the features that `embedder` takes. Raises DataError for a clip that can't be read."""
        sound = load_clips(clips, rate=embedder.front_end.rate, seconds=embedder.seconds)
        return OtherWords(embedder.features(sound), clips.words)

    def outside(self, vocabulary: Vocabulary) -> np.ndarray:
        """Features of the clips whose words aren't in `vocabulary`."""
        return self.features[~np.isin(self.words, vocabulary.words)]


def threshold_for(scores: np.ndarray, false_accepts: float = 0.01) -> float:
    """The lowest threshold that accepts at most a share of the clips of other words.

    Arguments:
    - `scores`: known scores of these clips (n,).
    - `false_accepts`: the share, from 0 to 1 (default 0.01).

    Raises DataError without scores, or for another share.
    """
    if not 0 <= false_accepts <= 1:
        raise DataError(f"false_accepts must be a share from 0 to 1, not {false_accepts}.")
    if not len(scores):
        raise DataError("A threshold needs clips of other words: give some, or the threshold itself.")
    descending = np.sort(np.asarray(scores, np.float32))[::-1]
    rejected = descending[min(int(false_accepts * len(descending)), len(descending) - 1)]  # the highest of these
    return float(np.nextafter(rejected, np.float32(np.inf)))


def held_out_scores(vocabulary: Vocabulary, embedder: Embedder, learner: Learner | None = None) -> np.ndarray:
    """Known scores of enrolled clips, each by a spotter that was enrolled without it: float32 (n,).

    Every word's first clip is left out, then every word's second, and so on. Words with a single clip have no score.
    """
    position = np.zeros(len(vocabulary.labels), int)  # of a clip among those of its word; -1: the only one
    for label in range(len(vocabulary.words)):
        own = vocabulary.labels == label
        position[own] = np.arange(own.sum()) if own.sum() > 1 else -1
    scores = [np.empty(0, np.float32)]
    for number in range(position.max(initial=-1) + 1):
        out = position == number
        scores.append(vocabulary.take(~out).enrol(embedder, learner).known_score(vocabulary.features[out]))
    return np.concatenate(scores)
