"""Tasks: clips to train an embedding with, and clips of other words by other speakers to test it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from edgelearn.data.audio.clips import SILENCE, UNKNOWN, ClipDataset
from edgelearn.data.audio.folder import load_folder
from edgelearn.data.audio.speech_commands import load_named
from edgelearn.data.audio.synthetic import embedded_words
from edgelearn.errors import DataError, UsageError
from edgelearn.experiments.keywords.splits import hold_out

from .config import KeywordsConfig

ARABIC, ENGLISH = "arabic_speech_commands", "speech_commands_v0.02_test"
HELD_WORDS, HELD_SPEAKERS = 8, 6  # of Ghandoura et al.'s 24 words and 24 speakers


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


def arabic(config: KeywordsConfig) -> TaskData:
    """Train on 16 Arabic words by 18 speakers, and English clips unless disabled; test 8 words by 6 speakers."""
    split = hold_out(load_named(ARABIC, config.data), HELD_WORDS, HELD_SPEAKERS, config.seed)
    return TaskData((split.train, *_english(config)), split.test)


def folder(config: KeywordsConfig) -> TaskData:
    """Train on a folder of recordings, and English clips unless disabled; a third of the words (at least three) by a
    quarter of the speakers (at least two) are held out, the same shares as of the Arabic ones."""
    clips = load_folder(config.task)
    words, speakers = len(clips.class_names), len(np.unique(clips.speakers))
    split = hold_out(clips, max(3, words // 3), max(2, speakers // 4), config.seed)
    return TaskData((split.train, *_english(config)), split.test)


def _english(config: KeywordsConfig) -> tuple[ClipDataset, ...]:
    if not config.english:
        return ()
    try:
        return (by_word(load_named(ENGLISH, config.data)),)
    except DataError as error:
        raise DataError(f"{error} Or train without English clips: --no-english.") from error


def sample(config: KeywordsConfig) -> TaskData:
    """Train and test on words that the package synthesises."""
    split = hold_out(embedded_words(), 4, 4, config.seed)
    return TaskData((split.train,), split.test)


TASKS: dict[str, Callable[[KeywordsConfig], TaskData]] = {"arabic": arabic, "sample": sample}


def load_task(config: KeywordsConfig) -> TaskData:
    """Load the clips of `config.task`. Raises UsageError if it is neither a task nor a folder, DataError if its clips
    are missing."""
    if config.task in TASKS:
        return TASKS[config.task](config)
    if not Path(config.task).is_dir():
        raise UsageError(f"There is no task or folder of recordings '{config.task}'. Tasks: {', '.join(TASKS)}.")
    return folder(config)


def by_word(dataset: ClipDataset) -> ClipDataset:
    """Relabel a folder of Speech Commands: clips in _unknown_ get the words that their file names begin with
    (`tree_<speaker>_nohash_0`), _silence_ is left out."""
    spoken = dataset.take(dataset.words != SILENCE)
    words = [
        item.name.partition("_")[0] if word == UNKNOWN and isinstance(item, Path) else word
        for word, item in zip(spoken.words.tolist(), spoken.items, strict=True)
    ]
    names = tuple(sorted(set(words)))
    return replace(spoken, class_names=names, labels=np.searchsorted(names, words).astype(np.int32))
